#include "daemon/store/usage.h"

#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/quota.h"

struct usage *usage_of(const struct store *store, uint32_t part)
{
    return store->usages[table_part(store->table, part)->namespace_];
}

/* Of a part of the same family that was registered before; NULL: there is none. */
static struct family *find_family(const struct store *store, const struct table_part *new)
{
    static const uint8_t none[sizeof(new->family)];

    if (memcmp(new->family, none, sizeof(none)) == 0)
        return NULL;
    for (uint32_t i = 1; i < TABLE_PARTS && table_part(store->table, i)->used != ROW_NEVER; i++) {
        const struct table_part *old = table_part(store->table, i);

        if (store->partitions[i] && old->tenant == new->tenant &&
            memcmp(old->family, new->family, sizeof(none)) == 0)
            return usage_of(store, i)->family;
    }
    return NULL;
}

kvc_status usage_make(struct store *store, uint32_t part, struct usage **ret)
{
    const struct table_part *record = table_part(store->table, part);
    struct usage *usage = store->usages[record->namespace_];
    struct store_quota quota;
    struct family *family;
    kvc_status status = KVC_OK;

    if (usage) {
        *ret = usage;
        return KVC_OK;
    }
    usage = mem_zalloc(sizeof(*usage));
    if (!usage)
        return KVC_E_NO_MEMORY;
    family = find_family(store, record);
    if (!family)
        status = family_make(store, record->tenant, &family);
    if (status != KVC_OK) {
        mem_free(usage);
        return status;
    }
    usage->family = family;
    store->usages[record->namespace_] = usage;
    quota_of(store, record->namespace_, &quota);
    usage_set_quota(usage, &quota);
    *ret = usage;
    return KVC_OK;
}

void usage_destroy_all(struct store *store)
{
    for (uint32_t i = 0; store->usages && i < TABLE_NAMESPACES; i++)
        mem_free(store->usages[i]);
    mem_free(store->usages);
}

uint64_t usage_lease_room(const struct usage *usage)
{
    if (usage->lease_quota == 0)
        return UINT64_MAX;
    return usage->leased < usage->lease_quota ? usage->lease_quota - usage->leased : 0;
}

void usage_set_quota(struct usage *usage, const struct store_quota *quota)
{
    struct family *family = usage->family;

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (usage->quota[tier] != quota->bytes[tier])
            family_set_quota(family, tier,
                             family->quota[tier] - usage->quota[tier] + quota->bytes[tier]);
        usage->quota[tier] = quota->bytes[tier];
    }
    usage->lease_quota = quota->leases;
}
