// Workers that are killed: what they were saving is nobody's, and their kernels, which may go on,
// harm nobody.
//
//   test_dead_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"
#include "tests/gpu/switch.h"

#define BLOCKS 512u

// What fits into the usual tier beside the blocks of a dead worker, and little less.
#define REST_SETS 3u
#define REST      400u

// An actor tells that it is where it is to be killed with a byte.

struct actor {
    int told[2];
    int fork_child; // one that lives on
    uint64_t hold_ms;
};

static void play_die_saving(const struct scene_daemon *d, void *arg)
{
    struct actor *a = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    if (a->fork_child) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0)
            for (;;)
                pause();
        CHECK(write(a->told[1], &child, sizeof(child)) == sizeof(child));
    }
    worker_fill(&w, 5000, 64);
    usleep(500000); // until the driver's list was looked at
    worker_hold(&w, a->hold_ms * 1000);
    (void)worker_save_enqueue(&w, 5000, 64);
    CHECK(write(a->told[1], "x", 1) == 1);
    for (;;)
        pause();
}

static pid_t start_dying(const struct scene_daemon *d, struct actor *a, pid_t *child)
{
    char byte;
    ssize_t n;
    pid_t pid;
    int status;

    CHECK(pipe(a->told) == 0);
    pid = scene_fork(play_die_saving, d, a);
    close(a->told[1]);
    if (a->fork_child && read(a->told[0], child, sizeof(*child)) != sizeof(*child))
        *child = 0;
    n = read(a->told[0], &byte, 1);
    close(a->told[0]);
    if (n != 1) {
        status = scene_wait(pid);
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    return pid;
}

static void play_nothing_of_the_dead(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    CHECK(worker_lookup(&w, 5000, 64) == 0);
    worker_put(&w, 5000, 64);
    worker_verify(&w, 5000, 64);
    worker_close(&w);
}

static void killed_while_saving(void)
{
    struct actor a = {.hold_ms = 20000};
    struct scene_daemon d;
    pid_t pid;

    scene_daemon_start(&d, NULL);
    pid = start_dying(&d, &a, NULL);
    CHECK(scene_stats(&d).filling_slots == 64);
    CHECK(kill(pid, SIGKILL) == 0);
    scene_wait(pid);
    scene_settled(&d);
    scene_run(play_nothing_of_the_dead, &d, NULL);
    scene_daemon_stop(&d);
}

// The driver has another list of processes then, and the daemon says so.
static void killed_under_mps(void)
{
    char text[1 << 14];
    struct scene_daemon d;

    switch_check();
    switch_on("mps");
    scene_daemon_start(&d, NULL);
    scene_log(&d, text, sizeof(text));
    CHECK(strstr(text, "under MPS: ") != NULL);
    scene_daemon_stop(&d);
    killed_while_saving();
    switch_off("mps");
}

static void play_fill_the_rest(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    for (uint32_t i = 0; i < REST_SETS; i++)
        worker_put(&w, 20000 + i * REST, REST);
    worker_verify(&w, 20000, REST);
    worker_close(&w);
}

static void play_verify_the_rest(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    for (uint32_t i = 0; i < REST_SETS; i++)
        worker_verify(&w, 20000 + i * REST, REST);
    worker_close(&w);
}

// Its kernels go on while the child lives, so its slots are given to nobody.
static void killed_while_a_child_lives(void)
{
    struct actor a = {.fork_child = 1, .hold_ms = 20000};
    struct scene_daemon d;
    pid_t pid, child = 0;

    scene_daemon_start(&d, NULL);
    pid = start_dying(&d, &a, &child);
    CHECK(child > 0);
    CHECK(kill(pid, SIGKILL) == 0);
    scene_wait(pid);
    usleep(500000);
    CHECK(scene_stats(&d).quarantined_slots == 64);
    scene_run(play_fill_the_rest, &d, NULL);
    usleep(500000);
    CHECK(scene_stats(&d).quarantined_slots == 64);
    CHECK(kill(child, SIGKILL) == 0);
    scene_settled(&d);
    scene_run(play_verify_the_rest, &d, NULL);
    scene_run(play_nothing_of_the_dead, &d, NULL);
    scene_daemon_stop(&d);
}

// How many blocks of the dead lie in the tier by now.
struct late {
    int told[2];
    uint32_t count;
    bool is_fake;
};

static void play_count_the_late(const struct scene_daemon *d, void *arg)
{
    struct late *late = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, 4);
    late->count = worker_in_tier(&w, 5000, 64, -1);
    late->is_fake = dlsym(w.driver.library, "kvc_fake_hold") != NULL;
    CHECK(write(late->told[1], late, sizeof(*late)) == sizeof(*late));
    worker_close(&w);
}

