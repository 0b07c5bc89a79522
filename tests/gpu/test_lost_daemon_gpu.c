// A GPU that fails for good under the daemon, found out in each kind of call: what is on it is a
// miss, nobody gets a wrong byte or a success that is none, the host tier goes on. Single calls
// fail on demand only on the driver without a GPU (tests/gpu/fake); a kernel breaks a context on
// both.
//
//   test_lost_daemon_gpu [word]    only the tests whose name has the word
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

#define BLOCKS 64u
#define HELD   1000u // the first key of what is there before

#define ILLEGAL_ADDRESS 700
#define ECC             214
#define UNKNOWN         999

static const char *const small[] = {"--gpu-bytes", "32M", "--host-bytes", "64M", NULL};

static void play_put(const struct scene_daemon *d, void *arg)
{
    const uint32_t *first = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_put_patiently(&w, *first, BLOCKS);
    worker_verify(&w, *first, BLOCKS);
    worker_close(&w);
}

static void put(const struct scene_daemon *d, uint32_t first)
{
    scene_run(play_put, d, &first);
}

static bool is_lost(const struct scene_daemon *d)
{
    return scene_stats(d).lost_gpus > 0;
}

static void wait_until_lost(const struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

    while (!is_lost(d)) {
        CHECK(scene_now_us() < until_us);
        usleep(5000);
    }
}

// Until the call is made: workers that the daemon copies for, and demotions.
static void work_until_lost(const struct scene_daemon *d, const char *call)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

    for (uint32_t first = 100 * BLOCKS; !is_lost(d); first += BLOCKS) {
        if (scene_now_us() > until_us) {
            fprintf(stderr, "%s: not lost\n", call);
            exit(1);
        }
        scene_run(scene_play_try, d, &first);
        usleep(20000);
    }
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

// What is left of a daemon whose only GPU is gone.
static void check_that_it_goes_on(struct scene_daemon *d)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    uint32_t first = 200 * BLOCKS;

    put(d, first);
    put(d, first + BLOCKS);
    first += 3 * BLOCKS;
    scene_run(scene_play_try, d, &first);
    scene_settled(d);
    while (scene_stats(d).lost_extents == 0 || scene_stats(d).tiers[0].used_slots > 0) {
        CHECK(scene_now_us() < until_us);
        usleep(10000);
    }
    CHECK(count(d, "a GPU has failed") == 1);
    scene_daemon_stop(d);
}

// Every kind of call that the daemon makes while it serves, and some of them not for the first
// time.
static void in_each_call(void)
{
    static const struct {
        const char *call;
        int skip, error;
    } calls[] = {
        {"context_push", 3, ILLEGAL_ADDRESS},
        {"copy_async", 0, ILLEGAL_ADDRESS},
        {"copy_async", 5, ECC},
        {"stream_synchronize", 2, ILLEGAL_ADDRESS},
        {"launch", 0, ILLEGAL_ADDRESS},
        {"launch", 3, UNKNOWN},
        {"stream_call", 0, ILLEGAL_ADDRESS},
        {"event_record", 0, ILLEGAL_ADDRESS},
        {"event_query", 0, ILLEGAL_ADDRESS},
        {"ipc_open", 0, ILLEGAL_ADDRESS},
        {"memory_range", 0, ECC},
        {"vmm_import", 0, ILLEGAL_ADDRESS},
        {"vmm_import", 3, UNKNOWN},
        {"vmm_reserve", 0, ILLEGAL_ADDRESS},
        {"vmm_map", 2, ILLEGAL_ADDRESS},
        {"vmm_access", 0, ILLEGAL_ADDRESS},
        {"memory_alloc", 0, ILLEGAL_ADDRESS},
        {"to_device_async", 0, ILLEGAL_ADDRESS},
        {"stream_create", 0, ILLEGAL_ADDRESS},
        {"stream_destroy", 0, ILLEGAL_ADDRESS},
        {"ipc_close", 0, ILLEGAL_ADDRESS},
        {"vmm_unmap", 0, ILLEGAL_ADDRESS},
        {"vmm_release", 0, ECC},
        {"memory_free", 0, ILLEGAL_ADDRESS},
    };
    const size_t step = getenv("KVC_TEST_LONG") != NULL ? 1 : 4;

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i += step) {
        struct scene_daemon d;

        switch_check();
        scene_daemon_start(&d, small);
        scene_populated(&d);
        put(&d, HELD);
        put(&d, HELD + BLOCKS);
        // The driver is asked about a copy only when its end was not told.
        if (strcmp(calls[i].call, "event_query") == 0)
            switch_on("lose-calls");
        switch_break(&d, calls[i].call, calls[i].skip, calls[i].error, true);
        work_until_lost(&d, calls[i].call);
        switch_off("lose-calls");
        CHECK(!switch_is_set(calls[i].call));
        check_that_it_goes_on(&d);
    }
}

