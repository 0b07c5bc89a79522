/* Windows of time over counters. */
#include "daemon/base/clock.h"
#include "daemon/base/window.h"
#include "tests/lib/check_main.h"

static void note(struct window *w, uint64_t second, uint64_t total)
{
    window_note(w, second * CLOCK_S_US, (uint64_t[WINDOW_COUNTERS]){total, 2 * total, 0, 0});
}

static uint64_t sum(const struct window *w, uint64_t second, uint32_t seconds)
{
    uint64_t sums[WINDOW_COUNTERS];

    window_sum(w, second * CLOCK_S_US + CLOCK_S_US - 1, seconds, sums);
    ck_assert_uint_eq(sums[1], 2 * sums[0]);
    ck_assert_uint_eq(sums[2], 0);
    return sums[0];
}

START_TEST(growth_counts_for_as_long_as_the_window)
{
    static struct window w;

    note(&w, 5000, 10);
    note(&w, 5000, 15);
    note(&w, 5059, 20);
    ck_assert_uint_eq(sum(&w, 5059, 60), 20);
    ck_assert_uint_eq(sum(&w, 5060, 60), 5);
    ck_assert_uint_eq(sum(&w, 5060, 61), 20);
    ck_assert_uint_eq(sum(&w, 5118, 60), 5);
    ck_assert_uint_eq(sum(&w, 5119, 60), 0);
    ck_assert_uint_eq(sum(&w, 5899, WINDOW_SECONDS), 20);
    ck_assert_uint_eq(sum(&w, 5900, WINDOW_SECONDS), 5);
    ck_assert_uint_eq(sum(&w, 1u << 30, WINDOW_SECONDS), 0);
}
END_TEST

START_TEST(a_bucket_is_empty_when_its_turn_comes_again)
{
    static struct window w;

    note(&w, 100, 1);
    note(&w, 100 + WINDOW_SECONDS - 1, 3); /* nothing of the first is lost yet */
    ck_assert_uint_eq(sum(&w, 100 + WINDOW_SECONDS - 1, WINDOW_SECONDS), 3);
    note(&w, 100 + WINDOW_SECONDS, 7);
    ck_assert_uint_eq(sum(&w, 100 + WINDOW_SECONDS, WINDOW_SECONDS), 6);
    note(&w, 100 + 10 * WINDOW_SECONDS, 8); /* all of them at once */
    ck_assert_uint_eq(sum(&w, 100 + 10 * WINDOW_SECONDS, WINDOW_SECONDS), 1);
}
END_TEST

START_TEST(windows_of_a_young_clock)
{
    static struct window w;

    ck_assert_uint_eq(sum(&w, 0, WINDOW_SECONDS), 0);
    note(&w, 0, 4);
    note(&w, 3, 6);
    ck_assert_uint_eq(sum(&w, 3, 1), 2);
    ck_assert_uint_eq(sum(&w, 3, 4), 6);
    ck_assert_uint_eq(sum(&w, 3, WINDOW_SECONDS), 6);
}
END_TEST

/* Each second's growth beside a plain list of them all. */
START_TEST(any_sequence_is_what_a_list_says)
{
    enum { SECONDS = 4000 };
    static uint64_t grown[SECONDS];
    static struct window w;
    uint32_t random = 1;
    uint64_t total = 0;

    for (uint64_t at = 0; at < SECONDS; random = random * 1664525 + 1013904223) {
        grown[at] += random >> 28;
        total += random >> 28;
        note(&w, at, total);
        for (uint32_t n = 1; n <= WINDOW_SECONDS; n += 1 + (random >> 24)) {
            uint64_t expected = 0;

            for (uint64_t s = at + 1 > n ? at + 1 - n : 0; s <= at; s++)
                expected += grown[s];
            ck_assert_uint_eq(sum(&w, at, n), expected);
        }
        at += random >> 12 & 127;
    }
}
END_TEST

CHECK_MAIN("base/window", CHECK_UNIT_S, growth_counts_for_as_long_as_the_window,
           a_bucket_is_empty_when_its_turn_comes_again, windows_of_a_young_clock,
           any_sequence_is_what_a_list_says)
