/*
 * Room: taking slots, giving them back, and making them free. The gpu tier comes first. When it is
 * full the coldest clean block goes (its host copy stays); the coldest dirty ones are made clean
 * ahead of need, and are dropped outright only when the host tier cannot take them.
 */
#ifndef KVC_STORE_ROOM_H
#define KVC_STORE_ROOM_H

#include "daemon/store/partition.h"

enum room {
    ROOM_TAKEN,
    ROOM_LATER, /* a copy in flight will make some */
    ROOM_NONE,
};

/*
 * Where a slot may lie: NULL for anywhere. near: where it should lie in the gpu tier, which is part
 * of that; NULL: it makes no difference. Free slots near come first, then free ones elsewhere, then
 * of the coldest clean blocks one that is near.
 */
struct room_place {
    const uint64_t *mapped[TIER_COUNT];
    const uint64_t *near;
};

/*
 * A slot for a new block, in extents that the owner has mapped. Evicts for it, never what is
 * filling, leased, loading or moving; who gives is partition_giver's to say. *over is false for the
 * first slot of a run, and belongs to the run as long as nothing else happens to the store between
 * its slots but that blocks are added in them: what was found out for one holds for the next.
 */
enum room room_take(struct partition *taker, const struct room_place *place, bool *over,
                    enum tier_kind *tier, uint32_t *slot);

/*
 * A host slot, in extents of `mapped` (NULL: any), for a copy of a block that is in the gpu tier,
 * or for a new one that is to lie there. The coldest block of the host tier
 * goes for it, also from the gpu tier if it is there too: it is the coldest of all. But while the
 * partition has nothing in the host tier but clean copies it is too small for more: one would only
 * take the place of another. Another family that gives loses its copy only, and nothing of the
 * gpu tier.
 */
bool room_take_host(struct partition *taker, const uint64_t *mapped, uint32_t *slot);

/*
 * Whether a block of the gpu tier is colder than the one that would go from the host tier for it: a
 * copy would cost a hotter block, and be the next to go.
 */
bool room_goes_first(struct partition *partition, uint32_t id);

/* A gpu slot for a block that comes up: a free one, rather near (NULL: anywhere), or a clean one's.
 */
bool room_take_gpu(struct partition *taker, const uint64_t *near, uint32_t *slot);

/* Writes into the record of a slot that was taken which part it is for. */
void room_name(struct partition *partition, enum tier_kind tier, uint32_t slot, uint32_t part);

/* Takes an evictable block from one of its tiers: its copy, or if it has no other, the block. */
void room_drop(struct store *store, uint32_t id, enum tier_kind tier);

/* When the coldest evictable block in a tier was last used; UINT64_MAX: there is none. */
uint64_t room_coldest(const struct tier_class *cls, enum tier_kind tier);

/* Back to free, whatever its state. */
void room_give(struct partition *partition, enum tier_kind tier, uint32_t slot);

/* Keys of saves that wait for room have come or gone. */
void room_want(struct partition *partition, int64_t keys);

/* Something became evictable, clean, or is so no longer. */
void room_changed(struct partition *partition, bool clean);
/* Balances are to be looked at, of all. */
void room_all_changed(struct store *store);

/* Starts the copies that keep enough slots free or clean; *steps of them at most, counted down. */
void room_balance(struct partition *partition, uint32_t *steps);

#endif
