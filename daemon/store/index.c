#include "daemon/store/index.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"

/* Cells behind the last home of a new segment: enough that it is not made anew for want of them. */
#define TAIL_CELLS 16u

/* More segments than all block numbers need; what does not fit lengthens segments. */
#define DEPTH_MAX 24u

static uint32_t tag_of(uint64_t cell)
{
    return (uint32_t)(cell >> 32);
}

/*
 * 3/4 full is where growing begins: a new cell then pushes 8 others before it finds an empty one,
 * and would push 32 at 7/8.
 */
static uint32_t capacity(uint32_t homes)
{
    return homes / 4 * 3;
}

/* Homes for a segment of n cells that leave room for a while. */
static uint32_t homes_for(uint32_t n)
{
    uint32_t homes = (2 * n + INDEX_HOMES_MIN - 1) / INDEX_HOMES_MIN * INDEX_HOMES_MIN;

    return homes < INDEX_HOMES_MIN ? INDEX_HOMES_MIN : homes;
}

static size_t segment_bytes(uint32_t cells)
{
    return sizeof(struct index_segment) + (cells + 1) * sizeof(uint64_t);
}

/*
 * A segment of `homes` homes with the n cells from `from`, a sorted array that may have empty cells
 * in it. NULL when there is no memory.
 */
static struct index_segment *build(const uint64_t *from, uint32_t n, uint32_t homes, uint32_t depth)
{
    struct index_segment shape = {.homes = homes, .depth = depth};
    struct index_segment *made;
    uint32_t end = 0, at = 0;

    for (uint32_t i = 0, left = n; left > 0; i++) {
        uint32_t home;

        if (from[i] == INDEX_EMPTY)
            continue;
        home = index_home(&shape, tag_of(from[i]));
        end = (home > end ? home : end) + 1;
        left--;
    }
    shape.cells = (end > homes ? end : homes) + TAIL_CELLS;
    made = mem_alloc(segment_bytes(shape.cells));
    if (!made)
        return NULL;
    *made = shape;
    made->used = n;
    memset(made->cell, 0xff, (shape.cells + 1) * sizeof(made->cell[0]));
    for (uint32_t i = 0, left = n; left > 0; i++) {
        uint32_t home;

        if (from[i] == INDEX_EMPTY)
            continue;
        home = index_home(&shape, tag_of(from[i]));
        at = home > at ? home : at;
        made->cell[at++] = from[i];
        left--;
    }
    return made;
}

/* Names a segment in all entries of the directory that are its own. */
static void enter(struct index *index, struct index_segment *segment, uint32_t tag)
{
    uint32_t n = 1u << (index->depth - segment->depth);
    uint32_t first = index_entry(index, tag) & ~(n - 1);

    for (uint32_t i = first; i < first + n; i++)
        index->directory[i] = segment;
    index->bytes += segment_bytes(segment->cells);
}

static void discard(struct index *index, struct index_segment *segment)
{
    index->bytes -= segment_bytes(segment->cells);
    mem_free(segment);
}

static kvc_status double_directory(struct index *index)
{
    size_t n = (size_t)1 << index->depth;
    struct index_segment **directory = mem_alloc(2 * n * sizeof(*directory));

    if (!directory)
        return KVC_E_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        directory[2 * i] = directory[2 * i + 1] = index->directory[i];
    mem_free(index->directory);
    index->directory = directory;
    index->depth++;
    index->bytes += n * sizeof(*directory);
    return KVC_OK;
}

static kvc_status resize(struct index *index, struct index_segment *segment, uint32_t tag,
                         uint32_t homes)
{
    struct index_segment *made = build(segment->cell, segment->used, homes, segment->depth);

    if (!made)
        return KVC_E_NO_MEMORY;
    enter(index, made, tag);
    discard(index, segment);
    return KVC_OK;
}

/* The cells are sorted, so those of the upper half are the ones from some place on. */
static kvc_status split(struct index *index, struct index_segment *segment, uint32_t tag)
{
    uint32_t depth = segment->depth + 1;
    uint32_t bit = 1u << (32 - depth);
    uint32_t lower = 0, at = 0;
    struct index_segment *low, *high;

    if (depth > index->depth) {
        kvc_status status = double_directory(index);

        if (status)
            return status;
    }
    for (uint32_t i = 0; i < segment->cells; i++) {
        if (segment->cell[i] == INDEX_EMPTY)
            continue;
        if (tag_of(segment->cell[i]) & bit)
            break;
        lower++;
        at = i + 1;
    }
    low = build(segment->cell, lower, homes_for(lower), depth);
    if (!low)
        return KVC_E_NO_MEMORY;
    high =
        build(segment->cell + at, segment->used - lower, homes_for(segment->used - lower), depth);
    if (!high) {
        mem_free(low);
        return KVC_E_NO_MEMORY;
    }
    enter(index, low, tag & ~bit);
    enter(index, high, tag | bit);
    discard(index, segment);
    return KVC_OK;
}

