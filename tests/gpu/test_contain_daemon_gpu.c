// Workers in containers: in PID, mount and IPC namespaces of their own, with their own /proc, as
// pid 1, or with the very pid that the daemon has. All works but legacy handles of a process that
// the driver takes for the daemon, which are refused with a sentence. Needs root.
//
//   test_contain_daemon_gpu [word]    only the tests whose name has the word
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/gpu/scene.h"

#define BLOCKS 100u

struct contained {
    pid_t as;     // its pid there; 1, or that of somebody here
    bool own_shm; // /dev/shm is its own, too
    bool mapped, by_daemon;
    bool refused; // what the driver does not open
    uint32_t first_key;
};

static void say(const char *what, kvc_client *client)
{
    printf("  %s: %s\n", what, kvc_error(client));
    fflush(stdout);
}

static void work(const struct scene_daemon *d, const struct contained *c)
{
    kvc_outcome outcome = {0};
    struct worker w;
    uint64_t save;

    worker_open_with(&w, d,
                     &(struct worker_options){.role = KVC_ROLE_WORKER,
                                              .n_blocks = BLOCKS,
                                              .mapped = c->mapped,
                                              .by_daemon = c->by_daemon,
                                              .may_be_refused = c->refused});
    if (c->refused) {
        CHECK(w.registered == KVC_E_MAP && strlen(kvc_error(w.client)) > 20);
        say("refused", w.client);
        worker_close(&w);
        return;
    }
    worker_fill(&w, c->first_key, BLOCKS);
    save = worker_save_enqueue(&w, c->first_key, BLOCKS);
    KVC(&w, kvc_wait(w.client, save, SCENE_MS, &outcome));
    CHECK(outcome.status == KVC_OK && outcome.published == BLOCKS);
    worker_verify(&w, c->first_key, BLOCKS);
    worker_close(&w);
}

// The pid that the next process of these namespaces gets.
static void set_next_pid(pid_t pid)
{
    char text[16];
    int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    const int n = snprintf(text, sizeof(text), "%d", (int)pid - 1);

    if (fd < 0 || write(fd, text, (size_t)n) != n)
        scene_waive("pids of a namespace cannot be chosen here");
    close(fd);
}

static void enter(void)
{
    if (unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC) != 0)
        scene_waive("no namespaces of one's own are to be had here");
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        scene_waive("what is mounted here cannot be had alone, as in a chroot");
}

static void prepare(const struct contained *c)
{
    if (mount("proc", "/proc", "proc", 0, NULL) != 0)
        scene_waive("no /proc of one's own is to be had here");
    if (c->own_shm)
        CHECK(mount("tmpfs", "/dev/shm", "tmpfs", 0, NULL) == 0);
}

static int status_of(pid_t pid)
{
    const int status = scene_wait(pid);

    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void play(const struct scene_daemon *d, void *arg)
{
    const struct contained *c = arg;
    pid_t pid;

    enter();
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        exit(status_of(pid));
    CHECK(getpid() == 1);
    prepare(c);
    if (c->as == 1) {
        work(d, c);
        exit(0);
    }
    set_next_pid(c->as);
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        exit(status_of(pid));
    CHECK(getpid() == c->as);
    work(d, c);
}

static void play_outside(const struct scene_daemon *d, void *arg)
{
    struct worker w;
    const uint32_t *first_key = arg;

    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    worker_verify(&w, *first_key, BLOCKS);
    worker_close(&w);
}

// All ways to copy and to lend.
static void all_ways(pid_t (*as)(const struct scene_daemon *d), bool own_shm)
{
    struct scene_daemon d;

    scene_daemon_start(&d, NULL);
    for (int i = 0; i < 4; i++) {
        struct contained c = {.as = as(&d),
                              .own_shm = own_shm,
                              .mapped = i % 2 == 0,
                              .by_daemon = i / 2 == 1,
                              .first_key = 1000 * (uint32_t)(i + 1)};

        // The driver without a GPU looks for a handle's pid where the daemon is.
        c.refused = c.by_daemon && !c.mapped && (c.as > 1 || getenv("KVC_FAKE_CUDA") != NULL);
        scene_run(play, &d, &c);
        if (!c.refused)
            scene_run(play_outside, &d, &c.first_key);
    }
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static pid_t the_first(const struct scene_daemon *d)
{
    (void)d;
    return 1;
}

static pid_t the_daemons(const struct scene_daemon *d)
{
    return d->pid;
}

static void in_namespaces_of_its_own(void)
{
    all_ways(the_first, false);
}

static void with_the_daemons_pid(void)
{
    all_ways(the_daemons, false);
}

static void with_a_dev_shm_of_its_own(void)
{
    all_ways(the_first, true);
}

// The driver's list has its pid as it is outside, where the daemon is.
static void play_dying(const struct scene_daemon *d, void *arg)
{
    const struct contained c = {.as = 1};
    int *told = arg;
    struct worker w;
    pid_t pid;

    enter();
    pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) {
        CHECK(write(told[1], &pid, sizeof(pid)) == sizeof(pid));
        exit(status_of(pid));
    }
    prepare(&c);
    worker_open(&w, d, KVC_ROLE_WORKER, BLOCKS);
    if (dlsym(w.driver.library, "kvc_fake_hold") != NULL)
        scene_waive("the driver without a GPU lists pids as they are inside");
    worker_fill(&w, 5000, BLOCKS);
    usleep(500000);
    worker_hold(&w, 20000000);
    (void)worker_save_enqueue(&w, 5000, BLOCKS);
    CHECK(write(told[1], "x", 1) == 1);
    for (;;)
        pause();
}

static void killed_in_there(void)
{
    struct scene_daemon d;
    int told[2];
    pid_t outer, inner = 0;
    char byte;

    scene_daemon_start(&d, NULL);
    CHECK(pipe(told) == 0);
    outer = scene_fork(play_dying, &d, told);
    close(told[1]);
    if (read(told[0], &inner, sizeof(inner)) != sizeof(inner) || read(told[0], &byte, 1) != 1)
        exit(status_of(outer));
    CHECK(scene_stats(&d).filling_slots == BLOCKS);
    CHECK(kill(inner, SIGKILL) == 0);
    scene_wait(outer);
    scene_settled(&d);
    scene_daemon_stop(&d);
}

static const struct scene_test tests[] = {
    {"in namespaces of its own", in_namespaces_of_its_own, 0},
    {"with the daemon's pid", with_the_daemons_pid, 0},
    {"with a /dev/shm of its own", with_a_dev_shm_of_its_own, 0},
    {"killed in there", killed_in_there, 0},
};

int main(int argc, char **argv)
{
    return scene_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
