/* When the loop of a worker sleeps: not while an answer is waited for, and at once when nobody
 * waits any more. The clock stands still but where a test moves it. */
#include "daemon/base/clock.h"
#include "daemon/peer/ucx.h"
#include "tests/lib/check_main.h"
#include "tests/lib/wait.h"

#define MS        10000
#define MOMENT_US 1000u /* longer than the loop waits awake for an answer */

static uv_loop_t loop;
static struct ucx *ucx;
static struct ucx_worker *worker;

static bool is_awake(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    return uv_backend_timeout(&loop) == 0;
}

static void begin(void)
{
    char why[UCX_WHY_MAX];

    clock_stop();
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_msg(ucx_open("libucp.so.0", why, &ucx) == KVC_OK, "%s", why);
    ck_assert_int_eq(ucx_worker_open(ucx, &loop, &(struct ucx_worker_events){0}, &worker), KVC_OK);
    wait_for(!is_awake(), MS);
}

static void gone(void *arg)
{
    *(bool *)arg = true;
}

static void end(void)
{
    bool closed = false;

    ucx_worker_close(worker, gone, &closed);
    while (!closed)
        uv_run(&loop, UV_RUN_NOWAIT);
    ucx_close(ucx);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    uv_library_shutdown();
}

/* So often that a loop that might sleep would. */
static void stays_awake(void)
{
    for (int i = 0; i < 100; i++)
        ck_assert(is_awake());
}

START_TEST(it_sleeps_when_the_moment_is_over)
{
    begin();
    ucx_worker_soon(worker);
    stays_awake();
    clock_advance(MOMENT_US);
    wait_for(!is_awake(), MS);
    end();
}
END_TEST

START_TEST(of_two_who_ask_the_last_to_leave_lets_it_sleep)
{
    begin();
    for (int i = 0; i < 2; i++) {
        ucx_worker_join(worker);
        ucx_worker_soon(worker);
    }
    ucx_worker_leave(worker);
    stays_awake();
    ucx_worker_leave(worker);
    wait_for(!is_awake(), MS);
    end();
}
END_TEST

/* Who has joined and asks nothing costs no processor. */
START_TEST(who_only_waits_lets_it_sleep)
{
    begin();
    ucx_worker_join(worker);
    ck_assert(!is_awake());
    ucx_worker_soon(worker);
    clock_advance(MOMENT_US);
    wait_for(!is_awake(), MS);
    ucx_worker_leave(worker);
    end();
}
END_TEST

CHECK_MAIN("peer/worker", CHECK_UNIT_S, it_sleeps_when_the_moment_is_over,
           of_two_who_ask_the_last_to_leave_lets_it_sleep, who_only_waits_lets_it_sleep)
