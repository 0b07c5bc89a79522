// What lies in a GPU's memory is compared with its checksums, by copies to the host; what was
// spoilt there is found. Prints how fast it went.
//
//   test_verify_daemon_gpu [word]    only the tests whose name has the word
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS 200u

static void verify(const struct scene_daemon *d, struct admin_verify *v)
{
    const kvc_options options = {.socket = d->socket, .role = KVC_ROLE_OPERATOR};
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    kvc_client *client;

    CHECK(kvc_connect(&options, &client) == KVC_OK);
    CHECK(admin_verify(client, ADMIN_BEGIN, 0, v) == KVC_OK);
    while (v->running) {
        CHECK(scene_now_us() < until_us);
        usleep(500);
        CHECK(admin_verify(client, ADMIN_LOOK, 0, v) == KVC_OK);
    }
    kvc_close(client);
    printf("    %llu copies, %.1f MiB in %.1f ms, %llu bad, %llu not read\n",
           (unsigned long long)v->checked, (double)v->bytes / 1048576, (double)v->elapsed_us * 1e-3,
           (unsigned long long)v->bad, (unsigned long long)v->failed);
}

static void play_put(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_put(&w, 1000, BLOCKS);
    worker_close(&w);
}

/* Zeros over the start of every tenth slot of the GPU: what a wild kernel would do. */
static void play_spoil(const struct scene_daemon *d, void *arg)
{
    const uint64_t zeros = 0;
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    for (uint64_t slot = 0; slot < BLOCKS; slot += 10) {
        uint8_t *at = map_at(&w.client->map, 0, slot * SCENE_BLOCK_BYTES, sizeof(zeros));

        if (at)
            CUDA(&w, copy_async((uintptr_t)at, (uintptr_t)&zeros, sizeof(zeros), w.stream));
    }
    worker_sync(&w);
    worker_close(&w);
}

static void verified(const char *memory)
{
    struct scene_daemon d;
    struct admin_verify v;

    scene_daemon_start(&d, (const char *[]){"--gpu-memory", memory, "--gpu-bytes", "64M",
                                            "--host-bytes", "64M", NULL});
    scene_run(play_put, &d, NULL);
    verify(&d, &v);
    CHECK(v.checked >= BLOCKS && v.bad == 0 && v.failed == 0 && v.unchecked == 0);
    scene_run(play_spoil, &d, NULL);
    verify(&d, &v);
    CHECK(v.bad > 0 && v.bad <= BLOCKS / 10 && v.failed == 0);
    CHECK(scene_stats(&d).checksum_failures == v.bad);
    verify(&d, &v);
    CHECK(v.bad == 0);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void of_descriptors(void)
{
    verified("auto");
}

static void of_handles(void)
{
    verified("legacy");
}

static const struct scene_test tests[] = {
    {"verified: memory with descriptors", of_descriptors, 0},
    {"verified: memory with legacy handles", of_handles, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
