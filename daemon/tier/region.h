/*
 * Regions: a worker's own KV memory, mapped by the daemon so that it can copy from and to it. A
 * region is made piece by piece and used only when all of it has been checked: whatever a worker
 * says of its memory, no address outside of its pieces follows from it.
 *
 * A worker can still take pages away from a memfd, or hand one over for whose pages there is no
 * memory: copies run under daemon/base/guard.h, and a region that has lost a page is of no use.
 */
#ifndef KVC_TIER_REGION_H
#define KVC_TIER_REGION_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/device/device.h"
#include "daemon/tier/errands.h"
#include "kernels/pack.h"
#include "proto/status.h"

struct region;

/* What is wrong with a region, in kvcache.proto's names; index is -1 when the field is no list. */
struct region_refusal {
    const char *field, *detail;
    int64_t index;
};

/* Arrays are copied. Offsets are from the piece's start. */
struct region_shape {
    uint32_t blocks, n_slices, n_pieces;
    const uint32_t *slice_bytes;
    const uint32_t *slice_pieces;
    const uint64_t *slice_offsets, *slice_strides;
};

/* A region without memory yet. */
kvc_status region_create(const struct region_shape *shape, struct region **region,
                         struct region_refusal *why);

/*
 * Maps the next piece: `bytes` of a memfd from `offset` on, which stays the caller's. It must be a
 * regular file of tmpfs, sealed against shrinking, long enough, and have all of its pages: what the
 * daemon touched first would be its own memory.
 */
kvc_status region_add(struct region *region, int fd, uint64_t bytes, uint64_t offset,
                      struct region_refusal *why);

/*
 * Memory of a GPU instead: from here on the region is a loan of that GPU's, whose errands it is
 * ended by. Pieces of host memory and of a GPU do not mix.
 */
kvc_status region_lend(struct region *region, const struct device *device, struct errands *errands,
                       uint32_t gpu, const struct device_lender *lender);
/* These two may hang, and are for a thread that is not the loop's. region_lend_finish stands for
 * region_finish. A slice may run on over pieces that came as descriptors, one behind the other. */
kvc_status region_lend_add(struct region *region, const struct device_piece *piece,
                           struct region_refusal *why);
kvc_status region_lend_finish(struct region *region, struct region_refusal *why);
/* NULL: host memory. */
const struct device_loan *region_loan(const struct region *region);

/* All pieces are there: checks that every block's slices lie in them and nowhere twice. */
kvc_status region_finish(struct region *region, struct region_refusal *why);

/* Whether two finished regions are the same memory in the same shape, which cannot be told of
 * memory that came as descriptors of a GPU's: no two are. */
bool region_equal(const struct region *a, const struct region *b);

uint32_t region_blocks(const struct region *region);
const struct pack_layout *region_layout(const struct region *region);
const struct pack_slice *region_slices(const struct region *region);

/* A thread that copies from or to it; leave says whether its memory was there all the time. */
void region_enter(struct region *region);
kvc_status region_leave(struct region *region);

/*
 * Unmaps it on libuv's pool, or by the GPU's errands, and frees it, then calls done, if there is
 * any, on the loop. Nobody uses it any more. Half-built ones and NULL (done is not called) are
 * fine.
 */
typedef void region_unmapped_cb(void *arg);
void region_destroy(uv_loop_t *loop, struct region *region, region_unmapped_cb *done, void *arg);

#endif
