// Starting and stopping: what a daemon refuses to start with, what it replaces, how it ends.
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/talk.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

// Arguments that it must refuse, and a word of the line that says why.
static const struct {
    const char *args[4];
    const char *says;
} refused[] = {
    {{"--gpu-bytes", "1.5G"}, "is not digits"},
    {{"--gpu-bytes", "-1"}, "is not digits"},
    {{"--gpu-bytes", ""}, "is not digits"},
    {{"--gpu-bytes", "12Q"}, "is not digits"},
    {{"--gpu-bytes", "1GB"}, "is not digits"},
    {{"--gpu-bytes", "M"}, "is not digits"},
    {{"--gpu-bytes", " 16M"}, "is not digits"},
    {{"--host-bytes", "99999999999999999999"}, "is not digits"},
    {{"--host-bytes", "17179869184G"}, "is not digits"},
    {{"--host-bytes", "1M"}, "less than one extent"},
    {{"--gpu-bytes", "2097151"}, "less than one extent"},
    {{"--gpu-bytes", "0", "--host-bytes", "0"}, "both 0"},
    {{"--host-bytes", "1000T"}, "more than this machine's memory"},
    {{"--gpu-bytes", "16777215T", "--host-bytes", "16777215T"}, "more than this machine's memory"},
    {{"--device", "cuda"}, "CUDA"},
    {{"--device", "tpu"}, "none of auto, host, cuda"},
    {{"--gpu-byte", "16M"}, "did you mean \"gpu-bytes\""},
    {{"--colour", "red"}, "unknown option \"colour\""},
    {{"--log-level", "loud"}, "none of error, warning, info, debug"},
    {{"--socket-mode", "999"}, "is not"},
    {{"--socket-mode", "1777"}, "is not"},
    {{"--gpu-bytes"}, "needs a value"},
    {{"gpu-bytes"}, "unexpected argument"},
    {{"-h"}, "--help lists the options"},
    {{"--socket", ""}, "must not be empty"},
    {{"--socket", "/no/such/folder/s"}, "/no/such/folder/s.lock"},
    {{"--socket", "/dev/null"}, "is not a socket"},
    {{"--socket",
      "/tmp/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
     "a socket allows 1 to 107"},
};
#define REFUSED (sizeof(refused) / sizeof(refused[0]))

static int count_lines(const char *text, const char *with)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, with)) != NULL; at++)
        n++;
    return n;
}

// What is refused is said in one line.
static void expect_refusal(const char *const args[], const char *says)
{
    char text[4096];
    int status = daemon_run(args, text, sizeof(text));

    ck_assert_int_eq(status, 1);
    ck_assert_msg(strstr(text, says) != NULL, "%s %s: \"%s\" does not say \"%s\"", args[0],
                  args[1] ? args[1] : "", text, says);
    ck_assert_int_eq(count_lines(text, "error main: cannot start: "), 1);
    ck_assert_int_eq(count_lines(text, "\n") - count_lines(text, "exit live_"), 1);
    if (strstr(text, "exit live_"))
        ck_assert_msg(strstr(text, daemon_last_words()), "%s", text);
}

START_TEST(test_refuses)
{
    const char *args[5] = {0};

    memcpy(args, refused[_i].args, sizeof(refused[_i].args));
    expect_refusal(args, refused[_i].says);
}
END_TEST

START_TEST(test_help_and_version)
{
    char text[8192];

    ck_assert_int_eq(daemon_run((const char *[]){"--help", NULL}, text, sizeof(text)), 0);
    ck_assert_ptr_nonnull(strstr(text, "--gpu-bytes SIZE"));
    ck_assert_ptr_nonnull(strstr(text, "[256M]"));
    ck_assert_int_eq(daemon_run((const char *[]){"--version", NULL}, text, sizeof(text)), 0);
    ck_assert_str_eq(text, "kvcached " KVC_BUILD_VERSION "\n");
}
END_TEST

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

// A file that is judged says what is wrong with it; nothing was to start.
START_TEST(a_checked_file_is_right_or_wrong_and_nothing_starts)
{
    const char *path = tmpdir_file("kvcached.conf");
    const char *const check[] = {"--check-config", path, NULL};
    char text[4096], expected[512];

    write_file(path, "lease-time = 7s\n");
    ck_assert_int_eq(daemon_run(check, text, sizeof(text)), 0);
    ck_assert_str_eq(text, "the configuration is right\n");
    write_file(path, "# leases\nlease = 7s\n");
    ck_assert_int_eq(daemon_run(check, text, sizeof(text)), 1);
    snprintf(expected, sizeof(expected),
             "the configuration is wrong: %s: line 2: unknown option \"lease\"; did you mean "
             "\"lease-time\"?\n",
             path);
    ck_assert_str_eq(text, expected);
}
END_TEST

START_TEST(test_tiers_of_nothing)
{
    daemon_stop(daemon_start((const char *[]){"--gpu-bytes", "0", NULL}));
    daemon_stop(daemon_start((const char *[]){"--host-bytes", "0", NULL}));
}
END_TEST

START_TEST(F38_second_daemon_refuses)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    expect_refusal((const char *[]){"--socket", daemon_socket(d), NULL},
                   "another daemon is running");
    talk_ping(sock);
    close(sock);
    daemon_stop(d);
}
END_TEST

static int bound_socket(const char *path, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, type, 0);

    ck_assert_int_ge(sock, 0);
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    ck_assert_int_eq(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    return sock;
}

