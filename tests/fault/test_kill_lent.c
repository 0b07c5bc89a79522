// A worker that lent its memory to the daemon and is killed, in each state that its copies can be
// in; and what it may ask for while they run. The daemon's copies are held, so that each state
// lasts. Others go on, and everything comes back when the copies have ended.
#include <fcntl.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

// Keys of the victim.
#define OLD   100u // published before
#define N_OLD 4u
#define NEW   1000u // what it saves when it is killed
#define N_NEW 150u  // three chunks: 64, 64, 22

static void lend(struct scene *s)
{
    engine_lends(true);
    engine_open(&s->engine, s->socket);
    (void)engine_put_some(&s->engine, OLD, N_OLD);
    ck_assert_uint_eq(engine_probe(&s->engine, OLD, N_OLD), N_OLD);
}

// Until the test says that copies are held.
static void lend_and_wait(struct scene *s)
{
    lend(s);
    actor_stop();
}

static uint64_t save_some_slices(struct scene *s, uint32_t first, uint32_t n, uint64_t more_of)
{
    static uint8_t keys[N_NEW * KVC_KEY_BYTES];
    static uint32_t ids[N_NEW];
    kvc_save_entry entry = {s->engine.part, keys, ids, N_NEW, NULL};
    kvc_save_args args = {
        .entries = &entry, .n_entries = 1, .first_slice = first, .n_slices = n, .more_of = more_of};
    uint64_t id = 0;

    for (uint32_t i = 0; i < N_NEW; i++) {
        const uint32_t number = NEW + i;

        ids[i] = i;
        kvc_key(&number, sizeof(number), keys + (size_t)i * KVC_KEY_BYTES);
    }
    ck_assert_int_eq(kvc_save(s->engine.client, &args, &id), KVC_OK);
    return id;
}

// The scenes; each is stopped in its state, by itself or from outside.

