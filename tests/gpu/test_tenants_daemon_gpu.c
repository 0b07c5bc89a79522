// Memory of a GPU that goes from one user to another: the first gives it back when the daemon asks,
// and what the second saves there and in the host tier is read back, also after the first is used
// again. Needs root, to become somebody else.
#include <grp.h>
#include <libgen.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

#define SOMEBODY_ELSE 65534u
#define BLOCKS        64u
#define ROUNDS        6u // more than the tiers hold

// Eight extents of each tier.
static const char *const small[] = {"--gpu-bytes", "16M", "--host-bytes", "16M", "--socket-mode",
                                    "0666",        NULL};

static uint32_t *told; // 1: the second has what it wants

static void play_first(const struct scene_daemon *d, void *arg)
{
    const uint64_t until_us = scene_now_us() + 4u * SCENE_MS * 1000u;
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        worker_fill(&w, 1000 + i * BLOCKS, BLOCKS);
        (void)worker_save_enqueue(&w, 1000 + i * BLOCKS, BLOCKS);
        worker_sync(&w);
    }
    __atomic_store_n(&told[0], 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&told[1], __ATOMIC_ACQUIRE) == 0 && scene_now_us() < until_us) {
        KVC(&w, kvc_dispatch(w.client));
        usleep(1000);
    }
    CHECK(__atomic_load_n(&told[1], __ATOMIC_ACQUIRE) == 1);
    // It works on with what it has left.
    for (uint32_t i = 0; worker_lookup(&w, 5000, 8) < 8; i++) {
        KVC(&w, kvc_release(w.client, w.lease.id));
        CHECK(i < 1000);
        worker_fill(&w, 5000, 8);
        (void)worker_save_enqueue(&w, 5000, 8);
        worker_sync(&w);
        usleep(5000);
    }
    KVC(&w, kvc_release(w.client, w.lease.id));
    worker_verify(&w, 5000, 8);
    worker_close(&w);
}

static void play_second(const struct scene_daemon *d, void *arg)
{
    const uint64_t until_us = scene_now_us() + 3u * SCENE_MS * 1000u;
    struct worker w;
    uint32_t n;

    (void)arg;
    CHECK(setgroups(0, NULL) == 0);
    CHECK(setresgid(SOMEBODY_ELSE, SOMEBODY_ELSE, SOMEBODY_ELSE) == 0);
    CHECK(setresuid(SOMEBODY_ELSE, SOMEBODY_ELSE, SOMEBODY_ELSE) == 0);
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    CHECK(worker_lookup(&w, 1000, BLOCKS) == 0);
    do {
        CHECK(scene_now_us() < until_us);
        worker_fill(&w, 9000, 8);
        (void)worker_save_enqueue(&w, 9000, 8);
        worker_sync(&w);
        usleep(5000);
        n = worker_lookup(&w, 9000, 8);
        KVC(&w, kvc_release(w.client, w.lease.id));
    } while (n < 8);
    worker_verify(&w, 9000, 8);
    __atomic_store_n(&told[1], 1, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < 20; i++) {
        worker_fill(&w, 10000 + 8 * i, 8);
        (void)worker_save_enqueue(&w, 10000 + 8 * i, 8);
        worker_sync(&w);
        usleep(2000);
    }
    worker_close(&w);
}

// broken: a call of the driver that fails once meanwhile, and costs an extent; or NULL.
static void move_memory(const char *const args[], const char *broken)
{
    struct scene_daemon d;
    struct admin_stats stats;
    uint64_t free_memory;
    char folder[sizeof(d.socket)];
    pid_t first;

    if (geteuid() != 0)
        scene_waive("needs root, to become another user");
    umask(0);
    told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(told != MAP_FAILED);
    scene_daemon_start(&d, args);
    snprintf(folder, sizeof(folder), "%s", d.socket);
    CHECK(chmod(dirname(folder), 0711) == 0);
    scene_populated(&d);
    free_memory = scene_free_memory();
    first = scene_fork(play_first, &d, NULL);
    while (__atomic_load_n(&told[0], __ATOMIC_ACQUIRE) == 0) {
        if (waitpid(first, NULL, WNOHANG) != 0)
            exit(1);
        usleep(1000);
    }
    if (broken != NULL)
        switch_break(&d, broken, 0, CUDA_OUT_OF_MEMORY, false);
    scene_run(play_second, &d, NULL);
    CHECK(scene_wait(first) == 0);
    stats = scene_stats(&d);
    CHECK(stats.moved_extents >= 1);
    CHECK(stats.lost_extents == (broken != NULL) && stats.waiting_extents == 0);
    CHECK(broken == NULL || !switch_is_set(broken));
    printf("extents moved %llu, kept %llu\n", (unsigned long long)stats.moved_extents,
           (unsigned long long)stats.kept_extents);
    // The daemon has as much of the GPU as before.
    CHECK(scene_free_memory() + (64u << 20) >= free_memory);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void memory_moves_between_users(void)
{
    move_memory(small, NULL);
}

// F29: each call that gives an extent new memory.
static void memory_that_cannot_be_renewed(void)
{
    static const char *const calls[] = {"vmm_create", "vmm_export", "vmm_map", "vmm_access",
                                        "set_async"};

    switch_check();
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        move_memory(small, calls[i]);
}

// Peers' transports have it registered, and let go of it before. Nobody is at
// that address.
static void what_peers_may_read_moves(void)
{
    const char *ucx = getenv("KVC_UCX"), *args[16] = {"--peers", "127.0.0.1:9", "--ucx", ucx};

    if (ucx == NULL)
        scene_waive("KVC_UCX names no UCX with CUDA");
    for (int i = 0; small[i] != NULL; i++)
        args[4 + i] = small[i];
    setenv("UCX_TLS", "tcp,cuda_copy,cuda_ipc", 1);
    move_memory(args, NULL);
}

int main(int argc, char **argv)
{
    static const struct scene_test tests[] = {
        {"memory moves between users", memory_moves_between_users, 120},
        {"F29 memory that cannot be renewed", memory_that_cannot_be_renewed, 120},
        {"what peers may read moves between users", what_peers_may_read_moves, 120},
    };

    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
