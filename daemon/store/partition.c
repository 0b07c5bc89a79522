#include "daemon/store/partition.h"

#include <assert.h>

#include "daemon/base/mem.h"
#include "daemon/store/claim.h"
#include "daemon/store/room.h"

static const enum order orders[] = {ORDER_DIRTY, ORDER_CLEAN, ORDER_HOST};

#define N_ORDERS (sizeof(orders) / sizeof(orders[0]))

static kvc_status class_make(struct store *store, uint32_t tenant, uint64_t slot_bytes,
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
    cls->own_claims = mem_array(TIER_COUNT, sizeof(struct claim));
    if (!cls->own_claims) {
        mem_free(cls);
        return KVC_E_NO_MEMORY;
    }
    cls->store = store;
    cls->tenant = tenant;
    cls->slot_bytes = slot_bytes;
    list_init(&cls->partitions);
    list_init(&cls->wants);
    list_push_back(&store->classes, &cls->link);
    *ret = cls;
    return KVC_OK;
}

/* So that no partition of a class ever lacks a place in a heap. */
static kvc_status reserve_givers(struct tier_class *cls)
{
    kvc_status status = KVC_OK;

    for (size_t quota = 0; quota < 2; quota++)
        for (size_t i = 0; i < N_ORDERS && status == KVC_OK; i++)
            status = expiry_reserve_for(&cls->givers[quota][orders[i]], cls->n_partitions + 1);
    return status;
}

static void init_orders(struct partition *partition)
{
    struct blocks *blocks = partition->cls->store->blocks;

    for (size_t i = 0; i < N_ORDERS; i++)
        policy_init(&partition->orders[orders[i]], &policy_lru, blocks, order_tier(orders[i]));
}

kvc_status partition_make(struct store *store, uint32_t part, struct partition **ret)
{
    const struct table_part *record = table_part(store->table, part);
    uint64_t slot_bytes = table_layout(store->table, record->layout)->slot_bytes;
    struct partition *partition;
    struct tier_class *cls;
    struct usage *usage;
    kvc_status status = usage_make(store, part, &usage);

    if (status == KVC_OK)
        status = class_make(store, record->tenant, slot_bytes, &cls);
    if (status != KVC_OK)
        return status;
    list_for_each(partition, &usage->family->partitions, of_family) {
        if (partition->cls == cls) {
            *ret = partition;
            return KVC_OK;
        }
    }
    status = reserve_givers(cls);
    partition = status == KVC_OK ? mem_zalloc(sizeof(*partition)) : NULL;
    if (!partition)
        return KVC_E_NO_MEMORY;
    partition->cls = cls;
    partition->family = usage->family;
    init_orders(partition);
    list_init(&partition->balance);
    list_push_back(&cls->partitions, &partition->link);
    cls->n_partitions++;
    list_push_back(&usage->family->partitions, &partition->of_family);
    *ret = partition;
    return KVC_OK;
}

void partition_remove(struct partition *partition)
{
    for (size_t i = 0; i < N_ORDERS; i++)
        assert(partition->orders[orders[i]].count == 0);
    assert(partition->used[TIER_GPU] == 0 && partition->used[TIER_HOST] == 0);
    assert(partition->wanted == 0 && partition->demoting == 0);
    list_remove(&partition->link);
    list_remove(&partition->of_family);
    list_remove(&partition->balance);
    partition->cls->n_partitions--;
    mem_free(partition);
}

static void class_destroy(struct tier_class *cls)
{
    struct partition *partition;

    while ((partition = list_first(&cls->partitions, struct partition, link))) {
        list_remove(&partition->link);
        mem_free(partition);
    }
    for (size_t quota = 0; quota < 2; quota++)
        for (size_t i = 0; i < N_ORDERS; i++)
            expiry_free(&cls->givers[quota][orders[i]]);
    list_remove(&cls->link);
    mem_free(cls->own_claims);
    mem_free(cls);
}

void partition_destroy_all(struct store *store)
{
    struct tier_class *cls;

    while ((cls = list_first(&store->classes, struct tier_class, link)))
        class_destroy(cls);
}

/* Heaps have their least on top. */
static uint64_t place(const struct partition *partition, enum order order)
{
    return UINT64_MAX - family_rank(partition->family, order_tier(order));
}

static struct expiry *heap(const struct partition *partition, enum order order, bool quota)
{
    return &partition->cls->givers[quota][order];
}

/* In a heap: its place there names it. */
static bool is_giver(const struct partition *partition, enum order order, bool quota)
{
    const struct expiry *in = heap(partition, order, quota);
    const struct expiry_item *item = &partition->gives[order];

    return item->place < in->count && in->heap[item->place] == item;
}

void partition_gives(struct partition *partition, enum order order)
{
    bool quota = partition->family->quota[order_tier(order)] != 0;
    bool is = is_giver(partition, order, quota), has = partition->orders[order].count > 0;

    if (has && !is)
        expiry_add(heap(partition, order, quota), &partition->gives[order],
                   place(partition, order));
    else if (!has && is)
        expiry_remove(heap(partition, order, quota), &partition->gives[order]);
}

void partition_ranks(struct partition *partition, enum tier_kind tier, bool had_quota,
                     bool has_quota)
{
    for (size_t i = 0; i < N_ORDERS; i++) {
        enum order order = orders[i];
        struct expiry_item *item = &partition->gives[order];

        if (order_tier(order) != tier || !is_giver(partition, order, had_quota))
            continue;
        if (had_quota == has_quota) {
            expiry_move(heap(partition, order, has_quota), item, place(partition, order));
            continue;
        }
        expiry_remove(heap(partition, order, had_quota), item);
        expiry_add(heap(partition, order, has_quota), item, place(partition, order));
    }
}

void partition_take(struct partition *partition, enum tier_kind tier)
{
    partition->used[tier]++;
    partition->cls->used[tier]++;
    family_add(partition->family, tier, partition->cls->slot_bytes);
}

void partition_give(struct partition *partition, enum tier_kind tier)
{
    assert(partition->used[tier] > 0 && partition->cls->used[tier] > 0);
    partition->used[tier]--;
    partition->cls->used[tier]--;
    family_subtract(partition->family, tier, partition->cls->slot_bytes);
}

static struct partition *top(const struct tier_class *cls, enum order order, bool quota)
{
    struct expiry_item *item = expiry_first(&cls->givers[quota][order]);

    return item ? container_of(item - order, struct partition, gives[0]) : NULL;
}

/* Of both kinds, whose family is over its share by most. */
static struct partition *most_over(const struct tier_class *cls, enum order order)
{
    enum tier_kind tier = order_tier(order);
    struct partition *a = top(cls, order, false), *b = top(cls, order, true);

    if (!a || !b)
        return a ? a : b;
    return overuse_is_more(family_over(b->family, tier, 0), family_over(a->family, tier, 0)) ? b
                                                                                             : a;
}

struct partition *partition_giver(struct partition *taker, enum order order)
{
    enum tier_kind tier = order_tier(order);
    struct partition *most;

    /* Who competes with nobody, which is the rule, need not be compared with anybody. */
    if (taker->cls->n_partitions == 1)
        return taker->orders[order].count > 0 ? taker : NULL;
    most = most_over(taker->cls, order);
    if (!most || most == taker)
        return most;
    if (overuse_is_more(family_over(most->family, tier, 0),
                        family_over(taker->family, tier, taker->cls->slot_bytes)))
        return most;
    return taker->orders[order].count > 0 ? taker : NULL;
}