// Its blocks are leased while the GPU is lost; the byte says that they are.
static void play_leased(const struct scene_daemon *d, void *arg)
{
    const uint32_t first = 9000;
    const int *told = arg;
    uint32_t blocks[BLOCKS];
    kvc_load_args load = {.count = BLOCKS, .blocks = blocks};
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_put(&w, first, BLOCKS);
    CHECK(worker_lookup(&w, first, BLOCKS) == BLOCKS);
    load.lease = w.lease.id;
    load.part = w.part;
    load.stream = w.stream;
    CHECK(write(told[1], "x", 1) == 1);
    wait_until_lost(d);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    CHECK(kvc_load(w.client, &load) == KVC_E_DEVICE);
    KVC(&w, kvc_release(w.client, w.lease.id));
    CHECK(worker_lookup(&w, first, BLOCKS) == 0);
    worker_put_patiently(&w, first, BLOCKS);
    worker_verify(&w, first, BLOCKS);
    worker_close(&w);
}

static void leased_blocks(void)
{
    struct scene_daemon d;
    uint32_t first = 64 * BLOCKS;
    int told[2];
    pid_t pid;
    char byte;

    switch_daemon_with_trap(&d, small);
    scene_populated(&d);
    CHECK(pipe(told) == 0);
    pid = scene_fork(play_leased, &d, told);
    close(told[1]);
    CHECK(read(told[0], &byte, 1) == 1);
    close(told[0]);
    switch_trap(&d, 0);
    scene_run(scene_play_try, &d, &first);
    CHECK(scene_wait(pid) == 0);
    check_that_it_goes_on(&d);
}

// Whatever is still found of the sets can be loaded, and is right; how many blocks that were.
struct sets {
    uint32_t first, n, found;
    int told[2];
};

static void play_what_is_left(const struct scene_daemon *d, void *arg)
{
    struct sets *sets = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    for (uint32_t i = 0; i < sets->n; i++) {
        const uint32_t first = sets->first + i * BLOCKS, n = worker_lookup(&w, first, BLOCKS);

        if (n == 0)
            continue;
        worker_poison(&w);
        CHECK(w.lease.gpu == 0 && worker_load(&w, NULL) == KVC_OK);
        CHECK(worker_wrong(&w, first, n) == 0);
        KVC(&w, kvc_release(w.client, w.lease.id));
        sets->found += n;
    }
    worker_close(&w);
    CHECK(write(sets->told[1], &sets->found, sizeof(sets->found)) == sizeof(sets->found));
}

// A kernel of the daemon's own writes where nothing is: every call in that context fails from then
// on. What is in the host tier is found and right, and the rest is a miss.
static void by_a_kernel(void)
{
    struct sets sets = {.first = HELD, .n = 6};
    struct scene_daemon d;

    switch_daemon_with_trap(&d, small);
    scene_populated(&d);
    for (uint32_t i = 0; i < sets.n; i++)
        put(&d, sets.first + i * BLOCKS);
    CHECK(scene_stats(&d).demotions > 0);
    switch_trap(&d, 0);
    work_until_lost(&d, "a kernel");
    CHECK(pipe(sets.told) == 0);
    scene_run(play_what_is_left, &d, &sets);
    CHECK(read(sets.told[0], &sets.found, sizeof(sets.found)) == sizeof(sets.found));
    printf("  of %u blocks %u are left in the host tier\n", sets.n * BLOCKS, sets.found);
    CHECK(sets.found > 0);
    check_that_it_goes_on(&d);
}

// An error that says much, and a context that works: it was about the call.
static void an_error_that_does_not_stay(void)
{
    static const char *const calls[] = {"launch", "ipc_open", "copy_async", "vmm_import",
                                        "stream_synchronize"};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct scene_daemon d;

        switch_check();
        scene_daemon_start(&d, small);
        scene_populated(&d);
        put(&d, HELD);
        put(&d, HELD + BLOCKS);
        switch_break(&d, calls[i], 0, UNKNOWN, false);
        for (uint32_t first = 100 * BLOCKS; switch_is_set(calls[i]); first += BLOCKS)
            scene_run(scene_play_try, &d, &first);
        CHECK(!is_lost(&d));
        put(&d, 5000);
        scene_settled(&d);
        scene_daemon_stop(&d);
    }
}

