// Errors of single calls of the CUDA driver, and drivers that are otherwise than this one: nothing
// that failed counts as done, and the daemon goes on. Only the driver without a GPU does that on
// demand (tests/gpu/fake); elsewhere all are waived.
//
//   test_errors_daemon_gpu [word]    only the tests whose name has the word
#include <string.h>

#include "client/client.h"
#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

static const char *const small[] = {"--gpu-bytes", "32M", "--host-bytes", "64M", NULL};

struct play {
    uint32_t first;
    bool by_daemon, mapped;
};

static void play_whole(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = SCENE_TRY,
                                              .mapped = p->mapped,
                                              .by_daemon = p->by_daemon});
    worker_put_patiently(&w, p->first, SCENE_TRY);
    worker_verify(&w, p->first, SCENE_TRY);
    worker_close(&w);
}

static void run(const struct scene_daemon *d, bool by_daemon, bool mapped, uint32_t first)
{
    struct play p = {first, by_daemon, mapped};

    scene_run(play_whole, d, &p);
}

static uint32_t count(const struct scene_daemon *d, const char *what)
{
    char text[1 << 16];
    uint32_t n = 0;

    scene_log(d, text, sizeof(text));
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

// F21: each call fails once, in each of the usual ways.
static void each_call_once(void)
{
    static const char *const calls[] = {
        "copy_async",   "stream_synchronize", "launch",          "stream_call", "event_record",
        "event_query",  "ipc_open",           "memory_range",    "vmm_import",  "vmm_reserve",
        "vmm_map",      "vmm_access",         "to_device_async", "vmm_unmap",   "memory_alloc",
        "memory_free",  "stream_create",      "ipc_close",       "vmm_release", "vmm_unreserve",
        "context_push",
    };
    static const int errors[] = {1 /* invalid value */, 2 /* out of memory */,
                                 801 /* not supported */};
    const size_t step = getenv("KVC_TEST_LONG") != NULL ? 1 : 3;
    struct scene_daemon d;
    uint32_t first = 100 * SCENE_TRY;

    switch_check();
    scene_daemon_start(&d, small);
    scene_populated(&d);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        for (size_t e = i % step; e < sizeof(errors) / sizeof(errors[0]); e += step) {
            // Some are made for one kind of memory, or only when an end was not told.
            if (strcmp(calls[i], "event_query") == 0)
                switch_on("lose-calls");
            switch_break(&d, calls[i], 0, errors[e], false);
            for (int try = 0; try < 4 && switch_is_set(calls[i]); try++, first += SCENE_TRY)
                scene_run(scene_play_try, &d, &first);
            switch_off("lose-calls");
            CHECK(!switch_is_set(calls[i]));
            CHECK(scene_stats(&d).lost_gpus == 0);
        }
    run(&d, true, false, 10);
    run(&d, true, true, 110);
    run(&d, false, false, 210);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// F23: host memory that cannot be registered is said, and used without: by copies of the daemon
// between tiers, and not by kernels, which are refused there.
static void registering_fails(void)
{
    struct scene_daemon d;

    switch_check();
    setenv("KVC_FAKE_CUDA_REGISTER_MAX", "262144", 1); // completion pages, and no extents
    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "0", "--host-bytes", "16M", NULL});
    unsetenv("KVC_FAKE_CUDA_REGISTER_MAX");
    scene_populated(&d);
    CHECK(count(&d, "not registered, copies are slower") == 8);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t first = 100 * (i + 1);

        scene_run(scene_play_try, &d, &first);
    }
    CHECK(scene_stats(&d).published_blocks == 0);
    run(&d, false, false, 5000); // a worker registers its own mapping
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// F34: nothing is registered that is larger than an extent, whatever the budget.
static void registered_in_pieces(void)
{
    struct scene_daemon d;

    switch_check();
    setenv("KVC_FAKE_CUDA_REGISTER_MAX", "2097152", 1); // an extent of 64 MiB, for both sides
    scene_daemon_start(&d, small);
    scene_populated(&d);
    CHECK(count(&d, "not registered") == 0);
    run(&d, false, false, 10);
    run(&d, true, true, 110);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// F35: where registered host memory has another address on the device, nobody pretends.
static void another_address_on_the_device(void)
{
    char output[4096];

    switch_check();
    setenv("KVC_FAKE_CUDA_SHIFTED", "1", 1);
    CHECK(scene_daemon_run(small, output, sizeof(output)) == 1);
    CHECK(strstr(output, "has no common addresses for registered host memory") != NULL);
}

// F31: each call is asked for under the version whose arguments these are, with every driver.
static void other_versions(void)
{
    static const char *const versions[] = {"12000", "12080", "13000", "13020"};
    char output[4096];

    switch_check();
    for (uint32_t i = 0; i < 4; i++) {
        struct scene_daemon d;

        setenv("KVC_FAKE_CUDA_DRIVER", versions[i], 1);
        scene_daemon_start(&d, small);
        run(&d, false, false, 10);
        run(&d, true, true, 110);
        scene_daemon_stop(&d);
    }
    setenv("KVC_FAKE_CUDA_DRIVER", "11080", 1);
    CHECK(scene_daemon_run(small, output, sizeof(output)) == 1);
    CHECK(strstr(output, "the CUDA driver is older than 12.0") != NULL);
}

// F31: an older driver loads no kernels that a newer nvcc has built.
static void kernels_of_a_newer_nvcc(void)
{
    static const int errors[] = {200 /* invalid image */, 209 /* no binary */,
                                 222 /* a newer PTX */};
    char output[4096];

    switch_check();
    for (uint32_t i = 0; i < 3; i++) {
        switch_break_in(0, "module_load", 0, errors[i], false);
        CHECK(scene_daemon_run(small, output, sizeof(output)) == 1);
        CHECK(strstr(output, "loads no kernels: ") != NULL);
        CHECK(strstr(output, "an nvcc no newer than itself") != NULL);
    }
}

static void play_several_launches(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 600);
    worker_put(&w, 1, 600);
    worker_verify(&w, 1, 600);
    worker_close(&w);
}

