// A worker that is killed (SIGKILL) in each state that it can be in. Whatever it was doing: others
// go on, what it had published stays, what it had not is a miss at once and may be saved by
// somebody else, and everything it held comes back.
#include "client/pause.h"
#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

// Keys of the victim.
#define OLD   100u // published before
#define N_OLD 4u
#define NEW   1000u // what it saves when it is killed
#define N_NEW 150u  // three chunks: 64, 64, 22

static bool to_host; // what the victim saves

static void open_with_old(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    s->engine.to_host = to_host;
    (void)engine_put_some(&s->engine, OLD, N_OLD);
    ck_assert_uint_eq(engine_probe(&s->engine, OLD, N_OLD), N_OLD);
}

static void save_until(struct scene *s, const char *point, unsigned n)
{
    open_with_old(s);
    pause_arm(point, n);
    (void)engine_save(&s->engine, NEW, N_NEW);
}

static void load_until(struct scene *s, const char *point)
{
    open_with_old(s);
    (void)engine_lookup(&s->engine, OLD, N_OLD);
    pause_arm(point, 1);
    engine_load(&s->engine);
}

// The scenes; each stops in its state.

static void before_hello(struct scene *s)
{
    talk_connect(s->socket);
    actor_stop();
}

static void after_hello(struct scene *s)
{
    engine_connect(&s->engine, s->socket, KVC_ROLE_WORKER);
    actor_stop();
}

// It has the descriptors of the tenant's memory, and never says that it has mapped them.
static void before_map_ack(struct scene *s)
{
    struct talk_worker w =
        talk_worker_unmapped(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    Kvcache__Map map = KVCACHE__MAP__INIT;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    talk_reply(w.sock, talk_send(w.sock, WIRE_MAP, &map.base), WIRE_MAP,
               &kvcache__map_reply__descriptor, fds, &n_fds);
    ck_assert_uint_gt(n_fds, 0);
    actor_stop();
}

static void registered(struct scene *s)
{
    open_with_old(s);
    actor_stop();
}

static void save_assigned(struct scene *s)
{
    save_until(s, "save.before_chunk", 1);
}

static void save_mid_copy(struct scene *s)
{
    open_with_old(s);
    engine_fill(&s->engine, NEW, N_NEW);
    engine_trap(&s->engine, 5);
    (void)engine_save_filled(&s->engine, NEW, N_NEW, NULL, NULL);
}

static void save_copied(struct scene *s)
{
    save_until(s, "save.before_word", 1);
}

static void save_some_words(struct scene *s)
{
    save_until(s, "save.before_word", 2);
}

static void save_last_word_missing(struct scene *s)
{
    save_until(s, "save.before_word", 3);
}

// Chunks 1 and 2 are proved and chunk 0 is not, which no chunk may be seen before.
static void save_first_word_missing(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    Kvcache__SaveReply *reply = talk_save(&w, NEW, N_NEW, false);

    ck_assert_uint_eq(reply->n_chunk_words, 3);
    talk_prove(&w, reply, 1);
    talk_prove(&w, reply, 2);
    actor_stop();
}

// The words are written while the daemon is not looking.
static void save_word_unseen(struct scene *s)
{
    save_until(s, "save.before_word", 1);
    actor_stop();
}

static void leases(struct scene *s)
{
    open_with_old(s);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(engine_lookup(&s->engine, OLD, N_OLD), N_OLD);
    actor_stop();
}

static void scheduler_leases(struct scene *s)
{
    struct engine scheduler;

    open_with_old(s);
    engine_connect(&scheduler, s->socket, KVC_ROLE_SCHEDULER);
    engine_register(&scheduler, 1);
    ck_assert_uint_eq(engine_lookup(&scheduler, OLD, N_OLD), N_OLD);
    actor_stop();
}

static void load_before_copy(struct scene *s)
{
    load_until(s, "load.before_copy");
}

static void load_mid_copy(struct scene *s)
{
    open_with_old(s);
    (void)engine_lookup(&s->engine, OLD, N_OLD);
    engine_trap(&s->engine, 1);
    (void)engine_load_over(&s->engine);
}

static void load_copied(struct scene *s)
{
    load_until(s, "load.before_word");
}

static void reader_load_copied(struct scene *s)
{
    struct engine reader;

    open_with_old(s);
    engine_connect(&reader, s->socket, KVC_ROLE_READER);
    engine_register(&reader, 1);
    ck_assert_uint_eq(engine_lookup(&reader, OLD, N_OLD), N_OLD);
    pause_arm("load.before_word", 1);
    engine_load(&reader);
}

// The load's word arrives while the daemon is not looking.
static void load_word_unseen(struct scene *s)
{
    load_until(s, "load.before_word");
    actor_stop();
}

// Packets are whole or not there: what can be half done is that they were sent and not read.
static void requests_unread(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);

    actor_stop();
    talk_send_save(&w, NEW, N_NEW, true);
    talk_send_lookup(&w, OLD, N_OLD);
    talk_send_save(&w, NEW + N_NEW, N_NEW, false);
    actor_stop();
}

