// The tests' own support: what judges others must not be wrong itself.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/log_file.h"
#include "tests/lib/proc.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define STAMP "2026-01-31T12:00:00.000Z "

static void write_log(struct log_file *log, const char *text)
{
    FILE *f;

    log_file_init(log, tmpdir_file("x.log"));
    f = fopen(log->path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

START_TEST(log_file_accepts_what_is_no_trouble)
{
    struct log_file log;
    char why[256];

    write_log(&log, STAMP "info main: ready\n" STAMP "debug store: error=0 warning\n");
    ck_assert(log_file_ok(&log, why, sizeof(why)));
    ck_assert_int_eq(log_file_count(&log, "main: "), 1);
    log_file_expect_last(&log, "warning");
}
END_TEST

START_TEST(log_file_finds_what_was_not_announced)
{
    static const char *const troubles[] = {
        STAMP "warning conn: x\n",
        STAMP "error conn: x\n",
        "kvcached: main.c:3: main: Assertion `x' failed.\n",
        "==123==ERROR: AddressSanitizer: heap-use-after-free\n",
        "main.c:3:2: runtime error: signed integer overflow\n",
    };

    for (size_t i = 0; i < sizeof(troubles) / sizeof(troubles[0]); i++) {
        struct log_file log;
        char why[256] = "";

        write_log(&log, troubles[i]);
        ck_assert(!log_file_ok(&log, why, sizeof(why)));
        ck_assert_ptr_nonnull(strstr(why, "unexpected"));
    }
}
END_TEST

START_TEST(log_file_holds_announcements_to_their_word)
{
    struct log_file log;
    char why[256] = "";

    write_log(&log, STAMP "warning conn: malformed packet\n" STAMP "warning conn: malformed x\n");
    log_file_announce(&log, "malformed", true);
    ck_assert(log_file_ok(&log, why, sizeof(why)));
    log_file_announce(&log, "may come", false);
    ck_assert(log_file_ok(&log, why, sizeof(why)));
    log_file_announce(&log, "must come", true);
    ck_assert(!log_file_ok(&log, why, sizeof(why)));
    ck_assert_ptr_nonnull(strstr(why, "must come"));
}
END_TEST

START_TEST(wait_until_ends_with_its_condition)
{
    int polls = 0;

    ck_assert(wait_until(++polls == 3, 1000));
    ck_assert_int_eq(polls, 3);
    ck_assert(!wait_until(false, 5));
}
END_TEST

START_TEST(tmpdir_is_private_and_one_for_a_test)
{
    struct stat st;
    const char *a = tmpdir_file("a");
    const char *b = tmpdir_file("b");

    ck_assert_str_ne(a, b);
    ck_assert_int_eq(strncmp(a, tmpdir_path(), strlen(tmpdir_path())), 0);
    ck_assert_int_eq(stat(tmpdir_path(), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
}
END_TEST

START_TEST(proc_finds_orphans_of_its_children)
{
    int pipe_fds[2];
    char byte;
    pid_t child;

    ck_assert_int_eq(pipe(pipe_fds), 0);
    child = proc_fork();
    if (child == 0) {
        if (fork() == 0)
            pause();
        _exit(0);
    }
    proc_wait_ok(child, 2000);
    ck_assert_int_eq(proc_kill_children(), 1);
    // The orphan held the write end: it is gone when the end of file comes.
    close(pipe_fds[1]);
    ck_assert_int_eq(read(pipe_fds[0], &byte, 1), 0);
    close(pipe_fds[0]);
}
END_TEST

START_TEST(proc_fork_dies_with_its_parent)
{
    int pipe_fds[2];
    char byte;
    pid_t child;

    ck_assert_int_eq(pipe(pipe_fds), 0);
    child = proc_fork();
    if (child == 0) {
        if (proc_fork() == 0)
            for (;;)
                pause();
        for (;;)
            pause();
    }
    close(pipe_fds[1]);
    proc_kill(child);
    ck_assert_int_eq(read(pipe_fds[0], &byte, 1), 0);
    close(pipe_fds[0]);
    // It came to this process when its parent died, and is a zombie or reaped by now.
    proc_kill_children();
}
END_TEST

CHECK_MAIN("tests/lib", CHECK_UNIT_S, log_file_accepts_what_is_no_trouble,
           log_file_finds_what_was_not_announced, log_file_holds_announcements_to_their_word,
           wait_until_ends_with_its_condition, tmpdir_is_private_and_one_for_a_test,
           proc_finds_orphans_of_its_children, proc_fork_dies_with_its_parent)
