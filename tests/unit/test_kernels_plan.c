/* The planner: packing, fingerprints (vectors as in PROTOCOL.md), chunks. */
#include <stdio.h>
#include <string.h>

#include "kernels/pack.h"
#include "tests/lib/check_main.h"

#define MIB (1024u * 1024u)

static uint32_t sizes[KVC_SLICES_MAX + 1];
static uint64_t offsets[KVC_SLICES_MAX + 1];

static void repeat(uint32_t bytes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sizes[i] = bytes;
}

START_TEST(test_offsets)
{
    static const uint32_t mixed[] = {1, 16, 17, 4096, 100};
    static const uint64_t expected[] = {0, 16, 32, 64, 4160};
    struct pack_layout layout = {.slice_offsets = offsets};

    ck_assert_int_eq(pack_layout_init(&layout, mixed, 5), KVC_OK);
    ck_assert_uint_eq(layout.n_slices, 5);
    ck_assert_ptr_eq(layout.slice_bytes, mixed);
    ck_assert_mem_eq(offsets, expected, sizeof(expected));
    ck_assert_uint_eq(layout.block_bytes, 1 + 16 + 17 + 4096 + 100);
    ck_assert_uint_eq(layout.slot_bytes, 4608); /* 4260, to the next multiple of 512 */
}
END_TEST

START_TEST(test_slot_sizes)
{
    static const struct {
        uint32_t bytes, n;
        uint64_t slot_bytes;
    } rows[] = {
        {1, 1, 4096},     {2048, 2, 4096},      {2048, 8, 16384},          {4097, 1, 4608},
        {576, 61, 35328}, {18432, 61, 1124352}, {1u << 30, 4, 1ull << 32},
    };
    struct pack_layout layout = {.slice_offsets = offsets};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        repeat(rows[i].bytes, rows[i].n);
        ck_assert_int_eq(pack_layout_init(&layout, sizes, rows[i].n), KVC_OK);
        ck_assert_uint_eq(layout.slot_bytes, rows[i].slot_bytes);
        ck_assert_uint_eq(layout.block_bytes, (uint64_t)rows[i].bytes * rows[i].n);
    }
}
END_TEST

/* A refused layout is as it was, and so are its offsets. */
START_TEST(test_refused)
{
    struct pack_layout layout, before;

    memset(&layout, 0x5a, sizeof(layout));
    layout.slice_offsets = offsets;
    memset(offsets, 0x5a, sizeof(offsets));
    memcpy(&before, &layout, sizeof(layout));

    repeat(16, KVC_SLICES_MAX + 1);
    ck_assert_int_eq(pack_layout_init(&layout, sizes, 0), KVC_E_INVALID);
    ck_assert_int_eq(pack_layout_init(&layout, sizes, KVC_SLICES_MAX + 1), KVC_E_LIMIT);
    sizes[7] = 0;
    ck_assert_int_eq(pack_layout_init(&layout, sizes, 8), KVC_E_INVALID);
    sizes[7] = KVC_SLICE_BYTES_MAX + 1;
    ck_assert_int_eq(pack_layout_init(&layout, sizes, 8), KVC_E_LIMIT);
    repeat(KVC_SLICE_BYTES_MAX, 5);
    ck_assert_int_eq(pack_layout_init(&layout, sizes, 5), KVC_E_LIMIT);

    ck_assert_mem_eq(&before, &layout, sizeof(layout));
    for (size_t i = 0; i < KVC_SLICES_MAX; i++)
        ck_assert_uint_eq(offsets[i], 0x5a5a5a5a5a5a5a5aull);
}
END_TEST