static void hello_unread(struct scene *s)
{
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;
    int sock;

    actor_stop();
    sock = talk_connect(s->socket);
    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_WORKER;
    hello.name = "talk";
    talk_send(sock, WIRE_HELLO, &hello.base);
    actor_stop();
}

static void replies_unread(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);

    talk_send_save(&w, NEW, N_NEW, true);
    talk_send_lookup(&w, OLD, N_OLD);
    actor_stop();
}

static void load_mid_copy_again(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    ck_assert_uint_eq(engine_lookup(&s->engine, OLD, N_OLD), N_OLD);
    engine_trap(&s->engine, 1);
    ck_assert_int_eq(engine_load_over(&s->engine), KVC_OK);
    ck_assert(engine_holds(&s->engine, OLD, N_OLD));
    engine_close(&s->engine);
}

static const struct state {
    const char *name;
    scene_fn *play;
    bool unseen;                          // the last step happens while the daemon is stopped
    uint32_t sessions, old;               // that the victim has, and has published before
    uint64_t filling, leases, open_loads; // that it holds when it is killed, if it is seen
    uint32_t published;                   // of the new keys, in the end
} states[] = {
    {"before HELLO", before_hello, false, 0, 0, 0, 0, 0, 0},
    {"after HELLO", after_hello, false, 1, 0, 0, 0, 0, 0},
    {"HELLO not read yet", hello_unread, true, 0, 0, 0, 0, 0, 0},
    {"between REGISTER and the acknowledgement", before_map_ack, false, 1, 0, 0, 0, 0, 0},
    {"registered", registered, false, 1, N_OLD, 0, 0, 0, 0},
    {"slots assigned, nothing copied", save_assigned, false, 1, N_OLD, N_NEW, 0, 0, 0},
    {"in the middle of a block", save_mid_copy, false, 1, N_OLD, N_NEW, 0, 0, 0},
    {"copied, no word", save_copied, false, 1, N_OLD, N_NEW, 0, 0, 0},
    {"one word of three", save_some_words, false, 1, N_OLD, N_NEW - 64, 0, 0, 64},
    {"the last word missing", save_last_word_missing, false, 1, N_OLD, 22, 0, 0, 128},
    {"the first word missing", save_first_word_missing, false, 1, 0, N_NEW, 0, 0, 0},
    {"words that nobody saw", save_word_unseen, true, 1, N_OLD, 0, 0, 0, N_NEW},
    {"leases", leases, false, 1, N_OLD, 0, 3, 0, 0},
    {"a scheduler's lease", scheduler_leases, false, 2, N_OLD, 0, 1, 0, 0},
    {"load open, nothing copied", load_before_copy, false, 1, N_OLD, 0, 1, 1, 0},
    {"load in the middle of a block", load_mid_copy, false, 1, N_OLD, 0, 1, 1, 0},
    {"load copied, no word", load_copied, false, 1, N_OLD, 0, 1, 1, 0},
    {"a reader's load copied, no word", reader_load_copied, false, 2, N_OLD, 0, 1, 1, 0},
    {"load's word that nobody saw", load_word_unseen, true, 1, N_OLD, 0, 0, 0, 0},
    {"requests that nobody read", requests_unread, true, 1, 0, 0, 0, 0, 0},
    {"replies unread", replies_unread, false, 1, 0, N_NEW, 0, 0, 0},
};
#define N_STATES ((int)(sizeof(states) / sizeof(states[0])))

static void wait_state(struct stage *s, const struct state *state)
{
    struct admin_stats now;

    ck_assert_msg(wait_until((now = stage_stats(s), now.sessions == 1 + state->sessions &&
                                                        now.filling_slots == state->filling &&
                                                        now.leases == state->leases &&
                                                        now.open_loads == state->open_loads),
                             ENGINE_MS),
                  "%s: sessions=%llu filling=%llu leases=%llu open_loads=%llu", state->name,
                  (unsigned long long)now.sessions, (unsigned long long)now.filling_slots,
                  (unsigned long long)now.leases, (unsigned long long)now.open_loads);
}

