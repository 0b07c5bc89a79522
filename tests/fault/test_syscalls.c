// System calls that fail while connections are made and served: receiving, sending, watching a
// socket or a process. Each failure is proved to have happened, hurts one connection at most, and
// leaves nothing behind.
#include <unistd.h>

#include "daemon/conn/pace.h"
#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/wait.h"

#define SMALL ((const char *const[]){"--gpu-bytes", "4M", "--host-bytes", "4M", NULL})

static void expect_fired(const struct neighbour *n, const char *site, uint64_t times)
{
    ck_assert_msg(daemon_fault_fired(n->daemon, site) == times, "%s fired %llu times", site,
                  (unsigned long long)daemon_fault_fired(n->daemon, site));
    daemon_fault_off(n->daemon, site);
}

// Who cannot be received from is ended: nobody knows what of it was lost.
START_TEST(F29_recvmsg_fails)
{
    struct neighbour n;
    int sock;

    neighbour_open(&n, SMALL);
    daemon_log_expect(n.daemon, "receive failed");
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    daemon_fault_arm(n.daemon, "connection.recv", 0, 1);
    talk_send(sock, WIRE_PING, NULL);
    ck_assert(talk_ended(sock));
    expect_fired(&n, "connection.recv", 1);
    close(sock);
    neighbour_close(&n);
}
END_TEST

// What cannot be sent now is sent later, in order, and once.
START_TEST(F29_sendmsg_fails)
{
    struct neighbour n;
    uint32_t seqs[20];
    int sock;

    neighbour_open(&n, SMALL);
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    daemon_fault_arm(n.daemon, "outqueue.send", _i, 7);
    for (int i = 0; i < 20; i++)
        seqs[i] = talk_send(sock, WIRE_PING, NULL);
    for (int i = 0; i < 20; i++)
        talk_free(
            talk_reply(sock, seqs[i], WIRE_PING, &kvcache__ping_reply__descriptor, NULL, NULL));
    expect_fired(&n, "outqueue.send", 7);
    talk_ping(sock);
    close(sock);
    neighbour_close(&n);
}
END_TEST

// The page's descriptor waits with the reply that it belongs to.
START_TEST(F29_sendmsg_fails_with_a_descriptor)
{
    struct neighbour n;

    neighbour_open(&n, SMALL);
    daemon_fault_arm(n.daemon, "outqueue.send", 0, 3);
    close(talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    expect_fired(&n, "outqueue.send", 3);
    neighbour_close(&n);
}
END_TEST

// No descriptor for the process: the listener's spare one is for it, and accepting pauses.
START_TEST(F29_no_pidfd)
{
    struct neighbour n;
    int sock;

    neighbour_open(&n, SMALL);
    daemon_log_expect(n.daemon, "accept paused");
    daemon_fault_arm(n.daemon, "process.pidfd", 0, 1);
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    expect_fired(&n, "process.pidfd", 1);
    wait_for(daemon_log_count(n.daemon, "accept resumed") == 1, 2000);
    close(sock);
    neighbour_close(&n);
}
END_TEST

// Not even then, or it cannot be watched: not served, and the next one is.
START_TEST(F29_a_process_cannot_be_watched)
{
    const char *site = _i == 0 ? "process.pidfd" : "process.poll";
    const uint32_t times = _i == 0 ? 2 : 1;
    struct neighbour n;
    int sock;

    neighbour_open(&n, SMALL);
    daemon_log_expect(n.daemon, "connection not served");
    daemon_log_allow(n.daemon, "accept paused");
    daemon_fault_arm(n.daemon, site, 0, times);
    sock = talk_connect(n.socket);
    ck_assert(talk_ended(sock));
    expect_fired(&n, site, times);
    close(sock);
    close(talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    neighbour_close(&n);
}
END_TEST

// libuv calls abort() when the kernel does not take a descriptor into its epoll set. Of a
// connection that is its process's and its own.
START_TEST(F29_a_descriptor_cannot_be_watched)
{
    struct neighbour n;
    int sock;

    neighbour_open(&n, SMALL);
    daemon_log_allow(n.daemon, "connection not served");
    daemon_log_allow(n.daemon, "connection ended");
    daemon_fault_arm(n.daemon, "watch.add", (uint32_t)_i, 1);
    sock = talk_connect(n.socket);
    ck_assert(talk_ended(sock));
    expect_fired(&n, "watch.add", 1);
    close(sock);
    close(talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    neighbour_close(&n);
}
END_TEST

// The k-th of a burst, so that accepting stops in between, and has to begin again.
START_TEST(F29_watching_fails_in_a_burst)
{
    struct neighbour n;
    int socks[12];

    neighbour_open(&n, SMALL);
    daemon_log_allow(n.daemon, "connection not served");
    daemon_log_allow(n.daemon, "connection ended");
    for (uint32_t k = 0; k < 24; k++) {
        daemon_fault_arm(n.daemon, "watch.add", k, 1);
        for (size_t i = 0; i < sizeof(socks) / sizeof(socks[0]); i++)
            socks[i] = talk_connect(n.socket);
        wait_for(daemon_fault_fired(n.daemon, "watch.add") == 1, 2000);
        for (size_t i = 0; i < sizeof(socks) / sizeof(socks[0]); i++)
            close(socks[i]);
        // Connections that say nothing cost this process time: it is over.
        daemon_clock_advance(n.daemon, PACE_MOST_US);
        close(talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    }
    neighbour_close(&n);
}
END_TEST

// Of one that waits to be written to, and does not read.
START_TEST(F29_a_change_of_what_is_watched_fails)
{
    struct wire_packet ping = {.type = WIRE_PING, .seq = 2};
    static uint8_t body[KVC_WIRE_BODY_MAX - 64] = "\x0a\xbc\xff\x03"; // all of it is payload
    struct neighbour n;
    int sock;

    neighbour_open(&n, SMALL);
    daemon_log_expect(n.daemon, "connection ended");
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    ping.body = body;
    ping.body_len = sizeof(body);
    daemon_fault_arm(n.daemon, "watch.add", 0, 1);
    wait_for((wire_send(sock, &ping), daemon_fault_fired(n.daemon, "watch.add") == 1), 5000);
    ck_assert(talk_ended(sock));
    close(sock);
    neighbour_close(&n);
}
END_TEST

CHECK_MAIN_LOOPS("fault/syscalls", CHECK_LIFE_S, {F29_recvmsg_fails, 0, 0},
                 {F29_sendmsg_fails, 0, 3}, {F29_sendmsg_fails_with_a_descriptor, 0, 0},
                 {F29_no_pidfd, 0, 0}, {F29_a_process_cannot_be_watched, 0, 1},
                 {F29_a_descriptor_cannot_be_watched, 0, 1}, {F29_watching_fails_in_a_burst, 0, 0},
                 {F29_a_change_of_what_is_watched_fails, 0, 0})
