// A daemon with a GPU and its workers: every byte that is loaded is compared, outputs are poisoned
// before, data are fresh in each run.
//
//   test_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS 512u

// Saving and loading.

static void play_put(const struct scene_daemon *d, void *arg)
{
    const uint32_t *n = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, *n);
    worker_put(&w, 1000, *n);
    worker_verify(&w, 1000, *n);
    worker_close(&w);
}

static void play_verify(const struct scene_daemon *d, void *arg)
{
    const uint32_t *n = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, *n);
    worker_verify(&w, 1000, *n);
    worker_close(&w);
}

static void play_read(const struct scene_daemon *d, void *arg)
{
    const uint32_t *n = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_READER, *n);
    worker_verify(&w, 1000, *n);
    worker_close(&w);
}

static void saved_by_one_loaded_by_another(void)
{
    struct scene_daemon d;
    uint32_t n = BLOCKS;

    scene_daemon_start(&d, NULL);
    scene_run(play_put, &d, &n);
    scene_run(play_verify, &d, &n);
    scene_run(play_read, &d, &n);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_mapped(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(
        &w, d, &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 200, .mapped = true});
    worker_put(&w, 3000, 200);
    worker_verify(&w, 3000, 200);
    worker_verify(&w, 1000, 200);
    worker_close(&w);
}

static void a_cache_made_of_pieces(void)
{
    struct scene_daemon d;
    uint32_t n = 200;

    scene_daemon_start(&d, NULL);
    scene_run(play_put, &d, &n);
    scene_run(play_mapped, &d, NULL);
    scene_daemon_stop(&d);
}

static void play_pinned(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(
        &w, d, &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 200, .pinned = true});
    worker_put(&w, 3000, 200);
    worker_verify(&w, 3000, 200);
    worker_verify(&w, 1000, 200);
    worker_close(&w);
}

static void play_verify_pinned(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 200);
    worker_verify(&w, 3000, 200);
    worker_close(&w);
}

// Blocks go both ways between it and caches on a GPU.
static void a_cache_in_host_memory(void)
{
    struct scene_daemon d;
    uint32_t n = 200;

    scene_daemon_start(&d, NULL);
    scene_run(play_put, &d, &n);
    scene_run(play_pinned, &d, NULL);
    scene_run(play_verify_pinned, &d, NULL);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_elsewhere(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(
        &w, d, &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = BLOCKS, .ordinal = 1});
    CHECK(w.client->map.tiers[0].states[0] == MAP_MAPPED);
    worker_verify(&w, 1000, BLOCKS);
    CHECK(w.lease.gpu == BLOCKS);
    worker_put(&w, 4000, 100);
    worker_verify(&w, 4000, 100);
    worker_close(&w);
}

static void play_verify_from_elsewhere(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 100);
    worker_verify(&w, 4000, 100);
    worker_close(&w);
}

// The daemon's memory is on the first GPU.
static void a_worker_on_the_second_gpu(void)
{
    struct scene_daemon d;
    uint32_t n = BLOCKS;

    scene_daemon_start(&d, NULL);
    scene_run(play_put, &d, &n);
    scene_run(play_elsewhere, &d, NULL);
    scene_run(play_verify_from_elsewhere, &d, NULL);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_suspend(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    worker_fill(&w, 6000, 64);
    worker_hold(&w, 500000);
    (void)worker_save_enqueue(&w, 6000, 64);
    // On the driver without a GPU nothing is ever under way.
    if (dlsym(w.driver.library, "kvc_fake_hold") == NULL)
        CHECK(kvc_suspend(w.client, w.part, 10) == KVC_E_DEADLINE);
    KVC(&w, kvc_suspend(w.client, w.part, SCENE_MS));
    KVC(&w, kvc_resume(w.client, w.part));
    worker_close(&w);
}

static void suspending_waits_for_copies(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_suspend, &d, NULL);
    scene_daemon_stop(&d);
}

