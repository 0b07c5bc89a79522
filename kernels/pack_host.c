/*
 * Gather, scatter and checksum on the host: one pass, each byte read once and written once.
 *
 * A job that is larger than the second-level caches writes past them: its bytes will be read much
 * later or by another process, and lines that are not fetched before they are written save a third
 * of a plain copy's traffic. What small pieces lack is the hardware prefetcher, which stops at the
 * end of each page: the copy itself fetches ahead, across pieces, and touches the pieces after the
 * next one, because their pages' translations take longer to find than their bytes.
 */
#include <endian.h>
#include <string.h>

#include "kernels/checksum.h"
#include "kernels/pack.h"

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#define LINE         64u          /* bytes of a cache line */
#define STREAM_BYTES (1u << 20)   /* jobs of at least this much stream */
#define AHEAD        (64u * LINE) /* fetched ahead of what is copied */
#define COPY_AHEAD   (32u * LINE) /* the same of bytes that lie in one piece */
#define WINDOW       4u           /* pieces known ahead; a power of two */
#define TOUCHED      2u           /* of these so many behind the current one are touched */

/* A whole unit as the checksum sees it. */
struct unit {
    uint64_t low, high;
};

static inline struct unit load_unit(const uint8_t *from)
{
    struct unit unit;
    memcpy(&unit, from, sizeof unit);
    return (struct unit){le64toh(unit.low), le64toh(unit.high)};
}

/* The checksum of a run of units, the last one maybe short. */
static uint64_t run_share(const uint8_t *from, uint64_t len, uint64_t key)
{
    uint64_t sum = 0;
#pragma GCC unroll 4
    for (; len >= CHECKSUM_UNIT; len -= CHECKSUM_UNIT, from += CHECKSUM_UNIT) {
        struct unit unit = load_unit(from);
        sum += checksum_share(key, unit.low, unit.high);
        key += CHECKSUM_STEP;
    }
    if (len > 0) {
        uint8_t padded[CHECKSUM_UNIT] = {0};
        memcpy(padded, from, len);
        struct unit unit = load_unit(padded);
        sum += checksum_share(key, unit.low, unit.high);
    }
    return sum;
}

#ifdef __x86_64__

static inline void store_unit(uint8_t *to, struct unit unit, bool stream)
{
    if (stream) {
        _mm_stream_si64((long long *)to, (long long)unit.low);
        _mm_stream_si64((long long *)(to + 8), (long long)unit.high);
    } else {
        memcpy(to, &unit, sizeof unit);
    }
}

static inline void stream_line(uint8_t *to, const uint8_t *from)
{
    __m128i v[LINE / sizeof(__m128i)];
    for (size_t i = 0; i < LINE / sizeof *v; i++)
        v[i] = _mm_loadu_si128((const __m128i *)from + i);
    for (size_t i = 0; i < LINE / sizeof *v; i++)
        _mm_stream_si128((__m128i *)to + i, v[i]);
}

/* Streaming stores are ordered by nothing else, not even by a release store of a word. */
static inline void stream_fence(void)
{
    _mm_sfence();
}

#else

static inline void store_unit(uint8_t *to, struct unit unit, bool stream)
{
    (void)stream;
    unit = (struct unit){htole64(unit.low), htole64(unit.high)};
    memcpy(to, &unit, sizeof unit);
}

static inline void stream_line(uint8_t *to, const uint8_t *from)
{
    memcpy(to, from, LINE);
}

static inline void stream_fence(void)
{
}

#endif

/*
 * Copies a line; with its checksum if summed. That is of what was loaded for the copy: the bytes
 * are not looked at a second time, so it tells nothing but what was written. One 64-bit product a
 * unit keeps up with memory; vectors do not help, their products have 32 bits.
 */
static inline __attribute__((always_inline)) uint64_t
copy_line(uint8_t *to, const uint8_t *from, uint64_t key, bool summed, bool stream)
{
    uint64_t sum = 0;
    if (!summed) {
        stream_line(to, from);
        return 0;
    }
#pragma GCC unroll 4
    for (uint32_t at = 0; at < LINE; at += CHECKSUM_UNIT, key += CHECKSUM_STEP) {
        struct unit unit = load_unit(from + at);
        store_unit(to + at, unit, stream);
        sum += checksum_share(key, unit.low, unit.high);
    }
    return sum;
}

/* Copies whole lines, fetching from `ahead` what will be copied next. */
static inline __attribute__((always_inline)) uint64_t copy_lines(uint8_t *to, const uint8_t *from,
                                                                 uint64_t bytes,
                                                                 const uint8_t *ahead, uint64_t key,
                                                                 bool summed, bool stream)
{
    uint64_t sum = 0;
    for (uint64_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch(ahead + at);
        sum += copy_line(to + at, from + at, key, summed, stream);
        key += LINE / CHECKSUM_UNIT * CHECKSUM_STEP;
    }
    return sum;
}

/* One slice of one block. */
struct piece {
    uint8_t *to;
    const uint8_t *from;
    uint64_t bytes;
    uint64_t key; /* of its first unit */
    uint32_t block;
};

