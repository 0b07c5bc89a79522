// As a service: what it tells its manager and when, the watchdog, a socket that the manager made,
// and the units. The manager is a socket of the test's.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define WAIT_MS     5000
#define WATCHDOG_US 200000 // pings each half of it
#define FOREVER     UINT32_MAX

static int manager = -1;
static char told[65536]; // one message behind the other, each with a newline
// What has come so far, which a thread reads: the kernel keeps ten messages for who does not.
static char heard[sizeof(told)];
static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t listener;

static atomic_bool closed;

// What has come by now.
static void hear(void)
{
    ssize_t n;

    pthread_mutex_lock(&heard_lock);
    for (size_t used = strlen(heard);; used += (size_t)n + 1) {
        n = recv(manager, heard + used, sizeof(heard) - used - 2, MSG_DONTWAIT);
        if (n <= 0)
            break;
        memcpy(heard + used + n, "\n", 2);
    }
    pthread_mutex_unlock(&heard_lock);
}

static void *listen_always(void *arg)
{
    struct pollfd readable = {.fd = manager, .events = POLLIN};

    while (!closed) {
        (void)poll(&readable, 1, -1);
        hear();
    }
    return arg;
}

static void manager_open(bool abstract)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[sizeof(address.sun_path)];
    socklen_t len;

    if (abstract)
        snprintf(name, sizeof(name), "@kvcached-test-%s", tmpdir_name());
    else
        snprintf(name, sizeof(name), "%s", tmpdir_file("notify"));
    len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    memcpy(address.sun_path, name, strlen(name));
    if (abstract)
        address.sun_path[0] = '\0';
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(manager, 0);
    ck_assert_int_eq(bind(manager, (struct sockaddr *)&address, len), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    heard[0] = '\0';
    closed = false;
    ck_assert_int_eq(pthread_create(&listener, NULL, listen_always, NULL), 0);
}

static void manager_close(void)
{
    closed = true;
    shutdown(manager, SHUT_RD); // which wakes it
    pthread_join(listener, NULL);
    close(manager);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
}

static void listen_to_it(void)
{
    hear();
    pthread_mutex_lock(&heard_lock);
    strcpy(told, heard);
    pthread_mutex_unlock(&heard_lock);
}

static int count_told(const char *line)
{
    int n = 0;

    listen_to_it();
    for (const char *at = told; (at = strstr(at, line)) != NULL; at += strlen(line))
        n++;
    return n;
}

START_TEST(ready_comes_when_it_serves)
{
    struct daemon *d;

    manager_open(_i == 1);
    d = daemon_start(NULL);
    wait_for(count_told("READY=1\n") == 1, WAIT_MS);
    ck_assert_int_eq(strncmp(told, "READY=1\nSTATUS=serving device=host", 34), 0);
    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    ck_assert_int_eq(count_told("WATCHDOG=1"), 0);
    daemon_stop(d);
    manager_close();
}
END_TEST

START_TEST(one_that_cannot_serve_is_never_ready)
{
    char output[1024];
    uint64_t fired;

    manager_open(false);
    ck_assert_ptr_null(
        daemon_start_armed(NULL, "listener.listen", 0, 1, &fired, output, sizeof(output)));
    ck_assert_uint_eq(fired, 1);
    listen_to_it();
    ck_assert_str_eq(told, "");
    manager_close();
}
END_TEST

START_TEST(a_manager_that_is_not_there_is_no_harm)
{
    struct daemon *d;

    setenv("NOTIFY_SOCKET", _i == 0 ? tmpdir_file("nobody") : "vsock:2:1", 1);
    d = daemon_start(NULL);
    daemon_log_expect(d, "cannot tell the service manager");
    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    daemon_stop(d);
    unsetenv("NOTIFY_SOCKET");
}
END_TEST

// More blocks than the gpu tier has room for, so that some must be copied, which hangs.
static void hold_a_copy(struct stage *s)
{
    uint32_t next = 1000;

    daemon_fault_arm(s->daemon, "mover.late", 0, FOREVER);
    wait_for((engine_put_some(&s->witness, next, 100), next += 100,
              daemon_fault_fired(s->daemon, "mover.late") > 0),
             WAIT_MS);
}

