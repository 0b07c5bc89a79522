/*
 * Families: the namespaces of one model, its ranks and groups, or a namespace of no family by
 * itself. What they have is used and evicted together, so they compete as one. A family's share of
 * a tier is what its namespaces' quotas add up to, or without any, an equal part of what the quotas
 * of its tenant leave. A share is no wall: memory that nobody else wants may be used; but when room
 * must be made, who is over its share by most gives first, and nobody is pushed below its share by
 * one who is over it. Who has no quota and was not used for a long time has no share: models come
 * and go, and what is left of them must not keep memory from those that are there.
 */
#ifndef KVC_STORE_FAMILY_H
#define KVC_STORE_FAMILY_H

#include "daemon/store/state.h"

struct family {
    struct store *store;
    uint32_t tenant;
    struct list link;           /* store::families */
    struct list used_link;      /* store::used_families, by last_use; idle ones are in none */
    struct list partitions;     /* by partition::of_family */
    uint64_t used[TIER_COUNT];  /* bytes of its slots */
    uint64_t quota[TIER_COUNT]; /* bytes; 0: an equal share */
    uint64_t last_use;
    bool idle; /* not used for KVC_NAMESPACE_IDLE_MS */
};

kvc_status family_make(struct store *store, uint32_t tenant, struct family **family);
void family_destroy_all(struct store *store);
/* One that no namespace is of, without partitions. */
void family_remove(struct family *family);

/* Slots of its are taken, or given back. */
void family_add(struct family *family, enum tier_kind tier, uint64_t bytes);
void family_subtract(struct family *family, enum tier_kind tier, uint64_t bytes);

/* A block of its was used. */
void family_touch(struct family *family);

/* Whether it is, though nobody may have found out yet. */
bool family_is_idle(const struct family *family);
/* Finds out who has become idle. */
void family_find_idle(struct store *store);

/* The quotas of its namespaces add up to that. */
void family_set_quota(struct family *family, enum tier_kind tier, uint64_t bytes);

/* Bytes that it may have before it is over its share. */
uint64_t family_share(const struct family *family, enum tier_kind tier);

/* How far over its share a family is, with `more` bytes besides what it has: a fraction. */
struct overuse {
    uint64_t used, share; /* share 0: over by any use */
};
struct overuse family_over(const struct family *family, enum tier_kind tier, uint64_t more);
bool overuse_is_more(struct overuse a, struct overuse b);
bool overuse_is_over(struct overuse overuse);

/* Orders the families of one kind (with a quota in the tier, or without) as overuse does. */
uint64_t family_rank(const struct family *family, enum tier_kind tier);

#endif
