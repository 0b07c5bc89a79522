// What a process that breaks the rules has to wait, and that nobody waits for another.
#include "daemon/base/clock.h"
#include "daemon/conn/pace.h"
#include "tests/lib/check_main.h"

static struct pace pace;

START_TEST(a_few_mistakes_are_free)
{
    clock_stop();
    for (uint32_t i = 0; i < PACE_FREE_US / PACE_PACKET_US; i++)
        pace_charge(&pace, 10, 1, PACE_PACKET_US);
    ck_assert_uint_eq(pace_wait_us(&pace, 10, 1), 0);
    ck_assert(pace_is_suspect(&pace, 10, 1));
    pace_charge(&pace, 10, 1, PACE_PACKET_US);
    ck_assert_uint_eq(pace_wait_us(&pace, 10, 1), PACE_PACKET_US);
    clock_advance(PACE_PACKET_US);
    ck_assert_uint_eq(pace_wait_us(&pace, 10, 1), 0);
    clock_advance(PACE_FREE_US / 2);
    ck_assert(!pace_is_suspect(&pace, 10, 1));
}
END_TEST

START_TEST(others_do_not_wait)
{
    clock_stop();
    for (int i = 0; i < 1000; i++)
        pace_charge(&pace, 10, 1, PACE_PACKET_US);
    ck_assert_uint_eq(pace_wait_us(&pace, 10, 1), PACE_MOST_US);
    ck_assert_uint_eq(pace_wait_us(&pace, 10, 2), 0);
    ck_assert_uint_eq(pace_wait_us(&pace, 11, 1), 0);
    ck_assert(!pace_is_suspect(&pace, 11, 1));
    pace_charge(&pace, 11, 1, PACE_PACKET_US);
    ck_assert(!pace_is_suspect(&pace, 11, 1));
}
END_TEST

// More processes than there are rows: who owes most is remembered.
START_TEST(the_worst_keep_their_rows)
{
    clock_stop();
    for (int i = 0; i < 100; i++)
        pace_charge(&pace, 10, 1, PACE_PACKET_US);
    for (int i = 0; i < 10 * (int)PACE_ROWS; i++)
        pace_charge(&pace, 1000 + i, 1, PACE_PACKET_US);
    ck_assert_uint_gt(pace_wait_us(&pace, 10, 1), 0);
    for (int i = 0; i < 3; i++)
        pace_charge(&pace, 1, 1, PACE_PACKET_US);
    ck_assert(pace_is_suspect(&pace, 1, 1));
}
END_TEST

CHECK_MAIN("conn/pace", CHECK_LIFE_S, a_few_mistakes_are_free, others_do_not_wait,
           the_worst_keep_their_rows)
