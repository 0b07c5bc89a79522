/*
 * kvcachectl bench: round trips to a private daemon beside a bare echo process on the same kind of
 * socket with packets of the same sizes, alternating, client and server each on a processor of
 * its own.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <jansson.h>

#include "client/ctl/bench.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/option.h"

#define LEASE_BYTES 64u /* a lookup's reply, and what its request has beside the keys */
#define PING_BYTES  32u

double bench_now_micros(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof(*values), compare);
    return values[(size_t)(q * (double)(n - 1) + 0.5)];
}

static kvc_status register_part(struct bench *bench, uint8_t *cache)
{
    kvc_slice slice = {cache, BENCH_SLOT_BYTES, BENCH_SLOT_BYTES, 0};
    kvc_namespace names = {.model = "bench", .block_tokens = 16};
    kvc_part_desc desc = {.name = "bench",
                          .block_tokens = 16,
                          .slices = &slice,
                          .n_slices = 1,
                          .n_blocks = KVC_KEYS_MAX};
    kvc_namespace_digest(&names, desc.namespace_digest);
    return kvc_register(bench->client, &desc, &bench->part);
}

/* Saves every block; the store then holds exactly these. */
static kvc_status fill(struct bench *bench)
{
    uint32_t ids[KVC_KEYS_MAX];
    uint8_t states[KVC_KEYS_MAX];
    kvc_status status = KVC_OK;
    for (uint32_t i = 0; i < KVC_KEYS_MAX; i++)
        ids[i] = i;
    for (uint32_t i = 0; i < bench->blocks; i++)
        kvc_key(&i, sizeof(i), bench->keys + (size_t)i * KVC_KEY_BYTES);
    for (uint32_t at = 0; at < bench->blocks && status == KVC_OK; at += KVC_KEYS_MAX) {
        uint32_t left = bench->blocks - at, n = left < KVC_KEYS_MAX ? left : KVC_KEYS_MAX;
        kvc_save_entry entry = {bench->part, bench->keys + (size_t)at * KVC_KEY_BYTES, ids, n,
                                states};
        kvc_save_args args = {.entries = &entry, .n_entries = 1};
        uint64_t save;
        status = kvc_save(bench->client, &args, &save);
        kvc_outcome outcome = {.status = KVC_OK};
        if (status == KVC_OK && save)
            status = kvc_wait(bench->client, save, 5000, &outcome);
        if (status == KVC_OK)
            status = interrupt_came() ? KVC_E_CANCELLED : outcome.status;
    }
    return status;
}

static kvc_status lookup_once(struct bench *bench, struct bench_figure *figure, double *micros)
{
    uint32_t span = bench->blocks - figure->keys + 1;
    uint32_t first = (uint32_t)rand_r(&bench->random) % span;
    kvc_lease lease;
    double start = bench_now_micros();
    kvc_status status =
        kvc_lookup(bench->client, 0, &bench->part, 1, bench->keys + (size_t)first * KVC_KEY_BYTES,
                   figure->keys, 0, &lease);
    *micros = bench_now_micros() - start;
    if (status != KVC_OK)
        return status;
    figure->hits += lease.blocks;
    return lease.id ? kvc_release(bench->client, lease.id) : KVC_OK;
}

static kvc_status ping_once(struct bench *bench, double *micros)
{
    double start = bench_now_micros();
    kvc_status status = kvc_ping(bench->client);
    *micros = bench_now_micros() - start;
    return status;
}

/* The same packets as the operation: a lookup is split into requests of KVC_KEYS_MAX keys. */
static bool echo_once(struct bench *bench, const struct bench_figure *figure, double *micros)
{
    double start = bench_now_micros();
    if (figure->kind == BENCH_PING && !echo_exchange(&bench->echo, PING_BYTES, PING_BYTES))
        return false;
    if (figure->kind == BENCH_SAVE &&
        !echo_exchange(&bench->echo, bench->request_bytes, bench->reply_bytes))
        return false;
    for (uint32_t at = 0; figure->kind == BENCH_LOOKUP && at < figure->keys; at += KVC_KEYS_MAX) {
        uint32_t left = figure->keys - at, n = left < KVC_KEYS_MAX ? left : KVC_KEYS_MAX;
        size_t bytes = (size_t)n * KVC_KEY_BYTES + LEASE_BYTES;
        if (!echo_exchange(&bench->echo, bytes, LEASE_BYTES))
            return false;
    }
    *micros = bench_now_micros() - start;
    return true;
}

static kvc_status once(struct bench *bench, struct bench_figure *figure, double *micros)
{
    switch (figure->kind) {
    case BENCH_LOOKUP:
        return lookup_once(bench, figure, micros);
    case BENCH_SAVE:
        return bench_save_once(bench, figure, micros);
    default:
        return ping_once(bench, micros);
    }
}

/* Between saves the daemon gets time to copy. */
static uint32_t pairs_of(const struct bench *bench, const struct bench_figure *figure)
{
    return figure->kind == BENCH_SAVE ? (bench->pairs + 9) / 10 : bench->pairs;
}

