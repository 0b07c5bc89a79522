// A daemon whose GPU memory has legacy handles and no descriptors, as on GPUs that have no other.
//
//   test_legacy_daemon_gpu [word]    only the tests whose name has the word
#include <string.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS 200u

struct play {
    kvc_role role;
    int ordinal;
    bool by_daemon, puts;
    uint32_t first_key;
};

static void play(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct worker w;

    worker_open_with(
        &w, d,
        &(struct worker_options){
            .role = p->role, .n_blocks = BLOCKS, .ordinal = p->ordinal, .by_daemon = p->by_daemon});
    if (!p->by_daemon)
        CHECK(w.client->map.tiers[0].opened != NULL);
    if (p->puts)
        worker_put(&w, p->first_key, BLOCKS);
    worker_verify(&w, p->first_key, BLOCKS);
    worker_close(&w);
}

static void run(const struct scene_daemon *d, struct play p)
{
    scene_run(play, d, &p);
}

static void saved_and_loaded_every_way(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-memory", "legacy", NULL});
    run(&d, (struct play){.role = KVC_ROLE_WORKER, .puts = true, .first_key = 1000});
    run(&d,
        (struct play){.role = KVC_ROLE_WORKER, .by_daemon = true, .puts = true, .first_key = 2000});
    for (uint32_t key = 1000; key <= 2000; key += 1000) {
        run(&d, (struct play){.role = KVC_ROLE_WORKER, .first_key = key});
        run(&d, (struct play){.role = KVC_ROLE_READER, .first_key = key});
        run(&d, (struct play){.role = KVC_ROLE_WORKER, .by_daemon = true, .first_key = key});
    }
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void on_several_gpus(void)
{
    struct scene_daemon d;

    setenv("KVC_FAKE_CUDA_GPUS", "2", 1); // the driver without a GPU
    scene_daemon_start(&d, (const char *[]){"--gpu-memory", "legacy", "--gpus", "all",
                                            "--gpu-bytes", "96M", NULL});
    for (uint32_t i = 0; i < 4; i++) {
        struct play p = {.role = KVC_ROLE_WORKER,
                         .ordinal = (int)(i % 2),
                         .by_daemon = i / 2 == 1,
                         .puts = true,
                         .first_key = 1000 * (i + 1)};

        run(&d, p);
        p.puts = false;
        p.ordinal = 1 - p.ordinal;
        run(&d, p);
    }
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_tiers(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 40);
    CHECK(worker_put_sets(&w, 10000, 8) > 0);
    worker_close(&w);
}

static void demoted_to_the_host(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-memory", "legacy", "--gpu-bytes", "32M",
                                            "--host-bytes", "128M", NULL});
    scene_run(play_tiers, &d, NULL);
    CHECK(scene_stats(&d).demotions > 0 && scene_stats(&d).failed_demotions == 0);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_large(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    kvc_slice slice = {.stride = 3 << 20, .bytes = 3 << 20};
    const kvc_part_desc desc = {.block_tokens = 16, .slices = &slice, .n_slices = 1, .n_blocks = 2};
    kvc_part part;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    slice.base = (void *)(uintptr_t)w.memory;
    CHECK(kvc_register(w.client, &desc, &part) == KVC_E_LIMIT);
    CHECK(strstr(kvc_error(w.client), "larger than an extent") != NULL);
    worker_put(&w, 1000, 64);
    worker_verify(&w, 1000, 64);
    worker_close(&w);
}

static void a_block_larger_than_an_extent_is_refused(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-memory", "legacy", "--gpu-bytes", "64M", NULL});
    scene_run(play_large, &d, NULL);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"legacy memory: saved and loaded every way", saved_and_loaded_every_way, 0},
    {"legacy memory: on several GPUs", on_several_gpus, 0},
    {"legacy memory: demoted to the host", demoted_to_the_host, 0},
    {"legacy memory: a block larger than an extent is refused",
     a_block_larger_than_an_extent_is_refused, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
