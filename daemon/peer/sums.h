/* Checksums of slots that lie on GPUs, by the daemon's kernels there: how what comes into them is
 * verified. */
#ifndef KVC_PEER_SUMS_H
#define KVC_PEER_SUMS_H

#include "daemon/device/device.h"

struct sums;

/* Of a device that lends; nothing is made on a GPU before it is needed. */
kvc_status sums_create(const struct device *device, struct sums **sums);
void sums_destroy(struct sums *sums); /* NULL is fine */

/* Pool thread: waits for the GPU. At most KVC_CHUNK_BLOCKS blocks, that lie on one; the layout
 * stays as long as this does. */
kvc_status sums_of(struct sums *sums, uint32_t gpu, const struct pack_layout *layout,
                   const struct pack_block *blocks, uint32_t n_blocks, uint64_t *cells);

#endif
