// A worker that is stopped (SIGSTOP), or does not read its socket, or never calls again. Others are
// not affected, time alone frees nothing that it may still write to, and when it goes on it finds
// misses and errors, and harms nobody.
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "client/pause.h"
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define OLD   100u
#define N_OLD 4u
#define NEW   1000u
#define N_NEW 150u // three chunks

// The gpu tier alone, two extents, one of which the other namespace has until it is cold.
static const char *const tiny[] = {"--gpu-bytes", "4M", "--host-bytes", "0", NULL};
#define TINY_SLOTS (2 * ((2u << 20) / ENGINE_SLOT_BYTES))

#define PROOF_US (KVC_SAVE_PROOF_MS * CLOCK_MS_US)
#define LEASE_US (KVC_LEASE_MS_DEFAULT * CLOCK_MS_US)

static void wait_loads_over(const struct stage *s)
{
    wait_for(stage_stats(s).open_loads == 0, ENGINE_MS);
}

// Fills all that is to be had, over and over, and reads it back.
static uint32_t crowd(struct stage *s, uint32_t first)
{
    uint32_t put = 0;

    for (uint32_t round = 0; round < 3; round++) {
        wait_loads_over(s);
        put = engine_put_some(&s->witness, first + round * 1000, TINY_SLOTS);
        ck_assert_uint_gt(put, 0);
        engine_verify(&s->witness, first + round * 1000, put);
    }
    wait_loads_over(s);
    return put;
}

static void stopped_in_a_save(struct scene *s)
{
    static const char *const points[] = {"save.before_chunk", "save.before_word"};
    kvc_outcome outcome;
    uint64_t save;

    engine_open(&s->engine, s->socket);
    pause_arm(points[s->number], 2);
    save = engine_save(&s->engine, NEW, N_NEW);
    // All was copied, late, and all words were written.
    ck_assert_int_eq(kvc_wait(s->engine.client, save, wait_patient_ms(ENGINE_MS), &outcome),
                     KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_DEADLINE);
    ck_assert_uint_eq(outcome.published, 64);
    ck_assert_uint_eq(outcome.dropped, N_NEW - 64);
    actor_stop();
    ck_assert_uint_gt(engine_put_some(&s->engine, NEW, N_NEW), 0);
    engine_close(&s->engine);
}

// The save's 30 s are over while its worker is stopped in the middle of it: its unpublished keys
// are absent and its slots wait. The late copies and words change no block of anybody.
START_TEST(S15_a_late_write_never_lands_in_a_reused_slot)
{
    struct actor worker;
    struct stage s;
    uint32_t put, first = 60000;

    stage_open(&s, tiny);
    worker = actor_start_numbered(stopped_in_a_save, s.socket, _i);
    actor_until_stop(&worker);
    wait_for(engine_probe(&s.witness, NEW, N_NEW) == 64, ENGINE_MS);
    ck_assert_uint_eq(stage_stats(&s).filling_slots, N_NEW - 64);
    daemon_clock_advance(s.daemon, PROOF_US - CLOCK_S_US);
    ck_assert_uint_eq(engine_probe(&s.witness, NEW, N_NEW), 64);
    ck_assert_uint_eq(stage_stats(&s).filling_slots, N_NEW - 64);
    daemon_clock_advance(s.daemon, 2 * CLOCK_S_US);
    wait_for(stage_stats(&s).quarantined_slots == N_NEW - 64, ENGINE_MS);
    ck_assert_uint_eq(stage_stats(&s).filling_slots, 0);
    ck_assert_uint_eq(engine_count(&s.witness, NEW, N_NEW), 64);

    put = crowd(&s, 50000);
    ck_assert_uint_le(put, TINY_SLOTS - (N_NEW - 64));
    daemon_clock_advance(s.daemon, 3600 * CLOCK_S_US);
    wait_loads_over(&s);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW - 64);
    actor_continue(&worker);
    actor_until_stop(&worker);
    wait_for(stage_stats(&s).quarantined_slots == 0, ENGINE_MS);
    engine_verify(&s.witness, 52000, put);
    ck_assert_uint_eq(engine_count(&s.witness, NEW + 64, N_NEW - 64), 0);
    wait_loads_over(&s);
    // The other namespace's extent comes in a while, since it was not used for an hour.
    wait_for(crowd(&s, first += 5000) > TINY_SLOTS - (N_NEW - 64), ENGINE_MS);

    actor_continue(&worker);
    actor_end(&worker);
    stage_wait_sessions(&s, 1);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

static void stopped_with_leases(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    engine_put(&s->engine, OLD, N_OLD);
    ck_assert_uint_eq(engine_lookup(&s->engine, OLD, N_OLD), N_OLD);
    actor_stop();
    ck_assert_int_eq(engine_try_load(&s->engine), KVC_E_EXPIRED);
    ck_assert(!engine_holds(&s->engine, OLD, 1));
    ck_assert_uint_eq(engine_probe(&s->engine, OLD, N_OLD), 0);
    engine_close(&s->engine);
}

