#include "daemon/store/walk.h"

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
        if (block->state != BLOCK_FILLING && block->state != BLOCK_READY)
            continue;
        describe(store, id, ret);
        return STORE_WALK_FOUND;
    }
    return STORE_WALK_END;
}
