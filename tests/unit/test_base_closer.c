// Descriptors whose close waits: the thread that gives them away does not, nor do those of others.
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "daemon/base/closer.h"
#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "tests/lib/check_main.h"
#include "tests/lib/wait.h"

#define WAIT_US 5000000u
#define WAIT_MS 5000

static const struct closer_source ME = {7, 70}, BROTHER = {7, 71}, OTHER = {8, 80};

static int lines;

static void count_lines(void *arg, enum log_level level, const char *line, size_t length)
{
    (void)arg;
    (void)level;
    (void)line;
    (void)length;
    lines++;
}

static struct closer *begin(void)
{
    struct closer *closer;

    log_set_sink(count_lines, NULL);
    ck_assert_int_eq(closer_create(&closer), 0);
    return closer;
}

static int open_one(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static struct closer_stats figures(struct closer *closer)
{
    struct closer_stats stats;

    closer_figures(closer, &stats);
    return stats;
}

START_TEST(closes_what_it_gets)
{
    struct closer *closer = begin();
    int fds[100];

    closer_close(closer, -1, ME);
    for (int i = 0; i < 100; i++)
        fds[i] = open_one();
    for (int i = 0; i < 100; i++)
        closer_close(closer, fds[i], ME);
    for (int i = 0; i < 100; i++)
        wait_for(!is_open(fds[i]), WAIT_MS);
    wait_for(figures(closer).waiting == 0, WAIT_MS);
    ck_assert_uint_eq(figures(closer).left_open, 0);
    closer_destroy(closer, WAIT_US);
    ck_assert_int_eq(lines, 0);
}
END_TEST

START_TEST(closes_the_rest_when_it_ends)
{
    struct closer *closer = begin();
    int fds[100];

    for (int i = 0; i < 100; i++)
        fds[i] = open_one();
    for (int i = 0; i < 100; i++)
        closer_close(closer, fds[i], ME);
    closer_destroy(closer, WAIT_US);
    for (int i = 0; i < 100; i++)
        ck_assert(!is_open(fds[i]));
}
END_TEST

// Its threads have had no time yet, as on a busy machine.
START_TEST(threads_that_are_at_nothing_are_waited_for)
{
    fault_arm("closer.late", 0, 20);
    closer_destroy(begin(), 0);
    ck_assert_uint_eq(fault_fired("closer.late"), 20);
    ck_assert_int_eq(lines, 0);
}
END_TEST

// Until it is closed it is counted, also while a thread is at it.
START_TEST(what_is_not_closed_waits)
{
    struct closer *closer = begin();
    int fd = open_one();

    fault_arm("closer.stuck", 0, UINT32_MAX);
    closer_close(closer, fd, ME);
    wait_for(fault_fired("closer.stuck") > 0, WAIT_MS);
    ck_assert_uint_eq(figures(closer).waiting + figures(closer).stuck, 1);
    fault_off("closer.stuck");
    wait_for(figures(closer).waiting == 0 && figures(closer).stuck == 0, WAIT_MS);
    ck_assert(!is_open(fd));
    closer_destroy(closer, WAIT_US);
}
END_TEST

// One thread is held up; the descriptors behind it are closed all the same, and it is said once.
START_TEST(F4_one_that_is_stuck_holds_nobody_up)
{
    struct closer *closer = begin();
    int stuck = open_one(), next = open_one(), fd;

    fault_arm("closer.stuck", 0, UINT32_MAX);
    closer_close(closer, stuck, ME);
    wait_for(fault_fired("closer.stuck") > 0, WAIT_MS);
    closer_close(closer, next, OTHER);
    wait_for(figures(closer).stuck == 2, WAIT_MS);
    ck_assert_int_eq(lines, 1);
    fault_off("closer.stuck");
    wait_for(!is_open(stuck) && !is_open(next), WAIT_MS);
    wait_for(figures(closer).stuck == 0, WAIT_MS);
    fd = open_one();
    closer_close(closer, fd, ME);
    wait_for(!is_open(fd), WAIT_MS);
    closer_destroy(closer, WAIT_US);
}
END_TEST

// A user has no more than his share of the threads; the others' are closed in between.
START_TEST(F4_one_user_has_his_share_of_what_is_stuck)
{
    struct closer *closer = begin();
    int fds[2 * CLOSER_LANES_OF_USER], other = open_one();
    const uint32_t n = 2 * CLOSER_LANES_OF_USER;

    fault_arm("closer.stuck", 0, UINT32_MAX);
    for (uint32_t i = 0; i < n; i++)
        closer_close(closer, fds[i] = open_one(), ME);
    wait_for(figures(closer).stuck == CLOSER_LANES_OF_USER, WAIT_MS);
    ck_assert_uint_eq(figures(closer).waiting, n - CLOSER_LANES_OF_USER);
    closer_close(closer, other, OTHER);
    wait_for(figures(closer).stuck == CLOSER_LANES_OF_USER + 1, WAIT_MS);
    ck_assert_uint_eq(figures(closer).waiting, n - CLOSER_LANES_OF_USER);
    fault_off("closer.stuck");
    wait_for(!is_open(other), WAIT_MS);
    for (uint32_t i = 0; i < n; i++)
        wait_for(!is_open(fds[i]), WAIT_MS);
    closer_destroy(closer, WAIT_US);
}
END_TEST

// Decided: what does not fit into the queue stays open. Before that the user is to be stopped.
START_TEST(F4_a_full_queue_leaves_open_and_waits_for_nobody)
{
    struct closer *closer = begin();
    const uint32_t n = CLOSER_LANES_OF_USER + CLOSER_QUEUE;
    struct rlimit limit;
    static int fds[CLOSER_LANES_OF_USER + CLOSER_QUEUE];
    int over = open_one();

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_max < n + 64 || setrlimit(RLIMIT_NOFILE, &limit) < 0)
        check_skip(__func__, "no %u descriptors", n);
    else {
        fault_arm("closer.stuck", 0, UINT32_MAX);
        for (uint32_t i = 0; i < n; i++) {
            if (i == CLOSER_LANES_OF_USER)
                wait_for(figures(closer).stuck == CLOSER_LANES_OF_USER, WAIT_MS);
            if (i < CLOSER_SHARE)
                ck_assert(!closer_is_pressed(closer, ME));
            if (i < 2 * CLOSER_SHARE)
                ck_assert(!closer_is_pressed(closer, BROTHER));
            closer_close(closer, fds[i] = open_one(), ME);
        }
        ck_assert(closer_is_pressed(closer, ME));
        ck_assert(closer_is_pressed(closer, BROTHER));
        ck_assert(!closer_is_pressed(closer, OTHER));
        closer_close(closer, over, OTHER);
        ck_assert_uint_eq(figures(closer).left_open, 1);
        ck_assert_int_eq(lines, 2);
        fault_off("closer.stuck");
        for (uint32_t i = 0; i < n; i++)
            wait_for(!is_open(fds[i]), WAIT_MS);
        ck_assert(is_open(over));
    }
    fd_close(over);
    closer_destroy(closer, WAIT_US);
}
END_TEST

