#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tmpdir.h"

struct captured {
    int lines;
    enum log_level level;
    char last[LOG_LINE_MAX + 1];
};

static void capture(void *arg, enum log_level level, const char *line, size_t length)
{
    struct captured *c = arg;

    c->lines++;
    c->level = level;
    memcpy(c->last, line, length);
    c->last[length] = '\0';
}

START_TEST(log_writes_level_room_and_pairs)
{
    struct captured c = {0};

    log_set_sink(capture, &c);
    log_warn("conn", "malformed packet session=%d reason=%s", 7, "magic");
    ck_assert_int_eq(c.level, LOG_LEVEL_WARNING);
    ck_assert_str_eq(c.last, "warning conn: malformed packet session=7 reason=magic");
    log_error("main", "no");
    ck_assert_str_eq(c.last, "error main: no");
}
END_TEST

START_TEST(log_drops_what_is_above_its_level)
{
    struct captured c = {0};

    log_set_sink(capture, &c);
    log_debug("x", "not by default");
    ck_assert_int_eq(c.lines, 0);
    log_set_level(LOG_LEVEL_DEBUG);
    log_debug("x", "now");
    ck_assert_int_eq(c.lines, 1);
    log_set_level(LOG_LEVEL_ERROR);
    log_warn("x", "quiet");
    ck_assert_int_eq(c.lines, 1);
}
END_TEST

START_TEST(log_is_one_line_whatever_it_is_given)
{
    struct captured c = {0};
    char longer[3 * LOG_LINE_MAX];

    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    log_set_sink(capture, &c);
    log_info("x", "name=%s", "a\nerror b: forged\x1b[2J");
    ck_assert_str_eq(c.last, "info x: name=a?error b: forged?[2J");
    log_info("x", "%s", longer);
    ck_assert_uint_lt(strlen(c.last), LOG_LINE_MAX);
    ck_assert_int_eq(c.lines, 2);
}
END_TEST

START_TEST(log_keeps_errno_and_knows_it)
{
    struct captured c = {0};

    log_set_sink(capture, &c);
    errno = ENOSPC;
    log_warn("x", "why=%m");
    ck_assert_int_eq(errno, ENOSPC);
    ck_assert_str_eq(c.last, "warning x: why=No space left on device");
}
END_TEST

static void log_from_one_place(int i)
{
    log_warn("x", "flood i=%d", i);
}

START_TEST(log_mutes_a_flood_and_says_how_much)
{
    struct captured c = {0};

    log_set_sink(capture, &c);
    for (int i = 0; i < LOG_BURST + 30; i++)
        log_from_one_place(i);
    ck_assert_int_eq(c.lines, LOG_BURST);
    log_warn("x", "another place is heard");
    ck_assert_int_eq(c.lines, LOG_BURST + 1);
    log_settle(false);
    ck_assert_int_eq(c.lines, LOG_BURST + 1);
    clock_advance(LOG_WINDOW_US);
    log_settle(false);
    ck_assert_str_eq(c.last, "warning x: lines like these suppressed=30 event=\"flood\"");
    ck_assert_int_eq(c.lines, LOG_BURST + 2);
    log_settle(true);
    log_from_one_place(99);
    ck_assert_str_eq(c.last, "warning x: flood i=99");
    ck_assert_int_eq(c.lines, LOG_BURST + 3);
}
END_TEST

START_TEST(log_says_what_was_muted_when_another_place_logs_or_takes_its_place)
{
    struct captured c = {0};

    log_set_sink(capture, &c);
    for (int i = 0; i < LOG_BURST + 2; i++)
        log_from_one_place(i);
    clock_advance(LOG_WINDOW_US);
    log_info("y", "something else");
    ck_assert_int_eq(c.lines, LOG_BURST + 2);
    ck_assert_str_eq(c.last, "info y: something else");
    // At the end also of a window that is not over; a level that is not wanted any more says
    // nothing.
    for (int i = 0; i < LOG_BURST + 2; i++)
        log_from_one_place(i);
    log_set_level(LOG_LEVEL_ERROR);
    log_settle(true);
    ck_assert_str_eq(c.last, "warning x: flood i=19");
    log_set_level(LOG_LEVEL_INFO);
    log_from_one_place(0);
    log_settle(true);
    ck_assert_str_eq(c.last, "warning x: lines like these suppressed=1 event=\"flood\"");
}
END_TEST

START_TEST(log_has_a_name_for_each_level)
{
    for (int l = LOG_LEVEL_ERROR; l <= LOG_LEVEL_DEBUG; l++)
        ck_assert_ptr_nonnull(log_level_names[l]);
    ck_assert_ptr_null(log_level_names[LOG_LEVEL_DEBUG + 1]);
}
END_TEST

