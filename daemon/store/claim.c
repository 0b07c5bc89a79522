#include "daemon/store/claim.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/claim_internal.h"

bool claim_is_foreign(const struct claim *claim, const struct slots_extent *e)
{
    return e->state == EXTENT_OWNED && (!claim->cls || e->tenant != claim->cls->tenant);
}

void claim_want(struct tier_class *cls, enum tier_kind tier)
{
    struct store *store = cls->store;

    if (cls->wanting[tier] || slots_extents(store->slots[tier]) == 0)
        return;
    cls->wanting[tier] = true;
    if (!list_linked(&cls->wants))
        list_push_back(&store->claimants, &cls->wants);
}

void claim_look(struct store *store)
{
    struct claim *claim;

    list_for_each(claim, &store->claims, link)
        if (claim->state == CLAIM_EMPTYING || claim->state == CLAIM_UNMAPPING)
            claim->look = 0;
}

void claim_end(struct claim *claim, uint64_t look)
{
    list_remove(&claim->link);
    if (!claim->cls) {
        mem_free(claim);
        return;
    }
    claim->cls->claims[claim->tier] = NULL;
    claim->cls->look[claim->tier] = look;
}

void claim_count(const struct claim *claim, uint32_t *used, uint32_t *loose)
{
    *used = *loose = 0;
    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = claim_extent(claim, i);

        *used += e.state == EXTENT_TAIL ? 1 : e.used;
        *loose += e.loose;
    }
}

static struct claim *begin(struct store *store, struct tier_class *cls, enum tier_kind tier,
                           uint32_t first, uint32_t n, uint64_t now)
{
    struct claim *claim = cls ? &cls->own_claims[tier] : mem_zalloc(sizeof(*claim));
    uint32_t loose;

    if (!claim)
        return NULL;
    memset(claim, 0, sizeof(*claim));
    claim->store = store;
    claim->cls = cls;
    claim->tier = tier;
    claim->first = first;
    claim->n = n;
    claim->since = now;
    for (uint32_t i = 0; i < n; i++) {
        const struct slots_extent e = claim_extent(claim, i);

        slots_close(store->slots[tier], first + i, !cls || claim_is_foreign(claim, &e));
    }
    claim_count(claim, &claim->used, &loose);
    if (cls)
        cls->claims[tier] = claim;
    list_init(&claim->link);
    list_push_back(&store->claims, &claim->link);
    return claim;
}

void store_lose_extent(struct store *store, enum tier_kind tier, uint32_t extent)
{
    uint64_t *bits = &store->failing[tier][extent / 64], bit = 1ull << extent % 64;

    store->n_failing += !(*bits & bit);
    *bits |= bit;
    store->failing_look = 0;
}

/* false: something else has to end first. */
static bool begin_to_lose(struct store *store, enum tier_kind tier, uint32_t extent, uint64_t now)
{
    struct claim *claim;
    struct slots_extent e;

    slots_look(store->slots[tier], extent, &e);
    if (e.state == EXTENT_LOST)
        return true;
    if (e.state == EXTENT_FREE) {
        slots_lose_extent(store->slots[tier], extent);
        store->stats.lost_extents++;
        return true;
    }
    if (e.closed)
        return false;
    claim = begin(store, NULL, tier, extent, 1, now);
    if (claim)
        claim->lost = true;
    return claim != NULL;
}

void claim_release(struct store *store, uint32_t tenant, enum tier_kind tier)
{
    for (uint32_t i = 0; i < slots_extents(store->slots[tier]); i++) {
        struct slots_extent e;

        slots_look(store->slots[tier], i, &e);
        if (store->config.renew_ops && e.state == EXTENT_OWNED && e.tenant == tenant &&
            e.used == 0 && !e.closed && !e.promised)
            (void)begin(store, NULL, tier, i, 1, clock_now_us());
    }
}