static void kill_seen(struct stage *s, const struct state *state, struct actor *victim)
{
    actor_until_stop(victim);
    wait_state(s, state);
    stage_check(s);
    stage_witness_works(s);
    actor_strike(victim);
    stage_witness_works(s);
    actor_kill(victim);
}

static void kill_unseen(struct stage *s, struct actor *victim)
{
    actor_until_stop(victim);
    daemon_freeze(s->daemon);
    actor_continue(victim);
    actor_until_stop(victim);
    actor_kill(victim);
    daemon_thaw(s->daemon);
}

// The keys of the scenes that do without the library: never published.
static void check_raw_keys(struct stage *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    Kvcache__SaveReply *reply;

    for (uint32_t i = 0; i < N_NEW; i += 10)
        ck_assert_uint_eq(talk_probe(&w, NEW + i, 1), 0);
    reply = talk_save(&w, NEW, N_NEW, false);
    for (uint32_t i = 0; i < N_NEW; i++)
        ck_assert_uint_eq(reply->entries[0]->states.data[i], KVCACHE__KEY_STATE__KEY_ASSIGNED);
    for (size_t i = 0; i < reply->n_chunk_words; i++)
        talk_prove(&w, reply, i);
    talk_free(reply);
    talk_worker_close(&w);
    stage_wait_sessions(s, 1);
}

static void kill_in_state(const struct state *state, bool old_kernel)
{
    struct actor victim;
    struct stage s;

    stage_open(&s, NULL);
    if (old_kernel)
        daemon_fault_arm(s.daemon, "process.peerpidfd", 0, 1000);
    victim = actor_start(state->play, s.socket);
    if (state->unseen)
        kill_unseen(&s, &victim);
    else
        kill_seen(&s, state, &victim);
    stage_wait_sessions(&s, 1);
    check_raw_keys(&s);
    // At once: absent or published, and free for anybody else to save.
    ck_assert_msg(engine_count(&s.witness, NEW, N_NEW) == state->published,
                  "%s: %u of the new keys are there", state->name,
                  engine_count(&s.witness, NEW, N_NEW));
    if (state->published > 0)
        engine_verify(&s.witness, NEW, state->published);
    if (state->old > 0)
        engine_verify(&s.witness, OLD, state->old);
    if (state->published < N_NEW)
        engine_put(&s.witness, NEW + state->published, N_NEW - state->published);
    engine_verify(&s.witness, NEW, N_NEW);
    if (old_kernel)
        ck_assert_uint_gt(daemon_fault_fired(s.daemon, "process.peerpidfd"), 0);
    daemon_fault_off(s.daemon, "*");
    stage_close(&s);
}

START_TEST(S15_a_worker_is_killed_in_each_state)
{
    kill_in_state(&states[_i], false);
}
END_TEST

// Linux 6.1, which has no SO_PEERPIDFD.
START_TEST(S15_a_worker_is_killed_in_each_state_on_an_older_kernel)
{
    kill_in_state(&states[_i], true);
}
END_TEST

// The slots that it leaves behind are of the host tier.
START_TEST(S15_a_worker_that_saves_to_the_host_is_killed_in_each_state)
{
    const struct state *state = &states[_i];

    if (state->old == 0 || state->filling + state->published == 0)
        return; // it saves nothing then
    to_host = true;
    kill_in_state(state, false);
}
END_TEST

// S14: chunk 0 was published, with a lease on it, when the save failed in chunk 1. It stays, with
// its lease, and at its place.
START_TEST(S14_what_a_killed_worker_had_published_stays_with_its_leases)
{
    struct admin_stats before, after;
    struct actor victim;
    struct stage s;

    stage_open(&s, NULL);
    victim = actor_start(save_some_words, s.socket);
    actor_until_stop(&victim);
    wait_for(engine_probe(&s.witness, NEW, N_NEW) == 64, ENGINE_MS);
    ck_assert_uint_eq(engine_lookup(&s.witness, NEW, N_NEW), 64);
    before = stage_stats(&s);
    actor_kill(&victim);
    stage_wait_sessions(&s, 1);
    wait_for(stage_stats(&s).quarantined_slots == 0, ENGINE_MS);
    after = stage_stats(&s);
    ck_assert_uint_eq(after.blocks, before.blocks); // what was being filled never counted
    ck_assert_uint_eq(after.filling_slots, 0);
    ck_assert_uint_eq(after.tiers[0].used_slots, before.tiers[0].used_slots - (N_NEW - 64));
    engine_load(&s.witness);
    engine_release(&s.witness);
    stage_close(&s);
}
END_TEST

