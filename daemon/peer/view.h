/*
 * Views: the memory that batches are packed into where a transport moves whole buffers. A slab is
 * one allocation for one direction of one peer; its full view is all of it, its small view the
 * first 256 KiB. Both have the same base, so one registration serves both.
 *
 * Which view a batch takes is the receiver's choice, by source: a small batch takes the small view
 * only if the batch before it was small too, so that alternating sizes stay on one buffer.
 */
#ifndef KVC_PEER_VIEW_H
#define KVC_PEER_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

#define VIEW_SMALL_BYTES (256ull << 10)
#define VIEW_SLAB_BYTES  (16ull << 20) /* more only for a slice that is larger */

enum view { VIEW_FULL, VIEW_SMALL, VIEW_COUNT };

struct view_slab {
    uint8_t *base;
    uint64_t bytes[VIEW_COUNT]; /* 0: it has no such view */
};

/* What a slab needs for blocks of a layout: a batch of the most blocks, and any slice alone. */
uint64_t view_slab_bytes(uint64_t largest_slice, uint64_t block_bytes);

/* The views of `bytes` of memory at base. */
void view_slab_init(uint8_t *base, uint64_t bytes, struct view_slab *slab);
/* Memory of `bytes`, zeroed, that takes pages only as it is used, and its views. */
kvc_status view_slab_create(uint64_t bytes, struct view_slab *slab);
void view_slab_destroy(struct view_slab *slab); /* a zeroed one is fine */

/* What the batches of one source were like, zeroed at first. */
struct view_streak {
    uint32_t small; /* batches in a row that would fit the small view */
};

/*
 * The view for the next batch from a source. KVC_E_LIMIT, and nothing changes, when it fits none.
 * Only batches that travel are told here: what this host has itself is no part of a streak.
 */
kvc_status view_choose(const struct view_slab *slab, struct view_streak *streak, uint64_t bytes,
                       enum view *view);

/* The view of this length, or VIEW_COUNT: the other side means another one. */
enum view view_by_length(const struct view_slab *slab, uint64_t bytes);

#endif
