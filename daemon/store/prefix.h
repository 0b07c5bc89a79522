/*
 * Prefixes: the longest one for which every part's rule holds, as far as quotas of leases let it.
 */
#ifndef KVC_STORE_PREFIX_H
#define KVC_STORE_PREFIX_H

#include "daemon/store/lease.h"

/* What a lookup found, counted from the lookup's offset. */
struct prefix {
    uint32_t n;     /* blocks in each list: what every full part has */
    bool more;      /* every full part has all keys, and more of them will come */
    uint32_t count; /* of the whole prefix, offset included: for which every part's rule holds */
    bool limited;   /* a quota of leases has cut it */
    uint32_t needed[KVC_PARTS_MAX];
    uint32_t *blocks[KVC_PARTS_MAX]; /* BLOCK_NONE: not there, or not needed */
};

/* Of a lookup that was checked, which goes on behind the lease, or not (NULL). */
void prefix_find(const struct store *store, const struct store_lookup *req,
                 const struct lease *lease, struct prefix *prefix);

#endif
