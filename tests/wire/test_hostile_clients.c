// Clients that come and go, say nothing, read nothing, or stop in the middle. They hurt themselves;
// who is there is served, and in the end nothing of them is left.
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/proc.h"
#include "tests/lib/raw.h"
#include "tests/lib/wait.h"

static struct raw raw;

// One that comes, does this much, and goes.
static void visit(const struct neighbour *n, int how)
{
    struct talk_worker w;
    int sock;

    switch (how) {
    case 0:
        close(talk_connect(n->socket));
        return;
    case 1:
        close(talk_hello(n->socket, KVCACHE__ROLE__ROLE_SCHEDULER, NULL));
        return;
    case 2:
        close(talk_hello(n->socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
        return;
    case 3: // a HELLO whose reply, and page, nobody takes
        sock = talk_connect(n->socket);
        raw_make(&raw, WIRE_HELLO, 1, 4, 0);
        memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES, "\x08\x01\x10\x01", 4);
        raw_send(sock, &raw);
        close(sock);
        return;
    case 4: // half a header
        sock = talk_connect(n->socket);
        raw_make(&raw, WIRE_HELLO, 1, 0, 3);
        raw.len = 8;
        raw_send(sock, &raw);
        close(sock);
        return;
    case 5:
        sock = talk_hello(n->socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
        shutdown(sock, SHUT_WR);
        talk_ended(sock);
        close(sock);
        return;
    case 6:
        sock = talk_hello(n->socket, KVCACHE__ROLE__ROLE_READER, NULL);
        shutdown(sock, SHUT_RD);
        talk_send(sock, WIRE_PING, NULL);
        close(sock);
        return;
    default: // all the way, with a lease
        w = talk_worker(n->socket, KVCACHE__ROLE__ROLE_WORKER, 7);
        talk_free(talk_lookup(&w, 0, NEIGHBOUR_KEYS));
        talk_worker_close(&w);
        return;
    }
}

START_TEST(F39_thousands_come_and_go)
{
    const int visits = check_long() ? 10000 : 2000;
    struct neighbour n;

    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "malformed packet");
    for (int i = 0; i < visits; i++) {
        visit(&n, i % 8);
        if (i % 50 == 0)
            neighbour_works(&n);
    }
    neighbour_close(&n);
}
END_TEST

// Without a HELLO within 10 s a connection is cut, so those who say nothing keep nobody out.
START_TEST(F39_who_says_nothing_is_cut)
{
    struct neighbour n;
    int silent[8], late;

    neighbour_open(&n, NULL);
    for (size_t i = 0; i < 8; i++)
        silent[i] = talk_connect(n.socket);
    wait_for(daemon_fds(n.daemon) == n.fds + 16, 2000);
    daemon_clock_advance(n.daemon, KVC_HELLO_MS / 2 * 1000ull);
    late = talk_connect(n.socket);
    usleep(300 * 1000); // several looks, none of which may find anybody
    ck_assert_int_eq(daemon_log_count(n.daemon, "reason=no_hello"), 0);
    daemon_log_expect(n.daemon, "reason=no_hello");
    daemon_clock_advance(n.daemon, KVC_HELLO_MS / 2 * 1000ull);
    for (size_t i = 0; i < 8; i++) {
        ck_assert(talk_ended(silent[i]));
        close(silent[i]);
    }
    ck_assert_int_eq(daemon_log_count(n.daemon, "reason=no_hello"), 8);
    // The one that came later has its own time; and one that has said HELLO may be silent.
    wait_for(daemon_fds(n.daemon) == n.fds + 2, 2000);
    close(late);
    neighbour_close(&n);
}
END_TEST

// All descriptors are used up by those who say nothing: accepting waits without spinning, the
// neighbour is served, and newcomers are when the silent ones have been cut.
START_TEST(F39_all_descriptors_used_up)
{
    struct neighbour n;
    int silent[64], newcomer;
    long cpu;

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "accept paused");
    daemon_log_expect(n.daemon, "reason=no_hello");
    daemon_limit_fds(n.daemon, 32);
    for (size_t i = 0; i < 64; i++)
        silent[i] = talk_connect(n.socket);
    wait_for(daemon_log_count(n.daemon, "accept paused") == 1, 2000);
    cpu = proc_cpu_ms(daemon_pid(n.daemon));
    for (int i = 0; i < 50; i++) {
        neighbour_works(&n);
        usleep(10 * 1000);
    }
    cpu = proc_cpu_ms(daemon_pid(n.daemon)) - cpu;
    ck_assert_msg(cpu <= 150 * check_time_multiplier(), "%ld ms of processor time in 500 ms", cpu);
    // A HELLO that is sent now is read when it is this one's turn.
    newcomer = talk_connect(n.socket);
    while (daemon_log_count(n.daemon, "reason=no_hello") < 64) {
        int before = daemon_log_count(n.daemon, "reason=no_hello");

        daemon_clock_advance(n.daemon, KVC_HELLO_MS * 1000ull);
        wait_for(daemon_log_count(n.daemon, "reason=no_hello") > before, 2000);
    }
    wait_for(daemon_log_count(n.daemon, "accept resumed") >= 1, 2000);
    close(newcomer);
    close(talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    for (size_t i = 0; i < 64; i++)
        close(silent[i]);
    neighbour_close(&n);
}
END_TEST

// One user cannot have all of the daemon's descriptors; who is there already is served.
START_TEST(F39_connections_of_one_user)
{
    static int many[KVC_TENANT_SESSIONS_MAX];
    struct rlimit limit;
    struct neighbour n;
    int one_more;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_uint_gt(limit.rlim_max, 3 * KVC_TENANT_SESSIONS_MAX);
    neighbour_open(&n, NULL); // the first connection
    daemon_log_expect(n.daemon, "connection not served");
    for (size_t i = 1; i < KVC_TENANT_SESSIONS_MAX; i++)
        many[i] = talk_connect(n.socket);
    one_more = talk_connect(n.socket);
    ck_assert(talk_ended(one_more));
    close(one_more);
    neighbour_works(&n);
    close(many[1]);
    wait_for(daemon_fds(n.daemon) == n.fds + 2 * (int)(KVC_TENANT_SESSIONS_MAX - 2), 2000);
    many[1] = talk_hello(n.socket, KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
    for (size_t i = 1; i < KVC_TENANT_SESSIONS_MAX; i++)
        close(many[i]);
    neighbour_close(&n);
}
END_TEST

// Requests that are right, and replies that nobody reads: small requests with large replies, with
// descriptors, and with leases.
START_TEST(F39_one_that_never_reads)
{
    struct neighbour n;
    struct talk_worker w;
    uint32_t sent = 0, refused = 0;

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "connection cut");
    w = talk_worker(n.socket, KVCACHE__ROLE__ROLE_WORKER, 7);
    // It is not only slow when it takes nothing however often it answers another.
    while (refused < 50) {
        static const uint16_t types[] = {WIRE_STATS, WIRE_MAP, WIRE_LIST, WIRE_PING};
        static const uint8_t clients[] = "\x0a\x07"
                                         "clients";
        struct wire_packet packet = {.type = types[_i], .seq = 5, .body = clients};

        packet.body_len = types[_i] == WIRE_LIST ? sizeof(clients) - 1 : 0;
        if (wire_send(w.sock, &packet) == WIRE_OK) {
            sent++;
            refused = 0;
        } else {
            refused++;
            neighbour_works(&n);
        }
        if (sent % 100 == 0)
            neighbour_works(&n);
    }
    ck_assert_uint_gt(sent, 100);
    ck_assert_int_eq(daemon_log_count(n.daemon, "connection cut"), 0);
    daemon_clock_advance(n.daemon, KVC_OUT_CUT_MS * 1000ull);
    wait_for(daemon_log_count(n.daemon, "connection cut") == 1, 2000);
    talk_worker_close(&w);
    neighbour_close(&n);
}
END_TEST

// A lease is held by one that then neither reads, writes nor ends: it goes by its time.
START_TEST(F27_leases_of_one_that_stops_in_the_middle)
{
    struct neighbour n;
    struct talk_worker w;
    Kvcache__StatsReply *stats;
    uint64_t leases;

    neighbour_open(&n, NULL);
    w = talk_worker(n.socket, KVCACHE__ROLE__ROLE_WORKER, 7);
    talk_free(talk_lookup(&w, 0, NEIGHBOUR_KEYS));
    talk_send_lookup(&w, 0, NEIGHBOUR_KEYS); // whose reply is not read
    stats = talk_stats(n.worker.sock);
    ck_assert_uint_eq(stats->leases, 2);
    talk_free(stats);
    daemon_clock_advance(n.daemon, KVC_LEASE_MS_DEFAULT * 1000ull + 1000);
    wait_for(
        (stats = talk_stats(n.worker.sock), leases = stats->leases, talk_free(stats), leases == 0),
        2000);
    talk_worker_close(&w);
    neighbour_close(&n);
}
END_TEST

CHECK_MAIN_LOOPS("wire/hostile_clients", CHECK_LIFE_S, {F39_thousands_come_and_go, 0, 0},
                 {F39_who_says_nothing_is_cut, 0, 0}, {F39_all_descriptors_used_up, 0, 0},
                 {F39_connections_of_one_user, 0, 0}, {F39_one_that_never_reads, 0, 3},
                 {F27_leases_of_one_that_stops_in_the_middle, 0, 0})
