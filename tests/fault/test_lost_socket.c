// A worker that lives and loses its connection in the middle of a copy: nobody knows whether it
// still writes, so its slots wait, however long, for its words, for DRAINED, or for its end.
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/pause.h"
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define NEW   1000u
#define N_NEW 150u // three chunks
#define OLD   100u
#define N_OLD 4u

#define AN_HOUR_US (3600 * CLOCK_S_US)

static struct talk_worker raw_worker(const struct stage *s)
{
    return talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
}

static void lose_socket(struct talk_worker *w)
{
    close(w->sock);
    w->sock = -1;
}

static void wait_quarantined(const struct stage *s, uint64_t slots)
{
    wait_for(stage_stats(s).quarantined_slots == slots, ENGINE_MS);
    stage_check(s);
}

static uint32_t send_drained(struct talk_worker *w, uint64_t session, const uint8_t *secret,
                             size_t len)
{
    Kvcache__Drained message = KVCACHE__DRAINED__INIT;

    message.session = session;
    message.secret = (ProtobufCBinaryData){len, (uint8_t *)secret};
    return talk_send(w->sock, WIRE_DRAINED, &message.base);
}

static void drain(struct talk_worker *w, const struct talk_worker *old)
{
    talk_free(talk_reply(w->sock, send_drained(w, old->session, old->secret, sizeof(old->secret)),
                         WIRE_DRAINED, &kvcache__empty__descriptor, NULL, NULL));
}

// Saves NEW, loses the connection with nothing proved, and waits until all of it is in quarantine.
static Kvcache__SaveReply *lose_in_save(struct stage *s, struct talk_worker *w)
{
    Kvcache__SaveReply *reply;

    *w = raw_worker(s);
    reply = talk_save(w, NEW, N_NEW, false);
    ck_assert_uint_eq(reply->n_chunk_words, 3);
    lose_socket(w);
    wait_quarantined(s, N_NEW);
    ck_assert_uint_eq(stage_stats(s).filling_slots, 0);
    return reply;
}

// None of these slots is given to anybody.
static void expect_other_slots(const Kvcache__SaveReply *mine, const Kvcache__SaveReply *theirs)
{
    const Kvcache__SaveEntryReply *a = mine->entries[0], *b = theirs->entries[0];

    for (size_t i = 0; i < a->n_offsets; i++)
        for (size_t j = 0; j < b->n_offsets; j++)
            ck_assert(a->tiers.data[i] != b->tiers.data[j] || a->offsets[i] != b->offsets[j]);
}

START_TEST(S15_slots_of_a_lost_connection_wait_for_drained)
{
    struct talk_worker lost, again;
    Kvcache__SaveReply *reply, *other;
    struct stage s;

    stage_open(&s, NULL);
    reply = lose_in_save(&s, &lost);
    again = raw_worker(&s);
    // The keys are absent at once; the slots are not there for as long as it takes.
    ck_assert_uint_eq(talk_probe(&again, NEW, N_NEW), 0);
    other = talk_save(&again, NEW, N_NEW, false);
    ck_assert_uint_eq(other->entries[0]->n_offsets, N_NEW);
    expect_other_slots(reply, other);
    for (size_t i = 0; i < other->n_chunk_words; i++)
        talk_prove(&again, other, i);
    wait_for(talk_probe(&again, NEW, N_NEW) == N_NEW, ENGINE_MS);
    daemon_clock_advance(s.daemon, AN_HOUR_US);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW);

    drain(&again, &lost);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, 0);
    ck_assert_uint_eq(talk_probe(&again, NEW, N_NEW), N_NEW);
    // It is over: once more is unknown, which a client takes for success.
    talk_expect_error(again.sock,
                      send_drained(&again, lost.session, lost.secret, sizeof(lost.secret)),
                      KVC_E_UNKNOWN, "session");
    talk_free(reply);
    talk_free(other);
    talk_worker_close(&again);
    talk_worker_close(&lost);
    stage_close(&s);
}
END_TEST

START_TEST(S15_drained_is_believed_only_from_who_knows_the_secret)
{
    struct talk_worker lost, again, live;
    uint8_t wrong[KVC_SECRET_BYTES];
    Kvcache__SaveReply *reply;
    struct stage s;

    stage_open(&s, NULL);
    reply = lose_in_save(&s, &lost);
    again = raw_worker(&s);
    live = raw_worker(&s);
    memcpy(wrong, lost.secret, sizeof(wrong));
    wrong[15] ^= 1;
    talk_expect_error(again.sock, send_drained(&again, lost.session, wrong, sizeof(wrong)),
                      KVC_E_DENIED, "secret");
    talk_expect_error(again.sock, send_drained(&again, lost.session, again.secret, 16),
                      KVC_E_DENIED, "secret");
    talk_expect_error(again.sock, send_drained(&again, lost.session, lost.secret, 15),
                      KVC_E_INVALID, "secret");
    talk_expect_error(again.sock, send_drained(&again, lost.session, NULL, 0), KVC_E_INVALID,
                      "secret");
    talk_expect_error(again.sock, send_drained(&again, live.session, live.secret, 16), KVC_E_BUSY,
                      "session");
    talk_expect_error(again.sock, send_drained(&again, live.session + 1000, live.secret, 16),
                      KVC_E_UNKNOWN, "session");
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW);
    drain(&live, &lost);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, 0);
    talk_free(reply);
    talk_worker_close(&again);
    talk_worker_close(&live);
    talk_worker_close(&lost);
    stage_close(&s);
}
END_TEST

