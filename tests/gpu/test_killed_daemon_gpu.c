// Workers that are killed, over and over: memory of the GPU, descriptors and mappings of the daemon
// come back each time, and no byte of anybody else's changes.
//
//   test_killed_daemon_gpu [word]    only the tests whose name has the word
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define CYCLES 100u
#define BLOCKS 64u

struct victim {
    int told[2];
    bool by_daemon, mapped;
    bool has_child; // that lives on
};

static void play_witness(const struct scene_daemon *d, void *arg)
{
    const bool *puts = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, 256);
    if (*puts) {
        worker_put(&w, 1000, 256);
        worker_pin(&w, 1000, 256);
    }
    worker_verify(&w, 1000, 256);
    worker_close(&w);
}

static void witness(const struct scene_daemon *d, bool puts)
{
    scene_run(play_witness, d, &puts);
}

// Saves on and on, and says when it has begun. A child of its closes what it has, and stays.
static void play_victim(const struct scene_daemon *d, void *arg)
{
    struct victim *v = arg;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .mapped = v->mapped,
                                              .by_daemon = v->by_daemon});
    if (v->has_child) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0)
            for (;;)
                pause();
        CHECK(write(v->told[1], &child, sizeof(child)) == sizeof(child));
    }
    worker_fill(&w, 7000, BLOCKS);
    for (uint32_t i = 0;; i++) {
        (void)worker_save_enqueue(&w, 7000 + i * BLOCKS, BLOCKS);
        if (i == 1)
            CHECK(write(v->told[1], "x", 1) == 1);
    }
}

static pid_t start(const struct scene_daemon *d, struct victim *v, pid_t *child)
{
    char byte = 0;
    ssize_t n;
    pid_t pid;

    CHECK(pipe(v->told) == 0);
    pid = scene_fork(play_victim, d, v);
    close(v->told[1]);
    if (v->has_child && read(v->told[0], child, sizeof(*child)) != sizeof(*child))
        *child = 0;
    n = read(v->told[0], &byte, 1);
    close(v->told[0]);
    if (n != 1) {
        int status = scene_wait(pid);

        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    return pid;
}

static void kill_one(const struct scene_daemon *d, bool by_daemon, bool has_child, uint32_t i)
{
    struct victim v = {.by_daemon = by_daemon, .mapped = i % 2 == 1, .has_child = has_child};
    pid_t child = 0, pid = start(d, &v, &child);

    // Who copies by itself must have been seen in the driver's list while it lived.
    usleep((by_daemon ? 0 : 200000) + i % 10 * 700);
    CHECK(waitpid(pid, NULL, WNOHANG) == 0 && kill(pid, SIGKILL) == 0);
    scene_wait(pid);
    if (child > 0)
        CHECK(kill(child, SIGKILL) == 0);
    scene_settled(d);
}

// The first ones bring threads and memory of the driver's that stay.
static void kill_over_and_over(bool by_daemon, bool has_child, uint32_t cycles)
{
    struct scene_daemon d;
    struct scene_baseline before;

    scene_daemon_start(&d, NULL);
    scene_populated(&d);
    witness(&d, true);
    for (uint32_t i = 0; i < 4; i++)
        kill_one(&d, by_daemon, has_child, i);
    before = scene_baseline(&d);
    for (uint32_t i = 0; i < cycles; i++) {
        kill_one(&d, by_daemon, has_child, i);
        scene_returns_to(&d, &before);
        if (i % 25 == 24)
            witness(&d, false);
    }
    printf("  descriptors %d after %d, mappings %d after %d, of files %d after %d\n", scene_fds(&d),
           before.fds, scene_mappings(&d), before.mappings, scene_files(&d), before.files);
    fflush(stdout);
    scene_daemon_stop(&d);
}

static void saving(void)
{
    kill_over_and_over(false, false, CYCLES);
}

static void while_the_daemon_copies(void)
{
    kill_over_and_over(true, false, CYCLES);
}

static void with_a_child(void)
{
    kill_over_and_over(false, true, CYCLES / 2);
}

static void while_the_daemon_copies_with_a_child(void)
{
    kill_over_and_over(true, true, CYCLES / 2);
}

static const struct scene_test tests[] = {
    {"F1 F5 a hundred times, saving", saving, 280},
    {"F1 F5 a hundred times, while the daemon copies", while_the_daemon_copies, 280},
    {"fifty times, with a child that lives on", with_a_child, 280},
    {"fifty times, with a child, while the daemon copies", while_the_daemon_copies_with_a_child,
     280},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
