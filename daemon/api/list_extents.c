/* The list of extents: a row for those of one tenant, slot size and state in a tier. */
#include "daemon/api/list.h"

#include <inttypes.h>
#include <stdio.h>

enum use {
    USE_NONE, /* a tail */
    USE_FREE,
    USE_LOST,
    USE_EMPTY,
    USE_USED,
    USE_RESIZING,
    USE_LEAVING,
    USE_UNMAPPING,
};

static const char *const names[] = {"",     "free",     "lost",    "empty",
                                    "used", "resizing", "leaving", "unmapping"};

/* More kinds than these are left out: there are as many as tenants have slot sizes and states. */
#define SUMS_MAX 128u

struct extents {
    enum tier_kind tier;
    enum use use;
    uint32_t tenant;
    uint64_t slot_bytes;
    uint32_t extents, slots, used_slots;
};

/* Tails count with the extent that they continue. */
static struct extents look_at(const struct store *store, enum tier_kind tier, uint32_t index)
{
    struct slots_extent e;
    struct extents row = {.tier = tier};

    store_look_at_extent(store, tier, index, &e);
    if (e.state == EXTENT_FREE)
        row.use = USE_FREE;
    if (e.state == EXTENT_LOST)
        row.use = USE_LOST;
    if (e.state == EXTENT_OWNED) {
        row.use = e.slot_bytes ? USE_USED : USE_EMPTY;
        if (e.leaving)
            row.use = e.slot_bytes ? USE_LEAVING : USE_UNMAPPING;
        else if (e.closed)
            row.use = USE_RESIZING;
        row.tenant = e.tenant;
        row.slot_bytes = e.slot_bytes;
    }
    row.extents = e.span;
    row.slots = e.places;
    row.used_slots = e.used;
    return row;
}

static bool is_alike(const struct extents *a, const struct extents *b)
{
    return a->tier == b->tier && a->use == b->use && a->tenant == b->tenant &&
           a->slot_bytes == b->slot_bytes;
}

/* Those that are alike as one, in one pass. */
static uint32_t add_up(const struct store *store, struct extents sums[SUMS_MAX])
{
    const struct table_tier *tiers = table_header(store_table(store))->tiers;
    uint32_t n = 0;

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        for (uint32_t index = 0; index < tiers[tier].extents; index++) {
            struct extents e = look_at(store, tier, index);
            uint32_t at = 0;

            if (e.use == USE_NONE)
                continue;
            while (at < n && !is_alike(&sums[at], &e))
                at++;
            if (at == SUMS_MAX)
                continue;
            if (at == n) {
                sums[n++] = e;
                continue;
            }
            sums[at].extents += e.extents;
            sums[at].slots += e.slots;
            sums[at].used_slots += e.used_slots;
        }
    }
    return n;
}

bool list_next_extents(const struct session *asks, uint64_t after, struct row *row)
{
    const struct table *table = store_table(asks->api->store);
    struct extents sums[SUMS_MAX];
    char(*t)[LIST_VALUE_BYTES] = row->text;
    const uint32_t n = add_up(asks->api->store, sums);

    for (uint64_t at = after; at < n; at++) {
        const struct extents *sum = &sums[at];
        const char *tenant = "";

        if (sum->use >= USE_EMPTY) {
            tenant = table_tenant(table, sum->tenant)->name;
            if (!list_may_see(asks, tenant))
                continue;
        }
        row->id = at + 1;
        snprintf(t[0], LIST_VALUE_BYTES, "%s", tier_name(sum->tier));
        snprintf(t[1], LIST_VALUE_BYTES, "%s", tenant);
        snprintf(t[2], LIST_VALUE_BYTES, "%" PRIu64, sum->slot_bytes);
        snprintf(t[3], LIST_VALUE_BYTES, "%u", sum->extents);
        snprintf(t[4], LIST_VALUE_BYTES, "%u", sum->slots);
        snprintf(t[5], LIST_VALUE_BYTES, "%u", sum->used_slots);
        snprintf(t[6], LIST_VALUE_BYTES, "%s", names[sum->use]);
        return true;
    }
    return false;
}
