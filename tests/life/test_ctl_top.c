/* kvcachectl on a terminal: top, which gives it back as it was however it ends, and colours. */
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/pty.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define ENTERED "\033[?1049h"
#define LEFT    "\033[?1049l"

static struct pty pty;

static void start_top(const struct daemon *d, const char *environment)
{
    pty_start(&pty, (const char *const[]){"top", "--socket", daemon_socket(d), NULL}, 24, 80,
              environment);
    pty_expect(&pty, 0, ENTERED);
    pty_expect(&pty, 0, "q quit");
    ck_assert(!pty_is_usual(&pty));
}

static void expect_restored(size_t from)
{
    pty_expect(&pty, from, LEFT);
    wait_for(pty_is_usual(&pty), 5000);
}

START_TEST(top_shows_figures_and_lists_by_keys)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 0xa7);
    size_t at;

    talk_publish(&w, 0, 8);
    start_top(d, "NO_COLOR=1");
    at = pty_expect(&pty, 0, "kvcached ");
    at = pty_expect(&pty, at, "gpu   [#");
    at = pty_expect(&pty, at, "*GPU");
    at = pty_expect(&pty, at, "a7a7a7a7a7a7");
    pty_press(&pty, "s");
    at = pty_expect(&pty, at, "*HOST");
    pty_press(&pty, "<<");
    at = pty_expect(&pty, at, "*TENANT");
    pty_press(&pty, "c");
    at = pty_expect(&pty, at, "*REQUESTS/S");
    at = pty_expect(&pty, at, "worker");
    pty_press(&pty, "r>");
    at = pty_expect(&pty, at, "*UNREAD");
    pty_press(&pty, "n?\033[A");
    at = pty_expect(&pty, at, "NAMESPACE");
    pty_press(&pty, "q");
    expect_restored(at);
    ck_assert_int_eq(pty_end(&pty), 0);
    ck_assert_uint_le(pty_widest(pty.text), 80);
    ck_assert_ptr_null(strstr(pty.text, "\033[1m"));
    ck_assert_ptr_null(strstr(pty.text, "\033[3"));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

/* Also by faults of its own, and when the terminal is hung up. */
START_TEST(top_restores_the_terminal_whatever_ends_it)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGABRT};
    struct daemon *d = daemon_start(NULL);
    int status;

    start_top(d, NULL);
    if (signals[_i] == SIGINT)
        pty_press(&pty, "\003");
    else
        kill(pty.pid, signals[_i]);
    expect_restored(0);
    status = pty_end(&pty);
    if (signals[_i] == SIGINT || signals[_i] == SIGTERM || signals[_i] == SIGHUP) {
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    } else {
        ck_assert(WIFSIGNALED(status));
        ck_assert_int_eq(WTERMSIG(status), signals[_i]);
    }
    daemon_stop(d);
}
END_TEST

START_TEST(top_gives_the_terminal_back_while_it_is_stopped)
{
    struct daemon *d = daemon_start(NULL);
    int status;
    size_t at;

    start_top(d, NULL);
    kill(pty.pid, SIGTSTP);
    wait_for(waitpid(pty.pid, &status, WUNTRACED | WNOHANG) == pty.pid, 5000);
    ck_assert(WIFSTOPPED(status));
    expect_restored(0);
    at = pty.n;
    kill(pty.pid, SIGCONT);
    at = pty_expect(&pty, at, ENTERED);
    pty_expect(&pty, at, "q quit");
    ck_assert(!pty_is_usual(&pty));
    pty_press(&pty, "q");
    ck_assert_int_eq(pty_end(&pty), 0);
    daemon_stop(d);
}
END_TEST

START_TEST(top_says_that_the_daemon_is_gone_and_finds_the_next_one)
{
    struct daemon *d = daemon_start(NULL);
    size_t at;

    start_top(d, NULL);
    if (_i == 0)
        daemon_end_killed(d);
    else
        daemon_freeze(d);
    at = pty_expect(&pty, pty.n, "does not answer");
    ck_assert_int_eq(waitpid(pty.pid, NULL, WNOHANG), 0);
    if (_i == 0)
        daemon_restart_killed(d);
    else
        daemon_thaw(d);
    pty_expect(&pty, at, "kvcached ");
    pty_press(&pty, "q");
    ck_assert_int_eq(pty_end(&pty), 0);
    ck_assert_uint_le(pty_widest(pty.text), 80);
    daemon_stop(d);
}
END_TEST

START_TEST(top_follows_the_size_of_the_terminal)
{
    struct winsize size = {.ws_row = 12, .ws_col = 40};
    struct daemon *d = daemon_start(NULL);
    size_t at;

    start_top(d, "NO_COLOR=1");
    ck_assert_int_eq(ioctl(pty.fd, TIOCSWINSZ, &size), 0);
    kill(pty.pid, SIGWINCH);
    at = pty_expect(&pty, pty.n, "\033[H");
    at = pty_expect(&pty, at, "\033[H") - 3;
    pty_expect(&pty, at, "s < > sort");
    pty_press(&pty, "q");
    ck_assert_int_eq(pty_end(&pty), 0);
    *strstr(pty.text + at, LEFT) = '\0';
    ck_assert_uint_le(pty_widest(pty.text + at), 40);
    daemon_stop(d);
}
END_TEST

START_TEST(top_without_a_terminal)
{
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(CTL_RUN("top", "--socket", daemon_socket(d)), 2);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "needs a terminal"));
    ck_assert_str_eq(ctl_out(), "");
    ck_assert_int_eq(CTL_RUN("top", "--json", "--count", "1", "--socket", daemon_socket(d)), 0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "misses_per_s"), 0);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("top", "--count", "0", "--socket", daemon_socket(d)), 2);
    ck_assert_int_eq(CTL_RUN("top", "faster", "--socket", daemon_socket(d)), 2);
    daemon_stop(d);
}
END_TEST

/* Tables and bars of the others: 80 columns, and colours where they are wanted. */
START_TEST(the_others_fit_a_terminal_and_colour_it)
{
    static const char *const commands[] = {"status", "clients", "namespaces", "layouts", "leases",
                                           "blocks", "config",  "verify",     "drain"};
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 0xa7);

    talk_publish(&w, 0, 8);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        pty_start(&pty, (const char *const[]){commands[i], "--socket", daemon_socket(d), NULL}, 24,
                  80, _i == 0 ? NULL : "NO_COLOR=1");
        ck_assert_int_eq(pty_end(&pty), 0);
        ck_assert_msg(pty_widest(pty.text) <= 80, "%s: %zu columns", commands[i],
                      pty_widest(pty.text));
        ck_assert_msg(_i == 0 || strstr(pty.text, "\033[") == NULL || strstr(pty.text, "\033[K"),
                      "%s has colours", commands[i]);
        if (i == 0)
            ck_assert((strstr(pty.text, "\033[32m") != NULL) == (_i == 0));
    }
    ck_assert_int_eq(CTL_RUN("status", "--socket", daemon_socket(d)), 0);
    ck_assert_ptr_null(strchr(ctl_out(), '\033'));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("ctl/top", CHECK_LIFE_S, {top_shows_figures_and_lists_by_keys, 0, 0},
                 {top_restores_the_terminal_whatever_ends_it, 0, 5},
                 {top_gives_the_terminal_back_while_it_is_stopped, 0, 0},
                 {top_says_that_the_daemon_is_gone_and_finds_the_next_one, 0, 1},
                 {top_follows_the_size_of_the_terminal, 0, 0}, {top_without_a_terminal, 0, 0},
                 {the_others_fit_a_terminal_and_colour_it, 0, 1})
