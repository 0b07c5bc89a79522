/*
 * Gather, scatter and checksum on a GPU. One launch is one job: a warp takes one piece of one slice
 * of one block at a time, so that many small slices and few large ones fill the grid alike.
 */
#include "kernels/checksum.h"
#include "kernels/pack_cuda_args.h"

namespace {

#ifndef PACK_MINB
#define PACK_MINB 3
#endif
#ifndef PACK_STEPS
#define PACK_STEPS 4
#endif
constexpr uint32_t lanes = 32;
constexpr uint32_t piece_units = PACK_CUDA_PIECE_UNITS;

static_assert(sizeof(struct pack_cuda_args) <= 4096, "the parameter space of every architecture");
static_assert(PACK_CUDA_BLOCKS <= PACK_CUDA_THREADS, "a thread for each block's sum");

struct piece {
    uint8_t *paged, *packed; /* both at the piece's start */
    uint64_t key;            /* of its first unit */
    uint32_t units;          /* whole ones */
    uint32_t tail;           /* bytes behind them, only in a slice's last piece */
};

/* A unit from memory that is aligned to no more than `align` bytes. */
template <uint32_t align> __device__ uint4 load_unit(const uint8_t *from)
{
    if constexpr (align == 16) {
#if PACK_LD == 1
        uint4 v;
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
        return v;
#elif PACK_LD == 2
        return __ldcs((const uint4 *)from);
#else
        return *(const uint4 *)from;
#endif
    } else if constexpr (align == 4) {
        const uint32_t *words = (const uint32_t *)from;
        return make_uint4(words[0], words[1], words[2], words[3]);
    } else {
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 16; i++)
            words[i / 4] |= (uint32_t)from[i] << (i % 4 * 8);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
}

template <uint32_t align> __device__ void store_unit(uint8_t *to, uint4 v)
{
    if constexpr (align == 16) {
#if PACK_ST == 1
        __stcs((uint4 *)to, v);
#else
        *(uint4 *)to = v;
#endif
    } else {
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (align == 4) {
                ((uint32_t *)to)[i] = words[i];
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    to[i * 4 + j] = (uint8_t)(words[i] >> (j * 8));
            }
        }
    }
}

__device__ uint64_t share(uint64_t key, uint4 v)
{
    return checksum_share(key, (uint64_t)v.y << 32 | v.x, (uint64_t)v.w << 32 | v.z);
}

/*
 * Copies this lane's units of `steps` rows of 32 units, all loads before the first store; their
 * share of the checksum. A row may be short or missing, unless the run is known to be full.
 */
template <bool gather, bool summed, uint32_t align, uint32_t steps, bool full>
__device__ uint64_t copy_rows(const struct piece &piece, uint32_t first)
{
    const uint8_t *from = gather ? piece.paged : piece.packed;
    uint8_t *to = gather ? piece.packed : piece.paged;
    uint4 v[steps];

#pragma unroll
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t unit = first + i * lanes;
        if (full || unit < piece.units)
            v[i] = load_unit<gather ? align : 16>(from + unit * 16);
    }
    uint64_t sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t unit = first + i * lanes;
        if (full || unit < piece.units) {
            store_unit<gather ? 16 : align>(to + unit * 16, v[i]);
            if constexpr (summed)
                sum += share(piece.key + unit * CHECKSUM_STEP, v[i]);
        }
    }
    return sum;
}

template <bool gather, bool summed, uint32_t align, uint32_t steps>
__device__ uint64_t copy_units(const struct piece &piece, uint32_t lane)
{
    uint64_t sum = 0;
    for (uint32_t first = lane; first < piece.units; first += steps * lanes)
        sum += copy_rows<gather, summed, align, steps, false>(piece, first);
    return sum;
}