static kvc_status measure(struct bench *bench, struct bench_figure *figure)
{
    size_t pairs = pairs_of(bench, figure), rounds = bench->rounds;
    double *ours = malloc(pairs * sizeof(double)), *echo = malloc(pairs * sizeof(double));
    double *medians = malloc(3 * rounds * sizeof(double));
    kvc_status status = ours && echo && medians ? KVC_OK : KVC_E_NO_MEMORY;
    for (size_t round = 0; round < rounds && status == KVC_OK; round++) {
        for (size_t i = 0; i < pairs && status == KVC_OK; i++) {
            bool echoed = echo_once(bench, figure, &echo[i]);

            if (interrupt_came())
                status = KVC_E_CANCELLED;
            else if (!echoed)
                status = KVC_E_SYSTEM;
            else
                status = once(bench, figure, &ours[i]);
        }
        medians[round] = quantile(ours, pairs, 0.5);
        medians[rounds + round] = quantile(ours, pairs, 0.99);
        medians[2 * rounds + round] = quantile(echo, pairs, 0.5);
    }
    if (status == KVC_OK) {
        figure->p50 = quantile(medians, rounds, 0.5);
        figure->p99 = quantile(medians + rounds, rounds, 0.5);
        figure->echo_p50 = quantile(medians + 2 * rounds, rounds, 0.5);
    }
    free(ours);
    free(echo);
    free(medians);
    return status;
}