/* Copies one piece while fetching the next one; its checksum, or 0 if none is wanted. */
static inline __attribute__((always_inline)) uint64_t
copy_piece(const struct piece *piece, const struct piece *next, bool summed, bool stream)
{
    uint64_t lines = piece->bytes / LINE * LINE;
    uint64_t first = lines > AHEAD ? lines - AHEAD : 0; /* the rest fetches from the next one */
    uint64_t sum =
        copy_lines(piece->to, piece->from, first, piece->from + AHEAD, piece->key, summed, stream);
    sum += copy_lines(piece->to + first, piece->from + first, lines - first, next->from,
                      piece->key + first / CHECKSUM_UNIT * CHECKSUM_STEP, summed, stream);

    uint8_t end[LINE];
    memcpy(end, piece->from + lines, piece->bytes - lines);
    memcpy(piece->to + lines, end, piece->bytes - lines);
    if (summed)
        sum += run_share(end, piece->bytes - lines,
                         piece->key + lines / CHECKSUM_UNIT * CHECKSUM_STEP);
    return sum;
}

static uint64_t copy_summed(const struct piece *piece, const struct piece *next)
{
    return copy_piece(piece, next, true, false);
}

static uint64_t copy_streaming(const struct piece *piece, const struct piece *next)
{
    return copy_piece(piece, next, false, true);
}

static uint64_t copy_streaming_summed(const struct piece *piece, const struct piece *next)
{
    return copy_piece(piece, next, true, true);
}

static bool is_large(const struct pack_job *job)
{
    uint64_t bytes = 0;
    for (uint32_t s = job->first_slice; s < job->first_slice + job->n_slices; s++)
        bytes += job->layout->slice_bytes[s];
    return bytes * job->n_blocks >= STREAM_BYTES;
}

static uint64_t copy(const struct piece *piece, const struct piece *next, bool summed, bool large)
{
    /* Streaming stores need aligned places, which slots are, and engines' slices mostly. */
    if (large && (uintptr_t)piece->to % CHECKSUM_UNIT == 0)
        return summed ? copy_streaming_summed(piece, next) : copy_streaming(piece, next);
    if (summed)
        return copy_summed(piece, next);
    memcpy(piece->to, piece->from, piece->bytes);
    return 0;
}

/* The pieces of a job in order: all slices of a block, then the next block. */
struct cursor {
    const struct pack_job *job;
    bool gather;
    uint32_t block, slice;
};

static struct piece next_piece(struct cursor *cursor)
{
    const struct pack_job *job = cursor->job;
    uint32_t b = cursor->block, s = cursor->slice;
    uint8_t *paged = job->slices[s].base + job->blocks[b].id * job->slices[s].stride;
    uint8_t *packed = job->blocks[b].slot + job->layout->slice_offsets[s];

    if (++cursor->slice == job->first_slice + job->n_slices) {
        cursor->slice = job->first_slice;
        cursor->block++;
    }
    return (struct piece){
        .to = cursor->gather ? packed : paged,
        .from = cursor->gather ? paged : packed,
        .bytes = job->layout->slice_bytes[s],
        .key = checksum_key(s),
        .block = b,
    };
}

static void run(const struct pack_job *job, bool gather)
{
    bool large = is_large(job);
    struct cursor cursor = {.job = job, .gather = gather, .slice = job->first_slice};
    struct piece window[WINDOW];
    uint32_t total = job->n_blocks * job->n_slices, found = 0;

    for (uint32_t b = 0; job->cells && b < job->n_blocks; b++)
        job->cells[b] = 0;
    for (uint32_t i = 0; i < total; i++) {
        for (; found < total && found <= i + TOUCHED; found++) {
            window[found % WINDOW] = next_piece(&cursor);
            __builtin_prefetch(window[found % WINDOW].from);
        }
        const struct piece *piece = &window[i % WINDOW];
        const struct piece *next = i + 1 < total ? &window[(i + 1) % WINDOW] : piece;
        uint64_t sum = copy(piece, next, job->cells != NULL, large);
        if (job->cells)
            job->cells[piece->block] += sum;
    }
    if (large)
        stream_fence();
}

/* What is read is not wanted again either. */
void pack_host_copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    uint64_t lines = (uintptr_t)to % CHECKSUM_UNIT == 0 ? bytes / LINE * LINE : 0;

    for (uint64_t at = 0; at < lines; at += LINE) {
        __builtin_prefetch(from + at + COPY_AHEAD, 0, 0);
        stream_line(to + at, from + at);
    }
    memcpy(to + lines, from + lines, bytes - lines);
    if (lines > 0)
        stream_fence();
}

void pack_host_gather(const struct pack_job *job)
{
    run(job, true);
}

void pack_host_scatter(const struct pack_job *job)
{
    run(job, false);
}

uint64_t pack_checksum_slice(const void *bytes, uint64_t len, uint32_t slice)
{
    return run_share(bytes, len, checksum_key(slice));
}

uint64_t pack_checksum_run(const void *bytes, uint64_t len, uint32_t slice, uint64_t first_unit)
{
    return run_share(bytes, len, checksum_key(slice) + first_unit * CHECKSUM_STEP);
}

uint64_t pack_checksum_slot(const struct pack_layout *layout, const uint8_t *slot)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < layout->n_slices; s++)
        total += pack_checksum_slice(slot + layout->slice_offsets[s], layout->slice_bytes[s], s);
    return total;
}
