/* Copies to the host tier, ahead of need and for a save, and such as fail. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;

START_TEST(S18_the_coldest_is_copied_then_dropped)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_entry entry = kit_entry(&kit, 100, 1);
    struct store_stats stats;

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(save.short_of, 1);
    ck_assert_uint_eq(kit.n_moves, 1);
    ck_assert_uint_eq(store_save_more(kit.store, save.open), 1);
    /* While it is copied it stays readable where it is. */
    ck_assert(kit_in_tier(&kit, 7, TIER_GPU));
    ck_assert_uint_eq(kit.n_room, 0);
    kit_moves(&kit, 1, KVC_OK);
    ck_assert_uint_eq(kit.n_room, 1);
    ck_assert(kit_in_tier(&kit, 7, TIER_GPU) && kit_in_tier(&kit, 7, TIER_HOST));
    ck_assert_uint_eq(store_save_more(kit.store, save.open), 0);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, 1);
    ck_assert(!kit_in_tier(&kit, 7, TIER_GPU) && kit_in_tier(&kit, 7, TIER_HOST));
    kit_prove(&kit, &save);
    stats = kit_stats(&kit);
    ck_assert_uint_eq(stats.blocks, 9);
    ck_assert_uint_eq(stats.demotions, 1);
    ck_assert_uint_eq(stats.evictions, 0);
    ck_assert_uint_eq(stats.tier_evictions[TIER_GPU], 1);
    ck_assert_uint_eq(stats.admitted_blocks, 9);
    ck_assert_uint_eq(stats.admitted_at_once, 8);
    kit_close(&kit);
}
END_TEST

START_TEST(S18_a_clean_block_is_just_dropped)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);

    kit_put_slowly(&kit, worker, 100, 1); /* 7 went to the host tier */
    kit_close(&kit);

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 8, .host_slots = 8, .clean_low = 250, .clean_high = 500});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 6);
    ck_assert_uint_eq(kit.n_moves, 0);
    kit_put(&kit, worker, 6, 1);
    ck_assert_uint_eq(kit.n_moves, 3);
    kit_moves(&kit, 3, KVC_OK);
    ck_assert_uint_eq(kit.n_moves, 0);
    ck_assert_uint_eq(kit_stats(&kit).demotions, 3);
    kit_save(&kit, worker, 100, 4, &save);
    ck_assert_uint_eq(save.n_assigned, 4);
    ck_assert_uint_eq(kit_stats(&kit).admitted_at_once, 11);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 7), 7);
    kit_prove(&kit, &save);
    kit_close(&kit);
}
END_TEST

START_TEST(S18_clean_ahead_is_bounded_in_flight)
{
    struct kit_owner *worker;

    /* 64 MiB may be in flight: 256 slots. */
    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 512, .host_slots = 512, .clean_low = 900, .clean_high = 900});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 512);
    ck_assert_uint_eq(kit.n_moves, 256);
    while (kit.n_moves > 0)
        kit_moves(&kit, 1, KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).demotions, 460);
    kit_close(&kit);
}
END_TEST

/* However many are due at once: who asks for something meanwhile waits for a few. */
START_TEST(S18_copies_are_started_by_turns)
{
    struct store_tuning tuning = {.lease_ms = KVC_LEASE_MS_DEFAULT,
                                  .save_proof_ms = KVC_SAVE_PROOF_MS,
                                  .clean_low = 900,
                                  .clean_high = 900,
                                  .moving_bytes_max = 1ull << 40};
    uint32_t calls = 1;

    kit_open_with(&kit, 512, 512, 512);
    ck_assert_uint_eq(kit.n_moves, 0);
    store_tune(kit.store, &tuning);
    while (kit.n_moves < 460) {
        const uint32_t before = kit.n_moves;

        ck_assert_uint_le(before, 64 * calls);
        ck_assert_uint_eq(store_next_wake(kit.store), 0);
        store_tick(kit.store);
        ck_assert_uint_gt(kit.n_moves, before);
        calls++;
    }
    ck_assert_uint_ge(calls, 460 / 64);
    while (kit.n_moves > 0)
        kit_moves(&kit, 1, KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).demotions, 460);
    kit_close(&kit);
}
END_TEST

