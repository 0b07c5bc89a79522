/*
 * How long lookups of one steady worker take beside whatever else the daemon does: 64 keys with a
 * lease every 2 ms, of blocks that it saves, and saves again when they are gone; and beside it
 * round trips of packets of the same sizes to a process that does nothing but answer them. "served"
 * is what a lookup takes but for the time that the probe itself waits for a processor, as Linux
 * counts it, "worked" but for what the daemon's loop waits too; 0 where that is not known.
 *
 *     lookup_probe SOCKET [PID]        of the daemon
 *
 * Each line on standard input is answered by one line of JSON about both; the end of it ends the
 * program. Exit status 1: a request failed.
 *
 *     round    those since the line before
 *     forget   the same, and they do not count any more
 *     quiet    the same, and they count among those of a daemon at rest
 *     all      all that count, but for those
 *     rests    all of a daemon at rest
 */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/echo.h"
#include "client/kvcache.h"

#define BLOCKS      1024u
#define KEYS        64u
#define SLOT_BYTES  4096u
#define PAUSE_MS    2
#define REPLY_BYTES 64u /* of a lookup, and what its request has beside the keys */
#define SLICE_NS    100000u
#define REPLY_MS    10000 /* what is longer is a failure, not a figure */

struct series {
    float *micros; /* of all that count */
    size_t n, room;
    size_t first; /* since the line before */
};

struct probe {
    kvc_client *client;
    kvc_part part;
    struct echo echo;
    int waits[2]; /* schedstat of this process and of the daemon; -1: not known */
    uint8_t keys[BLOCKS * KVC_KEY_BYTES];
    uint8_t *cache;
    unsigned random;
    struct series lookups, served, worked, echoes;
    struct series quiet_lookups, quiet_served, quiet_worked, quiet_echoes;
    char line[16];
    size_t len;
};

static double now_micros(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* How long its first thread has been ready to run and waited for a processor; negative: not known.
 */
static double waited_micros(int waits)
{
    char text[96];
    ssize_t n = waits >= 0 ? pread(waits, text, sizeof(text) - 1, 0) : -1;
    unsigned long long ran_ns, waited_ns;

    if (n <= 0)
        return -1;
    text[n] = '\0';
    return sscanf(text, "%llu %llu", &ran_ns, &waited_ns) == 2 ? (double)waited_ns * 1e-3 : -1;
}

static int open_waits(const char *pid)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%s/schedstat", pid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/*
 * What it waits for a processor itself is not what it measures: like the daemon's loop it asks for
 * short time slices, and with it the process that answers packets. Linux before 6.12 takes no
 * notice.
 */
static void ask_for_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } attributes = {0};

    if (syscall(SYS_sched_getattr, 0l, &attributes, sizeof(attributes), 0) < 0)
        return;
    attributes.size = sizeof(attributes);
    attributes.runtime_ns = SLICE_NS;
    (void)syscall(SYS_sched_setattr, 0l, &attributes, 0);
}

static int fail(const struct probe *p, const char *what, kvc_status status)
{
    fprintf(stderr, "lookup_probe: %s: %s (%s)\n", what, kvc_text(status),
            p->client != NULL ? kvc_error(p->client) : "");
    return 1;
}

static kvc_status open_session(struct probe *p, const char *socket)
{
    const kvc_options options = {.socket = socket,
                                 .name = "probe",
                                 .connect_ms = REPLY_MS,
                                 .lookup_ms = REPLY_MS,
                                 .save_ms = REPLY_MS};
    kvc_slice slice = {p->cache, SLOT_BYTES, SLOT_BYTES, 0};
    const kvc_namespace names = {.model = "probe", .block_tokens = 16};
    kvc_part_desc desc = {
        .name = "probe", .block_tokens = 16, .slices = &slice, .n_slices = 1, .n_blocks = BLOCKS};
    kvc_status status = kvc_connect(&options, &p->client);

    if (status != KVC_OK)
        return status;
    kvc_namespace_digest(&names, desc.namespace_digest);
    return kvc_register(p->client, &desc, &p->part);
}

/* One chunk of keys; those that are there already stay. */
static kvc_status save(struct probe *p, uint32_t first)
{
    uint32_t ids[KEYS];
    uint8_t states[KEYS];
    kvc_save_entry entry = {p->part, p->keys + (size_t)first * KVC_KEY_BYTES, ids, KEYS, states};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    for (uint32_t i = 0; i < KEYS; i++)
        ids[i] = first + i;
    return kvc_save(p->client, &args, NULL);
}

static bool note(struct series *series, double micros)
{
    if (series->n == series->room) {
        const size_t room = series->room > 0 ? 2 * series->room : 65536;
        float *more = realloc(series->micros, room * sizeof(*more));

        if (more == NULL)
            return false;
        series->micros = more;
        series->room = room;
    }
    series->micros[series->n++] = (float)micros;
    return true;
}

/* After a flush leases have ended, and the namespace is used anew. */
static kvc_status after_flush(struct probe *p, kvc_status status)
{
    if (status == KVC_E_STALE)
        return kvc_register(p->client, NULL, &p->part);
    return status == KVC_E_UNKNOWN || status == KVC_E_EXPIRED ? KVC_OK : status;
}

static kvc_status exchange(struct probe *p)
{
    const double start = now_micros();

    if (!echo_exchange(&p->echo, KEYS * KVC_KEY_BYTES + REPLY_BYTES, REPLY_BYTES))
        return KVC_E_SYSTEM;
    return note(&p->echoes, now_micros() - start) ? KVC_OK : KVC_E_NO_MEMORY;
}

static double without(double micros, double waited)
{
    return waited < 0 || waited > micros ? 0 : micros - waited;
}

