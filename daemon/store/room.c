#include "daemon/store/room.h"

#include <assert.h>
#include <string.h>

#include "daemon/store/claim.h"
#include "daemon/store/keep.h"
#include "daemon/store/moving.h"

#define FAMILY_MAX 64u /* parts of a family that are asked for a key that is evicted */
#define NEAR_MAX   16u /* of the coldest clean blocks, among which one that is near is looked for */
#define CLOSED_MAX 16u /* blocks in closed extents that are dropped for one slot */

static uint32_t victim(const struct partition *partition, enum order order)
{
    const struct policy *policy = &partition->orders[order];

    return policy->ops->victim(policy);
}

/* One free or clean slot less. */
static void taken(struct partition *taker)
{
    /* Less is free for everybody: who gives next should have something clean. */
    struct partition *next = partition_giver(taker, ORDER_DIRTY);

    room_changed(taker, false);
    if (next)
        room_changed(next, false);
}

static bool take_free(struct partition *taker, enum tier_kind tier, const uint64_t *mapped,
                      uint32_t *slot)
{
    const struct tier_class *cls = taker->cls;

    if (!slots_take(cls->store->slots[tier], cls->tenant, cls->slot_bytes, mapped, slot))
        return false;
    partition_take(taker, tier);
    store_record(cls->store, tier, *slot)->part = 0;
    store_record(cls->store, tier, *slot)->hit_ms = 0;
    taken(taker);
    return true;
}

static bool take(struct partition *taker, enum tier_kind tier, const uint64_t *mapped,
                 uint32_t *slot)
{
    if (take_free(taker, tier, mapped, slot))
        return true;
    claim_want(taker->cls, tier);
    return false;
}

void room_name(struct partition *partition, enum tier_kind tier, uint32_t slot, uint32_t part)
{
    struct store *store = partition->cls->store;
    struct table_slot *record = store_record(store, tier, slot);

    if (record->part != 0)
        usage_of(store, record->part)->used[tier] -= partition->cls->slot_bytes;
    record->part = (uint16_t)part;
    usage_of(store, part)->used[tier] += partition->cls->slot_bytes;
}

void room_give(struct partition *partition, enum tier_kind tier, uint32_t slot)
{
    struct store *store = partition->cls->store;
    struct table_slot *record = store_record(store, tier, slot);

    partition_give(partition, tier);
    if (record->part != 0)
        usage_of(store, record->part)->used[tier] -= partition->cls->slot_bytes;
    store_set_state(store, record, SLOT_FREE);
    slots_give(store->slots[tier], slot);
    room_changed(partition, true);
}

void room_changed(struct partition *partition, bool room)
{
    struct store *store = partition->cls->store;

    if (!list_linked(&partition->balance))
        list_push_back(&store->unbalanced, &partition->balance);
    if (room && store->waiting_saves)
        store->room = true;
}

void room_all_changed(struct store *store)
{
    struct partition *partition;
    struct tier_class *cls;

    list_for_each(cls, &store->classes, link)
        list_for_each(partition, &cls->partitions, link)
            room_changed(partition, false);
}

void room_want(struct partition *partition, int64_t keys)
{
    assert(keys >= 0 || partition->wanted >= (uint64_t)-keys);
    partition->wanted += (uint64_t)keys;
    partition->cls->wanted += (uint64_t)keys;
    if (partition->wanted > 0)
        room_changed(partition, false);
}

static void count_clean(struct store *store, enum tier_kind tier)
{
    store->stats.tier_evictions[tier]++;
    store->stats.clean_evictions[tier]++;
}

static void evict_one(struct store *store, uint32_t id, bool dependent)
{
    const struct block *block = blocks_get(store->blocks, id);

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (block->slot[tier] == SLOT_NONE)
            continue;
        store->stats.tier_evictions[tier]++;
        store->stats.dependent_evictions[tier] += dependent;
    }
    store->stats.evictions++;
    keep_doom(store, id);
}

/* Whether a block of `other` is of no use without the block of the same key of `part`. */
static bool depends(const struct store *store, uint32_t other, uint32_t part)
{
    const struct table_part *a = table_part(store->table, other),
                            *b = table_part(store->table, part);

    return b->rule == STORE_RULE_FULL || (a->rule == b->rule && a->window == b->window);
}

/*
 * A block goes from every tier, and so does what the other ranks and groups of its family have of
 * the key, if nothing keeps it: no prefix can use that any more. One that was flushed just goes.
 */
