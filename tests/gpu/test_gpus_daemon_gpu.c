// A daemon with several GPUs, and workers that number them otherwise.
//
//   test_gpus_daemon_gpu [word]    only the tests whose name has the word
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS 100u

struct play {
    int ordinal; // in the worker's own order
    const char *visible;
    bool by_daemon, mapped, puts;
    uint32_t first_key;
};

static void play(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct worker w;

    if (p->visible != NULL)
        setenv("CUDA_VISIBLE_DEVICES", p->visible, 1);
    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .ordinal = p->ordinal,
                                              .mapped = p->mapped,
                                              .by_daemon = p->by_daemon});
    if (p->puts)
        worker_put(&w, p->first_key, BLOCKS);
    worker_verify(&w, p->first_key, BLOCKS);
    worker_close(&w);
}

// Whoever saves, from whichever GPU, everybody loads: by the worker's kernels and the daemon's.
static void load_everywhere(const struct scene_daemon *d, uint32_t first_key)
{
    for (int i = 0; i < 4; i++) {
        struct play p = {.ordinal = i % 2, .by_daemon = i / 2 == 1, .first_key = first_key};

        scene_run(play, d, &p);
    }
}

static void need_two(void)
{
    setenv("KVC_FAKE_CUDA_GPUS", "2", 1); // the driver without a GPU
}

static void all_of_them(void)
{
    struct scene_daemon d;

    need_two();
    // More than one of them has extents of what is saved.
    scene_daemon_start(&d, (const char *[]){"--gpus", "all", "--gpu-bytes", "64M", NULL});
    for (int i = 0; i < 4; i++) {
        struct play p = {.ordinal = i % 2,
                         .by_daemon = i / 2 == 1,
                         .mapped = i == 2,
                         .puts = true,
                         .first_key = 1000 * (uint32_t)(i + 1)};

        scene_run(play, &d, &p);
        load_everywhere(&d, p.first_key);
    }
    CHECK(scene_stats(&d).tiers[0].bytes >= 128u << 20);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_placed(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    uint32_t here, there;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .ordinal = p->ordinal,
                                              .by_daemon = p->by_daemon});
    worker_put(&w, p->first_key, BLOCKS);
    worker_verify(&w, p->first_key, BLOCKS);
    // Who lends its memory has none of the tier's in its process.
    if (!p->by_daemon) {
        here = worker_in_tier(&w, p->first_key, BLOCKS, p->ordinal);
        there = worker_in_tier(&w, p->first_key, BLOCKS, 1 - p->ordinal);
        printf("  saved on GPU %d: %u blocks there, %u on the other\n", p->ordinal, here, there);
        fflush(stdout);
        CHECK(here == BLOCKS && there == 0);
    }
    worker_close(&w);
}

struct seen_from {
    int ordinal, on; // who looks, and where the blocks are to be
    uint32_t first_key;
};

static void play_look(const struct scene_daemon *d, void *arg)
{
    const struct seen_from *s = arg;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){
                         .role = KVC_ROLE_WORKER, .n_blocks = BLOCKS, .ordinal = s->ordinal});
    CHECK(worker_in_tier(&w, s->first_key, BLOCKS, s->on) == BLOCKS);
    worker_verify(&w, s->first_key, BLOCKS);
    CHECK(w.lease.gpu == BLOCKS);
    worker_close(&w);
}

