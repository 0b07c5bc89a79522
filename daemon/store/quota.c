#include "daemon/store/quota.h"

#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/scope.h"

static uint64_t *field(struct store_quota *quota, uint32_t i)
{
    return i < TIER_COUNT ? &quota->bytes[i] : &quota->leases;
}

static void fill_in(struct store_quota *quota, const struct store_quota *from)
{
    struct store_quota copy = *from;

    for (uint32_t i = 0; i <= TIER_COUNT; i++)
        if (*field(quota, i) == 0)
            *field(quota, i) = *field(&copy, i);
}

static void from_table(const struct table_namespace *ns, struct store_quota *quota)
{
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        quota->bytes[tier] = (uint64_t)ns->quota_units[tier] * KVC_SLOT_BYTES_MIN;
    quota->leases = ns->quota_leases;
}

void quota_of(const struct store *store, uint32_t namespace_, struct store_quota *quota)
{
    const struct table_namespace *ns = table_namespace(store->table, namespace_);

    from_table(ns, quota);
    for (uint32_t all = 0; all < 2; all++)
        for (uint32_t i = 0; i < store->n_quota_rules; i++) {
            const struct store_quota_rule *rule = &store->quota_rules[i];

            if (rule->all == (all == 1) &&
                (rule->all || memcmp(rule->digest, ns->digest, KVC_NAMESPACE_BYTES) == 0))
                fill_in(quota, &rule->quota);
        }
}

static void apply_all(struct store *store)
{
    struct store_quota quota;

    for (uint32_t i = 0; i < TABLE_NAMESPACES && table_namespace(store->table, i)->used; i++) {
        if (!store->usages[i])
            continue;
        quota_of(store, i, &quota);
        usage_set_quota(store->usages[i], &quota);
    }
}

kvc_status store_quota_rules(struct store *store, const struct store_quota_rule *rules, uint32_t n)
{
    struct store_quota_rule *copy = mem_array(n + 1, sizeof(*copy));

    if (!copy)
        return KVC_E_NO_MEMORY;
    if (n > 0)
        memcpy(copy, rules, n * sizeof(*copy));
    mem_free(store->quota_rules);
    store->quota_rules = copy;
    store->n_quota_rules = n;
    apply_all(store);
    store_settle(store);
    return KVC_OK;
}

static kvc_status check(const struct store *store, const struct store_quota *quota,
                        struct refusal *why)
{
    static const char *const fields[TIER_COUNT] = {"gpu_bytes", "host_bytes"};

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        if (quota->bytes[tier] > table_header(store->table)->tiers[tier].bytes)
            return store_refuse(why, KVC_E_LIMIT, fields[tier], "larger than the tier");
    if (quota->leases > UINT32_MAX)
        return store_refuse(why, KVC_E_LIMIT, "leases", "more blocks than there can be");
    return KVC_OK;
}

static void set_in_table(struct table_namespace *ns, const struct store_quota *quota, bool clear)
{
    struct store_quota set;

    from_table(ns, &set);
    if (clear)
        set = (struct store_quota){0};
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (quota->bytes[tier] != 0)
            set.bytes[tier] = quota->bytes[tier];
        /* As many units as a tier can have slots of the smallest size. */
        ns->quota_units[tier] =
            (uint32_t)((set.bytes[tier] + KVC_SLOT_BYTES_MIN - 1) / KVC_SLOT_BYTES_MIN);
    }
    ns->quota_leases = (uint32_t)(quota->leases ? quota->leases : set.leases);
}

kvc_status store_set_quota(struct store *store, const uint8_t *digest,
                           const struct store_quota *quota, bool clear, uint32_t *count,
                           struct refusal *why)
{
    struct store_scope scope = {.namespace_digest = digest};
    kvc_status status = scope_check(store, &scope, why);
    uint32_t n = 0;

    if (status == KVC_OK)
        status = check(store, quota, why);
    if (status != KVC_OK)
        return status;
    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++) {
        if (!scope_has_namespace(store, &scope, i))
            continue;
        set_in_table(table_namespace(store->table, i), quota, clear);
        n++;
    }
    apply_all(store);
    store_settle(store);
    *count = n;
    return KVC_OK;
}

void store_namespace_usage(const struct store *store, uint32_t namespace_,
                           struct store_namespace_usage *ret)
{
    const struct usage *usage = store->usages[namespace_];

    *ret = (struct store_namespace_usage){0};
    quota_of(store, namespace_, &ret->quota);
    if (!usage)
        return;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        ret->used[tier] = usage->used[tier];
        ret->hits[tier] = usage->hits[tier];
        ret->share[tier] = family_share(usage->family, tier);
        ret->family[tier] = usage->family->used[tier];
    }
    ret->leased = usage->leased;
}