/* `own` and `loop`: what had been waited when it began. */
static bool note_lookup(struct probe *p, double micros, double own, double loop)
{
    const double served = own < 0 ? 0 : without(micros, waited_micros(p->waits[0]) - own);
    const double worked = loop < 0 ? 0 : without(served, waited_micros(p->waits[1]) - loop);

    return note(&p->lookups, micros) && note(&p->served, served) && note(&p->worked, worked);
}

static kvc_status look_up(struct probe *p)
{
    const uint32_t first = (uint32_t)rand_r(&p->random) % (BLOCKS / KEYS) * KEYS;
    const double own = waited_micros(p->waits[0]), loop = waited_micros(p->waits[1]);
    const double start = now_micros();
    kvc_lease lease;
    kvc_status status = kvc_lookup(p->client, 0, &p->part, 1,
                                   p->keys + (size_t)first * KVC_KEY_BYTES, KEYS, 0, &lease);

    if (status == KVC_OK && !note_lookup(p, now_micros() - start, own, loop))
        status = KVC_E_NO_MEMORY;
    if (status != KVC_OK)
        return status;
    if (lease.id != 0)
        status = kvc_release(p->client, lease.id);
    if (status == KVC_OK && lease.blocks < KEYS)
        status = save(p, first);
    return status;
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void tell(struct series *series, bool all, const char *prefix)
{
    float *micros = series->micros + (all ? 0 : series->first);
    const size_t n = series->n - (all ? 0 : series->first);
    const struct {
        const char *name;
        double q;
    } quantiles[] = {{"p50_us", 0.5}, {"p99_us", 0.99}, {"max_us", 1}};

    qsort(micros, n, sizeof(*micros), compare);
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++)
        printf("\"%s%s\": %.1f, ", prefix, quantiles[i].name,
               n > 0 ? (double)micros[(size_t)(quantiles[i].q * (double)(n - 1) + 0.5)] : 0);
}

static void go_on(struct series *series, bool forget)
{
    if (forget)
        series->n = series->first;
    series->first = series->n;
}

static void copy_since(const struct series *from, struct series *to)
{
    for (size_t i = from->first; i < from->n; i++)
        note(to, (double)from->micros[i]);
}

static void take_line(struct probe *p)
{
    const bool rests = strcmp(p->line, "rests") == 0, all = rests || strcmp(p->line, "all") == 0;
    const bool quiet = strcmp(p->line, "quiet") == 0, forget = strcmp(p->line, "forget") == 0;
    struct series *lookups = rests ? &p->quiet_lookups : &p->lookups;

    if (quiet) {
        copy_since(&p->lookups, &p->quiet_lookups);
        copy_since(&p->served, &p->quiet_served);
        copy_since(&p->worked, &p->quiet_worked);
        copy_since(&p->echoes, &p->quiet_echoes);
    }
    putchar('{');
    tell(lookups, all, "");
    tell(rests ? &p->quiet_served : &p->served, all, "served_");
    tell(rests ? &p->quiet_worked : &p->worked, all, "worked_");
    tell(rests ? &p->quiet_echoes : &p->echoes, all, "echo_");
    printf("\"lookups\": %zu}\n", lookups->n - (all ? 0 : lookups->first));
    fflush(stdout);
    go_on(&p->lookups, forget || quiet);
    go_on(&p->served, forget || quiet);
    go_on(&p->worked, forget || quiet);
    go_on(&p->echoes, forget || quiet);
}

/* Until the time of the next lookup. false: the end. */
static bool pause_and_listen(struct probe *p)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    while (poll(&input, 1, PAUSE_MS) > 0) {
        char c;

        if (read(STDIN_FILENO, &c, 1) <= 0)
            return false;
        if (c != '\n') {
            if (p->len < sizeof(p->line) - 1)
                p->line[p->len++] = c;
            continue;
        }
        p->line[p->len] = '\0';
        p->len = 0;
        take_line(p);
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct probe p = {.random = 1};
    kvc_status status = KVC_OK;

    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: lookup_probe SOCKET [PID]\n");
        return 2;
    }
    p.cache = mmap(NULL, (size_t)BLOCKS * SLOT_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p.cache == MAP_FAILED)
        return fail(&p, "memory", KVC_E_NO_MEMORY);
    for (uint32_t i = 0; i < BLOCKS; i++)
        kvc_key(&i, sizeof(i), p.keys + (size_t)i * KVC_KEY_BYTES);
    ask_for_short_slices();
    p.waits[0] = open_waits("self");
    p.waits[1] = argc > 2 ? open_waits(argv[2]) : -1;
    if (!echo_start(-1, &p.echo))
        return fail(&p, "echo", KVC_E_SYSTEM);
    status = open_session(&p, argv[1]);
    if (status != KVC_OK)
        return fail(&p, "connect", status);
    while (status == KVC_OK && pause_and_listen(&p))
        status = after_flush(&p, exchange(&p) == KVC_OK ? look_up(&p) : KVC_E_SYSTEM);
    if (status != KVC_OK)
        return fail(&p, "lookup", status);
    kvc_close(p.client);
    echo_stop(&p.echo);
    munmap(p.cache, (size_t)BLOCKS * SLOT_BYTES);
    for (size_t i = 0; i < 2; i++)
        if (p.waits[i] >= 0)
            close(p.waits[i]);
    free(p.lookups.micros);
    free(p.served.micros);
    free(p.worked.micros);
    free(p.quiet_served.micros);
    free(p.quiet_worked.micros);
    free(p.echoes.micros);
    free(p.quiet_lookups.micros);
    free(p.quiet_echoes.micros);
    return 0;
}
