/* What the files of claims share; nobody else includes it. */
#ifndef KVC_STORE_CLAIM_INTERNAL_H
#define KVC_STORE_CLAIM_INTERNAL_H

#include "daemon/store/claim.h"
#include "daemon/store/owner.h"

/* claim.c */

static inline struct slots *claim_slots(const struct claim *claim)
{
    return claim->store->slots[claim->tier];
}

static inline struct slots_extent claim_extent(const struct claim *claim, uint32_t i)
{
    struct slots_extent e;

    slots_look(claim_slots(claim), claim->first + i, &e);
    return e;
}

/* Whether an extent of it is another tenant's than the claimant. */
bool claim_is_foreign(const struct claim *claim, const struct slots_extent *e);
/* Its slots in use, and those of them that could be evicted. */
void claim_count(const struct claim *claim, uint32_t *used, uint32_t *loose);
/* Frees it; its class may ask again from `look` on. */
void claim_end(struct claim *claim, uint64_t look);

/* claim_step.c: one step, which may end it. */
void claim_go_on(struct claim *claim, uint64_t now);

/*
 * claim_choose.c: the first of the extents that a class should take in a tier, of *n; TABLE_NONE:
 * there are none.
 */
uint32_t claim_choose(const struct tier_class *cls, enum tier_kind tier, uint64_t now, uint32_t *n);

/* owner_extents.c: who may map an extent. */

/* Whether a session may still map it; who is connected and was not told is told now. */
bool owner_extent_held(struct store *store, enum tier_kind tier, uint32_t extent);
/* They have had time enough: what they map does not leave before they answer. */
void owner_extent_overdue(struct store *store, enum tier_kind tier, uint32_t extent);
/* Whether a session that does not answer, or has ended and still owes proof, may map it. */
bool owner_extent_stuck(const struct store *store, enum tier_kind tier, uint32_t extent);
/* Sessions of the tenant may map more than before. */
void owner_extents_granted(struct store *store, uint32_t tenant);
/* Tells what there is to tell; from ticks only. */
void owner_extents_tell(struct store *store);

#endif
