// Ends that are not simply kill -9: a process that nobody reaps, that becomes another program,
// whose main thread ends before the others, that lives in another pid namespace; and deaths with
// something that waits in the daemon.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/pause.h"
#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define OLD   100u
#define N_OLD 4u
#define NEW   1000u
#define N_NEW 150u // three chunks

static void in_a_save(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    pause_arm("save.before_word", 1);
    engine_save(&s->engine, NEW, N_NEW);
}

// Everything comes back when it has ended, whoever its parent is and whatever that does.
START_TEST(S15_a_killed_worker_that_nobody_reaps)
{
    struct actor victim;
    struct stage s;
    siginfo_t info;

    stage_open(&s, NULL);
    for (int old_kernel = 0; old_kernel < 2; old_kernel++) {
        if (old_kernel)
            daemon_fault_arm(s.daemon, "process.peerpidfd", 0, 1);
        victim = actor_start(in_a_save, s.socket);
        actor_until_stop(&victim);
        actor_strike(&victim);
        stage_wait_sessions(&s, 1);
        stage_settled(&s);
        ck_assert_int_eq(waitid(P_PID, (id_t)victim.pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        ck_assert_int_eq(info.si_pid, victim.pid); // a zombie still
        actor_kill(&victim);
    }
    stage_close(&s);
}
END_TEST

static void becomes_another_program(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);

    talk_save(&w, NEW, N_NEW, false);
    actor_stop();
    execl("/bin/sleep", "sleep", "1000", (char *)NULL);
    _exit(127);
}

// The socket is close-on-exec, so the session ends; that the memory is gone too is not known of a
// process that lives, so the slots wait for its end.
START_TEST(S15_a_worker_that_becomes_another_program)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    worker = actor_start(becomes_another_program, s.socket);
    actor_until_stop(&worker);
    wait_for(stage_stats(&s).filling_slots == N_NEW, ENGINE_MS);
    actor_continue(&worker);
    wait_for(stage_stats(&s).quarantined_slots == N_NEW, ENGINE_MS);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW);
    actor_kill(&worker);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// What the thread tells, in told->values.
enum { SAVED };

static void *save_in_a_thread(void *arg)
{
    struct scene *s = arg;
    volatile uint64_t *told = s->told->values;

    engine_fill(&s->engine, NEW, N_NEW);
    engine_trap(&s->engine, 5);
    (void)engine_save_filled(&s->engine, NEW, N_NEW, NULL, NULL);
    told[SAVED] = 1;
    pause();
    return NULL;
}

static void main_thread_ends(struct scene *s)
{
    static struct scene shared; // the stack ends with the main thread
    pthread_t thread;

    engine_open(&s->engine, s->socket);
    shared = *s;
    ck_assert_int_eq(pthread_create(&thread, NULL, save_in_a_thread, &shared), 0);
    pthread_exit(NULL);
}

// A process is gone when its last thread is, and not when the thread that it is named after is.
static void outlive_main_thread(bool old_kernel)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    if (old_kernel)
        daemon_fault_arm(s.daemon, "process.peerpidfd", 0, 1);
    worker = actor_start(main_thread_ends, s.socket);
    actor_until_stop(&worker);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).sessions, 2);
    ck_assert_uint_eq(stage_stats(&s).filling_slots, N_NEW);
    actor_continue(&worker);
    wait_for(((volatile uint64_t *)worker.told->values)[SAVED] == 1, ENGINE_MS);
    wait_for(engine_probe(&s.witness, NEW, N_NEW) == N_NEW, ENGINE_MS);
    engine_verify(&s.witness, NEW, N_NEW);
    actor_kill(&worker);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}

START_TEST(S15_the_main_thread_ends_and_others_write_on)
{
    outlive_main_thread(false);
    outlive_main_thread(true);
}
END_TEST

static void waits_for_room(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);

    actor_stop();
    for (uint32_t i = 0; i < 4; i++)
        talk_send_save(&w, NEW + i * 1000, N_NEW, true);
    actor_stop();
}

