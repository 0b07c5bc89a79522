/*
 * The copier: copies by the daemon between workers' memory and slots, on libuv's pool, or by
 * kernels of the GPU that the memory lies on, which the pool only launches. A job is a chunk of a
 * save or of a load, all of whose memory lies on one GPU. Each session has a queue; the queues take
 * turns, a job each time, so that who asks for much makes nobody else wait for more than a few
 * chunks. In one queue loads go before saves: somebody waits for their bytes.
 *
 * Fault sites: "copier.copy" fails a job half way; "copier.late" holds one back for a millisecond
 * each time that it fires, so armed for ever it holds all copies until it is off.
 */
#ifndef KVC_TIER_COPIER_H
#define KVC_TIER_COPIER_H

#include <uv.h>

#include "daemon/base/list.h"
#include "daemon/tier/region.h"
#include "daemon/tier/tier.h"

#define COPIER_LANES 2u /* jobs in flight, on each GPU */

struct copier;
struct copier_job;

enum copier_way { COPIER_GATHER, COPIER_SCATTER };

struct copier_queue {
    struct list turn;    /* copier::turns, while it has jobs */
    struct list jobs[2]; /* by way */
    uint32_t gpu;        /* of the device's, that the session's memory lies on */
};
void copier_queue_init(struct copier_queue *queue);

/* A block to copy, or some slices of one: which of a region's, and its slot. */
struct copier_block {
    struct region *region;
    uint64_t offset; /* bytes from the tier's start */
    uint32_t id;
    uint16_t first_slice, n_slices; /* in its layout; n_slices 0: all from the first */
    uint8_t tier;
};

/* Called once, on the loop, never from inside copier_start. */
typedef void copier_done_cb(struct copier_job *job, kvc_status status);

/*
 * The caller's memory, until done was called or the job was dropped. On KVC_OK cells, if not NULL,
 * has the checksum of each block, of the slices that were copied. After an error nothing is known
 * of the destination, but nothing writes there any more.
 */
struct copier_job {
    enum copier_way way;
    const struct copier_block *blocks; /* n_blocks <= KVC_CHUNK_BLOCKS */
    uint32_t n_blocks;
    uint64_t *cells;
    copier_done_cb *done;

    /* The copier's own. */
    struct list link;
    struct copier_queue *queue;
    uint32_t slices_done; /* of a block that is too large for one go */
    kvc_status status;
};

/* The tiers (either may be NULL) stay until copier_destroy, as does the device; NULL: without GPUs.
 * It is called before the loop runs. */
kvc_status copier_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                         const struct device *device, struct copier **copier);

void copier_start(struct copier *copier, struct copier_queue *queue, struct copier_job *job);

/* true: it had not begun, and is forgotten; done is not called. false: it runs, done will come. */
bool copier_drop(struct copier *copier, struct copier_job *job);

uint32_t copier_count(const struct copier *copier); /* jobs whose end is owed */
uint64_t copier_bytes(const struct copier *copier); /* read once and written once, in all */

/* Whether a copy on a GPU takes so long that it may never end. */
bool copier_hangs(const struct copier *copier);

/* For how long the oldest copy under way has been; 0: there is none. */
uint64_t copier_oldest_us(const struct copier *copier);

/* When copier_count() is 0, or when it hangs: then what it uses is left behind. NULL is fine. */
void copier_destroy(struct copier *copier);

#endif
