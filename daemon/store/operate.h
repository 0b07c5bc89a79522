/*
 * What operators ask of the store, and owners for parts of theirs: flushes, pins and quotas.
 */
#ifndef KVC_STORE_OPERATE_H
#define KVC_STORE_OPERATE_H

#include "daemon/store/store.h"

/* What a flush or a pin is about: exactly one of part, namespace_digest and all. */
struct store_scope {
    const struct owner *owner; /* who asks, for parts it has registered; NULL: an operator */
    uint32_t part;
    const uint8_t *namespace_digest; /* an operator's: of every tenant */
    bool all;
    const uint8_t *keys; /* of the part, or of each part of the namespace */
    uint32_t n_keys;
};
/*
 * Without keys: drops every published block of the namespaces (that of the part), whose epochs grow
 * by 1; their leases and saves end. With keys: drops their blocks, ends the leases that have lost
 * one, and the saves that were filling one of them. *blocks: how many were dropped.
 */
kvc_status store_flush(struct store *store, const struct store_scope *scope, uint64_t *blocks,
                       struct refusal *why);
/*
 * Keeps those of the keys' blocks that are published from being evicted, for so long from now (0:
 * the default), anew if they are pinned already. *count: how many. KVC_E_NO_ROOM: more than half of
 * both tiers would be pinned. A pin ends by its time, by unpinning, or by a flush.
 */
kvc_status store_pin(struct store *store, const struct store_scope *scope, uint32_t seconds,
                     uint32_t *count, struct refusal *why);
/* Without keys: all that is pinned of the scope. */
kvc_status store_unpin(struct store *store, const struct store_scope *scope, uint32_t *count,
                       struct refusal *why);

/* Quotas: family.h says what they do. */

/* In place of the rules before; for namespaces that are there and those to come. */
kvc_status store_quota_rules(struct store *store, const struct store_quota_rule *rules, uint32_t n);
/*
 * Sets a quota at run time, for that namespace of every tenant, with the daemon's rules behind it:
 * what is 0 stays, or with clear, is as the rules say. KVC_E_UNKNOWN, field "namespace_digest";
 * KVC_E_LIMIT for more than a tier has, field "gpu_bytes" or "host_bytes". *count: namespaces.
 */
kvc_status store_set_quota(struct store *store, const uint8_t *digest,
                           const struct store_quota *quota, bool clear, uint32_t *count,
                           struct refusal *why);

#endif
