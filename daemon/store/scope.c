#include "daemon/store/scope.h"

#include <string.h>

static bool is_part(const struct store *store, uint32_t part)
{
    return part != 0 && part < TABLE_PARTS && table_part(store->table, part)->used == ROW_USED;
}

static bool is_digest(const struct store *store, const struct store_scope *scope,
                      uint32_t namespace_)
{
    const struct table_namespace *ns = table_namespace(store->table, namespace_);

    return (!scope->owner || ns->tenant == scope->owner->identity.tenant) &&
           memcmp(ns->digest, scope->namespace_digest, KVC_NAMESPACE_BYTES) == 0;
}

bool scope_has_namespace(const struct store *store, const struct store_scope *scope,
                         uint32_t namespace_)
{
    if (table_namespace(store->table, namespace_)->used != ROW_USED)
        return false;
    if (scope->part != 0)
        return table_part(store->table, scope->part)->namespace_ == namespace_;
    return scope->all || is_digest(store, scope, namespace_);
}

bool scope_has_part(const struct store *store, const struct store_scope *scope, uint32_t part)
{
    const struct table_part *record = table_part(store->table, part);

    if (record->used != ROW_USED)
        return false;
    if (scope->part != 0)
        return part == scope->part;
    return scope->all || is_digest(store, scope, record->namespace_);
}

bool scope_has_tenant(const struct store *store, const struct store_scope *scope, uint32_t tenant)
{
    if (scope->owner)
        return scope->owner->identity.tenant == tenant;
    return scope->part == 0 || table_part(store->table, scope->part)->tenant == tenant;
}

static bool is_registered(const struct store *store, const struct store_scope *scope)
{
    for (uint32_t ns = 0; ns < TABLE_NAMESPACES && !scope->owner; ns++)
        if (table_namespace(store->table, ns)->used == ROW_USED && is_digest(store, scope, ns))
            return true;
    for (uint32_t i = 0; scope->owner && i < scope->owner->n_parts; i++)
        if (is_digest(store, scope, table_part(store->table, scope->owner->parts[i])->namespace_))
            return true;
    return false;
}

/*
 * Every key is looked for in every part. A session has no more parts than this allows with all keys
 * of a request; a namespace may have those of many.
 */
static bool is_too_much(const struct store *store, const struct store_scope *scope)
{
    uint64_t looks = 0;

    if (!scope->namespace_digest || scope->n_keys == 0)
        return false;
    for (uint32_t part = 1; part < TABLE_PARTS && table_part(store->table, part)->used != ROW_NEVER;
         part++)
        looks += scope_has_part(store, scope, part) ? scope->n_keys : 0;
    return looks > (uint64_t)KVC_KEYS_MAX * KVC_PARTS_MAX;
}

kvc_status scope_check(const struct store *store, const struct store_scope *scope,
                       struct refusal *why)
{
    if ((scope->part != 0) + (scope->namespace_digest != NULL) + scope->all != 1)
        return store_refuse(why, KVC_E_INVALID, scope->all ? "all" : "part",
                            "name one of part, namespace and everything");
    if (scope->all && scope->owner)
        return store_refuse(why, KVC_E_DENIED, "all", "only operators");
    if (scope->all && scope->n_keys > 0)
        return store_refuse(why, KVC_E_INVALID, "keys", "keys are those of a part or a namespace");
    if (scope->n_keys > KVC_KEYS_MAX)
        return store_refuse(why, KVC_E_LIMIT, "keys", "too many keys");
    if (scope->part != 0 && (!is_part(store, scope->part) ||
                             (scope->owner && !owner_has_part(scope->owner, scope->part))))
        return store_refuse(why, KVC_E_UNKNOWN, "part", "not registered");
    if (scope->namespace_digest && !is_registered(store, scope))
        return store_refuse(why, KVC_E_UNKNOWN, "namespace_digest", "not registered");
    if (is_too_much(store, scope))
        return store_refuse(why, KVC_E_LIMIT, "keys", "fewer at once, of so many parts");
    return KVC_OK;
}
