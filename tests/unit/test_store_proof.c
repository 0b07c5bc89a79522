/*
 * Publication on proof, and what is left of a save that fails. Where it says so, once for each way
 * to copy: the worker's words, or the daemon's own copies, are the proof.
 */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save, other;

/* Three chunks: 64, 64 and 22 blocks. */
#define KEYS 150u

static struct kit_owner *open_three_chunks(uint32_t gpu_slots)
{
    struct kit_owner *worker;
    struct kit_entry entry;

    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    entry = kit_entry(&kit, 0, KEYS);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.result.n_chunks, 3);
    return worker;
}

static uint32_t after_chunks(uint32_t n)
{
    return n == 3 ? KEYS : n * 64;
}

START_TEST(S12_no_hit_before_the_word)
{
    struct kit_owner *worker = open_three_chunks(512), *second = kit_worker(&kit);
    uint64_t lease;

    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KEYS);
    ck_assert_uint_eq(kit_lookup(&kit, second, 0, KEYS, &lease), 0);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KEYS, &lease), 0);
    kit_write(&kit, &save, 0);
    /* Written, but the store has not looked: a lookup that comes first may say miss. */
    kit_tick(&kit);
    ck_assert_uint_eq(kit_lookup(&kit, second, 0, KEYS, &lease), 64);
    kit_close(&kit);
}
END_TEST

START_TEST(S12_wrong_numbers_prove_nothing)
{
    struct kit_owner *worker = open_three_chunks(512);
    const uint64_t wrong[] = {0, save.chunks[0].number + 1000, save.chunks[1].number, ~0ull};

    for (uint32_t i = 0; i < 4; i++) {
        kit_word(&kit, worker, save.chunks[0].word, wrong[i]);
        kit_tick(&kit);
        ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), 0);
    }
    ck_assert_uint_ge(kit_stats(&kit).stale_completions, 3);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), KEYS);
    kit_close(&kit);
}
END_TEST

START_TEST(S13_chunks_appear_in_order)
{
    struct kit_owner *worker = open_three_chunks(512);

    kit_write(&kit, &save, 1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 64, 1), 0);
    kit_write(&kit, &save, 2);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).published_blocks, 0);
    ck_assert_uint_eq(kit.n_done, 0);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), KEYS);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(kit.done[0].save, save.result.save);
    ck_assert_uint_eq(kit.done[0].published, KEYS);
    ck_assert_uint_eq(kit.done[0].dropped, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    kit_close(&kit);
}
END_TEST

START_TEST(S13_a_nudge_publishes_at_once)
{
    struct kit_owner *worker = open_three_chunks(512);

    kit_write(&kit, &save, 0);
    store_nudge(kit.store, worker->owner);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), 64);
    kit_close(&kit);
}
END_TEST

/* _i: whoever asks, the saver or another; and neither a nudge nor time. */
START_TEST(S12_who_looks_up_sees_what_is_complete)
{
    struct kit_owner *worker = open_three_chunks(512);
    struct kit_owner *other = _i == 0 ? worker : kit_worker(&kit);

    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KEYS), 0);
    kit_write(&kit, &save, 1);
    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KEYS), 0);
    kit_write(&kit, &save, 0);
    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KEYS), 128);
    kit_write(&kit, &save, 2);
    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KEYS), KEYS);
    ck_assert_uint_eq(kit.n_done, 1);
    kit_check(&kit);
    kit_close(&kit);
}
END_TEST

/* How a save can fail, and whether its worker is still there to be told. */
enum failure { BY_ABORT, BY_ABORT_NEVER, BY_REQUEST, BY_DEADLINE, BY_DEATH, BY_FLUSH, FAILURES };
#define CASES (8 * FAILURES)

static void make_fail(enum failure failure, struct kit_owner *worker)
{
    struct save_outcome outcome;
    uint64_t blocks;
    bool pending;

    switch (failure) {
    case BY_ABORT:
        kit_abort(&kit, &save, false);
        break;
    case BY_ABORT_NEVER:
        kit_abort(&kit, &save, true);
        break;
    case BY_REQUEST:
        ck_assert_int_eq(store_abort(kit.store, worker->owner, 0, 0, NULL, 0, false, &pending,
                                     &outcome, &kit.why),
                         KVC_OK);
        break;
    case BY_DEADLINE:
        clock_advance(KVC_SAVE_PROOF_MS * CLOCK_MS_US);
        kit_tick(&kit);
        break;
    case BY_DEATH:
        store_owner_end(kit.store, worker->owner);
        break;
    case BY_FLUSH:
        ck_assert_int_eq(
            store_flush(kit.store, &(struct store_scope){.part = kit.part}, &blocks, &kit.why),
            KVC_OK);
        break;
    case FAILURES:
        break;
    }
    kit_check(&kit);
}