START_TEST(pings_stop_while_a_copy_is_stuck)
{
    char text[16];
    struct stage s;
    int before;

    snprintf(text, sizeof(text), "%d", WATCHDOG_US);
    setenv("WATCHDOG_USEC", text, 1);
    manager_open(false);
    stage_open(&s, NULL);
    wait_for(count_told("WATCHDOG=1\n") >= 3, WAIT_MS);
    daemon_log_expect(s.daemon, "the watchdog is not fed: no progress of copies between tiers");
    hold_a_copy(&s);
    daemon_clock_advance(s.daemon, 11000000);
    wait_for(count_told("STATUS=no progress of copies between tiers\n") == 1, WAIT_MS);
    before = count_told("WATCHDOG=1\n");
    usleep(5 * WATCHDOG_US / 2);
    ck_assert_int_eq(kvc_ping(s.witness.client), KVC_OK); // the loop runs
    ck_assert_int_eq(count_told("WATCHDOG=1\n"), before);
    daemon_fault_off(s.daemon, "mover.late");
    wait_for(count_told("WATCHDOG=1\n") > before, WAIT_MS);
    ck_assert_int_eq(daemon_log_count(s.daemon, "the watchdog is fed again"), 1);
    s.crowded = true;
    stage_close(&s);
    manager_close();
}
END_TEST

// For a process that was forked from the one that is watched, say.
START_TEST(another_ones_watchdog_is_not_fed)
{
    struct daemon *d;

    setenv("WATCHDOG_USEC", "1000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    manager_open(false);
    d = daemon_start(NULL);
    wait_for(count_told("READY=1\n") == 1, WAIT_MS);
    daemon_stop(d);
    ck_assert_int_eq(count_told("WATCHDOG=1"), 0);
    unsetenv("WATCHDOG_PID");
    manager_close();
}
END_TEST

START_TEST(reload_is_told_from_its_begin_to_its_end)
{
    struct daemon *d;
    const char *reloading;

    manager_open(false);
    d = daemon_start(NULL);
    wait_for(count_told("READY=1\n") == 1, WAIT_MS);
    kill(daemon_pid(d), SIGHUP);
    wait_for(count_told("READY=1\n") == 2, WAIT_MS);
    reloading = strstr(told, "RELOADING=1\nMONOTONIC_USEC=");
    ck_assert_ptr_nonnull(reloading);
    ck_assert_ptr_nonnull(strstr(reloading, "READY=1\nSTATUS=serving"));
    daemon_stop(d);
    manager_close();
}
END_TEST

START_TEST(stopping_is_told_to_the_manager)
{
    struct daemon *d;

    manager_open(false);
    d = daemon_start(NULL);
    wait_for(count_told("READY=1\n") == 1, WAIT_MS);
    ck_assert_int_eq(count_told("STOPPING=1"), 0);
    daemon_stop(d);
    ck_assert_int_eq(count_told("STOPPING=1\n"), 1);
    manager_close();
}
END_TEST

static int bound_socket(const char *file, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(sock, 0);
    strcpy(address.sun_path, tmpdir_file(file));
    ck_assert_int_eq(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(sock, 16), 0);
    return sock;
}

static int passed_socket(int type)
{
    int sock = bound_socket("passed", type);

    daemon_pass_socket(sock);
    return sock;
}

// Who connects while no daemon is there is served by the next one.
START_TEST(a_passed_socket_outlives_its_daemons)
{
    int passed, sock;

    manager_open(false);
    passed = passed_socket(SOCK_SEQPACKET);
    for (int i = 1; i <= 3; i++) {
        struct daemon *d;
        struct ucred who;
        socklen_t len = sizeof(who);

        sock = talk_connect(tmpdir_file("passed"));
        d = daemon_start(NULL);
        wait_for(count_told("READY=1\n") == i, WAIT_MS);
        close(sock);
        sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
        ck_assert_int_eq(getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len), 0);
        ck_assert_int_eq(who.pid, daemon_pid(d));
        close(sock);
        ck_assert_int_eq(daemon_log_count(d, "the socket is the service manager's"), 1);
        ck_assert_int_eq(access(tmpdir_file("passed.lock"), F_OK), -1);
        daemon_stop(d);
    }
    close(passed);
    manager_close();
}
END_TEST