static struct late count_the_late(const struct scene_daemon *d)
{
    struct late late = {0}, told;

    CHECK(pipe(late.told) == 0);
    scene_run(play_count_the_late, d, &late);
    CHECK(read(late.told[0], &told, sizeof(told)) == sizeof(told));
    close(late.told[0]);
    close(late.told[1]);
    return told;
}

// The kernel does write on after its process was reaped; what it writes is nobody's, until its
// words prove that it has ended.
static void a_late_kernel_harms_nobody(void)
{
    struct actor a = {.fork_child = 1, .hold_ms = 6000};
    struct scene_daemon d;
    pid_t pid, child = 0;
    uint64_t until_us;
    struct late late;

    scene_daemon_start(&d, NULL);
    pid = start_dying(&d, &a, &child);
    until_us = scene_now_us() + a.hold_ms * 1000u;
    CHECK(child > 0 && kill(pid, SIGKILL) == 0);
    scene_wait(pid);
    late = count_the_late(&d);
    scene_run(play_fill_the_rest, &d, NULL);
    CHECK(scene_now_us() > until_us - 500000 ||
          (late.count == 0 && scene_stats(&d).quarantined_slots == 64));
    while (scene_now_us() < until_us + 1000000)
        usleep(50000);
    late = count_the_late(&d);
    printf("  %u blocks were written after the worker's end\n", late.count);
    fflush(stdout);
    CHECK(late.is_fake || late.count == 64);
    scene_run(play_verify_the_rest, &d, NULL);
    CHECK(kill(child, SIGKILL) == 0);
    scene_settled(&d);
    scene_run(play_verify_the_rest, &d, NULL);
    scene_run(play_nothing_of_the_dead, &d, NULL);
    scene_daemon_stop(&d);
}

static void play_busy(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    worker_fill(&w, 7000, 64);
    for (uint32_t i = 0;; i++) {
        (void)worker_save_enqueue(&w, 7000 + i * 64, 64);
        if (worker_lookup(&w, 1000, 64) > 0) {
            (void)worker_load(&w, NULL);
            KVC(&w, kvc_release(w.client, w.lease.id));
        }
    }
}

static void play_witness(const struct scene_daemon *d, void *arg)
{
    const bool *puts = arg;
    struct worker w;

    worker_open(&w, d, KVC_ROLE_WORKER, 64);
    if (*puts)
        worker_put(&w, 1000, 64);
    worker_verify(&w, 1000, 64);
    worker_close(&w);
}

static void killed_twenty_times(void)
{
    struct scene_daemon d;
    struct scene_baseline before;
    bool puts = true;

    scene_daemon_start(&d, NULL);
    scene_populated(&d);
    scene_run(play_witness, &d, &puts);
    scene_settled(&d);
    before = scene_baseline(&d);
    for (uint32_t i = 0; i < 20; i++) {
        const uint64_t saves = scene_stats(&d).saves;
        pid_t pid = scene_fork(play_busy, &d, NULL);
        uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;

        while (scene_stats(&d).saves < saves + 2 && scene_now_us() < until_us)
            usleep(5000);
        usleep(150000 + i * 7000);
        CHECK(waitpid(pid, NULL, WNOHANG) == 0 && kill(pid, SIGKILL) == 0);
        scene_wait(pid);
        scene_settled(&d);
        scene_returns_to(&d, &before);
    }
    puts = false;
    scene_run(play_witness, &d, &puts);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"killed while saving", killed_while_saving, 0},
    {"killed under MPS", killed_under_mps, 0},
    {"killed while a child lives", killed_while_a_child_lives, 0},
    {"a late kernel harms nobody", a_late_kernel_harms_nobody, 0},
    {"killed twenty times", killed_twenty_times, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
