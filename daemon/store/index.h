/*
 * From a 32-bit tag, the hash of a part and key, to the ids of blocks. It knows nothing of either:
 * block.c makes the tags and compares the keys.
 *
 * All cells in order of their tags would be one sorted array. It is cut into segments: the
 * directory's entry for the first bits of a tag is its segment, and the next bits say where in the
 * segment it should be ("home"). Cells stay sorted, each at its home or, when that is taken, behind
 * it with no empty cell between. A lookup therefore ends at the first larger tag, removal needs no
 * tombstones, and growing is a walk over one segment, at most INDEX_HOMES_MAX cells however large
 * the index is: a segment gets more homes or is split in two. Only the directory, one pointer for
 * some 400 blocks, is ever doubled as a whole.
 */
#ifndef KVC_STORE_INDEX_H
#define KVC_STORE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/status.h"

#define INDEX_HOMES_MIN 64u
#define INDEX_HOMES_MAX 512u

/* tag << 32 | id. An empty one is larger than any other, so that a search ends there too. */
#define INDEX_EMPTY UINT64_MAX

struct index_segment {
    uint32_t homes;
    uint32_t cells; /* homes and room behind the last; one more that is always empty follows */
    uint32_t used;
    uint32_t depth; /* leading bits of a tag that all of its tags share */
    uint64_t cell[];
};

struct index {
    struct index_segment **directory;
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

/* A text, or NULL: order, homes, counts. For tests. */
const char *index_check(const struct index *index);

static inline uint32_t index_entry(const struct index *index, uint32_t tag)
{
    return (uint32_t)((uint64_t)tag >> (32 - index->depth));
}

static inline struct index_segment *index_segment(const struct index *index, uint32_t tag)
{
    return index->directory[index_entry(index, tag)];
}

static inline uint32_t index_home(const struct index_segment *segment, uint32_t tag)
{
    return (uint32_t)(((uint64_t)(tag << segment->depth) * segment->homes) >> 32);
}

/* The first cell that has this tag or a larger one. It and those behind it are read until one does
 * not have the tag. */
static inline const uint64_t *index_seek(const struct index_segment *segment, uint32_t tag)
{
    const uint64_t *cell = &segment->cell[index_home(segment, tag)];

    while (*cell >> 32 < tag)
        cell++;
    return cell;
}

static inline bool index_cell_has(uint64_t cell, uint32_t tag)
{
    return cell >> 32 == tag && cell != INDEX_EMPTY;
}

#endif