struct second {
    int ordinal;
    bool by_daemon;
    uint32_t first;
};

static void play_second(const struct scene_daemon *d, void *arg)
{
    const struct second *s = arg;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .ordinal = s->ordinal,
                                              .by_daemon = s->by_daemon});
    worker_put_patiently(&w, s->first, BLOCKS);
    worker_verify(&w, s->first, BLOCKS);
    worker_close(&w);
}

// How many of the blocks from a key on are there.
struct whether {
    uint32_t first, n;
};

static void play_whether(const struct scene_daemon *d, void *arg)
{
    const struct whether *whether = arg;
    struct worker w;

    worker_open_with(
        &w, d, &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = BLOCKS, .ordinal = 1});
    CHECK(worker_lookup(&w, whether->first, BLOCKS) == whether->n);
    if (whether->n > 0) {
        CHECK(worker_load(&w, NULL) == KVC_OK);
        CHECK(worker_wrong(&w, whether->first, whether->n) == 0);
        KVC(&w, kvc_release(w.client, w.lease.id));
    }
    worker_close(&w);
}

// Has the daemon make calls on the second GPU, by registering memory there.
static void play_touch(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .ordinal = 1,
                                              .by_daemon = true,
                                              .may_be_refused = true});
    kvc_close(w.client);
}

// It goes on, in both ways to copy, and so do demotions from it. What was saved from there was
// there.
static void check_the_other(struct scene_daemon *d, uint32_t saved_there)
{
    scene_run(play_whether, d, &(struct whether){saved_there, BLOCKS});
    for (uint32_t i = 0; i < 6; i++) {
        struct second s = {.ordinal = 1, .by_daemon = i % 2, .first = 5000 + i * BLOCKS};

        scene_run(play_second, d, &s);
    }
    CHECK(scene_stats(d).tiers[0].used_slots > 0 && scene_stats(d).lost_gpus == 1);
    CHECK(scene_stats(d).demotions > 0 && scene_stats(d).failed_demotions == 0);
    CHECK(count(d, "a GPU has failed") == 1);
}

// The host tier goes on.
static void check_neither(struct scene_daemon *d, uint32_t saved_there)
{
    struct second s = {.ordinal = 1, .first = 5000};

    scene_run(play_whether, d, &(struct whether){saved_there, 0});
    scene_run(play_second, d, &s);
    put(d, 6000);
    CHECK(scene_stats(d).tiers[1].used_slots >= 2 * BLOCKS);
    CHECK(count(d, "a GPU has failed") == 2);
}

static void start_two(struct scene_daemon *d, uint32_t saved_there)
{
    struct second there = {.ordinal = 1, .first = saved_there};

    setenv("KVC_FAKE_CUDA_GPUS", "2", 1);
    switch_daemon_with_trap(d, (const char *[]){"--gpus", "all", "--gpu-bytes", "32M", NULL});
    scene_populated(d);
    put(d, HELD);
    scene_run(play_second, d, &there);
}

static void one_of_two(void)
{
    struct scene_daemon d;

    switch_check();
    start_two(&d, 3000);
    switch_break(&d, "launch", 0, ECC, true);
    work_until_lost(&d, "launch");
    scene_run(play_touch, &d, NULL);
    scene_run(play_whether, &d, &(struct whether){HELD, 0});
    check_the_other(&d, 3000);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// After an illegal address the driver fails all contexts of the process.
static void both_by_a_kernel(void)
{
    struct scene_daemon d;

    start_two(&d, 3000);
    switch_trap(&d, 0);
    work_until_lost(&d, "a kernel");
    scene_run(play_touch, &d, NULL);
    scene_run(play_whether, &d, &(struct whether){HELD, 0});
    if (scene_stats(&d).lost_gpus == 1)
        check_the_other(&d, 3000);
    else
        check_neither(&d, 3000);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"F20 F23 a GPU that is lost, in each call", in_each_call, 240},
    {"F20 a GPU that is lost, by a kernel", by_a_kernel, 0},
    {"a GPU that is lost, and leased blocks", leased_blocks, 0},
    {"an error that does not stay", an_error_that_does_not_stay, 0},
    {"a GPU that is lost, one of two", one_of_two, 0},
    {"GPUs that are lost, both by a kernel", both_by_a_kernel, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
