/*
 * What keeps a block where it is: leases, open loads and a copy in flight. A block that nothing
 * keeps is in the eviction orders of its tiers; one that is no longer a block goes when the last
 * keeper does. This is the only place that changes orders and holds.
 */
#ifndef KVC_STORE_KEEP_H
#define KVC_STORE_KEEP_H

#include "daemon/store/state.h"

/* block::save of a READY block that is to be promoted when nothing keeps it. */
#define BLOCK_HOT 1u
/* A doomed block's: a flush of its key took it from the leases that have it. */
#define BLOCK_FLUSHED 2u
/* ... its memory has failed. */
#define BLOCK_LOST 3u

/* The order that a block must be in, by its state. */
enum order keep_order(const struct block *block, enum tier_kind tier);

/* Leases. One that is leased already may be DOOMED. */
void keep_lease(struct store *store, uint32_t id);
void keep_unlease(struct store *store, uint32_t id);

/* Saves for the length of their call, and pins. */
void keep_hold(struct store *store, uint32_t id);
void keep_release(struct store *store, uint32_t id);

/*
 * A hold that may be no use of it: it can go back to where it was, beside these, one of each
 * tier, in a time that does not grow with the orders if what was taken last is put back first.
 */
void keep_hold_aside(struct store *store, uint32_t id, uint32_t beside[TIER_COUNT]);
void keep_put_back(struct store *store, uint32_t id, const uint32_t beside[TIER_COUNT]);

/* Open loads from one of its tiers. */
void keep_load(struct store *store, uint32_t id, enum tier_kind tier);
void keep_unload(struct store *store, uint32_t id, enum tier_kind tier);

/* A copy to another tier. */
void keep_move(struct store *store, uint32_t id);
/* copied: slot `to` of tier `tier` is READY and becomes the block's. false: nothing has changed. */
void keep_moved(struct store *store, uint32_t id, bool copied, enum tier_kind tier, uint32_t to);

/* A block whose slot is FILLING becomes visible. */
void keep_publish(struct store *store, uint32_t id);

/* Makes it the hottest of its orders, if it is in any. */
void keep_touch(struct store *store, uint32_t id);

/* Drops one of the two copies of a block, which nothing reads. */
void keep_drop_copy(struct store *store, uint32_t id, enum tier_kind tier);
/* Takes a clean block out of the gpu tier; its slot there is the caller's then. */
void keep_take_clean(struct partition *partition, uint32_t id);

/* No lookup finds it any more; its slots come back when nothing keeps them. */
void keep_doom(struct store *store, uint32_t id);

#endif
