// Who is gone, by a driver's list that the test writes.
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/gone.h"
#include "tests/lib/check_main.h"

static atomic_int listed; // -1: the driver cannot say
static atomic_int asked;
static atomic_bool hangs;
static int gone_count;
static struct gone_process *gone_last;

static kvc_status lists(void *state, const uint8_t (*uuids)[KVC_UUID_BYTES], uint32_t n_uuids,
                        int32_t pid, bool *ret)
{
    ck_assert_ptr_null(state);
    ck_assert_uint_eq(n_uuids, 2);
    ck_assert_uint_eq(uuids[1][0], 9);
    ck_assert_int_eq(pid, 4711);
    while (atomic_load(&hangs))
        usleep(1000);
    atomic_fetch_add(&asked, 1);
    *ret = atomic_load(&listed) == 1;
    return atomic_load(&listed) < 0 ? KVC_E_DEVICE : KVC_OK;
}

static void on_gone(struct gone_process *process)
{
    gone_count++;
    gone_last = process;
}

static const struct device device = {.name = "test", .lists_process = lists};

struct fixture {
    uv_loop_t loop;
    struct gone *gone;
    struct gone_process process;
};

static void begin(struct fixture *f, int list)
{
    atomic_store(&listed, list);
    f->process = (struct gone_process){.pid = 4711, .n_uuids = 2};
    list_init(&f->process.link);
    f->process.uuids[1][0] = 9;
    ck_assert_int_eq(uv_loop_init(&f->loop), 0);
    ck_assert_int_eq(gone_create(&f->loop, &device, on_gone, &f->gone), KVC_OK);
}

static void end(struct fixture *f)
{
    gone_forget(f->gone, &f->process);
    gone_destroy(f->gone);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&f->loop), 0);
    uv_library_shutdown();
}

// Until the driver has answered n more times.
static void run_answers(struct fixture *f, int n)
{
    const int until = atomic_load(&asked) + n;

    while (atomic_load(&asked) < until)
        uv_run(&f->loop, UV_RUN_ONCE);
    for (int i = 0; i < 3; i++) {
        usleep(2000);
        uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

START_TEST(S15_gone_when_listed_no_more)
{
    struct fixture f;

    begin(&f, 1);
    gone_watch(f.gone, &f.process);
    while (f.process.state != GONE_SEEN)
        uv_run(&f.loop, UV_RUN_ONCE);
    gone_expect(f.gone, &f.process);
    run_answers(&f, 4); // a child keeps its context alive
    ck_assert_int_eq(gone_count, 0);
    ck_assert_int_eq(f.process.state, GONE_ENDING);
    atomic_store(&listed, -1); // no answer is no proof
    run_answers(&f, 2);
    ck_assert_int_eq(gone_count, 0);
    atomic_store(&listed, 0);
    while (gone_count == 0)
        uv_run(&f.loop, UV_RUN_ONCE);
    ck_assert_ptr_eq(gone_last, &f.process);
    ck_assert_int_eq(f.process.state, GONE_GONE);
    end(&f);
    ck_assert_int_eq(gone_count, 1);
}
END_TEST

// It may be listed under another pid than the one that is seen from here.
START_TEST(S15_never_listed_proves_nothing)
{
    struct fixture f;

    begin(&f, 0);
    gone_watch(f.gone, &f.process);
    run_answers(&f, 3);
    ck_assert_int_eq(f.process.state, GONE_UNSEEN);
    gone_expect(f.gone, &f.process);
    ck_assert_int_eq(f.process.state, GONE_HIDDEN);
    atomic_store(&listed, 1);
    for (int i = 0; i < 10; i++) {
        usleep(5000);
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(f.process.state, GONE_HIDDEN);
    ck_assert_int_eq(gone_count, 0);
    end(&f);
}
END_TEST

// An answer to a question of before its end does not count as one of its life.
START_TEST(an_answer_that_comes_too_late)
{
    struct fixture f;

    atomic_store(&hangs, true);
    begin(&f, 1);
    gone_watch(f.gone, &f.process);
    gone_expect(f.gone, &f.process);
    atomic_store(&hangs, false);
    run_answers(&f, 1);
    ck_assert_int_eq(f.process.state, GONE_HIDDEN);
    end(&f);
}
END_TEST

START_TEST(a_driver_that_hangs_stops_nobody)
{
    struct fixture f;

    atomic_store(&hangs, true);
    begin(&f, 1);
    gone_watch(f.gone, &f.process);
    for (int i = 0; i < 10; i++) {
        usleep(1000);
        uv_run(&f.loop, UV_RUN_NOWAIT);
    }
    ck_assert_int_eq(f.process.state, GONE_UNSEEN);
    gone_forget(f.gone, &f.process); // its memory may go, though the question is under way
    memset(&f.process, 0xee, sizeof(f.process));
    atomic_store(&hangs, false);
    run_answers(&f, 1);
    f.process = (struct gone_process){0};
    end(&f);
}
END_TEST

CHECK_MAIN("api/gone", 10, S15_gone_when_listed_no_more, S15_never_listed_proves_nothing,
           an_answer_that_comes_too_late, a_driver_that_hangs_stops_nobody)