static bool is_back(const struct stage *s)
{
    const struct admin_stats stats = stage_stats(s);

    return stats.sessions == 1 && stats.quarantined_slots == 0 && stats.filling_slots == 0 &&
           stats.open_loads == 0 && stats.leases == 0;
}

// What somebody is saving is not copied a second time, and not a hit either; with the end of who
// saves it, it is simply missing.
START_TEST(S7_pending_keys_are_missing_when_their_saver_is_killed)
{
    uint8_t states[N_NEW];
    struct actor victim;
    uint64_t save = 1;
    struct stage s;

    stage_open(&s, NULL);
    victim = actor_start(save_some_words, s.socket);
    actor_until_stop(&victim);
    wait_for(engine_probe(&s.witness, NEW, N_NEW) == 64, ENGINE_MS);
    ck_assert_int_eq(engine_try_save(&s.witness, NEW, N_NEW, states, &save), KVC_OK);
    ck_assert_uint_eq(save, 0);
    for (uint32_t i = 0; i < N_NEW; i++)
        ck_assert_uint_eq(states[i], i < 64 ? KVC_KEY_HIT : KVC_KEY_PENDING);
    ck_assert_uint_eq(engine_lookup(&s.witness, NEW, N_NEW), 64);
    ck_assert_uint_eq(s.witness.lease.pending, N_NEW - 64);
    engine_release(&s.witness);
    actor_kill(&victim);
    stage_wait_sessions(&s, 1);
    ck_assert_uint_eq(engine_lookup(&s.witness, NEW, N_NEW), 64);
    ck_assert_uint_eq(s.witness.lease.pending, 0);
    engine_release(&s.witness);
    engine_put(&s.witness, NEW + 64, N_NEW - 64);
    engine_verify(&s.witness, NEW, N_NEW);
    stage_close(&s);
}
END_TEST

// Two load the same blocks, and one of them is killed: the blocks stay for the other, whatever
// else needs room.
START_TEST(S29_one_of_two_loaders_is_killed)
{
    const char *const tiny[] = {"--gpu-bytes", "4M", "--host-bytes", "0", NULL};
    struct actor victim, other;
    struct stage s;

    stage_open(&s, tiny);
    engine_put(&s.witness, OLD, N_OLD);
    other = actor_start(load_mid_copy_again, s.socket);
    victim = actor_start(load_mid_copy_again, s.socket);
    actor_until_stop(&other);
    actor_until_stop(&victim);
    wait_for(stage_stats(&s).open_loads == 2, ENGINE_MS);
    actor_kill(&victim);
    wait_for(stage_stats(&s).open_loads == 1, ENGINE_MS);
    s.crowded = true;
    for (uint32_t round = 0; round < 3; round++) {
        wait_for(stage_stats(&s).open_loads == 1, ENGINE_MS);
        ck_assert_uint_gt(engine_put_some(&s.witness, 50000 + 1000 * round, 200), 0);
    }
    ck_assert_uint_eq(engine_count(&s.witness, OLD, N_OLD), N_OLD);
    actor_continue(&other); // it compares what it has loaded
    actor_end(&other);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// F5: a killed worker's slots are back soon, and not when some timer finds it.
START_TEST(F5_everything_is_back_within_a_second)
{
    struct actor victim;
    struct stage s;

    stage_open(&s, NULL);
    for (int i = 0; i < 4; i++) {
        victim = actor_start(i % 2 ? save_copied : load_copied, s.socket);
        actor_until_stop(&victim);
        actor_strike(&victim);
        wait_for(is_back(&s), 1000);
        actor_kill(&victim);
    }
    stage_close(&s);
}
END_TEST

CHECK_MAIN_LOOPS("fault/kill_states", CHECK_LIFE_S,
                 {S15_a_worker_is_killed_in_each_state, 0, N_STATES - 1},
                 {S15_a_worker_is_killed_in_each_state_on_an_older_kernel, 0, N_STATES - 1},
                 {S15_a_worker_that_saves_to_the_host_is_killed_in_each_state, 0, N_STATES - 1},
                 {S14_what_a_killed_worker_had_published_stays_with_its_leases, 0, 0},
                 {S7_pending_keys_are_missing_when_their_saver_is_killed, 0, 0},
                 {S29_one_of_two_loaders_is_killed, 0, 0},
                 {F5_everything_is_back_within_a_second, 0, 0})