START_TEST(S15_a_word_after_the_loss_frees_and_never_publishes)
{
    struct talk_worker lost, again;
    Kvcache__SaveReply *reply;
    struct stage s;

    stage_open(&s, NULL);
    reply = lose_in_save(&s, &lost);
    again = raw_worker(&s);
    for (size_t i = reply->n_chunk_words; i-- > 0;) {
        uint64_t before = stage_stats(&s).quarantined_slots;

        talk_prove(&lost, reply, i);
        wait_quarantined(&s, before - reply->chunk_blocks[i]);
        ck_assert_uint_eq(talk_probe(&again, NEW, N_NEW), 0);
    }
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, 0);
    for (uint32_t i = 0; i < N_NEW; i++)
        ck_assert_uint_eq(talk_probe(&again, NEW + i, 1), 0);
    talk_free(reply);
    talk_worker_close(&again);
    talk_worker_close(&lost);
    stage_close(&s);
}
END_TEST

// A word of another number, and of another index, prove nothing.
START_TEST(S17_wrong_words_after_the_loss_prove_nothing)
{
    struct talk_worker lost, again;
    Kvcache__SaveReply *reply;
    struct stage s;

    stage_open(&s, NULL);
    reply = lose_in_save(&s, &lost);
    talk_write_word(&lost, reply->chunk_words[0], reply->chunk_numbers[1]);
    talk_write_word(&lost, reply->chunk_words[1], reply->chunk_numbers[1] + 1000);
    wait_for(stage_stats(&s).stale_completions >= 2, ENGINE_MS);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW);
    again = raw_worker(&s);
    drain(&again, &lost);
    wait_quarantined(&s, 0);
    talk_free(reply);
    talk_worker_close(&again);
    talk_worker_close(&lost);
    stage_close(&s);
}
END_TEST

// Blocks under a load whose connection is lost stay: they are being read.
START_TEST(S29_a_load_outlasts_the_connection_until_drained)
{
    Kvcache__Load load = KVCACHE__LOAD__INIT;
    struct talk_worker lost, again;
    Kvcache__LookupReply *lease;
    struct stage s;

    stage_open(&s, NULL);
    lost = raw_worker(&s);
    talk_publish(&lost, OLD, N_OLD);
    lease = talk_lookup(&lost, OLD, N_OLD);
    load.lease = lease->lease;
    load.part = lost.part;
    load.epoch = lost.epoch;
    load.count = N_OLD;
    talk_free(talk_ask(lost.sock, WIRE_LOAD, &load.base, &kvcache__load_reply__descriptor));
    lose_socket(&lost);
    wait_for(stage_stats(&s).leases == 0, ENGINE_MS);
    daemon_clock_advance(s.daemon, AN_HOUR_US);
    stage_witness_works(&s);
    wait_for(stage_stats(&s).open_loads == 1, ENGINE_MS); // the witness's own end by and by
    again = raw_worker(&s);
    drain(&again, &lost);
    ck_assert_uint_eq(stage_stats(&s).open_loads, 0);
    ck_assert_uint_eq(talk_probe(&again, OLD, N_OLD), N_OLD);
    talk_free(lease);
    talk_worker_close(&again);
    talk_worker_close(&lost);
    stage_close(&s);
}
END_TEST

// With the library. SIGUSR1 cuts its connection wherever it is, and stops it there.
static int sock_to_cut;

static void cut(int signal)
{
    (void)signal;
    shutdown(sock_to_cut, SHUT_RDWR);
    raise(SIGSTOP);
}

static void save_over_a_cut(struct scene *s, const char *point)
{
    const struct sigaction action = {.sa_handler = cut};

    engine_open(&s->engine, s->socket);
    sock_to_cut = kvc_fd(s->engine.client);
    sigaction(SIGUSR1, &action, NULL);
    pause_arm(point, 1);
    (void)engine_try_save(&s->engine, NEW, N_NEW, NULL, NULL);
    actor_stop();
    // The session is lost, and the library says so.
    ck_assert_int_eq(kvc_ping(s->engine.client), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(s->engine.client), KVC_OK);
    ck_assert_uint_eq(engine_probe(&s->engine, NEW, N_NEW), s->told->values[0]);
    actor_stop();
    engine_put_some(&s->engine, NEW, N_NEW);
    engine_verify(&s->engine, NEW, N_NEW);
    engine_close(&s->engine);
}

