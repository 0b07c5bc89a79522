/* What partitions and usages say, recounted from blocks and slots. For tests. */
#include "daemon/store/partition.h"

struct recount {
    uint64_t used[TIER_COUNT], in_order;
    uint64_t quotas[TABLE_TENANTS][TIER_COUNT];
    uint32_t others[TABLE_TENANTS][TIER_COUNT];
};

/* Exactly the blocks of the order, coldest first. */
static const char *check_order(const struct partition *partition, enum order order)
{
    const struct policy *policy = &partition->orders[order];
    const struct store *store = partition->cls->store;
    uint64_t last = 0, n = 0;

    for (uint32_t id = policy->head; id != BLOCK_NONE && n <= policy->count; n++) {
        const struct block *block = blocks_get(store->blocks, id);
        uint64_t used = blocks_record(store->blocks, id, policy->tier)->last_use;

        if (block->order[policy->tier] != order || store_partition(store, block) != partition)
            return "an eviction order holds a block of another";
        if (used < last)
            return "an eviction order is not by last use";
        last = used;
        id = block->link[policy->tier].next;
    }
    return n == policy->count ? NULL : "an eviction order is miscounted";
}

/* In the heap of its kind while its order has a block, in the place of its rank. */
static const char *check_gives(const struct partition *partition, enum order order)
{
    enum tier_kind tier = order_tier(order);
    const struct expiry_item *item = &partition->gives[order];
    bool has = partition->orders[order].count > 0;

    for (size_t quota = 0; quota < 2; quota++) {
        const struct expiry *heap = &partition->cls->givers[quota][order];
        bool in = item->place < heap->count && heap->heap[item->place] == item;

        if (in != (has && (partition->family->quota[tier] != 0) == (quota == 1)))
            return "a partition that has nothing gives, or one that has does not";
        if (in && item->at != UINT64_MAX - family_rank(partition->family, tier))
            return "a partition has another's rank";
        if (in && item->place > 0 && heap->heap[(item->place - 1) / 2]->at > item->at)
            return "a heap of partitions is out of order";
    }
    return NULL;
}

static const char *check_partition(const struct partition *partition, struct recount *recount)
{
    const char *why = NULL;

    for (enum order order = ORDER_DIRTY; !why && order < ORDER_COUNT; order++) {
        why = check_order(partition, order);
        if (!why)
            why = check_gives(partition, order);
        recount->in_order += partition->orders[order].count;
    }
    return why;
}

static const char *check_class(const struct tier_class *cls, struct recount *recount)
{
    uint64_t used[TIER_COUNT] = {0}, wanted = 0, demoting = 0, n = 0;
    const struct partition *partition;
    const char *why;

    list_for_each(partition, &cls->partitions, link) {
        why = check_partition(partition, recount);
        if (why)
            return why;
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            used[tier] += partition->used[tier];
        wanted += partition->wanted;
        demoting += partition->demoting;
        n++;
    }
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (used[tier] != cls->used[tier])
            return "the slots of a class are not those of its partitions";
        recount->used[tier] += used[tier];
    }
    return wanted == cls->wanted && demoting == cls->demoting && n == cls->n_partitions
               ? NULL
               : "what a class waits for is not what its partitions do";
}

static const char *check_family(const struct family *family, struct recount *recount)
{
    uint64_t bytes[TIER_COUNT] = {0};
    const struct partition *partition;

    list_for_each(partition, &family->partitions, of_family)
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            bytes[tier] += partition->used[tier] * partition->cls->slot_bytes;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (bytes[tier] != family->used[tier])
            return "a family's bytes are not those of its slots";
        recount->quotas[family->tenant][tier] += family->quota[tier];
        recount->others[family->tenant][tier] +=
            family->quota[tier] == 0 && bytes[tier] > 0 && !family->idle;
    }
    return family->idle != list_linked(&family->used_link) ? NULL
                                                           : "an idle family is in use, or lost";
}