/* _i: failure, and which of the chunks were proved before it (a bit each). */
START_TEST(S14_failure_drops_exactly_the_unpublished)
{
    enum failure failure = _i / 8;
    uint32_t proved = _i % 8, published = 0, owed = 0;
    struct kit_owner *worker = open_three_chunks(512), *witness = kit_worker(&kit);
    struct store_stats stats;

    for (uint32_t i = 0; i < 3; i++)
        if (proved >> i & 1)
            kit_write(&kit, &save, i);
    kit_tick(&kit);
    while (published < 3 && proved >> published & 1)
        published++;
    if (published == 3) {
        kit_close(&kit);
        return;
    }
    make_fail(failure, worker);
    for (uint32_t i = 0; i < 3; i++)
        if (!(proved >> i & 1) && failure != BY_ABORT_NEVER)
            owed += save.chunks[i].blocks;
    stats = kit_stats(&kit);
    ck_assert_uint_eq(stats.filling_slots, 0);
    ck_assert_uint_eq(stats.quarantined_slots, owed);
    ck_assert_uint_eq(stats.aborted_saves, 1);
    if (failure == BY_FLUSH) {
        ck_assert_uint_eq(stats.blocks, 0);
        kit_close(&kit);
        return;
    }
    ck_assert_uint_eq(stats.blocks, after_chunks(published));
    ck_assert_uint_eq(stats.tier[TIER_GPU].used_slots, after_chunks(published) + owed);
    ck_assert_uint_eq(kit_probe(&kit, witness, 0, KEYS), after_chunks(published));
    /* The keys are absent at once: another can save them, and nothing is pending. */
    kit_save(&kit, witness, 0, KEYS, &other);
    ck_assert_uint_eq(kit_count(&other, STORE_KEY_ASSIGNED), KEYS - after_chunks(published));
    kit_prove(&kit, &other);
    /* Words that come late, and copies that end late, free the slots and publish nothing. */
    for (uint32_t i = 0; i < 3; i++) {
        if (!kit_daemon_copies())
            kit_word(&kit, worker, save.chunks[i].word, save.chunks[i].number);
        else if (!(proved >> i & 1) && failure != BY_ABORT_NEVER)
            kit_tell(&kit, &save, i, i % 2 == 0 ? KVC_OK : KVC_E_DEVICE);
    }
    clock_advance(KVC_POLL_OLD_MS * CLOCK_MS_US);
    kit_tick(&kit);
    stats = kit_stats(&kit);
    ck_assert_uint_eq(stats.quarantined_slots, 0);
    ck_assert_uint_eq(stats.blocks, KEYS);
    ck_assert_uint_eq(stats.tier[TIER_GPU].used_slots, KEYS);
    kit_close(&kit);
}
END_TEST

START_TEST(S14_published_keys_keep_leases_and_order)
{
    struct kit_owner *worker = open_three_chunks(512);
    struct kit_load load;
    uint64_t lease;

    kit_put(&kit, worker, 1000, 10);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KEYS, &lease), 64);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 64);
    kit_load(&kit, worker, lease, 0, 0, 64, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* 1009 is still the coldest. */
    kit_put(&kit, worker, 2000, 512 - 74 + 1);
    ck_assert(!kit_has(&kit, 1009));
    ck_assert(kit_has(&kit, 1008));
    kit_close(&kit);
}
END_TEST

/* The failing copy is chunk _i; those that run beside it end afterwards, well or not. */
START_TEST(S14_failed_copy_of_the_daemon)
{
    struct kit_owner *worker;
    const uint32_t failing = (uint32_t)_i;

    worker = open_three_chunks(512);
    for (uint32_t i = 0; i < failing; i++)
        kit_write(&kit, &save, i);
    kit_tell(&kit, &save, failing, KVC_E_DEVICE);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, failing == 2 ? 1 : 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), after_chunks(failing));
    for (uint32_t i = failing + 1; i < 3; i++) {
        ck_assert_uint_gt(kit_stats(&kit).quarantined_slots, 0);
        kit_write(&kit, &save, i);
    }
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_E_DEVICE);
    ck_assert_uint_eq(kit.done[0].published, after_chunks(failing));
    ck_assert_uint_eq(kit.done[0].dropped, KEYS - after_chunks(failing));
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, after_chunks(failing));
    kit_close(&kit);
}
END_TEST