static void evict_all(struct store *store, uint32_t id)
{
    const struct block *block = blocks_get(store->blocks, id);
    enum tier_kind tier = block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;
    uint32_t part = block->part;
    uint8_t key[KVC_KEY_BYTES];

    if (blocks_is_stale(store->blocks, id)) {
        keep_doom(store, id);
        return;
    }
    memcpy(key, blocks_record(store->blocks, id, tier)->key, sizeof(key));
    evict_one(store, id, false);
    for (uint32_t other = store->family_next[part], n = 0; other != part && n < FAMILY_MAX;
         other = store->family_next[other], n++) {
        id = depends(store, other, part) ? blocks_find(store->blocks, other, key) : BLOCK_NONE;
        if (id == BLOCK_NONE)
            continue;
        block = blocks_get(store->blocks, id);
        if (block->order[TIER_GPU] != ORDER_NONE || block->order[TIER_HOST] != ORDER_NONE)
            evict_one(store, id, true);
    }
}

void room_drop(struct store *store, uint32_t id, enum tier_kind tier)
{
    const struct block *block = blocks_get(store->blocks, id);

    if (block->slot[TIER_GPU] == SLOT_NONE || block->slot[TIER_HOST] == SLOT_NONE ||
        blocks_is_stale(store->blocks, id)) {
        evict_all(store, id);
    } else {
        count_clean(store, tier);
        keep_drop_copy(store, id, tier);
    }
}

uint64_t room_coldest(const struct tier_class *cls, enum tier_kind tier)
{
    const struct store *store = cls->store;
    const struct partition *partition;
    uint64_t coldest = UINT64_MAX;

    list_for_each(partition, &cls->partitions, link) {
        for (enum order order = ORDER_DIRTY; order < ORDER_COUNT; order++) {
            uint32_t id = victim(partition, order);
            uint64_t used;

            if (id == BLOCK_NONE || order_tier(order) != tier)
                continue;
            used = blocks_record(store->blocks, id, tier)->last_use;
            coldest = used < coldest ? used : coldest;
        }
    }
    return coldest;
}

/*
 * The victim of an order whose slot somebody could take. What lies in extents that are closed goes
 * first: it makes no room, and has to go in any case.
 */
static uint32_t useful_victim(struct partition *giver, enum order order)
{
    struct store *store = giver->cls->store;
    enum tier_kind tier = order_tier(order);

    for (uint32_t n = 0; n < CLOSED_MAX; n++) {
        uint32_t id = victim(giver, order);

        if (id == BLOCK_NONE ||
            !slots_is_closed(store->slots[tier], blocks_get(store->blocks, id)->slot[tier]))
            return id;
        room_drop(store, id, tier);
    }
    return BLOCK_NONE;
}

/* The victim of an order goes from the tier, if it makes room for those who mapped `mapped`. */
static bool evict(struct partition *giver, enum order order, const uint64_t *mapped)
{
    struct store *store = giver->cls->store;
    enum tier_kind tier = order_tier(order);
    uint32_t id = useful_victim(giver, order);
    const struct block *block;

    if (id == BLOCK_NONE)
        return false;
    block = blocks_get(store->blocks, id);
    if (!slots_is_mapped(store->slots[tier], block->slot[tier], mapped))
        return false;
    room_drop(store, id, tier);
    return true;
}

/* Those that go next: each would be another wait for memory. */
static void expect_victims(const struct store *store, const struct block *block)
{
    const struct block *next;
    uint32_t id = block->link[TIER_GPU].next;

    if (id == BLOCK_NONE)
        return;
    next = blocks_get(store->blocks, id);
    __builtin_prefetch(store_record(store, TIER_GPU, next->slot[TIER_GPU]), 1);
    id = next->link[TIER_GPU].next;
    if (id != BLOCK_NONE)
        __builtin_prefetch(blocks_get(store->blocks, id), 1);
}

/* The coldest clean block, or one that is little less cold and near. */
static uint32_t clean_victim(const struct partition *partition, const uint64_t *near)
{
    const struct store *store = partition->cls->store;
    const uint32_t coldest = victim(partition, ORDER_CLEAN);
    uint32_t id = near ? coldest : BLOCK_NONE;

    for (uint32_t n = 0; n < NEAR_MAX && id != BLOCK_NONE; n++) {
        const struct block *block = blocks_get(store->blocks, id);

        if (slots_may_pass_on(store->slots[TIER_GPU], block->slot[TIER_GPU], near))
            return id;
        id = block->link[TIER_GPU].next;
    }
    return coldest;
}

