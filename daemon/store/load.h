/*
 * Loads: blocks of a lease that a worker was told the places of, or that the daemon copies for it.
 * They stay there until the load's word has arrived, or what stands for it, or the daemon's copies
 * have ended, whatever becomes of the lease or the session.
 */
#ifndef KVC_STORE_LOAD_H
#define KVC_STORE_LOAD_H

#include "daemon/store/owner.h"

struct load {
    struct owner *owner;
    struct list link;     /* owner::loads */
    struct word *word;    /* NULL: the daemon copies */
    uint64_t opened;      /* clock_us */
    uint64_t block_bytes; /* that are read of each block */
    uint32_t count;
    struct load_block {
        uint32_t block;
        uint8_t tier;
    } blocks[];
};

/* Nobody reads the blocks any more. proved: all of them have been read. */
void load_close(struct store *store, struct load *load, bool proved);

/* Frees its memory without a look at its blocks: the store is being destroyed. */
void load_free(struct load *load);

#endif