START_TEST(test_somebody_else_listens)
{
    const char *path = tmpdir_file("theirs");
    int sock = bound_socket(path, _i == 0 ? SOCK_SEQPACKET : SOCK_STREAM);
    struct stat st;

    ck_assert_int_eq(listen(sock, 1), 0);
    expect_refusal((const char *[]){"--socket", path, NULL}, "somebody listens");
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert_int_eq(access(tmpdir_file("theirs.lock"), F_OK), -1);
    close(sock);
}
END_TEST

// The harness's first socket is s1 in the test's folder.
START_TEST(test_stale_socket_is_replaced)
{
    int kinds[] = {SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM};
    struct daemon *d;

    close(bound_socket(tmpdir_file("s1"), kinds[_i]));
    d = daemon_start(NULL);
    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    daemon_stop(d);
}
END_TEST

// A daemon that was killed leaves socket and lock behind.
START_TEST(test_starts_again_after_a_kill)
{
    struct daemon *d = daemon_start(NULL);

    for (int i = 0; i < 3; i++) {
        daemon_restart_killed(d);
        int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
        talk_ping(sock);
        close(sock);
    }
    daemon_stop(d);
}
END_TEST

START_TEST(test_socket_mode)
{
    struct daemon *d = daemon_start(NULL);
    struct stat st;

    ck_assert_int_eq(stat(daemon_socket(d), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0660);
    daemon_stop(d);
    d = daemon_start((const char *[]){"--socket-mode", "0600", NULL});
    ck_assert_int_eq(stat(daemon_socket(d), &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    daemon_stop(d);
}
END_TEST

static uint64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

// The best of some starts, without the time in which this process, or the daemon's loop, could have
// run and the machine had something else to do.
START_TEST(test_ready_within_100_ms)
{
    double best = 1e9;

    for (int i = 0; i < 20 && best >= 100 * check_time_multiplier(); i++) {
        const double waited = proc_waited_ms(getpid());
        const uint64_t start = now_ms();
        struct daemon *d = daemon_start((const char *[]){"--host-bytes", "1G", NULL});
        const double took = (double)(now_ms() - start) - (proc_waited_ms(getpid()) - waited) -
                            proc_waited_ms(daemon_pid(d));

        daemon_stop(d);
        best = took < best ? took : best;
    }
    ck_assert_msg(best < 100 * check_time_multiplier(), "ready after %d ms", (int)best);
}
END_TEST

static void expect_quick_stop(int sig)
{
    struct daemon *d = daemon_start((const char *[]){"--drain-time", "1h", NULL});
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);

    ck_assert_int_eq(kill(daemon_pid(d), sig), 0);
    wait_for(daemon_log_count(d, "main: stopped") == 1, 2000);
    daemon_stop(d);
    ck_assert(talk_ended(sock));
    close(sock);
}

// A second signal ends the wait and not the process. Nothing is in flight, so there is nothing to
// wait for.
START_TEST(test_signals_stop_it)
{
    expect_quick_stop(_i == 0 ? SIGTERM : SIGINT);
}
END_TEST

// However late a further signal comes, and whichever thread it finds.
START_TEST(test_signals_up_to_the_end_change_nothing)
{
    struct daemon *d = daemon_start(NULL);
    siginfo_t info = {0};

    while (info.si_pid == 0) {
        kill(daemon_pid(d), SIGTERM);
        ck_assert_int_eq(waitid(P_PID, (id_t)daemon_pid(d), &info, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    daemon_stop(d);
}
END_TEST

START_TEST(test_stopping_is_told)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_READER, NULL);
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    static uint8_t in[KVC_WIRE_PACKET_MAX];
    struct wire_packet packet;
    const char *why;

    ck_assert_int_eq(kill(daemon_pid(d), SIGTERM), 0);
    wait_for(poll(&readable, 1, 100) == 1, 2000);
    ck_assert_int_eq(wire_recv(sock, in, &packet, &why), WIRE_OK);
    ck_assert_uint_eq(packet.type, WIRE_STOPPING);
    ck_assert_uint_eq(packet.seq, 0);
    ck_assert(talk_ended(sock));
    close(sock);
    daemon_stop(d);
}
END_TEST

static long switches_of(pid_t pid)
{
    char path[64], line[128];
    long n = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f))
        sscanf(line, "voluntary_ctxt_switches: %ld", &n);
    fclose(f);
    return n;
}

// With nothing outstanding it sleeps until somebody speaks; a few wakes are forgiven.
START_TEST(test_idle_daemon_sleeps)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    long before;

    talk_ping(sock);
    wait_for(daemon_log_count(d, "memory is populated") == 1, 5000);
    before = switches_of(daemon_pid(d));
    usleep(400 * 1000);
    ck_assert_int_le(switches_of(daemon_pid(d)) - before, 3);
    close(sock);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("conn/start", CHECK_LIFE_S, {test_refuses, 0, REFUSED - 1},
                 {test_help_and_version, 0, 0}, {test_tiers_of_nothing, 0, 0},
                 {a_checked_file_is_right_or_wrong_and_nothing_starts, 0, 0},
                 {F38_second_daemon_refuses, 0, 0}, {test_somebody_else_listens, 0, 1},
                 {test_stale_socket_is_replaced, 0, 2}, {test_starts_again_after_a_kill, 0, 0},
                 {test_socket_mode, 0, 0}, {test_ready_within_100_ms, 0, 0},
                 {test_signals_stop_it, 0, 1}, {test_signals_up_to_the_end_change_nothing, 0, 19},
                 {test_stopping_is_told, 0, 0}, {test_idle_daemon_sleeps, 0, 0})