/* The odd end of a slice, byte by byte. */
template <bool gather, bool summed> __device__ uint64_t copy_tail(const struct piece &piece)
{
    uint64_t half[2] = {0, 0};
    for (uint32_t i = 0; i < piece.tail; i++) {
        uint64_t at = piece.units * 16 + i;
        uint8_t byte = gather ? piece.paged[at] : piece.packed[at];
        (gather ? piece.packed : piece.paged)[at] = byte;
        if (i < 8)
            half[0] |= (uint64_t)byte << (i * 8);
        else
            half[1] |= (uint64_t)byte << (i * 8 - 64);
    }
    return summed ? checksum_share(piece.key + piece.units * CHECKSUM_STEP, half[0], half[1]) : 0;
}

/* Whatever is not whole units at multiples of 16: kept apart, since it would need many registers
 * of all others. */
template <bool gather, bool summed>
__device__ __noinline__ uint64_t copy_odd(struct piece piece, uint32_t lane)
{
    uint64_t sum;
    if ((uintptr_t)piece.paged % 16 == 0)
        sum = copy_units<gather, summed, 16, 2>(piece, lane);
    else if ((uintptr_t)piece.paged % 4 == 0)
        sum = copy_units<gather, summed, 4, 2>(piece, lane);
    else
        sum = copy_units<gather, summed, 1, 1>(piece, lane);
    if (piece.tail != 0 && lane == piece.units % lanes)
        sum += copy_tail<gather, summed>(piece);
    return sum;
}

template <bool gather, bool summed>
__device__ uint64_t copy_piece(const struct piece &piece, uint32_t lane)
{
    if ((uintptr_t)piece.paged % 16 != 0 || piece.tail != 0)
        return copy_odd<gather, summed>(piece, lane);
    if (piece.units != piece_units)
        return copy_units<gather, summed, 16, 4>(piece, lane);
    uint64_t sum = 0;
#pragma unroll 1
    for (uint32_t first = lane; first < piece_units; first += PACK_STEPS * lanes)
        sum += copy_rows<gather, summed, 16, PACK_STEPS, true>(piece, first);
    return sum;
}

