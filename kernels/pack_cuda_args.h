/*
 * What the host half (pack_cuda.c) and the device half (pack_cuda.cu) of packing share. Only they
 * include this; everyone else asks pack_cuda.h.
 */
#ifndef KVC_PACK_CUDA_ARGS_H
#define KVC_PACK_CUDA_ARGS_H

#include <stdint.h>

#include "kernels/pack_cuda.h"

/*
 * A piece is what one warp copies at a time: rows of 32 units of 16 bytes, one access in flight
 * a lane and row. A slice is one or more pieces, the last one may be short.
 */
#define PACK_CUDA_PIECE_ROWS  8u
#define PACK_CUDA_PIECE_BYTES (PACK_CUDA_PIECE_ROWS * 32u * 16u)
#define PACK_CUDA_THREADS     256u /* of a thread block */
#define PACK_CUDA_PIECE_UNITS (PACK_CUDA_PIECE_BYTES / 16u)

/*
 * One slice in the device table, read 16 bytes at a time. A last row behind the slices says of all
 * of them: bytes is the pieces of each, if that is the same number; stride is the units of each, if
 * pieces may run over several slices, else 0.
 */
struct pack_cuda_row {
    uint64_t base, stride; /* the engine's */
    uint64_t offset;       /* in a slot */
    uint64_t key;          /* checksum_key of the slice */
    uint32_t bytes;
    uint32_t first_piece; /* pieces of the slices before this one */
    uint64_t unused;
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

/* The kernels' only parameter, by value: no copy has to be waited for. */
struct pack_cuda_args {
    uint64_t rows;    /* of the whole layout */
    uint64_t scratch; /* 0: no spans */
    uint32_t n_blocks, n_spans;
    uint32_t first_slice, n_slices;
    uint32_t pieces;           /* of one block, in these slices */
    uint32_t pieces_per_slice; /* the same for every slice, or 0 */
    uint32_t units_per_slice;  /* not 0: a piece is the next units of a slot, of several slices */
    uint32_t units_inverse;    /* 2^32 / units_per_slice, rounded up; 0 for 1 */
    struct pack_cuda_span_args spans[PACK_CUDA_SPANS];
    uint32_t ids[PACK_CUDA_BLOCKS];
    uint64_t slots[PACK_CUDA_BLOCKS];
};

#endif
