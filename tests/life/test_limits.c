// As much as is promised, at once: 512 workers with 200 requests outstanding each, a million
// blocks, ten thousand connections a minute, all descriptors and all memory used up.
//
// The long form (KVC_TEST_LONG=1) has the figures in full.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/proc.h"
#include "tests/lib/stage.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define WORKERS     512
#define OUTSTANDING 200
#define N_KEYS      4u
#define WAIT_MS     20000
#define VISITORS    8
#define CROWD       64

#define SKIP_UNDER_VALGRIND()                                                                      \
    do {                                                                                           \
        if (check_valgrind())                                                                      \
            TEST_SKIP("memory and time are not the daemon's own under valgrind");                  \
    } while (0)

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void allow_many_fds(void)
{
    struct rlimit limit;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_uint_gt(limit.rlim_max, 4 * WORKERS);
}

// Requests that are there all at once: the daemon stands still while they come.
static void send_all(struct neighbour *n, struct talk_worker *workers,
                     uint32_t (*seqs)[OUTSTANDING])
{
    daemon_freeze(n->daemon);
    for (int w = 0; w < WORKERS; w++)
        for (int i = 0; i < OUTSTANDING; i++)
            seqs[w][i] = talk_send_lookup(&workers[w], (uint32_t)w * N_KEYS, N_KEYS);
    daemon_thaw(n->daemon);
}

// Takes a reply; whether it is one to a lookup that found all. What Check notes of each assertion
// would take longer than the daemon.
static bool take_reply(int sock, uint32_t *seq)
{
    static uint8_t in[KVC_WIRE_PACKET_MAX];
    struct pollfd readable = {.fd = sock, .events = POLLIN};
    Kvcache__LookupReply *reply;
    struct wire_packet packet;
    enum wire_result result;
    const char *why;
    bool right;

    while ((result = wire_recv(sock, in, &packet, &why)) == WIRE_AGAIN)
        if (poll(&readable, 1, WAIT_MS) <= 0)
            return false;
    if (result != WIRE_OK || packet.type != (WIRE_LOOKUP | WIRE_REPLY))
        return false;
    reply = kvcache__lookup_reply__unpack(NULL, packet.body_len, packet.body);
    right = reply != NULL && reply->count == N_KEYS && reply->lease != 0;
    kvcache__lookup_reply__free_unpacked(reply, NULL);
    *seq = packet.seq;
    return right;
}

// Each is answered once.
static void expect_all(struct talk_worker *workers, uint32_t (*seqs)[OUTSTANDING])
{
    for (int w = 0; w < WORKERS; w++) {
        bool answered[OUTSTANDING] = {false};

        for (int i = 0; i < OUTSTANDING; i++) {
            uint32_t seq = 0, of;

            if (!take_reply(workers[w].sock, &seq))
                ck_abort_msg("worker %d, reply %d", w, i);
            of = seq - seqs[w][0];
            if (of >= OUTSTANDING || answered[of])
                ck_abort_msg("worker %d: request %u is answered twice, or was never sent", w, seq);
            answered[of] = true;
        }
    }
}

START_TEST(L512_workers_with_200_requests_each)
{
    struct talk_worker *workers = calloc(WORKERS, sizeof(*workers));
    uint32_t(*seqs)[OUTSTANDING] = calloc(WORKERS, sizeof(*seqs));
    Kvcache__StatsReply *stats;
    struct neighbour n;
    double start;

    SKIP_UNDER_VALGRIND();
    ck_assert(workers != NULL && seqs != NULL);
    allow_many_fds();
    neighbour_open(&n, (const char *const[]){"--lease-time", "10m", NULL});
    for (int w = 0; w < WORKERS; w++) {
        workers[w] = talk_worker(n.socket, KVCACHE__ROLE__ROLE_WORKER, 9);
        talk_publish(&workers[w], (uint32_t)w * N_KEYS, N_KEYS);
    }
    stats = talk_stats(n.worker.sock);
    ck_assert_uint_eq(stats->sessions, WORKERS + 1);
    talk_free(stats);
    send_all(&n, workers, seqs);
    start = now_s();
    expect_all(workers, seqs);
    printf("%d requests at once, answered in %.2f s\n", WORKERS * OUTSTANDING, now_s() - start);
    stats = talk_stats(n.worker.sock);
    ck_assert_uint_eq(stats->leases, WORKERS * OUTSTANDING);
    ck_assert_uint_eq(stats->refused_requests, 0);
    talk_free(stats);
    neighbour_works(&n);
    for (int w = 0; w < WORKERS; w++)
        talk_worker_close(&workers[w]);
    free(workers);
    free(seqs);
    wait_for(daemon_fds(n.daemon) == n.fds, WAIT_MS);
    talk_worker_close(&n.worker);
    daemon_stop(n.daemon); // their namespace is known now, so that allocations are others
}
END_TEST

