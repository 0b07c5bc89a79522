#include "daemon/store/room.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/keep.h"
#include "daemon/store/moving.h"

kvc_status room_class(struct store *store, uint32_t tenant, uint64_t slot_bytes,
                      struct tier_class **ret)
{
    struct tier_class *cls;

    list_for_each(cls, &store->classes, link) {
        if (cls->tenant == tenant && cls->slot_bytes == slot_bytes) {
            *ret = cls;
            return KVC_OK;
        }
    }
    cls = mem_zalloc(sizeof(*cls));
    if (!cls)
        return KVC_E_NO_MEMORY;
    cls->store = store;
    cls->tenant = tenant;
    cls->slot_bytes = slot_bytes;
    policy_init(&cls->orders[ORDER_DIRTY], &policy_lru, store->blocks, TIER_GPU);
    policy_init(&cls->orders[ORDER_CLEAN], &policy_lru, store->blocks, TIER_GPU);
    policy_init(&cls->orders[ORDER_HOST], &policy_lru, store->blocks, TIER_HOST);
    list_init(&cls->balance);
    list_push_back(&store->classes, &cls->link);
    *ret = cls;
    return KVC_OK;
}

static uint32_t victim(const struct tier_class *cls, enum order order)
{
    const struct policy *policy = &cls->orders[order];

    return policy->ops->victim(policy);
}

static bool take(struct tier_class *cls, enum tier_kind tier, const uint64_t *mapped,
                 uint32_t *slot)
{
    struct store *store = cls->store;

    if (!slots_take(store->slots[tier], cls->tenant, cls->slot_bytes, mapped, slot))
        return false;
    cls->used[tier]++;
    store_record(store, tier, *slot)->hit_ms = 0;
    room_changed(cls, false);
    return true;
}

void room_give(struct tier_class *cls, enum tier_kind tier, uint32_t slot)
{
    struct store *store = cls->store;

    assert(cls->used[tier] > 0);
    cls->used[tier]--;
    store_set_state(store, store_record(store, tier, slot), SLOT_FREE);
    slots_give(store->slots[tier], slot);
    room_changed(cls, true);
}

void room_changed(struct tier_class *cls, bool room)
{
    if (!list_linked(&cls->balance))
        list_push_back(&cls->store->unbalanced, &cls->balance);
    if (room && cls->store->waiting_saves)
        cls->store->room = true;
}

void room_want(struct tier_class *cls, int64_t keys)
{
    assert(keys >= 0 || cls->wanted >= (uint64_t)-keys);
    cls->wanted += (uint64_t)keys;
    if (keys > 0)
        room_changed(cls, false);
}

