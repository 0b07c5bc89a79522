#include "tests/lib/check_main.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/fd.h"
#include "daemon/base/mem.h"
#include "tests/lib/gpu.h"
#include "tests/lib/port.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"

static int fds_at_start;
static pid_t runner;
static bool by_daemon;

double check_time_multiplier(void)
{
    const char *s = getenv("KVC_TEST_TIMEOUT_MULTIPLIER");
    double m = s ? atof(s) : 1;

    return m > 0 ? m : 1;
}

bool check_long(void)
{
    const char *s = getenv("KVC_TEST_LONG");

    return s && *s && strcmp(s, "0") != 0;
}

bool check_valgrind(void)
{
    return getenv("KVC_TEST_VALGRIND") != NULL;
}

void check_skip(const char *function, const char *format, ...)
{
    va_list args;
    size_t length = strlen(function);

    // START_TEST(x) makes the function x_fn.
    if (length > 3 && strcmp(function + length - 3, "_fn") == 0)
        length -= 3;
    // From column 0, whatever the runner printed before, and in one piece.
    printf("\nSKIP %.*s: ", (int)length, function);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

bool check_copies_by_daemon(void)
{
    return by_daemon;
}

static void before_test(void)
{
    if (getpid() == runner)
        return;
    // Orphans of the test come to it and not to init, so that after_test() finds them.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    proc_die_with_parent(runner);
    fds_at_start = fd_count_open();
    tmpdir_begin();
}

static void before_daemon_test(void)
{
    by_daemon = true;
    before_test();
}

static void after_test(void)
{
    by_daemon = false;
    int orphans;

    if (getpid() == runner)
        return;
    orphans = proc_kill_children();
    tmpdir_end();
    ck_assert_msg(orphans == 0, "the test left %d processes running", orphans);
    // The driver keeps what it has opened until the process ends.
    ck_assert_msg(gpu_is_used() || fd_count_open() == fds_at_start,
                  "the test leaked descriptors: %d, at start %d", fd_count_open(), fds_at_start);
    ck_assert_msg(mem_live_count() == 0, "the test leaked %llu allocations of %llu bytes",
                  (unsigned long long)mem_live_count(), (unsigned long long)mem_live_bytes());
}

static bool wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2;
}

static TCase *make_tcase(Suite *suite, const char *name, double limit_s, void (*before)(void))
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, limit_s * CHECK_PATIENCE * check_time_multiplier());
    tcase_add_checked_fixture(tcase, before, after_test);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int check_main(int argc, char **argv, const char *name, double limit_s,
               const struct check_test *tests, size_t n)
{
    Suite *suite = suite_create(name);
    TCase *tcase = make_tcase(suite, name, limit_s, before_test), *again = NULL;
    SRunner *srunner;
    char other[128];
    int failed, orphans, left;

#ifdef __SANITIZE_THREAD__
    // UCX puts hooks of its own over mmap, under which this sanitizer's runtime crashes at the end
    // of a process: of daemons, whoever starts them, and of a test that plays a peer.
    setenv("UCX_MEM_EVENTS", "no", 0);
#endif
    runner = getpid();
    tmpdir_open();
    port_open();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    snprintf(other, sizeof(other), "%s, copies by the daemon", name);
    for (size_t i = 0; i < n; i++) {
        int last = tests[i].last > tests[i].first ? tests[i].last : tests[i].first;

        if (!wanted(tests[i].test->name, argc, argv))
            continue;
        if (tests[i].ways != CHECK_DAEMON_COPIES)
            tcase_add_loop_test(tcase, tests[i].test, tests[i].first, last + 1);
        if (tests[i].ways == CHECK_ONE_WAY)
            continue;
        if (again == NULL)
            again = make_tcase(suite, other, limit_s, before_daemon_test);
        tcase_add_loop_test(again, tests[i].test, tests[i].first, last + 1);
    }
    srunner = srunner_create(suite);
    srunner_run_all(srunner, CK_ENV);
    failed = srunner_ntests_failed(srunner);
    srunner_free(srunner);
    // A test that failed or ran out of time may have left what it started, which is then ours.
    orphans = proc_kill_children();
    if (orphans > 0)
        printf("killed %d processes that tests left running\n", orphans);
    left = tmpdir_close();
    if (failed == 0 && left > 0)
        printf("tests that passed left %d temporary folders\n", left);
    return failed > 0 || left > 0 ? 1 : 0;
}
