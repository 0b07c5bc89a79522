/* What the files of claims share; nobody else includes it. */
#ifndef KVC_STORE_CLAIM_INTERNAL_H
#define KVC_STORE_CLAIM_INTERNAL_H

#include "daemon/store/claim.h"
#include "daemon/store/owner.h"

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
