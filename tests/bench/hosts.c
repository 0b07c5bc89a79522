#include "tests/bench/hosts.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *folder = "build";
static char sockets[HOSTS][64];
static pid_t daemons[HOSTS];

void hosts_programs(const char *path)
{
    folder = path;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double hosts_now_ms(void)
{
    return seconds_of(CLOCK_MONOTONIC) * 1e3;
}

double hosts_used_ms(void)
{
    double sum = 0;

    for (int i = 0; i < HOSTS; i++) {
        clockid_t clock;

        if (daemons[i] > 0 && clock_getcpuclockid(daemons[i], &clock) == 0)
            sum += seconds_of(clock) * 1e3;
    }
    return sum;
}

void hosts_stop(void)
{
    for (int i = 0; i < HOSTS; i++) {
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
    hosts_stop();
    exit(1);
}

void hosts_start(int i, int n, const char *mode)
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

void hosts_part(void)
{
    for (int i = 0; i < 2; i++) {
        cpu_set_t set;

        CPU_ZERO(&set);
        CPU_SET(i, &set);
        sched_setaffinity(daemons[i], sizeof(set), &set);
    }
}

void worker_open(struct worker *w, int i, uint32_t slice_bytes)
{
    const kvc_options options = {.socket = sockets[i],
                                 .role = KVC_ROLE_WORKER,
                                 .connect_ms = 5000,
                                 .lookup_ms = 5000,
                                 .save_ms = 5000,
                                 .load_ms = 5000,
                                 .remote_ms = 20000};
    kvc_slice slices[WORKER_SLICES];
    kvc_part_desc desc = {
        .block_tokens = 16, .slices = slices, .n_slices = WORKER_SLICES, .n_blocks = WORKER_BATCH};
    kvc_status status = KVC_E_DISCONNECTED;

    *w = (struct worker){.slice_bytes = slice_bytes};
    for (int k = 0; k < 500 && status != KVC_OK; k++) {
        status = kvc_connect(&options, &w->client);
        if (status != KVC_OK)
            usleep(10000);
    }
    if (status != KVC_OK) {
        printf("no daemon with peers: built without UCX, or it is not there\n");
        hosts_stop();
        exit(0);
    }
    w->memory = calloc((size_t)WORKER_SLICES * WORKER_BATCH, slice_bytes);
    for (uint32_t s = 0; s < WORKER_SLICES; s++)
        slices[s] = (kvc_slice){w->memory + (size_t)s * WORKER_BATCH * slice_bytes, slice_bytes,
                                slice_bytes, 0};
    status = kvc_register(w->client, &desc, &w->part);
    if (status != KVC_OK)
        die("register", status);
}

void worker_close(struct worker *w)
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

    for (uint32_t s = 0; s < WORKER_SLICES; s++)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t *at =
                (uint64_t *)(w->memory + ((size_t)s * WORKER_BATCH + i) * w->slice_bytes);
            uint64_t value = ((uint64_t)(first + i) << 32 | s << 24) * 0x9e3779b97f4a7c15ull;

            for (uint32_t k = 0; k < words; k++)
                if (wrong == NULL)
                    at[k] = value + k;
                else
                    *wrong += at[k] != value + k;
        }
}

void worker_save(struct worker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[WORKER_BATCH * KVC_KEY_BYTES];
    uint32_t ids[WORKER_BATCH];
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

double worker_fetch(struct worker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[WORKER_FETCH_MAX * KVC_KEY_BYTES];
    kvc_lease lease;
    uint32_t blocks = 0;
    double begin;
    kvc_status status;

    make_keys(first, n, keys);
    begin = hosts_now_ms();
    status = kvc_lookup(w->client, ++w->requests, &w->part, 1, keys, n, 0, &lease);
    if (status == KVC_OK)
        status = kvc_remote(w->client, lease.fetch, 20000, &blocks);
    if (status != KVC_OK || blocks != n)
        die("fetch", status);
    return hosts_now_ms() - begin;
}

/* What was fetched, compared; and then it is gone from here. */
static void verify_some(struct worker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[WORKER_BATCH * KVC_KEY_BYTES];
    uint32_t ids[WORKER_BATCH];
    uint64_t wrong = 0, dropped;
    kvc_lease lease;
    kvc_status status;

    for (uint32_t s = 0; s < WORKER_SLICES; s++)
        memset(w->memory + (size_t)s * WORKER_BATCH * w->slice_bytes, 0,
               (size_t)n * w->slice_bytes);
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

void worker_verify(struct worker *w, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += WORKER_BATCH)
        verify_some(w, first + i, n - i < WORKER_BATCH ? n - i : WORKER_BATCH);
}

uint64_t hosts_sum(int i, const char *field)
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