/* Nobody else's word ends what the daemon copies: not the process's end, not DRAINED. */
START_TEST(S15_only_the_daemon_ends_its_copies)
{
    struct kit_owner *worker, *second;

    worker = open_three_chunks(512);
    second = kit_worker(&kit);
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KEYS);
    kit_write(&kit, &save, 0);
    store_owner_end(kit.store, worker->owner);
    store_owner_gone(kit.store, worker->owner);
    kit_tick(&kit);
    ck_assert(!worker->freed);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, KEYS - 64);
    ck_assert_int_eq(store_drained(kit.store, second->owner, owner_id(worker->owner),
                                   owner_secret(worker->owner), KVC_SECRET_BYTES, &kit.why),
                     KVC_E_BUSY);
    kit_write(&kit, &save, 2);
    kit_tick(&kit);
    ck_assert(!worker->freed);
    kit_tell(&kit, &save, 1, KVC_E_CANCELLED);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_probe(&kit, second, 0, KEYS), 64);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_quarantined_slots_are_not_given_away)
{
    struct kit_owner *worker = open_three_chunks(512), *second = kit_worker(&kit);
    struct store_location mine[KEYS];

    memcpy(mine, save.locations, sizeof(mine));
    store_owner_end(kit.store, worker->owner);
    kit_save(&kit, second, 0, 512, &other);
    ck_assert_uint_eq(other.n_assigned, 512 - KEYS);
    for (uint32_t i = 0; i < other.n_assigned; i++)
        for (uint32_t j = 0; j < KEYS; j++)
            ck_assert_uint_ne(other.locations[i].offset, mine[j].offset);
    clock_advance(3600 * CLOCK_S_US); /* never because time has passed */
    kit_tick(&kit);
    ck_assert_uint_ge(kit_stats(&kit).quarantined_slots, KEYS);
    ck_assert_uint_ge(kit_stats(&kit).quarantine_oldest_us, 3600 * CLOCK_S_US);
    ck_assert(!worker->freed);
    store_owner_gone(kit.store, worker->owner);
    kit_tick(&kit);
    ck_assert(worker->freed);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_a_worker_that_lost_its_socket_drains)
{
    struct kit_owner *worker = open_three_chunks(512), *again = kit_worker(&kit);
    uint64_t session = owner_id(worker->owner);
    uint8_t secret[KVC_SECRET_BYTES];
    struct store *store = kit.store;

    memcpy(secret, owner_secret(worker->owner), sizeof(secret));
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why), KVC_E_BUSY);
    store_owner_end(store, worker->owner);
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 15, &kit.why),
                     KVC_E_INVALID);
    secret[3] ^= 1;
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why),
                     KVC_E_DENIED);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, KEYS);
    secret[3] ^= 1;
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_int_eq(store_drained(store, again->owner, session, secret, 16, &kit.why),
                     KVC_E_UNKNOWN);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_drained_of_the_session_itself)
{
    struct kit_owner *worker = open_three_chunks(512);

    kit_write(&kit, &save, 0);
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), 64);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_uint_eq(kit.done[0].published, 64);
    ck_assert_uint_eq(kit.done[0].dropped, KEYS - 64);
    kit_close(&kit);
}
END_TEST

START_TEST(S16_cancel_keeps_what_is_published_and_answers_once)
{
    struct kit_owner *worker = open_three_chunks(512);

    /* The word is there though nobody has looked: it counts. */
    kit_write(&kit, &save, 0);
    ck_assert_int_eq(kit_abort(&kit, &save, false), -1);
    ck_assert_int_eq(kit_abort(&kit, &save, false), -1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 0);
    kit_write(&kit, &save, 1);
    kit_write(&kit, &save, 2);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_E_CANCELLED);
    ck_assert_uint_eq(kit.done[0].published, 64);
    ck_assert_uint_eq(kit.done[0].dropped, KEYS - 64);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), 64);
    kit_close(&kit);
}
END_TEST

/* Copied by the daemon, it is over before the worker speaks, and only nobody has been told yet. */
START_TEST(S16_cancel_of_a_save_that_is_complete)
{
    struct kit_owner *worker = open_three_chunks(512);

    for (uint32_t i = 0; i < 3; i++)
        kit_write(&kit, &save, i);
    ck_assert_int_eq(kit_abort(&kit, &save, false), -1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(kit.done[0].published, KEYS);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), KEYS);
    kit_close(&kit);
}
END_TEST

