#include "daemon/store/keep.h"

#include <assert.h>

#include "daemon/store/moving.h"
#include "daemon/store/room.h"

static bool is_kept(const struct block *block)
{
    return block->leases || block->held || block->loads[TIER_GPU] || block->loads[TIER_HOST] ||
           block->moving;
}

enum order keep_order(const struct block *block, enum tier_kind tier)
{
    if (block->state != BLOCK_READY || block->slot[tier] == SLOT_NONE || is_kept(block))
        return ORDER_NONE;
    if (tier == TIER_HOST)
        return ORDER_HOST;
    return block->slot[TIER_HOST] == SLOT_NONE ? ORDER_DIRTY : ORDER_CLEAN;
}

static void leave(struct partition *partition, enum order order, uint32_t id)
{
    struct policy *policy = &partition->orders[order];

    policy->ops->remove(policy, id);
    if (policy->count == 0)
        partition_gives(partition, order);
}

/* Its extent counts what could be evicted from it. */
static void note_loose(struct store *store, const struct block *block, enum tier_kind tier,
                       enum order before, enum order after)
{
    if (block->slot[tier] != SLOT_NONE && (before != ORDER_NONE) != (after != ORDER_NONE))
        slots_set_loose(store->slots[tier], block->slot[tier], after != ORDER_NONE);
}

/* At its place. beside: where it was before, in this tier; or BLOCK_NONE. */
static void place(struct store *store, struct policy *policy, uint32_t id, enum order order,
                  uint32_t beside)
{
    const struct block *block = blocks_get(store->blocks, id), *other;

    other = beside != BLOCK_NONE ? blocks_get(store->blocks, beside) : NULL;
    if (other && other->order[policy->tier] == order &&
        store_partition(store, other) == store_partition(store, block))
        policy->ops->place_near(policy, id, beside);
    else
        policy->ops->place(policy, id);
}

/* Puts a block into the orders that its state calls for. used: as the hottest of them. Else by its
 * last use, which is beside these blocks, if it was not long away; NULL: anywhere. */
static void settle_beside(struct store *store, uint32_t id, bool used, const uint32_t *beside)
{
    struct block *block = blocks_get(store->blocks, id);
    struct partition *partition = store_partition(store, block);

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        enum order now = block->order[tier], next = keep_order(block, tier);
        struct policy *policy = &partition->orders[next];

        if (now == next) {
            if (used && next != ORDER_NONE)
                policy->ops->touch(policy, id);
            continue;
        }
        if (now != ORDER_NONE)
            leave(partition, now, id);
        block->order[tier] = (uint8_t)next;
        note_loose(store, block, tier, now, next);
        if (next != ORDER_NONE && used)
            policy->ops->add(policy, id);
        else if (next != ORDER_NONE)
            place(store, policy, id, next, beside ? beside[tier] : BLOCK_NONE);
        if (next != ORDER_NONE && policy->count == 1)
            partition_gives(partition, next);
        if (next == ORDER_CLEAN || next == ORDER_DIRTY || now == ORDER_CLEAN)
            room_changed(partition, next == ORDER_CLEAN);
    }
}

static void settle(struct store *store, uint32_t id, bool used)
{
    settle_beside(store, id, used, NULL);
}

/*
 * No two touches get the same time, so that orders can be rebuilt from it: it counts up from the
 * clock of the latest store_settle.
 */
static void stamp(struct store *store, const struct block *block)
{
    store->last_use++;
    family_touch(store_partition(store, block)->family);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (block->slot[tier] == SLOT_NONE)
            continue;
        store_record(store, tier, block->slot[tier])->last_use = store->last_use;
        slots_touch(store->slots[tier], block->slot[tier], store->last_use);
    }
}

/* Frees what nothing keeps of a block that is no longer one. */
static void collect(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);
    struct partition *partition = store_partition(store, block);
    bool empty = true;

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (block->slot[tier] == SLOT_NONE)
            continue;
        if (block->loads[tier] || block->moving) {
            empty = false;
            continue;
        }
        room_give(partition, tier, block->slot[tier]);
        block->slot[tier] = SLOT_NONE;
    }
    if (empty && !block->leases && !block->held && !block->moving)
        blocks_drop(store->blocks, id);
}

/* One keeper less. */
static void loosen(struct store *store, uint32_t id, bool used, const uint32_t *beside)
{
    struct block *block = blocks_get(store->blocks, id);

    if (block->state == BLOCK_DOOMED) {
        collect(store, id);
        return;
    }
    if (is_kept(block))
        return;
    if (used)
        stamp(store, block);
    settle_beside(store, id, used, beside);
    if (block->save == BLOCK_HOT) {
        block->save = 0;
        moving_promote(store, id);
    }
}

/* Leases of the namespace hold one block more, or less: of those that are published. */
static void count_leased(const struct store *store, const struct block *block, int by)
{
    if (block->state == BLOCK_READY)
        usage_of(store, block->part)->leased += (uint64_t)by;
}

void keep_lease(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->state == BLOCK_READY || block->leases > 0);
    if (block->leases++ > 0)
        return;
    count_leased(store, block, 1);
    family_touch(store_partition(store, block)->family);
    settle(store, id, false);
}

void keep_unlease(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->leases > 0);
    if (--block->leases > 0)
        return;
    count_leased(store, block, -1);
    loosen(store, id, true, NULL);
}

void keep_hold(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->state == BLOCK_READY);
    if (block->held++ == 0)
        settle(store, id, false);
}

void keep_release(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->held > 0);
    if (--block->held == 0)
        loosen(store, id, true, NULL);
}