/*
 * The coldest clean block of a partition makes way for another of the same, in the same slot. So
 * nobody has more or less than before; its part keeps the slot's bytes until room_name.
 */
static bool take_over(struct partition *partition, const struct room_place *place, uint32_t *slot)
{
    struct store *store = partition->cls->store;
    uint32_t id = clean_victim(partition, place->near), old;
    const struct block *block;
    struct table_slot *record;

    if (id == BLOCK_NONE)
        return false;
    block = blocks_get(store->blocks, id);
    old = block->slot[TIER_GPU];
    if (!slots_may_pass_on(store->slots[TIER_GPU], old, place->mapped[TIER_GPU]) ||
        (store->stale > 0 && blocks_is_stale(store->blocks, id)))
        return false;
    count_clean(store, TIER_GPU);
    expect_victims(store, block);
    keep_take_clean(partition, id);
    record = store_record(store, TIER_GPU, old);
    store_set_state(store, record, SLOT_FREE);
    slots_retake(record);
    record->hit_ms = 0;
    *slot = old;
    return true;
}

/* Who gives a block of an order to the taker gives it. */
static bool take_from(struct partition *taker, struct partition *giver, enum order order,
                      const uint64_t *mapped, uint32_t *slot)
{
    return giver && evict(giver, order, mapped) && take(taker, order_tier(order), mapped, slot);
}

/* Whether what a giver had lay in closed extents, and is gone: perhaps somebody else gives. */
static bool is_spent(const struct partition *giver, enum order order)
{
    return giver && giver->orders[order].count == 0;
}

bool room_goes_first(struct partition *partition, uint32_t id)
{
    const struct tier_class *cls = partition->cls;
    const struct store *store = cls->store;
    uint32_t coldest;

    if (slots_free_count(store->slots[TIER_HOST], cls->tenant, cls->slot_bytes) > 0 ||
        partition_giver(partition, ORDER_HOST) != partition)
        return false;
    coldest = victim(partition, ORDER_HOST);
    return blocks_record(store->blocks, coldest, TIER_HOST)->last_use >
           blocks_record(store->blocks, id, TIER_GPU)->last_use;
}

/* The coldest block of the host tier goes, from both tiers, unless all are copies. */
static bool take_own_host(struct partition *taker, const uint64_t *mapped, uint32_t *slot)
{
    struct store *store = taker->cls->store;
    uint32_t id = useful_victim(taker, ORDER_HOST);
    const struct block *block;

    if (id == BLOCK_NONE)
        return false;
    block = blocks_get(store->blocks, id);
    if (!slots_is_mapped(store->slots[TIER_HOST], block->slot[TIER_HOST], mapped))
        return false;
    if (block->slot[TIER_GPU] != SLOT_NONE &&
        taker->orders[ORDER_HOST].count == taker->orders[ORDER_CLEAN].count)
        return false;
    evict_all(store, id);
    return take(taker, TIER_HOST, mapped, slot);
}

bool room_take_host(struct partition *taker, const uint64_t *mapped, uint32_t *slot)
{
    struct partition *giver;

    if (take(taker, TIER_HOST, mapped, slot))
        return true;
    do {
        giver = partition_giver(taker, ORDER_HOST);
        if (giver == taker ? take_own_host(taker, mapped, slot)
                           : take_from(taker, giver, ORDER_HOST, mapped, slot))
            return true;
    } while (is_spent(giver, ORDER_HOST));
    return false;
}

/*
 * The giver of a clean block. NULL: nobody has one, or another who is over its share by more has
 * only dirty ones, and should be waited for.
 */
static struct partition *clean_giver(struct partition *taker, struct partition *dirty)
{
    struct partition *clean = partition_giver(taker, ORDER_CLEAN);
    struct overuse over;

    if (!clean || !dirty || clean == dirty)
        return clean;
    over = family_over(clean->family, TIER_GPU, 0);
    if (overuse_is_over(over) || !overuse_is_more(family_over(dirty->family, TIER_GPU, 0), over))
        return clean;
    return NULL;
}

bool room_take_gpu(struct partition *taker, const uint64_t *near, uint32_t *slot)
{
    struct partition *clean;

    if ((near && take_free(taker, TIER_GPU, near, slot)) || take(taker, TIER_GPU, NULL, slot))
        return true;
    do {
        clean = clean_giver(taker, partition_giver(taker, ORDER_DIRTY));
        if (take_from(taker, clean, ORDER_CLEAN, NULL, slot))
            return true;
    } while (is_spent(clean, ORDER_CLEAN));
    return false;
}