static const char *fingerprint(uint32_t tokens, const uint32_t *slice_bytes, uint32_t n,
                               const uint8_t *dtypes, char text[33])
{
    struct pack_layout layout = {.slice_offsets = offsets};
    uint8_t bytes[KVC_FINGERPRINT_BYTES];

    ck_assert_int_eq(pack_layout_init(&layout, slice_bytes, n), KVC_OK);
    pack_layout_fingerprint(&layout, tokens, dtypes, bytes);
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

START_TEST(test_fingerprint_vectors)
{
    static const uint8_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t mixed[] = {100, 4, 36864};
    static const uint32_t one[] = {1};
    char text[33];

    repeat(2048, 8);
    ck_assert_str_eq(fingerprint(16, sizes, 8, NULL, text), "1b89f8cfbf4dd80c62530e15ba1f4b56");
    ck_assert_str_eq(fingerprint(16, sizes, 8, ones, text), "7c9edeee5f6971427935a5dca407ddfb");
    ck_assert_str_eq(fingerprint(32, mixed, 3, NULL, text), "d24b4c821292265780d0c1542b84528e");
    ck_assert_str_eq(fingerprint(1, one, 1, NULL, text), "b51b3082a60ac6b261bdc46b0c6f0bdb");
}
END_TEST

/* S34: whatever differs is another fingerprint. */
START_TEST(test_fingerprints_differ)
{
    static const uint8_t zeros[4] = {0}, other[4] = {0, 0, 1, 0};
    static const uint32_t a[] = {2048, 2048, 1024, 1024}, b[] = {2048, 1024, 2048, 1024};
    char texts[7][33];

    fingerprint(16, a, 4, NULL, texts[0]);
    fingerprint(32, a, 4, NULL, texts[1]);
    fingerprint(16, a, 3, NULL, texts[2]);
    fingerprint(16, b, 4, NULL, texts[3]);
    fingerprint(16, a, 4, zeros, texts[4]);
    fingerprint(16, a, 4, other, texts[5]);
    repeat(2048, KVC_SLICES_MAX);
    fingerprint(16, sizes, KVC_SLICES_MAX, NULL, texts[6]);
    for (size_t i = 0; i < 7; i++) {
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(texts[i], texts[j]);
    }
}
END_TEST

/* The sizes of the missing blocks, 0 for a hit; the blocks of each chunk as "3 1 2". */
static const char *cut(const uint64_t *blocks, size_t n, char *text, size_t len)
{
    struct pack_cut state = {0};
    uint32_t count = 0;
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (blocks[i] == 0)
            continue;
        if (pack_cut_next(&state, blocks[i]) && count > 0) {
            at += (size_t)snprintf(text + at, len - at, "%u ", count);
            count = 0;
        }
        count++;
    }
    if (count > 0)
        snprintf(text + at, len - at, "%u", count);
    return text;
}

#define CUT(...)                                                                                   \
    cut((const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8, text,        \
        sizeof(text))

static const char *cut_same(uint64_t bytes, size_t n, char *text, size_t len)
{
    static uint64_t blocks[1024];

    for (size_t i = 0; i < n; i++)
        blocks[i] = bytes;
    return cut(blocks, n, text, len);
}

START_TEST(S2_byte_cap_comes_first)
{
    char text[256];

    ck_assert_str_eq(cut_same(4 * MIB, 10, text, sizeof(text)), "4 4 2");
    ck_assert_str_eq(cut_same(5 * MIB, 7, text, sizeof(text)), "3 3 1");
    ck_assert_str_eq(CUT(8 * MIB, 8 * MIB, 1, 16 * MIB - 1, 1, 1), "2 2 2");
    ck_assert_str_eq(CUT(9 * MIB, 8 * MIB, 8 * MIB, 1), "1 2 1");
}
END_TEST

START_TEST(S2_block_cap_comes_first)
{
    char text[256];

    ck_assert_str_eq(cut_same(4096, 64, text, sizeof(text)), "64");
    ck_assert_str_eq(cut_same(4096, 65, text, sizeof(text)), "64 1");
    ck_assert_str_eq(cut_same(196608, 200, text, sizeof(text)), "64 64 64 8");
    /* both caps at the same block */
    ck_assert_str_eq(cut_same(262144, 130, text, sizeof(text)), "64 64 2");
    ck_assert_str_eq(cut_same(262145, 64, text, sizeof(text)), "63 1");
}
END_TEST

START_TEST(S2_oversize_block_goes_alone)
{
    char text[256];

    ck_assert_str_eq(CUT(17 * MIB), "1");
    ck_assert_str_eq(CUT(16 * MIB), "1");
    ck_assert_str_eq(CUT(40ull * MIB, 40ull * MIB), "1 1");
    ck_assert_str_eq(CUT(KVC_BLOCK_BYTES_MAX), "1");
}
END_TEST

START_TEST(S2_oversize_blocks_among_small_ones)
{
    char text[256];

    ck_assert_str_eq(CUT(1, 1, 17 * MIB, 1, 1, 1), "2 1 3");
    ck_assert_str_eq(CUT(17 * MIB, 1), "1 1");
    ck_assert_str_eq(CUT(1, 16 * MIB, 1), "1 1 1");
    ck_assert_str_eq(CUT(20 * MIB, 20 * MIB, 4, 4, 20 * MIB), "1 1 2 1");
}
END_TEST

START_TEST(S2_hits_do_not_cut)
{
    char text[256];

    ck_assert_str_eq(CUT(0, 4, 0, 0, 4, 0), "2");
    ck_assert_str_eq(CUT(0, 0, 0), "");
    ck_assert_str_eq(CUT(8 * MIB, 0, 8 * MIB, 0, 8 * MIB), "2 1");
    ck_assert_str_eq(CUT(17 * MIB, 0, 1, 0, 1), "1 2");
}
END_TEST

CHECK_MAIN("kernels/plan", CHECK_UNIT_S, test_offsets, test_slot_sizes, test_refused,
           test_fingerprint_vectors, test_fingerprints_differ, S2_byte_cap_comes_first,
           S2_block_cap_comes_first, S2_oversize_block_goes_alone,
           S2_oversize_blocks_among_small_ones, S2_hits_do_not_cut)
