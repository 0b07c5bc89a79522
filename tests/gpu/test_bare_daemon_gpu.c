// A worker whose library was built without nvcc, beside a daemon that has kernels: this program is
// linked with none.
#include <string.h>

#include "tests/gpu/scene.h"

#define N 40u

static void play_lending(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    worker_open_with(
        &w, d, &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = N, .by_daemon = true});
    CHECK(!pack_cuda_built());
    worker_put(&w, 1, N);
    worker_verify(&w, 1, N);
    worker_close(&w);
    (void)arg;
}

static void the_daemon_copies(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "128M", "--host-bytes", "0", NULL});
    scene_run(play_lending, &d, NULL);
    scene_daemon_stop(&d);
}

static void play_copying(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    worker_open_with(
        &w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = N, .may_be_refused = true});
    CHECK(w.registered == KVC_E_UNSUPPORTED);
    CHECK(strstr(kvc_error(w.client), "KVC_COPY_DAEMON") != NULL);
    worker_close(&w);
    (void)arg;
}

static void who_copies_is_refused(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "128M", "--host-bytes", "0", NULL});
    scene_run(play_copying, &d, NULL);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"the daemon copies for a library without kernels", the_daemon_copies, 0},
    {"who would copy without kernels is refused", who_copies_is_refused, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