// The end of the daemon does not wait for ever either; whoever closes last frees the rest.
START_TEST(F4_ending_leaves_what_is_stuck)
{
    struct closer *closer = begin();
    int fd = open_one(), behind = open_one();

    fault_arm("closer.stuck", 0, UINT32_MAX);
    closer_close(closer, fd, ME);
    closer_close(closer, behind, ME);
    closer_destroy(closer, 10000);
    ck_assert_int_ge(lines, 1);
    fault_off("closer.stuck");
    wait_for(!is_open(fd), WAIT_MS);
    wait_for(mem_live_count() == 0, WAIT_MS);
    if (is_open(behind))
        fd_close(behind);
}
END_TEST

START_TEST(no_thread_is_an_error)
{
    struct closer *closer;

    fault_arm("closer.thread", 0, 1);
    ck_assert_int_eq(closer_create(&closer), -EAGAIN);
    ck_assert_uint_eq(fault_fired("closer.thread"), 1);
    fault_arm("mem.alloc", 0, 1);
    ck_assert_int_eq(closer_create(&closer), -ENOMEM);
    // The second thread, that watches the first, comes when there can be one.
    closer = begin();
    fault_arm("closer.thread", 0, 1);
    for (int i = 0; i < 2; i++) {
        int fd = open_one();

        closer_close(closer, fd, ME);
        wait_for(!is_open(fd), WAIT_MS);
    }
    ck_assert_uint_eq(fault_fired("closer.thread"), 1);
    closer_destroy(closer, WAIT_US);
}
END_TEST

CHECK_MAIN("base/closer", CHECK_LIFE_S, closes_what_it_gets, what_is_not_closed_waits,
           threads_that_are_at_nothing_are_waited_for, closes_the_rest_when_it_ends,
           F4_one_that_is_stuck_holds_nobody_up, F4_one_user_has_his_share_of_what_is_stuck,
           F4_a_full_queue_leaves_open_and_waits_for_nobody, F4_ending_leaves_what_is_stuck,
           no_thread_is_an_error)