static void cut_before_copies(struct scene *s)
{
    save_over_a_cut(s, "save.before_chunk");
}

static void cut_before_word(struct scene *s)
{
    save_over_a_cut(s, "save.before_word");
}

// The gpu tier alone, of two extents, one of which is the other namespace's: 157 slots. The witness
// fills what is left of it, over and over, while the lost worker may still write, and does.
static void lose_in_the_library(scene_fn *play)
{
    const char *const tiny[] = {"--gpu-bytes", "4M", "--host-bytes", "0", NULL};
    const uint32_t slots = (2u << 20) / ENGINE_SLOT_BYTES;
    struct actor worker;
    struct stage s;
    uint32_t put;

    stage_open(&s, tiny);
    worker = actor_start(play, s.socket);
    actor_until_stop(&worker);
    ck_assert_int_eq(kill(worker.pid, SIGUSR1), 0);
    actor_continue(&worker);
    actor_until_stop(&worker);
    wait_quarantined(&s, N_NEW);

    // Everything but the quarantine can be had, and nothing of it.
    for (uint32_t round = 0; round < 3; round++) {
        // A block that is being loaded goes nowhere, until its word was seen.
        wait_for(stage_stats(&s).open_loads == 0, ENGINE_MS);
        put = engine_put_some(&s.witness, 50000 + round * 1000, slots);
        ck_assert_uint_le(put, slots - N_NEW);
        ck_assert_uint_gt(put, 0);
        ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW);
        engine_verify(&s.witness, 50000 + round * 1000, put);
    }
    actor_continue(&worker); // late copies, late words
    actor_until_stop(&worker);
    wait_quarantined(&s, 0);
    engine_verify(&s.witness, 52000, put);
    wait_for(stage_stats(&s).open_loads == 0, ENGINE_MS);
    ck_assert_uint_eq(engine_count(&s.witness, NEW, N_NEW), 0);
    actor_continue(&worker);
    actor_until_stop(&worker);
    // Now that they are proved, the slots can be had.
    ck_assert_uint_gt(engine_put_some(&s.witness, 60000, slots), slots - N_NEW);
    engine_verify(&s.witness, 60000, slots - N_NEW);
    actor_continue(&worker);
    actor_end(&worker);
    stage_wait_sessions(&s, 1);
    s.crowded = true;
    stage_close(&s);
}

START_TEST(S15_a_late_copy_never_lands_in_a_reused_slot)
{
    lose_in_the_library(cut_before_copies);
    lose_in_the_library(cut_before_word);
}
END_TEST

// kvc_reconnect says DRAINED for the session that was lost: its saves wait for nobody.
static void reconnect_drains(struct scene *s)
{
    struct engine *e = &s->engine;
    uint64_t old;

    engine_open(e, s->socket);
    engine_put(e, OLD, N_OLD);
    (void)engine_lookup(e, OLD, N_OLD);
    old = kvc_session(e->client);
    shutdown(kvc_fd(e->client), SHUT_RDWR);
    ck_assert_int_eq(engine_try_load(e), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(e->client), KVC_OK);
    ck_assert_uint_ne(kvc_session(e->client), old);
    // The lease went with the session.
    ck_assert_int_ne(engine_try_load(e), KVC_OK);
    engine_verify(e, OLD, N_OLD);
    engine_close(e);
}

START_TEST(F8_a_worker_comes_back_after_its_connection_was_lost)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    worker = actor_start(reconnect_drains, s.socket);
    actor_end(&worker);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// It never comes back, and in the end it is gone.
START_TEST(S15_slots_of_a_lost_connection_come_back_with_the_process_end)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    worker = actor_start(cut_before_word, s.socket);
    actor_until_stop(&worker);
    ck_assert_int_eq(kill(worker.pid, SIGUSR1), 0);
    actor_continue(&worker);
    actor_until_stop(&worker);
    wait_quarantined(&s, N_NEW);
    stage_witness_works(&s);
    actor_kill(&worker);
    wait_quarantined(&s, 0);
    ck_assert_uint_eq(engine_count(&s.witness, NEW, N_NEW), 0);
    stage_close(&s);
}
END_TEST

CHECK_MAIN("fault/lost_socket", CHECK_LIFE_S, S15_slots_of_a_lost_connection_wait_for_drained,
           S15_drained_is_believed_only_from_who_knows_the_secret,
           S15_a_word_after_the_loss_frees_and_never_publishes,
           S17_wrong_words_after_the_loss_prove_nothing,
           S29_a_load_outlasts_the_connection_until_drained,
           S15_a_late_copy_never_lands_in_a_reused_slot,
           F8_a_worker_comes_back_after_its_connection_was_lost,
           S15_slots_of_a_lost_connection_come_back_with_the_process_end)
