/*
 * Eviction order behind an interface. A policy holds evictable blocks of one tier, tenant and slot
 * size, and says which goes first. Leased, loading, filling and moving blocks are not in it, so
 * finding a victim never scans. LRU today.
 */
#ifndef KVC_STORE_POLICY_H
#define KVC_STORE_POLICY_H

#include <stdint.h>

#include "daemon/store/block.h"

struct policy {
    const struct policy_ops *ops;
    struct blocks *blocks;
    enum tier_kind tier; /* which link of a block it uses */
    uint64_t count;
    uint32_t head, tail; /* LRU: coldest, hottest */
    uint32_t finger;     /* LRU: where the last block was placed; BLOCK_NONE only when empty */
    uint64_t steps;      /* of looking for places, so that a test can bound them */
};

struct policy_ops {
    const char *name;
    void (*add)(struct policy *policy, uint32_t block); /* as just used */
    /*
     * Puts a block in at the place that last_use in its record of this tier gives it, not as just
     * used: it was taken out for a copy, or comes from another order.
     */
    void (*place)(struct policy *policy, uint32_t block);
    /* The same, looked for from a block that is inside. */
    void (*place_near)(struct policy *policy, uint32_t block, uint32_t near);
    /* One that it is beside, to be put back near; BLOCK_NONE: it is the only one. */
    uint32_t (*neighbour)(const struct policy *policy, uint32_t block);
    void (*touch)(struct policy *policy, uint32_t block); /* used again */
    void (*remove)(struct policy *policy, uint32_t block);
    uint32_t (*victim)(const struct policy *policy); /* stays inside; BLOCK_NONE if empty */
};

void policy_init(struct policy *policy, const struct policy_ops *ops, struct blocks *blocks,
                 enum tier_kind tier);
extern const struct policy_ops policy_lru;

#endif
