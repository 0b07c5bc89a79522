/*
 * How bytes move between the worker's blocks and the daemon's slots: one table of functions a
 * device. Everything is in the order of a stream; on the host, which has none, it is done when the
 * function returns. Nothing above this interface knows the device.
 */
#ifndef KVC_CLIENT_COPY_H
#define KVC_CLIENT_COPY_H

#include <stdint.h>

#include "kernels/pack.h"
#include "proto/status.h"

struct copy_ops {
    const char *name; /* as HelloReply.device says it */

    /* Enqueues one job: at most a chunk's blocks of one layout; the job's arrays may change when it
     * returns. A job that fails was not enqueued. */
    kvc_status (*gather)(void *stream, const struct pack_job *job);
    kvc_status (*scatter)(void *stream, const struct pack_job *job);
    /* Waits until cells of jobs that were enqueued before can be read. */
    kvc_status (*settle)(void *stream);
    /* Behind all that was enqueued before, and seen by others after it: *word = number. */
    kvc_status (*prove)(void *stream, uint64_t *word, uint64_t number);
};

extern const struct copy_ops copy_host;

#endif
