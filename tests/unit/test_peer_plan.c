/* Plans of transfers: views, sources, merging, batches, runs. */
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/peer/plan.h"
#include "daemon/peer/view.h"
#include "tests/lib/check_main.h"

#define KIB 1024ull
#define MIB (1024ull * KIB)

START_TEST(T1_slab_size)
{
    ck_assert_uint_eq(view_slab_bytes(4 * KIB, 192 * KIB), 12 * MIB);
    ck_assert_uint_eq(view_slab_bytes(4 * KIB, 256 * KIB), 16 * MIB);
    ck_assert_uint_eq(view_slab_bytes(32 * KIB, 2 * MIB), 16 * MIB);
    ck_assert_uint_eq(view_slab_bytes(40 * MIB, 80 * MIB), 40 * MIB);
    ck_assert_uint_eq(view_slab_bytes(1000, 1000), 64000);
}
END_TEST

START_TEST(T1_a_slab_that_cannot_be_had)
{
    struct view_slab slab;

    fault_arm("peer.slab", 0, 1);
    ck_assert_int_eq(view_slab_create(12 * MIB, &slab), KVC_E_NO_MEMORY);
    ck_assert_int_eq(view_slab_create(12 * MIB, &slab), KVC_OK);
    view_slab_destroy(&slab);
}
END_TEST

START_TEST(T2_two_views_of_one_allocation)
{
    static const struct {
        uint64_t bytes, small;
    } rows[] = {
        {VIEW_SMALL_BYTES - 4096, 0},
        {VIEW_SMALL_BYTES, 0},
        {VIEW_SMALL_BYTES + 4096, VIEW_SMALL_BYTES},
        {12 * MIB, VIEW_SMALL_BYTES},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct view_slab slab;

        ck_assert_int_eq(view_slab_create(rows[i].bytes, &slab), KVC_OK);
        ck_assert_ptr_nonnull(slab.base);
        ck_assert_uint_eq(slab.bytes[VIEW_FULL], rows[i].bytes);
        ck_assert_uint_eq(slab.bytes[VIEW_SMALL], rows[i].small);
        slab.base[rows[i].bytes - 1] = 1;
        view_slab_destroy(&slab);
        ck_assert_ptr_null(slab.base);
        view_slab_destroy(&slab);
    }
}
END_TEST

static enum view choose(const struct view_slab *slab, struct view_streak *streak, uint64_t bytes)
{
    enum view view = VIEW_COUNT;

    ck_assert_int_eq(view_choose(slab, streak, bytes, &view), KVC_OK);
    return view;
}

START_TEST(T3_streak_rule)
{
    const struct view_slab slab = {.bytes = {12 * MIB, VIEW_SMALL_BYTES}};
    const uint64_t full = 2 * MIB, small = 192 * KIB;
    const uint64_t sequence[] = {full, small, small, small, full, small};
    const enum view views[] = {VIEW_FULL, VIEW_FULL, VIEW_SMALL, VIEW_SMALL, VIEW_FULL, VIEW_FULL};
    struct view_streak streak = {0}, other = {0};

    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(choose(&slab, &streak, sequence[i]), views[i]);
    /* Exactly at the threshold, and one more. */
    ck_assert_int_eq(choose(&slab, &streak, VIEW_SMALL_BYTES), VIEW_SMALL);
    ck_assert_int_eq(choose(&slab, &streak, VIEW_SMALL_BYTES + 1), VIEW_FULL);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(choose(&slab, &streak, i % 2 == 0 ? small : full), VIEW_FULL);
    /* Another source has a streak of its own. */
    choose(&slab, &streak, small);
    ck_assert_int_eq(choose(&slab, &other, small), VIEW_FULL);
    ck_assert_int_eq(choose(&slab, &streak, small), VIEW_SMALL);
}
END_TEST

START_TEST(T3_what_does_not_fit_changes_no_streak)
{
    const struct view_slab slab = {.bytes = {12 * MIB, VIEW_SMALL_BYTES}};
    struct view_streak streak = {0};
    enum view view = VIEW_COUNT;

    choose(&slab, &streak, 1);
    ck_assert_int_eq(view_choose(&slab, &streak, 12 * MIB + 1, &view), KVC_E_LIMIT);
    ck_assert_int_eq(view, VIEW_COUNT);
    ck_assert_int_eq(choose(&slab, &streak, 1), VIEW_SMALL);
}
END_TEST

START_TEST(T2_a_small_slab_has_only_the_full_view)
{
    const struct view_slab slab = {.bytes = {VIEW_SMALL_BYTES, 0}};
    struct view_streak streak = {0};

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(choose(&slab, &streak, 1000), VIEW_FULL);
}
END_TEST

