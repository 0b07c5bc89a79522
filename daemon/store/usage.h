/*
 * Usage: what a namespace has of the tiers, and the quotas that are in force for it.
 */
#ifndef KVC_STORE_USAGE_H
#define KVC_STORE_USAGE_H

#include "daemon/store/family.h"

struct usage {
    struct family *family;      /* the first that one of its parts was registered with */
    uint64_t used[TIER_COUNT];  /* bytes of its slots, whatever state they are in */
    uint64_t quota[TIER_COUNT]; /* bytes; 0: none */
    uint64_t hits[TIER_COUNT];  /* as store_stats counts them */
    uint64_t blocks;            /* published, and not flushed */
    uint64_t stale;             /* flushed, and not swept yet (flush.c) */
    uint64_t leased;            /* published blocks that leases hold, each once */
    uint64_t lease_quota;       /* blocks; 0: no limit */
};

/* That of a part's namespace: found, or made. */
kvc_status usage_make(struct store *store, uint32_t part, struct usage **usage);
void usage_destroy_all(struct store *store);
struct usage *usage_of(const struct store *store, uint32_t part);

/* Blocks that leases may hold besides those that they hold. */
uint64_t usage_lease_room(const struct usage *usage);

/* Puts quotas into force. */
void usage_set_quota(struct usage *usage, const struct store_quota *quota);

#endif
