/*
 * Extents whose memory has failed, as when their GPU has: what is only there is lost at once, and
 * what is in the other tier too goes on there. The extents are emptied, unmapped and given up in
 * the background like any that is lost.
 */
#include "daemon/store/claim.h"
#include "daemon/store/keep.h"
#include "daemon/store/pin.h"
#include "daemon/store/save.h"

bool store_has_failed(const struct store *store, enum tier_kind tier, uint32_t slot)
{
    const struct table_extent *extent;
    uint32_t first, end;

    if (!store->any_failed[tier])
        return false;
    first = slots_extent(store->slots[tier], slot);
    extent = table_extent(store->table, tier, first);
    end = first + extent->span;
    for (uint32_t i = first; i < end; i++)
        if (store->failed[tier][i / 64] >> i % 64 & 1)
            return true;
    return false;
}

/* One that is read from there stays until that has ended, and no load finds it there. */
static void fail_copy(struct store *store, uint32_t id, enum tier_kind tier)
{
    const enum tier_kind other = tier == TIER_GPU ? TIER_HOST : TIER_GPU;
    struct block *block = blocks_get(store->blocks, id);

    if (block->slot[other] == SLOT_NONE) {
        pin_drop(store, id);
        block->save = BLOCK_LOST;
        keep_doom(store, id);
    } else if (block->loads[tier] == 0) {
        keep_drop_copy(store, id, tier);
    }
}

static void fail_slot(struct store *store, enum tier_kind tier, uint32_t number)
{
    const struct table_slot *record = store_record(store, tier, number);
    uint32_t id;

    if (record->state != SLOT_READY && record->state != SLOT_FILLING)
        return;
    id = blocks_of_slot(store->blocks, tier, number);
    if (id == BLOCK_NONE)
        return;
    if (record->state == SLOT_FILLING)
        save_fail_of(store, id, KVC_E_DEVICE);
    else
        fail_copy(store, id, tier);
}

void store_fail_extents(struct store *store, enum tier_kind tier, uint32_t first, uint32_t n)
{
    const struct table_tier *geometry = &table_header(store->table)->tiers[tier];

    store->any_failed[tier] |= n > 0;
    for (uint32_t i = first; i < first + n; i++) {
        store->failed[tier][i / 64] |= 1ull << i % 64;
        store_lose_extent(store, tier, i);
    }
    /* A block that is larger than an extent begins in front of the last that it lies in. */
    for (uint32_t e = 0; e < first + n; e++) {
        const struct table_extent *extent = table_extent(store->table, tier, e);
        uint64_t slots = extent->slot_bytes ? geometry->extent_bytes / extent->slot_bytes : 0;

        if (extent->state != EXTENT_OWNED || extent->slot_bytes == 0 || e + extent->span <= first)
            continue;
        for (uint64_t i = 0; i < (slots ? slots : 1); i++)
            fail_slot(store, tier, e * geometry->slots_per_extent + (uint32_t)i);
    }
    claim_lose(store);
    store_settle(store);
}
