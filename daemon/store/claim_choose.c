/* Which extent a class should take, and from whom. */
#include <string.h>

#include "daemon/store/claim_internal.h"
#include "daemon/store/partition.h"
#include "daemon/store/room.h"

struct claimant {
    const struct tier_class *cls;
    const struct store *store;
    const struct slots *slots;
    enum tier_kind tier;
    /* What was used before this is colder than what the claimant has, by a margin. */
    uint64_t limit;
    bool has_none; /* of the tier's extents */
    uint32_t owned, cap, equal;
};

static uint32_t share_of(const struct store_share *share, enum tier_kind tier,
                         const struct table_tier *geometry)
{
    uint64_t bytes = share->bytes[tier], extents = bytes / geometry->extent_bytes;
    bool none = share->permille[tier] == 0 && bytes == 0;

    if (share->permille[tier] > 0)
        extents = (uint64_t)geometry->extents * share->permille[tier] / 1000;
    if (extents > geometry->extents)
        extents = geometry->extents;
    return extents > 0 || none ? (uint32_t)extents : 1;
}

uint32_t claim_cap(const struct store *store, uint32_t tenant, enum tier_kind tier)
{
    const struct table_tier *geometry = &table_header(store->table)->tiers[tier];
    const char *name = table_tenant(store->table, tenant)->name;
    uint32_t cap = geometry->extents;

    for (uint32_t i = 0; i < store->config.n_shares; i++) {
        const struct store_share *share = &store->config.shares[i];

        if (strcmp(share->tenant, name) == 0 || strcmp(share->tenant, "*") == 0) {
            cap = share_of(share, tier, geometry);
            break;
        }
    }
    return cap < store->config.tenant_share ? cap : store->config.tenant_share;
}

/* What each tenant would have if all who work had the same. */
static uint32_t equal_part(const struct claimant *c)
{
    uint32_t n = 0, part;

    for (uint32_t t = 0; t < TABLE_TENANTS; t++)
        n += t == c->cls->tenant || (c->store->sessions_of[t] > 0 && slots_owned(c->slots, t) > 0);
    part = slots_extents(c->slots) / n;
    return part > 0 ? part : 1;
}

static const struct tier_class *class_of(const struct store *store, uint32_t tenant,
                                         uint64_t slot_bytes)
{
    const struct tier_class *cls;

    list_for_each(cls, &store->classes, link)
        if (cls->tenant == tenant && cls->slot_bytes == slot_bytes)
            return cls;
    return NULL;
}

/* When what would be evicted next of those that an extent belongs to was used. */
static uint64_t coldest(const struct claimant *c, const struct slots_extent *e)
{
    const struct tier_class *cls;

    if (e->used == 0)
        return e->touched;
    cls = class_of(c->store, e->tenant, e->slot_bytes);
    return cls ? room_coldest(cls, c->tier) : 0;
}

/* Whether another tenant must give without being colder. */
static bool owes(const struct claimant *c, uint32_t tenant)
{
    uint32_t owned = slots_owned(c->slots, tenant);

    return owned > claim_cap(c->store, tenant, c->tier) ||
           (c->owned < c->equal && owned > c->equal);
}

/*
 * Whether families of the claimant's class may take from those of another, of the same tenant: as
 * for one slot (partition_giver), but an extent goes at once. The one that is least over its share
 * takes, the one that is over it by most gives.
 */
static bool is_fair(const struct claimant *c, const struct tier_class *from, uint64_t extent_bytes)
{
    const struct family *taker = NULL, *giver = NULL;
    const struct partition *p;

    list_for_each(p, &c->cls->partitions, link)
        if (!taker ||
            overuse_is_more(family_over(taker, c->tier, 0), family_over(p->family, c->tier, 0)))
            taker = p->family;
    list_for_each(p, &from->partitions, link)
        if (!giver ||
            overuse_is_more(family_over(p->family, c->tier, 0), family_over(giver, c->tier, 0)))
            giver = p->family;
    return !taker || !giver || taker == giver ||
           overuse_is_more(family_over(giver, c->tier, 0),
                           family_over(taker, c->tier, extent_bytes));
}

