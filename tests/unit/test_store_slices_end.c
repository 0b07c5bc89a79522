/* How saves by slices end: all calls together, well or not. */
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/slicekit.h"

static struct slicekit s;

/* What has ended is told once, also to who cancels it before that was told. */
START_TEST(S16_an_abort_between_the_end_and_its_report)
{
    struct save_outcome outcome;
    bool pending;
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 0)->status, KVC_OK);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) {
            if (s.calls[i].copy)
                kit_tell_copy(&s.kit, s.calls[i].copy, k, NULL, KVC_OK);
            else
                kit_word(&s.kit, s.worker, s.calls[i].chunks[k].word, s.calls[i].chunks[k].number);
        }
    ck_assert_int_eq(store_drained(s.kit.store, s.worker->owner, 0, NULL, 0, &s.kit.why), KVC_OK);
    ck_assert_uint_eq(s.kit.n_done, 0);
    ck_assert_int_eq(store_abort(s.kit.store, s.worker->owner, id, 0, NULL, 0, false, &pending,
                                 &outcome, &s.kit.why),
                     KVC_OK);
    ck_assert(pending);
    kit_tick(&s.kit);
    ck_assert_uint_eq(s.kit.n_done, 1);
    ck_assert_int_eq(s.kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(s.kit.done[0].published, SLICEKIT_KEYS);
    ck_assert_int_eq(store_abort(s.kit.store, s.worker->owner, id, 0, NULL, 0, false, &pending,
                                 &outcome, &s.kit.why),
                     KVC_E_UNKNOWN);
    kit_close(&s.kit);
}
END_TEST

/* _i: at which of its words the save fails; what is waited for is in quarantine, the rest free. */
START_TEST(S14_all_calls_are_one_and_fail_together)
{
    struct save_outcome outcome;
    uint32_t order[6][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}};
    uint32_t owed[2] = {3, 3};
    bool pending;
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 1)->status, KVC_OK);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 2, SLICEKIT_KEYS, 2, 1)->status, KVC_OK);
    for (int i = 0; i < _i; i++) {
        slicekit_prove(&s, &s.calls[order[i][0]], order[i][1], 1);
        owed[order[i][1]]--;
    }
    ck_assert_int_eq(store_abort(s.kit.store, s.worker->owner, id, 0, NULL, 0, false, &pending,
                                 &outcome, &s.kit.why),
                     KVC_OK);
    kit_check(&s.kit);
    ck_assert_int_eq(pending, _i < 6);
    ck_assert_uint_eq(outcome.dropped, SLICEKIT_KEYS);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, 0);
    ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots,
                      (owed[0] > 0 ? KVC_CHUNK_BLOCKS : 0) +
                          (owed[1] > 0 ? SLICEKIT_KEYS - KVC_CHUNK_BLOCKS : 0));
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 3, SLICEKIT_KEYS, 3, 1)->status,
                     KVC_E_UNKNOWN);
    for (int i = _i; i < 6; i++) {
        slicekit_prove(&s, &s.calls[order[i][0]], order[i][1], 1);
        clock_advance(CLOCK_S_US);
        kit_tick(&s.kit);
        owed[order[i][1]]--;
        ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots,
                          (owed[0] > 0 ? KVC_CHUNK_BLOCKS : 0) +
                              (owed[1] > 0 ? SLICEKIT_KEYS - KVC_CHUNK_BLOCKS : 0));
    }
    ck_assert_uint_eq(kit_stats(&s.kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), 0);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S14_a_call_that_was_never_enqueued)
{
    struct save_outcome outcome;
    const uint32_t never[] = {2, 3};
    bool pending;
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 1)->status, KVC_OK);
    /* By number, chunks counted through both calls: the first call's words are still owed. */
    ck_assert_int_eq(store_abort(s.kit.store, s.worker->owner, id, 0, (const uint32_t[]){4}, 1,
                                 false, &pending, &outcome, &s.kit.why),
                     KVC_E_INVALID);
    ck_assert_str_eq(s.kit.why.field, "never[0]");
    if (_i == 0)
        ck_assert_int_eq(store_abort(s.kit.store, s.worker->owner, id, 0, never, 2, false, &pending,
                                     &outcome, &s.kit.why),
                         KVC_OK);
    else /* or by the name of the call's request */
        ck_assert_int_eq(store_abort(s.kit.store, s.worker->owner, 0, 1001, NULL, 0, true, &pending,
                                     &outcome, &s.kit.why),
                         KVC_OK);
    kit_check(&s.kit);
    ck_assert(pending);
    ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots, SLICEKIT_KEYS);
    slicekit_prove(&s, &s.calls[1], 0, 1); /* means nothing any more */
    ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots, SLICEKIT_KEYS);
    slicekit_prove(&s, &s.calls[0], 0, 1);
    slicekit_prove(&s, &s.calls[0], 1, 1);
    ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots, 0);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S14_between_the_calls)
{
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    slicekit_prove(&s, &s.calls[0], 0, 1);
    slicekit_prove(&s, &s.calls[0], 1, 1);
    /* Nothing is owed, and it has not ended. Each call gives it its time anew. */
    clock_advance((KVC_SAVE_PROOF_MS - 1000) * CLOCK_MS_US);
    kit_tick(&s.kit);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, SLICEKIT_KEYS);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 1)->status, KVC_OK);
    slicekit_prove(&s, &s.calls[1], 0, 1);
    slicekit_prove(&s, &s.calls[1], 1, 1);
    clock_advance((KVC_SAVE_PROOF_MS - 1000) * CLOCK_MS_US);
    kit_tick(&s.kit);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, SLICEKIT_KEYS);
    if (_i == 0) {
        clock_advance(2 * CLOCK_S_US);
    } else {
        store_owner_end(s.kit.store, s.worker->owner);
    }
    kit_tick(&s.kit);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, 0);
    ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&s.kit).tier[TIER_GPU].used_slots, 0);
    if (_i == 0)
        ck_assert_int_eq(s.kit.done[0].status, KVC_E_DEADLINE);
    kit_close(&s.kit);
}
END_TEST

