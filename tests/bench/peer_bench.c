/*
 * Blocks from a peer on this machine, over TCP on loopback, beside ucx_perftest (Debian: ucx-utils)
 * on the same transport, by turns in the same run; medians. Its messages are of the same size, and
 * then of as many bytes as all blocks of the scene have: it sends and receives in one buffer, which
 * stays in the caches if it is small, and the daemons' blocks are other memory each time.
 *
 *     build/tests/bench/peer_bench [FOLDER OF THE PROGRAMS [SCENE [MODE]]]
 *
 * lookup: 64 blocks of 192 KiB that miss here, until they can be leased. throughput: fetches of
 * many batches. mixed: 25 batches of 64 blocks and 603 of one, and what the wire carries for them.
 * idle: a daemon with three peers. What came was cleared before (flushed here, the worker's memory
 * zeroed) and is compared afterwards.
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/kvcache.h"
#include "tests/bench/perftest.h"

#define BATCH      64u
#define BLOCKS_MAX 1024u /* of a lookup */
#define ROUNDS     7u
#define LOOKUPS    5u /* of a round */
#define SLICES     64u
#define FULL       25u
#define SMALL      603u
#define DAEMONS    4

static const char *folder = "build";
static char sockets[DAEMONS][64];
static pid_t daemons[DAEMONS];

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double now_ms(void)
{
    return seconds_of(CLOCK_MONOTONIC) * 1e3;
}

/* Of processor time that both daemons have used. */
static double used_ms(void)
{
    double sum = 0;

    for (int i = 0; i < DAEMONS; i++) {
        clockid_t clock;

        if (daemons[i] > 0 && clock_getcpuclockid(daemons[i], &clock) == 0)
            sum += seconds_of(clock) * 1e3;
    }
    return sum;
}

static void stop_all(void)
{
    for (int i = 0; i < DAEMONS; i++) {
        if (daemons[i] <= 0)
            continue;
        kill(daemons[i], SIGTERM);
        waitpid(daemons[i], NULL, 0);
        daemons[i] = 0;
    }
}

static void die(const char *what, kvc_status status)
{
    fprintf(stderr, "peer_bench: %s: %s\n", what, kvc_text(status));
    stop_all();
    exit(1);
}

static void start(int i, int n, const char *mode)
{
    char program[256], listen[32], peers[128] = "";

    snprintf(program, sizeof(program), "%s/kvcached", folder);
    snprintf(sockets[i], sizeof(sockets[i]), "/tmp/peer_bench.%d.%d", (int)getpid(), i);
    snprintf(listen, sizeof(listen), "127.0.0.1:%d", 37400 + i);
    for (int k = 0; k < n; k++)
        if (k != i)
            snprintf(peers + strlen(peers), sizeof(peers) - strlen(peers), "%s127.0.0.1:%d",
                     peers[0] ? "," : "", 37400 + k);
    daemons[i] = fork();
    if (daemons[i] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(program, program, "--socket", sockets[i], "--device", "host", "--gpu-bytes", "0",
              "--host-bytes", "400M", "--peer-listen", listen, "--peers", peers, "--transfer", mode,
              "--log-level", "error", "--metrics", "off", NULL);
        _exit(127);
    }
}

/* A worker, and its memory. */
struct worker {
    kvc_client *client;
    kvc_part part;
    uint32_t slice_bytes;
    uint8_t *memory;
    uint64_t requests;
};

static void open_worker(struct worker *w, int i, uint32_t slice_bytes)
{
    const kvc_options options = {.socket = sockets[i],
                                 .role = KVC_ROLE_WORKER,
                                 .connect_ms = 5000,
                                 .lookup_ms = 5000,
                                 .save_ms = 5000,
                                 .load_ms = 5000,
                                 .remote_ms = 20000};
    kvc_slice slices[SLICES];
    kvc_part_desc desc = {
        .block_tokens = 16, .slices = slices, .n_slices = SLICES, .n_blocks = BATCH};
    kvc_status status = KVC_E_DISCONNECTED;

    *w = (struct worker){.slice_bytes = slice_bytes};
    for (int k = 0; k < 500 && status != KVC_OK; k++) {
        status = kvc_connect(&options, &w->client);
        if (status != KVC_OK)
            usleep(10000);
    }
    if (status != KVC_OK) {
        printf("no daemon with peers: built without UCX, or it is not there\n");
        stop_all();
        exit(0);
    }
    w->memory = calloc((size_t)SLICES * BATCH, slice_bytes);
    for (uint32_t s = 0; s < SLICES; s++)
        slices[s] =
            (kvc_slice){w->memory + (size_t)s * BATCH * slice_bytes, slice_bytes, slice_bytes, 0};
    status = kvc_register(w->client, &desc, &w->part);
    if (status != KVC_OK)
        die("register", status);
}

