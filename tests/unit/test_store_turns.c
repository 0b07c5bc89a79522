/* What comes in any number at once is done by turns, and everything is right between them. */
#include "daemon/base/fault.h"
#include "daemon/store/lease.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_load load;

/* n keys from `first` on, which is where the lease goes on, if one is named. */
static struct store_lookup_result look_up(struct kit_owner *owner, uint64_t request, uint64_t lease,
                                          uint32_t first, uint32_t n)
{
    static uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    const struct store_lookup_part part = {kit.part, kit.epoch, keys, n};
    const struct store_lookup lookup = {
        .request = request, .lease = lease, .offset = first, .parts = &part, .n_parts = 1};
    struct store_lookup_result result;

    kit_keys(first, n, keys);
    ck_assert_int_eq(store_lookup(kit.store, owner->owner, &lookup, &result, &kit.why), KVC_OK);
    kit_check(&kit);
    return result;
}

/* They are none at once; who comes meanwhile waits for the release of some blocks only. */
START_TEST(leases_that_end_together_release_their_blocks_by_turns)
{
    struct kit_owner *worker = kit_open_with(&kit, 1024, 1024, 1000), *other = kit_worker(&kit);
    uint32_t turns = 0;

    for (uint32_t i = 0; i < 10; i++)
        look_up(worker, 0, 0, 0, 1000);
    ck_assert_uint_eq(kit_stats(&kit).leases, 10);
    store_owner_end(kit.store, worker->owner);
    kit_check(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    for (; store_next_wake(kit.store) == 0; turns++) {
        store_tick(kit.store);
        kit_check(&kit);
    }
    /* The first of them made room for the owner's end. */
    ck_assert_uint_ge(turns, 10 * 1000 / LEASE_RELEASES);
    ck_assert(worker->freed);
    worker->owner = NULL;
    ck_assert_uint_eq(kit_probe(&kit, other, 0, 1000), 1000);
    kit_close(&kit);
}
END_TEST

/* A lease that has grown long and is asked for anew, or again from its middle: the same lease. */
START_TEST(what_a_long_lease_loses_is_released_by_turns)
{
    const uint32_t blocks = 6000, left = _i * 1000 + 8;
    struct store_lookup_result a, b;
    struct kit_owner *worker;
    uint32_t turns = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 6144, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < blocks; i += 1000)
        kit_put(&kit, worker, i, 1000);
    a = look_up(worker, 7, 0, 0, 1000);
    for (uint32_t i = 1000; i < blocks; i += 1000)
        b = look_up(worker, 0, a.lease, i, 1000);
    ck_assert_uint_eq(b.count, blocks);
    b = _i == 0 ? look_up(worker, 7, 0, 0, 8) : look_up(worker, 0, a.lease, left - 8, 8);
    ck_assert_uint_eq(b.lease, a.lease);
    ck_assert_uint_eq(b.count, left);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    for (; store_next_wake(kit.store) == 0; turns++) {
        store_tick(kit.store);
        kit_check(&kit);
    }
    ck_assert_uint_ge(turns, (blocks - left) / LEASE_RELEASES);
    kit_load(&kit, worker, a.lease, left - 8, left - 8, 8, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* It goes on as before. */
    b = look_up(worker, 0, a.lease, left, 1000);
    ck_assert_uint_eq(b.count, left + 1000);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 1000), 1000);
    kit_close(&kit);
}
END_TEST

/*
 * A flush of keys ends the leases that have lost a block, however many there are, and nobody loads
 * what was flushed meanwhile, from the lease or from one that was taken over from it.
 */
START_TEST(leases_that_a_flush_ends_are_looked_for_by_turns)
{
    struct kit_owner *worker = kit_open_with(&kit, 64, 0, 32), *other = kit_worker(&kit);
    struct store_lookup_result kept, lost, adopted;
    uint32_t turns = 0;

    for (uint32_t i = 0; i < 10; i++)
        kept = look_up(worker, 0, 0, 0, 16);
    lost = look_up(worker, 0, 0, 0, 32);
    fault_arm("lease.turn", 0, UINT32_MAX);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, worker, 20, 1)), 1);
    ck_assert_uint_eq(kit_stats(&kit).leases, 11);
    ck_assert_int_eq(store_adopt(kit.store, other->owner, lost.token, KVC_TOKEN_BYTES, kit.part,
                                 kit.epoch, 0, &adopted, &kit.why),
                     KVC_OK);
    ck_assert_int_eq(
        kit_try_load(&kit, worker,
                     &(struct store_load){
                         .lease = lost.lease, .part = kit.part, .epoch = kit.epoch, .count = 32},
                     &load),
        KVC_E_EXPIRED);
    for (; store_next_wake(kit.store) == 0; turns++) {
        store_tick(kit.store);
        kit_check(&kit);
    }
    fault_off("lease.turn");
    ck_assert_uint_ge(turns, 10 * 16 / 2);
    ck_assert_uint_eq(kit_stats(&kit).leases, 10);
    kit_load(&kit, worker, kept.lease, 0, 0, 16, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

/* _i: their time is over, or all are unpinned. Those of others, and one that is renewed, stay. */
START_TEST(pins_that_end_together_end_by_turns)
{
    const uint32_t pins = 400;
    struct kit_owner *worker = kit_open_with(&kit, 1024, 1024, 1000);
    uint32_t turns = 0;

    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 0, pins), 10), pins);
    fault_arm("pin.turn", 0, UINT32_MAX);
    if (_i == 0)
        clock_advance(10 * CLOCK_S_US);
    else
        ck_assert_uint_eq(kit_unpin(&kit, kit_scope(&kit, worker, 0, 0)), pins);
    store_tick(kit.store);
    kit_check(&kit);
    ck_assert_uint_gt(kit_stats(&kit).pinned_blocks, pins - 3);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, pins - 1, 1), 10), 1);
    for (; store_next_wake(kit.store) == 0; turns++) {
        store_tick(kit.store);
        kit_check(&kit);
    }
    ck_assert_uint_ge(turns, pins - 3);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 1);
    if (_i == 1)
        ck_assert_uint_eq(kit_unpin(&kit, kit_scope(&kit, worker, 0, 0)), 1);
    fault_off("pin.turn");
    kit_tick(&kit);
    kit_close(&kit);
}
END_TEST

/* An operator unpins, has the answer, and pins something else. */
START_TEST(what_was_unpinned_has_no_room_before_its_turn)
{
    const uint32_t half = 512;
    struct kit_owner *worker = kit_open_with(&kit, 2 * half, 0, 1000);

    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 0, half), 10), half);
    fault_arm("pin.turn", 0, UINT32_MAX);
    ck_assert_uint_eq(kit_unpin(&kit, kit_scope(&kit, worker, 0, 0)), half);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 400, half), 10), half);
    kit_check(&kit);
    while (store_next_wake(kit.store) == 0) {
        store_tick(kit.store);
        kit_check(&kit);
    }
    fault_off("pin.turn");
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, half);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/turns", CHECK_UNIT_S,
                 {leases_that_end_together_release_their_blocks_by_turns, 0, 0, CHECK_BOTH_WAYS},
                 {leases_that_a_flush_ends_are_looked_for_by_turns, 0, 0},
                 {pins_that_end_together_end_by_turns, 0, 1},
                 {what_was_unpinned_has_no_room_before_its_turn, 0, 0},
                 {what_a_long_lease_loses_is_released_by_turns, 0, 1})
