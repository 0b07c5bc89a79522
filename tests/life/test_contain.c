// Workers in containers, on the host device: in PID, mount, IPC and user namespaces of their own,
// in a root file system that has nothing but the socket's folder.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define KEYS    100u
#define N_KEYS  16u
#define WAIT_MS 20000
#define UID     5001u
#define NOTHING 77 // exit status: namespaces are not to be had here

// A container: whose it is outside, and whether it has a user namespace, in which it is root.
struct container {
    uid_t uid;          // 0: the test's own
    bool user_ns;       // else it must be root who makes it
    const char *folder; // of the socket, outside; it is /run inside, for reading
};

typedef void play_fn(const char *socket);

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return ok;
}

static bool become_root_inside(uid_t uid, gid_t gid)
{
    char text[64];

    if (!write_text("/proc/self/setgroups", "deny"))
        return false;
    snprintf(text, sizeof(text), "0 %u 1", uid);
    if (!write_text("/proc/self/uid_map", text))
        return false;
    snprintf(text, sizeof(text), "0 %u 1", gid);
    return write_text("/proc/self/gid_map", text) && setresgid(0, 0, 0) == 0 &&
           setresuid(0, 0, 0) == 0;
}

static bool enter(const struct container *c)
{
    const int flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC;
    uid_t uid = c->uid != 0 ? c->uid : geteuid();
    gid_t gid = c->uid != 0 ? c->uid : getegid();

    if (c->uid != 0 && (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0 ||
                        prctl(PR_SET_DUMPABLE, 1) < 0))
        return false;
    if (!c->user_ns)
        return unshare(flags) == 0;
    return unshare(flags | CLONE_NEWUSER) == 0 && become_root_inside(uid, gid);
}