static void evict_one(struct store *store, uint32_t id)
{
    const struct block *block = blocks_get(store->blocks, id);

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        store->stats.tier_evictions[tier] += block->slot[tier] != SLOT_NONE;
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
 * the key, if nothing keeps it: no prefix can use that any more.
 */
static void evict_all(struct store *store, uint32_t id)
{
    const struct block *block = blocks_get(store->blocks, id);
    enum tier_kind tier = block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;
    uint32_t part = block->part;
    uint8_t key[KVC_KEY_BYTES];

    memcpy(key, blocks_record(store->blocks, id, tier)->key, sizeof(key));
    evict_one(store, id);
    for (uint32_t other = store->family_next[part]; other != part;
         other = store->family_next[other]) {
        id = depends(store, other, part) ? blocks_find(store->blocks, other, key) : BLOCK_NONE;
        if (id == BLOCK_NONE)
            continue;
        block = blocks_get(store->blocks, id);
        if (block->order[TIER_GPU] != ORDER_NONE || block->order[TIER_HOST] != ORDER_NONE)
            evict_one(store, id);
    }
}

/* The victim of an order goes from the tier, if it makes room for those who mapped `mapped`. */
static bool evict(struct tier_class *cls, enum order order, const uint64_t *mapped)
{
    struct store *store = cls->store;
    enum tier_kind tier = order == ORDER_HOST ? TIER_HOST : TIER_GPU;
    uint32_t id = victim(cls, order);
    const struct block *block;

    if (id == BLOCK_NONE)
        return false;
    block = blocks_get(store->blocks, id);
    if (!slots_is_mapped(store->slots[tier], block->slot[tier], mapped))
        return false;
    if (block->slot[TIER_GPU] == SLOT_NONE || block->slot[TIER_HOST] == SLOT_NONE) {
        evict_all(store, id);
    } else {
        store->stats.tier_evictions[tier]++;
        keep_drop_copy(store, id, tier);
    }
    return true;
}

bool room_take_host(struct tier_class *cls, uint32_t *slot)
{
    struct store *store = cls->store;
    uint32_t id;

    if (take(cls, TIER_HOST, NULL, slot))
        return true;
    id = victim(cls, ORDER_HOST);
    if (id == BLOCK_NONE)
        return false;
    if (blocks_get(store->blocks, id)->slot[TIER_GPU] != SLOT_NONE &&
        cls->orders[ORDER_HOST].count == cls->orders[ORDER_CLEAN].count)
        return false;
    evict_all(store, id);
    return take(cls, TIER_HOST, NULL, slot);
}

bool room_take_gpu(struct tier_class *cls, uint32_t *slot)
{
    return take(cls, TIER_GPU, NULL, slot) ||
           (evict(cls, ORDER_CLEAN, NULL) && take(cls, TIER_GPU, NULL, slot));
}

static uint64_t gpu_free(const struct tier_class *cls)
{
    return slots_free_count(cls->store->slots[TIER_GPU], cls->tenant, cls->slot_bytes);
}

enum room room_take(struct tier_class *cls, uint64_t *const mapped[TIER_COUNT],
                    enum tier_kind *tier, uint32_t *slot)
{
    /* Without a gpu slot to its name, now or ever, a class lives in the host tier. */
    if (cls->used[TIER_GPU] == 0 && gpu_free(cls) == 0) {
        *tier = TIER_HOST;
        if (take(cls, TIER_HOST, mapped[TIER_HOST], slot) ||
            (evict(cls, ORDER_HOST, mapped[TIER_HOST]) &&
             take(cls, TIER_HOST, mapped[TIER_HOST], slot)))
            return ROOM_TAKEN;
        return ROOM_NONE;
    }
    *tier = TIER_GPU;
    if (take(cls, TIER_GPU, mapped[TIER_GPU], slot) ||
        (evict(cls, ORDER_CLEAN, mapped[TIER_GPU]) && take(cls, TIER_GPU, mapped[TIER_GPU], slot)))
        return ROOM_TAKEN;
    if (cls->orders[ORDER_CLEAN].count > 0)
        return ROOM_NONE;
    if (cls->demoting > 0)
        return ROOM_LATER;
    switch (moving_demote(cls)) {
    case MOVING_STARTED:
    case MOVING_BUSY:
        return ROOM_LATER;
    case MOVING_NO_HOST:
        if (evict(cls, ORDER_DIRTY, mapped[TIER_GPU]) &&
            take(cls, TIER_GPU, mapped[TIER_GPU], slot))
            return ROOM_TAKEN;
        return ROOM_NONE;
    case MOVING_NO_BLOCK:
    case MOVING_FAILED:
        break;
    }
    return ROOM_NONE;
}

void room_balance(struct tier_class *cls)
{
    const struct store_tuning *tuning = &cls->store->config.tuning;
    uint64_t ready = gpu_free(cls), total = cls->used[TIER_GPU] + ready, target;

    ready += cls->orders[ORDER_CLEAN].count + cls->demoting;
    if (ready < total * tuning->clean_low / 1000)
        cls->cleaning = true;
    else if (ready >= total * tuning->clean_high / 1000)
        cls->cleaning = false;
    target = cls->cleaning ? total * tuning->clean_high / 1000 : 0;
    if (target < cls->wanted)
        target = cls->wanted;
    while (ready < target && moving_demote(cls) == MOVING_STARTED)
        ready++;
}