START_TEST(S16_cancel_before_the_answer)
{
    struct kit_owner *worker;
    struct kit_entry entry;
    struct save_outcome outcome;
    bool pending;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    entry = kit_entry(&kit, 7, 10);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_int_eq(
        store_abort(kit.store, worker->owner, 0, 7, NULL, 0, true, &pending, &outcome, &kit.why),
        KVC_OK);
    ck_assert(!pending);
    ck_assert_uint_eq(outcome.dropped, 8);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(store_save_more(kit.store, save.open), 0);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), 10);
    kit_close(&kit);
}
END_TEST

START_TEST(S17_what_is_stale_changes_nothing_and_is_counted)
{
    struct kit_owner *worker = open_three_chunks(512), *thief = kit_worker(&kit);
    struct store_stats stats;
    struct save_outcome outcome;
    uint64_t lease;
    bool pending;

    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 4, &lease), 4);
    stats = kit_stats(&kit);
    /* An abort of a save that is over, of another session's, and of one that never was. */
    ck_assert_int_eq(store_abort(kit.store, worker->owner, save.result.save, 0, NULL, 0, true,
                                 &pending, &outcome, &kit.why),
                     KVC_E_UNKNOWN);
    ck_assert_str_eq(kit.why.field, "save");
    kit_save(&kit, worker, 1000, 1, &other);
    ck_assert_int_eq(store_abort(kit.store, thief->owner, other.result.save, 0, NULL, 0, true,
                                 &pending, &outcome, &kit.why),
                     KVC_E_UNKNOWN);
    ck_assert_int_eq(store_abort(kit.store, worker->owner, ~0ull, 0, NULL, 0, true, &pending,
                                 &outcome, &kit.why),
                     KVC_E_UNKNOWN);
    /* A chunk that is not there. */
    ck_assert_int_eq(store_abort(kit.store, worker->owner, other.result.save, 0, (uint32_t[]){0, 1},
                                 2, false, &pending, &outcome, &kit.why),
                     KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "never[1]");
    /* Leases that are another's or none. */
    ck_assert_int_eq(store_release(kit.store, thief->owner, lease, &kit.why), KVC_E_DENIED);
    ck_assert_int_eq(store_release(kit.store, worker->owner, ~0ull, &kit.why), KVC_OK);
    /* An old number in a word that is used again; or in one that nobody waits for. */
    kit_word(&kit, worker, other.chunks[0].word, save.chunks[0].number - 1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).stale_completions,
                      stats.stale_completions + (other.copy ? 5 : 6));
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 1);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    kit_prove(&kit, &other);
    ck_assert(kit_has(&kit, 1000));
    kit_close(&kit);
}
END_TEST

START_TEST(proof_never_enqueued_chunks_free_their_slots)
{
    struct save_outcome outcome;
    struct kit_owner *worker = open_three_chunks(512);
    bool pending;

    ck_assert_int_eq(store_abort(kit.store, worker->owner, save.result.save, 0, (uint32_t[]){2, 1},
                                 2, false, &pending, &outcome, &kit.why),
                     KVC_OK);
    ck_assert(pending);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 64);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_uint_eq(kit.done[0].published, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    kit_close(&kit);
}
END_TEST

/* A save keeps the time that it was given, and does not keep that of a later one from counting. */
START_TEST(proof_time_that_is_made_shorter)
{
    struct store_tuning tuning = {.lease_ms = KVC_LEASE_MS_DEFAULT, .save_proof_ms = 3600000};
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    worker = kit_worker(&kit);
    store_tune(kit.store, &tuning);
    kit_save(&kit, worker, 1, 1, &save);
    tuning.save_proof_ms = 1000;
    store_tune(kit.store, &tuning);
    kit_save(&kit, worker, 2, 1, &other);
    clock_advance(1000 * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).aborted_saves, 1);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 1);
    kit_prove(&kit, &save);
    store_nudge(kit.store, worker->owner);
    ck_assert(kit_has(&kit, 1));
    ck_assert(!kit_has(&kit, 2));
    kit_close(&kit);
}
END_TEST

/* However many have arrived at once: each publishes a chunk. */
START_TEST(proofs_are_taken_by_turns)
{
    static struct kit_save saves[6];
    struct kit_owner *worker;
    uint64_t published = 0;
    uint32_t turns = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8192, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < 6; i++)
        kit_save(&kit, worker, i * KVC_KEYS_MAX, KVC_KEYS_MAX, &saves[i]);
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t chunk = 0; chunk < saves[i].result.n_chunks; chunk++)
            kit_write(&kit, &saves[i], chunk);
    clock_advance(KVC_POLL_MS * CLOCK_MS_US);
    for (; published < 6 * KVC_KEYS_MAX; turns++) {
        const uint64_t before = published;

        ck_assert_uint_eq(store_next_wake(kit.store), 0);
        store_tick(kit.store);
        published = kit_stats(&kit).published_blocks;
        ck_assert_uint_gt(published, before);
        ck_assert_uint_le(published, before + 64 * KVC_CHUNK_BLOCKS);
    }
    ck_assert_uint_ge(turns, 2);
    kit_close(&kit);
}
END_TEST

