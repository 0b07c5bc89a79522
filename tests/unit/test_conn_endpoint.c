#include "daemon/conn/endpoint.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"

#define OWN_GROUP ((gid_t)-1)

static char why[ENDPOINT_WHY_MAX];

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

START_TEST(test_open_and_close)
{
    const char *path = tmpdir_file("s");
    struct endpoint *e;
    struct stat st;

    ck_assert_int_eq(endpoint_open(path, 0640, OWN_GROUP, &e, why), KVC_OK);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert(S_ISSOCK(st.st_mode));
    ck_assert_uint_eq(st.st_mode & 0777, 0640);
    ck_assert(exists(tmpdir_file("s.lock")));
    endpoint_hide(e);
    ck_assert(!exists(path));
    ck_assert(exists(tmpdir_file("s.lock")));
    endpoint_close(e);
    ck_assert(!exists(tmpdir_file("s.lock")));
    endpoint_close(NULL);
}
END_TEST

START_TEST(test_one_at_a_time)
{
    const char *path = tmpdir_file("s");
    struct endpoint *a, *b = NULL;

    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &a, why), KVC_OK);
    // It has not called listen() yet: it is not stale all the same.
    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &b, why), KVC_E_BUSY);
    ck_assert_ptr_null(b);
    ck_assert_ptr_nonnull(strstr(why, "another daemon is running"));
    ck_assert(exists(path));
    endpoint_hide(a);
    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &b, why), KVC_E_BUSY);
    endpoint_close(a);
    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &b, why), KVC_OK);
    endpoint_close(b);
}
END_TEST

// A socket that somebody put in the place of ours is left to them.
START_TEST(test_foreign_file_is_left_alone)
{
    const char *path = tmpdir_file("s");
    struct endpoint *e;
    int fd;

    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &e, why), KVC_OK);
    ck_assert_int_eq(unlink(path), 0);
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    endpoint_close(e);
    ck_assert(exists(path));
    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &e, why), KVC_E_INVALID);
    ck_assert(!exists(tmpdir_file("s.lock")));
}
END_TEST

START_TEST(test_a_link_is_no_lock)
{
    const char *path = tmpdir_file("s");
    struct endpoint *e;

    ck_assert_int_eq(symlink(tmpdir_file("victim"), tmpdir_file("s.lock")), 0);
    ck_assert_int_eq(endpoint_open(path, 0600, OWN_GROUP, &e, why), KVC_E_SYSTEM);
    ck_assert(!exists(tmpdir_file("victim")));
    ck_assert(!exists(path));
}
END_TEST

START_TEST(test_failures_leave_nothing)
{
    struct endpoint *e = NULL;

    ck_assert_int_eq(endpoint_open("", 0600, OWN_GROUP, &e, why), KVC_E_INVALID);
    fault_arm("endpoint.socket", 0, 1);
    ck_assert_int_eq(endpoint_open(tmpdir_file("s"), 0600, OWN_GROUP, &e, why), KVC_E_SYSTEM);
    ck_assert_uint_eq(fault_fired("endpoint.socket"), 1);
    fault_arm("mem.alloc", 0, 1);
    ck_assert_int_eq(endpoint_open(tmpdir_file("s"), 0600, OWN_GROUP, &e, why), KVC_E_NO_MEMORY);
    fault_off("*");
    ck_assert_ptr_null(e);
    ck_assert(!exists(tmpdir_file("s")));
    ck_assert(!exists(tmpdir_file("s.lock")));
}
END_TEST

// Processes that come and go on one path: never two at a time, although each removes the lock file.
START_TEST(test_no_two_win)
{
    struct shared {
        _Atomic int inside;
        _Atomic int rounds;
        _Atomic int collisions;
    } *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *path = tmpdir_file("s");
    pid_t pids[4];

    ck_assert_ptr_ne(shared, MAP_FAILED);
    for (int p = 0; p < 4; p++) {
        pids[p] = proc_fork();
        if (pids[p] != 0)
            continue;
        // However often they find another inside: until enough have been.
        for (int i = 0; i < 1000 || shared->rounds <= 100; i++) {
            struct endpoint *e;

            if (endpoint_open(path, 0600, OWN_GROUP, &e, why) != KVC_OK)
                continue;
            if (atomic_fetch_add(&shared->inside, 1) != 0)
                atomic_fetch_add(&shared->collisions, 1);
            atomic_fetch_add(&shared->rounds, 1);
            atomic_fetch_sub(&shared->inside, 1);
            endpoint_close(e);
        }
        _exit(0);
    }
    for (int p = 0; p < 4; p++)
        proc_wait_ok(pids[p], 20000);
    ck_assert_int_gt(shared->rounds, 100);
    ck_assert_int_eq(shared->collisions, 0);
    munmap(shared, sizeof(*shared));
}
END_TEST

CHECK_MAIN("conn/endpoint", CHECK_LIFE_S, test_open_and_close, test_one_at_a_time,
           test_foreign_file_is_left_alone, test_a_link_is_no_lock, test_failures_leave_nothing,
           test_no_two_win)
