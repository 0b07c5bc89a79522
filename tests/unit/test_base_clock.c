#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"

START_TEST(clock_never_goes_back)
{
    uint64_t before = clock_now_us();

    for (int i = 0; i < 10000; i++) {
        uint64_t now = clock_now_us();

        ck_assert_uint_ge(now, before);
        before = now;
    }
}
END_TEST

START_TEST(clock_advance_moves_it_at_once)
{
    uint64_t before = clock_now_us();

    clock_advance(30 * CLOCK_S_US);
    ck_assert_uint_ge(clock_now_us() - before, 30 * CLOCK_S_US);
    ck_assert_uint_lt(clock_now_us() - before, 35 * CLOCK_S_US);
}
END_TEST

CHECK_MAIN("base/clock", CHECK_UNIT_S, clock_never_goes_back, clock_advance_moves_it_at_once)