// F31: kernels that were compiled for an older GPU do not wait for the launch in front of them, and
// so do not begin before it has ended, whatever GPU they run on.
static void kernels_that_do_not_wait(void)
{
    struct scene_daemon d;

    switch_check();
    setenv("KVC_FAKE_CUDA_KERNELS", "80", 1);
    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "256M", "--host-bytes", "0", NULL});
    scene_run(play_several_launches, &d, NULL);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void check_that_it_is_divided(void)
{
    struct scene_daemon d;
    char output[2048];

    CHECK(scene_daemon_run(NULL, output, sizeof(output)) == 1);
    CHECK(strstr(output, "cannot start: device cuda: ") != NULL);
    CHECK(strstr(output, "is divided (MIG)") != NULL);
    // Who did not ask for a GPU has the host's memory.
    scene_daemon_start(&d, (const char *[]){"--device", "auto", NULL});
    CHECK(strcmp(scene_stats(&d).device, "host") == 0);
    scene_daemon_stop(&d);
}

// F37: one that names itself a part, and one that is whole by its name.
static void a_gpu_that_is_divided(void)
{
    switch_check();
    setenv("KVC_FAKE_CUDA_NAME", "NVIDIA H200 MIG 1g.18gb", 1);
    check_that_it_is_divided();
    unsetenv("KVC_FAKE_CUDA_NAME");
    switch_on("divided");
    check_that_it_is_divided();
    switch_off("divided");
}

// F18: a copy from host memory is made as late as its stream allows, and freed memory is spoilt.
static void copies_that_come_late(void)
{
    struct scene_daemon d;

    switch_check();
    setenv("KVC_FAKE_CUDA_LATE", "1", 1);
    setenv("MALLOC_PERTURB_", "165", 1);
    scene_daemon_start(&d, small);
    for (uint32_t i = 0; i < 4; i++)
        run(&d, i % 2 == 1, i / 2 == 1, 1000 * (i + 1));
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static bool was_noted(const struct scene_daemon *d, const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "%s-%d", name, (int)d->pid);
    return switch_is_on(path);
}

// F32: the daemon uses streams of its own, which nothing else waits for.
static void only_streams_of_its_own(void)
{
    struct scene_daemon d;

    switch_check();
    scene_daemon_start(&d, small);
    scene_populated(&d);
    for (uint32_t i = 0; i < 4; i++)
        run(&d, i % 2 == 1, i / 2 == 1, 1000 * (i + 1));
    scene_settled(&d);
    CHECK(scene_stats(&d).demotions > 0);
    CHECK(!was_noted(&d, "null-stream") && !was_noted(&d, "blocking-stream"));
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"F18 copies that come late", copies_that_come_late, 0},
    {"F21 each call fails once", each_call_once, 150},
    {"F23 registering fails", registering_fails, 0},
    {"F31 other versions of the driver", other_versions, 0},
    {"F31 kernels of a newer nvcc", kernels_of_a_newer_nvcc, 0},
    {"F31 kernels that do not wait", kernels_that_do_not_wait, 0},
    {"F37 a GPU that is divided", a_gpu_that_is_divided, 0},
    {"F32 only streams of its own", only_streams_of_its_own, 0},
    {"F34 registered in pieces", registered_in_pieces, 0},
    {"F35 another address on the device", another_address_on_the_device, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