START_TEST(proof_is_taken_when_the_session_ends)
{
    struct kit_owner *worker = open_three_chunks(512), *second = kit_worker(&kit);

    kit_write(&kit, &save, 0);
    kit_write(&kit, &save, 2);
    store_owner_end(kit.store, worker->owner);
    ck_assert_uint_eq(kit_probe(&kit, second, 0, KEYS), 64);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 64);
    ck_assert(!worker->freed);
    kit_write(&kit, &save, 1);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_uint_eq(kit.n_done, 0);
    ck_assert_uint_eq(kit_probe(&kit, second, 0, KEYS), 64);
    kit_close(&kit);
}
END_TEST

START_TEST(proof_session_ends_while_its_save_waits_for_room)
{
    struct kit_owner *worker;
    struct kit_entry entry;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8, .host_slots = 8});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8);
    entry = kit_entry(&kit, 100, 4);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(save.short_of, 4);
    store_owner_end(kit.store, worker->owner);
    kit_moves(&kit, 8, KVC_OK);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_uint_eq(kit.n_room, 0);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 8);
    kit_close(&kit);
}
END_TEST

START_TEST(proof_wakes_each_ms_and_old_words_each_100_ms)
{
    struct kit_owner *worker = open_three_chunks(512);

    ck_assert_uint_le(store_next_wake(kit.store), KVC_POLL_MS * CLOCK_MS_US);
    clock_advance(2 * CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_gt(store_next_wake(kit.store), 90 * CLOCK_MS_US);
    ck_assert_uint_le(store_next_wake(kit.store), KVC_POLL_OLD_MS * CLOCK_MS_US);
    ck_assert_uint_ge(kit_stats(&kit).oldest_op_us, 2 * CLOCK_S_US);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), 0);
    clock_advance(KVC_POLL_OLD_MS * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KEYS), 64);
    kit_write(&kit, &save, 1);
    kit_write(&kit, &save, 2);
    store_nudge(kit.store, worker->owner);
    ck_assert_uint_eq(store_next_wake(kit.store), UINT64_MAX);
    ck_assert_uint_eq(kit_stats(&kit).oldest_op_us, 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS(
    "store/proof", CHECK_UNIT_S, {S12_no_hit_before_the_word, 0, 0, CHECK_BOTH_WAYS},
    {S12_wrong_numbers_prove_nothing, 0, 0}, {S13_chunks_appear_in_order, 0, 0, CHECK_BOTH_WAYS},
    {S13_a_nudge_publishes_at_once, 0, 0}, {S12_who_looks_up_sees_what_is_complete, 0, 1},
    {S14_failure_drops_exactly_the_unpublished, 0, CASES - 1, CHECK_BOTH_WAYS},
    {S14_published_keys_keep_leases_and_order, 0, 0, CHECK_BOTH_WAYS},
    {S14_failed_copy_of_the_daemon, 0, 2, CHECK_DAEMON_COPIES},
    {S15_only_the_daemon_ends_its_copies, 0, 0, CHECK_DAEMON_COPIES},
    {S15_quarantined_slots_are_not_given_away, 0, 0},
    {S15_a_worker_that_lost_its_socket_drains, 0, 0}, {S15_drained_of_the_session_itself, 0, 0},
    {S16_cancel_keeps_what_is_published_and_answers_once, 0, 0, CHECK_BOTH_WAYS},
    {S16_cancel_of_a_save_that_is_complete, 0, 0, CHECK_BOTH_WAYS},
    {S16_cancel_before_the_answer, 0, 0, CHECK_BOTH_WAYS},
    {S17_what_is_stale_changes_nothing_and_is_counted, 0, 0, CHECK_BOTH_WAYS},
    {proof_never_enqueued_chunks_free_their_slots, 0, 0}, {proof_time_that_is_made_shorter, 0, 0},
    {proofs_are_taken_by_turns, 0, 0}, {proof_is_taken_when_the_session_ends, 0, 0},
    {proof_session_ends_while_its_save_waits_for_room, 0, 0},
    {proof_wakes_each_ms_and_old_words_each_100_ms, 0, 0})
