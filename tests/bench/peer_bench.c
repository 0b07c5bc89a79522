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
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/hosts.h"
#include "tests/bench/perftest.h"

#define ROUNDS  7u
#define LOOKUPS 5u /* of a round */
#define FULL    25u
#define SMALL   603u

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(values[0]), by_value);
    return values[n / 2];
}

static void open_pair(const char *mode, uint32_t slice_bytes, struct worker *from,
                      struct worker *to)
{
    for (int i = 0; i < 2; i++)
        hosts_start(i, 2, mode);
    worker_open(from, 0, slice_bytes);
    worker_open(to, 1, slice_bytes);
    usleep(2500000); /* until they are linked, and their memory has its pages */
}

static void close_pair(struct worker *from, struct worker *to)
{
    worker_close(from);
    worker_close(to);
    hosts_stop();
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

/* Whether there is a reference. */
static bool is_there(double rate)
{
    if (rate == 0)
        printf("    no ucx_perftest (Debian: ucx-utils) to compare it with\n");
    return rate > 0;
}

static void lookups(const char *mode, uint64_t message)
{
    const double bytes = 3072.0 * WORKER_SLICES * WORKER_BATCH;
    double times[ROUNDS * LOOKUPS], trips[LOOKUPS * ROUNDS], used = 0, p50, trip;
    struct beside beside = {.bytes = {message, LOOKUPS * WORKER_BATCH * 3072 * WORKER_SLICES}};
    struct worker from, to;
    uint32_t n = 0;

    open_pair(mode, 3072, &from, &to);
    for (uint32_t i = 0; i < LOOKUPS; i++)
        worker_save(&from, 1000 * i, WORKER_BATCH);
    for (uint32_t i = 0; i < 4; i++, worker_verify(&to, 0, WORKER_BATCH))
        worker_fetch(&to, 0, WORKER_BATCH);
    hosts_part();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        measure(&beside, round);
        for (uint32_t i = 0; i < LOOKUPS; i++, n++) {
            double before = hosts_used_ms(), begin;

            times[n] = worker_fetch(&to, 1000 * i, WORKER_BATCH);
            used += hosts_used_ms() - before;
            worker_verify(&to, 1000 * i, WORKER_BATCH);
            begin = hosts_now_ms();
            kvc_ping(to.client);
            trips[n] = hosts_now_ms() - begin;
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

        if (!is_there(rate))
            break;
        printf("    ucx_perftest (%llu KiB) %.2f GB/s, %.2f ms: %.2f x (bytes + 2 round trips), "
               "best by best %.2f\n",
               (unsigned long long)beside.bytes[i] >> 10, rate, bytes / rate / 1e6,
               p50 / (bytes / rate / 1e6 + 2 * trip), times[0] / (bytes / best / 1e6 + 2 * trip));
    }
    fflush(stdout);
}

static void throughput(const char *mode, uint32_t slice_bytes, uint64_t message)
{
    const uint64_t block = (uint64_t)slice_bytes * WORKER_SLICES;
    const uint32_t n = (uint32_t)((192ull << 20) / block);
    const double bytes = (double)(n * block);
    struct beside beside = {.bytes = {message, n * block}};
    double times[ROUNDS], used = 0, ours;
    struct worker from, to;

    open_pair(mode, slice_bytes, &from, &to);
    for (uint32_t i = 0; i < n; i += WORKER_BATCH)
        worker_save(&from, i, n - i < WORKER_BATCH ? n - i : WORKER_BATCH);
    worker_fetch(&to, 0, n);
    worker_verify(&to, 0, n);
    hosts_part();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        double before;

        measure(&beside, round);
        before = hosts_used_ms();
        times[round] = worker_fetch(&to, 0, n);
        used += hosts_used_ms() - before;
        worker_verify(&to, 0, n);
    }
    close_pair(&from, &to);
    ours = bytes / median(times, ROUNDS) / 1e6;
    printf("throughput %-6s blocks of %4llu KiB: %.2f GB/s, best %.2f, %.2f ms of processors a "
           "12 MiB\n",
           mode, (unsigned long long)block >> 10, ours, bytes / times[0] / 1e6,
           used / ROUNDS / (bytes / (12 << 20)));
    for (int i = 0; i < 2; i++) {
        const double rate = median(beside.rates[i], ROUNDS), best = beside.rates[i][ROUNDS - 1];

        if (!is_there(rate))
            break;
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
        worker_save(&from, 1000 * i, WORKER_BATCH);
    for (uint32_t i = 0; i < 3; i++, worker_verify(&to, 0, WORKER_BATCH))
        worker_fetch(&to, 0, WORKER_BATCH);
    useful = hosts_sum(1, "useful_bytes");
    wire = hosts_sum(1, "wire_bytes");
    registrations = hosts_sum(1, "registrations");
    for (uint32_t i = 0, n_full = 0; i < FULL + SMALL; i++) {
        bool is_full = i * FULL / (FULL + SMALL) >= n_full;

        worker_fetch(&to, 1000 * (i % 10) + (is_full ? 0 : i / 10 % WORKER_BATCH),
                     is_full ? WORKER_BATCH : 1);
        worker_verify(&to, 1000 * (i % 10) + (is_full ? 0 : i / 10 % WORKER_BATCH),
                      is_full ? WORKER_BATCH : 1);
        n_full += is_full;
    }
    useful = hosts_sum(1, "useful_bytes") - useful;
    wire = hosts_sum(1, "wire_bytes") - wire;
    registrations = hosts_sum(1, "registrations") - registrations;
    for (uint32_t i = 0; i < FULL; i++, worker_verify(&to, 1000, WORKER_BATCH))
        full[i] = worker_fetch(&to, 1000, WORKER_BATCH);
    for (uint32_t i = 0; i < 100; worker_verify(&to, 2000 + i++ % WORKER_BATCH, 1))
        small[i] = worker_fetch(&to, 2000 + i % WORKER_BATCH, 1);
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

    for (int i = 0; i < HOSTS; i++)
        hosts_start(i, HOSTS, "auto");
    usleep(4000000);
    /* Their memory has its pages when they have nothing to do: late, on a busy machine. */
    do {
        before = hosts_used_ms();
        usleep(1000000);
    } while (hosts_used_ms() - before > 10 * HOSTS && ++waited < 60);
    before = hosts_used_ms();
    begin = hosts_now_ms();
    usleep(10000000);
    printf("idle   each of %d daemons with three peers: %.3f %% of a core\n", HOSTS,
           (hosts_used_ms() - before) / (hosts_now_ms() - begin) * 100 / HOSTS);
    hosts_stop();
}

static bool wanted(int argc, char **argv, const char *scene, const char *mode)
{
    return (argc < 3 || strcmp(argv[2], scene) == 0) && (argc < 4 || strcmp(argv[3], mode) == 0);
}

int main(int argc, char **argv)
{
    static const char *const modes[] = {"exact", "views"};

    if (argc > 1)
        hosts_programs(argv[1]);
    for (int m = 0; m < 2; m++) {
        /* A batch of views; else neighbours, as far as an extent goes that they do not fill. */
        const uint64_t message = m == 0 ? 4u << 20 : 12u << 20;

        if (wanted(argc, argv, "lookup", modes[m]))
            lookups(modes[m], message);
        if (wanted(argc, argv, "throughput", modes[m])) {
            throughput(modes[m], 3072, message);
            throughput(modes[m], 32768, 16u << 20);
        }
        if (wanted(argc, argv, "mixed", modes[m]))
            mixed(modes[m]);
    }
    if (wanted(argc, argv, "idle", "auto"))
        idle();
    return 0;
}