static void read_stderr_of_one_line(char *text, size_t size)
{
    const char *path = tmpdir_file("stderr");
    int keep = dup(STDERR_FILENO);
    size_t n;
    FILE *f;

    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    log_warn("x", "plain n=%d", 1);
    dup2(keep, STDERR_FILENO);
    close(keep);
    f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    fclose(f);
}

START_TEST(log_puts_a_time_before_lines_on_stderr)
{
    char text[256];
    int year, n = 0;

    unsetenv("JOURNAL_STREAM");
    read_stderr_of_one_line(text, sizeof(text));
    ck_assert_int_eq(sscanf(text, "%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%*3dZ %n", &year, &n), 1);
    ck_assert_str_eq(text + n, "warning x: plain n=1\n");
}
END_TEST

// The other end, and stderr in its place: a pipe of one page, or a socket.
static int replace_stderr(bool socket, int *saved)
{
    int ends[2];

    if (socket) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    } else {
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        ck_assert_int_gt(fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
    }
    *saved = dup(2);
    ck_assert_int_eq(dup2(ends[1], 2), 2);
    close(ends[1]);
    return ends[0];
}

static size_t read_all(int fd, char *text, size_t size)
{
    size_t n = 0;

    for (ssize_t got; n + 1 < size && (got = read(fd, text + n, size - n - 1)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    return n;
}

// A line to a socket as stderr, of which the environment says that it is the journal's, or another.
static void log_to_a_socket(bool journal, char *text, size_t size)
{
    char stream[64];
    struct stat st;
    int saved, reader = replace_stderr(true, &saved);

    ck_assert_int_eq(fstat(2, &st), 0);
    snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino + !journal);
    setenv("JOURNAL_STREAM", stream, 1);
    log_warn("x", "to a socket");
    fcntl(reader, F_SETFL, O_NONBLOCK);
    read_all(reader, text, size);
    close(reader);
    ck_assert_int_eq(dup2(saved, 2), 2);
    close(saved);
}

START_TEST(log_puts_a_priority_before_lines_to_the_journal)
{
    char text[256];

    log_to_a_socket(true, text, sizeof(text));
    ck_assert_str_eq(text, "<4>warning x: to a socket\n");
    // Stderr of a service that was led elsewhere: the variable alone means nothing.
    log_to_a_socket(false, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "Z warning x: to a socket\n"));
    setenv("JOURNAL_STREAM", "nonsense", 1);
    read_stderr_of_one_line(text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "Z warning x: plain n=1\n"));
}
END_TEST

// Nobody reads: whoever logs goes on, and the first line after that says what is missing.
START_TEST(F4_log_waits_for_nobody_who_reads_it)
{
    static char text[1024 * 1024];
    char value[900], said[32];
    int saved, reader = replace_stderr(_i == 1, &saved), lines = 0;

    signal(SIGPIPE, SIG_IGN);
    memset(value, 'x', sizeof(value) - 1);
    value[sizeof(value) - 1] = '\0';
    for (int i = 0; i < 1000; i++) {
        errno = 0;
        log_info("x", "line value=%s", value);
        ck_assert_int_eq(errno, 0);
        if (i % 10 == 0)
            clock_advance(LOG_WINDOW_US);
    }
    fcntl(reader, F_SETFL, O_NONBLOCK);
    read_all(reader, text, sizeof(text));
    for (const char *at = strstr(text, "line value"); at; at = strstr(at + 1, "line value"))
        lines++;
    ck_assert_int_gt(lines, 0);
    ck_assert_int_lt(lines, 1000);
    log_info("x", "again");
    log_info("x", "and again");
    read_all(reader, text, sizeof(text));
    snprintf(said, sizeof(said), "again lost_before=%d\n", 1000 - lines);
    ck_assert_ptr_nonnull(strstr(text, said));
    ck_assert_ptr_nonnull(strstr(text, "and again\n"));
    close(reader);
    log_info("x", "to nobody, who is gone");
    ck_assert_int_eq(dup2(saved, 2), 2);
    close(saved);
}
END_TEST

CHECK_MAIN_LOOPS("base/log", CHECK_UNIT_S, {log_writes_level_room_and_pairs, 0, 0},
                 {log_drops_what_is_above_its_level, 0, 0},
                 {log_is_one_line_whatever_it_is_given, 0, 0}, {log_keeps_errno_and_knows_it, 0, 0},
                 {log_mutes_a_flood_and_says_how_much, 0, 0},
                 {log_says_what_was_muted_when_another_place_logs_or_takes_its_place, 0, 0},
                 {log_has_a_name_for_each_level, 0, 0},
                 {log_puts_a_time_before_lines_on_stderr, 0, 0},
                 {log_puts_a_priority_before_lines_to_the_journal, 0, 0},
                 {F4_log_waits_for_nobody_who_reads_it, 0, 1})
