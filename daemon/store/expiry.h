/*
 * Deadlines in order, or what else has a least one: a binary heap of items that their owners embed.
 * Adding, moving and removing one costs O(log n), asking for the earliest nothing.
 */
#ifndef KVC_STORE_EXPIRY_H
#define KVC_STORE_EXPIRY_H

#include <stdint.h>

#include "proto/status.h"

struct expiry_item {
    uint64_t at;    /* clock_us */
    uint32_t place; /* in the heap */
};

/* Zeroed: empty, and without memory. */
struct expiry {
    struct expiry_item **heap;
    uint32_t count, size;
};

/* Makes room for one more, so that the next expiry_add cannot fail; or for n items in all. */
kvc_status expiry_reserve(struct expiry *expiry);
kvc_status expiry_reserve_for(struct expiry *expiry, uint32_t n);
void expiry_add(struct expiry *expiry, struct expiry_item *item, uint64_t at);
void expiry_move(struct expiry *expiry, struct expiry_item *item, uint64_t at);
void expiry_remove(struct expiry *expiry, struct expiry_item *item);
struct expiry_item *expiry_first(const struct expiry *expiry); /* NULL: empty */
void expiry_free(struct expiry *expiry);

#endif