/* A failing copy of one call ends the save; what runs of the others keeps its slots until it ends.
 */
START_TEST(S14_failed_slices_of_the_daemon)
{
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 1)->status, KVC_OK);
    slicekit_prove(&s, &s.calls[0], 0, 1);
    kit_tell_copy(&s.kit, s.calls[1].copy, (uint32_t)_i, NULL, KVC_E_DEVICE);
    kit_tick(&s.kit);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, 0);
    ck_assert_uint_gt(kit_stats(&s.kit).quarantined_slots, 0);
    ck_assert_uint_eq(s.kit.n_done, 0);
    slicekit_prove(&s, &s.calls[1], 1 - (uint32_t)_i, 1);
    slicekit_prove(&s, &s.calls[0], 1, 1);
    ck_assert_uint_eq(kit_stats(&s.kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&s.kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(s.kit.n_done, 1);
    ck_assert_int_eq(s.kit.done[0].status, KVC_E_DEVICE);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), 0);
    kit_close(&s.kit);
}
END_TEST

/* One that was given less time than those before it is not kept waiting for them. */
START_TEST(S14_more_slices_get_the_time_that_saves_have_now)
{
    struct store_tuning tuning = {.lease_ms = KVC_LEASE_MS_DEFAULT, .save_proof_ms = 3600000};
    static struct kit_save other;
    uint64_t id;

    slicekit_open(&s, 16);
    store_tune(s.kit.store, &tuning);
    kit_save(&s.kit, s.worker, 500, 1, &other);
    tuning.save_proof_ms = 1000;
    store_tune(s.kit.store, &tuning);
    id = slicekit_first(&s);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 1)->status, KVC_OK);
    ck_assert_uint_le(store_next_wake(s.kit.store), 1000 * CLOCK_MS_US);
    clock_advance(1000 * CLOCK_MS_US);
    kit_tick(&s.kit);
    ck_assert_uint_eq(kit_stats(&s.kit).aborted_saves, 1);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, 1);
    kit_close(&s.kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/slices_end", CHECK_UNIT_S,
                 {S14_all_calls_are_one_and_fail_together, 0, 6, CHECK_BOTH_WAYS},
                 {S14_failed_slices_of_the_daemon, 0, 1, CHECK_DAEMON_COPIES},
                 {S14_a_call_that_was_never_enqueued, 0, 1},
                 {S14_between_the_calls, 0, 1, CHECK_BOTH_WAYS},
                 {S14_more_slices_get_the_time_that_saves_have_now, 0, 0, CHECK_BOTH_WAYS},
                 {S16_an_abort_between_the_end_and_its_report, 0, 0, CHECK_BOTH_WAYS})