void keep_hold_aside(struct store *store, uint32_t id, uint32_t beside[TIER_COUNT])
{
    const struct block *block = blocks_get(store->blocks, id);
    const struct partition *partition = store_partition(store, block);

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        const enum order order = block->order[tier];
        const struct policy *policy = &partition->orders[order];

        beside[tier] = order == ORDER_NONE ? BLOCK_NONE : policy->ops->neighbour(policy, id);
    }
    keep_hold(store, id);
}

void keep_put_back(struct store *store, uint32_t id, const uint32_t beside[TIER_COUNT])
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->held > 0);
    if (--block->held == 0)
        loosen(store, id, false, beside);
}

void keep_load(struct store *store, uint32_t id, enum tier_kind tier)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->state == BLOCK_READY && (block->leases > 0 || block->held > 0) &&
           block->loads[tier] < UINT16_MAX);
    block->loads[tier]++;
    store_record(store, tier, block->slot[tier])->loads++;
}

void keep_unload(struct store *store, uint32_t id, enum tier_kind tier)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->loads[tier] > 0);
    store_record(store, tier, block->slot[tier])->loads--;
    if (--block->loads[tier] == 0)
        loosen(store, id, true, NULL);
}

/* A tier has the block from now on, or no longer. Of what was flushed that has been told. */
static void note(const struct store *store, enum store_event_kind kind, uint32_t id,
                 enum tier_kind tier)
{
    if (blocks_is_stale(store->blocks, id))
        return;
    store_note(store, kind, blocks_get(store->blocks, id)->part, tier,
               blocks_record(store->blocks, id, tier)->key, NULL);
}

void keep_move(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->state == BLOCK_READY && !is_kept(block));
    block->moving = 1;
    settle(store, id, false);
}

void keep_moved(struct store *store, uint32_t id, bool copied, enum tier_kind tier, uint32_t to)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->moving && block->slot[tier] == SLOT_NONE);
    block->moving = 0;
    if (copied) {
        assert(block->state == BLOCK_READY);
        block->slot[tier] = to;
        slots_touch(store->slots[tier], to, store_record(store, tier, to)->last_use);
        note(store, STORE_EVENT_STORED, id, tier);
    }
    if (block->state == BLOCK_DOOMED)
        collect(store, id);
    else
        settle(store, id, false);
}

static void tell(const struct store *store, const struct block *block, uint32_t id, bool here)
{
    enum tier_kind tier = block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;

    if (store->config.events.block)
        store->config.events.block(store->config.events.ctx, block->part,
                                   blocks_record(store->blocks, id, tier)->key, here);
}

void keep_publish(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);
    enum tier_kind tier = block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;

    assert(block->state == BLOCK_FILLING && !is_kept(block));
    block->state = BLOCK_READY;
    block->save = 0;
    usage_of(store, block->part)->blocks++;
    stamp(store, block);
    store_set_state(store, store_record(store, tier, block->slot[tier]), SLOT_READY);
    tell(store, block, id, true);
    settle(store, id, true);
}

void keep_touch(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    if (block->state != BLOCK_READY || is_kept(block))
        return;
    stamp(store, block);
    settle(store, id, true);
}

void keep_drop_copy(struct store *store, uint32_t id, enum tier_kind tier)
{
    struct block *block = blocks_get(store->blocks, id);
    struct partition *partition = store_partition(store, block);
    uint32_t slot = block->slot[tier];

    assert(block->state == BLOCK_READY && slot != SLOT_NONE);
    assert(block->loads[tier] == 0 && !block->moving);
    assert(block->slot[tier == TIER_GPU ? TIER_HOST : TIER_GPU] != SLOT_NONE);
    note_loose(store, block, tier, block->order[tier], ORDER_NONE);
    note(store, STORE_EVENT_REMOVED, id, tier);
    block->slot[tier] = SLOT_NONE;
    settle(store, id, false);
    room_give(partition, tier, slot);
}

void keep_take_clean(struct partition *partition, uint32_t id)
{
    struct store *store = partition->cls->store;
    struct block *block = blocks_get(store->blocks, id);

    assert(block->order[TIER_GPU] == ORDER_CLEAN && block->order[TIER_HOST] == ORDER_HOST);
    note_loose(store, block, TIER_GPU, ORDER_CLEAN, ORDER_NONE);
    leave(partition, ORDER_CLEAN, id);
    note(store, STORE_EVENT_REMOVED, id, TIER_GPU);
    block->order[TIER_GPU] = ORDER_NONE;
    block->slot[TIER_GPU] = SLOT_NONE;
}

/* Of published blocks one less; who saved the key again since a flush has it still. */
static void forget(struct store *store, const struct block *block, uint32_t id)
{
    struct usage *usage = usage_of(store, block->part);
    enum tier_kind tier = block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;
    uint32_t fresh;

    if (!blocks_is_stale(store->blocks, id)) {
        usage->blocks--;
        tell(store, block, id, false);
        return;
    }
    usage->stale--;
    store->stale--;
    fresh = blocks_find(store->blocks, block->part, blocks_record(store->blocks, id, tier)->key);
    if (fresh == BLOCK_NONE || blocks_get(store->blocks, fresh)->state != BLOCK_READY)
        tell(store, block, id, false);
}

void keep_doom(struct store *store, uint32_t id)
{
    struct block *block = blocks_get(store->blocks, id);

    assert(block->state == BLOCK_READY);
    if (block->leases > 0)
        count_leased(store, block, -1);
    forget(store, block, id);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        if (block->slot[tier] != SLOT_NONE)
            note(store, STORE_EVENT_REMOVED, id, tier);
    blocks_unlink(store->blocks, id);
    block->state = BLOCK_DOOMED;
    settle(store, id, false);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        if (block->slot[tier] != SLOT_NONE)
            store_set_state(store, store_record(store, tier, block->slot[tier]), SLOT_DOOMED);
    collect(store, id);
}
