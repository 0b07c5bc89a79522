// SAVE, ABORT, SAVE_DONE and DRAINED as packets: who is answered, when, and once.
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define SLOT  (256u << 10)
#define SLOTS 8u // in one extent, the smallest tier

static struct daemon *small_daemon(void)
{
    return daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "2M", NULL});
}

// Publishes n keys from `first`.
static void publish(struct talk_worker *w, uint32_t first, uint32_t n)
{
    Kvcache__SaveReply *reply = talk_save(w, first, n, true);
    Kvcache__SaveDone *done;

    talk_prove_all(w, reply);
    done = talk_save_done(w);
    ck_assert_uint_eq(done->save, reply->save);
    ck_assert_uint_eq(done->status, KVC_OK);
    ck_assert_uint_eq(done->published, n);
    talk_free(done);
    talk_free(reply);
}

static void count_states(const Kvcache__SaveReply *reply, uint32_t counts[4])
{
    memset(counts, 0, 4 * sizeof(counts[0]));
    for (size_t i = 0; i < reply->entries[0]->states.len; i++)
        counts[reply->entries[0]->states.data[i]]++;
}

START_TEST(test_saved_and_found)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;
    Kvcache__SaveReply *reply;
    uint32_t states[4];

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    reply = talk_save(&w, 1, 5, false);
    count_states(reply, states);
    ck_assert_uint_eq(states[KVCACHE__KEY_STATE__KEY_ASSIGNED], 5);
    ck_assert_uint_eq(reply->entries[0]->n_offsets, 5);
    ck_assert_uint_eq(reply->entries[0]->n_generations, 5);
    ck_assert_uint_eq(reply->entries[0]->tiers.len, 5);
    ck_assert_uint_eq(reply->n_chunk_blocks, 1);
    ck_assert_uint_eq(reply->chunk_blocks[0], 5);
    ck_assert_uint_eq(talk_probe(&w, 1, 5), 0);
    talk_prove_all(&w, reply);
    // Nobody says anything: the daemon looks by itself.
    wait_for(talk_probe(&w, 1, 5) == 5, 2000);
    talk_free(reply);

    reply = talk_save(&w, 1, 5, true);
    ck_assert_uint_eq(reply->save, 0);
    count_states(reply, states);
    ck_assert_uint_eq(states[KVCACHE__KEY_STATE__KEY_HIT], 5);
    talk_free(reply);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// A session that asked to be told is told in the moment of the proof, without a packet of its own.
START_TEST(test_done_comes_unasked)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    publish(&w, 1, 3);
    publish(&w, 10, 3);
    ck_assert_uint_eq(talk_probe(&w, 1, 3), 3);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(S5_empty_saves_do_nothing)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;
    Kvcache__Save m = KVCACHE__SAVE__INIT;
    Kvcache__SaveReply *reply;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    reply = talk_ask(w.sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor);
    ck_assert_uint_eq(reply->save, 0);
    ck_assert_uint_eq(reply->n_entries, 0);
    talk_free(reply);
    reply = talk_save(&w, 0, 0, true);
    ck_assert_uint_eq(reply->save, 0);
    ck_assert_uint_eq(reply->n_entries, 1);
    talk_free(reply);
    ck_assert_uint_eq(talk_probe(&w, 0, 0), 0);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Room that is being made does not come in time: the save is answered after a millisecond all the
