/* Saves that fail, and that are cancelled, and what is left of them. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save, other;

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
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save), *witness = kit_worker(&kit);
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
    ck_assert_uint_eq(stats.blocks, kit_after_chunks(published));
    ck_assert_uint_eq(stats.tier[TIER_GPU].used_slots, kit_after_chunks(published) + owed);
    ck_assert_uint_eq(kit_probe(&kit, witness, 0, KIT_CHUNKED), kit_after_chunks(published));
    /* The keys are absent at once: another can save them, and nothing is pending. */
    kit_save(&kit, witness, 0, KIT_CHUNKED, &other);
    ck_assert_uint_eq(kit_count(&other, STORE_KEY_ASSIGNED),
                      KIT_CHUNKED - kit_after_chunks(published));
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
    ck_assert_uint_eq(stats.blocks, KIT_CHUNKED);
    ck_assert_uint_eq(stats.tier[TIER_GPU].used_slots, KIT_CHUNKED);
    kit_close(&kit);
}
END_TEST

START_TEST(S14_published_keys_keep_leases_and_order)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);
    struct kit_load load;
    uint64_t lease;

    kit_put(&kit, worker, 1000, 10);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KIT_CHUNKED, &lease), 64);
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

    worker = kit_open_chunks(&kit, 512, &save);
    for (uint32_t i = 0; i < failing; i++)
        kit_write(&kit, &save, i);
    kit_tell(&kit, &save, failing, KVC_E_DEVICE);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, failing == 2 ? 1 : 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), kit_after_chunks(failing));
    for (uint32_t i = failing + 1; i < 3; i++) {
        ck_assert_uint_gt(kit_stats(&kit).quarantined_slots, 0);
        kit_write(&kit, &save, i);
    }
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_E_DEVICE);
    ck_assert_uint_eq(kit.done[0].published, kit_after_chunks(failing));
    ck_assert_uint_eq(kit.done[0].dropped, KIT_CHUNKED - kit_after_chunks(failing));
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, kit_after_chunks(failing));
    kit_close(&kit);
}
END_TEST

START_TEST(S16_cancel_keeps_what_is_published_and_answers_once)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);

    kit.listen = "store: save cancelled ";
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
    ck_assert_uint_eq(kit.done[0].dropped, KIT_CHUNKED - 64);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), 64);
    /* Said once, with what was kept. */
    ck_assert_uint_eq(kit.n_heard, 1);
    ck_assert_ptr_nonnull(strstr(kit.heard, " published=64 dropped="));
    kit_close(&kit);
}
END_TEST

/* Copied by the daemon, it is over before the worker speaks, and only nobody has been told yet. */
START_TEST(S16_cancel_of_a_save_that_is_complete)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);

    kit.listen = "store: save cancelled ";
    for (uint32_t i = 0; i < 3; i++)
        kit_write(&kit, &save, i);
    ck_assert_int_eq(kit_abort(&kit, &save, false), -1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(kit.done[0].published, KIT_CHUNKED);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), KIT_CHUNKED);
    ck_assert_uint_eq(kit.n_heard, 0);
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
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save), *thief = kit_worker(&kit);
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
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);
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

CHECK_MAIN_LOOPS("store/abort", CHECK_UNIT_S,
                 {S14_failure_drops_exactly_the_unpublished, 0, CASES - 1, CHECK_BOTH_WAYS},
                 {S14_published_keys_keep_leases_and_order, 0, 0, CHECK_BOTH_WAYS},
                 {S14_failed_copy_of_the_daemon, 0, 2, CHECK_DAEMON_COPIES},
                 {S16_cancel_keeps_what_is_published_and_answers_once, 0, 0, CHECK_BOTH_WAYS},
                 {S16_cancel_of_a_save_that_is_complete, 0, 0, CHECK_BOTH_WAYS},
                 {S16_cancel_before_the_answer, 0, 0, CHECK_BOTH_WAYS},
                 {S17_what_is_stale_changes_nothing_and_is_counted, 0, 0, CHECK_BOTH_WAYS},
                 {proof_never_enqueued_chunks_free_their_slots, 0, 0})
