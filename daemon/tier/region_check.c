#include "daemon/tier/region_check.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

static_assert(sizeof(struct region_slice) == 24 && sizeof(struct region_piece) == 32,
              "compared as bytes");

bool region_slice_fits(const struct region_slice *slice, uint32_t blocks, uint64_t piece_bytes)
{
    uint64_t end;

    return blocks > 0 && !__builtin_mul_overflow((uint64_t)blocks - 1, slice->stride, &end) &&
           !__builtin_add_overflow(end, slice->offset, &end) &&
           !__builtin_add_overflow(end, (uint64_t)slice->bytes, &end) && end <= piece_bytes;
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *left, const void *right)
{
    const struct region_slice *a = left, *b = right;

    return a->piece != b->piece ? compare(a->piece, b->piece) : compare(a->offset, b->offset);
}

/* offset is within the stride here. */
static int by_offset(const void *left, const void *right)
{
    return compare(((const struct region_slice *)left)->offset,
                   ((const struct region_slice *)right)->offset);
}

static int by_memory(const void *left, const void *right)
{
    const struct region_piece *a = left, *b = right;

    if (a->device != b->device)
        return compare(a->device, b->device);
    return a->inode != b->inode ? compare(a->inode, b->inode) : compare(a->offset, b->offset);
}

/* Slices that may interleave: folded into one stride, they must lie apart in it, also around its
 * end. */
static bool is_woven(struct region_slice *slices, uint32_t n)
{
    const uint64_t stride = slices[0].stride;
    const struct region_slice *last = &slices[n - 1];

    if (stride == 0)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (slices[i].stride != stride)
            return false;
        slices[i].offset %= stride;
    }
    qsort(slices, n, sizeof(*slices), by_offset);
    for (uint32_t i = 1; i < n; i++)
        if (slices[i - 1].offset + slices[i - 1].bytes > slices[i].offset)
            return false;
    return last->offset + last->bytes <= stride + slices[0].offset;
}

static bool slices_apart(struct region_slice *slices, uint32_t n, uint32_t blocks)
{
    qsort(slices, n, sizeof(*slices), by_place);
    for (uint32_t first = 0, next; first < n; first = next) {
        uint64_t end = 0; /* of what the run covers */

        for (next = first; next < n && slices[next].piece == slices[first].piece; next++) {
            const struct region_slice *s = &slices[next];
            const uint64_t s_end = s->offset + (blocks - 1ull) * s->stride + s->bytes;

            if (next > first && s->offset >= end)
                break;
            end = s_end > end ? s_end : end;
        }
        if (next > first + 1 && !is_woven(slices + first, next - first))
            return false;
    }
    return true;
}

static bool pieces_apart(struct region_piece *pieces, uint32_t n)
{
    qsort(pieces, n, sizeof(*pieces), by_memory);
    for (uint32_t i = 1; i < n; i++) {
        const struct region_piece *a = &pieces[i - 1], *b = &pieces[i];

        if (a->device == b->device && a->inode == b->inode && a->offset + a->bytes > b->offset)
            return false;
    }
    return true;
}

enum region_overlap region_check_overlap(const struct region_slice *slices, uint32_t n_slices,
                                         uint32_t blocks, const struct region_piece *pieces,
                                         uint32_t n_pieces)
{
    struct region_slice *s = mem_array(n_slices, sizeof(*s));
    struct region_piece *p = mem_array(n_pieces, sizeof(*p));
    enum region_overlap overlap = REGION_NO_MEMORY;

    if (s != NULL && p != NULL) {
        memcpy(s, slices, n_slices * sizeof(*s));
        memcpy(p, pieces, n_pieces * sizeof(*p));
        overlap = !pieces_apart(p, n_pieces)           ? REGION_PIECES_OVERLAP
                  : !slices_apart(s, n_slices, blocks) ? REGION_SLICES_OVERLAP
                                                       : REGION_APART;
    }
    mem_free(s);
    mem_free(p);
    return overlap;
}
