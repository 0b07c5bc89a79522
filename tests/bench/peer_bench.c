/*
 * Blocks from a peer on this machine, over TCP on loopback: a lookup of 64 blocks that miss here,
 * until they can be leased, and the bytes of many such lookups, beside ucx_perftest (Debian:
 * ucx-utils) moving messages of the same size over the same transport.
 *
 *     build/tests/bench/peer_bench [FOLDER OF THE PROGRAMS]
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/kvcache.h"

#define BATCH   64u
#define LOOKUPS 24u
#define SLICES  48u

static const char *folder = "build";
static char sockets[2][64];
static pid_t daemons[2];

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void die(const char *what, kvc_status status)
{
    fprintf(stderr, "peer_bench: %s: %s\n", what, kvc_text(status));
    for (int i = 0; i < 2; i++)
        if (daemons[i] > 0)
            kill(daemons[i], SIGTERM);
    exit(1);
}

static void start(int i, const char *mode)
{
    char program[256], listen[32], peers[32];

    snprintf(program, sizeof(program), "%s/kvcached", folder);
    snprintf(sockets[i], sizeof(sockets[i]), "/tmp/peer_bench.%d.%d", (int)getpid(), i);
    snprintf(listen, sizeof(listen), "127.0.0.1:%d", 37400 + i);
    snprintf(peers, sizeof(peers), "127.0.0.1:%d", 37400 + 1 - i);
    daemons[i] = fork();
    if (daemons[i] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(program, program, "--socket", sockets[i], "--device", "host", "--gpu-bytes", "0",
              "--host-bytes", "1G", "--peer-listen", listen, "--peers", peers, "--transfer", mode,
              "--log-level", "error", "--metrics", "off", NULL);
        _exit(127);
    }
}

struct worker {
    kvc_client *client;
    kvc_part part;
    uint8_t *memory;
};

static void open_worker(struct worker *w, int i, uint32_t slice_bytes)
{
    const kvc_options options = {.socket = sockets[i],
                                 .role = KVC_ROLE_WORKER,
                                 .connect_ms = 5000,
                                 .lookup_ms = 5000,
                                 .save_ms = 1000,
                                 .remote_ms = 20000};
    kvc_slice slices[SLICES];
    kvc_part_desc desc = {
        .block_tokens = 16, .slices = slices, .n_slices = SLICES, .n_blocks = BATCH};
    kvc_status status = KVC_E_DISCONNECTED;

    for (int k = 0; k < 500 && status != KVC_OK; k++) {
        status = kvc_connect(&options, &w->client);
        if (status != KVC_OK)
            usleep(10000);
    }
    if (status != KVC_OK) {
        printf("no daemon with peers: built without UCX, or it is not there\n");
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

static void make_keys(uint32_t first, uint8_t keys[BATCH * KVC_KEY_BYTES])
{
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t number = first + i;

        kvc_key(&number, sizeof(number), keys + (size_t)i * KVC_KEY_BYTES);
    }
}

static void save(struct worker *w, uint32_t first)
{
    uint8_t keys[BATCH * KVC_KEY_BYTES];
    uint32_t ids[BATCH];
    const kvc_save_entry entry = {.part = w->part, .keys = keys, .blocks = ids, .n_keys = BATCH};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};
    kvc_outcome outcome;
    uint64_t name;
    kvc_status status;

    make_keys(first, keys);
    for (uint32_t i = 0; i < BATCH; i++)
        ids[i] = i;
    status = kvc_save(w->client, &args, &name);
    if (status == KVC_OK && name != 0)
        status = kvc_wait(w->client, name, 5000, &outcome);
    if (status != KVC_OK)
        die("save", status);
}

static double fetch(struct worker *w, uint32_t first)
{
    uint8_t keys[BATCH * KVC_KEY_BYTES];
    kvc_lease lease;
    uint32_t blocks = 0;
    double begin;
    kvc_status status;

    make_keys(first, keys);
    begin = now_ms();
    status = kvc_lookup(w->client, first + 1, &w->part, 1, keys, BATCH, 0, &lease);
    if (status == KVC_OK)
        status = kvc_remote(w->client, lease.fetch, 20000, &blocks);
    if (status != KVC_OK || blocks != BATCH)
        die("fetch", status);
    return now_ms() - begin;
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

/* Two ucx_perftest on loopback, one-way, in GB/s; 0: it is not there. */
static double reference(uint64_t bytes)
{
    char command[256], line[256];
    double rate = 0, value;
    pid_t server = fork();
    FILE *pipe;

    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        freopen("/dev/null", "w", stdout);
        freopen("/dev/null", "w", stderr);
        setenv("UCX_TLS", "tcp", 1);
        execlp("ucx_perftest", "ucx_perftest", "-p", "37410", NULL);
        _exit(127);
    }
    usleep(500000);
    snprintf(command, sizeof(command),
             "UCX_TLS=tcp ucx_perftest -p 37410 127.0.0.1 -t ucp_am_bw -s %llu -n 40 -w 5 -f 2>&1",
             (unsigned long long)bytes);
    pipe = popen(command, "r");
    while (pipe != NULL && fgets(line, sizeof(line), pipe) != NULL) {
        double n, typical, average, overall;

        if (sscanf(line, "%lf %lf %lf %lf %lf", &n, &typical, &average, &overall, &value) == 5)
            rate = value * 1048576 / 1e9;
    }
    if (pipe != NULL)
        pclose(pipe);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return rate;
}

static void run(const char *mode, uint32_t slice_bytes, double rate)
{
    struct worker from, to;
    double times[LOOKUPS], total = 0, bytes = (double)slice_bytes * SLICES * BATCH;

    for (int i = 0; i < 2; i++)
        start(i, mode);
    open_worker(&from, 0, slice_bytes);
    open_worker(&to, 1, slice_bytes);
    usleep(1500000); /* until they are linked */
    for (uint32_t i = 0; i < LOOKUPS; i++)
        save(&from, 1000 * i);
    for (uint32_t i = 0; i < LOOKUPS; i++) {
        times[i] = fetch(&to, 1000 * i);
        total += i >= 4 ? times[i] : 0;
    }
    qsort(times, LOOKUPS, sizeof(times[0]), by_value);
    printf("%-6s %8.0f KiB x %u: p50 %7.2f ms, best %7.2f ms, %5.2f GB/s; ucx_perftest %5.2f GB/s, "
           "%7.2f ms: %.2f x its time\n",
           mode, slice_bytes * SLICES / 1024.0, BATCH, times[LOOKUPS / 2], times[0],
           bytes * (LOOKUPS - 4) / total / 1e6, rate, rate > 0 ? bytes / rate / 1e6 : 0,
           rate > 0 ? times[LOOKUPS / 2] / (bytes / rate / 1e6) : 0);
    kvc_close(from.client);
    kvc_close(to.client);
    free(from.memory);
    free(to.memory);
    for (int i = 0; i < 2; i++) {
        kill(daemons[i], SIGTERM);
        waitpid(daemons[i], NULL, 0);
        daemons[i] = 0;
    }
}

int main(int argc, char **argv)
{
    static const uint32_t slice_bytes[] = {4096};

    if (argc > 1)
        folder = argv[1];
    for (size_t i = 0; i < sizeof(slice_bytes) / sizeof(slice_bytes[0]); i++) {
        double rate = reference((uint64_t)slice_bytes[i] * SLICES * BATCH);

        run("views", slice_bytes[i], rate);
        run("exact", slice_bytes[i], rate);
    }
    return 0;
}
