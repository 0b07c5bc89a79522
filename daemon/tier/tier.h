/*
 * Tiers: where the bytes of blocks live, and how they move. A tier is a slab of one device; which
 * slot holds what is the store's business, and nothing here knows of slots or blocks.
 *
 * tier/ may include device/, base/, kernels/ and proto/. Doors: tier.h for memory, populate.h for
 * giving it pages in the background, renew.h for new ones, move.h for what the store asks, mover.h
 * for who does it, verifier.h for comparing with checksums; region.h for workers' own memory,
 * copier.h for copies from and to it; errands.h for calls that may hang.
 */
#ifndef KVC_TIER_TIER_H
#define KVC_TIER_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/device/device.h"
#include "daemon/tier/move.h"
#include "proto/status.h"

/* What is copied or populated at once: longer work would hold a thread of the pool too long. */
#define TIER_PIECE_BYTES (16ull << 20)

struct tier;

/*
 * Makes the memory of a tier: n_extents of extent_bytes each (whole pages). No extents is a tier
 * without memory. On failure nothing is left.
 */
kvc_status tier_create(enum tier_kind kind, const struct device *device, uint64_t extent_bytes,
                       uint32_t n_extents, struct tier **tier);
/* Nothing may be copying or populating. NULL is fine. */
void tier_destroy(struct tier *tier);

const char *tier_name(enum tier_kind kind); /* "gpu", "host" */
enum device_memory tier_memory(const struct tier *tier);
uint64_t tier_bytes(const struct tier *tier);
uint64_t tier_extent_bytes(const struct tier *tier);
uint32_t tier_extents(const struct tier *tier);
/* The extents of a tier that lie on a GPU of the device, side by side; none of the host tier. */
void tier_on_gpu(const struct tier *tier, uint32_t gpu, uint32_t *first, uint32_t *n);
struct device_slab *tier_slab(struct tier *tier);

/* A descriptor of an extent for a worker; the caller's to close. */
kvc_status tier_export(struct tier *tier, uint32_t extent, bool readonly, int *fd);

/* The same of memory that has handles: DEVICE_HANDLE_BYTES. */
kvc_status tier_export_handle(struct tier *tier, uint32_t extent, uint8_t *handle);

/* Where a byte of the tier is in this process; not to be read on a device that is no host. */
uint8_t *tier_address(const struct tier *tier, uint64_t offset);

/* Called on the loop before an extent gets new memory; NULL: nobody is. */
typedef void tier_renewing_cb(void *arg, uint32_t extent);
void tier_watch(struct tier *tier, tier_renewing_cb *renewing, void *arg);
void tier_renewing(const struct tier *tier, uint32_t extent); /* for who renews it */

/* Bytes that have pages, from the start on; populate.c says so on the loop's thread. */
uint64_t tier_populated(const struct tier *tier);
void tier_set_populated(struct tier *tier, uint64_t bytes);

#endif