START_TEST(a_passed_socket_does_not_block)
{
    int passed = passed_socket(SOCK_SEQPACKET);
    struct daemon *d = daemon_start(NULL);

    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    ck_assert((fcntl(passed, F_GETFL) & O_NONBLOCK) != 0);
    daemon_stop(d);
    close(passed);
}
END_TEST

START_TEST(a_passed_socket_of_another_kind_is_refused)
{
    int passed = passed_socket(SOCK_STREAM);
    char output[1024];

    ck_assert_int_eq(daemon_run(NULL, output, sizeof(output)), 1);
    ck_assert_ptr_nonnull(strstr(output, "no unix socket for sequential packets"));
    ck_assert_ptr_nonnull(strstr(output, daemon_last_words()));
    close(passed);
}
END_TEST

// One by its name, one by its path, the last alone is the daemon's own to make.
START_TEST(passed_sockets_are_known_by_name_and_path)
{
    const int socks[] = {bound_socket("p1", SOCK_SEQPACKET), bound_socket("p2", SOCK_SEQPACKET)};
    const char *p1 = tmpdir_file("p1");
    char settings[2][256];
    struct daemon *d;
    int sock;

    snprintf(settings[0], sizeof(settings[0]), "fd:named.socket tenant=by-name");
    snprintf(settings[1], sizeof(settings[1]), "%s tenant=own", tmpdir_file("own"));
    daemon_pass_sockets(socks, 2, "some:named.socket");
    d = daemon_start((const char *const[]){"--socket", settings[0], "--socket", settings[1], NULL});
    ck_assert_str_eq(daemon_socket(d), p1);
    sock = talk_hello(p1, KVCACHE__ROLE__ROLE_WORKER, NULL);
    close(sock);
    close(talk_hello(tmpdir_file("p2"), KVCACHE__ROLE__ROLE_WORKER, NULL));
    close(talk_hello(tmpdir_file("own"), KVCACHE__ROLE__ROLE_WORKER, NULL));
    ck_assert_int_eq(daemon_log_count(d, "the socket is the service manager's"), 2);
    ck_assert_int_eq(daemon_log_count(d, "socket=fd:named.socket name=\"named.socket\""), 1);
    ck_assert_int_eq(access(tmpdir_file("own.lock"), F_OK), 0);
    ck_assert_int_eq(access(tmpdir_file("p2.lock"), F_OK), -1);
    daemon_stop(d);
    daemon_pass_socket(-1);
    close(socks[0]);
    close(socks[1]);
}
END_TEST

// The first is where the daemon listens anyway. Some that no setting is for, one that a setting
// waits for, two for one.
START_TEST(passed_sockets_that_do_not_fit_are_refused)
{
    static const struct {
        const char *setting, *names, *why;
    } cases[] = {{"/elsewhere", "x:b:c", "passed \"b\", for which there is no setting socket"},
                 {"fd:c", "x:b:c", "passed \"b\", for which there is no setting socket"},
                 {"fd:a", "x:a:a", "passed \"a\", for which there is another one already"},
                 {"fd:b", NULL, "for which there is no setting socket"}};
    const int socks[] = {bound_socket("p1", SOCK_SEQPACKET), bound_socket("p2", SOCK_SEQPACKET),
                         bound_socket("p3", SOCK_SEQPACKET)};
    char output[1024];

    daemon_pass_sockets(socks, 3, cases[_i].names);
    ck_assert_int_eq(daemon_run((const char *const[]){"--socket", cases[_i].setting, NULL}, output,
                                sizeof(output)),
                     1);
    ck_assert_msg(strstr(output, cases[_i].why) != NULL, "%s", output);
    ck_assert_ptr_nonnull(strstr(output, daemon_last_words()));
    daemon_pass_socket(-1);
    for (int i = 0; i < 3; i++)
        close(socks[i]);
}
END_TEST

START_TEST(a_passed_socket_that_is_waited_for_and_not_there)
{
    char output[1024];

    ck_assert_int_eq(
        daemon_run((const char *const[]){"--socket", "fd:b", NULL}, output, sizeof(output)), 1);
    ck_assert_ptr_nonnull(strstr(output, "passed no socket named \"b\""));
    ck_assert_ptr_nonnull(strstr(output, daemon_last_words()));
}
END_TEST