static void close_worker(struct worker *w)
{
    kvc_close(w->client);
    free(w->memory);
}

static void make_keys(uint32_t first, uint32_t n, uint8_t *keys)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = first + i;

        kvc_key(&number, sizeof(number), keys + (size_t)i * KVC_KEY_BYTES);
    }
}

/* What slice s of a block has in its 8-byte words, all different. */
static void each_word(struct worker *w, uint32_t first, uint32_t n, uint64_t *wrong)
{
    const uint32_t words = w->slice_bytes / 8;

    for (uint32_t s = 0; s < SLICES; s++)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t *at = (uint64_t *)(w->memory + ((size_t)s * BATCH + i) * w->slice_bytes);
            uint64_t value = ((uint64_t)(first + i) << 32 | s << 24) * 0x9e3779b97f4a7c15ull;

            for (uint32_t k = 0; k < words; k++)
                if (wrong == NULL)
                    at[k] = value + k;
                else
                    *wrong += at[k] != value + k;
        }
}

static void save(struct worker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[BATCH * KVC_KEY_BYTES];
    uint32_t ids[BATCH];
    const kvc_save_entry entry = {.part = w->part, .keys = keys, .blocks = ids, .n_keys = n};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};
    kvc_outcome outcome;
    uint64_t name;
    kvc_status status;

    make_keys(first, n, keys);
    each_word(w, first, n, NULL);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i;
    status = kvc_save(w->client, &args, &name);
    if (status == KVC_OK && name != 0)
        status = kvc_wait(w->client, name, 5000, &outcome);
    if (status != KVC_OK)
        die("save", status);
}

/* Milliseconds until all of them can be leased. */
static double fetch(struct worker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[BLOCKS_MAX * KVC_KEY_BYTES];
    kvc_lease lease;
    uint32_t blocks = 0;
    double begin;
    kvc_status status;

    make_keys(first, n, keys);
    begin = now_ms();
    status = kvc_lookup(w->client, ++w->requests, &w->part, 1, keys, n, 0, &lease);
    if (status == KVC_OK)
        status = kvc_remote(w->client, lease.fetch, 20000, &blocks);
    if (status != KVC_OK || blocks != n)
        die("fetch", status);
    return now_ms() - begin;
}

/* What was fetched, compared; and then it is gone from here. */
static void verify_some(struct worker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[BATCH * KVC_KEY_BYTES];
    uint32_t ids[BATCH];
    uint64_t wrong = 0, dropped;
    kvc_lease lease;
    kvc_status status;

    for (uint32_t s = 0; s < SLICES; s++)
        memset(w->memory + (size_t)s * BATCH * w->slice_bytes, 0, (size_t)n * w->slice_bytes);
    make_keys(first, n, keys);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i;
    status = kvc_lookup(w->client, ++w->requests, &w->part, 1, keys, n, 0, &lease);
    if (status == KVC_OK)
        status = kvc_load(
            w->client,
            &(kvc_load_args){.lease = lease.id, .part = w->part, .count = n, .blocks = ids});
    if (status != KVC_OK)
        die("load", status);
    kvc_release(w->client, lease.id);
    each_word(w, first, n, &wrong);
    if (wrong > 0)
        die("what came is wrong", KVC_E_CHECKSUM);
    if (kvc_flush_keys(w->client, w->part, keys, n, &dropped) != KVC_OK)
        die("flush", KVC_E_SYSTEM);
}

static void verify(struct worker *w, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += BATCH)
        verify_some(w, first + i, n - i < BATCH ? n - i : BATCH);
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(values[0]), by_value);
    return values[n / 2];
}

/* Numbers of `kvcachectl peers`, summed over the rows of daemons that this one asks. */
static uint64_t peers_sum(int i, const char *field)
{
    char command[512], text[8192], name[64];
    uint64_t sum = 0;
    FILE *pipe;
    size_t n;

    snprintf(command, sizeof(command), "%s/kvcachectl --socket %s --json peers", folder,
             sockets[i]);
    pipe = popen(command, "r");
    if (pipe == NULL)
        return 0;
    n = fread(text, 1, sizeof(text) - 1, pipe);
    text[n] = '\0';
    pclose(pipe);
    snprintf(name, sizeof(name), "\"%s\":", field);
    for (char *row = strstr(text, "\"serves\""); row != NULL;) {
        char *from = row, *at;

        while (from > text && *from != '{')
            from--;
        at = strstr(from, name);
        sum += at != NULL ? strtoull(at + strlen(name) + strspn(at + strlen(name), " \""), NULL, 10)
                          : 0;
        row = strstr(row + 1, "\"serves\"");
    }
    return sum;
}