static void play_long(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    uint8_t valid[1500];
    uint32_t good = 0;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 1024);
    worker_put(&w, 1000, 1024);
    worker_poison(&w);
    // Without a place for its name, a load is over when the call is.
    CHECK(worker_lookup(&w, 1000, 1024) == 1024);
    memset(valid, 0, sizeof(valid));
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t blocks[1024];
        const kvc_load_args args = {.lease = w.lease.id,
                                    .part = w.part,
                                    .count = 1024,
                                    .blocks = blocks,
                                    .stream = i == 0 ? w.stream : NULL,
                                    .valid = valid};

        for (uint32_t b = 0; b < 1024; b++)
            blocks[b] = b;
        worker_poison(&w);
        KVC(&w, kvc_load(w.client, &args));
        CHECK(worker_wrong(&w, 1000, 1024) == 0);
    }
    for (uint32_t b = 0; b < 1024; b++)
        good += valid[b];
    CHECK(good == 1024);
    worker_close(&w);
}

static void loads_that_wait_and_the_null_stream(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_long, &d, NULL);
    scene_daemon_stop(&d);
}

// What the library can only see afterwards.

static void play_spoil(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    uint8_t valid[64];

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    worker_put(&w, 1000, 64);
    for (uint32_t i = 0; i < w.client->map.tiers[0].n_extents; i++) {
        const struct map_tier *tier = &w.client->map.tiers[0];

        if (tier->states[i] == MAP_MAPPED)
            CUDA(&w, set_async((uintptr_t)tier->base + i * tier->extent_bytes, 1,
                               tier->extent_bytes, w.stream));
    }
    worker_sync(&w);
    CHECK(worker_lookup(&w, 1000, 64) == 64);
    memset(valid, 1, sizeof(valid));
    CHECK(worker_load(&w, valid) == KVC_E_CHECKSUM);
    for (uint32_t i = 0; i < 64; i++)
        CHECK(valid[i] == 0);
    KVC(&w, kvc_release(w.client, w.lease.id));
    // They were reported: nobody finds them any more.
    for (uint32_t i = 0; worker_lookup(&w, 1000, 64) > 0; i++) {
        KVC(&w, kvc_release(w.client, w.lease.id));
        CHECK(i < 1000);
        usleep(1000);
    }
    worker_close(&w);
}

static void spoilt_bytes_are_a_miss(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_spoil, &d, NULL);
    CHECK(scene_stats(&d).checksum_failures == 64);
    scene_daemon_stop(&d);
}

static void play_write_as_reader(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    int error;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_READER, 64);
    worker_verify(&w, 1000, 64);
    error = w.driver.set_async((uintptr_t)w.client->map.tiers[0].base, 0xbb, 4096, w.stream);
    if (error == 0)
        error = w.driver.stream_synchronize(w.stream);
    // Whoever gets to here with success has written.
    _exit(error == 0 ? 1 : 42);
}

static void a_reader_cannot_write(void)
{
    struct scene_daemon d;
    uint32_t n = 64;
    int status;

    scene_daemon_start(&d, NULL);
    scene_run(play_put, &d, &n);
    status = scene_wait(scene_fork(play_write_as_reader, &d, NULL));
    if (WIFEXITED(status) && WEXITSTATUS(status) == SCENE_WAIVED)
        exit(SCENE_WAIVED);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 42);
    scene_run(play_verify, &d, &n);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_capture(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 4);
    worker_capture_is_refused(&w);
    worker_close(&w);
}

static void a_captured_stream_is_refused(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_capture, &d, NULL);
    scene_daemon_stop(&d);
}

static void play_host_memory(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    static uint8_t plain[65536];
    kvc_slice slice = {.base = plain, .stride = 4096, .bytes = 4096};
    const kvc_part_desc desc = {
        .block_tokens = 16, .slices = &slice, .n_slices = 1, .n_blocks = 16};
    kvc_part part;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 4);
    CHECK(kvc_register(w.client, &desc, &part) == KVC_E_INVALID);
    CHECK(strstr(kvc_error(w.client), "slices[0].base") != NULL);
    worker_put(&w, 1, 4);
    worker_verify(&w, 1, 4);
    worker_close(&w);
}

