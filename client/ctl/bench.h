/*
 * What the files of kvcachectl bench share: bench.c is the command, its lookups and its rounds;
 * bench_save.c the save.
 */
#ifndef KVC_CTL_BENCH_H
#define KVC_CTL_BENCH_H

#include <stdint.h>

#include "client/ctl/ctl.h"
#include "client/ctl/echo.h"
#include "client/ctl/private.h"

#define BENCH_SLOT_BYTES KVC_SLOT_BYTES_MIN

enum bench_kind { BENCH_PING, BENCH_LOOKUP, BENCH_SAVE };

struct bench {
    struct ctl *ctl;
    uint32_t blocks, rounds, pairs;
    const char *only; /* NULL: all figures */
    struct private_daemon daemon;
    struct echo echo;
    kvc_client *client;
    kvc_part part;
    uint8_t *cache;
    uint8_t *keys; /* of the blocks that the daemon is filled with */
    unsigned random;
    uint64_t saved;                    /* keys that saves have used up */
    size_t request_bytes, reply_bytes; /* of a save */
};

struct bench_figure {
    const char *name;
    enum bench_kind kind;
    uint32_t keys;
    double p50, p99, echo_p50;
    uint64_t hits; /* keys that were found, or admitted */
};

double bench_now_micros(void);

/*
 * Saves keys that nobody has, into a full gpu tier; *micros is from packing the request to having
 * read the reply. Then it writes the words as if it had copied, and waits until all is published.
 */
kvc_status bench_save_once(struct bench *bench, struct bench_figure *figure, double *micros);

/* Saves until demotions run, and learns the sizes of the packets. */
kvc_status bench_save_warm_up(struct bench *bench);

#endif
