/*
 * Plans of transfers, as pure functions: which source gives which blocks, what several sources
 * offer merged into one list, and that list cut into batches and runs. Nothing here knows a
 * transport, and nothing allocates: arrays are the caller's.
 */
#ifndef KVC_PEER_PLAN_H
#define KVC_PEER_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

/* Sources. */

/* A run of blocks that a source has, counted as the caller does. */
struct plan_offer {
    uint32_t first, count;
    uint64_t load; /* bytes that it is sending already */
};
struct plan_share {
    uint32_t source; /* index of the offer */
    uint32_t first, count;
};

/*
 * Shares out blocks 0, 1, ... as far as they are offered without a gap: as few sources as can be,
 * and of equal ones the least loaded. shares has room for n. Returns how many shares.
 */
uint32_t plan_choose(const struct plan_offer *offers, uint32_t n, struct plan_share *shares);

/* Boundaries. */

/* What a part has to have in front of a boundary, UINT32_MAX: everything; and has: a bit a key. */
struct plan_rule {
    uint32_t needed;
    const uint64_t *has;
};
/* The longest boundary of from + 1 .. end for which every rule has what it needs behind `from`; or
 * `from`. n is at most KVC_PARTS_MAX. */
uint32_t plan_boundary(const struct plan_rule *rules, uint32_t n, uint32_t from, uint32_t end);

/* Merging. */

/* A block that a source can give, and where it is wanted. */
struct plan_want {
    const uint8_t *key; /* KVC_KEY_BYTES */
    uint64_t destination;
    uint32_t part, source;
};

/* A destination of the merged list. */
struct plan_place {
    uint32_t want; /* index of the one that is kept for it */
    uint32_t from; /* place whose transfer serves this one too: its own, or an earlier one */
};

/*
 * Merges wants, indexed by destination: places[] gets one for each destination, in their order, and
 * *n_places how many; of several sources of a block the one that was named first is kept. scratch
 * and places have room for n. KVC_E_DUPLICATE: two different blocks for one destination.
 */
kvc_status plan_merge(const struct plan_want *wants, uint32_t n, uint32_t *scratch,
                      struct plan_place *places, uint32_t *n_places);

/* Batches. */

/* A batch has at most KVC_CHUNK_BLOCKS blocks and fits the view; a larger block goes alone. */
struct plan_cut {
    uint64_t bytes;
    uint32_t blocks;
};
/* Called once a block, in order; zeroed at first. Whether this block begins a new batch. */
bool plan_cut_next(struct plan_cut *cut, uint64_t block_bytes, uint64_t view_bytes);

/* Runs. */

/* One operation: bytes that lie next to each other on both sides. */
struct plan_run {
    uint64_t from, to, bytes;
};
/*
 * Joins blocks that follow each other at both ends: `bytes` of each, so that padding behind a block
 * keeps it apart from the next. runs has room for n. Returns how many runs.
 */
uint32_t plan_runs(const uint64_t *from, const uint64_t *to, uint32_t n, uint64_t bytes,
                   struct plan_run *runs);

#endif
