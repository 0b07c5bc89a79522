/*
 * A daemon that means the library no good, a thread: what it makes of each request follows from the
 * input's bytes.
 */
#ifndef KVC_TESTS_FUZZ_HOSTILE_H
#define KVC_TESTS_FUZZ_HOSTILE_H

#include "daemon/conn/codec.h"
#include "tests/fuzz/fuzz.h"

#define HOSTILE_EXTENT_BYTES KVC_EXTENT_BYTES_MIN
#define HOSTILE_EXTENTS      2u /* of each tier */

struct hostile {
    struct fuzz_input in;
    struct codec *codec;
    char socket[64];
    int listener, sock, stop;
    uint32_t served;
};

void hostile_open(struct hostile *h);
void *hostile_run(void *hostile);
/* Ends hostile_run, which is yet to be joined. */
void hostile_stop(struct hostile *h);
void hostile_close(struct hostile *h);

/* The right reply; n_fds is 0 at first. */
struct bytes hostile_right(struct hostile *h, const struct request *r, int *fds, uint32_t *n_fds);

int hostile_memfd(uint64_t bytes, int seals);
/* An extent of those that it gives away, which are made once. */
int hostile_extent(void);
void hostile_end(void);

#endif
