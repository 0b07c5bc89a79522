/* Publication on proof, which are the worker's words, or the daemon's own copies. */
#include "daemon/base/clock.h"
#include "daemon/store/save.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save, other;

START_TEST(S12_no_hit_before_the_word)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save), *second = kit_worker(&kit);
    uint64_t lease;

    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KIT_CHUNKED);
    ck_assert_uint_eq(kit_lookup(&kit, second, 0, KIT_CHUNKED, &lease), 0);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KIT_CHUNKED, &lease), 0);
    kit_write(&kit, &save, 0);
    /* Written, but the store has not looked: a lookup that comes first may say miss. */
    kit_tick(&kit);
    ck_assert_uint_eq(kit_lookup(&kit, second, 0, KIT_CHUNKED, &lease), 64);
    kit_close(&kit);
}
END_TEST

START_TEST(S12_wrong_numbers_prove_nothing)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);
    const uint64_t wrong[] = {0, save.chunks[0].number + 1000, save.chunks[1].number, ~0ull};

    for (uint32_t i = 0; i < 4; i++) {
        kit_word(&kit, worker, save.chunks[0].word, wrong[i]);
        kit_tick(&kit);
        ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), 0);
    }
    ck_assert_uint_ge(kit_stats(&kit).stale_completions, 3);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), KIT_CHUNKED);
    kit_close(&kit);
}
END_TEST

START_TEST(S13_chunks_appear_in_order)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);

    kit_write(&kit, &save, 1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 64, 1), 0);
    kit_write(&kit, &save, 2);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).published_blocks, 0);
    ck_assert_uint_eq(kit.n_done, 0);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), KIT_CHUNKED);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(kit.done[0].save, save.result.save);
    ck_assert_uint_eq(kit.done[0].published, KIT_CHUNKED);
    ck_assert_uint_eq(kit.done[0].dropped, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    kit_close(&kit);
}
END_TEST

START_TEST(S13_a_nudge_publishes_at_once)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);

    kit_write(&kit, &save, 0);
    store_nudge(kit.store, worker->owner);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), 64);
    kit_close(&kit);
}
END_TEST

/* _i: whoever asks, the saver or another; and neither a nudge nor time. */
START_TEST(S12_who_looks_up_sees_what_is_complete)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);
    struct kit_owner *other = _i == 0 ? worker : kit_worker(&kit);

    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KIT_CHUNKED), 0);
    kit_write(&kit, &save, 1);
    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KIT_CHUNKED), 0);
    kit_write(&kit, &save, 0);
    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KIT_CHUNKED), 128);
    kit_write(&kit, &save, 2);
    store_look(kit.store, other->owner);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, KIT_CHUNKED), KIT_CHUNKED);
    ck_assert_uint_eq(kit.n_done, 1);
    kit_check(&kit);
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

/* As after a pause of the whole machine, which the time of every save has passed in. */
START_TEST(saves_that_are_late_together_are_dropped_by_turns)
{
    static struct kit_save saves[6];
    struct kit_owner *worker;
    uint64_t aborted = 0;
    uint32_t turns = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8192, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < 6; i++)
        kit_save(&kit, worker, i * KVC_KEYS_MAX, KVC_KEYS_MAX, &saves[i]);
    clock_advance(KVC_SAVE_PROOF_MS * CLOCK_MS_US);
    for (; aborted < 6; turns++) {
        ck_assert_uint_eq(store_next_wake(kit.store), 0);
        store_tick(kit.store);
        ck_assert_uint_gt(kit_stats(&kit).aborted_saves, aborted);
        ck_assert_uint_le(kit_stats(&kit).aborted_saves, aborted + SAVE_DROPS / KVC_KEYS_MAX);
        aborted = kit_stats(&kit).aborted_saves;
        kit_check(&kit);
    }
    ck_assert_uint_ge(turns, 3);
    kit_close(&kit);
}
END_TEST

