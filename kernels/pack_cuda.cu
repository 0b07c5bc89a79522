/*
 * Gather, scatter and checksum on a GPU. One launch is one job: a warp takes one piece of one slice
 * of one block at a time, so that many small slices and few large ones fill the grid alike.
 */
#include "kernels/checksum.h"
#include "kernels/pack_cuda_args.h"

namespace
{

constexpr uint32_t lanes = 32;
constexpr uint32_t piece_units = PACK_CUDA_PIECE_BYTES / CHECKSUM_UNIT;

static_assert(sizeof(struct pack_cuda_row) == 32, "two accesses");
static_assert(sizeof(struct pack_cuda_args) <= 4096, "the parameter space of every architecture");
static_assert(sizeof(struct pack_cuda_span_args) % sizeof(uint64_t) == 0, "lists are closed up");
static_assert(PACK_CUDA_BLOCKS == PACK_CUDA_THREADS, "a thread for each block's sum");
static_assert(PACK_CUDA_SPANS <= 32, "a lane for each span");

struct piece {
    uint8_t *paged, *packed; /* both at the piece's start */
    uint64_t key;            /* of its first unit */
    uint32_t units;          /* whole ones */
    uint32_t tail;           /* bytes behind them, only in a slice's last piece */
};

/*
 * A unit from memory that is aligned to no more than `align` bytes. Past the L1 cache: what a
 * launch reads that begins early may have been written since its multiprocessor last read there.
 */
template <uint32_t align> __device__ uint4 load_unit(const uint8_t *from)
{
    if constexpr (align == 16) {
        return __ldcg((const uint4 *)from);
    } else if constexpr (align == 4) {
        const uint32_t *words = (const uint32_t *)from;
        return make_uint4(__ldcg(words), __ldcg(words + 1), __ldcg(words + 2), __ldcg(words + 3));
    } else {
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 16; i++)
            words[i / 4] |= (uint32_t)__ldcg(from + i) << (i % 4 * 8);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
}

template <uint32_t align> __device__ void store_unit(uint8_t *to, uint4 v)
{
    if constexpr (align == 16) {
        *(uint4 *)to = v;
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
            v[i] = load_unit < gather ? align : 16 > (from + unit * 16);
    }
    uint64_t sum = 0, key = piece.key + first * CHECKSUM_STEP;
#pragma unroll
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t unit = first + i * lanes;
        if (full || unit < piece.units) {
            store_unit<gather ? 16 : align>(to + unit * 16, v[i]);
            if constexpr (summed) {
                sum += share(key, v[i]);
                key += lanes * CHECKSUM_STEP;
                /* One after another: all keys at once would take registers for the data. */
                asm volatile("" : "+l"(key), "+l"(sum));
            }
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
        uint8_t byte = __ldcg(gather ? piece.paged + at : piece.packed + at);
        (gather ? piece.packed : piece.paged)[at] = byte;
        if (i < 8)
            half[0] |= (uint64_t)byte << (i * 8);
        else
            half[1] |= (uint64_t)byte << (i * 8 - 64);
    }
    return summed ? checksum_share(piece.key + piece.units * CHECKSUM_STEP, half[0], half[1]) : 0;
}

template <bool gather, bool summed>
__device__ uint64_t copy_piece(const struct piece &piece, uint32_t lane)
{
    uint64_t sum;
    if ((uintptr_t)piece.paged % 16 == 0 && piece.units == piece_units)
        sum = copy_rows<gather, summed, 16, PACK_CUDA_PIECE_ROWS, true>(piece, lane);
    else if ((uintptr_t)piece.paged % 16 == 0)
        sum = copy_units<gather, summed, 16, 4>(piece, lane);
    else if ((uintptr_t)piece.paged % 4 == 0)
        sum = copy_units<gather, summed, 4, 2>(piece, lane);
    else
        sum = copy_units<gather, summed, 1, 1>(piece, lane);
    if (piece.tail != 0 && lane == piece.units % lanes)
        sum += copy_tail<gather, summed>(piece);
    return sum;
}

/* The slice that piece number `piece` of the layout belongs to, where slices are not alike. */
__device__ uint32_t search_slice(const uint32_t *first_piece, uint32_t low, uint32_t high,
                                 uint32_t piece)
{
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (__ldg(&first_piece[middle]) <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Which of slices that are alike, counted from the job's first, something of them lies in. */
__device__ uint32_t find_slice(const struct pack_cuda_args &args, uint32_t number)
{
    return args.inverse != 0 ? __umulhi(number, args.inverse) : number;
}

/* A row's halves: base and stride; key, and offset and bytes. */
__device__ ulonglong2 load_row(const struct pack_cuda_args &args, uint32_t slice, uint32_t half)
{
    const struct pack_cuda_row *rows = (const struct pack_cuda_row *)args.rows;
    return __ldg((const ulonglong2 *)&rows[slice] + half);
}

/* Where piece number `at` (counted over the job's slices) of block b lies. */
__device__ struct piece find_piece(const struct pack_cuda_args &args, uint32_t b, uint32_t at)
{
    uint32_t slice, number;
    if (args.each != 0) {
        slice = find_slice(args, at);
        number = at - slice * args.each;
        slice += args.first_slice;
    } else {
        const uint32_t *first_piece = (const uint32_t *)args.first_piece;
        at += __ldg(&first_piece[args.first_slice]);
        slice = search_slice(first_piece, args.first_slice, args.first_slice + args.n_slices, at);
        number = at - __ldg(&first_piece[slice]);
    }

    ulonglong2 paged = load_row(args, slice, 0), packed = load_row(args, slice, 1);
    uint32_t start = number * PACK_CUDA_PIECE_BYTES;
    uint32_t bytes = (uint32_t)(packed.y >> 32) - start;
    if (bytes > PACK_CUDA_PIECE_BYTES)
        bytes = PACK_CUDA_PIECE_BYTES;

    struct piece piece;
    piece.paged = (uint8_t *)(paged.x + pack_cuda_ids(&args)[b] * paged.y + start);
    piece.packed = (uint8_t *)(pack_cuda_slots(&args)[b] + (uint64_t)(uint32_t)packed.y * 16 + start);
    piece.key = packed.x + (uint64_t)number * piece_units * CHECKSUM_STEP;
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
    const uint32_t end = args.n_slices * args.each;
    const uint32_t first = at * PACK_CUDA_SMALL_UNITS + lane;
    uint8_t *packed = (uint8_t *)(pack_cuda_slots(&args)[b] + (uint64_t)args.first_slice * args.each * 16);
    uint8_t *paged[PACK_CUDA_SMALL_ROWS];
    uint64_t keys[PACK_CUDA_SMALL_ROWS], id = pack_cuda_ids(&args)[b], sum = 0;
    uint4 v[PACK_CUDA_SMALL_ROWS];

#pragma unroll
    for (uint32_t i = 0; i < PACK_CUDA_SMALL_ROWS; i++) {
        uint32_t unit = first + i * lanes;
        uint32_t slice = find_slice(args, unit), inside = unit - slice * args.each;
        if (unit < end) {
            ulonglong2 where = load_row(args, args.first_slice + slice, 0);
            paged[i] = (uint8_t *)(where.x + id * where.y + inside * 16);
            if constexpr (summed)
                keys[i] = load_row(args, args.first_slice + slice, 1).x +
                          inside * (uint64_t)CHECKSUM_STEP;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < PACK_CUDA_SMALL_ROWS; i++)
        if (first + i * lanes < end)
            v[i] = load_unit<16>(gather ? paged[i] : packed + (first + i * lanes) * 16);
#pragma unroll
    for (uint32_t i = 0; i < PACK_CUDA_SMALL_ROWS; i++) {
        if (first + i * lanes < end) {
            store_unit<16>(gather ? packed + (first + i * lanes) * 16 : paged[i], v[i]);
            if constexpr (summed)
                sum += share(keys[i], v[i]);
        }
    }
    return sum;
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

__device__ void fence_device()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ void fence_system()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/*
 * Counts this thread block's pieces, from `first` on to before `end`, in a span; whether they were
 * its last. Of a span without pieces nothing is counted, and the first thread block has the last.
 */
__device__ bool count_pieces(const struct pack_cuda_args &args, uint32_t number, uint32_t first,
                             uint32_t end)
{
    struct pack_cuda_scratch *scratch = (struct pack_cuda_scratch *)args.scratch;
    const uint32_t begin = pack_cuda_spans(&args)[number].first_block * args.pieces;
    const uint32_t all = pack_cuda_spans(&args)[number].n_blocks * args.pieces;
    const uint32_t from = max(begin, first), to = min(begin + all, end);

    if (all == 0)
        return blockIdx.x == 0;
    if (from >= to)
        return false;
    if (args.far != 0)
        fence_system();
    else
        fence_device();
    return atomicAdd(&scratch->done[number], to - from) + to - from == all;
}

/*
 * The last thread block to have copied pieces of a span publishes it. Order: every thread's bytes
 * and sums, its block's barrier, the fence, the count; the last block's count, the fence, the
 * cells, the barrier, the fence of the system, the word. Fences are cumulative, so whoever reads
 * the word anywhere in the system with acquire sees all bytes and cells of the span. A lane has a
 * span.
 */
template <bool summed>
__device__ void publish(const struct pack_cuda_args &args, uint32_t first, uint32_t end,
                        const unsigned long long *sums)
{
    struct pack_cuda_scratch *scratch = (struct pack_cuda_scratch *)args.scratch;
    const uint32_t thread = threadIdx.x;
    __shared__ uint32_t ended; /* a bit for each span */

    __syncthreads();
    if constexpr (summed) {
        if (thread < args.n_blocks && sums[thread] != 0)
            atomicAdd((unsigned long long *)scratch->sums[thread], sums[thread]);
        __syncthreads();
    }
    if (thread < lanes) {
        bool last = thread < args.n_spans && count_pieces(args, thread, first, end);
        uint32_t all = __ballot_sync(0xffffffff, last);
        if (all != 0)
            fence_device();
        if (thread == 0)
            ended = all;
    }
    __syncthreads();
    if (ended == 0)
        return;

    if constexpr (summed) {
        for (uint32_t rest = ended; rest != 0; rest &= rest - 1) {
            const struct pack_cuda_span_args &span = pack_cuda_spans(&args)[__ffs(rest) - 1];
            if (thread < span.n_blocks)
                ((volatile uint64_t *)span.cells)[thread] =
                    atomicExch((unsigned long long *)scratch->sums[span.first_block + thread], 0);
        }
        __syncthreads();
    }
    if (thread < lanes && (ended >> thread & 1) != 0) {
        scratch->done[thread] = 0;
        fence_system();
        const struct pack_cuda_span_args &span = pack_cuda_spans(&args)[thread];
        if (span.word != 0)
            *(volatile uint64_t *)span.word = span.word_value;
    }
}

/* Pieces from `first` on to before `end`, one after another by the warps of a thread block, which
 * keep their sums until the block changes. */
template <bool gather, bool summed, bool small>
__device__ void copy_pieces(const struct pack_cuda_args &args, uint32_t first, uint32_t end,
                            unsigned long long *sums)
{
    constexpr uint32_t warps = PACK_CUDA_THREADS / lanes;
    const uint32_t lane = threadIdx.x % lanes;
    uint32_t b = (first + threadIdx.x / lanes) / args.pieces;
    uint32_t at = first + threadIdx.x / lanes - b * args.pieces;
    int32_t left = (int32_t)(end - first - threadIdx.x / lanes);
    uint64_t sum = 0;

    for (; left > 0; left -= warps) {
        if constexpr (small)
            sum += copy_small<gather, summed>(args, b, at, lane);
        else
            sum += copy_piece<gather, summed>(find_piece(args, b, at), lane);
        at += warps;
        if (summed && (at >= args.pieces || left <= (int32_t)warps)) {
            add_to_sum(sums, b, sum);
            sum = 0;
        }
        for (; at >= args.pieces; b++)
            at -= args.pieces;
    }
}

/*
 * Launches of one call may run into each other, where the GPU can: what was before the first has ended
 * when all its thread blocks run, and copies of one call touch no common byte. Only what they share,
 * the scratch, has to wait, and nothing ends before what it follows. Nobody else's kernel is let begin.
 */
__device__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ void wait_for_the_one_before()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * A thread block copies consecutive pieces, mostly of one block: few sums meet at one address of
 * the scratch, and few thread blocks have a part in a span.
 */
template <bool gather, bool summed, bool small>
__device__ void copy_job(const struct pack_cuda_args &args)
{
    __shared__ unsigned long long sums[summed ? PACK_CUDA_BLOCKS : 1];
    const uint32_t first = blockIdx.x * args.share + min(blockIdx.x, args.rest);
    const uint32_t end = first + args.share + (blockIdx.x < args.rest);

    if (args.more != 0)
        let_next_begin();
    if constexpr (summed) {
        sums[threadIdx.x] = 0;
        __syncthreads();
    }
    if (args.pieces != 0)
        copy_pieces<gather, summed, small>(args, first, end, sums);
    if (args.follows != 0)
        wait_for_the_one_before();
    if (args.n_spans != 0)
        publish<summed>(args, first, end, sums);
}

} // namespace

/* Of each kernel one more, whose parameter has room for a short list only. */
#define PACK_KERNEL(name, gather, summed, small)                                                   \
    extern "C" __global__ void __launch_bounds__(PACK_CUDA_THREADS, 3)                             \
        name(const __grid_constant__ struct pack_cuda_args args)                                   \
    {                                                                                              \
        copy_job<gather, summed, small>(args);                                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(PACK_CUDA_THREADS, 3)                             \
        name##_short(const __grid_constant__ struct pack_cuda_short_args args)                     \
    {                                                                                              \
        copy_job<gather, summed, small>(*(const struct pack_cuda_args *)&args);                    \
    }

PACK_KERNEL(pack_gather, true, false, false)
PACK_KERNEL(pack_gather_summed, true, true, false)
PACK_KERNEL(pack_scatter, false, false, false)
PACK_KERNEL(pack_scatter_summed, false, true, false)
PACK_KERNEL(pack_gather_small, true, false, true)
PACK_KERNEL(pack_gather_small_summed, true, true, true)
PACK_KERNEL(pack_scatter_small, false, false, true)
PACK_KERNEL(pack_scatter_small_summed, false, true, true)
