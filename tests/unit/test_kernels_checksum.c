/*
 * The checksum. Its vectors (PROTOCOL.md has them too) were computed by a few lines of another
 * language from the definition; the code under test took no part in them.
 */
#include <string.h>

#include "kernels/pack.h"
#include "tests/lib/check_main.h"
#include "tests/lib/random.h"

#define UNIT 16u

static uint64_t state = RANDOM_STATE;

START_TEST(test_vectors)
{
    static uint8_t bytes[65536];
    uint8_t counting[16];

    for (size_t i = 0; i < sizeof(counting); i++)
        counting[i] = (uint8_t)i;
    ck_assert_uint_eq(pack_checksum_slice(NULL, 0, 5), 0);
    ck_assert_uint_eq(pack_checksum_slice(counting, 16, 0), 0x6226c8a5e60d4a46ull);
    ck_assert_uint_eq(pack_checksum_slice(counting, 16, 1), 0xec37cb834f6c871full);
    ck_assert_uint_eq(pack_checksum_slice("abc", 3, 0), 0x5bb3f4300c7e1cb4ull);
    ck_assert_uint_eq(pack_checksum_slice(bytes, sizeof(bytes), 2), 0xa759c368528193d6ull);
    for (size_t i = 0; i < 4096; i++)
        bytes[i] = (uint8_t)(i * 31 + 7);
    ck_assert_uint_eq(pack_checksum_slice(bytes, 4096, 3), 0x5030eab784244308ull);
}
END_TEST

START_TEST(test_slot_vector)
{
    static const uint32_t sizes[] = {16, 16};
    uint64_t offsets[2];
    struct pack_layout layout = {.slice_offsets = offsets};
    static uint8_t slot[4096];

    ck_assert_int_eq(pack_layout_init(&layout, sizes, 2), KVC_OK);
    memset(slot, 0x77, sizeof(slot)); /* padding does not count */
    for (size_t i = 0; i < 32; i++)
        slot[i] = (uint8_t)(i % 16);
    ck_assert_uint_eq(pack_checksum_slot(&layout, slot), 0x4e5e94293579d165ull);
}
END_TEST

/* The definition, once more and plainly, against runs of every length and alignment. */
static uint64_t plain(const uint8_t *bytes, uint64_t len, uint32_t slice)
{
    uint64_t key = (uint64_t)slice + 1, sum = 0;

    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ull;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBull;
    key ^= key >> 31;
    for (uint64_t u = 0; u * UNIT < len; u++, key += 0x9E3779B97F4A7C15ull) {
        uint64_t half[2] = {0, 0};

        for (uint64_t i = 0; i < UNIT && u * UNIT + i < len; i++)
            half[i / 8] |= (uint64_t)bytes[u * UNIT + i] << (i % 8 * 8);
        unsigned __int128 product =
            (unsigned __int128)(half[0] ^ key) * (half[1] ^ key ^ 0xBB67AE8584CAA73Bull);
        sum += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return sum;
}

START_TEST(test_all_lengths_and_alignments)
{
    uint8_t bytes[400];

    random_fill(&state, bytes, sizeof(bytes));
    for (uint32_t shift = 0; shift < 17; shift++) {
        for (uint32_t len = 0; len < 330; len++)
            if (pack_checksum_slice(bytes + shift, len, shift) != plain(bytes + shift, len, shift))
                ck_abort_msg("%u bytes, shifted by %u", len, shift);
    }
}
END_TEST

/* A save in parts adds up: cells of slice ranges sum to the slot's checksum. */
START_TEST(test_adds_up_over_slices)
{
    static const uint32_t sizes[] = {100, 16, 4096, 1, 33, 512, 4096};
    enum { N = sizeof(sizes) / sizeof(sizes[0]) };
    uint64_t offsets[N];
    struct pack_layout layout = {.slice_offsets = offsets};
    static uint8_t slot[16384];

    ck_assert_int_eq(pack_layout_init(&layout, sizes, N), KVC_OK);
    ck_assert_uint_le(layout.slot_bytes, sizeof(slot));
    random_fill(&state, slot, sizeof(slot));
    uint64_t whole = pack_checksum_slot(&layout, slot);
    for (uint32_t cut = 0; cut <= N; cut++) {
        uint64_t parts[2] = {0, 0};

        for (uint32_t s = 0; s < N; s++)
            parts[s >= cut] += pack_checksum_slice(slot + offsets[s], sizes[s], s);
        ck_assert_uint_eq(parts[0] + parts[1], whole);
    }
}
END_TEST

/* ---- what it detects */

enum pattern {
    RANDOM,
    ZEROS,
    ONES,
    ONE_BIT,   /* zeros with one bit set in some units */
    EXPONENTS, /* bf16 values of one magnitude */
    LOW_BITS,  /* 64-bit words that differ in their low bits only */
    HIGH_BITS,
    N_PATTERNS,
};

static void fill(uint8_t *to, size_t bytes, enum pattern pattern)
{
    memset(to, pattern == ONES ? 0xff : 0, bytes);
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t r = random_next(&state), word = 0;

        switch (pattern) {
        case RANDOM:
            word = r;
            break;
        case ONE_BIT:
            word = r >> 62 ? 0 : 1ull << (r % 64);
            break;
        case EXPONENTS:
            word = (r & 0x800f800f800f800full) | 0x3f003f003f003f00ull;
            break;
        case LOW_BITS:
            word = 0x1234567812345600ull | (r >> 62);
            break;
        case HIGH_BITS:
            word = (r >> 62 << 62) | 0x12345678ull;
            break;
        default:
            continue;
        }
        memcpy(to + at, &word, 8);
    }
}

