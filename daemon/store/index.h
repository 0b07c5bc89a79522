/*
 * From a 32-bit tag, the hash of a part and key, to the ids of blocks. It knows nothing of either:
 * block.c makes the tags and compares the keys.
 *
 * Cells lie eight together in a bucket, which is one cache line: that line is all that a lookup
 * reads here, of a key that is there or not, and all that adding one writes, mostly. Buckets are
 * cut into segments: the directory's entry for the first bits of a tag names its segment, and the
 * tag's hash the bucket ("home") in it. What finds its home full goes to the next bucket that is
 * not; a search ends at the first that is not full, so removal moves up what had to pass it.
 * Growing is a walk over one segment, at most INDEX_BUCKETS_MAX buckets however large the index is:
 * a segment gets more buckets or is split in two. Only the directory, one entry for some 400
 * blocks, is ever doubled as a whole.
 */
#ifndef KVC_STORE_INDEX_H
#define KVC_STORE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "proto/status.h"

#define INDEX_CELLS       8u
#define INDEX_BUCKETS_MIN 8u
#define INDEX_BUCKETS_MAX 64u
#define INDEX_LINE        64u

#define INDEX_EMPTY UINT32_MAX /* the id of a cell that is free; its tag means nothing */

struct index_bucket {
    uint32_t tag[INDEX_CELLS];
    uint32_t id[INDEX_CELLS];
};

/* Its buckets follow, from the next line on. */
struct index_segment {
    uint32_t buckets;
    uint32_t used;  /* cells */
    uint32_t depth; /* leading bits of a tag that all of its tags share */
};

/* The number of buckets is here too, so that finding one reads nothing of the segment. */
struct index_entry {
    struct index_segment *segment;
    uint32_t buckets;
};

struct index {
    struct index_entry *directory;
    uint32_t depth; /* bits of a tag that select the entry */
    uint64_t count;
    uint64_t bytes; /* allocated */
};

kvc_status index_init(struct index *index);
void index_fini(struct index *index);

/* Adds a cell; several may have the same tag. KVC_E_NO_MEMORY changes nothing. */
kvc_status index_insert(struct index *index, uint32_t tag, uint32_t id);

/* Removes the cell, which must be there. */
void index_remove(struct index *index, uint32_t tag, uint32_t id);

/* A text, or NULL: places, homes, counts. For tests. */
const char *index_check(const struct index *index);

static inline const struct index_entry *index_entry(const struct index *index, uint32_t tag)
{
    return &index->directory[(uint64_t)tag >> (32 - index->depth)];
}

static inline struct index_bucket *index_buckets(const struct index_segment *segment)
{
    const uintptr_t end = (uintptr_t)(segment + 1);

    return (struct index_bucket *)((end + INDEX_LINE - 1) / INDEX_LINE * INDEX_LINE);
}

/* Of all bits of the tag: its first ones are the same in the whole segment. */
static inline uint32_t index_home(uint32_t tag, uint32_t buckets)
{
    return (uint32_t)(((uint64_t)(tag * 0x9e3779b1u) * buckets) >> 32);
}

/* A search for a tag: the bucket it has come to. */
struct index_walk {
    struct index_bucket *buckets;
    uint32_t n, at;
};

static inline struct index_walk index_seek(const struct index *index, uint32_t tag)
{
    const struct index_entry *entry = index_entry(index, tag);

    return (struct index_walk){.buckets = index_buckets(entry->segment),
                               .n = entry->buckets,
                               .at = index_home(tag, entry->buckets)};
}

static inline struct index_bucket *index_here(const struct index_walk *walk)
{
    return &walk->buckets[walk->at];
}

static inline void index_next(struct index_walk *walk)
{
    if (++walk->at == walk->n)
        walk->at = 0;
}

/* Which of eight numbers are equal to one: bit i for the i-th. */
static inline uint32_t index_equal(const uint32_t *eight, uint32_t to)
{
#ifdef __SSE2__
    const __m128i all = _mm_set1_epi32((int)to);
    const __m128i low = _mm_cmpeq_epi32(_mm_load_si128((const __m128i *)eight), all);
    const __m128i high = _mm_cmpeq_epi32(_mm_load_si128((const __m128i *)eight + 1), all);

    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(low)) |
           (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(high)) << 4;
#else
    uint32_t mask = 0;

    for (uint32_t i = 0; i < INDEX_CELLS; i++)
        mask |= (uint32_t)(eight[i] == to) << i;
    return mask;
#endif
}

static inline uint32_t index_free(const struct index_bucket *bucket)
{
    return index_equal(bucket->id, INDEX_EMPTY);
}

/* The cells of a bucket that have this tag. */
static inline uint32_t index_have(const struct index_bucket *bucket, uint32_t tag)
{
    return index_equal(bucket->tag, tag) & ~index_free(bucket);
}

#endif