static bool may_take(const struct claimant *c, uint32_t index, const struct slots_extent *e)
{
    if (e->state != EXTENT_OWNED || e->closed || e->promised || e->used != e->loose)
        return false;
    if (e->tenant != c->cls->tenant) {
        if (c->owned >= c->cap || !c->store->config.renew_ops ||
            owner_extent_stuck(c->store, c->tier, index))
            return false;
        if (owes(c, e->tenant))
            return true;
    } else if (e->slot_bytes == c->cls->slot_bytes) {
        return false;
    } else if (e->used > 0 && c->has_none && e->siblings > 1) {
        return true;
    } else if (e->used > 0) {
        const struct tier_class *from = class_of(c->store, e->tenant, e->slot_bytes);
        uint64_t bytes = table_header(c->store->table)->tiers[c->tier].extent_bytes;

        if (from && !is_fair(c, from, bytes))
            return false;
    }
    return coldest(c, e) < c->limit;
}

/* Of two that may be taken the empty one, then the one that was touched longest ago. */
static uint64_t heat(const struct slots_extent *e)
{
    return e->used == 0 ? 0 : e->touched + 1;
}

static uint32_t choose_one(const struct claimant *c)
{
    uint32_t best = TABLE_NONE;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < slots_extents(c->slots); i++) {
        struct slots_extent e;

        slots_look(c->slots, i, &e);
        if (heat(&e) >= least || !may_take(c, i, &e))
            continue;
        best = i;
        least = heat(&e);
    }
    return best;
}

/*
 * How hot the hottest of n adjacent extents is; UINT64_MAX: not all of them may be taken. One that
 * is the claimant's and empty needs no taking; a large block goes whole, from its head on.
 */
static uint64_t heat_of_run(const struct claimant *c, uint32_t first, uint32_t n)
{
    uint64_t most = 0;
    uint32_t foreign = 0;

    for (uint32_t i = first; i < first + n;) {
        struct slots_extent e;

        slots_look(c->slots, i, &e);
        if (!(e.state == EXTENT_OWNED && e.tenant == c->cls->tenant && e.used == 0 && !e.closed &&
              !e.promised) &&
            !may_take(c, i, &e))
            return UINT64_MAX;
        foreign += e.tenant != c->cls->tenant;
        /* The tails of another tenant's block become its empty ones first. */
        if (e.tenant != c->cls->tenant && e.span > 1)
            return UINT64_MAX;
        most = heat(&e) > most ? heat(&e) : most;
        i += e.span;
    }
    return c->owned + foreign <= c->cap ? most : UINT64_MAX;
}

static uint32_t choose_run(const struct claimant *c, uint32_t n)
{
    uint32_t best = TABLE_NONE;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i + n <= slots_extents(c->slots); i++) {
        uint64_t most = heat_of_run(c, i, n);

        if (most >= least)
            continue;
        best = i;
        least = most;
    }
    return best;
}

uint32_t claim_choose(const struct tier_class *cls, enum tier_kind tier, uint64_t now, uint32_t *n)
{
    const struct store *store = cls->store;
    uint64_t extent_bytes = table_header(store->table)->tiers[tier].extent_bytes;
    uint64_t span = (cls->slot_bytes + extent_bytes - 1) / extent_bytes;
    uint64_t own = room_coldest(cls, tier), margin;
    struct claimant c = {
        .cls = cls,
        .store = store,
        .slots = store->slots[tier],
        .tier = tier,
        .has_none = cls->used[tier] == 0,
        .owned = slots_owned(store->slots[tier], cls->tenant),
        .cap = claim_cap(store, cls->tenant, tier),
    };

    /* What is free and only not mapped by who asked is no reason to take from others. */
    if (span > slots_extents(c.slots) ||
        slots_free_count(c.slots, cls->tenant, cls->slot_bytes) > 0)
        return TABLE_NONE;
    c.equal = equal_part(&c);
    own = own < now ? own : now;
    margin = (now - own) / 4 > CLAIM_MARGIN_US ? (now - own) / 4 : CLAIM_MARGIN_US;
    c.limit = own > margin ? own - margin : 0;
    *n = (uint32_t)span;
    return span == 1 ? choose_one(&c) : choose_run(&c, (uint32_t)span);
}
