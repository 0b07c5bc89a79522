/*
 * Partitions: the blocks of one family and slot size, with eviction orders of their own. The
 * partitions of a class compete for its slots; those that have something to give in an order lie
 * in a heap by how far their families are over their shares, so that a victim costs the logarithm
 * of the number of families and nothing of the number of blocks.
 */
#ifndef KVC_STORE_PARTITION_H
#define KVC_STORE_PARTITION_H

#include "daemon/store/state.h"
#include "daemon/store/usage.h"

struct partition {
    struct tier_class *cls;
    struct family *family;
    struct list link;      /* tier_class::partitions */
    struct list of_family; /* family::partitions */
    struct list balance;   /* store::unbalanced: its free and clean slots are to be looked at */
    struct policy orders[ORDER_COUNT];     /* ORDER_NONE is unused */
    struct expiry_item gives[ORDER_COUNT]; /* in tier_class::givers, while the order has a block */
    uint64_t used[TIER_COUNT];             /* slots */
    uint64_t wanted;                       /* keys of saves that wait for room */
    uint32_t demoting;                     /* copies in flight */
    bool cleaning; /* went under the low watermark and not yet above the high one */
};

/* That of a part: found or made, with its class, and the usage of its namespace. */
kvc_status partition_make(struct store *store, uint32_t part, struct partition **partition);
void partition_destroy_all(struct store *store);
/* One that no part is of, and that has no slot. */
void partition_remove(struct partition *partition);

/* A block has come into an order or left it. */
void partition_gives(struct partition *partition, enum order order);

/* Its family's rank in a tier has changed; with_quota: which of the two kinds it was and is. */
void partition_ranks(struct partition *partition, enum tier_kind tier, bool had_quota,
                     bool has_quota);

/* A slot was taken for it, or given back. */
void partition_take(struct partition *partition, enum tier_kind tier);
void partition_give(struct partition *partition, enum tier_kind tier);

/*
 * Who gives a block of an order to `taker`: the partition whose family is over its share by
 * most, if it is so still more than the taker's with one more slot; else the taker itself. NULL:
 * nobody.
 */
struct partition *partition_giver(struct partition *taker, enum order order);

/* Recounts orders, heaps and uses; a text naming the first difference, or NULL. For tests. */
const char *partition_check_all(const struct store *store);

/* The tier whose slots an order is about. */
static inline enum tier_kind order_tier(enum order order)
{
    return order == ORDER_HOST ? TIER_HOST : TIER_GPU;
}

#endif