static kvc_status grow(struct index *index, struct index_segment *segment, uint32_t tag)
{
    /* Not full: it had no room behind its last home, which resizing gives. */
    if (segment->used < capacity(segment->homes))
        return resize(index, segment, tag, segment->homes);
    if (segment->homes < INDEX_HOMES_MAX || segment->depth == DEPTH_MAX)
        return resize(index, segment, tag, segment->homes + INDEX_HOMES_MIN);
    return split(index, segment, tag);
}

/* false: there is no room between the cell's place and the segment's end. */
static bool place(struct index_segment *segment, uint64_t cell)
{
    uint32_t at = index_home(segment, tag_of(cell)), end;

    while (segment->cell[at] <= cell)
        at++;
    for (end = at; segment->cell[end] != INDEX_EMPTY;)
        end++;
    if (end == segment->cells)
        return false;
    memmove(&segment->cell[at + 1], &segment->cell[at], (end - at) * sizeof(cell));
    segment->cell[at] = cell;
    segment->used++;
    return true;
}

kvc_status index_insert(struct index *index, uint32_t tag, uint32_t id)
{
    uint64_t cell = (uint64_t)tag << 32 | id;

    assert(id != UINT32_MAX);
    for (;;) {
        struct index_segment *segment = index_segment(index, tag);
        kvc_status status;

        if (segment->used < capacity(segment->homes) && place(segment, cell))
            break;
        status = grow(index, segment, tag);
        if (status)
            return status;
    }
    index->count++;
    return KVC_OK;
}

void index_remove(struct index *index, uint32_t tag, uint32_t id)
{
    struct index_segment *segment = index_segment(index, tag);
    uint64_t *cell = &segment->cell[index_seek(segment, tag) - segment->cell];
    uint64_t wanted = (uint64_t)tag << 32 | id;

    while (*cell != wanted) {
        assert(index_cell_has(*cell, tag));
        cell++;
    }
    /* Cells behind it that are not at their homes move up. */
    while (cell[1] != INDEX_EMPTY &&
           index_home(segment, tag_of(cell[1])) <= (uint32_t)(cell - segment->cell)) {
        cell[0] = cell[1];
        cell++;
    }
    *cell = INDEX_EMPTY;
    segment->used--;
    index->count--;
}

kvc_status index_init(struct index *index)
{
    struct index_segment **directory = mem_alloc(sizeof(*directory));
    struct index_segment *segment = build(NULL, 0, INDEX_HOMES_MIN, 0);

    if (!directory || !segment) {
        mem_free(directory);
        mem_free(segment);
        return KVC_E_NO_MEMORY;
    }
    *index = (struct index){.directory = directory, .bytes = sizeof(*directory)};
    enter(index, segment, 0);
    return KVC_OK;
}

/* How many entries of the directory, from `entry` on, are of the same segment. */
static uint32_t entries_of(const struct index *index, uint32_t entry)
{
    return 1u << (index->depth - index->directory[entry]->depth);
}

void index_fini(struct index *index)
{
    for (uint64_t i = 0; i < 1ull << index->depth;) {
        uint32_t n = entries_of(index, (uint32_t)i);

        mem_free(index->directory[i]);
        i += n;
    }
    mem_free(index->directory);
}

static const char *check_segment(const struct index *index, const struct index_segment *segment,
                                 uint32_t entry)
{
    uint64_t before = 0;
    uint32_t used = 0, gap = 0; /* no empty cell from `gap` on */

    for (uint32_t i = 0; i < segment->cells; i++) {
        uint64_t cell = segment->cell[i];
        uint32_t home;

        if (cell == INDEX_EMPTY) {
            gap = i + 1;
            continue;
        }
        home = index_home(segment, tag_of(cell));
        if (used++ && cell <= before)
            return "cells are out of order";
        if (home > i || home < gap)
            return "a cell cannot be reached from its home";
        if (index_entry(index, tag_of(cell)) - entry >= entries_of(index, entry))
            return "a cell is in another segment than its tag says";
        before = cell;
    }
    if (segment->cell[segment->cells] != INDEX_EMPTY)
        return "a segment has no end";
    return used == segment->used ? NULL : "a segment miscounts its cells";
}

const char *index_check(const struct index *index)
{
    uint64_t count = 0, bytes = sizeof(*index->directory) << index->depth;

    for (uint64_t i = 0; i < 1ull << index->depth;) {
        const struct index_segment *segment = index->directory[i];
        uint32_t n = entries_of(index, (uint32_t)i);
        const char *why = check_segment(index, segment, (uint32_t)i);

        if (why)
            return why;
        for (uint32_t j = 0; j < n; j++)
            if (index->directory[i + j] != segment)
                return "a segment is not in all of its entries";
        count += segment->used;
        bytes += segment_bytes(segment->cells);
        i += n;
    }
    if (count != index->count)
        return "the index miscounts its cells";
    return bytes == index->bytes ? NULL : "the index miscounts its memory";
}
