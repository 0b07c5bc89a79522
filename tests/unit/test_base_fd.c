#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"

#define SIZE 4096

static int make_memfd(void)
{
    int fd = fd_memfd("test", 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fd_truncate(fd, SIZE), 0);
    return fd;
}

START_TEST(fd_close_keeps_errno_and_takes_none)
{
    int fd = make_memfd();

    errno = ENOMSG;
    fd_close(fd);
    fd_close(-1);
    ck_assert_int_eq(errno, ENOMSG);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
}
END_TEST

START_TEST(fd_close_twice_aborts_a_debug_build)
{
    int fd = make_memfd();
    pid_t child = proc_fork();
    int status;

    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        fd_close(fd);
        fd_close(fd);
        _exit(0);
    }
    status = proc_wait(child, 2000);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    fd_close(fd);
}
END_TEST

START_TEST(fd_reset_forgets)
{
    int fd = make_memfd();

    fd_reset(&fd);
    ck_assert_int_eq(fd, -1);
    fd_reset(&fd);
}
END_TEST

START_TEST(fd_memfd_is_private_sealable_and_cloexec)
{
    struct stat st;
    int fd = make_memfd();

    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    ck_assert_int_eq(st.st_size, SIZE);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    ck_assert_int_eq(fd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    ck_assert_int_eq(fd_truncate(fd, 2 * SIZE), -EPERM);
    ck_assert_int_eq(fd_truncate(fd, 0), -EPERM);
    ck_assert_int_eq(fd_seal(fd, F_SEAL_WRITE), -EPERM);
    fd_close(fd);
}
END_TEST

START_TEST(fd_dup_is_cloexec_and_not_a_standard_one)
{
    int fd = make_memfd();
    int keep = dup(0), copy;

    close(0);
    copy = fd_dup(fd);
    ck_assert_int_ge(copy, 3);
    ck_assert(fcntl(copy, F_GETFD) & FD_CLOEXEC);
    dup2(keep, 0);
    close(keep);
    fd_close(copy);
    fd_close(fd);
    ck_assert_int_eq(fd_dup(fd), -EBADF);
}
END_TEST

START_TEST(fd_reopen_readonly_cannot_write)
{
    int fd = make_memfd(), copy = fd_reopen_readonly(fd);
    void *addr = NULL;

    ck_assert_int_ge(copy, 0);
    ck_assert_int_eq(fcntl(copy, F_GETFL) & O_ACCMODE, O_RDONLY);
    ck_assert_int_eq(fd_map(copy, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, 0, &addr), -EACCES);
    ck_assert_ptr_null(addr);
    ck_assert_int_eq(fd_map(copy, SIZE, PROT_READ, MAP_SHARED, 0, &addr), 0);
    ck_assert_int_eq(mprotect(addr, SIZE, PROT_READ | PROT_WRITE), -1);
    fd_unmap(addr, SIZE);
    fd_close(copy);
    fd_close(fd);
}
END_TEST

START_TEST(fd_map_shares_the_bytes)
{
    int fd = make_memfd();
    char *a = NULL, *b = NULL;

    ck_assert_int_eq(fd_map(fd, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, 0, (void **)&a), 0);
    ck_assert_int_eq(fd_map(fd, SIZE, PROT_READ, MAP_SHARED, 0, (void **)&b), 0);
    strcpy(a, "shared");
    ck_assert_str_eq(b, "shared");
    fd_unmap(a, SIZE);
    fd_unmap(b, SIZE);
    fd_unmap(NULL, SIZE);
    fd_close(fd);
}
END_TEST

START_TEST(fd_count_open_counts)
{
    int before = fd_count_open(), fd = make_memfd();

    ck_assert_int_eq(fd_count_open(), before + 1);
    fd_close(fd);
    ck_assert_int_eq(fd_count_open(), before);
}
END_TEST

START_TEST(fd_faults_leave_nothing_behind)
{
    static const char *const sites[] = {"fd.memfd", "fd.truncate", "fd.seal",
                                        "fd.dup",   "fd.reopen",   "fd.map"};
    int fd = make_memfd(), before = fd_count_open();
    void *addr = NULL;

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++)
        fault_arm(sites[i], 0, 1);
    ck_assert_int_lt(fd_memfd("test", 0), 0);
    ck_assert_int_lt(fd_truncate(fd, 1), 0);
    ck_assert_int_lt(fd_seal(fd, F_SEAL_SHRINK), 0);
    ck_assert_int_lt(fd_dup(fd), 0);
    ck_assert_int_lt(fd_reopen_readonly(fd), 0);
    ck_assert_int_lt(fd_map(fd, SIZE, PROT_READ, MAP_SHARED, 0, &addr), 0);
    ck_assert_ptr_null(addr);
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++)
        ck_assert_uint_eq(fault_fired(sites[i]), 1);
    ck_assert_int_eq(fd_count_open(), before);
    fd_close(fd);
}
END_TEST

CHECK_MAIN("base/fd", CHECK_UNIT_S, fd_close_keeps_errno_and_takes_none,
           fd_close_twice_aborts_a_debug_build, fd_reset_forgets,
           fd_memfd_is_private_sealable_and_cloexec, fd_dup_is_cloexec_and_not_a_standard_one,
           fd_reopen_readonly_cannot_write, fd_map_shares_the_bytes, fd_count_open_counts,
           fd_faults_leave_nothing_behind)
