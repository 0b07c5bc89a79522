// What a daemon with a GPU costs its workers: saving and loading through it beside one copy of the
// same bytes, on the same stream, alternating. Medians of REPEATS; fresh keys each time, random
// data, and what was loaded last is compared. One worker process, one daemon a table, in whose tier
// an extent holds all that a copy moves: of this GPU's memory, of another GPU's, or of the host's.
#include <dlfcn.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS  512u
#define BYTES   ((uint64_t)BLOCKS * SCENE_BLOCK_BYTES)
#define REPEATS 15u

// The time on the stream between two points, from events with times; us.
struct clock {
    void *begin, *end;
    int (*elapsed)(float *ms, void *begin, void *end);
};

static void clock_open(struct worker *w, struct clock *c)
{
    CUDA(w, event_create(&c->begin, 0));
    CUDA(w, event_create(&c->end, 0));
    *(void **)&c->elapsed = dlsym(w->driver.library, "cuEventElapsedTime");
    if (c->elapsed == NULL)
        scene_waive("no GPU to measure");
}

static void clock_begin(struct worker *w, struct clock *c)
{
    worker_sync(w);
    CUDA(w, event_record(c->begin, w->stream));
}

static double clock_end(struct worker *w, struct clock *c)
{
    float ms = 0;

    CUDA(w, event_record(c->end, w->stream));
    worker_sync(w);
    CHECK(c->elapsed(&ms, c->begin, c->end) == 0);
    return ms * 1000.0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct figure {
    const char *name;
    double us[REPEATS];
    uint32_t n;
};

static void add(struct figure *f, double us)
{
    f->us[f->n++] = us;
}

static double quantile(struct figure *f, double q)
{
    qsort(f->us, f->n, sizeof(f->us[0]), by_value);
    return f->us[(uint32_t)(q * (f->n - 1) + 0.5)];
}

static void print(struct figure *f, uint64_t bytes)
{
    const double p50 = quantile(f, 0.5);

    printf("  %-36s %9.1f us  (%.1f to %.1f)", f->name, p50, quantile(f, 0.1), quantile(f, 0.9));
    if (bytes > 0)
        printf("  %7.1f GB/s", (double)bytes / p50 / 1000.0);
    printf("\n");
    f->n = 0;
}

// The daemon's memory in this process, as many bytes of it.
static uint64_t slab_of(struct worker *w, uint32_t tier, uint64_t bytes)
{
    const uint8_t *at = map_at(&w->client->map, tier, 0, bytes);

    CHECK(at != NULL);
    return (uintptr_t)at;
}

enum {
    COPY_IN,
    SAVE_AHEAD,
    SAVE_PLAIN,
    SAVE_ALONE,
    SAVE_CALL,
    COPY_OUT,
    LOAD_AHEAD,
    LOAD_PLAIN,
    LOAD_ALONE,
    LOAD_CALL,
    READY,
    FIGURES
};

// Long enough for a call: what is enqueued meanwhile then runs without waiting for the host.
#define AHEAD_US 5000u

static void save(struct worker *w, uint32_t first_key, bool checksums, uint64_t *name)
{
    uint8_t keys[BLOCKS * KVC_KEY_BYTES];
    uint32_t blocks[BLOCKS];
    const kvc_save_entry entry = {
        .part = w->part, .keys = keys, .blocks = blocks, .n_keys = BLOCKS};
    const kvc_save_args args = {
        .entries = &entry, .n_entries = 1, .stream = w->stream, .no_checksums = !checksums};

    scene_keys(first_key, BLOCKS, keys);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    KVC(w, kvc_save(w->client, &args, name));
}

static void published(struct worker *w, uint64_t name)
{
    kvc_outcome outcome;

    KVC(w, kvc_wait(w->client, name, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == BLOCKS);
}

// Four times, under keys that differ: what comes first wakes everybody up.
static void measure_save(struct worker *w, struct clock *c, struct figure *f, uint32_t first_key)
{
    uint64_t begin_us, name;

    save(w, first_key + 3 * BLOCKS, true, &name);
    published(w, name);

    clock_begin(w, c);
    begin_us = scene_now_us();
    save(w, first_key, true, &name);
    add(&f[SAVE_CALL], (double)(scene_now_us() - begin_us));
    add(&f[SAVE_ALONE], clock_end(w, c));
    published(w, name);

    for (int plain = 0; plain < 2; plain++) {
        worker_hold(w, AHEAD_US);
        CUDA(w, event_record(c->begin, w->stream));
        save(w, first_key + (1 + (uint32_t)plain) * BLOCKS, !plain, &name);
        add(&f[plain ? SAVE_PLAIN : SAVE_AHEAD], clock_end(w, c));
        published(w, name);
    }
}

static void load(struct worker *w, bool verify, uint64_t *name)
{
    uint32_t blocks[BLOCKS];
    const kvc_load_args args = {
        .lease = w->lease.id,
        .part = w->part,
        .count = BLOCKS,
        .blocks = blocks,
        .stream = w->stream,
        .no_verify = !verify,
        .load = name,
    };

    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    KVC(w, kvc_load(w->client, &args));
}

static void judged(struct worker *w, uint64_t name)
{
    KVC(w, kvc_load_result(w->client, name, SCENE_MS, NULL));
}

static void measure_load(struct worker *w, struct clock *c, struct figure *f, uint32_t first_key)
{
    uint64_t begin_us, name;

    CHECK(worker_lookup(w, first_key, BLOCKS) == BLOCKS);
    load(w, true, &name);
    judged(w, name);
    for (int plain = 0; plain < 2; plain++) {
        worker_hold(w, AHEAD_US);
        CUDA(w, event_record(c->begin, w->stream));
        load(w, !plain, &name);
        add(&f[plain ? LOAD_PLAIN : LOAD_AHEAD], clock_end(w, c));
        judged(w, name);
    }
    clock_begin(w, c);
    begin_us = scene_now_us();
    load(w, true, &name);
    add(&f[LOAD_CALL], (double)(scene_now_us() - begin_us));
    add(&f[LOAD_ALONE], clock_end(w, c));
    judged(w, name);
    KVC(w, kvc_release(w->client, w->lease.id));

    // From the call of the lookup until what was loaded can be used.
    worker_poison(w);
    begin_us = scene_now_us();
    CHECK(worker_lookup(w, first_key, BLOCKS) == BLOCKS);
    load(w, true, &name);
    worker_sync(w);
    add(&f[READY], (double)(scene_now_us() - begin_us));
    judged(w, name);
    KVC(w, kvc_release(w->client, w->lease.id));
    CHECK(worker_wrong(w, first_key, BLOCKS) == 0);
}

struct where {
    uint32_t tier;
    int ordinal; // of the worker's GPU; the daemon's is the first
};

static void play(const struct scene_daemon *d, void *arg)
{
    const struct where *where = arg;
    struct figure figures[FIGURES] = {
        [COPY_IN] = {.name = "one copy into the slab"},
        [SAVE_AHEAD] = {.name = "save, on a stream that is busy"},
        [SAVE_PLAIN] = {.name = "save without checksums, the same"},
        [SAVE_ALONE] = {.name = "save, on a stream that is idle"},
        [SAVE_CALL] = {.name = "save, the call"},
        [COPY_OUT] = {.name = "one copy out of the slab"},
        [LOAD_AHEAD] = {.name = "load, on a stream that is busy"},
        [LOAD_PLAIN] = {.name = "load without checksums, the same"},
        [LOAD_ALONE] = {.name = "load, on a stream that is idle"},
        [LOAD_CALL] = {.name = "load, the call"},
        [READY] = {.name = "lookup, lease and load until usable"},
    };
    struct worker w;
    struct clock c;
    uint64_t slab;

    worker_open_with(&w, d,
                     &(struct worker_options){
                         .role = KVC_ROLE_WORKER, .n_blocks = BLOCKS, .ordinal = where->ordinal});
    clock_open(&w, &c);
    worker_put(&w, 1, BLOCKS); // warm
    slab = slab_of(&w, where->tier, BYTES);
    for (uint32_t r = 0; r < REPEATS; r++) {
        const uint32_t key = 100000 + r * 4 * BLOCKS;

        worker_fill(&w, key, BLOCKS);
        measure_save(&w, &c, figures, key);
        measure_load(&w, &c, figures, key);
        clock_begin(&w, &c);
        CUDA(&w, copy_async(w.memory, slab, BYTES, w.stream));
        add(&figures[COPY_OUT], clock_end(&w, &c));
    }
    // Last, since this overwrites blocks.
    for (uint32_t r = 0; r < REPEATS; r++) {
        clock_begin(&w, &c);
        CUDA(&w, copy_async(slab, w.memory, BYTES, w.stream));
        add(&figures[COPY_IN], clock_end(&w, &c));
    }
    for (int i = 0; i < FIGURES; i++)
        print(&figures[i], i == SAVE_CALL || i == LOAD_CALL ? 0 : BYTES);
    worker_close(&w);
}

static void measure(const char *name, struct where where, const char *const args[])
{
    struct scene_daemon d;

    scene_daemon_start(&d, args);
    scene_populated(&d);
    printf("%u blocks of %u KiB (%u slices of %u KiB), %s\n", BLOCKS, SCENE_BLOCK_BYTES / 1024,
           SCENE_SLICES, SCENE_SLICE_BYTES / 1024, name);
    scene_run(play, &d, &where);
    scene_daemon_stop(&d);
}

static void gpu_tier(void)
{
    measure("gpu tier", (struct where){0, 0},
            (const char *[]){"--gpu-bytes", "8G", "--host-bytes", "0", NULL});
}

static void gpu_tier_of_another(void)
{
    measure("gpu tier of another GPU", (struct where){0, 1},
            (const char *[]){"--gpu-bytes", "8G", "--host-bytes", "0", NULL});
}

static void host_tier(void)
{
    measure("host tier", (struct where){1, 0},
            (const char *[]){"--gpu-bytes", "0", "--host-bytes", "8G", NULL});
}

static const struct scene_test tests[] = {
    {"gpu tier", gpu_tier, 0},
    {"gpu tier of another GPU", gpu_tier_of_another, 0},
    {"host tier", host_tier, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