// Half of the keys are its own, and half everybody's. On a machine with few processors an answer
// may come late, which is a miss.
static void works_among_many(struct scene *s)
{
    const uint32_t firsts[] = {0, 1000 + (uint32_t)s->number * N_KEYS};
    struct engine *e = &s->engine;

    engine_open(e, s->socket);
    actor_stop();
    for (int i = 0; i < 2; i++)
        (void)engine_try_save(e, firsts[i], N_KEYS, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        if (engine_try_lookup(e, firsts[i], N_KEYS) != KVC_OK || e->lease.id == 0)
            continue;
        engine_poison(e);
        if (engine_try_load(e) == KVC_OK)
            ck_assert_msg(engine_holds(e, firsts[i], e->lease.blocks), "wrong bytes");
        (void)kvc_release(e->client, e->lease.id);
        s->told->values[0]++;
    }
    engine_close(e);
}

// Processes with the library, connected all at once.
START_TEST(L512_processes)
{
    static const char *const sizes[] = {"--gpu-bytes", "16M", "--host-bytes", "48M", NULL};
    const int n = check_long() && !CHECK_SANITIZED && !check_valgrind() ? WORKERS : 32;
    struct actor *workers = calloc((size_t)n, sizeof(*workers));
    uint64_t loaded = 0;
    struct stage s;

    ck_assert_ptr_nonnull(workers);
    allow_many_fds();
    stage_open_bare(&s, sizes);
    for (int i = 0; i < n; i++)
        workers[i] = actor_start_numbered(works_among_many, s.socket, i);
    for (int i = 0; i < n; i++)
        actor_until_stop(&workers[i]);
    ck_assert_uint_eq(stage_stats(&s).sessions, (uint64_t)n);
    for (int i = 0; i < n; i++)
        actor_continue(&workers[i]);
    wait_for(stage_stats(&s).sessions == 0, 3 * WAIT_MS);
    for (int i = 0; i < n; i++) {
        loaded += workers[i].told->values[0];
        actor_end(&workers[i]);
    }
    ck_assert_uint_gt(loaded, 0);
    ck_assert_uint_eq(stage_stats(&s).checksum_failures, 0);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, 0);
    free(workers);
    s.crowded = true;
    stage_baseline(&s);
    stage_close(&s);
}
END_TEST

// Of a daemon that has no blocks.
static uint64_t slots_in_use(int fd)
{
    Kvcache__StatsReply *stats = talk_stats(fd);
    uint64_t used = 0;

    ck_assert_uint_eq(stats->blocks, 0);
    for (size_t i = 0; i < stats->n_tiers; i++)
        used += stats->tiers[i]->used_slots;
    talk_free(stats);
    return used;
}

