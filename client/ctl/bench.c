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

#include "client/ctl/ctl.h"
#include "client/ctl/echo.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/option.h"
#include "client/ctl/private.h"

#define SLOT_BYTES  KVC_SLOT_BYTES_MIN
#define LEASE_BYTES 64u /* a lookup's reply, and what its request has beside the keys */
#define PING_BYTES  32u

struct bench {
    struct ctl *ctl;
    uint32_t blocks, rounds, pairs;
    struct private_daemon daemon;
    struct echo echo;
    kvc_client *client;
    kvc_part part;
    uint8_t *keys;
    unsigned random;
};

struct figure {
    const char *name;
    uint32_t keys; /* 0: ping */
    double p50, p99, echo_p50;
    uint64_t hits;
};

static double now_micros(void)
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
    kvc_slice slice = {cache, SLOT_BYTES, SLOT_BYTES, 0};
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

static kvc_status lookup_once(struct bench *bench, struct figure *figure, double *micros)
{
    uint32_t span = bench->blocks - figure->keys + 1;
    uint32_t first = (uint32_t)rand_r(&bench->random) % span;
    kvc_lease lease;
    double start = now_micros();
    kvc_status status =
        kvc_lookup(bench->client, 0, &bench->part, 1, bench->keys + (size_t)first * KVC_KEY_BYTES,
                   figure->keys, 0, &lease);
    *micros = now_micros() - start;
    if (status != KVC_OK)
        return status;
    figure->hits += lease.blocks;
    return lease.id ? kvc_release(bench->client, lease.id) : KVC_OK;
}

static kvc_status ping_once(struct bench *bench, double *micros)
{
    double start = now_micros();
    kvc_status status = kvc_ping(bench->client);
    *micros = now_micros() - start;
    return status;
}

/* The same packets as the operation: a lookup is split into requests of KVC_KEYS_MAX keys. */
static bool echo_once(struct bench *bench, const struct figure *figure, double *micros)
{
    double start = now_micros();
    if (!figure->keys && !echo_exchange(&bench->echo, PING_BYTES, PING_BYTES))
        return false;
    for (uint32_t at = 0; at < figure->keys; at += KVC_KEYS_MAX) {
        uint32_t left = figure->keys - at, n = left < KVC_KEYS_MAX ? left : KVC_KEYS_MAX;
        size_t bytes = (size_t)n * KVC_KEY_BYTES + LEASE_BYTES;
        if (!echo_exchange(&bench->echo, bytes, LEASE_BYTES))
            return false;
    }
    *micros = now_micros() - start;
    return true;
}

static kvc_status measure(struct bench *bench, struct figure *figure)
{
    size_t pairs = bench->pairs, rounds = bench->rounds;
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
            else if (figure->keys)
                status = lookup_once(bench, figure, &ours[i]);
            else
                status = ping_once(bench, &ours[i]);
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

static void print(const struct bench *bench, const struct figure *figures, size_t n)
{
    if (!bench->ctl->json) {
        printf("%u blocks, %u rounds of %u pairs, medians of rounds\n%-12s %10s %10s %10s %7s\n",
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

static int run(struct bench *bench, uint8_t *cache)
{
    struct figure figures[] = {{.name = "ping"},
                               {.name = "lookup_64", .keys = 64},
                               {.name = "lookup_1024", .keys = 1024},
                               {.name = "lookup_8192", .keys = 8192}};
    kvc_options options = {.socket = bench->daemon.socket,
                           .name = "bench",
                           .connect_ms = 10000,
                           .lookup_ms = 5000,
                           .save_ms = 5000};
    kvc_status status = kvc_connect(&options, &bench->client);
    if (status != KVC_OK)
        return ctl_fail(bench->ctl, NULL, "connect", status);
    status = register_part(bench, cache);
    if (status == KVC_OK)
        status = fill(bench);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]) && status == KVC_OK; i++) {
        status = measure(bench, &figures[i]);
        uint64_t asked = (uint64_t)figures[i].keys * bench->rounds * bench->pairs;
        if (status == KVC_OK && figures[i].hits != asked) {
            fprintf(stderr, "%s: %s: %llu hits of %llu keys\n", bench->ctl->program,
                    figures[i].name, (unsigned long long)figures[i].hits,
                    (unsigned long long)asked);
            status = KVC_E_UNKNOWN;
        }
    }
    int result = CTL_OK;
    if (status == KVC_OK)
        print(bench, figures, sizeof(figures) / sizeof(figures[0]));
    else
        result = ctl_fail(bench->ctl, bench->client, "bench", status);
    kvc_close(bench->client);
    return result;
}

#define FIELD(name) offsetof(struct bench, name)
static const struct option_row rows[] = {
    {"blocks", OPTION_UINT32, FIELD(blocks), "N", "how many the daemon holds [100000]", 8192,
     16u << 20, NULL},
    {"rounds", OPTION_UINT32, FIELD(rounds), "N", "the result is the median of rounds [5]", 1, 1000,
     NULL},
    {"pairs", OPTION_UINT32, FIELD(pairs), "N", "round trips and echoes in a round [2000]", 1,
     1u << 20, NULL},
};

static const struct option_table table = {
    .help = "Measures round trips of a private daemon beside a bare echo.",
    .alone = true,
    OPTION_ROWS(rows)};

static int run_beside(struct bench *bench, uint8_t *cache)
{
    /* A slot a block, and the odd extent. */
    char bytes[32], error[256];
    int result = CTL_FAILED;
    snprintf(bytes, sizeof(bytes), "%lluM",
             (unsigned long long)bench->blocks * SLOT_BYTES / 1048576 * 17 / 16 + 64);
    interrupt_catch();
    if (!private_start("host", bytes, "0", &bench->daemon, error, sizeof(error))) {
        fprintf(stderr, "%s: %s\n", bench->ctl->program, error);
        return CTL_FAILED;
    }
    if (!echo_start(1, &bench->echo)) {
        fprintf(stderr, "%s: echo: %m\n", bench->ctl->program);
    } else {
        echo_pin(bench->daemon.pid, 1);
        echo_pin(0, 0);
        result = run(bench, cache);
        echo_stop(&bench->echo);
    }
    return private_stop(&bench->daemon) ? result : CTL_FAILED;
}

int bench_command(struct ctl *ctl, int argc, char **argv)
{
    struct bench bench = {.ctl = ctl, .blocks = 100000, .rounds = 5, .pairs = 2000, .random = 1};
    int n, result;
    if (!option_parse(ctl, &table, argc, argv, &bench, &n, &result))
        return result;
    uint8_t *cache = mmap(NULL, (size_t)KVC_KEYS_MAX * SLOT_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bench.keys = malloc((size_t)bench.blocks * KVC_KEY_BYTES);
    if (cache != MAP_FAILED && bench.keys) {
        result = run_beside(&bench, cache);
    } else {
        fprintf(stderr, "%s: out of memory\n", ctl->program);
        result = CTL_FAILED;
    }
    if (cache != MAP_FAILED)
        munmap(cache, (size_t)KVC_KEYS_MAX * SLOT_BYTES);
    free(bench.keys);
    return result;
}