START_TEST(S19_a_failed_demotion_changes_nothing)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_entry entry = kit_entry(&kit, 100, 1);
    struct store_stats before = kit_stats(&kit), after;
    struct move first;

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
        ck_assert_uint_eq(save.short_of, 1);
        if (i == 0)
            first = kit.moves[0].move;
        else
            ck_assert_uint_eq(kit.moves[0].move.from_offset, first.from_offset);
        kit_moves(&kit, 1, KVC_E_DEVICE);
        /* After a failure no copy is started for a while, and nothing else is dropped for it. */
        ck_assert_uint_eq(store_save_more(kit.store, save.open), 0);
        kit_save_seal(&kit, &save);
        ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), 1);
        ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
        after = kit_stats(&kit);
        ck_assert_uint_eq(after.failed_demotions, i + 1u);
        ck_assert_int_eq(memcmp(before.tier, after.tier, sizeof(before.tier)), 0);
        ck_assert_uint_eq(after.evictions, 0);
        clock_advance(CLOCK_S_US);
        kit_tick(&kit);
    }
    kit_put_slowly(&kit, worker, 100, 1);
    for (uint32_t key = 0; key < 8; key++)
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_HOST), key == 7);
    kit_close(&kit);
}
END_TEST

START_TEST(S19_order_after_many_failures)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 16, .host_slots = 16, .clean_low = 450, .clean_high = 500});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 16);
    ck_assert_uint_eq(kit.n_moves, 8);
    /* The latest fail first; the check of every step says that orders are by last use. */
    while (kit.n_moves > 0) {
        struct kit_move last = kit.moves[--kit.n_moves];

        last.done(last.arg, KVC_E_DEVICE);
        kit_check(&kit);
    }
    ck_assert_uint_eq(kit_stats(&kit).failed_demotions, 8);
    clock_advance(CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_moves, 8);
    kit_moves(&kit, 8, KVC_OK);
    for (uint32_t key = 0; key < 16; key++)
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_HOST), key >= 8);
    kit_close(&kit);
}
END_TEST

START_TEST(tiering_sleeps_after_a_failure_among_successes)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_entry entry = kit_entry(&kit, 100, 2);

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(kit.n_moves, 2);
    kit_moves(&kit, 1, KVC_E_DEVICE);
    kit_moves(&kit, 1, KVC_OK);
    kit_save_seal(&kit, &save); /* without having asked again: nothing is assigned */
    ck_assert_uint_eq(save.n_assigned, 0);
    kit_tick(&kit);
    ck_assert_uint_gt(store_next_wake(kit.store), 0);
    ck_assert_uint_le(store_next_wake(kit.store), CLOCK_S_US);
    clock_advance(CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(store_next_wake(kit.store), UINT64_MAX);
    kit_close(&kit);
}
END_TEST

START_TEST(S19_a_mover_that_refuses)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);

    kit.copy_status = KVC_E_DEVICE;
    kit_save(&kit, worker, 100, 2, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), 2);
    ck_assert_uint_eq(kit_stats(&kit).failed_demotions, 1);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
    /* One that never works again does not freeze the gpu tier: it is as if there were no host. */
    for (int i = 0; i < 8 && save.n_assigned == 0; i++) {
        clock_advance(CLOCK_S_US);
        kit_save(&kit, worker, 100, 2, &save);
    }
    ck_assert_uint_eq(save.n_assigned, 2);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 2);
    kit_close(&kit);
}
END_TEST

START_TEST(S22_one_copy_with_key_bytes_and_checksum)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_load load;
    uint64_t lease;

    kit_put_slowly(&kit, worker, 100, 8);
    ck_assert_uint_eq(kit.moves_started, 8);
    ck_assert_uint_eq(kit.moved_bytes, 8ull * kit.slot_bytes);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 8, &load);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(load.locations[i].tier, TIER_HOST);
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(load.locations[i].offset, load.locations[j].offset);
    }
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_BOTH_WAYS("store/demote", CHECK_UNIT_S, S18_the_coldest_is_copied_then_dropped,
                     S18_a_clean_block_is_just_dropped, S18_clean_ahead_is_bounded_in_flight,
                     S18_copies_are_started_by_turns, S19_a_failed_demotion_changes_nothing,
                     S19_order_after_many_failures, tiering_sleeps_after_a_failure_among_successes,
                     S19_a_mover_that_refuses, S22_one_copy_with_key_bytes_and_checksum)