static void open_pair(const char *mode, uint32_t slice_bytes, struct worker *from,
                      struct worker *to)
{
    for (int i = 0; i < 2; i++)
        start(i, 2, mode);
    open_worker(from, 0, slice_bytes);
    open_worker(to, 1, slice_bytes);
    usleep(2500000); /* until they are linked, and their memory has its pages */
}

/* The loops of both daemons, each on a processor of its own, as the two of the reference: a busy
 * machine would put them on one every now and then. Other threads run where there is room. */
static void part_pair(void)
{
    for (int i = 0; i < 2; i++) {
        cpu_set_t set;

        CPU_ZERO(&set);
        CPU_SET(i, &set);
        sched_setaffinity(daemons[i], sizeof(set), &set);
    }
}

static void close_pair(struct worker *from, struct worker *to)
{
    close_worker(from);
    close_worker(to);
    stop_all();
}

/* The reference's rates, of messages as large as the daemons' and as all that they move. */
struct beside {
    uint64_t bytes[2];
    double rates[2][ROUNDS];
};

static void measure(struct beside *b, uint32_t round)
{
    for (int i = 0; i < 2; i++)
        b->rates[i][round] = perftest_rate(b->bytes[i]) / 1e9;
}

static void lookups(const char *mode, uint64_t message)
{
    const double bytes = 3072.0 * SLICES * BATCH;
    double times[ROUNDS * LOOKUPS], trips[LOOKUPS * ROUNDS], used = 0, p50, trip;
    struct beside beside = {.bytes = {message, LOOKUPS * BATCH * 3072 * SLICES}};
    struct worker from, to;
    uint32_t n = 0;

    open_pair(mode, 3072, &from, &to);
    for (uint32_t i = 0; i < LOOKUPS; i++)
        save(&from, 1000 * i, BATCH);
    for (uint32_t i = 0; i < 4; i++, verify(&to, 0, BATCH))
        fetch(&to, 0, BATCH);
    part_pair();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        measure(&beside, round);
        for (uint32_t i = 0; i < LOOKUPS; i++, n++) {
            double before = used_ms(), begin;

            times[n] = fetch(&to, 1000 * i, BATCH);
            used += used_ms() - before;
            verify(&to, 1000 * i, BATCH);
            begin = now_ms();
            kvc_ping(to.client);
            trips[n] = now_ms() - begin;
        }
    }
    close_pair(&from, &to);
    p50 = median(times, n);
    trip = median(trips, n);
    printf("lookup %-6s 64 x 192 KiB: p50 %.2f ms, best %.2f ms, %.2f ms of processors; round trip "
           "%.2f ms\n",
           mode, p50, times[0], used / n, trip);
    for (int i = 0; i < 2; i++) {
        const double rate = median(beside.rates[i], ROUNDS), best = beside.rates[i][ROUNDS - 1];

        printf("    ucx_perftest (%llu KiB) %.2f GB/s, %.2f ms: %.2f x (bytes + 2 round trips), "
               "best by best %.2f\n",
               (unsigned long long)beside.bytes[i] >> 10, rate, bytes / rate / 1e6,
               p50 / (bytes / rate / 1e6 + 2 * trip), times[0] / (bytes / best / 1e6 + 2 * trip));
    }
    fflush(stdout);
}

static void throughput(const char *mode, uint32_t slice_bytes, uint64_t message)
{
    const uint64_t block = (uint64_t)slice_bytes * SLICES;
    const uint32_t n = (uint32_t)((192ull << 20) / block);
    const double bytes = (double)(n * block);
    struct beside beside = {.bytes = {message, n * block}};
    double times[ROUNDS], used = 0, ours;
    struct worker from, to;

    open_pair(mode, slice_bytes, &from, &to);
    for (uint32_t i = 0; i < n; i += BATCH)
        save(&from, i, n - i < BATCH ? n - i : BATCH);
    fetch(&to, 0, n);
    verify(&to, 0, n);
    part_pair();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        double before;

        measure(&beside, round);
        before = used_ms();
        times[round] = fetch(&to, 0, n);
        used += used_ms() - before;
        verify(&to, 0, n);
    }
    close_pair(&from, &to);
    ours = bytes / median(times, ROUNDS) / 1e6;
    printf("throughput %-6s blocks of %4llu KiB: %.2f GB/s, best %.2f, %.2f ms of processors a "
           "12 MiB\n",
           mode, (unsigned long long)block >> 10, ours, bytes / times[0] / 1e6,
           used / ROUNDS / (bytes / (12 << 20)));
    for (int i = 0; i < 2; i++) {
        const double rate = median(beside.rates[i], ROUNDS), best = beside.rates[i][ROUNDS - 1];

        printf("    ucx_perftest (%llu KiB) %.2f GB/s: %.2f of it, best by best %.2f\n",
               (unsigned long long)beside.bytes[i] >> 10, rate, ours / rate,
               bytes / times[0] / 1e6 / best);
    }
    fflush(stdout);
}