static void run(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void run(const char *format, ...)
{
    char command[2048], output[2048];
    va_list args;
    FILE *pipe;
    size_t n;

    va_start(args, format);
    ck_assert_int_lt(vsnprintf(command, sizeof(command), format, args), (int)sizeof(command));
    va_end(args);
    pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    n = fread(output, 1, sizeof(output) - 1, pipe);
    output[n] = '\0';
    ck_assert_msg(pclose(pipe) == 0, "%s: %s", command, output);
}

// Whatever `systemctl help` would show is a page of this project.
START_TEST(units_name_manual_pages_that_there_are)
{
    run("for unit in systemd/kvcached.service.in systemd/kvcached.socket; do"
        "  pages=$(sed -n 's/^Documentation=//p' $unit);"
        "  [ -n \"$pages\" ] || { echo $unit has none; exit 1; };"
        "  for page in $pages; do"
        "    name=${page#man:} section=${page##*(};"
        "    ls */${name%%(*}.${section%%)}.in > /dev/null || exit 1;"
        "  done;"
        "done 2>&1");
}
END_TEST

// What `systemctl reload` runs ends with the first that fails: a wrong file changes nothing, and is
// told. The file that is installed is right.
START_TEST(a_reload_begins_with_a_look_at_the_file)
{
    char program[512];

    daemon_program(program, sizeof(program), "kvcached");
    run("grep '^ExecReload=' systemd/kvcached.service.in | head -n 1 |"
        " grep -q -- '/kvcached --check-config @SYSCONFDIR@/kvcached/kvcached.conf$'");
    run("%s --check-config systemd/kvcached.conf", program);
}
END_TEST

// As `make install` writes them, but for the program's place. The threshold is ten times the level.
START_TEST(units_are_right_and_hardened)
{
    const char *folder = tmpdir_path();
    char program[512];

    if (system("command -v systemd-analyze > /dev/null") != 0)
        TEST_SKIP("systemd-analyze is not installed");
    daemon_program(program, sizeof(program), "kvcached");
    run("d=$(cd \"$(dirname %s)\" && pwd) && sed -e \"s|@PREFIX@/bin|$d|g\" -e "
        "'s|@SYSCONFDIR@|/etc|'"
        " systemd/kvcached.service.in > %s/kvcached.service && cp systemd/kvcached.socket %s",
        program, folder, folder);
    run("out=$(systemd-analyze verify --man=no %s/kvcached.service %s/kvcached.socket 2>&1) && [ "
        "-z "
        "\"$out\" ]"
        " || { echo \"$out\"; exit 1; }",
        folder, folder);
    run("out=$(systemd-analyze security --offline=true --threshold=20 --no-pager"
        " %s/kvcached.service 2>&1) || { echo \"$out\" | tail -n 1; exit 1; }",
        folder);
}
END_TEST

CHECK_MAIN_LOOPS(
    "life/service", CHECK_LIFE_S, {ready_comes_when_it_serves, 0, 1},
    {one_that_cannot_serve_is_never_ready, 0, 0}, {a_manager_that_is_not_there_is_no_harm, 0, 1},
    {pings_stop_while_a_copy_is_stuck, 0, 0}, {another_ones_watchdog_is_not_fed, 0, 0},
    {reload_is_told_from_its_begin_to_its_end, 0, 0}, {stopping_is_told_to_the_manager, 0, 0},
    {a_passed_socket_outlives_its_daemons, 0, 0}, {a_passed_socket_does_not_block, 0, 0},
    {a_passed_socket_of_another_kind_is_refused, 0, 0},
    {passed_sockets_are_known_by_name_and_path, 0, 0},
    {passed_sockets_that_do_not_fit_are_refused, 0, 3},
    {a_passed_socket_that_is_waited_for_and_not_there, 0, 0}, {units_are_right_and_hardened, 0, 0},
    {units_name_manual_pages_that_there_are, 0, 0}, {a_reload_begins_with_a_look_at_the_file, 0, 0})
