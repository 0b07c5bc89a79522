#include "daemon/store/rows.h"

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/claim.h"
#include "daemon/store/family.h"
#include "daemon/store/owner.h"
#include "daemon/store/partition.h"

/* Parts that a session has registered, though it may have unregistered them since. */
static void mark_parts(const struct store *store, uint64_t marks[TABLE_PARTS / 64])
{
    const struct list *lists[] = {&store->owners, &store->freed};
    const struct owner *owner;

    for (int i = 0; i < 2; i++)
        list_for_each(owner, lists[i], link)
            for (uint32_t w = 0; w < TABLE_PARTS / 64; w++)
                marks[w] |= owner->had_parts[w];
}

static bool has_anything(const struct store *store, uint32_t ns)
{
    const struct table_namespace *record = table_namespace(store->table, ns);
    const struct usage *usage = store->usages[ns];

    if (record->quota_leases || record->quota_units[TIER_GPU] || record->quota_units[TIER_HOST])
        return true;
    return usage && (usage->used[TIER_GPU] || usage->used[TIER_HOST] || usage->leased);
}

static bool is_idle(const struct store *store, uint32_t ns)
{
    const struct usage *usage = store->usages[ns];

    return !usage || family_is_idle(usage->family);
}

static void forget_part(struct store *store, uint32_t part)
{
    uint32_t before = part;

    if (store->partitions[part]) {
        while (store->family_next[before] != part)
            before = store->family_next[before];
        store->family_next[before] = store->family_next[part];
    }
    store->partitions[part] = NULL;
    store_note(store, STORE_EVENT_FORGOTTEN, part, TIER_GPU, NULL, NULL);
    table_remove_part(store->table, part);
}

static bool is_partition_used(const struct store *store, const struct partition *partition)
{
    for (uint32_t i = 1; i < TABLE_PARTS; i++)
        if (store->partitions[i] == partition)
            return true;
    return false;
}

static bool is_family_used(const struct store *store, const struct family *family)
{
    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++)
        if (store->usages[i] && store->usages[i]->family == family)
            return true;
    return false;
}

static void forget_family(struct store *store, struct family *family)
{
    struct partition *partition, *after;

    list_for_each_safe(partition, after, &family->partitions, of_family)
        if (!is_partition_used(store, partition))
            partition_remove(partition);
    if (!is_family_used(store, family))
        family_remove(family);
}

static void forget_namespace(struct store *store, uint32_t ns)
{
    const struct store_quota none = {0};
    struct usage *usage = store->usages[ns];

    for (uint32_t i = 1; i < TABLE_PARTS; i++)
        if (table_part(store->table, i)->used == ROW_USED &&
            table_part(store->table, i)->namespace_ == ns)
            forget_part(store, i);
    if (usage) {
        struct family *family = usage->family;

        usage_set_quota(usage, &none);
        for (enum tier_kind tier = 0; tier < TIER_COUNT && ns >= STORE_NAMED_NAMESPACES; tier++)
            store->stats.forgotten_hits[tier] += usage->hits[tier];
        store->usages[ns] = NULL;
        mem_free(usage);
        forget_family(store, family);
    }
    table_remove_namespace(store->table, ns);
}

static void collect_layouts(struct store *store)
{
    uint64_t used[TABLE_LAYOUTS / 64] = {0};

    for (uint32_t i = 1; i < TABLE_PARTS; i++) {
        const struct table_part *part = table_part(store->table, i);

        if (part->used == ROW_NEVER)
            break;
        if (part->used == ROW_USED)
            used[part->layout / 64] |= 1ull << part->layout % 64;
    }
    for (uint32_t i = 0; i < TABLE_LAYOUTS; i++) {
        if (table_layout(store->table, i)->used == ROW_NEVER)
            break;
        if (table_layout(store->table, i)->used == ROW_USED && !(used[i / 64] >> i % 64 & 1))
            table_remove_layout(store->table, i);
    }
}

static uint32_t collect(struct store *store, uint32_t tenant, uint32_t most, bool idle)
{
    uint64_t marks[TABLE_PARTS / 64] = {0}, kept[TABLE_NAMESPACES / 64] = {0};
    uint32_t n = 0;

    mark_parts(store, marks);
    for (uint32_t i = 1; i < TABLE_PARTS; i++) {
        uint32_t ns = table_part(store->table, i)->namespace_;

        if (marks[i / 64] >> i % 64 & 1)
            kept[ns / 64] |= 1ull << ns % 64;
    }
    for (uint32_t i = 0; i < TABLE_NAMESPACES && n < most; i++) {
        const struct table_namespace *ns = table_namespace(store->table, i);

        if (ns->used == ROW_NEVER)
            break;
        if (ns->used != ROW_USED || (tenant != TABLE_NONE && ns->tenant != tenant) ||
            (kept[i / 64] >> i % 64 & 1) || has_anything(store, i) || (idle && !is_idle(store, i)))
            continue;
        forget_namespace(store, i);
        n++;
    }
    collect_layouts(store);
    return n;
}

uint32_t rows_collect(struct store *store, uint32_t tenant, uint32_t most)
{
    const uint32_t n = collect(store, tenant, most, false);

    if (n > 0)
        log_info("store", "namespaces that nobody needs are forgotten count=%u", n);
    return n;
}

void rows_collect_idle(struct store *store)
{
    collect(store, TABLE_NONE, ROWS_IDLE, true);
}

static bool has_namespace(const struct store *store, uint32_t tenant)
{
    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++) {
        const struct table_namespace *ns = table_namespace(store->table, i);

        if (ns->used == ROW_NEVER)
            break;
        if (ns->used == ROW_USED && ns->tenant == tenant)
            return true;
    }
    return false;
}

void rows_collect_tenants(struct store *store)
{
    rows_collect(store, TABLE_NONE, UINT32_MAX);
    for (uint32_t t = 0; t < TABLE_TENANTS; t++) {
        uint32_t owned = 0;

        if (table_tenant(store->table, t)->used != ROW_USED || store->sessions_of[t] > 0 ||
            has_namespace(store, t))
            continue;
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
            owned += slots_owned(store->slots[tier], t);
            claim_release(store, t, tier);
        }
        if (owned == 0)
            table_remove_tenant(store->table, t);
    }
}