static void lose_failing(struct store *store, uint64_t now)
{
    store->failing_look = now + CLAIM_RETRY_US;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < slots_extents(store->slots[tier]); i++) {
            uint64_t *bits = &store->failing[tier][i / 64], bit = 1ull << i % 64;

            if (!(*bits & bit) || !begin_to_lose(store, tier, i, now))
                continue;
            *bits &= ~bit;
            store->n_failing--;
        }
    }
}

void claim_lose(struct store *store)
{
    if (store->n_failing > 0)
        lose_failing(store, clock_now_us());
}

/* Whether the claimant has taken all that it was promised. */
static bool is_taken(const struct claim *claim)
{
    for (uint32_t i = 0; i < claim->n; i++)
        if (claim_extent(claim, i).promised)
            return false;
    return true;
}

/* A free extent is granted before one is taken from anybody. */
static bool grant_free(struct store *store, const struct tier_class *cls, enum tier_kind tier)
{
    uint32_t cap = claim_cap(store, cls->tenant, tier);
    uint32_t owned = slots_owned(store->slots[tier], cls->tenant);

    if (owned >= cap || slots_grant(store->slots[tier], cls->tenant, owned + 1) == owned)
        return false;
    owner_extents_granted(store, cls->tenant);
    return true;
}

/* Returns when to look again; UINT64_MAX: when the class wants it again. */
static uint64_t answer(struct tier_class *cls, enum tier_kind tier, uint64_t now)
{
    struct store *store = cls->store;
    struct claim *claim = cls->claims[tier];
    uint32_t first, n;

    if (now < cls->look[tier])
        return cls->look[tier];
    if (claim && (claim->state != CLAIM_PROMISED || !is_taken(claim)))
        return UINT64_MAX;
    if (claim)
        claim_end(claim, now);
    cls->look[tier] = now + CLAIM_LOOK_US;
    if (grant_free(store, cls, tier))
        return UINT64_MAX;
    first = claim_choose(cls, tier, now, &n);
    if (first == TABLE_NONE)
        cls->look[tier] = now + CLAIM_RETRY_US;
    else
        (void)begin(store, cls, tier, first, n, now);
    return UINT64_MAX;
}

void claim_tick(struct store *store, uint64_t now)
{
    struct tier_class *cls, *after_cls;
    struct claim *claim, *after;

    list_for_each_safe(cls, after_cls, &store->claimants, wants) {
        bool waits = false;

        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
            if (!cls->wanting[tier])
                continue;
            cls->wanting[tier] = answer(cls, tier, now) != UINT64_MAX;
            waits |= cls->wanting[tier];
        }
        if (!waits)
            list_remove(&cls->wants);
    }
    if (store->n_failing > 0 && store->failing_look <= now)
        lose_failing(store, now);
    list_for_each_safe(claim, after, &store->claims, link)
        if (claim->look <= now)
            claim_go_on(claim, now);
    owner_extents_tell(store);
}

uint64_t claim_next_wake(const struct store *store)
{
    const struct tier_class *cls;
    const struct claim *claim;
    uint64_t wake = store->tell ? 0 : UINT64_MAX;

    if (store->n_failing > 0 && store->failing_look < wake)
        wake = store->failing_look;
    list_for_each(cls, &store->claimants, wants)
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            if (cls->wanting[tier] && cls->look[tier] < wake)
                wake = cls->look[tier];
    list_for_each(claim, &store->claims, link)
        if (claim->look < wake)
            wake = claim->look;
    return wake;
}

void claim_forget_all(struct store *store)
{
    struct claim *claim;

    while ((claim = list_first(&store->claims, struct claim, link))) {
        assert(claim->renewing == 0);
        claim_end(claim, 0);
    }
}

uint32_t claim_waiting(const struct store *store)
{
    const struct claim *claim;
    uint32_t n = 0;

    list_for_each(claim, &store->claims, link)
        n += claim->state == CLAIM_UNMAPPING ? claim->n : 0;
    return n;
}
