/*
 * Claims: extents that change what they are used for. A class that finds no free slot in a tier
 * says so (claim_want), and in the background, one extent at a time, an extent of another class, or
 * of another tenant, is closed for new blocks, emptied, and given to it. Blocks that something
 * keeps (leases, loads, saves, copies, pins, quarantine) stay where they are, and so does their
 * extent: it opens again, and is counted.
 *
 * Which extent: the one that was touched longest ago, of those that nothing keeps. From whom: the
 * class whose coldest block is older than the claimant's coldest by a margin, so that two classes
 * do not take from each other in turns; of the same tenant only from families that are over their
 * shares by more (store/family.h). Without a margin only what nobody should be without: a
 * class that has nothing takes from one of its tenant that has more than one extent; a tenant below
 * an equal part of the tier takes from one above it, and everybody from who has more than its
 * share.
 *
 * An extent that leaves its tenant must also be unmapped: sessions that may map it are told and
 * answer (store_owner_unmapped). Meanwhile none of them is told a location in it. While a session
 * that was told does not answer, extents that it maps do not leave. Then the extent gets new memory
 * (renew_ops): whatever a process of the earlier tenant has kept leads to nothing that anybody else
 * uses. Only then is it free, or the other tenant's.
 *
 * To find an extent costs as much as there are extents, at most every CLAIM_LOOK_US for a class;
 * emptying it visits each of its slots in steps.
 */
#ifndef KVC_STORE_CLAIM_H
#define KVC_STORE_CLAIM_H

#include "daemon/store/state.h"

#define CLAIM_LOOK_US   (10 * CLOCK_MS_US)  /* between two looks for an extent, of a class */
#define CLAIM_RETRY_US  (200 * CLOCK_MS_US) /* after one that found none, or failed */
#define CLAIM_MARGIN_US CLOCK_S_US       /* at least; or a quarter of the claimant's coldest age */
#define CLAIM_STUCK_US  (2 * CLOCK_S_US) /* without progress of emptying */
#define CLAIM_UNMAP_US  (5 * CLOCK_S_US) /* for sessions to answer */
#define CLAIM_KEEP_US   CLOCK_S_US       /* an extent is kept for its claimant */
#define CLAIM_STEP      256u             /* slots that are looked at in a row */

enum claim_state {
    CLAIM_EMPTYING, /* closed; its blocks are dropped, or copied and dropped */
    CLAIM_UNMAPPING,
    CLAIM_RENEWING,
    CLAIM_PROMISED, /* open for the claimant */
};

struct claim {
    struct store *store;
    struct list link;       /* store::claims */
    struct tier_class *cls; /* the claimant; NULL: nobody, the extent will be free, or lost */
    bool lost;
    enum tier_kind tier;
    enum claim_state state;
    uint32_t first, n;  /* extents: adjacent, for a block that is larger than one */
    uint32_t at, place; /* the next slot to look at: extent of the claim, place in it */
    uint32_t used;      /* slots, at the latest progress */
    uint64_t since;     /* clock_us of the latest progress */
    uint64_t look;      /* when to go on */
    uint32_t renewing;  /* an extent + 1, while it gets new memory */
};

/* A class has found no free slot in a tier. Costs nothing to say. */
void claim_want(struct tier_class *cls, enum tier_kind tier);

/* Frees extents of a tenant that are empty; in the background. */
void claim_release(struct store *store, uint32_t tenant, enum tier_kind tier);

/* Closes at once the extents that are to be lost, but for those that another claim has. */
void claim_lose(struct store *store);

/* Copies or proofs have ended: what waits for them goes on at the next tick. */
void claim_look(struct store *store);

/* How many extents of the tier the tenant may have. */
uint32_t claim_cap(const struct store *store, uint32_t tenant, enum tier_kind tier);

void claim_tick(struct store *store, uint64_t now);
uint64_t claim_next_wake(const struct store *store);
void claim_forget_all(struct store *store);

/* Extents that sessions have yet to unmap. */
uint32_t claim_waiting(const struct store *store);

#endif