static void print(const struct bench *bench, const struct bench_figure *figures, size_t n)
{
    if (!bench->ctl->json) {
        printf("%u blocks, %u rounds of %u pairs (of saves a tenth), medians of rounds\n%-12s %10s "
               "%10s %10s %7s\n",
               bench->blocks, bench->rounds, bench->pairs, "", "p50 us", "p99 us", "echo p50",
               "ratio");
        for (size_t i = 0; i < n; i++)
            printf("%-12s %10.1f %10.1f %10.1f %7.2f\n", figures[i].name, figures[i].p50,
                   figures[i].p99, figures[i].echo_p50, figures[i].p50 / figures[i].echo_p50);
        return;
    }
    json_t *root = json_object();
    for (size_t i = 0; i < n; i++)
        json_object_set_new(root, figures[i].name,
                            json_pack("{s:f, s:f, s:f, s:f, s:I, s:I}", "p50_us", figures[i].p50,
                                      "p99_us", figures[i].p99, "echo_p50_us", figures[i].echo_p50,
                                      "ratio", figures[i].p50 / figures[i].echo_p50, "blocks",
                                      (json_int_t)bench->blocks, "hits",
                                      (json_int_t)figures[i].hits));
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static kvc_status measure_all(struct bench *bench, struct bench_figure *figures, size_t n)
{
    kvc_status status = KVC_OK;

    for (size_t i = 0; i < n && status == KVC_OK; i++) {
        status = measure(bench, &figures[i]);
        uint64_t asked = (uint64_t)figures[i].keys * bench->rounds * pairs_of(bench, &figures[i]);
        if (status == KVC_OK && figures[i].hits != asked) {
            fprintf(stderr, "%s: %s: only %llu of %llu keys were found or taken\n",
                    bench->ctl->program, figures[i].name, (unsigned long long)figures[i].hits,
                    (unsigned long long)asked);
            status = KVC_E_UNKNOWN;
        }
    }
    return status;
}

/* A daemon that holds the blocks, and measures of it. */
static int run(struct bench *bench, struct bench_figure *figures, size_t n)
{
    kvc_options options = {.socket = bench->daemon.socket,
                           .name = "bench",
                           .connect_ms = 10000,
                           .lookup_ms = 5000,
                           .save_ms = 5000};
    kvc_status status = kvc_connect(&options, &bench->client);
    if (status != KVC_OK)
        return ctl_fail(bench->ctl, NULL, "connect", status);
    status = register_part(bench, bench->cache);
    if (status == KVC_OK)
        status = fill(bench);
    if (status == KVC_OK && figures[0].kind == BENCH_SAVE)
        status = bench_save_warm_up(bench);
    if (status == KVC_OK)
        status = measure_all(bench, figures, n);
    int result = status == KVC_OK ? CTL_OK : ctl_fail(bench->ctl, bench->client, "bench", status);
    kvc_close(bench->client);
    return result;
}

/* Measures a private daemon with tiers of these many slots. */
static int run_beside(struct bench *bench, uint64_t gpu_slots, uint64_t host_slots,
                      struct bench_figure *figures, size_t n)
{
    char bytes[2][32], error[256];
    int result;

    snprintf(bytes[0], sizeof(bytes[0]), "%lluM",
             (unsigned long long)gpu_slots * BENCH_SLOT_BYTES >> 20);
    snprintf(bytes[1], sizeof(bytes[1]), "%lluM",
             (unsigned long long)host_slots * BENCH_SLOT_BYTES >> 20);
    if (!private_start("host", bytes[0], bytes[1], NULL, &bench->daemon, error, sizeof(error))) {
        fprintf(stderr, "%s: %s\n", bench->ctl->program, error);
        return CTL_FAILED;
    }
    if (!private_wait_populated(&bench->daemon))
        fprintf(stderr, "%s: the daemon has not found all of its memory yet\n",
                bench->ctl->program);
    echo_pin(bench->daemon.pid, 1);
    result = run(bench, figures, n);
    return private_stop(&bench->daemon) ? result : CTL_FAILED;
}

static int run_all(struct bench *bench)
{
    struct bench_figure figures[] = {{.name = "ping"},
                                     {.name = "lookup_64", .kind = BENCH_LOOKUP, .keys = 64},
                                     {.name = "lookup_1024", .kind = BENCH_LOOKUP, .keys = 1024},
                                     {.name = "lookup_8192", .kind = BENCH_LOOKUP, .keys = 8192},
                                     {.name = "save_1024", .kind = BENCH_SAVE, .keys = 1024}};
    const size_t n = sizeof(figures) / sizeof(figures[0]);
    const uint64_t blocks = bench->blocks;
    size_t first = 0, end = n;
    int result = CTL_OK;

    if (bench->only) {
        while (first < n && strcmp(figures[first].name, bench->only) != 0)
            first++;
        if (first == n)
            return ctl_usage(bench->ctl, "--only takes the name of a figure", bench->only);
        end = first + 1;
    }
    if (!echo_start(1, &bench->echo)) {
        fprintf(stderr, "%s: echo: %m\n", bench->ctl->program);
        return CTL_FAILED;
    }
    echo_pin(0, 0);
    for (size_t i = first, next; i < end && result == CTL_OK; i = next) {
        const bool saves = figures[i].kind == BENCH_SAVE;

        for (next = i + 1; next < end && (figures[next].kind == BENCH_SAVE) == saves;)
            next++;
        /* A slot a block, and the odd extent; or fewer: the gpu tier is full, and what goes from
         * it is copied first. */
        result = run_beside(
            bench, saves ? blocks * 3 / 4 : blocks * 17 / 16 + (64u << 20) / BENCH_SLOT_BYTES,
            saves ? blocks : 0, figures + i, next - i);
    }
    echo_stop(&bench->echo);
    if (result == CTL_OK)
        print(bench, figures + first, end - first);
    return result;
}

#define FIELD(name) offsetof(struct bench, name)
static const struct option_row rows[] = {
    {"blocks", OPTION_UINT32, FIELD(blocks), "N", "how many the daemon holds [100000]", 16384,
     16u << 20, NULL},
    {"rounds", OPTION_UINT32, FIELD(rounds), "N", "the result is the median of rounds [5]", 1, 1000,
     NULL},
    {"pairs", OPTION_UINT32, FIELD(pairs), "N", "round trips and echoes in a round [2000]", 1,
     1u << 20, NULL},
    {"only", OPTION_TEXT, FIELD(only), "NAME", "measure only this figure", 0, 0, NULL},
};

static const struct field fields[] = {
    {"*.p50_us", FIELD_REAL, FIELD_APART, "of each figure: half of the round trips were faster"},
    {"*.p99_us", FIELD_REAL, FIELD_APART, "99 of 100 were"},
    {"*.echo_p50_us", FIELD_REAL, FIELD_APART, "p50 of a bare echo of the same sizes"},
    {"*.ratio", FIELD_REAL, FIELD_APART, "of the two"},
    {"*.blocks", FIELD_UINT32, FIELD_APART, "that the daemon held"},
    {"*.hits", FIELD_UINT64, FIELD_APART, "keys that were found, or admitted"},
};
static const struct shape shape = {"an object with one for each figure", SHAPE_FIELDS(fields)};

static const struct option_table table = {
    .json = &shape,
    .help = "Measures round trips of a private daemon beside a bare echo.",
    .alone = true,
    OPTION_ROWS(rows)};

int bench_command(struct ctl *ctl, int argc, char **argv)
{
    struct bench bench = {.ctl = ctl, .blocks = 100000, .rounds = 5, .pairs = 2000, .random = 1};
    int n, result;
    if (!option_parse(ctl, &table, argc, argv, &bench, &n, &result))
        return result;
    bench.cache = mmap(NULL, (size_t)KVC_KEYS_MAX * BENCH_SLOT_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bench.keys = malloc((size_t)bench.blocks * KVC_KEY_BYTES);
    if (bench.cache != MAP_FAILED && bench.keys) {
        interrupt_catch();
        result = run_all(&bench);
    } else {
        fprintf(stderr, "%s: out of memory\n", ctl->program);
        result = CTL_FAILED;
    }
    if (bench.cache != MAP_FAILED)
        munmap(bench.cache, (size_t)KVC_KEYS_MAX * BENCH_SLOT_BYTES);
    free(bench.keys);
    return result;
}
