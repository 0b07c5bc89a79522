/* Errands: their order, who waits for whom, and what is said of one that hangs. */
#include <stdatomic.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/tier/errands.h"
#include "tests/lib/check_main.h"
#include "tests/lib/wait.h"

#define N 8u

static uv_loop_t loop;
static struct errands *errands;
static uint32_t worked, done;
static atomic_bool held;

struct task {
    struct errand errand;
    uint32_t worked, done; /* as which, from 1 */
    bool again;
};

static void setup(void)
{
    uv_loop_init(&loop);
    ck_assert_int_eq(errands_create(&loop, "test", &errands), KVC_OK);
    worked = done = 0;
    atomic_store(&held, false);
}

static void teardown(void)
{
    errands_destroy(errands);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    uv_library_shutdown(); /* the signals of the loop */
}

static void work(struct errand *errand)
{
    while (atomic_load(&held))
        usleep(500);
    container_of(errand, struct task, errand)->worked = ++worked;
}

static void end(struct errand *errand)
{
    struct task *task = container_of(errand, struct task, errand);

    task->done = ++done;
    if (!task->again)
        return;
    task->again = false;
    errands_run(errands, errand);
}

static void ask(struct task *task)
{
    task->errand.work = work;
    task->errand.done = end;
    errands_run(errands, &task->errand);
}

START_TEST(one_after_the_other)
{
    struct task tasks[N] = {{.worked = 0}};

    setup();
    for (uint32_t i = 0; i < N; i++)
        ask(&tasks[i]);
    ck_assert_uint_eq(errands_count(errands), N);
    ck_assert_uint_eq(done, 0); /* never from inside */
    uv_run(&loop, UV_RUN_DEFAULT);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(tasks[i].worked, i + 1);
        ck_assert_uint_eq(tasks[i].done, i + 1);
    }
    ck_assert_uint_eq(errands_count(errands), 0);
    teardown();
}
END_TEST

START_TEST(asked_for_again_when_done)
{
    struct task task = {.again = true};

    setup();
    ask(&task);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(done, 2);
    teardown();
}
END_TEST

/* The clock is moved past the time that an errand may take. */
START_TEST(F4_one_that_hangs_is_said_to)
{
    struct task tasks[2] = {{.worked = 0}};

    setup();
    atomic_store(&held, true);
    ask(&tasks[0]);
    ask(&tasks[1]);
    wait_for(errands_since_us(errands) > 0, 5000);
    ck_assert(!errands_hang(errands));
    fault_clock_move_us(ERRANDS_LATE_MS * CLOCK_MS_US);
    ck_assert(errands_hang(errands));
    ck_assert_uint_eq(errands_count(errands), 2);
    uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(done, 0);
    atomic_store(&held, false);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(done, 2);
    ck_assert(!errands_hang(errands));
    teardown();
}
END_TEST

CHECK_MAIN_LOOPS("tier/errands", CHECK_UNIT_S, {one_after_the_other, 0, 0},
                 {asked_for_again_when_done, 0, 0}, {F4_one_that_hangs_is_said_to, 0, 0})