START_TEST(test_every_changed_byte)
{
    static uint8_t bytes[1024];

    fill(bytes, sizeof(bytes), (enum pattern)_i);
    uint64_t before = pack_checksum_slice(bytes, sizeof(bytes), 7);
    uint32_t missed = 0;
    for (size_t at = 0; at < sizeof(bytes); at++) {
        for (uint32_t change = 1; change < 256; change++) {
            bytes[at] ^= (uint8_t)change;
            missed += pack_checksum_slice(bytes, sizeof(bytes), 7) == before;
            bytes[at] ^= (uint8_t)change;
        }
    }
    ck_assert_uint_eq(missed, 0);
}
END_TEST

static void swap(uint8_t *a, uint8_t *b, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = a[i];

        a[i] = b[i];
        b[i] = byte;
    }
}

/* Every pair of different pieces that changes places: 2-byte values, words, units, lines. */
static void check_swaps(uint8_t *bytes, size_t len, size_t piece)
{
    uint64_t before = pack_checksum_slice(bytes, len, 3);

    for (size_t a = 0; a < len; a += piece) {
        for (size_t b = a + piece; b + piece <= len; b += piece) {
            if (memcmp(bytes + a, bytes + b, piece) == 0)
                continue;
            swap(bytes + a, bytes + b, piece);
            if (pack_checksum_slice(bytes, len, 3) == before)
                ck_abort_msg("%zu bytes at %zu and %zu", piece, a, b);
            swap(bytes + a, bytes + b, piece);
        }
    }
}

START_TEST(test_swapped_pieces)
{
    static uint8_t bytes[4096];

    fill(bytes, sizeof(bytes), (enum pattern)_i);
    check_swaps(bytes, 512, 2);
    check_swaps(bytes, 1024, 8);
    check_swaps(bytes, sizeof(bytes), UNIT);
    check_swaps(bytes, sizeof(bytes), 64);
}
END_TEST

/* One set bit a unit, in either half: four changes whose sum a linear share would not see. */
START_TEST(test_swapped_sparse_units)
{
    static uint8_t bytes[64 * UNIT];
    uint64_t tried = 0;

    for (uint32_t bit = 0; bit < 64; bit++) {
        memset(bytes, 0, sizeof(bytes));
        for (uint32_t u = 0; u < 64; u++)
            bytes[u * UNIT + (random_next(&state) >> 63) * 8 + bit / 8] =
                (uint8_t)(1u << (bit % 8));
        uint64_t before = pack_checksum_slice(bytes, sizeof(bytes), bit);

        for (uint32_t a = 0; a < 64; a++) {
            for (uint32_t b = a + 1; b < 64; b++) {
                if (memcmp(bytes + a * UNIT, bytes + b * UNIT, UNIT) == 0)
                    continue;
                swap(bytes + a * UNIT, bytes + b * UNIT, UNIT);
                if (pack_checksum_slice(bytes, sizeof(bytes), bit) == before)
                    ck_abort_msg("bit %u, units %u and %u", bit, a, b);
                swap(bytes + a * UNIT, bytes + b * UNIT, UNIT);
                tried++;
            }
        }
    }
    ck_assert_uint_gt(tried, 50000);
}
END_TEST

START_TEST(test_swapped_at_powers_of_two)
{
    static uint8_t bytes[1 << 18];
    const size_t units = sizeof(bytes) / UNIT;

    fill(bytes, sizeof(bytes), (enum pattern)_i);
    uint64_t before = pack_checksum_slice(bytes, sizeof(bytes), 0);
    for (size_t distance = 1; distance < units; distance *= 2) {
        for (int i = 0; i < 4; i++) {
            uint8_t *a = bytes + random_next(&state) % (units - distance) * UNIT,
                    *b = a + distance * UNIT;

            if (memcmp(a, b, UNIT) == 0)
                continue;
            swap(a, b, UNIT);
            ck_assert_uint_ne(pack_checksum_slice(bytes, sizeof(bytes), 0), before);
            swap(a, b, UNIT);
        }
    }
}
END_TEST

