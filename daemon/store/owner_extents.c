/* Which extents sessions may map, have mapped, and are asked to unmap. */
#include <assert.h>

#include "daemon/store/claim_internal.h"

static bool bit(const uint64_t *bits, uint32_t index)
{
    return bits[index / 64] >> index % 64 & 1;
}

static void set_bit(uint64_t *bits, uint32_t index, bool value)
{
    bits[index / 64] &= ~(1ull << index % 64);
    bits[index / 64] |= (uint64_t)value << index % 64;
}

static bool exists(const struct owner *owner, enum tier_kind tier, uint32_t index)
{
    return owner->page && index < slots_extents(owner->store->slots[tier]);
}

/* Of its tenant, and to stay so. */
static bool may_map(const struct owner *owner, enum tier_kind tier, uint32_t index)
{
    struct slots_extent e;

    if (!exists(owner, tier, index))
        return false;
    slots_look(owner->store->slots[tier], index, &e);
    return (e.state == EXTENT_OWNED || e.state == EXTENT_TAIL) &&
           e.tenant == owner->identity.tenant && !e.leaving;
}

/* A cursor counts extents through both tiers. */
uint32_t store_owner_extents(const struct store *store, const struct owner *owner, uint32_t cursor,
                             uint32_t *extents, uint32_t max, uint32_t *next_cursor, bool *more)
{
    const struct table_tier *tiers = table_header(store->table)->tiers;
    uint32_t total = tiers[TIER_GPU].extents + tiers[TIER_HOST].extents, n = 0;

    *more = false;
    for (; cursor < total; cursor++) {
        enum tier_kind tier = cursor < tiers[TIER_GPU].extents ? TIER_GPU : TIER_HOST;
        uint32_t index = tier == TIER_GPU ? cursor : cursor - tiers[TIER_GPU].extents;

        if (!may_map(owner, tier, index) || bit(owner->told[tier], index))
            continue;
        if (n == max) {
            *more = true;
            break;
        }
        extents[n++] = (uint32_t)tier << 31 | index;
    }
    *next_cursor = cursor;
    return n;
}

void store_owner_offer(struct store *store, struct owner *owner, uint32_t extent)
{
    enum tier_kind tier = extent >> 31;
    uint32_t index = extent & 0x7fffffffu;

    (void)store;
    assert(may_map(owner, tier, index) && !bit(owner->told[tier], index));
    set_bit(owner->held[tier], index, true);
}

bool store_owner_has_extent(const struct owner *owner, uint32_t extent)
{
    return exists(owner, extent >> 31, extent & 0x7fffffffu);
}

bool store_owner_may_map(const struct owner *owner, uint32_t extent)
{
    return may_map(owner, extent >> 31, extent & 0x7fffffffu);
}

bool store_owner_holds(const struct owner *owner, uint32_t extent)
{
    enum tier_kind tier = extent >> 31;
    uint32_t index = extent & 0x7fffffffu;

    return exists(owner, tier, index) && bit(owner->held[tier], index);
}

static void set_mapped(struct owner *owner, enum tier_kind tier, uint32_t index, bool mapped)
{
    set_bit(owner->mapped[tier], index, mapped);
    if (tier == TIER_GPU && owner->near && bit(owner->near, index))
        set_bit(owner->near_mapped, index, mapped);
}

kvc_status store_owner_mapped(struct store *store, struct owner *owner, uint32_t extent)
{
    enum tier_kind tier = extent >> 31;
    uint32_t index = extent & 0x7fffffffu;

    (void)store;
    if (store_owner_holds(owner, extent) || may_map(owner, tier, index)) {
        set_bit(owner->held[tier], index, true);
        /* Who was told to unmap it does so after this. */
        if (!bit(owner->told[tier], index))
            set_mapped(owner, tier, index, true);
        return KVC_OK;
    }
    return KVC_E_DENIED;
}

kvc_status store_owner_unmapped(struct store *store, struct owner *owner, uint32_t extent)
{
    enum tier_kind tier = extent >> 31;
    uint32_t index = extent & 0x7fffffffu;

    if (!exists(owner, tier, index))
        return KVC_E_INVALID;
    set_mapped(owner, tier, index, false);
    set_bit(owner->held[tier], index, false);
    if (bit(owner->told[tier], index)) {
        set_bit(owner->told[tier], index, false);
        if (--owner->n_told == 0)
            owner->overdue = false;
        /* It was kept meanwhile, so that it can be mapped again. */
        if (may_map(owner, tier, index))
            owner->granted = store->tell = true;
    }
    claim_look(store);
    return KVC_OK;
}

bool owner_extent_held(struct store *store, enum tier_kind tier, uint32_t index)
{
    const struct list *lists[] = {&store->owners, &store->freed};
    struct owner *owner;
    bool held = false;

    for (int i = 0; i < 2; i++) {
        list_for_each(owner, lists[i], link) {
            if (!owner->page || !bit(owner->held[tier], index))
                continue;
            held = true;
            if (bit(owner->told[tier], index))
                continue;
            set_mapped(owner, tier, index, false);
            set_bit(owner->told[tier], index, true);
            owner->n_told++;
            owner->withdrawn = store->tell = true;
            set_bit(owner->untold[tier], index, true);
        }
    }
    return held;
}

void owner_extent_overdue(struct store *store, enum tier_kind tier, uint32_t index)
{
    struct owner *owner;

    list_for_each(owner, &store->owners, link)
        if (owner->page && bit(owner->told[tier], index))
            owner->overdue = true;
}

bool owner_extent_stuck(const struct store *store, enum tier_kind tier, uint32_t index)
{
    const struct owner *owner;

    list_for_each(owner, &store->owners, link)
        if (owner->page && (owner->overdue || owner->ended) && bit(owner->held[tier], index))
            return true;
    return false;
}

void owner_extents_granted(struct store *store, uint32_t tenant)
{
    struct owner *owner;

    list_for_each(owner, &store->owners, link)
        if (owner->page && owner->identity.tenant == tenant)
            owner->granted = store->tell = true;
}

/* Takes a bit out of a set of n; TABLE_NONE: there is none. */
static uint32_t take_bit(uint64_t *bits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64) {
        if (bits[i / 64]) {
            uint32_t at = i + (uint32_t)__builtin_ctzll(bits[i / 64]);

            bits[i / 64] &= bits[i / 64] - 1;
            return at;
        }
    }
    return TABLE_NONE;
}

static void tell(struct store *store, struct owner *owner)
{
    const struct store_events *events = &store->config.events;
    uint32_t extents[STORE_WITHDRAWN_MAX], n = 0;
    bool granted = owner->granted;

    for (enum tier_kind tier = 0; owner->withdrawn && tier < TIER_COUNT; tier++) {
        uint32_t index = 0;

        while (n < STORE_WITHDRAWN_MAX && index != TABLE_NONE) {
            index = take_bit(owner->untold[tier], slots_extents(store->slots[tier]));
            if (index != TABLE_NONE)
                extents[n++] = (uint32_t)tier << 31 | index;
        }
    }
    owner->withdrawn = n == STORE_WITHDRAWN_MAX;
    owner->granted = false;
    if (!owner->ended && events->extents && (n > 0 || granted))
        events->extents(events->ctx, owner, extents, n, granted);
}

void owner_extents_tell(struct store *store)
{
    struct owner *owner, *after;

    while (store->tell) {
        store->tell = false;
        list_for_each_safe(owner, after, &store->owners, link) {
            if (owner->withdrawn || owner->granted)
                tell(store, owner);
            store->tell |= owner->withdrawn;
        }
    }
}
