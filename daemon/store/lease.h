/*
 * Leases: which published blocks somebody may load, for how long. A lease holds its blocks by
 * number, a list for each of its parts; its token lets another session of the tenant take a lease
 * of its own on the same blocks.
 */
#ifndef KVC_STORE_LEASE_H
#define KVC_STORE_LEASE_H

#include "daemon/store/owner.h"

struct lease_part {
    uint32_t part;
    uint32_t room;    /* of blocks[] */
    uint32_t needed;  /* blocks in front of a boundary that its rule asks for; UINT32_MAX: all */
    uint32_t *blocks; /* lease::reach; BLOCK_NONE: not there, or not needed */
};

struct lease {
    struct store *store;
    struct owner *owner;     /* NULL: it has ended */
    struct list link;        /* owner::leases, store::ending */
    struct expiry_item ends; /* in store::lease_ends */
    uint64_t id;
    uint64_t request; /* 0: not named */
    uint8_t token[KVC_TOKEN_BYTES];
    uint32_t count;     /* blocks in each part: what was granted */
    uint32_t reach;     /* >= count: held so far, for a lookup that goes on behind it */
    uint64_t looked;    /* the value of store::lost at its latest look, which came up to ... */
    uint32_t looked_to; /* ... this place */
    uint32_t from; /* what another lease has lost (ended): blocks in front of this are not held */
    uint32_t n_parts;
    struct lease_part parts[];
};

/*
 * A lease without blocks, known by id and (request not 0) by request. KVC_E_LIMIT or
 * KVC_E_NO_MEMORY change nothing. Its time starts with lease_extend.
 */
kvc_status lease_create(struct owner *owner, const uint32_t *parts, uint32_t n_parts,
                        uint64_t request, struct lease **lease, struct refusal *why);

/*
 * Makes room for so many blocks in each part, so that lease_set cannot fail. KVC_E_LIMIT for more
 * than a session may have, KVC_E_NO_MEMORY.
 */
kvc_status lease_reserve(struct lease *lease, uint32_t reach, struct refusal *why);

/*
 * From `offset` on the lease holds n blocks a part (BLOCK_NONE: none); the caller has held them
 * (keep_lease) already. What was there is released, by turns if it is much, and so is what no rule
 * needs for `count`
 * blocks, nor to go on behind the last.
 */
void lease_set(struct lease *lease, uint32_t offset, uint32_t n, uint32_t *const *blocks,
               uint32_t count);

/* Whether the rule of a part needs the block at `at` for a boundary at `end` blocks. */
bool lease_needs(uint32_t needed, uint32_t at, uint32_t end);

/* Returns the milliseconds that were granted; 0 asks for the default. */
uint32_t lease_extend(struct lease *lease, uint32_t ms);

/*
 * It is no lease any more. Its blocks are released, last first, at once or, of leases that have
 * many together, by turns.
 */
#define LEASE_RELEASES 4096u /* blocks, about, between two ticks */
void lease_end(struct lease *lease);
void lease_end_all(struct owner *owner);

/* Some keys were flushed: leases that have lost a block by it end, by turns if there are many. */
#define LEASE_LOOKS 65536u /* at blocks, in a turn */
void lease_look_for_lost(struct store *store);

/* Frees the leases of an owner without a look at their blocks: the store is being destroyed. */
void lease_forget_all(struct owner *owner);
void lease_forget_ending(struct store *store);

/*
 * The owner's lease of that id: KVC_E_EXPIRED when it has ended (also just now), KVC_E_UNKNOWN when
 * there never was one, KVC_E_DENIED when it is somebody else's.
 */
kvc_status lease_find(struct owner *owner, uint64_t id, struct lease **lease, struct refusal *why);

/* The part of a lease, or NULL. */
struct lease_part *lease_part(struct lease *lease, uint32_t part);

/* Ends leases whose time is over. */
void lease_tick(struct store *store, uint64_t now);
uint64_t lease_next_wake(const struct store *store);

#endif