/* Full and small batches by turns, then as many of either alone. */
static void mixed(const char *mode)
{
    uint64_t useful, wire, registrations;
    double full[FULL], small[100];
    struct worker from, to;

    open_pair(mode, 3072, &from, &to);
    for (uint32_t i = 0; i < 10; i++)
        save(&from, 1000 * i, BATCH);
    for (uint32_t i = 0; i < 3; i++, verify(&to, 0, BATCH))
        fetch(&to, 0, BATCH);
    useful = peers_sum(1, "useful_bytes");
    wire = peers_sum(1, "wire_bytes");
    registrations = peers_sum(1, "registrations");
    for (uint32_t i = 0, n_full = 0; i < FULL + SMALL; i++) {
        bool is_full = i * FULL / (FULL + SMALL) >= n_full;

        fetch(&to, 1000 * (i % 10) + (is_full ? 0 : i / 10 % BATCH), is_full ? BATCH : 1);
        verify(&to, 1000 * (i % 10) + (is_full ? 0 : i / 10 % BATCH), is_full ? BATCH : 1);
        n_full += is_full;
    }
    useful = peers_sum(1, "useful_bytes") - useful;
    wire = peers_sum(1, "wire_bytes") - wire;
    registrations = peers_sum(1, "registrations") - registrations;
    for (uint32_t i = 0; i < FULL; i++, verify(&to, 1000, BATCH))
        full[i] = fetch(&to, 1000, BATCH);
    for (uint32_t i = 0; i < 100; verify(&to, 2000 + i++ % BATCH, 1))
        small[i] = fetch(&to, 2000 + i % BATCH, 1);
    close_pair(&from, &to);
    printf("mixed  %-6s %u full, %u small: wire / useful %.2f, %llu registrations; a small batch "
           "%.2f ms, a full one %.2f ms: %.2f of it\n",
           mode, FULL, SMALL, useful > 0 ? (double)wire / (double)useful : 0,
           (unsigned long long)registrations, median(small, 100), median(full, FULL),
           median(small, 100) / median(full, FULL));
    fflush(stdout);
}

static void idle(void)
{
    double before, begin;
    int waited = 0;

    for (int i = 0; i < DAEMONS; i++)
        start(i, DAEMONS, "auto");
    usleep(4000000);
    /* Their memory has its pages when they have nothing to do; on a busy machine that takes long. */
    do {
        before = used_ms();
        usleep(1000000);
    } while (used_ms() - before > 10 * DAEMONS && ++waited < 60);
    before = used_ms();
    begin = now_ms();
    usleep(10000000);
    printf("idle   each of %d daemons with three peers: %.3f %% of a core\n", DAEMONS,
           (used_ms() - before) / (now_ms() - begin) * 100 / DAEMONS);
    stop_all();
}

static bool wanted(int argc, char **argv, const char *scene, const char *mode)
{
    return (argc < 3 || strcmp(argv[2], scene) == 0) && (argc < 4 || strcmp(argv[3], mode) == 0);
}

int main(int argc, char **argv)
{
    static const char *const modes[] = {"exact", "views"};

    if (argc > 1)
        folder = argv[1];
    for (int m = 0; m < 2; m++) {
        const uint64_t message = m == 0 ? 1920u << 10 : 12u << 20; /* that a batch is moved in */

        if (wanted(argc, argv, "lookup", modes[m]))
            lookups(modes[m], message);
        if (wanted(argc, argv, "throughput", modes[m])) {
            throughput(modes[m], 3072, message);
            throughput(modes[m], 32768, m == 0 ? 2u << 20 : 16u << 20);
        }
        if (wanted(argc, argv, "mixed", modes[m]))
            mixed(modes[m]);
    }
    if (wanted(argc, argv, "idle", "auto"))
        idle();
    return 0;
}
