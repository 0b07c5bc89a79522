// The process that connected ends: its session ends with it, whoever else holds the socket, and
// what it had sent before counts.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define PACKETS 40 // more than the daemon reads in one wake

static uint64_t refusals, sessions, quarantined, bad_packets;

static void look(int sock)
{
    Kvcache__StatsReply *r = talk_stats(sock);

    refusals = r->refused_requests;
    sessions = r->sessions;
    quarantined = r->quarantined_slots;
    bad_packets = r->bad_packets;
    talk_free(r);
}

static bool sessions_are(int sock, uint64_t n)
{
    look(sock);
    return sessions == n;
}

// The way for kernels that have no pidfd of a peer takes a system call that valgrind does not know.
#define SKIP_WHAT_VALGRIND_CANNOT(way)                                                             \
    do {                                                                                           \
        if ((way) == 1 && check_valgrind())                                                        \
            TEST_SKIP("valgrind has no pidfd_open");                                               \
    } while (0)

// Both ways to get a pidfd: the kernel's, and the one for kernels that have none of a peer.
static struct daemon *begin(int way, int *operator_sock)
{
    struct daemon *d = daemon_start(NULL);

    if (way == 1)
        daemon_fault_arm(d, "process.peerpidfd", 0, UINT32_MAX);
    *operator_sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    return d;
}

static void end(struct daemon *d, int operator_sock)
{
    close(operator_sock);
    daemon_stop(d);
}

// A parent that connects, and a child of its own that holds the same socket and outlives it.
// Reports 'c' when both are there, and 'e' when the child saw the socket's end.
static pid_t parent_with_child(struct daemon *d, bool hello, int report)
{
    pid_t parent = proc_fork();

    if (parent == 0) {
        int sock = hello ? talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL)
                         : talk_connect(daemon_socket(d));

        if (fork() == 0) {
            char said = talk_ended(sock) ? 'e' : '-';

            (void)!write(report, &said, 1);
            _exit(0);
        }
        (void)!write(report, "c", 1);
        pause();
    }
    return parent;
}

static char read_report(int fd)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    char c = '?';

    if (poll(&readable, 1, 5000) == 1)
        (void)!read(fd, &c, 1);
    return c;
}

START_TEST(test_child_holds_the_socket)
{
    SKIP_WHAT_VALGRIND_CANNOT(_i % 2);
    const bool hello = _i / 2 == 0;
    int operator_sock, ends[2];
    struct daemon *d = begin(_i % 2, &operator_sock);
    int fds = talk_settled_fds(operator_sock, d);
    pid_t parent;

    ck_assert_int_eq(pipe(ends), 0);
    parent = parent_with_child(d, hello, ends[1]);
    ck_assert_int_eq(read_report(ends[0]), 'c');
    wait_for(daemon_fds(d) > fds, 2000);
    wait_for(sessions_are(operator_sock, hello), 2000);
    proc_kill(parent);
    ck_assert_int_eq(read_report(ends[0]), 'e');
    wait_for(sessions_are(operator_sock, 0), 2000);
    wait_for(daemon_fds(d) == fds, 2000);
    close(ends[0]);
    close(ends[1]);
    wait_for(waitpid(-1, NULL, WNOHANG) > 0, 2000); // the child, which came to this process
    end(d, operator_sock);
}
END_TEST

// The process is gone before the daemon sees any of what it sent.
START_TEST(test_what_was_sent_counts)
{
    SKIP_WHAT_VALGRIND_CANNOT(_i);
    int operator_sock, ready[2], go[2];
    struct daemon *d = begin(_i, &operator_sock);
    pid_t pid;

    ck_assert_int_eq(pipe(ready), 0);
    ck_assert_int_eq(pipe(go), 0);
    pid = proc_fork();
    if (pid == 0) {
        int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);

        (void)!write(ready[1], "r", 1);
        (void)read_report(go[0]);
        for (int i = 0; i < PACKETS; i++)
            talk_send(sock, 0x1234, NULL);
        _exit(0);
    }
    ck_assert_int_eq(read_report(ready[0]), 'r');
    daemon_freeze(d);
    ck_assert_int_eq(write(go[1], "g", 1), 1);
    proc_wait_ok(pid, 5000);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
    daemon_thaw(d);
    wait_for(sessions_are(operator_sock, 0), 2000);
    ck_assert_uint_eq(refusals, PACKETS);
    end(d, operator_sock);
}
END_TEST

// A worker killed between the reply and the proof: its slots are free as soon as it is gone.
START_TEST(S14_killed_in_a_save)
{
    SKIP_WHAT_VALGRIND_CANNOT(_i);
    int operator_sock;
    struct daemon *d = begin(_i, &operator_sock);
    int fds = talk_settled_fds(operator_sock, d), ends[2];
    pid_t pid;

    ck_assert_int_eq(pipe(ends), 0);
    pid = proc_fork();
    if (pid == 0) {
        struct talk_worker w;

        w = talk_worker_with_slots(daemon_socket(d), 64u << 10);
        talk_free(talk_save(&w, 1, 100, false));
        (void)!write(ends[1], "s", 1);
        pause();
    }
    ck_assert_int_eq(read_report(ends[0]), 's');
    proc_kill(pid);
    wait_for(sessions_are(operator_sock, 0), 2000);
    ck_assert_uint_eq(quarantined, 0);
    ck_assert_uint_eq(bad_packets, 0);
    wait_for(daemon_fds(d) == fds, 2000);
    close(ends[0]);
    close(ends[1]);
    end(d, operator_sock);
}
END_TEST

// One that closes its socket and lives on keeps its slots in quarantine until it ends.
START_TEST(S15_closed_in_a_save_then_ended)
{
    SKIP_WHAT_VALGRIND_CANNOT(_i);
    int operator_sock;
    struct daemon *d = begin(_i, &operator_sock);
    int ends[2];
    pid_t pid;

    ck_assert_int_eq(pipe(ends), 0);
    pid = proc_fork();
    if (pid == 0) {
        struct talk_worker w;

        w = talk_worker_with_slots(daemon_socket(d), 64u << 10);
        talk_free(talk_save(&w, 1, 7, false));
        close(w.sock);
        (void)!write(ends[1], "s", 1);
        pause();
    }
    ck_assert_int_eq(read_report(ends[0]), 's');
    wait_for((look(operator_sock), quarantined == 7), 2000);
    ck_assert_uint_eq(sessions, 1);
    daemon_clock_advance(d, 3600ull * 1000000); // time proves nothing
    talk_ping(operator_sock);
    look(operator_sock);
    ck_assert_uint_eq(quarantined, 7);
    proc_kill(pid);
    wait_for(sessions_are(operator_sock, 0), 2000);
    ck_assert_uint_eq(quarantined, 0);
    close(ends[0]);
    close(ends[1]);
    end(d, operator_sock);
}
END_TEST

CHECK_MAIN_LOOPS("conn/death", CHECK_LIFE_S, {test_child_holds_the_socket, 0, 3},
                 {test_what_was_sent_counts, 0, 1}, {S14_killed_in_a_save, 0, 1},
                 {S15_closed_in_a_save_then_ended, 0, 1})