// F9, F27: locks of somebody who does nothing end by the clock.
START_TEST(S30_leases_of_a_stopped_worker_end_by_their_time)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, tiny);
    worker = actor_start(stopped_with_leases, s.socket);
    actor_until_stop(&worker);
    // As long as they last they are kept.
    crowd(&s, 50000);
    ck_assert_uint_eq(engine_count(&s.witness, OLD, N_OLD), N_OLD);
    ck_assert_uint_eq(stage_stats(&s).leases, 1);
    daemon_clock_advance(s.daemon, LEASE_US + CLOCK_S_US);
    wait_for(stage_stats(&s).leases == 0, ENGINE_MS);
    crowd(&s, 60000);
    ck_assert_uint_eq(engine_count(&s.witness, OLD, N_OLD), 0);
    actor_continue(&worker);
    actor_end(&worker);
    stage_wait_sessions(&s, 1);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

static void stopped_in_a_load(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    engine_put(&s->engine, OLD, N_OLD);
    ck_assert_uint_eq(engine_lookup(&s->engine, OLD, N_OLD), N_OLD);
    engine_trap(&s->engine, 1);
    ck_assert_int_eq(engine_load_over(&s->engine), KVC_OK);
    ck_assert(engine_holds(&s->engine, OLD, N_OLD));
    engine_close(&s->engine);
}

// F13: each way to read. Where the block is, and where it could go to while it is read.
static const char *const readings[][5] = {
    {"--gpu-bytes", "4M", "--host-bytes", "0", NULL},
    {"--gpu-bytes", "0", "--host-bytes", "4M", NULL},
    {"--gpu-bytes", "4M", "--host-bytes", "4M", NULL},
};

// S28: not evicted and not moved while it is read, also when the lease is long over.
START_TEST(S30_a_stopped_load_outlasts_its_lease)
{
    struct actor worker;
    struct stage s;
    uint32_t put = 0;

    stage_open(&s, readings[_i]);
    worker = actor_start(stopped_in_a_load, s.socket);
    actor_until_stop(&worker);
    daemon_clock_advance(s.daemon, 3600 * CLOCK_S_US);
    wait_for(stage_stats(&s).leases == 0, ENGINE_MS);
    // How many find room at once is the machine's to say.
    for (uint32_t round = 0; round < 6 || (round < 100 && put <= TINY_SLOTS); round++)
        put += engine_put_some(&s.witness, 50000 + round * 1000, TINY_SLOTS);
    ck_assert_uint_gt(put, TINY_SLOTS);
    ck_assert_uint_gt(stage_stats(&s).evictions, 0);
    stage_check(&s);
    ck_assert_uint_eq(stage_stats(&s).open_loads, 1);
    ck_assert_uint_eq(engine_count(&s.witness, OLD, N_OLD), N_OLD);
    actor_continue(&worker); // it compares what it has loaded
    actor_end(&worker);
    stage_wait_sessions(&s, 1);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

// Asks, and asks, and reads nothing; its save is not proved.
static void never_reads(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    static uint8_t payload[32768];
    Kvcache__Ping ping = KVCACHE__PING__INIT;

    talk_send_save(&w, NEW, N_NEW, true);
    talk_send_lookup(&w, OLD, N_OLD);
    ping.payload = (ProtobufCBinaryData){sizeof(payload), payload};
    for (;;) {
        struct pollfd writable = {.fd = w.sock, .events = POLLOUT};

        if (talk_try_send(w.sock, WIRE_PING, &ping.base))
            continue;
        poll(&writable, 1, ENGINE_MS);
        if (writable.revents & (POLLHUP | POLLERR))
            actor_stop();
    }
}

// The most bytes that wait for a client, as `kvcachectl clients` shows it.
static uint64_t queued_bytes(const struct stage *s)
{
    struct admin_list list;
    uint64_t most = 0;

    ck_assert_int_eq(admin_list(s->figures, "clients", 0, 0, &list), KVC_OK);
    for (size_t c = 0; c < list.n_columns; c++) {
        if (strcmp(list.columns[c], "queued_bytes") != 0)
            continue;
        for (size_t r = 0; r < list.n_rows; r++) {
            uint64_t bytes = strtoull(list.rows[r].values[c], NULL, 10);

            most = bytes > most ? bytes : most;
        }
    }
    return most;
}

START_TEST(a_worker_that_does_not_read_is_cut_and_harms_nobody)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    daemon_log_expect(s.daemon, "connection cut");
    worker = actor_start(never_reads, s.socket);
    wait_for(queued_bytes(&s) >= KVC_OUT_STOP_BYTES, ENGINE_MS);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).filling_slots, N_NEW);
    ck_assert_uint_lt(queued_bytes(&s), KVC_OUT_CUT_BYTES);
    daemon_clock_advance(s.daemon, (KVC_OUT_CUT_MS + 1000) * CLOCK_MS_US);
    wait_for(stage_stats(&s).quarantined_slots == N_NEW, ENGINE_MS);
    actor_until_stop(&worker); // it has seen the end
    ck_assert_int_eq(daemon_log_count(s.daemon, "connection cut"), 1);
    stage_witness_works(&s);
    // It lives, and might still write.
    daemon_clock_advance(s.daemon, 3600 * CLOCK_S_US);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, N_NEW);
    actor_kill(&worker);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

