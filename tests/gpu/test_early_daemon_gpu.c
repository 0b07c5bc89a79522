// Saves and loads between kernels of an engine that use programmatic dependent launch: the one in
// front lets what follows begin, and writes late; the one behind may begin early, and waits. What
// is saved are the late bytes, and what is loaded is there for who waits. With copies by the worker
// and by the daemon, of the GPU tier and of the host's; of more blocks than a launch takes.
//
//   test_early_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>

#include "tests/gpu/early.h"
#include "tests/gpu/scene.h"

#define N       520u
#define ROUNDS  2u
#define LATE_NS 200000u

struct play {
    bool by_daemon;
    int ordinal; // of the worker's GPU; the daemon's memory is on the first
};

struct engine {
    struct worker w;
    void *kernel; // NULL on the driver without a GPU, where nothing is late
    uint64_t sink, out;
};

static void open_engine(struct engine *e, const struct scene_daemon *d, const struct play *p)
{
    struct worker *w = &e->w;
    void *module;

    worker_open_with(w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = N,
                                              .ordinal = p->ordinal,
                                              .by_daemon = p->by_daemon});
    CUDA(w, memory_alloc(&e->sink, EARLY_BLOCKS * EARLY_THREADS * sizeof(uint64_t)));
    CUDA(w, memory_alloc(&e->out, N * SCENE_BLOCK_BYTES));
    e->kernel = NULL;
    if (dlsym(w->driver.library, "kvc_fake_hold") != NULL)
        return;
    if (w->driver.module_load(&module, early_code) != 0)
        scene_waive("no GPU whose kernels run into each other");
    CUDA(w, module_function(&e->kernel, module, EARLY_KERNEL));
}

static void enqueue(struct engine *e, uint64_t to, uint64_t from, uint64_t ns)
{
    const uint64_t words = N * SCENE_BLOCK_BYTES / 8, near = 24576; // what a multiprocessor keeps
    struct early_args args = {to, from, words, ns > 0 ? near : 0, ns, e->sink};
    struct worker *w = &e->w;

    if (e->kernel == NULL)
        CUDA(w, copy_async(to, from, N * SCENE_BLOCK_BYTES, w->stream));
    else
        scene_check(w, early_launch(w->driver.launch_with, e->kernel, w->stream, &args),
                    EARLY_KERNEL, __FILE__, __LINE__);
}

static void save_late(struct engine *e, uint64_t fresh, uint32_t first)
{
    kvc_outcome outcome = {0};
    uint64_t save;

    enqueue(e, e->w.memory, fresh, LATE_NS);
    save = worker_save_enqueue(&e->w, first, N);
    KVC(&e->w, kvc_wait(e->w.client, save, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == N);
}

// Behind a kernel that still writes to the destinations when it has let the load begin.
static void load_between(struct engine *e, uint64_t poison, uint32_t first)
{
    struct worker *w = &e->w;
    uint32_t blocks[N];
    uint64_t load = 0, memory = w->memory;
    const kvc_load_args args = {
        .lease = w->lease.id,
        .part = w->part,
        .count = N,
        .blocks = blocks,
        .stream = w->stream,
        .load = &load,
    };

    for (uint32_t i = 0; i < N; i++)
        blocks[i] = i;
    enqueue(e, memory, poison, LATE_NS);
    KVC(w, kvc_load(w->client, &args));
    enqueue(e, e->out, memory, 0);
    KVC(w, kvc_load_result(w->client, load, SCENE_MS, NULL));
    w->memory = e->out;
    CHECK(worker_wrong(w, first, N) == 0);
    w->memory = memory;
}

static void play_between(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct engine e;
    struct worker *w = &e.w;
    uint64_t poison = 0;

    open_engine(&e, d, p);
    CUDA(w, memory_alloc(&poison, N * SCENE_BLOCK_BYTES));
    CUDA(w, set_async(poison, 0x5e, N * SCENE_BLOCK_BYTES, w->stream));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const uint32_t first = 1 + i * N;
        const uint64_t fresh = worker_fill_prepare(w, first, N);

        save_late(&e, fresh, first);
        CUDA(w, set_async(e.out, 0xee, N * SCENE_BLOCK_BYTES, w->stream));
        CHECK(worker_lookup(w, first, N) == N);
        load_between(&e, poison, first);
        KVC(w, kvc_release(w->client, w->lease.id));
        CUDA(w, memory_free(fresh));
    }
    CUDA(w, memory_free(poison));
    CUDA(w, memory_free(e.out));
    CUDA(w, memory_free(e.sink));
    worker_close(w);
}

static void run(const char *gpu_bytes, const char *host_bytes, struct play p)
{
    struct scene_daemon d;

    scene_daemon_start(
        &d, (const char *[]){"--gpu-bytes", gpu_bytes, "--host-bytes", host_bytes, NULL});
    scene_populated(&d);
    scene_run(play_between, &d, &p);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void gpu_tier(void)
{
    run("512M", "0", (struct play){.ordinal = 0});
}

static void host_tier(void)
{
    run("0", "512M", (struct play){.ordinal = 0});
}

static void gpu_tier_by_daemon(void)
{
    run("512M", "0", (struct play){.by_daemon = true});
}

static void host_tier_by_daemon(void)
{
    run("0", "512M", (struct play){.by_daemon = true});
}

static void tier_of_another_gpu(void)
{
    run("512M", "0", (struct play){.ordinal = 1});
}

static const struct scene_test tests[] = {
    {"early kernels, GPU tier", gpu_tier, 0},
    {"early kernels, host tier", host_tier, 0},
    {"early kernels, GPU tier of another GPU", tier_of_another_gpu, 0},
    {"early kernels, GPU tier, by the daemon", gpu_tier_by_daemon, 0},
    {"early kernels, host tier, by the daemon", host_tier_by_daemon, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
