/*
 * Copies between the tiers: a demotion makes a block clean, a promotion brings one up. A copy that
 * fails changes nothing but its counter; after one, no copy is started for a short while.
 */
#ifndef KVC_STORE_MOVING_H
#define KVC_STORE_MOVING_H

#include "daemon/store/state.h"

#define MOVING_PAUSE_US (100 * CLOCK_MS_US)
/* After so many failures in a row the host tier counts as one that cannot take copies. */
#define MOVING_FAILURES_MAX 8u

enum moving_result {
    MOVING_STARTED,
    MOVING_BUSY,     /* too many bytes are in flight */
    MOVING_NO_BLOCK, /* nothing to demote */
    MOVING_NO_HOST,  /* the host tier cannot take it */
    MOVING_COLDER,   /* it would be the first to go from there: to be dropped instead */
    MOVING_FAILED,   /* no memory, or the mover failed just now or lately */
};

/* Starts to copy the coldest dirty block of a partition to the host tier. */
enum moving_result moving_demote(struct partition *partition);
/* The same for a dirty block, whatever its place in the order. */
enum moving_result moving_demote_block(struct store *store, uint32_t id);

/* Starts to copy a block of the host tier up, if there is room at once; else nothing happens. */
void moving_promote(struct store *store, uint32_t id);

#endif
