#include "daemon/store/walk.h"

#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/partition.h"
#include "daemon/store/pin.h"

enum store_walk store_walk_leases(const struct store *store, uint64_t *cursor, uint32_t *steps,
                                  struct store_lease *ret)
{
    const struct handles *leases = &store->leases;
    const uint64_t now = clock_now_us();

    for (; *cursor < leases->size; (*steps)--) {
        const struct lease *lease;

        if (*steps == 0)
            return STORE_WALK_PAUSE;
        lease = leases->places[(*cursor)++].object;
        if (lease == NULL || lease->ends.at <= now)
            continue;
        (*steps)--;
        *ret = (struct store_lease){
            .owner = lease->owner,
            .lease = lease->id,
            .part = lease->n_parts > 0 ? lease->parts[0].part : 0,
            .parts = lease->n_parts,
            .blocks = lease->count,
            .reach = lease->reach,
            .ends_us = lease->ends.at - now,
        };
        return STORE_WALK_FOUND;
    }
    return STORE_WALK_END;
}

static void describe(const struct store *store, uint32_t id, struct store_block *ret)
{
    const struct block *block = blocks_get(store->blocks, id);
    const uint64_t now = clock_now_us();

    *ret = (struct store_block){
        .part = block->part,
        .published = block->state == BLOCK_READY,
        .moving = block->moving,
        .pinned = pin_has(store, id),
        .slot_bytes = store_partition(store, block)->cls->slot_bytes,
        .leases = block->leases,
    };
    for (enum tier_kind tier = TIER_COUNT; tier-- > 0;) {
        const struct table_slot *record;

        if (block->slot[tier] == SLOT_NONE)
            continue;
        record = store_record(store, tier, block->slot[tier]);
        ret->key = record->key;
        ret->in[tier] = true;
        ret->checked = record->flags & SLOT_CHECKED;
        ret->loads += block->loads[tier];
        ret->idle_us = ret->published && now > record->last_use ? now - record->last_use : 0;
    }
}

enum store_walk store_walk_blocks(const struct store *store, uint64_t *cursor, uint32_t *steps,
                                  struct store_block *ret)
{
    for (const uint32_t limit = blocks_limit(store->blocks); *cursor < limit;) {
        const struct block *block;
        uint32_t id;

        if (*steps == 0)
            return STORE_WALK_PAUSE;
        (*steps)--;
        id = (uint32_t)(*cursor)++;
        block = blocks_get(store->blocks, id);
        if ((block->state != BLOCK_FILLING && block->state != BLOCK_READY) ||
            blocks_is_stale(store->blocks, id))
            continue;
        describe(store, id, ret);
        return STORE_WALK_FOUND;
    }
    return STORE_WALK_END;
}

uint64_t store_walk_copies_end(const struct store *store)
{
    return (uint64_t)blocks_limit(store->blocks) * TIER_COUNT;
}

enum store_walk store_walk_copies(struct store *store, uint64_t *cursor, uint32_t *steps,
                                  uint64_t *unchecked, struct store_copy *copy)
{
    while (*cursor < store_walk_copies_end(store)) {
        const enum tier_kind tier = *cursor % TIER_COUNT;
        const struct table_slot *record;
        const struct block *block;
        uint32_t id;

        if (*steps == 0)
            return STORE_WALK_PAUSE;
        (*steps)--;
        id = (uint32_t)((*cursor)++ / TIER_COUNT);
        block = blocks_get(store->blocks, id);
        if (block->state != BLOCK_READY || block->slot[tier] == SLOT_NONE ||
            blocks_is_stale(store->blocks, id))
            continue;
        record = store_record(store, tier, block->slot[tier]);
        if (!(record->flags & SLOT_CHECKED))
            (*unchecked)++;
        if (!(record->flags & SLOT_CHECKED) || block->moving || block->loads[tier] == UINT16_MAX)
            continue;
        *copy = (struct store_copy){
            .block = id,
            .tier = tier,
            .offset = slots_offset(store->slots[tier], block->slot[tier]),
            .layout = table_layout(store->table, table_part(store->table, block->part)->layout),
            .checksum = record->checksum,
        };
        keep_hold_aside(store, id, copy->beside);
        keep_load(store, id, tier);
        store->reading[tier]++;
        return STORE_WALK_FOUND;
    }
    return STORE_WALK_END;
}

/* The hold goes last: a copy that was only looked at keeps its place in the eviction order. */
void store_give_copy(struct store *store, const struct store_copy *copy, bool bad)
{
    const struct block *block = blocks_get(store->blocks, copy->block);

    store->reading[copy->tier]--;
    keep_unload(store, copy->block, copy->tier);
    if (bad && block->state == BLOCK_READY) {
        store->stats.checksum_failures++;
        pin_drop(store, copy->block);
        keep_doom(store, copy->block);
    }
    keep_put_back(store, copy->block, copy->beside);
    store_settle(store);
}
