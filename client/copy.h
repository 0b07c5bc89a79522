/*
 * How bytes move between the worker's blocks and the daemon's slots: one table of functions a
 * device. Everything is in the order of a stream; on the host, which has none, it is done when the
 * function returns. Nothing above this interface knows the device.
 *
 * A call that copies: begin, jobs, end. `cuda` is the client's GPU, NULL on the host.
 */
#ifndef KVC_CLIENT_COPY_H
#define KVC_CLIENT_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/pack.h"
#include "proto/status.h"

struct cuda;

/* A completion word. pause: the point (pause.h) that is passed before it is written by the host. */
struct copy_word {
    uint64_t *at;
    uint64_t number;
    const char *pause;
};

/* Consecutive blocks of a job. */
struct copy_span {
    uint32_t n_blocks;
    uint64_t *cells;              /* of these blocks; of all spans of a job, or of none: NULL */
    const struct copy_word *word; /* written behind the span, seen by others after it; or NULL */
};

#define COPY_BLOCKS_MAX 256u /* of a job, whatever the device */
#define COPY_SPANS_MAX  28u

struct copy_job {
    struct pack_job pack;          /* without cells */
    const void *table;             /* of the part, from part_open */
    const struct copy_span *spans; /* of all blocks, in order */
    uint32_t n_spans;
    bool more, follows; /* the next, the last thing on the stream is a job of this call, too */
};

/* A gate of the completion page, and what it must have. */
struct copy_gate {
    uint32_t index;
    uint64_t number; /* 0: there is nothing to wait for */
};

struct copy_ops {
    const char *name;               /* as HelloReply.device says it */
    uint32_t blocks_max, spans_max; /* of a job; at least a chunk's blocks */

    /* What jobs of a part need on the device. KVC_E_INVALID with *slice and *why for memory that
     * the device cannot reach, KVC_E_UNSUPPORTED where this library cannot copy for the device. */
    kvc_status (*part_open)(struct cuda *cuda, const struct pack_layout *layout,
                            const struct pack_slice *slices, void **table, uint32_t *slice,
                            const char **why);
    /* When no job uses it any more; NULL is fine. */
    void (*part_close)(struct cuda *cuda, void *table);

    /* KVC_E_BUSY for a stream that is being captured. */
    kvc_status (*begin)(struct cuda *cuda, void *stream);
    void (*end)(struct cuda *cuda, void *stream);
    /* Enqueues one job: blocks of one layout; the job's arrays may change when it returns. A job
     * that fails was not enqueued. */
    kvc_status (*gather)(struct cuda *cuda, void *stream, const struct copy_job *job);
    kvc_status (*scatter)(struct cuda *cuda, void *stream, const struct copy_job *job);
    /* The word alone, behind all that was enqueued before. */
    kvc_status (*prove)(struct cuda *cuda, void *stream, const struct copy_word *word);
    /* Waits until the jobs of this call have ended, after one of them failed. */
    kvc_status (*settle)(struct cuda *cuda, void *stream);

    /* For the daemon's copies, which wait for it: a number in a gate of the completion page, behind
     * all that is on the stream so far. KVC_E_BUSY as for begin. */
    kvc_status (*write_gate)(struct cuda *cuda, void *stream, struct copy_gate *gate);

    /* Memory for cells that the host reads: n of them, kept by the client. */
    uint64_t *(*cells_make)(struct cuda *cuda, uint32_t n);
    void (*cells_free)(struct cuda *cuda, uint64_t *cells);
    /* A mark behind what was enqueued before: when it is passed, cells can be read. */
    kvc_status (*mark_make)(struct cuda *cuda, void **mark);
    void (*mark_free)(struct cuda *cuda, void *mark);
    kvc_status (*mark_set)(struct cuda *cuda, void *stream, void *mark);
    /* KVC_E_DEADLINE: not yet. */
    kvc_status (*mark_passed)(struct cuda *cuda, void *mark);
};

extern const struct copy_ops copy_host;
extern const struct copy_ops copy_cuda;

#endif
