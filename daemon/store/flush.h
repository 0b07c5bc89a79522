/*
 * Flushes. A namespace's epoch says which of its blocks count, so that all of them go at once
 * however many they are; their slots come back by turns.
 */
#ifndef KVC_STORE_FLUSH_H
#define KVC_STORE_FLUSH_H

#include "daemon/store/state.h"

/* Blocks that one turn frees, and those that it looks at for that. */
#define FLUSH_STEPS 64u
#define FLUSH_LOOKS 1024u

/* Frees some of the blocks that were flushed. */
void flush_tick(struct store *store);

#endif