/* The slice that piece number `piece` of the layout belongs to. */
__device__ uint32_t slice_of(const struct pack_cuda_args &args, uint32_t piece)
{
    const struct pack_cuda_row *rows = (const struct pack_cuda_row *)args.rows;
    uint32_t low = args.first_slice, high = args.first_slice + args.n_slices;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (__ldg(&rows[middle].first_piece) <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Half a row of the table: base and stride, or offset and key. */
__device__ ulonglong2 load_row(const struct pack_cuda_row *row, uint32_t half)
{
    return __ldg((const ulonglong2 *)row + half);
}

/* Where piece number `at` (counted over the job's slices) of block b lies. */
__device__ struct piece find_piece(const struct pack_cuda_args &args, uint32_t b, uint32_t at)
{
    const struct pack_cuda_row *rows = (const struct pack_cuda_row *)args.rows;
    uint32_t slice, number;
    if (args.pieces_per_slice != 0) {
        slice = args.first_slice + at / args.pieces_per_slice;
        number = at % args.pieces_per_slice;
    } else {
        uint32_t piece = at + __ldg(&rows[args.first_slice].first_piece);
        slice = slice_of(args, piece);
        number = piece - __ldg(&rows[slice].first_piece);
    }

    const struct pack_cuda_row *row = &rows[slice];
    ulonglong2 paged = load_row(row, 0), packed = load_row(row, 1);
    uint32_t start = number * PACK_CUDA_PIECE_BYTES;
    uint32_t bytes = __ldg(&row->bytes) - start;
    if (bytes > PACK_CUDA_PIECE_BYTES)
        bytes = PACK_CUDA_PIECE_BYTES;

    struct piece piece;
    piece.paged = (uint8_t *)(paged.x + args.ids[b] * paged.y + start);
    piece.packed = (uint8_t *)(args.slots[b] + packed.x + start);
    piece.key = packed.y + (uint64_t)number * piece_units * CHECKSUM_STEP;
    piece.units = bytes / 16;
    piece.tail = bytes % 16;
    return piece;
}

/*
 * Piece number `at` of block b where slices are small and alike: units that follow each other in
 * the slot, each lane's with a slice of its own.
 */
template <bool gather, bool summed>
__device__ uint64_t copy_small(const struct pack_cuda_args &args, uint32_t b, uint32_t at,
                               uint32_t lane)
{
    constexpr uint32_t steps = PACK_CUDA_PIECE_ROWS / 2;
    const uint32_t each = args.units_per_slice, end = args.n_slices * each;
    const struct pack_cuda_row *rows = (const struct pack_cuda_row *)args.rows + args.first_slice;
    uint8_t *packed = (uint8_t *)(args.slots[b] + (uint64_t)args.first_slice * each * 16);
    uint64_t id = args.ids[b], sum = 0;

#pragma unroll 1
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t first = at * piece_units + half * steps * lanes + lane;
        uint8_t *paged[steps];
        uint64_t keys[steps];
        uint4 v[steps];

#pragma unroll
        for (uint32_t i = 0; i < steps; i++) {
            uint32_t unit = first + i * lanes;
            uint32_t slice = args.units_inverse ? __umulhi(unit, args.units_inverse) : unit;
            if (unit < end) {
                ulonglong2 where = load_row(&rows[slice], 0);
                paged[i] = (uint8_t *)(where.x + id * where.y + (unit - slice * each) * 16);
                if constexpr (summed)
                    keys[i] =
                        __ldg(&rows[slice].key) + (unit - slice * each) * (uint64_t)CHECKSUM_STEP;
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < steps; i++)
            if (first + i * lanes < end)
                v[i] = *(const uint4 *)(gather ? paged[i] : packed + (first + i * lanes) * 16);
#pragma unroll
        for (uint32_t i = 0; i < steps; i++) {
            if (first + i * lanes < end) {
                *(uint4 *)(gather ? packed + (first + i * lanes) * 16 : paged[i]) = v[i];
                if constexpr (summed)
                    sum += share(keys[i], v[i]);
            }
        }
    }
    return sum;
}

__device__ uint64_t *scratch_sum(const struct pack_cuda_args &args, uint32_t b)
{
    return ((struct pack_cuda_scratch *)args.scratch)->sums[b];
}

/* Adds a warp's sum for block b to its thread block's. */
__device__ void add_to_sum(unsigned long long *sums, uint32_t b, uint64_t sum)
{
#pragma unroll
    for (uint32_t d = lanes / 2; d > 0; d /= 2)
        sum += __shfl_down_sync(0xffffffff, sum, d);
    if (threadIdx.x % lanes == 0)
        atomicAdd(&sums[b], (unsigned long long)sum);
}

/*
 * The last thread block to have copied pieces of a span publishes it. Order: every thread's bytes
 * and sums, its block's barrier, the fence, the count; the last block's read of the count, the
 * fence, the cells, the barrier, the fence, the word. Fences are cumulative, so whoever reads the
 * word anywhere in the system with acquire sees all bytes and cells of the span.
 */
template <bool summed>
__device__ void finish(const struct pack_cuda_args &args, uint32_t number, uint32_t copied,
                       const unsigned long long *sums)
{
    struct pack_cuda_scratch *scratch = (struct pack_cuda_scratch *)args.scratch;
    const struct pack_cuda_span_args &span = args.spans[number];
    const uint32_t b = span.first_block + threadIdx.x;
    __shared__ bool last;

    __syncthreads();
    if (summed && threadIdx.x < span.n_blocks && sums[b] != 0)
        atomicAdd((unsigned long long *)scratch_sum(args, b), sums[b]);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        last = atomicAdd(&scratch->done[number], copied) + copied == span.n_blocks * args.pieces;
        __threadfence();
    }
    __syncthreads();
    if (!last)
        return;

    if (summed && threadIdx.x < span.n_blocks) {
        unsigned long long *sum = (unsigned long long *)scratch_sum(args, b);
        ((volatile uint64_t *)span.cells)[threadIdx.x] = atomicExch(sum, 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        scratch->done[number] = 0;
        __threadfence_system();
        if (span.word != 0)
            *(volatile uint64_t *)span.word = span.word_value;
    }
}

/* Pieces from `first` on to before `end`, one after another by the warps of a thread block. */
template <bool gather, bool summed, bool small>
__device__ void copy_pieces(const struct pack_cuda_args &args, uint32_t first, uint32_t end,
                            unsigned long long *sums)
{
    uint32_t lane = threadIdx.x % lanes;
    uint32_t summed_block = first / args.pieces;
    uint64_t sum = 0;

    for (uint32_t t = first + threadIdx.x / lanes; t < end; t += PACK_CUDA_THREADS / lanes) {
        uint32_t b = t / args.pieces, at = t - b * args.pieces;
        if (summed && b != summed_block) {
            add_to_sum(sums, summed_block, sum);
            summed_block = b;
            sum = 0;
        }
        if constexpr (small)
            sum += copy_small<gather, summed>(args, b, at, lane);
        else
            sum += copy_piece<gather, summed>(find_piece(args, b, at), lane);
    }
    if constexpr (summed)
        add_to_sum(sums, summed_block, sum);
}

/*
 * A thread block copies consecutive pieces, mostly of one block: its warps keep their sums in
 * registers until the block changes, few sums meet at one address of the scratch, and few thread
 * blocks have a part in a span.
 */
template <bool gather, bool summed, bool small>
__device__ void copy_job(const struct pack_cuda_args &args)
{
    __shared__ unsigned long long sums[summed ? PACK_CUDA_BLOCKS : 1];
    uint64_t total = (uint64_t)args.n_blocks * args.pieces;
    uint32_t first = (uint32_t)(total * blockIdx.x / gridDim.x);
    uint32_t end = (uint32_t)(total * (blockIdx.x + 1) / gridDim.x);

    if constexpr (summed) {
        if (threadIdx.x < args.n_blocks)
            sums[threadIdx.x] = 0;
        __syncthreads();
    }
#pragma unroll 1
    for (uint32_t i = 0; i < max(args.n_spans, 1); i++) {
        uint32_t from = first, to = end;
        bool alone = false; /* a word without pieces */
        if (args.n_spans != 0) {
            uint32_t begin = args.spans[i].first_block * args.pieces;
            uint32_t behind = begin + args.spans[i].n_blocks * args.pieces;
            from = max(begin, first);
            to = min(behind, end);
            alone = begin == behind && blockIdx.x == 0;
        }
        if (from < to)
            copy_pieces<gather, summed, small>(args, from, to, sums);
        if (args.n_spans != 0 && (from < to || alone))
            finish<summed>(args, i, alone ? 0 : to - from, sums);
    }
}

} // namespace

#define PACK_KERNEL(name, gather, summed, small)                                                   \
    extern "C" __global__ void __launch_bounds__(PACK_CUDA_THREADS, PACK_MINB)                              \
        name(const __grid_constant__ struct pack_cuda_args args)                                   \
    {                                                                                              \
        copy_job<gather, summed, small>(args);                                                     \
    }

PACK_KERNEL(pack_gather, true, false, false)
PACK_KERNEL(pack_gather_summed, true, true, false)
PACK_KERNEL(pack_scatter, false, false, false)
PACK_KERNEL(pack_scatter_summed, false, true, false)
PACK_KERNEL(pack_gather_small, true, false, true)
PACK_KERNEL(pack_gather_small_summed, true, true, true)
PACK_KERNEL(pack_scatter_small, false, false, true)
PACK_KERNEL(pack_scatter_small_summed, false, true, true)