static void replies_unread(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    uint32_t save = talk_send_save(&w, NEW, N_NEW, true), lookup = talk_send_lookup(&w, NEW, 4);
    Kvcache__SaveReply *reply;
    Kvcache__LookupReply *found;

    actor_stop();
    reply = talk_reply(w.sock, save, WIRE_SAVE, &kvcache__save_reply__descriptor, NULL, NULL);
    ck_assert_uint_eq(reply->entries[0]->n_offsets, N_NEW);
    found = talk_reply(w.sock, lookup, WIRE_LOOKUP, &kvcache__lookup_reply__descriptor, NULL, NULL);
    ck_assert_uint_eq(found->count, 0);
    for (size_t i = 0; i < reply->n_chunk_words; i++)
        talk_prove(&w, reply, i);
    actor_stop();
    ck_assert_uint_eq(talk_probe(&w, NEW, N_NEW), 0);
    talk_publish(&w, NEW, N_NEW);
    talk_worker_close(&w);
}

// It reads its replies a day later: the save is over by then, and the words only free.
START_TEST(S17_replies_read_too_late)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    worker = actor_start(replies_unread, s.socket);
    actor_until_stop(&worker);
    wait_for(stage_stats(&s).filling_slots == N_NEW, ENGINE_MS);
    daemon_clock_advance(s.daemon, 24 * 3600 * CLOCK_S_US);
    wait_for(stage_stats(&s).quarantined_slots == N_NEW, ENGINE_MS);
    stage_witness_works(&s);
    ck_assert_uint_eq(stage_stats(&s).sessions, 2);
    actor_continue(&worker);
    actor_until_stop(&worker);
    wait_for(stage_stats(&s).quarantined_slots == 0, ENGINE_MS);
    actor_continue(&worker);
    actor_end(&worker);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}
END_TEST

// The word, and then nothing: no NUDGE, no packet, of nobody. The test looks through the daemon's
// log of nothing but its own questions, so it asks as another session, once the word is old.
static void word_and_silence(struct scene *s)
{
    struct talk_worker w = talk_worker(s->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    Kvcache__SaveReply *reply = talk_save(&w, NEW, N_NEW, false);

    actor_stop();
    for (size_t i = 0; i < reply->n_chunk_words; i++)
        talk_prove(&w, reply, i);
    actor_stop();
}

// age: how old the words that are owed are when they arrive.
static void publish_in_silence(uint64_t age_us)
{
    struct actor worker;
    struct stage s;

    stage_open(&s, NULL);
    worker = actor_start(word_and_silence, s.socket);
    actor_until_stop(&worker);
    daemon_clock_advance(s.daemon, age_us);
    actor_continue(&worker);
    actor_until_stop(&worker);
    wait_for(stage_stats(&s).filling_slots == 0, ENGINE_MS);
    ck_assert_uint_eq(stage_stats(&s).quarantined_slots, 0);
    ck_assert_uint_eq(stage_stats(&s).sessions, 2);
    {
        struct talk_worker w = talk_worker(s.socket, KVCACHE__ROLE__ROLE_SCHEDULER, STAGE_RAW_NS);

        ck_assert_uint_eq(talk_probe(&w, NEW, N_NEW), N_NEW);
        talk_worker_close(&w);
    }
    actor_kill(&worker);
    stage_wait_sessions(&s, 1);
    stage_close(&s);
}

START_TEST(S12_published_without_any_further_call)
{
    publish_in_silence(0);
}
END_TEST

START_TEST(S12_published_without_any_further_call_when_words_are_old)
{
    publish_in_silence(5 * CLOCK_S_US);
}
END_TEST

CHECK_MAIN_LOOPS("fault/stopped", CHECK_LIFE_S,
                 {S15_a_late_write_never_lands_in_a_reused_slot, 0, 1},
                 {S30_leases_of_a_stopped_worker_end_by_their_time, 0, 0},
                 {S30_a_stopped_load_outlasts_its_lease, 0, 2},
                 {a_worker_that_does_not_read_is_cut_and_harms_nobody, 0, 0},
                 {S17_replies_read_too_late, 0, 0}, {S12_published_without_any_further_call, 0, 0},
                 {S12_published_without_any_further_call_when_words_are_old, 0, 0})