START_TEST(T4_a_view_is_known_by_its_length)
{
    const struct view_slab slab = {.bytes = {12 * MIB, VIEW_SMALL_BYTES}};
    const struct view_slab single = {.bytes = {VIEW_SMALL_BYTES, 0}};

    ck_assert_int_eq(view_by_length(&slab, 12 * MIB), VIEW_FULL);
    ck_assert_int_eq(view_by_length(&slab, VIEW_SMALL_BYTES), VIEW_SMALL);
    ck_assert_int_eq(view_by_length(&single, VIEW_SMALL_BYTES), VIEW_FULL);
    ck_assert_int_eq(view_by_length(&slab, VIEW_SMALL_BYTES - 1), VIEW_COUNT);
    ck_assert_int_eq(view_by_length(&slab, 16 * MIB), VIEW_COUNT);
    ck_assert_int_eq(view_by_length(&single, 0), VIEW_COUNT);
}
END_TEST

/* The seed's workload in view mode: what the streak rule moves for what is useful. */
START_TEST(T3_mixed_workload)
{
    const struct view_slab slab = {.bytes = {12 * MIB, VIEW_SMALL_BYTES}};
    struct view_streak streak = {0};
    uint64_t wire = 0, always_full = 0;

    for (int i = 0; i < 628; i++) {
        uint64_t bytes = i % 25 == 0 && i < 625 ? 12 * MIB : 192 * KIB;

        wire += slab.bytes[choose(&slab, &streak, bytes)];
        always_full += slab.bytes[VIEW_FULL];
    }
    /* 25 full ones, and each makes the small one behind it full too. */
    ck_assert_uint_eq(wire, 50 * 12 * MIB + 578 * VIEW_SMALL_BYTES);
    ck_assert_uint_lt(wire * 9, always_full);
}
END_TEST

START_TEST(T19_few_sources_then_the_least_loaded)
{
    struct plan_share shares[4];
    const struct plan_offer offers[] = {{0, 10, 0}, {0, 30, 500}, {0, 30, 100}, {30, 20, 900}};

    ck_assert_uint_eq(plan_choose(offers, 4, shares), 2);
    ck_assert_uint_eq(shares[0].source, 2);
    ck_assert_uint_eq(shares[0].first, 0);
    ck_assert_uint_eq(shares[0].count, 30);
    ck_assert_uint_eq(shares[1].source, 3);
    ck_assert_uint_eq(shares[1].first, 30);
    ck_assert_uint_eq(shares[1].count, 20);
    /* A run goes on in the middle of an offer; nothing goes on behind a gap. */
    ck_assert_uint_eq(
        plan_choose((const struct plan_offer[]){{0, 8, 0}, {4, 8, 0}, {13, 9, 0}}, 3, shares), 2);
    ck_assert_uint_eq(shares[1].first, 8);
    ck_assert_uint_eq(shares[1].count, 4);
    ck_assert_uint_eq(plan_choose((const struct plan_offer[]){{1, 8, 0}}, 1, shares), 0);
    ck_assert_uint_eq(plan_choose(NULL, 0, shares), 0);
}
END_TEST

#define WANTS 64

struct merge {
    uint8_t keys[WANTS][KVC_KEY_BYTES];
    struct plan_want wants[WANTS];
    struct plan_place places[WANTS];
    uint32_t scratch[WANTS];
    uint32_t n, n_places;
};

static void want(struct merge *m, uint8_t key, uint64_t destination, uint32_t source)
{
    memset(m->keys[m->n], key, KVC_KEY_BYTES);
    m->wants[m->n] = (struct plan_want){m->keys[m->n], destination, 1, source};
    m->n++;
}

static kvc_status merge(struct merge *m)
{
    return plan_merge(m->wants, m->n, m->scratch, m->places, &m->n_places);
}

START_TEST(T9_merged_by_destination)
{
    struct merge m = {0};

    want(&m, 3, 300, 0);
    want(&m, 1, 100, 1);
    want(&m, 2, 200, 0);
    want(&m, 1, 100, 2); /* the same block from another source: once */
    want(&m, 3, 50, 2);  /* one block for two destinations */
    ck_assert_int_eq(merge(&m), KVC_OK);
    ck_assert_uint_eq(m.n_places, 4);
    ck_assert_uint_eq(m.wants[m.places[0].want].destination, 50);
    ck_assert_uint_eq(m.places[0].from, 0);
    ck_assert_uint_eq(m.places[1].want, 1); /* the source that was named first */
    ck_assert_uint_eq(m.places[1].from, 1);
    ck_assert_uint_eq(m.places[2].from, 2);
    ck_assert_uint_eq(m.wants[m.places[3].want].destination, 300);
    ck_assert_uint_eq(m.places[3].from, 0);
}
END_TEST