// Its saves are admitted, or wait for room, in the same moment in which it is found dead.
START_TEST(F2_a_worker_is_killed_while_its_saves_wait_for_room)
{
    struct talk_worker filler;
    struct actor victim;
    struct stage s;

    stage_open(&s, NULL);
    filler = talk_worker(s.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    for (uint32_t i = 0; i < 10; i++) {
        Kvcache__SaveReply *reply = talk_save(&filler, 50000 + 1000 * i, N_NEW, false);

        for (size_t c = 0; c < reply->n_chunk_words; c++)
            talk_prove(&filler, reply, c);
        talk_free(reply);
    }
    s.crowded = true;
    victim = actor_start(waits_for_room, s.socket);
    actor_until_stop(&victim);
    daemon_fault_arm(s.daemon, "mover.late", 0, 100); // room takes its time
    daemon_freeze(s.daemon);
    actor_continue(&victim);
    actor_until_stop(&victim);
    actor_kill(&victim);
    daemon_thaw(s.daemon);
    stage_wait_sessions(&s, 2);
    stage_check(&s);
    ck_assert_uint_eq(talk_probe(&filler, NEW, N_NEW), 0);
    daemon_fault_off(s.daemon, "mover.late");
    talk_worker_close(&filler);
    stage_close(&s);
}
END_TEST

static void aborts_and_waits(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    Kvcache__SaveReply *reply = talk_save(&w, NEW, N_NEW, true);
    Kvcache__Abort abort = KVCACHE__ABORT__INIT;

    abort.save = reply->save;
    for (int i = 0; i < 3; i++)
        talk_send(w.sock, WIRE_ABORT, &abort.base);
    talk_prove(&w, reply, 1);
    actor_stop();
}

// The replies to its aborts are owed for words that will never come.
START_TEST(F2_a_worker_is_killed_while_replies_to_aborts_are_owed)
{
    struct actor victim;
    struct stage s;

    stage_open(&s, NULL);
    victim = actor_start(aborts_and_waits, s.socket);
    actor_until_stop(&victim);
    wait_for(stage_stats(&s).quarantined_slots == N_NEW - 64, ENGINE_MS);
    stage_witness_works(&s);
    actor_kill(&victim);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

static void leases_for_another(struct scene *s)
{
    struct engine *e = &s->engine;

    engine_open(e, s->socket);
    engine_put(e, OLD, N_OLD);
    ck_assert_uint_eq(engine_lookup(e, OLD, N_OLD), N_OLD);
    memcpy(s->told->token, e->lease.token, KVC_TOKEN_BYTES);
    actor_stop();
}

// Who adopted a lease keeps it when the one that made it is killed; who comes too late is told so.
START_TEST(S35_an_adopted_lease_outlives_its_maker)
{
    const char *const tiny[] = {"--gpu-bytes", "4M", "--host-bytes", "0", NULL};
    uint8_t token[KVC_TOKEN_BYTES];
    struct actor maker;
    kvc_lease late;
    struct stage s;

    stage_open(&s, tiny);
    maker = actor_start(leases_for_another, s.socket);
    actor_until_stop(&maker);
    memcpy(token, maker.told->token, sizeof(token));
    ck_assert_int_eq(kvc_adopt(s.witness.client, token, s.witness.part, 0, &s.witness.lease),
                     KVC_OK);
    s.witness.leased = OLD;
    actor_kill(&maker);
    stage_wait_sessions(&s, 1);
    ck_assert_int_eq(kvc_adopt(s.witness.client, token, s.witness.part, 0, &late), KVC_E_UNKNOWN);
    ck_assert_uint_eq(stage_stats(&s).leases, 1);
    for (uint32_t round = 0; round < 3; round++)
        (void)engine_put_some(&s.witness, 50000 + 1000 * round, 200);
    engine_load(&s.witness);
    engine_release(&s.witness);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

// The daemon in a pid namespace of its own cannot name this process, but by a pidfd. A kernel that
// gives none of a peer (before 6.5) leaves nothing to watch: it is not served, and the log says
// why.
START_TEST(a_worker_outside_of_the_daemons_pid_namespace)
{
    struct engine e;
    struct stage s;
    int sock;

    if (CHECK_SANITIZED)
        TEST_SKIP("the leak sanitizer cannot follow into a pid namespace");
    if (geteuid() != 0 || unshare(CLONE_NEWPID) < 0)
        TEST_SKIP("needs root, and a pid namespace");
    stage_open_bare(&s, NULL);
    engine_open(&e, s.socket);
    engine_put(&e, NEW, N_NEW);
    engine_verify(&e, NEW, N_NEW);
    daemon_log_expect(s.daemon, "connection not served");
    daemon_fault_arm(s.daemon, "process.peerpidfd", 0, 1);
    sock = talk_connect(s.socket);
    ck_assert(talk_ended(sock));
    close(sock);
    ck_assert_uint_eq(daemon_fault_fired(s.daemon, "process.peerpidfd"), 1);
    engine_verify(&e, NEW, N_NEW);
    engine_close(&e);
    stage_wait_sessions(&s, 0);
    stage_close(&s);
}
END_TEST

CHECK_MAIN("fault/kill_odd", CHECK_LIFE_S, S15_a_killed_worker_that_nobody_reaps,
           S15_a_worker_that_becomes_another_program, S15_the_main_thread_ends_and_others_write_on,
           F2_a_worker_is_killed_while_its_saves_wait_for_room,
           F2_a_worker_is_killed_while_replies_to_aborts_are_owed,
           S35_an_adopted_lease_outlives_its_maker, a_worker_outside_of_the_daemons_pid_namespace)