// same, with what there was.
START_TEST(test_waits_for_room_and_gives_up)
{
    struct daemon *d = small_daemon();
    struct talk_worker w;
    Kvcache__SaveReply *reply;
    uint32_t states[4];

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    daemon_fault_arm(d, "mover.late", 0, UINT32_MAX);
    publish(&w, 1, SLOTS);
    reply = talk_save(&w, 100, 2, true);
    count_states(reply, states);
    ck_assert_uint_eq(states[KVCACHE__KEY_STATE__KEY_SKIPPED], 2);
    ck_assert_uint_eq(reply->save, 0);
    talk_free(reply);
    daemon_fault_off(d, "mover.late");
    // A later one finds the room that was made meanwhile.
    wait_for(({
                 reply = talk_save(&w, 100, 2, false);
                 count_states(reply, states);
                 talk_prove_all(&w, reply);
                 talk_free(reply);
                 states[KVCACHE__KEY_STATE__KEY_SKIPPED] == 0;
             }),
             5000);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

static Kvcache__AbortReply *reply_of_abort(struct talk_worker *w, uint32_t seq)
{
    return talk_reply(w->sock, seq, WIRE_ABORT, &kvcache__abort_reply__descriptor, NULL, NULL);
}

// A save of two blocks and an abort by its number, both there when the daemon wakes. The save's
// reply; the number of the abort.
static Kvcache__SaveReply *save_and_abort(struct daemon *d, struct talk_worker *w,
                                          uint32_t *abort_seq)
{
    Kvcache__Abort m = KVCACHE__ABORT__INIT;
    uint32_t seq;

    daemon_freeze(d);
    seq = talk_send_save(w, 100, 2, true);
    m.request = seq;
    m.never_all = true;
    *abort_seq = talk_send(w->sock, WIRE_ABORT, &m.base);
    daemon_thaw(d);
    return talk_save_reply(w, seq);
}

// By the number of its request, while it waits for room.
START_TEST(test_abort_of_a_waiting_save)
{
    struct daemon *d = small_daemon();
    struct talk_worker w;
    Kvcache__SaveReply *saved;
    kvc_status status = KVC_E_UNKNOWN;
    uint32_t abort_seq;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    daemon_fault_arm(d, "mover.late", 0, UINT32_MAX);
    publish(&w, 1, SLOTS);
    // One that loses the processor between the packets may have given up meanwhile.
    for (int tries = 0; status != KVC_OK; tries++) {
        ck_assert_int_lt(tries, 20);
        saved = save_and_abort(d, &w, &abort_seq);
        ck_assert_uint_eq(saved->save, 0);
        talk_free(saved);
        status = talk_outcome(w.sock, abort_seq);
        ck_assert(status == KVC_OK || status == KVC_E_UNKNOWN);
    }
    talk_ping(w.sock);
    daemon_fault_off(d, "mover.late");
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Who does not wait has the answer before the packet behind the request is looked at.
START_TEST(test_a_save_that_does_not_wait_for_room)
{
    struct daemon *d = small_daemon();
    struct talk_worker w;
    Kvcache__SaveReply *saved;
    uint32_t states[4], abort_seq;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    daemon_fault_arm(d, "mover.late", 0, UINT32_MAX);
    publish(&w, 1, SLOTS);
    w.no_wait = true;
    for (int i = 0; i < 20; i++) {
        saved = save_and_abort(d, &w, &abort_seq);
        count_states(saved, states);
        ck_assert_uint_eq(states[KVCACHE__KEY_STATE__KEY_SKIPPED], 2);
        talk_free(saved);
        ck_assert_int_eq(talk_outcome(w.sock, abort_seq), KVC_E_UNKNOWN);
    }
    daemon_fault_off(d, "mover.late");
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

static uint64_t sessions_held(struct talk_worker *w)
{
    Kvcache__StatsReply *stats = talk_stats(w->sock);
    uint64_t n = stats->sessions;

    talk_free(stats);
    return n;
}

// The session ends while its save waits for room; another waits behind it and is answered.
START_TEST(S14_ended_while_waiting_for_room)
{
    struct daemon *d = small_daemon();
    struct talk_worker w, other;
    Kvcache__SaveReply *reply;
    uint32_t seq;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    other = talk_worker_with_slots(daemon_socket(d), SLOT);
    daemon_fault_arm(d, "mover.late", 0, UINT32_MAX);
    publish(&w, 1, SLOTS);
    daemon_freeze(d);
    talk_send_save(&w, 100, 2, true);
    talk_worker_close(&w);
    seq = talk_send_save(&other, 200, 2, false);
    daemon_thaw(d);
    reply = talk_save_reply(&other, seq);
    talk_prove_all(&other, reply);
    talk_free(reply);
    daemon_fault_off(d, "mover.late");
    wait_for(sessions_held(&other) == 1, 2000);
    ck_assert_uint_eq(talk_probe(&other, 1, SLOTS), SLOTS);
    ck_assert_uint_eq(talk_probe(&other, 100, 2), 0);
    talk_worker_close(&other);
    daemon_stop(d);
}
END_TEST

// By the number of its request, after its reply was sent.
START_TEST(test_abort_by_request)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;
    Kvcache__Abort m = KVCACHE__ABORT__INIT;
    Kvcache__SaveReply *saved;
    Kvcache__AbortReply *aborted;
    Kvcache__StatsReply *stats;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    m.request = talk_send_save(&w, 1, 3, true);
    m.never_all = true;
    saved = talk_save_reply(&w, m.request);
    ck_assert_uint_ne(saved->save, 0);
    aborted = talk_ask(w.sock, WIRE_ABORT, &m.base, &kvcache__abort_reply__descriptor);
    ck_assert_uint_eq(aborted->status, KVC_E_CANCELLED);
    ck_assert_uint_eq(aborted->dropped, 3);
    talk_free(aborted);
    talk_free(saved);
    stats = talk_stats(w.sock);
    ck_assert_uint_eq(stats->filling_slots + stats->quarantined_slots, 0);
    talk_free(stats);
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_ABORT, &m.base), KVC_E_UNKNOWN, "request");
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// The reply to an ABORT waits for the words that are owed; it is the only one to tell of the end.
START_TEST(S16_abort_waits_for_the_words)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;
    Kvcache__Abort m = KVCACHE__ABORT__INIT;
    Kvcache__SaveReply *saved;
    Kvcache__AbortReply *aborted;
    Kvcache__StatsReply *stats;
    uint32_t seq;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    m.request = talk_send_save(&w, 1, 3, true);
    saved = talk_save_reply(&w, m.request);
    if (_i == 1) {
        m.save = saved->save;
        m.request = 0;
    }
    seq = talk_send(w.sock, WIRE_ABORT, &m.base);
    stats = talk_stats(w.sock); // answered first
    ck_assert_uint_eq(stats->quarantined_slots, 3);
    talk_free(stats);
    talk_prove_all(&w, saved);
    aborted = reply_of_abort(&w, seq);
    ck_assert_uint_eq(aborted->status, KVC_E_CANCELLED);
    ck_assert_uint_eq(aborted->published, 0);
    ck_assert_uint_eq(aborted->dropped, 3);
    talk_free(aborted);
    talk_free(saved);
    ck_assert_uint_eq(talk_probe(&w, 1, 3), 0);
    // A SAVE_DONE would come before this one.
    publish(&w, 50, 1);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Who aborts a save again and again, and does not end its copies, is owed a bounded number of
// answers.
START_TEST(S16_aborts_that_wait_are_bounded)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker_with_slots(daemon_socket(d), SLOT);
    Kvcache__Abort m = KVCACHE__ABORT__INIT;
    Kvcache__SaveReply *saved;
    Kvcache__AbortReply *aborted;
    uint32_t seqs[KVC_SESSION_ABORTS_MAX], seq;

    seq = talk_send_save(&w, 1, 3, true);
    saved = talk_save_reply(&w, seq);
    m.save = saved->save;
    for (uint32_t i = 0; i < KVC_SESSION_ABORTS_MAX; i++) {
        seqs[i] = talk_send(w.sock, WIRE_ABORT, &m.base);
        if (i % 32 == 0) // so that they have been read
            talk_free(talk_stats(w.sock));
    }
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_ABORT, &m.base), KVC_E_BUSY, "");
    talk_prove_all(&w, saved);
    // Each has its own, and there is room again.
    for (uint32_t i = 0; i < KVC_SESSION_ABORTS_MAX; i++) {
        aborted = reply_of_abort(&w, seqs[i]);
        ck_assert_uint_eq(aborted->status, KVC_E_CANCELLED);
        talk_free(aborted);
    }
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_ABORT, &m.base), KVC_E_UNKNOWN, "save");
    talk_free(saved);
    publish(&w, 50, 1);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// A worker that lost its socket comes back and declares the old session drained.