START_TEST(L_a_million_blocks)
{
    const uint32_t blocks = check_long() && !CHECK_SANITIZED ? 1000000 : 20000;
    const uint64_t mib = (uint64_t)blocks * 4096 / (1u << 20) + 64;
    char gpu[32];
    struct talk_worker w;
    Kvcache__StatsReply *stats;
    Kvcache__Flush flush = KVCACHE__FLUSH__INIT;
    struct pollfd readable = {.events = POLLIN};
    struct daemon *d;
    uint32_t seq;
    double start, saved_s, found_s, flushed_s, waited_s;
    uint32_t served = 0;
    long before, after;
    int other;

    SKIP_UNDER_VALGRIND();
    if ((uint64_t)sysconf(_SC_AVPHYS_PAGES) * 4096 < (mib + 512) << 20)
        TEST_SKIP("not enough memory");
    snprintf(gpu, sizeof(gpu), "%lluM", (unsigned long long)mib);
    d = daemon_start((const char *const[]){"--gpu-bytes", gpu, "--host-bytes", "0", NULL});
    w = talk_worker_with_slots(daemon_socket(d), 4096);
    other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    wait_for(daemon_log_count(d, "memory is populated") == 1, 6 * WAIT_MS);
    before = proc_anonymous_kb(daemon_pid(d));
    start = now_s();
    for (uint32_t at = 0; at < blocks; at += KVC_KEYS_MAX) {
        const uint32_t n = blocks - at < KVC_KEYS_MAX ? blocks - at : KVC_KEYS_MAX;
        Kvcache__SaveReply *reply = talk_save(&w, at, n, false);

        talk_prove_all(&w, reply);
        talk_free(reply);
    }
    stats = talk_stats(other);
    for (double until = start + 60; stats->blocks < blocks && now_s() < until;) {
        talk_free(stats);
        usleep(2000);
        stats = talk_stats(other);
    }
    saved_s = now_s() - start;
    ck_assert_uint_eq(stats->blocks, blocks);
    ck_assert_uint_eq(stats->evictions, 0);
    talk_free(stats);
    after = proc_anonymous_kb(daemon_pid(d));

    start = now_s();
    for (uint32_t at = 0; at + KVC_KEYS_MAX <= blocks; at += KVC_KEYS_MAX)
        ck_assert_uint_eq(talk_probe(&w, at, KVC_KEYS_MAX), KVC_KEYS_MAX);
    found_s = now_s() - start;
    start = now_s();
    flush.all = true;
    seq = talk_send(other, WIRE_FLUSH, &flush.base);
    readable.fd = other; // debug builds look at every block anew, which takes longer than a reply
    ck_assert_int_eq(poll(&readable, 1, 6 * WAIT_MS), 1);
    ck_assert_int_eq(talk_outcome(other, seq), KVC_OK);
    flushed_s = now_s() - start;
    // The slots come back later, and nobody waits for that.
    for (waited_s = 0, start = now_s(); slots_in_use(other) > 0; served++) {
        const double since = now_s();

        talk_ping(other);
        waited_s = now_s() - since > waited_s ? now_s() - since : waited_s;
    }
    printf("%u blocks: saved in %.2f s, found in %.2f s, flushed in %.5f s, slots back in %.2f s, "
           "in which %u pings were answered in %.4f s at most, %.0f bytes each\n",
           blocks, saved_s, found_s, flushed_s, now_s() - start, served, waited_s,
           (double)(after - before) * 1024 / blocks);
    fflush(stdout);
    ck_assert_uint_ge(served, blocks / 100000);
    if (!CHECK_SANITIZED)
        ck_assert_int_lt((after - before) * 1024 / blocks, 160);
    close(other);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Each visitor is a process of its own.
static void visit(const char *socket, int visits)
{
    for (int i = 0; i < visits; i++)
        close(i % 4 == 0 ? talk_connect(socket)
                         : talk_hello(socket, (Kvcache__Role)(1 + i % 4), NULL));
}

// Without the time in which the daemon's loop, or the visitor that waited longest, could have run
// and the machine had something else to do.
START_TEST(L_ten_thousand_connections_a_minute)
{
    const int visits = check_long() && !CHECK_SANITIZED ? 10000 : 2000;
    double *waited_ms = mmap(NULL, VISITORS * sizeof(*waited_ms), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t visitors[VISITORS];
    struct neighbour n;
    double start, took_s, longest_ms;
    int left = VISITORS;
    uint32_t us[1000];

    SKIP_UNDER_VALGRIND();
    ck_assert_ptr_ne(waited_ms, MAP_FAILED);
    neighbour_open(&n, NULL);
    start = now_s();
    for (int v = 0; v < VISITORS; v++) {
        visitors[v] = proc_fork();
        if (visitors[v] == 0) {
            visit(n.socket, visits / VISITORS);
            waited_ms[v] = proc_waited_ms(getpid());
            _exit(0);
        }
    }
    neighbour_time(&n, us, 1000);
    while (left > 0)
        proc_wait_ok(visitors[--left], 6 * WAIT_MS);
    took_s = now_s() - start;
    longest_ms = proc_waited_ms(daemon_pid(n.daemon));
    for (int v = 0; v < VISITORS; v++)
        longest_ms = waited_ms[v] > longest_ms ? waited_ms[v] : longest_ms;
    took_s -= longest_ms / 1000;
    printf("%d connections in %.2f s, beside them lookups p50 %u p99 %u us\n", visits, took_s,
           us[500], us[990]);
    if (!CHECK_SANITIZED)
        ck_assert_msg(took_s < 60.0 * visits / 10000 * check_time_multiplier(),
                      "%d connections took %.1f s", visits, took_s);
    munmap(waited_ms, VISITORS * sizeof(*waited_ms));
    neighbour_close(&n);
}
END_TEST

// Of several sockets each pauses by itself, and each comes back.
START_TEST(L_all_descriptors_used_up_at_two_sockets)
{
    char second[128];
    struct daemon *d;
    int crowd[2][CROWD], first;
    long cpu;

    snprintf(second, sizeof(second), "%s tenant=t", tmpdir_file("second"));
    d = daemon_start((const char *const[]){"--socket", second, NULL});
    first = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
    daemon_log_expect(d, "accept paused");
    daemon_log_allow(d, "reason=no_hello"); // on a busy machine
    daemon_limit_fds(d, 10);
    for (int i = 0; i < CROWD; i++) {
        crowd[0][i] = talk_connect(daemon_socket(d));
        crowd[1][i] = talk_connect(tmpdir_file("second"));
    }
    wait_for(daemon_log_count(d, "accept paused") >= 1, 2000);
    cpu = proc_cpu_ms(daemon_pid(d));
    for (int i = 0; i < 50; i++) {
        talk_ping(first);
        usleep(10 * 1000);
    }
    cpu = proc_cpu_ms(daemon_pid(d)) - cpu;
    ck_assert_msg(cpu <= 100 * check_time_multiplier(), "%ld ms of processor time in 500 ms", cpu);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < CROWD - 1; i++)
            close(crowd[s][i]);
    for (int s = 0; s < 2; s++) { // nobody was turned away
        const Kvcache__Hello hello = talk_a_hello(KVCACHE__ROLE__ROLE_OPERATOR);

        talk_free(talk_ask(crowd[s][CROWD - 1], WIRE_HELLO, &hello.base,
                           &kvcache__hello_reply__descriptor));
        close(crowd[s][CROWD - 1]);
    }
    close(first);
    daemon_stop(d);
}
END_TEST

// All of them are one user: what comes through the socket of one tenant takes nothing from another.
START_TEST(L_one_tenants_connections_are_not_anothers)
{
    static int many[KVC_TENANT_SESSIONS_MAX];
    char a[128], b[128];
    struct daemon *d;
    int one_more;

    allow_many_fds();
    snprintf(a, sizeof(a), "%s tenant=a", tmpdir_file("a"));
    snprintf(b, sizeof(b), "%s tenant=b", tmpdir_file("b"));
    d = daemon_start((const char *const[]){"--socket", a, "--socket", b, NULL});
    daemon_log_expect(d, "connection not served");
    for (size_t i = 0; i < KVC_TENANT_SESSIONS_MAX; i++)
        many[i] = talk_connect(tmpdir_file("a"));
    one_more = talk_connect(tmpdir_file("a"));
    ck_assert(talk_ended(one_more));
    close(one_more);
    close(talk_hello(tmpdir_file("b"), KVCACHE__ROLE__ROLE_WORKER, NULL));
    close(talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL));
    for (size_t i = 0; i < KVC_TENANT_SESSIONS_MAX; i++)
        close(many[i]);
    daemon_stop(d);
}
END_TEST

