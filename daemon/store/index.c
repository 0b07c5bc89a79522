#include "daemon/store/index.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"

/* More segments than all block numbers need; what does not fit lengthens segments. */
#define DEPTH_MAX 24u

static_assert(sizeof(struct index_bucket) == INDEX_LINE, "a bucket is a line");

/* 3/4 full is where growing begins: one bucket in seven is full then. */
static uint32_t capacity(uint32_t buckets)
{
    return buckets * INDEX_CELLS / 4 * 3;
}

/* Buckets for a segment of n cells that leave room for a while. */
static uint32_t buckets_for(uint32_t n)
{
    const uint32_t step = INDEX_BUCKETS_MIN * INDEX_CELLS;
    uint32_t buckets = (2 * n + step - 1) / step * INDEX_BUCKETS_MIN;

    return buckets < INDEX_BUCKETS_MIN ? INDEX_BUCKETS_MIN : buckets;
}

static size_t segment_bytes(uint32_t buckets)
{
    return sizeof(struct index_segment) + INDEX_LINE + buckets * sizeof(struct index_bucket);
}

static struct index_segment *make(uint32_t buckets, uint32_t depth)
{
    struct index_segment *made = mem_alloc(segment_bytes(buckets));

    if (!made)
        return NULL;
    *made = (struct index_segment){.buckets = buckets, .depth = depth};
    memset(index_buckets(made), 0xff, buckets * sizeof(struct index_bucket));
    return made;
}

/* There is an empty cell. */
static void place(struct index_segment *segment, uint32_t tag, uint32_t id)
{
    struct index_walk walk = {index_buckets(segment), segment->buckets,
                              index_home(tag, segment->buckets)};
    uint32_t free, cell;

    while (!(free = index_free(index_here(&walk))))
        index_next(&walk);
    cell = (uint32_t)__builtin_ctz(free);
    index_here(&walk)->tag[cell] = tag;
    index_here(&walk)->id[cell] = id;
    segment->used++;
}

/* Names a segment in all entries of the directory that are its own. */
static void enter(struct index *index, struct index_segment *segment, uint32_t tag)
{
    uint32_t n = 1u << (index->depth - segment->depth);
    uint32_t first = (uint32_t)(index_entry(index, tag) - index->directory) & ~(n - 1);

    for (uint32_t i = first; i < first + n; i++)
        index->directory[i] = (struct index_entry){segment, segment->buckets};
    index->bytes += segment_bytes(segment->buckets);
}

static void discard(struct index *index, struct index_segment *segment)
{
    index->bytes -= segment_bytes(segment->buckets);
    mem_free(segment);
}

