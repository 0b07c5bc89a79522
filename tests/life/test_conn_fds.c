// Descriptors of the daemon: flat over many connections, and what happens when there are none left.
#include <poll.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

#define CROWD 64

START_TEST(test_flat_after_many_connects)
{
    const int rounds = check_long() ? 10000 : 1000;
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    int before = talk_settled_fds(sock, d);

    for (int i = 0; i < rounds; i++)
        close(i % 2 == 0 ? talk_connect(daemon_socket(d))
                         : talk_hello(daemon_socket(d), (Kvcache__Role)(1 + i % 4), NULL));
    wait_for(talk_settled_fds(sock, d) == before, 5000);
    close(sock);
    daemon_stop(d);
}
END_TEST

static uint64_t cpu_us(int sock)
{
    Kvcache__StatsReply *r = talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t us = r->cpu_us;

    talk_free(r);
    return us;
}

// A connection takes two descriptors, so both an even and an odd number must run out well.
START_TEST(test_accept_pauses_and_resumes)
{
    struct daemon *d = daemon_start(NULL);
    int first = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
    int crowd[CROWD];
    uint64_t cpu;

    daemon_log_expect(d, "accept paused reason=no_descriptors");
    daemon_limit_fds(d, 10 + _i);
    for (int i = 0; i < CROWD; i++)
        crowd[i] = talk_connect(daemon_socket(d));
    wait_for(daemon_log_count(d, "accept paused") == 1, 2000);

    // Who is there is served, and waiting costs nothing.
    cpu = cpu_us(first);
    for (int i = 0; i < 20; i++) {
        talk_ping(first);
        usleep(10 * 1000);
    }
    ck_assert_uint_lt(cpu_us(first) - cpu, 100 * 1000);
    ck_assert_int_eq(daemon_log_count(d, "accept paused"), 1);

    for (int i = 0; i < CROWD - 3; i++)
        close(crowd[i]);
    wait_for(daemon_log_count(d, "accept resumed") >= 1, 2000);
    for (int i = CROWD - 3; i < CROWD; i++) {
        // Nobody was turned away: what waited says its HELLO now.
        Kvcache__Hello hello = KVCACHE__HELLO__INIT;

        hello.version = 1;
        hello.role = KVCACHE__ROLE__ROLE_OPERATOR;
        talk_free(talk_ask(crowd[i], WIRE_HELLO, &hello.base, &kvcache__hello_reply__descriptor));
        close(crowd[i]);
    }
    close(first);
    daemon_stop(d);
}
END_TEST

// Without a descriptor for its page a worker cannot be; it is told, and may come again.
START_TEST(test_no_descriptor_for_the_page)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_connect(daemon_socket(d));
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;

    daemon_log_allow(d, "no completion page");
    // The harness's own connection was the first.
    wait_for(daemon_fault_passed(d, "process.peerpidfd") == 2, 2000);
    daemon_fault_arm(d, _i == 0 ? "fd.memfd" : "fd.dup", 0, 1);
    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_WORKER;
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello.base), KVC_E_NO_FDS, NULL);
    ck_assert_uint_eq(daemon_fault_fired(d, _i == 0 ? "fd.memfd" : "fd.dup"), 1);
    close(sock);
    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    daemon_stop(d);
}
END_TEST

// A MAP that there are no descriptors for is refused as a whole, and may be asked for again.
START_TEST(F46_no_descriptors_for_extents)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    static uint8_t digest[KVC_NAMESPACE_BYTES];
    uint32_t slice = 4096, n_fds;
    Kvcache__Register m = KVCACHE__REGISTER__INIT;
    Kvcache__MapReply *reply;
    int fds[KVC_WIRE_FDS_MAX], before;

    m.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    m.block_tokens = 16;
    m.n_slice_bytes = 1;
    m.slice_bytes = &slice;
    talk_free(talk_ask(sock, WIRE_REGISTER, &m.base, &kvcache__register_reply__descriptor));
    before = talk_settled_fds(sock, d);
    // The sixth of 24 extents fails, then all of them come.
    daemon_log_expect(d, "cannot export extent=5");
    daemon_fault_arm(d, "fd.dup", 5, 1);
    talk_expect_error(sock, talk_send(sock, WIRE_MAP, NULL), KVC_E_NO_FDS, NULL);
    ck_assert_int_eq(talk_settled_fds(sock, d), before);
    reply = talk_reply(sock, talk_send(sock, WIRE_MAP, NULL), WIRE_MAP,
                       &kvcache__map_reply__descriptor, fds, &n_fds);
    ck_assert_uint_eq(n_fds, 24);
    for (uint32_t i = 0; i < n_fds; i++)
        close(fds[i]);
    talk_free(reply);
    ck_assert_int_eq(talk_settled_fds(sock, d), before);
    close(sock);
    daemon_stop(d);
}
END_TEST

// Whether anything can be received: a reply, or the end.
static bool answered(int sock)
{
    struct pollfd readable = {.fd = sock, .events = POLLIN};

    return poll(&readable, 1, 0) == 1;
}

// One connection with a HELLO, while allocation k fails; whether there was an allocation k.
static bool connect_with_failure(struct daemon *d, uint32_t k)
{
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;
    struct wire_packet packet = {.type = WIRE_HELLO, .seq = 1};
    uint8_t body[64];
    bool fired;
    int sock;

    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_WORKER;
    packet.body = body;
    packet.body_len = (uint32_t)kvcache__hello__pack(&hello, body);
    daemon_fault_arm(d, "mem.alloc", k, 1);
    sock = talk_connect(daemon_socket(d));
    wire_send(sock, &packet); // which may be too late
    wait_for(answered(sock), 2000);
    fired = daemon_fault_fired(d, "mem.alloc") == 1;
    daemon_fault_off(d, "mem.alloc");
    close(sock);
    return fired;
}

// Every allocation of a connection fails once: an error or an end, and no harm.
START_TEST(test_every_allocation_fails_once)
{
    struct daemon *d = daemon_start(NULL);
    uint32_t k = 0;

    daemon_log_allow(d, "connection not served");
    daemon_log_allow(d, "no_memory");
    while (connect_with_failure(d, k))
        k++;
    ck_assert_uint_gt(k, 3);
    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("conn/fds", CHECK_LIFE_S, {test_flat_after_many_connects, 0, 0},
                 {test_accept_pauses_and_resumes, 0, 1}, {test_no_descriptor_for_the_page, 0, 1},
                 {F46_no_descriptors_for_extents, 0, 0}, {test_every_allocation_fails_once, 0, 0})