// The working folder becomes /run, and there is no /proc, no /dev/shm, no /tmp.
static bool enter_root(void)
{
    const char *root = "/tmp"; // covered by an empty file system, in this namespace only

    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", root, "tmpfs", 0, NULL) == 0 && mkdir("/tmp/run", 0755) == 0 &&
           mount(".", "/tmp/run", NULL, MS_BIND, NULL) == 0 &&
           mount("none", "/tmp/run", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0 &&
           chroot(root) == 0 && chdir("/") == 0;
}

static pid_t start(const struct container *c, play_fn *play, const char *name)
{
    pid_t outer = proc_fork(), inner;
    char socket[64];
    int status;

    if (outer > 0)
        return outer;
    snprintf(socket, sizeof(socket), "/run/%s", name);
    // Who makes a container can reach what nobody in it could.
    if (chdir(c->folder) < 0 || !enter(c))
        _exit(NOTHING);
    inner = fork();
    if (inner == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!enter_root())
            _exit(NOTHING);
        ck_assert_int_eq(getpid(), 1);
        ck_assert_int_eq(access("/proc", F_OK), -1);
        ck_assert_int_eq(access("/dev/shm", F_OK), -1);
        if (play != NULL)
            play(socket);
        _exit(0);
    }
    if (inner < 0 || waitpid(inner, &status, 0) != inner)
        _exit(1);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void run(const struct container *c, play_fn *play, const char *name)
{
    const int status = proc_wait(start(c, play, name), WAIT_MS);

    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

#define SKIP_WITHOUT(...)                                                                          \
    do {                                                                                           \
        int status_ = chmod(tmpdir_path(), 0711);                                                  \
        if (check_valgrind())                                                                      \
            TEST_SKIP("valgrind finds nothing of its own in there");                               \
        status_ = proc_wait(start(__VA_ARGS__, NULL, "s1"), WAIT_MS);                              \
        if (WIFEXITED(status_) && WEXITSTATUS(status_) == NOTHING)                                 \
            TEST_SKIP("no such namespaces are to be had here");                                    \
    } while (0)

static const char *const open_to_all[] = {
    "--gpu-bytes", "8M", "--host-bytes", "8M", "--socket-mode", "0666", NULL};

static void saves_and_loads(const char *socket)
{
    struct engine e;

    engine_open(&e, socket);
    engine_put(&e, KEYS, N_KEYS);
    engine_poison(&e);
    engine_verify(&e, KEYS, N_KEYS);
    engine_close(&e);
}

static void finds_what_the_witness_saved(const char *socket)
{
    struct engine e;

    engine_open(&e, socket);
    engine_verify(&e, STAGE_WITNESS_KEYS, 4);
    engine_close(&e);
}

// Nothing is shared but the socket: neither pids nor /proc nor /dev/shm are needed.
START_TEST(a_worker_needs_nothing_but_the_socket)
{
    const struct container c = {.user_ns = geteuid() != 0, .folder = tmpdir_path()};
    struct stage s;

    SKIP_WITHOUT(&c);
    stage_open(&s, open_to_all);
    run(&c, saves_and_loads, "s1");
    run(&c, finds_what_the_witness_saved, "s1");
    engine_verify(&s.witness, KEYS, N_KEYS);
    stage_wait_sessions(&s, 1);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

static void is_nobody_special(const char *socket)
{
    Kvcache__Flush all = KVCACHE__FLUSH__INIT;
    int sock;

    ck_assert_uint_eq(geteuid(), 0);
    saves_and_loads(socket);
    sock = talk_hello(socket, KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    all.all = true;
    ck_assert_int_eq(talk_outcome(sock, talk_send(sock, WIRE_FLUSH, &all.base)), KVC_E_DENIED);
    close(sock);
}

// Root of a user namespace is who he is outside: a tenant like others, and no operator.
START_TEST(root_of_a_user_namespace_is_his_user)
{
    const struct container c = {.uid = UID, .user_ns = true, .folder = tmpdir_path()};
    struct stage s;

    if (geteuid() != 0)
        TEST_SKIP("needs root, to become another user");
    SKIP_WITHOUT(&c);
    stage_open_bare(&s, open_to_all);
    run(&c, is_nobody_special, "s1");
    stage_wait_sessions(&s, 0);
    stage_close(&s);
}
END_TEST

static void saves_until_killed(const char *socket)
{
    struct engine e;

    engine_open(&e, socket);
    for (uint32_t i = 0;; i++)
        (void)engine_put_some(&e, KEYS + i % 8 * N_KEYS, N_KEYS);
}

// Its death is seen although its pid means nothing to it: what it was writing to comes back.
START_TEST(a_container_that_is_killed_leaves_nothing)
{
    const struct container c = {.user_ns = geteuid() != 0, .folder = tmpdir_path()};
    struct stage s;

    SKIP_WITHOUT(&c);
    stage_open(&s, open_to_all);
    for (int i = 0; i < 5; i++) {
        const uint64_t before = stage_stats(&s).saves;
        pid_t pid = start(&c, saves_until_killed, "s1");

        wait_for(stage_stats(&s).saves > before + 3, ENGINE_MS);
        proc_kill(pid);
        wait_for(waitpid(-1, NULL, WNOHANG) > 0, ENGINE_MS); // who was inside is the test's now
        stage_wait_sessions(&s, 1);
        wait_for(stage_stats(&s).quarantined_slots == 0, ENGINE_MS);
    }
    s.crowded = true;
    stage_baseline(&s);
    stage_close(&s);
}
END_TEST

static void sees_nobody(const char *socket)
{
    struct engine e;

    engine_open(&e, socket);
    ck_assert_uint_eq(engine_probe(&e, KEYS, N_KEYS), 0);
    engine_close(&e);
}

// All are root in there, and for the daemon too, or all one user: the sockets tell them apart. Each
// gets a folder of its own, beyond a folder that keeps others out.
START_TEST(two_containers_of_root_are_two_tenants)
{
    const char *closed = tmpdir_file("tenants");
    char folders[2][160], settings[2][384];
    struct container c[2];
    struct daemon *d;

    if (_i == 1 && geteuid() != 0)
        TEST_SKIP("needs root, to become another user");
    ck_assert_int_eq(mkdir(closed, 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(folders[i], sizeof(folders[i]), "%s/%c", closed, 'a' + i);
        snprintf(settings[i], sizeof(settings[i]), "%s/s1 tenant=%c roles=worker mode=0666",
                 folders[i], 'a' + i);
        ck_assert_int_eq(mkdir(folders[i], 0755), 0);
        c[i] = (struct container){
            .uid = _i == 1 ? UID : 0, .user_ns = _i == 1 || geteuid() != 0, .folder = folders[i]};
    }
    SKIP_WITHOUT(&c[0]);
    d = daemon_start((const char *const[]){"--socket", settings[0], "--socket", settings[1],
                                           "--tenant-shares", "*=50%", NULL});
    run(&c[0], saves_and_loads, "s1");
    run(&c[1], sees_nobody, "s1");
    run(&c[1], is_nobody_special, "s1");
    daemon_stop(d);
}
END_TEST

// The other way round: the daemon is in a container, and workers outside, whose pids it cannot see.
START_TEST(a_daemon_in_a_pid_namespace_serves_those_outside)
{
    const char *socket = tmpdir_file("s1");
    struct stage s;
    pid_t victim;

    if (geteuid() != 0)
        TEST_SKIP("needs root, for a pid namespace alone");
    if (check_valgrind())
        TEST_SKIP("valgrind needs to see its own");
    if (CHECK_SANITIZED)
        TEST_SKIP("the leak sanitizer cannot follow into a pid namespace");
    victim = proc_fork(); // while children are still of this namespace
    if (victim == 0) {
        int sock = -1;

        wait_for(wire_connect(socket, &sock) == KVC_OK, WAIT_MS);
        close(sock);
        saves_until_killed(socket);
    }
    if (unshare(CLONE_NEWPID) != 0) {
        proc_kill(victim);
        TEST_SKIP("no pid namespace is to be had here");
    }
    stage_open_bare(&s, open_to_all);
    ck_assert_str_eq(s.socket, socket);
    wait_for(stage_stats(&s).saves > 3, ENGINE_MS);
    proc_kill(victim);
    stage_wait_sessions(&s, 0);
    wait_for(stage_stats(&s).quarantined_slots == 0, ENGINE_MS);
    engine_open(&s.witness, s.socket);
    engine_put(&s.witness, 1000, N_KEYS);
    engine_verify(&s.witness, 1000, N_KEYS);
    engine_close(&s.witness);
    stage_wait_sessions(&s, 0);
    kvc_close(s.figures);
    daemon_stop(s.daemon);
}
END_TEST

static void reconnects(const char *socket)
{
    struct engine e;

    engine_open(&e, socket);
    engine_put(&e, KEYS, N_KEYS);
    wait_for(kvc_ping(e.client) != KVC_OK, WAIT_MS);
    wait_for(kvc_reconnect(e.client) == KVC_OK, WAIT_MS);
    engine_put(&e, KEYS, N_KEYS);
    engine_verify(&e, KEYS, N_KEYS);
    engine_close(&e);
}

// The folder is mounted and not the file, which a daemon that starts again replaces.
START_TEST(a_container_finds_the_daemon_that_starts_again)
{
    const struct container c = {.user_ns = geteuid() != 0, .folder = tmpdir_path()};
    struct stage s;
    pid_t pid;

    SKIP_WITHOUT(&c);
    stage_open_bare(&s, open_to_all);
    pid = start(&c, reconnects, "s1");
    wait_for(stage_stats(&s).published_blocks == N_KEYS, WAIT_MS);
    kvc_close(s.figures);
    daemon_end_killed(s.daemon);
    daemon_restart_killed(s.daemon);
    proc_wait_ok(pid, WAIT_MS);
    stage_open_figures(&s);
    stage_wait_sessions(&s, 0);
    stage_baseline(&s);
    stage_close(&s);
}
END_TEST

CHECK_MAIN_LOOPS("life/contain", CHECK_LIFE_S,
                 {a_worker_needs_nothing_but_the_socket, 0, 0, CHECK_BOTH_WAYS},
                 {root_of_a_user_namespace_is_his_user, 0, 0, CHECK_BOTH_WAYS},
                 {a_container_that_is_killed_leaves_nothing, 0, 0, CHECK_BOTH_WAYS},
                 {a_daemon_in_a_pid_namespace_serves_those_outside, 0, 0},
                 {two_containers_of_root_are_two_tenants, 0, 1},
                 {a_container_finds_the_daemon_that_starts_again, 0, 0})
