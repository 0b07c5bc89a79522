/*
 * Scopes: what a flush or a pin is about, in parts and namespaces of the table.
 */
#ifndef KVC_STORE_SCOPE_H
#define KVC_STORE_SCOPE_H

#include "daemon/store/operate.h"
#include "daemon/store/owner.h"

/*
 * Whether a scope names something, once, and something that its asker may touch. KVC_E_UNKNOWN for
 * what nobody has registered, or not the asker.
 */
kvc_status scope_check(const struct store *store, const struct store_scope *scope,
                       struct refusal *why);

/* Of a scope that was checked. */
bool scope_has_namespace(const struct store *store, const struct store_scope *scope,
                         uint32_t namespace_);
bool scope_has_part(const struct store *store, const struct store_scope *scope, uint32_t part);

/* Namespaces, a bit each. */
#define SCOPE_SET_WORDS (TABLE_NAMESPACES / 64)
static inline bool scope_set_has(const uint64_t *set, uint32_t namespace_)
{
    return set[namespace_ / 64] >> namespace_ % 64 & 1;
}

/* Whether anything of a tenant can be meant: what others have need not be looked at. */
bool scope_has_tenant(const struct store *store, const struct store_scope *scope, uint32_t tenant);

#endif