static long address_space_kb(pid_t pid)
{
    char path[48];
    long pages = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%ld", &pages), 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void limit_memory(const struct neighbour *n, rlim_t bytes)
{
    ck_assert_int_eq(
        prlimit(daemon_pid(n->daemon), RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY}, NULL), 0);
}

static kvc_status try_hello(const char *socket, Kvcache__Role role, int *sock)
{
    const Kvcache__Hello hello = talk_a_hello(role);
    uint32_t seq;

    *sock = talk_connect(socket);
    seq = talk_try_send(*sock, WIRE_HELLO, &hello.base);
    return seq == 0 ? KVC_E_DISCONNECTED : talk_outcome(*sock, seq);
}

// No memory is left: who comes is refused, or told why; who is there is served. Then there is some.
START_TEST(L_memory_used_up)
{
    int socks[256];
    int n_socks = 0, refused = 0;
    struct neighbour n;
    kvc_status status;

    if (CHECK_SANITIZED || check_valgrind())
        TEST_SKIP("these builds take what memory they like");
    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "");
    limit_memory(&n, (rlim_t)address_space_kb(daemon_pid(n.daemon)) * 1024);
    for (; n_socks < 256 && refused < 20; n_socks++) {
        status = try_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, &socks[n_socks]);
        refused += status != KVC_OK;
        ck_assert_msg(status == KVC_OK || status == KVC_E_NO_MEMORY || status == KVC_E_SYSTEM ||
                          status == KVC_E_NO_FDS || status == KVC_E_DISCONNECTED,
                      "status %d", (int)status);
        if (n_socks % 8 == 0)
            neighbour_works(&n);
    }
    ck_assert_int_gt(refused, 0);
    limit_memory(&n, RLIM_INFINITY);
    for (int i = 0; i < n_socks; i++)
        close(socks[i]);
    close(talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL));
    neighbour_unmute(&n);
    neighbour_close(&n);
}
END_TEST

CHECK_MAIN("life/limits", CHECK_LONG_S, L512_workers_with_200_requests_each, L512_processes,
           L_a_million_blocks, L_ten_thousand_connections_a_minute,
           L_all_descriptors_used_up_at_two_sockets, L_one_tenants_connections_are_not_anothers,
           L_memory_used_up)