static void memory_that_no_kernel_reaches_is_refused(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_host_memory, &d, NULL);
    scene_daemon_stop(&d);
}

// Tiers.

static void play_tiers(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 40);
    CHECK(worker_put_sets(&w, 10000, 8) > 0);
    // Two hits on the host tier bring blocks back to the GPU.
    for (uint32_t i = 0; i < 6; i++) {
        worker_verify(&w, 10000, 40);
        usleep(100000);
    }
    worker_verify(&w, 10000, 40);
    worker_close(&w);
}

static void demoted_and_promoted(void)
{
    struct scene_daemon d;
    struct admin_stats stats;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "32M", "--host-bytes", "128M", NULL});
    scene_run(play_tiers, &d, NULL);
    stats = scene_stats(&d);
    CHECK(stats.demotions > 0 && stats.promotions > 0 && stats.failed_demotions == 0);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void straight_to_the_host_tier(void)
{
    struct scene_daemon d;
    uint32_t n = 256;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "0", "--host-bytes", "128M", NULL});
    scene_run(play_put, &d, &n);
    scene_run(play_verify, &d, &n);
    scene_run(play_read, &d, &n);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// Starting.

static void no_gpu_in_sight(void)
{
    struct scene_daemon d;
    char output[2048];

    if (getenv("LD_LIBRARY_PATH") != NULL && strstr(getenv("LD_LIBRARY_PATH"), "fake") != NULL)
        scene_waive("the driver without a GPU cannot hide one");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK(scene_daemon_run(NULL, output, sizeof(output)) == 1);
    CHECK(strstr(output, "cannot start: device cuda: ") != NULL);
    scene_daemon_start(&d, (const char *[]){"--device", "auto", NULL});
    CHECK(strcmp(scene_stats(&d).device, "host") == 0);
    scene_daemon_stop(&d);
}

static uint64_t total_memory(void)
{
    unsigned long long mib = 0;
    FILE *out;

    out =
        popen("nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null", "r");
    if (out != NULL) {
        if (fscanf(out, "%llu", &mib) != 1)
            mib = 0;
        pclose(out);
    }
    return mib;
}

static void more_memory_than_there_is(void)
{
    char output[4096];

    if (total_memory() == 0)
        scene_waive("no GPU whose memory has an end");
    CHECK(scene_daemon_run((const char *[]){"--gpu-bytes", "4T", NULL}, output, sizeof(output)) ==
          1);
    CHECK(strstr(output, "the GPU is out of memory") != NULL);
    CHECK(strstr(output, "cannot start: memory of the gpu tier") != NULL);
}

static const struct scene_test tests[] = {
    {"saved by one, loaded by another", saved_by_one_loaded_by_another, 0},
    {"a cache made of pieces", a_cache_made_of_pieces, 0},
    {"S40 a cache in host memory", a_cache_in_host_memory, 0},
    {"a worker on the second GPU", a_worker_on_the_second_gpu, 0},
    {"suspending waits for copies", suspending_waits_for_copies, 0},
    {"loads that wait, and the null stream", loads_that_wait_and_the_null_stream, 0},
    {"spoilt bytes are a miss", spoilt_bytes_are_a_miss, 0},
    {"a reader cannot write", a_reader_cannot_write, 0},
    {"a captured stream is refused", a_captured_stream_is_refused, 0},
    {"memory that no kernel reaches is refused", memory_that_no_kernel_reaches_is_refused, 0},
    {"demoted and promoted", demoted_and_promoted, 0},
    {"straight to the host tier", straight_to_the_host_tier, 0},
    {"no GPU in sight", no_gpu_in_sight, 0},
    {"more memory than there is", more_memory_than_there_is, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
