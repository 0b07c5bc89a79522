/*
 * What the host half (pack_cuda.c) and the device half (pack_cuda.cu) of packing share. Only they
 * include this; everyone else asks pack_cuda.h.
 */
#ifndef KVC_PACK_CUDA_ARGS_H
#define KVC_PACK_CUDA_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/checksum.h"
#include "kernels/pack_cuda.h"

/*
 * A piece is what one warp copies at a time: rows of 32 units of 16 bytes, at most one access in
 * flight a lane and row. A slice is one or more pieces, the last one may be short; where slices are
 * small and alike, pieces are the next units of a slot, whatever slices they are of.
 */
#define PACK_CUDA_PIECE_ROWS  8u
#define PACK_CUDA_PIECE_BYTES (PACK_CUDA_PIECE_ROWS * 32u * 16u)
#define PACK_CUDA_SMALL_ROWS  4u
#define PACK_CUDA_SMALL_UNITS (PACK_CUDA_SMALL_ROWS * 32u)
#define PACK_CUDA_THREADS     256u /* of a thread block */
#define PACK_CUDA_SHARE       16u /* pieces of a thread block at least, where not all run at once */

/* One slice in the device table: two accesses of 16 bytes. */
struct pack_cuda_row {
    uint64_t base, stride; /* the engine's */
    uint64_t key;          /* checksum_key of the slice */
    uint32_t offset;       /* in a slot, in units of 16 bytes */
    uint32_t bytes;
};

/*
 * Behind the rows: how many pieces the slices before each have, and all of them. The last word says
 * how slices are alike: the pieces of each; or its units, if they are small; or 0.
 */
struct pack_cuda_tail {
    uint32_t small; /* whether `each` counts units */
    uint32_t each;
    uint32_t first_piece[];
};

/*
 * Sums of one launch, a sector of the L2 cache each, and how many pieces of each span are copied.
 * All zero between launches: the last thread block of a span leaves it so.
 */
struct pack_cuda_scratch {
    uint64_t sums[PACK_CUDA_BLOCKS][4];
    uint32_t done[PACK_CUDA_SPANS];
};

struct pack_cuda_span_args {
    uint64_t cells; /* of its first block: sums go here ... */
    uint64_t word;  /* ... and then word_value here, unless 0 */
    uint64_t word_value;
    uint32_t first_block, n_blocks;
};

/* Words of 64 bits that say a span, and a block: its slot, and half of one for its id. */
#define PACK_CUDA_SPAN_WORDS  ((uint32_t)(sizeof(struct pack_cuda_span_args) / sizeof(uint64_t)))
#define PACK_CUDA_LIST_WORDS  (PACK_CUDA_SPANS * PACK_CUDA_SPAN_WORDS + PACK_CUDA_BLOCKS * 3 / 2)
#define PACK_CUDA_SHORT_WORDS 180u

/*
 * The kernels' only parameter, by value: no copy has to be waited for. What would take a division
 * is worked out by the host: a launch is over sooner than cold code is fetched. Lists are closed
 * up, and of each kernel there is one with a short list: with parameters of 1.5 instead of 4 KiB
 * one took 0.5 us less on one machine with an H200, and as long on another, whose launches take
 * 2 us longer (tests/gpu/README.md).
 */
struct pack_cuda_args {
    uint64_t rows;        /* of the whole layout */
    uint64_t first_piece; /* of the slices; not looked at when they are alike */
    uint64_t scratch;     /* 0: no spans */
    uint32_t share, rest; /* pieces of a thread block; the first ones have one more */
    uint32_t pieces;      /* of one block, in these slices */
    uint32_t first_slice, n_slices;
    uint32_t each;    /* pieces of each slice, or units where they are small; 0: not alike */
    uint32_t inverse; /* 2^32 / each, rounded up; 0 for 1 */
    uint32_t n_blocks, n_spans;
    uint32_t far;        /* whether bytes go to other memory than this GPU's own */
    uint32_t follows;    /* whether the launch before it may still run */
    uint32_t more;       /* whether the next one may begin */
    uint32_t slots, ids; /* where their lists begin, in words of 64 and of 32 bits */
    uint64_t list[PACK_CUDA_LIST_WORDS]; /* spans, slots, ids */
};

/* What a launch with a short list has of it. */
struct pack_cuda_short_args {
    uint64_t
        words[offsetof(struct pack_cuda_args, list) / sizeof(uint64_t) + PACK_CUDA_SHORT_WORDS];
};

CHECKSUM_FN const struct pack_cuda_span_args *pack_cuda_spans(const struct pack_cuda_args *args)
{
    return (const struct pack_cuda_span_args *)args->list;
}

CHECKSUM_FN const uint64_t *pack_cuda_slots(const struct pack_cuda_args *args)
{
    return args->list + args->slots;
}

CHECKSUM_FN const uint32_t *pack_cuda_ids(const struct pack_cuda_args *args)
{
    return (const uint32_t *)args->list + args->ids;
}

#endif