static void region_begun(struct scene *s)
{
    struct talk_worker w =
        talk_worker_unmapped(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    uint32_t pieces[TALK_SLICES] = {0};
    uint64_t offsets[TALK_SLICES] = {0, TALK_SLICE_BYTES}, strides[TALK_SLICES];
    Kvcache__RegionBegin m = KVCACHE__REGION_BEGIN__INIT;

    actor_stop();
    for (uint32_t i = 0; i < TALK_SLICES; i++)
        strides[i] = (uint64_t)TALK_SLICES * TALK_SLICE_BYTES;
    m.part = w.part;
    m.blocks = 4;
    m.pieces = 1;
    m.n_slice_pieces = m.n_slice_offsets = m.n_slice_strides = TALK_SLICES;
    m.slice_pieces = pieces;
    m.slice_offsets = offsets;
    m.slice_strides = strides;
    talk_free(talk_ask(w.sock, WIRE_REGION_BEGIN, &m.base, &kvcache__region_reply__descriptor));
    actor_stop();
}

static void lent(struct scene *s)
{
    lend_and_wait(s);
    actor_stop();
}

static void save_held(struct scene *s)
{
    lend_and_wait(s);
    (void)engine_save(&s->engine, NEW, N_NEW);
    actor_stop();
}

static void save_cancelled(struct scene *s)
{
    uint64_t save;

    lend_and_wait(s);
    save = engine_save(&s->engine, NEW, N_NEW);
    ck_assert_int_eq(kvc_cancel(s->engine.client, save, 20, NULL), KVC_E_DEADLINE);
    actor_stop();
}

static void slices_between_calls(struct scene *s)
{
    lend(s);
    engine_fill(&s->engine, NEW, N_NEW);
    (void)save_some_slices(s, 0, 1, 0);
    // Answered when nothing copies any more.
    ck_assert_int_eq(kvc_suspend(s->engine.client, s->engine.part, wait_patient_ms(ENGINE_MS)),
                     KVC_OK);
    ck_assert_int_eq(kvc_resume(s->engine.client, s->engine.part), KVC_OK);
    actor_stop();
    actor_stop();
}

static void slices_of_two_calls(struct scene *s)
{
    uint64_t save;

    lend_and_wait(s);
    engine_fill(&s->engine, NEW, N_NEW);
    save = save_some_slices(s, 0, 1, 0);
    ck_assert_uint_eq(save_some_slices(s, 2, 1, save), save);
    actor_stop();
}

static void load_held(struct scene *s)
{
    lend(s);
    ck_assert_uint_eq(engine_lookup(&s->engine, OLD, N_OLD), N_OLD);
    actor_stop();
    engine_load(&s->engine); // it waits for the answer, and is stopped there from outside
}

static void load_given_up(struct scene *s)
{
    uint32_t ids[N_OLD] = {0, 1, 2, 3};
    kvc_load_args args = {.count = N_OLD, .blocks = ids};
    kvc_lease lease;

    engine_load_ms(100);
    lend(s);
    ck_assert_uint_eq(engine_lookup(&s->engine, OLD, N_OLD), N_OLD);
    lease = s->engine.lease;
    actor_stop();
    args.lease = lease.id;
    args.part = s->engine.part;
    ck_assert_int_eq(kvc_load(s->engine.client, &args), KVC_E_BUSY);
    actor_stop();
}

static void suspending(struct scene *s)
{
    lend_and_wait(s);
    (void)engine_save(&s->engine, NEW, N_NEW);
    ck_assert_int_eq(kvc_suspend(s->engine.client, s->engine.part, 20), KVC_E_DEADLINE);
    actor_stop();
}

static void suspended(struct scene *s)
{
    lend(s);
    ck_assert_int_eq(kvc_suspend(s->engine.client, s->engine.part, wait_patient_ms(ENGINE_MS)),
                     KVC_OK);
    actor_stop();
    actor_stop();
}

static void dropping(struct scene *s)
{
    lend_and_wait(s);
    (void)engine_save(&s->engine, NEW, N_NEW);
    (void)kvc_unregister(s->engine.client, s->engine.part); // stopped from outside
}

static void memory_gone(struct scene *s)
{
    lend_and_wait(s);
    (void)engine_save(&s->engine, NEW, N_NEW);
    ck_assert_int_eq(fallocate(s->engine.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                               (off_t)ENGINE_BLOCKS * 4096),
                     0);
    actor_stop();
}

static void requests_unread(struct scene *s)
{
    struct talk_worker w;

    lend_and_wait(s);
    w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    (void)engine_save(&s->engine, NEW, N_NEW);
    talk_send_lookup(&w, OLD, N_OLD);
    actor_stop();
}

static const struct state {
    const char *name;
    scene_fn *play;
    uint32_t skip;                 // copies that go on before the others are held
    bool outside;                  // it waits in a call, and is stopped from outside
    uint32_t old;                  // that it has published before
    uint32_t filling, quarantined; // in its state; together in one that may be either
    uint32_t leases, loads;
    uint32_t published; // of the new keys, in the end
} states[] = {
    {"region begun", region_begun, 0, false, 0, 0, 0, 0, 0, 0},
    {"lent", lent, 0, false, N_OLD, 0, 0, 0, 0, 0},
    {"save, no chunk copied", save_held, 0, false, N_OLD, N_NEW, 0, 0, 0, 0},
    {"save, one chunk of three published", save_held, 1, false, N_OLD, N_NEW - 64, 0, 0, 0, 64},
    {"save cancelled", save_cancelled, 0, false, N_OLD, 0, 128, 0, 0, 0},
    {"between calls for slices", slices_between_calls, 0, false, N_OLD, N_NEW, 0, 0, 0, 0},
    {"slices of two calls", slices_of_two_calls, 0, false, N_OLD, N_NEW, 0, 0, 0, 0},
    {"load", load_held, 0, true, N_OLD, 0, 0, 1, 1, 0},
    {"SUSPEND waits", suspending, 0, false, N_OLD, N_NEW, 0, 0, 0, 0},
    {"suspended", suspended, 0, false, N_OLD, 0, 0, 0, 0, 0},
    {"DROP waits", dropping, 0, true, N_OLD, N_NEW, 0, 0, 0, 0},
    {"save, memory taken away", memory_gone, 0, false, N_OLD, N_NEW, 0, 0, 0, 0},
    {"save, requests unread", requests_unread, 0, false, N_OLD, N_NEW, 0, 0, 0, 0},
};
#define N_STATES ((int)(sizeof(states) / sizeof(states[0])))

// Of two copies in flight either may be the one that goes on: if it is the later chunk's, nothing
// is published. That is so when it has been for a while.
static bool is_reached(const struct stage *s, const struct state *state, uint32_t *published)
{
    static uint32_t looks;
    const struct admin_stats now = stage_stats(s);

    *published = state->published;
    if (state->skip > 0 && now.filling_slots == N_NEW && ++looks > 100) {
        *published = 0;
        return true;
    }
    return now.filling_slots == state->filling && now.quarantined_slots == state->quarantined &&
           now.leases == state->leases && now.open_loads == state->loads;
}

static void drain_and_die(struct scene *s)
{
    lend(s);
    engine_verify(&s->engine, OLD, N_OLD);
    engine_close(&s->engine);
}

// The witness copies for itself, so that it can work while the daemon's copies are held. What is
// made with the first region and copy is there from the start.
static void open_stage(struct stage *s)
{
    struct actor first;

    engine_lends(false);
    stage_open(s, NULL);
    first = actor_start(drain_and_die, s->socket);
    actor_end(&first);
    stage_wait_sessions(s, 1);
    stage_baseline(s);
}

START_TEST(S15_a_worker_that_lent_its_memory_is_killed_in_each_state)
{
    const struct state *state = &states[_i];
    struct actor victim;
    uint32_t published;
    struct stage s;

    open_stage(&s);
    victim = actor_start(state->play, s.socket);
    actor_until_stop(&victim);
    daemon_log_allow(s.daemon, "copy failed");
    daemon_fault_arm(s.daemon, "copier.late", state->skip, UINT32_MAX);
    actor_continue(&victim);
    if (!state->outside)
        actor_until_stop(&victim);
    ck_assert_msg(wait_until(is_reached(&s, state, &published), ENGINE_MS), "%s: not reached",
                  state->name);
    stage_check(&s);
    stage_witness_works(&s);
    actor_kill(&victim);
    stage_witness_works(&s);
    // Absent at once, and what is copied stays where it is until it has been.
    ck_assert_uint_eq(engine_count(&s.witness, NEW, N_NEW), published);
    stage_check(&s);
    daemon_fault_off(s.daemon, "copier.late");
    stage_wait_sessions(&s, 1);
    if (state->old > 0)
        engine_verify(&s.witness, OLD, state->old);
    if (published > 0)
        engine_verify(&s.witness, NEW, published);
    engine_put(&s.witness, NEW + published, N_NEW - published);
    engine_verify(&s.witness, NEW, N_NEW);
    stage_close(&s);
}
END_TEST

// F11: it lives on, and may not reuse its destinations before it is told.
START_TEST(S15_a_load_that_is_given_up_and_its_worker_killed)
{
    struct actor victim;
    struct stage s;

    open_stage(&s);
    victim = actor_start(load_given_up, s.socket);
    actor_until_stop(&victim);
    daemon_fault_arm(s.daemon, "copier.late", 0, UINT32_MAX);
    actor_continue(&victim);
    actor_until_stop(&victim);
    wait_for(stage_stats(&s).open_loads == 1, ENGINE_MS);
    actor_kill(&victim);
    stage_witness_works(&s);
    wait_for(stage_stats(&s).open_loads == 1, ENGINE_MS);
    daemon_fault_off(s.daemon, "copier.late");
    stage_wait_sessions(&s, 1);
    engine_verify(&s.witness, OLD, N_OLD);
    stage_close(&s);
}
END_TEST

CHECK_MAIN_LOOPS("fault/kill_lent", CHECK_LIFE_S,
                 {S15_a_worker_that_lent_its_memory_is_killed_in_each_state, 0, N_STATES - 1,
                  CHECK_DAEMON_COPIES},
                 {S15_a_load_that_is_given_up_and_its_worker_killed, 0, 0, CHECK_DAEMON_COPIES})
