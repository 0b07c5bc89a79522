/*
 * Blocks in memory: what the index finds. One for each (part, key) that is being filled or is
 * published; its key lies in the table, in the record of a slot it has.
 */
#ifndef KVC_STORE_BLOCK_H
#define KVC_STORE_BLOCK_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/table.h"

#define BLOCK_NONE UINT32_MAX

enum block_state {
    BLOCK_UNUSED = 0, /* in the pool's free list */
    BLOCK_FILLING,    /* assigned to a save, not a hit */
    BLOCK_READY,      /* published */
    BLOCK_DOOMED,     /* out of the index; open loads or a move still use its slots */
};

/* Place in an eviction order; owned by the policy that holds the block. */
struct policy_link {
    uint32_t prev, next;
};

struct block {
    uint32_t slot[TIER_COUNT]; /* SLOT_NONE where it is not */
    uint32_t leases;           /* leases that cover it, each counted once a range */
    struct policy_link link[TIER_COUNT];
    uint16_t loads[TIER_COUNT]; /* open loads from each tier */
    uint16_t part;
    uint8_t order[TIER_COUNT]; /* which order holds it (enum of the tiering), 0: none */
    uint32_t held : 24;        /* other holds: its pin, and saves for the length of their call */
    uint32_t state : 4;
    uint32_t moving : 1;   /* a demotion or promotion is copying it */
    uint32_t unlisted : 1; /* not in the index yet */
    uint32_t save;         /* FILLING: place of its save, for PENDING and its own call */
};

struct blocks; /* the pool of blocks and the hash index over (part, key) */

/* What it begins with. The pool gets its memory a segment at a time and never moves a block. */
#define BLOCKS_SEGMENT 1024u
struct blocks_pool {
    struct block **segments;
    struct table_slot *records[TIER_COUNT]; /* of each tier, by slot number; NULL: no extents */
    uint32_t limit;                         /* ids below it were used at least once */
};

kvc_status blocks_create(struct table *table, struct blocks **blocks);
void blocks_destroy(struct blocks *blocks);

/* Valid until blocks_drop. */
static inline struct block *blocks_get(const struct blocks *blocks, uint32_t id)
{
    const struct blocks_pool *pool = (const void *)blocks;

    assert(id < pool->limit);
    return &pool->segments[id / BLOCKS_SEGMENT][id % BLOCKS_SEGMENT];
}
/* The record of the block's slot in a tier where it has one. */
static inline struct table_slot *blocks_record(const struct blocks *blocks, uint32_t id,
                                               enum tier_kind tier)
{
    const struct blocks_pool *pool = (const void *)blocks;

    return &pool->records[tier][blocks_get(blocks, id)->slot[tier]];
}

/*
 * Part and key of a block are read from the record of its slot in the GPU tier, or if it has none
 * there, in the host tier: they must be written before block->slot names the slot, and the record
 * kept until the block has another slot or is unlinked.
 */

/* What a key of a part is now: a block of an earlier epoch of its namespace is never found. */
uint32_t blocks_find(const struct blocks *blocks, uint32_t part, const uint8_t *key);

/* The block of any epoch that has this slot; BLOCK_NONE: it is out of the index, or there is none.
 */
uint32_t blocks_of_slot(const struct blocks *blocks, enum tier_kind tier, uint32_t slot);

/* Whether a block that is in the index is of an earlier epoch: it was flushed. */
bool blocks_is_stale(const struct blocks *blocks, uint32_t id);

/*
 * Finds n keys at once (prefetching), stops at the first that stop(arg, id) says ends the run
 * (BLOCK_NONE for an absent key; stop NULL: the first absent one); writes the ids found before it.
 * Returns how many.
 */
uint32_t blocks_find_run(const struct blocks *blocks, uint32_t part, const uint8_t *keys,
                         uint32_t n, bool (*stop)(void *arg, uint32_t id), void *arg,
                         uint32_t *ids);

/*
 * Finds all of n keys, BLOCK_NONE for absent ones, and says their tags in the index, with which to
 * add some of them soon.
 */
void blocks_find_all(const struct blocks *blocks, uint32_t part, const uint8_t *keys, uint32_t n,
                     uint32_t *tags, uint32_t *ids);

/* Asks for the memory that adding blocks of a few tags will touch. */
#define BLOCKS_EXPECT_MAX 16u
void blocks_expect(const struct blocks *blocks, const uint32_t *tags, uint32_t n);

/*
 * Adds a block for a slot whose record holds part, key and epoch already; there is none for them.
 * It is FILLING, in no order, with all else zero. KVC_E_NO_MEMORY leaves all as it was. Growing is
 * amortised and never moves more than a bounded share at once (incremental).
 */
kvc_status blocks_add(struct blocks *blocks, uint32_t part, enum tier_kind tier, uint32_t slot,
                      uint32_t *id);
/*
 * The same in two steps, of which the second puts it into the index; until then no lookup finds it.
 * tag: of its part and key. One that was not listed can be unlinked too.
 */
kvc_status blocks_add_unlisted(struct blocks *blocks, uint32_t part, enum tier_kind tier,
                               uint32_t slot, uint32_t *id);
kvc_status blocks_list(struct blocks *blocks, uint32_t tag, uint32_t id);

/*
 * Takes the block out of the index (no lookup finds it) but keeps it, DOOMED; then drops it, which
 * needs no slot any more.
 */
void blocks_unlink(struct blocks *blocks, uint32_t id);
void blocks_drop(struct blocks *blocks, uint32_t id);

uint32_t blocks_limit(const struct blocks *blocks); /* every id is below it */
uint64_t blocks_count(const struct blocks *blocks); /* in the index */
uint64_t blocks_bytes(const struct blocks *blocks); /* memory of pool and index */
const char *blocks_check(const struct blocks *blocks);

#endif
