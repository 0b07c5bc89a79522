/* The list of extents: a row for those of one tenant, slot size and state in a tier. */
#include "daemon/api/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

struct extents {
    enum use use;
    uint32_t tenant;
    uint64_t slot_bytes;
    uint32_t extents, slots, used_slots;
};

/* Tails count with the extent that they continue. */
static struct extents look_at(const struct store *store, enum tier_kind tier, uint32_t index)
{
    struct slots_extent e;
    struct extents row = {0};

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
    return a->use == b->use && a->tenant == b->tenant && a->slot_bytes == b->slot_bytes;
}

/* Adds up all that are like this one; false: an earlier one is. */
static bool add_up(const struct store *store, enum tier_kind tier, uint32_t index, uint32_t n,
                   struct extents *sum)
{
    *sum = look_at(store, tier, index);
    for (uint32_t i = 0; i < n; i++) {
        struct extents other = look_at(store, tier, i);

        if (i == index || !is_alike(sum, &other))
            continue;
        if (i < index)
            return false;
        sum->extents += other.extents;
        sum->slots += other.slots;
        sum->used_slots += other.used_slots;
    }
    return true;
}

bool list_next_extents(const struct session *asks, uint64_t after, struct row *row)
{
    const struct table *table = store_table(asks->api->store);
    const struct table_tier *tiers = table_header(table)->tiers;
    uint64_t total = (uint64_t)tiers[TIER_GPU].extents + tiers[TIER_HOST].extents;
    char(*t)[LIST_VALUE_BYTES] = row->text;

    for (uint64_t at = after; at < total; at++) {
        enum tier_kind tier = at < tiers[TIER_GPU].extents ? TIER_GPU : TIER_HOST;
        uint32_t index = (uint32_t)(tier == TIER_GPU ? at : at - tiers[TIER_GPU].extents);
        struct extents sum;
        const char *tenant = "";

        if (!add_up(asks->api->store, tier, index, tiers[tier].extents, &sum) ||
            sum.use == USE_NONE)
            continue;
        if (sum.use >= USE_EMPTY) {
            tenant = table_tenant(table, sum.tenant)->name;
            if (!list_may_see(asks, tenant))
                continue;
        }
        row->id = at + 1;
        snprintf(t[0], LIST_VALUE_BYTES, "%s", tier_name(tier));
        snprintf(t[1], LIST_VALUE_BYTES, "%s", tenant);
        snprintf(t[2], LIST_VALUE_BYTES, "%" PRIu64, sum.slot_bytes);
        snprintf(t[3], LIST_VALUE_BYTES, "%u", sum.extents);
        snprintf(t[4], LIST_VALUE_BYTES, "%u", sum.slots);
        snprintf(t[5], LIST_VALUE_BYTES, "%u", sum.used_slots);
        snprintf(t[6], LIST_VALUE_BYTES, "%s", names[sum.use]);
        return true;
    }
    return false;
}