static kvc_status double_directory(struct index *index)
{
    size_t n = (size_t)1 << index->depth;
    struct index_entry *directory = mem_alloc(2 * n * sizeof(*directory));

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

/* Places the cells of a segment in others: those with `bit` in their tag in high. */
static void share_out(const struct index_segment *from, uint32_t bit, struct index_segment *low,
                      struct index_segment *high)
{
    const struct index_bucket *buckets = index_buckets(from);

    for (uint32_t b = 0; b < from->buckets; b++)
        for (uint32_t i = 0; i < INDEX_CELLS; i++)
            if (buckets[b].id[i] != INDEX_EMPTY)
                place(buckets[b].tag[i] & bit ? high : low, buckets[b].tag[i], buckets[b].id[i]);
}

static kvc_status resize(struct index *index, struct index_segment *segment, uint32_t tag)
{
    struct index_segment *made = make(segment->buckets + INDEX_BUCKETS_MIN, segment->depth);

    if (!made)
        return KVC_E_NO_MEMORY;
    share_out(segment, 0, made, NULL);
    enter(index, made, tag);
    discard(index, segment);
    return KVC_OK;
}

static uint32_t count_high(const struct index_segment *segment, uint32_t bit)
{
    const struct index_bucket *buckets = index_buckets(segment);
    uint32_t n = 0;

    for (uint32_t b = 0; b < segment->buckets; b++)
        for (uint32_t i = 0; i < INDEX_CELLS; i++)
            n += buckets[b].id[i] != INDEX_EMPTY && (buckets[b].tag[i] & bit);
    return n;
}

static kvc_status split(struct index *index, struct index_segment *segment, uint32_t tag)
{
    uint32_t depth = segment->depth + 1;
    uint32_t bit = 1u << (32 - depth), n_high = count_high(segment, bit);
    struct index_segment *low, *high;

    if (depth > index->depth) {
        kvc_status status = double_directory(index);

        if (status)
            return status;
    }
    low = make(buckets_for(segment->used - n_high), depth);
    high = make(buckets_for(n_high), depth);
    if (!low || !high) {
        mem_free(low);
        mem_free(high);
        return KVC_E_NO_MEMORY;
    }
    share_out(segment, bit, low, high);
    enter(index, low, tag & ~bit);
    enter(index, high, tag | bit);
    discard(index, segment);
    return KVC_OK;
}

static kvc_status grow(struct index *index, struct index_segment *segment, uint32_t tag)
{
    if (segment->buckets < INDEX_BUCKETS_MAX || segment->depth == DEPTH_MAX)
        return resize(index, segment, tag);
    return split(index, segment, tag);
}

kvc_status index_insert(struct index *index, uint32_t tag, uint32_t id)
{
    struct index_segment *segment;

    assert(id != INDEX_EMPTY);
    while (segment = index_entry(index, tag)->segment,
           segment->used >= capacity(segment->buckets)) {
        kvc_status status = grow(index, segment, tag);

        if (status)
            return status;
    }
    place(segment, tag, id);
    index->count++;
    return KVC_OK;
}

/* Buckets from one on to another, around the end. */
static uint32_t distance(const struct index_walk *walk, uint32_t from, uint32_t to)
{
    return to >= from ? to - from : to + walk->n - from;
}

/* A cell of the bucket at walk->at that had to pass bucket `over`; INDEX_CELLS: none. */
static uint32_t find_passed(const struct index_walk *walk, uint32_t over)
{
    const struct index_bucket *bucket = index_here(walk);

    for (uint32_t i = 0; i < INDEX_CELLS; i++) {
        uint32_t home;

        if (bucket->id[i] == INDEX_EMPTY)
            continue;
        home = index_home(bucket->tag[i], walk->n);
        if (distance(walk, home, over) < distance(walk, home, walk->at))
            return i;
    }
    return INDEX_CELLS;
}

/* A full bucket has got an empty cell: whatever is behind it because it was full moves up. */
static void fill_hole(struct index_walk walk, uint32_t hole)
{
    uint32_t over = walk.at;
    bool full = true;

    while (full) {
        struct index_bucket *bucket;
        uint32_t i;

        index_next(&walk);
        bucket = index_here(&walk);
        full = !index_free(bucket);
        i = find_passed(&walk, over);
        if (i == INDEX_CELLS)
            continue;
        walk.buckets[over].tag[hole] = bucket->tag[i];
        walk.buckets[over].id[hole] = bucket->id[i];
        bucket->id[i] = INDEX_EMPTY;
        over = walk.at;
        hole = i;
    }
}

void index_remove(struct index *index, uint32_t tag, uint32_t id)
{
    struct index_walk walk = index_seek(index, tag);
    uint32_t found, cell;
    bool full;

    while (!(found = index_have(index_here(&walk), tag) & index_equal(index_here(&walk)->id, id))) {
        assert(!index_free(index_here(&walk)));
        index_next(&walk);
    }
    cell = (uint32_t)__builtin_ctz(found);
    full = !index_free(index_here(&walk));
    index_here(&walk)->id[cell] = INDEX_EMPTY;
    if (full)
        fill_hole(walk, cell);
    index_entry(index, tag)->segment->used--;
    index->count--;
}

kvc_status index_init(struct index *index)
{
    struct index_entry *directory = mem_alloc(sizeof(*directory));
    struct index_segment *segment = make(INDEX_BUCKETS_MIN, 0);

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
    return 1u << (index->depth - index->directory[entry].segment->depth);
}

void index_fini(struct index *index)
{
    for (uint64_t i = 0; i < 1ull << index->depth;) {
        uint32_t n = entries_of(index, (uint32_t)i);

        mem_free(index->directory[i].segment);
        i += n;
    }
    mem_free(index->directory);
}

static const char *check_cell(const struct index *index, uint32_t entry, uint32_t at, uint32_t tag)
{
    struct index_walk walk = index_seek(index, tag);

    if ((uint32_t)(index_entry(index, tag) - index->directory) - entry >= entries_of(index, entry))
        return "a cell is in another segment than its tag says";
    for (; walk.at != at; index_next(&walk))
        if (index_free(index_here(&walk)))
            return "a cell cannot be reached from its home";
    return NULL;
}

static const char *check_segment(const struct index *index, uint32_t entry)
{
    const struct index_segment *segment = index->directory[entry].segment;
    const struct index_bucket *buckets = index_buckets(segment);
    const char *why = NULL;
    uint32_t used = 0;

    for (uint32_t b = 0; b < segment->buckets; b++) {
        for (uint32_t i = 0; i < INDEX_CELLS && !why; i++) {
            if (buckets[b].id[i] == INDEX_EMPTY)
                continue;
            used++;
            why = check_cell(index, entry, b, buckets[b].tag[i]);
        }
    }
    if (why)
        return why;
    return used == segment->used ? NULL : "a segment miscounts its cells";
}

const char *index_check(const struct index *index)
{
    uint64_t count = 0, bytes = sizeof(*index->directory) << index->depth;

    for (uint64_t i = 0; i < 1ull << index->depth;) {
        const struct index_segment *segment = index->directory[i].segment;
        uint32_t n = entries_of(index, (uint32_t)i);
        const char *why = check_segment(index, (uint32_t)i);

        if (why)
            return why;
        for (uint32_t j = 0; j < n; j++)
            if (index->directory[i + j].segment != segment ||
                index->directory[i + j].buckets != segment->buckets)
                return "a segment is not in all of its entries";
        count += segment->used;
        bytes += segment_bytes(segment->buckets);
        i += n;
    }
    if (count != index->count)
        return "the index miscounts its cells";
    return bytes == index->bytes ? NULL : "the index miscounts its memory";
}
