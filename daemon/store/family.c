#include "daemon/store/family.h"

#include <assert.h>

#include "daemon/base/mem.h"
#include "daemon/store/partition.h"

/* Of a rank: 20 bits tell families apart whose use differs by a millionth of their quota. */
#define RANK_SHIFT 20
/* No use is as large: idle families come before all that are not. */
#define IDLE_SHIFT 62

kvc_status family_make(struct store *store, uint32_t tenant, struct family **ret)
{
    struct family *family = mem_zalloc(sizeof(*family));

    if (!family)
        return KVC_E_NO_MEMORY;
    family->store = store;
    family->tenant = tenant;
    family->last_use = store->last_use;
    list_init(&family->partitions);
    list_push_back(&store->families, &family->link);
    list_push_back(&store->used_families, &family->used_link);
    *ret = family;
    return KVC_OK;
}

static void free_family(struct family *family)
{
    list_remove(&family->link);
    if (!family->idle)
        list_remove(&family->used_link);
    mem_free(family);
}

void family_destroy_all(struct store *store)
{
    struct family *family;

    while ((family = list_first(&store->families, struct family, link)))
        free_family(family);
}

void family_remove(struct family *family)
{
    assert(list_empty(&family->partitions));
    assert(family->used[TIER_GPU] == 0 && family->used[TIER_HOST] == 0);
    assert(family->quota[TIER_GPU] == 0 && family->quota[TIER_HOST] == 0);
    free_family(family);
}

static void changed(struct family *family, enum tier_kind tier)
{
    struct partition *partition;
    bool quota = family->quota[tier] != 0;

    list_for_each(partition, &family->partitions, of_family)
        partition_ranks(partition, tier, quota, quota);
}

/* Whether it is one of those that get equal shares. */
static uint32_t is_other(const struct family *family, enum tier_kind tier)
{
    return family->quota[tier] == 0 && family->used[tier] > 0 && !family->idle;
}

static uint32_t *others(struct family *family, enum tier_kind tier)
{
    return &family->store->tenants[family->tenant].others[tier];
}

void family_add(struct family *family, enum tier_kind tier, uint64_t bytes)
{
    *others(family, tier) -= is_other(family, tier);
    family->used[tier] += bytes;
    *others(family, tier) += is_other(family, tier);
    changed(family, tier);
}

void family_subtract(struct family *family, enum tier_kind tier, uint64_t bytes)
{
    assert(family->used[tier] >= bytes);
    *others(family, tier) -= is_other(family, tier);
    family->used[tier] -= bytes;
    *others(family, tier) += is_other(family, tier);
    changed(family, tier);
}

static void set_idle(struct family *family, bool idle)
{
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        *others(family, tier) -= is_other(family, tier);
    family->idle = idle;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        *others(family, tier) += is_other(family, tier);
        changed(family, tier);
    }
}

void family_touch(struct family *family)
{
    struct store *store = family->store;

    /* Every block that is used comes here; to the second is exact enough. */
    if (!family->idle && store->last_use - family->last_use < CLOCK_S_US)
        return;
    family->last_use = store->last_use;
    if (!family->idle) {
        list_move_back(&store->used_families, &family->used_link);
        return;
    }
    list_push_back(&store->used_families, &family->used_link);
    set_idle(family, false);
}

bool family_is_idle(const struct family *family)
{
    return family->idle ||
           family->store->last_use - family->last_use >= KVC_NAMESPACE_IDLE_MS * CLOCK_MS_US;
}

void family_find_idle(struct store *store)
{
    struct family *family;

    while ((family = list_first(&store->used_families, struct family, used_link)) &&
           family_is_idle(family)) {
        list_remove(&family->used_link);
        set_idle(family, true);
    }
}

void family_set_quota(struct family *family, enum tier_kind tier, uint64_t bytes)
{
    uint64_t old = family->quota[tier];
    struct partition *partition;

    *others(family, tier) -= is_other(family, tier);
    family->quota[tier] = bytes;
    *others(family, tier) += is_other(family, tier);
    family->store->tenants[family->tenant].quotas[tier] += bytes - old;
    list_for_each(partition, &family->partitions, of_family)
        partition_ranks(partition, tier, old != 0, bytes != 0);
}

/* What quotas leave of a tier, whatever they add up to. */
static uint64_t rest(const struct family *family, enum tier_kind tier)
{
    uint64_t all = slots_owned_bytes(family->store->slots[tier], family->tenant);
    uint64_t quotas = family->store->tenants[family->tenant].quotas[tier];

    return quotas < all ? all - quotas : 0;
}

uint64_t family_share(const struct family *family, enum tier_kind tier)
{
    uint32_t others = family->store->tenants[family->tenant].others[tier];

    if (family->quota[tier] != 0)
        return family->quota[tier];
    if (family->idle)
        return 0;
    return rest(family, tier) / (others + (family->used[tier] == 0));
}

struct overuse family_over(const struct family *family, enum tier_kind tier, uint64_t more)
{
    return (struct overuse){family->used[tier] + more, family_share(family, tier)};
}

bool overuse_is_more(struct overuse a, struct overuse b)
{
    unsigned __int128 left = (unsigned __int128)a.used * b.share;
    unsigned __int128 right = (unsigned __int128)b.used * a.share;

    if (left == right)
        return a.share == 0 && b.share == 0 && a.used > b.used;
    return left > right;
}

bool overuse_is_over(struct overuse overuse)
{
    return overuse.used > overuse.share;
}

uint64_t family_rank(const struct family *family, enum tier_kind tier)
{
    unsigned __int128 used = family->used[tier];
    uint64_t quota = family->quota[tier];

    if (quota == 0)
        return family->used[tier] | (uint64_t)family->idle << IDLE_SHIFT;
    return (uint64_t)(((used << RANK_SHIFT) + quota - 1) / quota);
}
