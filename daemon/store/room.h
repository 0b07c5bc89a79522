/*
 * Room: taking slots, giving them back, and making them free. The gpu tier comes first. When it is
 * full the coldest clean block goes (its host copy stays); the coldest dirty ones are made clean
 * ahead of need, and are dropped outright only when the host tier cannot take them.
 */
#ifndef KVC_STORE_ROOM_H
#define KVC_STORE_ROOM_H

#include "daemon/store/state.h"

enum room {
    ROOM_TAKEN,
    ROOM_LATER, /* a copy in flight will make some */
    ROOM_NONE,
};

/* A class for a tenant and a slot size: found or made. */
kvc_status room_class(struct store *store, uint32_t tenant, uint64_t slot_bytes,
                      struct tier_class **cls);

/*
 * A slot for a new block, in extents that the owner has mapped. Evicts for it, never what is
 * filling, leased, loading or moving.
 */
enum room room_take(struct tier_class *cls, uint64_t *const mapped[TIER_COUNT],
                    enum tier_kind *tier, uint32_t *slot);

/*
 * A host slot for a copy of a block that is in the gpu tier. The coldest block of the host tier
 * goes for it, also from the gpu tier if it is there too: it is the coldest of all. But while the
 * host tier holds nothing but clean copies it is too small for more: one would only take the place
 * of another.
 */
bool room_take_host(struct tier_class *cls, uint32_t *slot);

/* A gpu slot for a block that comes up: a free one, or a clean one's. */
bool room_take_gpu(struct tier_class *cls, uint32_t *slot);

/* Back to free, whatever its state. */
void room_give(struct tier_class *cls, enum tier_kind tier, uint32_t slot);

/* Keys of saves that wait for room have come or gone. */
void room_want(struct tier_class *cls, int64_t keys);

/* Something became evictable, clean, or is so no longer. */
void room_changed(struct tier_class *cls, bool clean);

/* Starts the copies that keep enough slots of a class free or clean. */
void room_balance(struct tier_class *cls);

#endif
