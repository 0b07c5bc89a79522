/*
 * Pins: published blocks that are not to be evicted for a while, whoever comes and goes. A pin is
 * nobody's: it ends by its time, by unpinning, or with its block.
 */
#ifndef KVC_STORE_PIN_H
#define KVC_STORE_PIN_H

#include "daemon/store/state.h"

struct pin {
    struct expiry_item ends; /* in store::pin_ends; at 0: unpinned, ends in its turn */
    uint32_t block;
};

bool pin_has(const struct store *store, uint32_t block);
/* The block's pin ends, if it has one. */
void pin_drop(struct store *store, uint32_t block);

/* Ends pins whose time is over; so many in a turn. */
#define PIN_ENDS 1024u
void pin_tick(struct store *store, uint64_t now);
uint64_t pin_next_wake(const struct store *store);

/* Frees them without a look at their blocks: the store is being destroyed. */
void pin_forget_all(struct store *store);

#endif