// A block lies on its saver's GPU, whoever copies, and a worker on the other one loads it from
// there.
static void on_the_savers_gpu(void)
{
    struct scene_daemon d;

    need_two();
    scene_daemon_start(&d, (const char *[]){"--gpus", "all", "--gpu-bytes", "128M", NULL});
    for (int i = 0; i < 4; i++) {
        struct play p = {
            .ordinal = i % 2, .by_daemon = i / 2 == 1, .first_key = 1000 * (uint32_t)(i + 1)};

        scene_run(play_placed, &d, &p);
        for (int j = 0; j < 2; j++)
            scene_run(play_look, &d, &(struct seen_from){j, p.ordinal, p.first_key});
    }
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// The worker's first GPU is the daemon's second.
static void numbered_otherwise(void)
{
    struct scene_daemon d;

    need_two();
    scene_daemon_start(&d, (const char *[]){"--gpus", "all", "--gpu-bytes", "64M", NULL});
    for (int i = 0; i < 4; i++) {
        struct play p = {.ordinal = i % 2,
                         .visible = "1,0",
                         .by_daemon = i / 2 == 1,
                         .mapped = i % 2 == 1,
                         .puts = true,
                         .first_key = 1000 * (uint32_t)(i + 1)};

        scene_run(play, &d, &p);
        load_everywhere(&d, p.first_key);
    }
    scene_settled(&d);
    scene_daemon_stop(&d);
}

struct uuid {
    int pipe[2];
    int ordinal;
};

static void play_uuid(const struct scene_daemon *d, void *arg)
{
    const struct uuid *u = arg;
    struct cuda_driver driver;
    char why[CUDA_WHY_MAX];
    uint8_t uuid[16];
    int count = 0;

    (void)d;
    if (cuda_driver_open(&driver, why) != KVC_OK)
        scene_waive(why);
    CHECK(driver.device_count(&count) == 0);
    if (u->ordinal >= count)
        scene_waive("not so many GPUs");
    CHECK(driver.device_uuid(uuid, u->ordinal) == 0);
    CHECK(write(u->pipe[1], uuid, 16) == 16);
}

static void name_gpu(int ordinal, char name[48])
{
    struct uuid u = {.ordinal = ordinal};
    uint8_t b[16];

    CHECK(pipe(u.pipe) == 0);
    scene_run(play_uuid, &(struct scene_daemon){0}, &u);
    CHECK(read(u.pipe[0], b, 16) == 16);
    close(u.pipe[0]);
    close(u.pipe[1]);
    snprintf(name, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static void play_refused(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .by_daemon = true,
                                              .may_be_refused = true});
    CHECK(w.registered == KVC_E_NO_DEVICE && strstr(kvc_error(w.client), "--gpus") != NULL);
    kvc_close(w.client);
}

static void one_by_its_uuid(void)
{
    struct scene_daemon d;
    struct play second = {.ordinal = 1, .by_daemon = true, .puts = true, .first_key = 1000};
    struct play first = {.ordinal = 0, .first_key = 1000};
    char name[48];

    need_two();
    name_gpu(1, name);
    scene_daemon_start(&d, (const char *[]){"--gpus", name, NULL});
    scene_run(play, &d, &second);
    scene_run(play, &d, &first);
    scene_run(play_refused, &d, NULL);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void refused(const char *gpus, const char *sentence)
{
    char output[4096];

    CHECK(scene_daemon_run((const char *[]){"--gpus", gpus, NULL}, output, sizeof(output)) == 1);
    if (strstr(output, "no CUDA driver") != NULL || strstr(output, "finds no GPU") != NULL)
        scene_waive("no CUDA driver, or no GPU");
    CHECK(strstr(output, "cannot start: device cuda: ") != NULL);
    CHECK(strstr(output, sentence) != NULL);
}

static void what_is_not_there(void)
{
    char twice[97], name[48];

    name_gpu(0, name);
    snprintf(twice, sizeof(twice), "%s,%s", name, name);
    refused("GPU-00000000-0000-0000-0000-000000000000", "the driver shows no GPU GPU-0000");
    refused("0", "is no UUID of a GPU");
    refused(twice, "is named twice");
}

static const struct scene_test tests[] = {
    {"all of them", all_of_them, 0},
    {"on the saver's GPU", on_the_savers_gpu, 0},
    {"F37 numbered otherwise", numbered_otherwise, 0},
    {"one by its UUID", one_by_its_uuid, 0},
    {"what is not there", what_is_not_there, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
