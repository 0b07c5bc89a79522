/*
 * One worker process of a replay: it does with each request what an engine does, with memory of
 * its own as KV cache and content_write as the model.
 */
#ifndef KVC_CTL_WORKER_H
#define KVC_CTL_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/tally.h"
#include "client/ctl/trace.h"
#include "client/kvcache.h"

struct worker_options {
    const char *socket;
    const struct trace *trace;
    struct tally *tally;
    uint32_t index;
    uint32_t slices, slice_bytes;
    bool verify;
    kvc_copy copy;
    uint32_t remote_ms; /* waited for what peers have; 0: they are not asked */
    uint32_t pace;      /* percent of the time that it works; 0: all */
    uint64_t seed;      /* names the run: content of another run is another namespace */
};

/*
 * Replays requests index, index + n_workers, ... from where the tally says, in this process.
 * Returns its exit status: 0, or 1 with the reason in the tally. A daemon that goes away is no
 * error: what it cannot give is a miss.
 */
int worker_run(const struct worker_options *options);

#endif