static const char *check_families(const struct store *store, struct recount *recount)
{
    const struct family *family;

    list_for_each(family, &store->families, link) {
        const char *why = check_family(family, recount);

        if (why)
            return why;
    }
    for (uint32_t t = 0; t < TABLE_TENANTS; t++)
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            if (recount->quotas[t][tier] != store->tenants[t].quotas[tier] ||
                recount->others[t][tier] != store->tenants[t].others[tier])
                return "what a tenant's families share out is miscounted";
    return NULL;
}

/* What namespaces use adds up to what their families do, in bytes and in quotas. */
static const char *check_usages(const struct store *store)
{
    const struct family *family;

    list_for_each(family, &store->families, link) {
        uint64_t used[TIER_COUNT] = {0}, quota[TIER_COUNT] = {0};

        for (uint32_t i = 0; i < TABLE_NAMESPACES && table_namespace(store->table, i)->used; i++) {
            const struct usage *usage = store->usages[i];

            for (int tier = 0; usage && usage->family == family && tier < TIER_COUNT; tier++) {
                used[tier] += usage->used[tier];
                quota[tier] += usage->quota[tier];
            }
        }
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            if (used[tier] != family->used[tier] || quota[tier] != family->quota[tier])
                return "what namespaces use or may use is not what their family does";
    }
    return NULL;
}

static const char *check_leased(const struct store *store)
{
    uint64_t leased = 0, counted = 0;

    for (uint32_t id = 0; id < blocks_limit(store->blocks); id++) {
        const struct block *block = blocks_get(store->blocks, id);

        leased += block->state == BLOCK_READY && block->leases > 0;
    }
    for (uint32_t i = 0; i < TABLE_NAMESPACES && table_namespace(store->table, i)->used; i++)
        counted += store->usages[i] ? store->usages[i]->leased : 0;
    return leased == counted ? NULL : "the leased blocks of namespaces are miscounted";
}

/* Published blocks are those of namespaces, and flushed ones lie where they will be swept. */
static const char *check_flushed(const struct store *store)
{
    uint64_t blocks = 0, stale = 0, counted = 0, counted_stale = 0;

    for (uint32_t id = 0; id < blocks_limit(store->blocks); id++) {
        const bool ready = blocks_get(store->blocks, id)->state == BLOCK_READY;
        const bool is_stale = ready && blocks_is_stale(store->blocks, id);

        if (is_stale && id < store->sweep)
            return "a flushed block is not going to be swept";
        blocks += ready && !is_stale;
        stale += is_stale;
    }
    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++) {
        counted += store->usages[i] ? store->usages[i]->blocks : 0;
        counted_stale += store->usages[i] ? store->usages[i]->stale : 0;
    }
    if (stale != counted_stale || stale != store->stale)
        return "flushed blocks are miscounted";
    return blocks == counted ? NULL : "the blocks of namespaces are miscounted";
}

const char *partition_check_all(const struct store *store)
{
    struct recount recount = {0};
    const struct tier_class *cls;
    uint64_t orders = 0;
    const char *why = NULL;

    list_for_each(cls, &store->classes, link) {
        why = check_class(cls, &recount);
        if (why)
            return why;
    }
    for (uint32_t id = 0; id < blocks_limit(store->blocks); id++)
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            orders += blocks_get(store->blocks, id)->state != BLOCK_UNUSED &&
                      blocks_get(store->blocks, id)->order[tier] != ORDER_NONE;
    if (orders != recount.in_order)
        return "a block says that it is in an eviction order and is not";
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        struct slots_count count;

        slots_count(store->slots[tier], &count);
        if (recount.used[tier] != count.used_slots)
            return "the slots of the classes are miscounted";
    }
    why = check_families(store, &recount);
    if (!why)
        why = check_usages(store);
    why = why ? why : check_leased(store);
    return why ? why : check_flushed(store);
}
