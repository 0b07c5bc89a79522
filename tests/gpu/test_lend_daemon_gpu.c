// Copies by a daemon with a GPU: workers lend it their memory by legacy handles and as pieces with
// descriptors. Every byte that is loaded is compared.
//
//   test_lend_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS 300u

// As a play's argument.
struct play {
    bool mapped, by_daemon, puts;
    uint32_t first_key, n;
};

static void play(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct worker w;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = p->n,
                                              .mapped = p->mapped,
                                              .by_daemon = p->by_daemon});
    if (p->puts) {
        worker_put(&w, p->first_key, p->n);
        worker_pin(&w, p->first_key, p->n);
    }
    worker_verify(&w, p->first_key, p->n);
    worker_close(&w);
}

static void run(const struct scene_daemon *d, bool mapped, bool by_daemon, bool puts,
                uint32_t first_key)
{
    struct play p = {mapped, by_daemon, puts, first_key, BLOCKS};

    scene_run(play, d, &p);
}

// Legacy handles: all slices lie inside of one allocation, so their addresses are interior ones.
static void lent_by_a_handle(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    run(&d, false, true, true, 1000);
    run(&d, false, false, false, 1000);
    run(&d, false, false, true, 2000);
    run(&d, false, true, false, 2000);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// More pieces than one packet takes descriptors.
static void lent_in_pieces(void)
{
    struct scene_daemon d;
    struct play p = {true, true, true, 1000, 800};

    scene_daemon_start(&d, NULL);
    scene_run(play, &d, &p);
    p.puts = false;
    scene_run(play, &d, &p);
    p.mapped = false;
    scene_run(play, &d, &p);
    p.by_daemon = false;
    scene_run(play, &d, &p);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void straight_to_the_host_tier(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--gpu-bytes", "0", "--host-bytes", "128M", NULL});
    run(&d, false, true, true, 1000);
    run(&d, true, true, false, 1000);
    run(&d, false, false, false, 1000);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_twice(const struct scene_daemon *d, void *arg)
{
    struct worker w, v;

    (void)arg;
    worker_open_with(
        &w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 100, .by_daemon = true});
    v = w;
    worker_register_as(&v, 8);
    CHECK(v.part != w.part);
    worker_put(&v, 100, 100);
    worker_verify(&v, 100, 100);
    KVC(&v, kvc_unregister(v.client, v.part));
    worker_put(&w, 300, 100);
    worker_verify(&w, 300, 100);
    worker_close(&w);
}

// The second open of an allocation counts: the first region outlives the end of the second.
static void lent_twice(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_twice, &d, NULL);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// What is saved is what is on the stream before: nothing is copied before it is there.
static void play_behind(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    int *fake;
    kvc_outcome outcome = {0};
    uint64_t save, other, prepared;

    (void)arg;
    worker_open_with(
        &w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 64, .by_daemon = true});
    fake = dlsym(w.driver.library, "kvc_fake_hold");
    prepared = worker_fill_prepare(&w, 400, 64);
    worker_hold(&w, 300000);
    worker_fill_enqueue(&w, prepared);
    save = worker_save_enqueue(&w, 400, 64);
    CHECK(kvc_wait(w.client, save, 50, &outcome) == KVC_E_DEADLINE);
    if (fake != NULL) { // what it held is written with the next
        *fake = 0;
        other = worker_save_enqueue(&w, 500, 1);
        KVC(&w, kvc_wait(w.client, other, SCENE_MS, &outcome));
    }
    KVC(&w, kvc_wait(w.client, save, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == 64);
    worker_verify(&w, 400, 64);
    worker_close(&w);
}

static void a_save_waits_for_what_it_saves(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    scene_run(play_behind, &d, NULL);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// A worker whose prefill goes on and on holds up nobody else, and SUSPEND waits for it.
static void play_held(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    int *told = arg;

    worker_open_with(
        &w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 64, .by_daemon = true});
    worker_fill(&w, 600, 64);
    worker_hold(&w, 3000000);
    (void)worker_save_enqueue(&w, 600, 64);
    CHECK(kvc_suspend(w.client, w.part, 100) == KVC_E_DEADLINE);
    CHECK(write(told[1], "x", 1) == 1);
    if (dlsym(w.driver.library, "kvc_fake_hold") == NULL)
        KVC(&w, kvc_suspend(w.client, w.part, SCENE_MS));
    pause();
}

static void who_waits_holds_up_nobody(void)
{
    struct scene_daemon d;
    int told[2];
    char byte;
    pid_t pid;

    scene_daemon_start(&d, NULL);
    CHECK(pipe(told) == 0);
    pid = scene_fork(play_held, &d, told);
    close(told[1]);
    if (read(told[0], &byte, 1) != 1) {
        int status = scene_wait(pid);

        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    run(&d, false, true, true, 1000);
    CHECK(kill(pid, SIGKILL) == 0);
    scene_wait(pid);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

// F17: who would write what the daemon waits for goes away.
static void play_leave(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(
        &w, d,
        &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 64, .by_daemon = true});
    worker_fill(&w, 600, 64);
    worker_hold(&w, 200000);
    (void)worker_save_enqueue(&w, 600, 64);
    kvc_close(w.client);
}

static void a_wait_that_goes_with_its_worker(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    for (uint32_t i = 0; i < 5; i++)
        scene_run(play_leave, &d, NULL);
    run(&d, false, true, true, 1000);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void play_capture(const struct scene_daemon *d, void *arg)
{
    struct worker w;

    (void)arg;
    worker_open_with(
        &w, d, &(struct worker_options){.role = KVC_ROLE_WORKER, .n_blocks = 4, .by_daemon = true});
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

static void play_saving_on(const struct scene_daemon *d, void *arg)
{
    const struct play *p = arg;
    struct worker w;

    worker_open_with(
        &w, d,
        &(struct worker_options){
            .role = KVC_ROLE_WORKER, .n_blocks = p->n, .mapped = p->mapped, .by_daemon = true});
    worker_fill(&w, 7000, p->n);
    for (uint32_t i = 0;; i++) {
        (void)worker_save_enqueue(&w, 7000 + i * p->n, p->n);
        if (worker_lookup(&w, 1000, p->n) > 0) {
            (void)worker_load(&w, NULL);
            KVC(&w, kvc_release(w.client, w.lease.id));
        }
    }
}

// F45: what the daemon copies from and to goes away with its process, and harms nobody.
static void killed_while_the_daemon_copies(void)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    run(&d, false, true, true, 1000);
    for (uint32_t i = 0; i < 10; i++) {
        struct play p = {i % 2 == 1, true, true, 0, 64};
        const uint64_t saves = scene_stats(&d).saves;
        const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
        pid_t pid = scene_fork(play_saving_on, &d, &p);

        while (scene_stats(&d).saves < saves + 2 && scene_now_us() < until_us)
            usleep(3000);
        usleep(10000 + i * 7000);
        CHECK(waitpid(pid, NULL, WNOHANG) == 0 && kill(pid, SIGKILL) == 0);
        scene_wait(pid);
        run(&d, i % 2 == 0, true, false, 1000);
    }
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static void thread_blocks_are_measured_or_set(void)
{
    const uint64_t until_us = scene_now_us() + SCENE_MS * 1000u;
    struct scene_daemon d;

    scene_daemon_start(&d, (const char *[]){"--copy-thread-blocks", "16", NULL});
    CHECK(scene_stats(&d).copy_thread_blocks == 16);
    run(&d, false, true, true, 1000);
    scene_daemon_stop(&d);
    scene_daemon_start(&d, NULL);
    while (scene_stats(&d).copy_thread_blocks == 0) {
        CHECK(scene_now_us() < until_us);
        usleep(10000);
    }
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"lent by a handle", lent_by_a_handle, 0},
    {"lent in pieces", lent_in_pieces, 0},
    {"straight to the host tier", straight_to_the_host_tier, 0},
    {"lent twice", lent_twice, 0},
    {"a save waits for what it saves", a_save_waits_for_what_it_saves, 0},
    {"who waits holds up nobody", who_waits_holds_up_nobody, 0},
    {"F17 a wait that goes with its worker", a_wait_that_goes_with_its_worker, 0},
    {"a captured stream is refused", a_captured_stream_is_refused, 0},
    {"thread blocks are measured, or set", thread_blocks_are_measured_or_set, 0},
    {"F45 killed while the daemon copies", killed_while_the_daemon_copies, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
