// A worker is killed while a child of it lives on. The child has inherited the socket, so the
// connection does not end; the library keeps the mappings out of it, so it can write nowhere. That
// the process which connected is gone is all that counts.
//
// A client that does not use the library and lets its children inherit the mappings breaks the
// protocol (PROTOCOL.md, "Life of a connection"): such a child could write into slots that the
// daemon has taken back. The daemon cannot see it, so nothing here says that it would be safe. The
// same goes for children that share the address space (CLONE_VM) and do more than execute a
// program.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/pause.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/stage.h"
#include "tests/lib/wait.h"

#define OLD   100u
#define N_OLD 4u
#define NEW   1000u
#define N_NEW 100u // two chunks

// What the child tells, in told->values.
enum { MAPPINGS, PING_STATUS, GO, SEND_ERROR, DONE };

static uint64_t count_kvcached_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint64_t n = 0;

    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps))
        n += strstr(line, "memfd:kvcached") != NULL;
    fclose(maps);
    return n;
}

// A right PING, by hand: the library would refuse.
static int send_ping(int sock)
{
    static const uint8_t ping[16] = {'K', 'V', 'C', 1, 28, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};

    return send(sock, ping, sizeof(ping), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

static void live_on(struct scene *s, int sock)
{
    volatile uint64_t *told = s->told->values;

    told[MAPPINGS] = count_kvcached_mappings();
    told[PING_STATUS] = kvc_ping(s->engine.client);
    told[DONE] = 1;
    (void)wait_until(told[GO] != 0, 10 * ENGINE_MS);
    (void)wait_until((told[SEND_ERROR] = (uint64_t)send_ping(sock)) != 0, ENGINE_MS);
    told[DONE] = 2;
    for (;;)
        pause();
}

static void fork_child(struct scene *s)
{
    int sock;
    pid_t pid;

    engine_open(&s->engine, s->socket);
    engine_put(&s->engine, OLD, N_OLD);
    ck_assert_uint_gt(count_kvcached_mappings(), 0);
    sock = kvc_fd(s->engine.client);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        live_on(s, sock);
    s->told->child = pid;
}

static void in_a_save(struct scene *s)
{
    fork_child(s);
    pause_arm("save.before_word", 2);
    engine_save(&s->engine, NEW, N_NEW);
}

static void in_a_load(struct scene *s)
{
    fork_child(s);
    engine_lookup(&s->engine, OLD, N_OLD);
    pause_arm("load.before_word", 1);
    engine_load(&s->engine);
}

static void idle(struct scene *s)
{
    fork_child(s);
    engine_lookup(&s->engine, OLD, N_OLD);
    actor_stop();
}

static void kill_with_child(scene_fn *play, uint32_t published, bool old_kernel)
{
    volatile uint64_t *told;
    struct actor victim;
    struct stage s;
    pid_t child;

    stage_open(&s, NULL);
    if (old_kernel)
        daemon_fault_arm(s.daemon, "process.peerpidfd", 0, 1000);
    victim = actor_start(play, s.socket);
    actor_until_stop(&victim);
    told = victim.told->values;
    child = victim.told->child;
    wait_for(told[DONE] == 1, ENGINE_MS);
    ck_assert_uint_eq(told[MAPPINGS], 0);
    ck_assert_uint_eq(told[PING_STATUS], KVC_E_FORKED);
    actor_strike(&victim);
    ck_assert_int_eq(waitpid(victim.pid, NULL, 0), victim.pid);

    // The session ends and all comes back, with the child alive and the socket open in it.
    stage_wait_sessions(&s, 1);
    stage_settled(&s);
    ck_assert_int_eq(kill(child, 0), 0);
    ck_assert_uint_eq(engine_count(&s.witness, NEW, N_NEW), published);
    engine_verify(&s.witness, OLD, N_OLD);
    engine_put(&s.witness, NEW + published, N_NEW - published);

    // What the child sends reaches nobody.
    told[GO] = 1;
    wait_for(told[DONE] == 2, 2 * ENGINE_MS);
    ck_assert_uint_ne(told[SEND_ERROR], 0);
    proc_kill(child);
    engine_verify(&s.witness, NEW, N_NEW);
    daemon_fault_off(s.daemon, "*");
    stage_close(&s);
}

START_TEST(S15_a_killed_worker_whose_child_lives_on)
{
    kill_with_child(in_a_save, 64, false);
    kill_with_child(in_a_save, 64, true);
}
END_TEST

START_TEST(S29_leases_of_a_killed_worker_whose_child_lives_on)
{
    kill_with_child(idle, 0, false);
    kill_with_child(idle, 0, true);
}
END_TEST

START_TEST(S29_loads_of_a_killed_worker_whose_child_lives_on)
{
    kill_with_child(in_a_load, 0, false);
    kill_with_child(in_a_load, 0, true);
}
END_TEST

// The other way round: the child goes, and the session stays.
START_TEST(a_child_that_ends_changes_nothing)
{
    struct actor worker;
    struct stage s;
    pid_t child;

    stage_open(&s, NULL);
    worker = actor_start(idle, s.socket);
    actor_until_stop(&worker);
    wait_for(worker.told->values[DONE] == 1, ENGINE_MS);
    child = worker.told->child;
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).sessions, 2);
    ck_assert_uint_eq(stage_stats(&s).leases, 1);
    actor_kill(&worker);
    proc_kill(child); // reaped now that its parent is gone
    stage_close(&s);
}
END_TEST

CHECK_MAIN("fault/kill_fork", CHECK_LIFE_S, S15_a_killed_worker_whose_child_lives_on,
           S29_leases_of_a_killed_worker_whose_child_lives_on,
           S29_loads_of_a_killed_worker_whose_child_lives_on, a_child_that_ends_changes_nothing)
