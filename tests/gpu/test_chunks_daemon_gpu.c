// Many chunks are copied by one launch, each proved by its own word.
#include "client/client.h"
#include "client/cuda.h"
#include "tests/gpu/scene.h"

#define N 300u

static uint32_t launches;
static int (*driver_launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, void *stream, void **parameters, void **extra);

static int counted_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    launches++;
    return driver_launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                         stream, parameters, extra);
}

static int (*driver_launch_with)(const struct pack_cuda_config *config, void *function,
                                 void **parameters, void **extra);

static int counted_launch_with(const struct pack_cuda_config *config, void *function,
                               void **parameters, void **extra)
{
    launches++;
    return driver_launch_with(config, function, parameters, extra);
}

// Of the library's own driver, which is not the worker's.
static void open_counted(struct worker *w, const struct scene_daemon *d)
{
    worker_open(w, d, KVC_ROLE_WORKER, N);
    driver_launch = w->client->cuda->driver.pack.launch;
    w->client->cuda->driver.pack.launch = counted_launch;
    driver_launch_with = w->client->cuda->driver.pack.launch_with;
    w->client->cuda->driver.pack.launch_with = counted_launch_with;
}

static void save(struct worker *w, const kvc_save_entry *entries, uint32_t n_entries,
                 uint32_t published)
{
    const kvc_save_args args = {.entries = entries, .n_entries = n_entries, .stream = w->stream};
    kvc_outcome outcome;
    uint64_t id = 0;

    KVC(w, kvc_save(w->client, &args, &id));
    KVC(w, kvc_wait(w->client, id, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == published);
}

static void play_counts(const struct scene_daemon *d, void *arg)
{
    static const struct {
        uint32_t blocks, launches; // chunks are of 64 blocks, launches of 256 at most
    } cases[] = {{1, 1}, {64, 1}, {65, 1}, {200, 1}, {256, 1}, {257, 2}, {N, 2}};
    struct worker w;
    uint32_t first = 1;

    open_counted(&w, d);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        launches = 0;
        worker_put(&w, first, cases[i].blocks);
        CHECK(launches == cases[i].launches);
        launches = 0;
        worker_verify(&w, first, cases[i].blocks);
        CHECK(launches == cases[i].launches);
        first += cases[i].blocks;
    }
    worker_close(&w);
    (void)arg;
}

static void play_entries(const struct scene_daemon *d, void *arg)
{
    enum { A = 100, B = 50, HITS = 10 };
    uint8_t keys[A * KVC_KEY_BYTES], states[A];
    uint32_t blocks[A];
    kvc_save_entry entries[2];
    struct worker w;
    kvc_part first;

    open_counted(&w, d);
    first = w.part;
    worker_register_as(&w, 8);
    worker_fill(&w, 1, A);
    scene_keys(1, A, keys);
    for (uint32_t i = 0; i < A; i++)
        blocks[i] = i;
    entries[0] = (kvc_save_entry){.part = first,
                                  .keys = keys + HITS * KVC_KEY_BYTES,
                                  .blocks = blocks + HITS,
                                  .n_keys = HITS};
    save(&w, entries, 1, HITS);
    // 90 blocks and 50: the second of three chunks has blocks of both.
    launches = 0;
    entries[0] = (kvc_save_entry){
        .part = first, .keys = keys, .blocks = blocks, .n_keys = A, .states = states};
    entries[1] = (kvc_save_entry){.part = w.part, .keys = keys, .blocks = blocks, .n_keys = B};
    save(&w, entries, 2, A - HITS + B);
    CHECK(launches == 2);
    CHECK(states[HITS - 1] == KVC_KEY_SAVED && states[HITS] == KVC_KEY_HIT);
    worker_verify(&w, 1, B);
    w.part = first;
    worker_verify(&w, 1, A);
    worker_close(&w);
    (void)arg;
}

static void run(scene_play *play)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "512M", "--host-bytes", "0", NULL});
    scene_run(play, &d, NULL);
    scene_daemon_stop(&d);
}

static void chunks_share_launches(void)
{
    run(play_counts);
}

static void a_chunk_of_two_parts(void)
{
    run(play_entries);
}

static const struct scene_test tests[] = {
    {"chunks share launches", chunks_share_launches, 0},
    {"a chunk of two parts", a_chunk_of_two_parts, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