/* Of one that is killed while all of its saves are under way nobody waits for all of them. */
START_TEST(saves_of_a_session_that_has_ended_are_dropped_by_turns)
{
    static struct kit_save saves[6];
    struct kit_owner *worker;
    uint64_t filling = 6 * KVC_KEYS_MAX;
    uint32_t turns = 1;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8192, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < 6; i++)
        kit_save(&kit, worker, i * KVC_KEYS_MAX, KVC_KEYS_MAX, &saves[i]);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, filling);
    store_owner_end(kit.store, worker->owner);
    for (;; turns++) {
        ck_assert_uint_lt(kit_stats(&kit).filling_slots, filling);
        ck_assert_uint_ge(kit_stats(&kit).filling_slots + SAVE_DROPS + KVC_KEYS_MAX, filling);
        filling = kit_stats(&kit).filling_slots;
        ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 6 * KVC_KEYS_MAX - filling);
        kit_check(&kit);
        if (filling == 0)
            break;
        ck_assert_uint_eq(store_next_wake(kit.store), 0);
        store_tick(kit.store);
    }
    ck_assert_uint_ge(turns, 3);
    ck_assert_uint_eq(kit_stats(&kit).published_blocks, 0);
    store_owner_gone(kit.store, worker->owner);
    kit_end_copies(&kit);
    kit_tick(&kit);
    ck_assert(worker->freed);
    worker->owner = NULL;
    kit_close(&kit);
}
END_TEST

/* What is known of its process meanwhile counts as before: words that arrive, and that none will.
 */
START_TEST(a_session_that_has_gone_before_its_saves_are_dropped)
{
    static struct kit_save saves[4];
    struct kit_owner *worker, *other;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8192, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    other = kit_worker(&kit);
    for (uint32_t i = 0; i < 4; i++)
        kit_save(&kit, worker, i * KVC_KEYS_MAX, KVC_KEYS_MAX, &saves[i]);
    store_owner_end(kit.store, worker->owner);
    ck_assert_uint_gt(kit_stats(&kit).filling_slots, 0);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, 4), 0);
    store_owner_gone(kit.store, worker->owner);
    kit_check(&kit);
    kit_end_copies(&kit);
    while (store_next_wake(kit.store) == 0)
        store_tick(kit.store);
    ck_assert(worker->freed);
    worker->owner = NULL;
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(proof_is_taken_when_the_session_ends)
{
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save), *second = kit_worker(&kit);

    kit_write(&kit, &save, 0);
    kit_write(&kit, &save, 2);
    store_owner_end(kit.store, worker->owner);
    ck_assert_uint_eq(kit_probe(&kit, second, 0, KIT_CHUNKED), 64);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 64);
    ck_assert(!worker->freed);
    kit_write(&kit, &save, 1);
    kit_tick(&kit);
    ck_assert(worker->freed);
    ck_assert_uint_eq(kit.n_done, 0);
    ck_assert_uint_eq(kit_probe(&kit, second, 0, KIT_CHUNKED), 64);
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
    struct kit_owner *worker = kit_open_chunks(&kit, 512, &save);
    uint64_t ticked;

    ck_assert_uint_le(store_next_wake(kit.store), KVC_POLL_MS * CLOCK_MS_US);
    clock_advance(2 * CLOCK_S_US);
    ticked = clock_now_us();
    kit_tick(&kit);
    ck_assert_uint_gt(store_next_wake(kit.store) + clock_now_us() - ticked, 90 * CLOCK_MS_US);
    ck_assert_uint_le(store_next_wake(kit.store), KVC_POLL_OLD_MS * CLOCK_MS_US);
    ck_assert_uint_ge(kit_stats(&kit).oldest_op_us, 2 * CLOCK_S_US);
    kit_write(&kit, &save, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), 0);
    clock_advance(KVC_POLL_OLD_MS * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, KIT_CHUNKED), 64);
    kit_write(&kit, &save, 1);
    kit_write(&kit, &save, 2);
    store_nudge(kit.store, worker->owner);
    ck_assert_uint_eq(store_next_wake(kit.store), UINT64_MAX);
    ck_assert_uint_eq(kit_stats(&kit).oldest_op_us, 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/proof", CHECK_UNIT_S, {S12_no_hit_before_the_word, 0, 0, CHECK_BOTH_WAYS},
                 {S12_wrong_numbers_prove_nothing, 0, 0},
                 {S13_chunks_appear_in_order, 0, 0, CHECK_BOTH_WAYS},
                 {S13_a_nudge_publishes_at_once, 0, 0},
                 {S12_who_looks_up_sees_what_is_complete, 0, 1},
                 {proof_time_that_is_made_shorter, 0, 0}, {proofs_are_taken_by_turns, 0, 0},
                 {saves_that_are_late_together_are_dropped_by_turns, 0, 0},
                 {saves_of_a_session_that_has_ended_are_dropped_by_turns, 0, 0, CHECK_BOTH_WAYS},
                 {a_session_that_has_gone_before_its_saves_are_dropped, 0, 0, CHECK_BOTH_WAYS},
                 {proof_is_taken_when_the_session_ends, 0, 0},
                 {proof_session_ends_while_its_save_waits_for_room, 0, 0},
                 {proof_wakes_each_ms_and_old_words_each_100_ms, 0, 0})