START_TEST(T9_two_blocks_for_one_destination)
{
    struct merge m = {0};

    want(&m, 1, 100, 0);
    want(&m, 2, 100, 1);
    ck_assert_int_eq(merge(&m), KVC_E_DUPLICATE);
    /* Equal keys of two parts are two blocks. */
    memset(&m, 0, sizeof(m));
    want(&m, 1, 100, 0);
    want(&m, 1, 100, 0);
    m.wants[1].part = 2;
    ck_assert_int_eq(merge(&m), KVC_E_DUPLICATE);
    memset(&m, 0, sizeof(m));
    ck_assert_int_eq(merge(&m), KVC_OK);
    ck_assert_uint_eq(m.n_places, 0);
}
END_TEST

START_TEST(T10_batches)
{
    struct plan_cut cut = {0};
    uint32_t batches = 0;

    for (int i = 0; i < 200; i++)
        batches += plan_cut_next(&cut, 4096, 16 * MIB);
    ck_assert_uint_eq(batches, 4); /* 64, 64, 64, 8 */
    ck_assert_uint_eq(cut.blocks, 8);
    /* 2 MiB: eight fit a view. */
    cut = (struct plan_cut){0};
    batches = 0;
    for (int i = 0; i < 17; i++)
        batches += plan_cut_next(&cut, 2 * MIB, 16 * MIB);
    ck_assert_uint_eq(batches, 3);
    /* One that fits none goes alone, between others. */
    cut = (struct plan_cut){0};
    ck_assert(plan_cut_next(&cut, 4096, MIB));
    ck_assert(plan_cut_next(&cut, 2 * MIB, MIB));
    ck_assert(plan_cut_next(&cut, 4096, MIB));
    ck_assert(!plan_cut_next(&cut, MIB - 4096, MIB));
    ck_assert(plan_cut_next(&cut, 1, MIB));
}
END_TEST

START_TEST(T8_neighbours_are_one_operation)
{
    const uint64_t from[] = {0, 4096, 8192, 16384, 20480};
    const uint64_t to[] = {100, 4196, 8292, 12388, 40000};
    struct plan_run runs[5];

    ck_assert_uint_eq(plan_runs(from, to, 5, 4096, runs), 3);
    ck_assert_uint_eq(runs[0].bytes, 3 * 4096);
    ck_assert_uint_eq(runs[1].from, 16384);
    ck_assert_uint_eq(runs[1].to, 12388);
    ck_assert_uint_eq(runs[2].to, 40000);
    /* Slots with padding behind the block are no neighbours. */
    ck_assert_uint_eq(plan_runs(from, to, 3, 4000, runs), 3);
    ck_assert_uint_eq(plan_runs(from, to, 0, 4096, runs), 0);
}
END_TEST

START_TEST(S36_the_longest_boundary)
{
    const uint64_t all[2] = {UINT64_MAX, UINT64_MAX};
    /* Keys 2 to 4, 10, and 62 to 65. */
    const uint64_t some[2] = {0x1c | 1u << 10 | 3ull << 62, 3};
    const struct plan_rule full = {UINT32_MAX, all}, gap = {UINT32_MAX, some};
    const struct plan_rule window = {3, some}, state = {1, some};

    ck_assert_uint_eq(plan_boundary(&full, 1, 0, 100), 100);
    ck_assert_uint_eq(plan_boundary(&full, 1, 7, 7), 7);
    ck_assert_uint_eq(plan_boundary(&gap, 1, 0, 100), 0);
    ck_assert_uint_eq(plan_boundary(&gap, 1, 2, 100), 5);
    ck_assert_uint_eq(plan_boundary(&window, 1, 0, 100), 66);
    ck_assert_uint_eq(plan_boundary(&window, 1, 0, 64), 5);
    /* What is in front of `from` is there. */
    ck_assert_uint_eq(plan_boundary(&window, 1, 10, 60), 11);
    ck_assert_uint_eq(plan_boundary(&state, 1, 0, 20), 11);
    ck_assert_uint_eq(plan_boundary((const struct plan_rule[]){full, window, state}, 3, 0, 65), 65);
    ck_assert_uint_eq(plan_boundary((const struct plan_rule[]){gap, state}, 2, 3, 100), 5);
}
END_TEST

CHECK_MAIN("peer/plan", CHECK_UNIT_S, T1_slab_size, T1_a_slab_that_cannot_be_had,
           T2_two_views_of_one_allocation, T2_a_small_slab_has_only_the_full_view, T3_streak_rule,
           T3_what_does_not_fit_changes_no_streak, T3_mixed_workload,
           T4_a_view_is_known_by_its_length, T8_neighbours_are_one_operation,
           T9_merged_by_destination, T9_two_blocks_for_one_destination, T10_batches,
           T19_few_sources_then_the_least_loaded, S36_the_longest_boundary)