START_TEST(test_swapped_slices)
{
    enum { N = 24 };
    uint32_t sizes[N];
    uint64_t offsets[N];
    struct pack_layout layout = {.slice_offsets = offsets};
    static uint8_t slot[N * 1024];

    for (uint32_t s = 0; s < N; s++)
        sizes[s] = 1024;
    ck_assert_int_eq(pack_layout_init(&layout, sizes, N), KVC_OK);
    fill(slot, sizeof(slot), (enum pattern)_i);
    uint64_t before = pack_checksum_slot(&layout, slot);
    for (uint32_t a = 0; a < N; a++) {
        for (uint32_t b = a + 1; b < N; b++) {
            if (memcmp(slot + offsets[a], slot + offsets[b], 1024) == 0)
                continue;
            swap(slot + offsets[a], slot + offsets[b], 1024);
            ck_assert_uint_ne(pack_checksum_slot(&layout, slot), before);
            swap(slot + offsets[a], slot + offsets[b], 1024);
        }
    }
}
END_TEST

/* The right bytes, some bytes too early or too late; units, values and odd distances. */
START_TEST(test_shifted)
{
    static uint8_t bytes[8192];

    fill(bytes, sizeof(bytes), (enum pattern)_i);
    uint64_t before = pack_checksum_slice(bytes, 4096, 2);
    for (uint32_t shift = 1; shift < 4096; shift += shift < 64 ? 1 : 61) {
        if (memcmp(bytes, bytes + shift, 4096) != 0)
            ck_assert_uint_ne(pack_checksum_slice(bytes + shift, 4096, 2), before);
    }
}
END_TEST

/* Every cut between what was there before and what should be there now. */
START_TEST(test_stale_end)
{
    static uint8_t stale[4096], fresh[4096], mixed[4096];

    fill(stale, sizeof(stale), (enum pattern)_i);
    fill(fresh, sizeof(fresh), (enum pattern)_i);
    uint64_t want = pack_checksum_slice(fresh, sizeof(fresh), 1);
    for (size_t at = 0; at < sizeof(mixed); at += UNIT) {
        memcpy(mixed, fresh, at);
        memcpy(mixed + at, stale + at, sizeof(mixed) - at);
        if (memcmp(mixed, fresh, sizeof(mixed)) != 0)
            ck_assert_uint_ne(pack_checksum_slice(mixed, sizeof(mixed), 1), want);
        memcpy(mixed, stale, at);
        memcpy(mixed + at, fresh + at, sizeof(mixed) - at);
        if (memcmp(mixed, fresh, sizeof(mixed)) != 0)
            ck_assert_uint_ne(pack_checksum_slice(mixed, sizeof(mixed), 1), want);
    }
}
END_TEST

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Equal bytes have another checksum in every slice and at every place of one. */
START_TEST(test_equal_units_differ_by_place)
{
    static uint64_t seen[64 * 64];
    static uint8_t bytes[64 * UNIT];
    size_t n = 0;

    for (uint32_t slice = 0; slice < 64; slice++) {
        for (uint32_t u = 0; u < 64; u++) {
            memset(bytes, 0, sizeof(bytes));
            uint64_t zeros = pack_checksum_slice(bytes, sizeof(bytes), slice);
            bytes[u * UNIT] = 1;
            seen[n++] = pack_checksum_slice(bytes, sizeof(bytes), slice) - zeros;
        }
    }
    qsort(seen, n, sizeof(seen[0]), by_value);
    uint32_t same = 0;
    for (size_t i = 1; i < n; i++)
        same += seen[i] == seen[i - 1];
    ck_assert_uint_eq(same, 0);
}
END_TEST

CHECK_MAIN_LOOPS("kernels/checksum", CHECK_UNIT_S, {test_vectors, 0, 0}, {test_slot_vector, 0, 0},
                 {test_all_lengths_and_alignments, 0, 0}, {test_adds_up_over_slices, 0, 0},
                 {test_every_changed_byte, 0, N_PATTERNS - 1},
                 {test_swapped_pieces, 0, N_PATTERNS - 1}, {test_swapped_sparse_units, 0, 0},
                 {test_swapped_at_powers_of_two, 0, N_PATTERNS - 1},
                 {test_swapped_slices, 0, N_PATTERNS - 1}, {test_shifted, 0, N_PATTERNS - 1},
                 {test_stale_end, 0, N_PATTERNS - 1}, {test_equal_units_differ_by_place, 0, 0})