static uint64_t gpu_free(const struct tier_class *cls)
{
    return slots_free_count(cls->store->slots[TIER_GPU], cls->tenant, cls->slot_bytes);
}

enum room room_take(struct partition *taker, const struct room_place *place, bool *over,
                    enum tier_kind *tier, uint32_t *slot)
{
    struct tier_class *cls = taker->cls;
    const uint64_t *const *mapped = place->mapped;
    struct partition *clean, *dirty;

    *tier = TIER_GPU;
    if (*over && take_over(taker, place, slot))
        return ROOM_TAKEN;
    *over = false;
    family_touch(taker->family);
    family_find_idle(cls->store);
    /* Without a gpu slot to its name, now or ever, a class lives in the host tier. */
    if (cls->used[TIER_GPU] == 0 && gpu_free(cls) == 0) {
        claim_want(cls, TIER_GPU);
        *tier = TIER_HOST;
        return room_take_host(taker, mapped[TIER_HOST], slot) ? ROOM_TAKEN : ROOM_NONE;
    }
    if ((place->near && take_free(taker, TIER_GPU, place->near, slot)) ||
        take(taker, TIER_GPU, mapped[TIER_GPU], slot))
        return ROOM_TAKEN;
    do {
        dirty = partition_giver(taker, ORDER_DIRTY);
        clean = clean_giver(taker, dirty);
        if (clean == taker && take_over(taker, place, slot)) {
            *over = true;
            taken(taker);
            return ROOM_TAKEN;
        }
        if (take_from(taker, clean, ORDER_CLEAN, mapped[TIER_GPU], slot))
            return ROOM_TAKEN;
    } while (is_spent(clean, ORDER_CLEAN));
    if (clean)
        return ROOM_NONE;
    if (cls->demoting > 0)
        return ROOM_LATER;
    if (!dirty)
        return ROOM_NONE;
    switch (moving_demote(dirty)) {
    case MOVING_STARTED:
    case MOVING_BUSY:
        return ROOM_LATER;
    case MOVING_NO_HOST:
    case MOVING_COLDER:
        return take_from(taker, dirty, ORDER_DIRTY, mapped[TIER_GPU], slot) ? ROOM_TAKEN
                                                                            : ROOM_NONE;
    case MOVING_NO_BLOCK:
    case MOVING_FAILED:
        break;
    }
    return ROOM_NONE;
}

/* The coldest dirty block: copied, or dropped where a copy is of no use. */
static bool clean_one(struct partition *partition)
{
    switch (moving_demote(partition)) {
    case MOVING_STARTED:
        return true;
    case MOVING_COLDER:
        room_drop(partition->cls->store, victim(partition, ORDER_DIRTY), TIER_GPU);
        return true;
    default:
        return false;
    }
}

/* Its own blocks, so that a share of what it has and of what is free can be had at once. */
static void keep_clean(struct partition *partition, uint32_t *steps)
{
    const struct store_tuning *tuning = &partition->cls->store->config.tuning;
    uint64_t ready = gpu_free(partition->cls), total = partition->used[TIER_GPU] + ready, target;

    ready += partition->orders[ORDER_CLEAN].count + partition->demoting;
    if (ready < total * tuning->clean_low / 1000)
        partition->cleaning = true;
    else if (ready >= total * tuning->clean_high / 1000)
        partition->cleaning = false;
    target = partition->cleaning ? total * tuning->clean_high / 1000 : 0;
    for (; *steps > 0 && ready < target && clean_one(partition); --*steps)
        ready++;
}

/* Blocks of whoever gives to it, for the saves that wait. */
static void make_room(struct partition *taker, uint32_t *steps)
{
    struct tier_class *cls = taker->cls;
    struct partition *dirty = partition_giver(taker, ORDER_DIRTY),
                     *clean = clean_giver(taker, dirty);
    uint64_t ready = gpu_free(cls) + cls->demoting;

    if (clean)
        ready += clean->orders[ORDER_CLEAN].count;
    for (; *steps > 0 && dirty && ready < taker->wanted && clean_one(dirty); --*steps) {
        ready++;
        dirty = partition_giver(taker, ORDER_DIRTY);
    }
}

void room_balance(struct partition *partition, uint32_t *steps)
{
    keep_clean(partition, steps);
    if (partition->wanted > 0)
        make_room(partition, steps);
}