START_TEST(S15_drained_for_an_ended_session)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker old, w;
    Kvcache__Drained m = KVCACHE__DRAINED__INIT;
    Kvcache__StatsReply *stats;

    old = talk_worker_with_slots(daemon_socket(d), SLOT);
    talk_free(talk_save(&old, 1, 4, false));
    talk_worker_close(&old);
    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    wait_for(({
                 stats = talk_stats(w.sock);
                 uint64_t n = stats->quarantined_slots;
                 talk_free(stats);
                 n == 4;
             }),
             2000);
    m.session = old.session;
    m.secret = (ProtobufCBinaryData){KVC_SECRET_BYTES, w.secret};
    talk_expect_error(w.sock, talk_send(w.sock, WIRE_DRAINED, &m.base), KVC_E_DENIED, "secret");
    m.secret.data = old.secret;
    talk_free(talk_ask(w.sock, WIRE_DRAINED, &m.base, &kvcache__empty__descriptor));
    stats = talk_stats(w.sock);
    ck_assert_uint_eq(stats->quarantined_slots, 0);
    talk_free(stats);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("daemon/save", CHECK_LIFE_S, {test_saved_and_found, 0, 0},
                 {test_done_comes_unasked, 0, 0}, {S5_empty_saves_do_nothing, 0, 0},
                 {test_waits_for_room_and_gives_up, 0, 0}, {test_abort_of_a_waiting_save, 0, 0},
                 {test_a_save_that_does_not_wait_for_room, 0, 0},
                 {S14_ended_while_waiting_for_room, 0, 0}, {test_abort_by_request, 0, 0},
                 {S16_abort_waits_for_the_words, 0, 1}, {S16_aborts_that_wait_are_bounded, 0, 0},
                 {S15_drained_for_an_ended_session, 0, 0})
