/* Pins: blocks by name that are not evicted. */
#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;
static struct kit_load load;

/* Saves n new keys into a full store; how many got room. */
static uint32_t push(struct kit_owner *worker, uint32_t first, uint32_t n)
{
    kit_save_slowly(&kit, worker, kit_entry(&kit, first, n), &save);
    kit_prove(&kit, &save);
    return save.n_assigned;
}

START_TEST(S28_a_pinned_block_is_not_evicted_until_its_time_is_over)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 0, 8);

    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 0, 4), 10), 4);
    ck_assert_uint_eq(kit_unpin(&kit, kit_scope(&kit, worker, 2, 10)), 2);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 2, 2), 10), 2);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 500, 2), 10), 0); /* not there */
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 4);
    ck_assert_uint_eq(push(worker, 100, 20), 4);
    for (uint32_t key = 0; key < 4; key++)
        ck_assert(kit_has(&kit, key));
    /* Anew for two of them. */
    clock_advance(9 * CLOCK_S_US);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, NULL, 0, 2), 10), 2);
    clock_advance(CLOCK_S_US);
    ck_assert_uint_eq(store_next_wake(kit.store), 0);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 2);
    ck_assert_uint_eq(push(worker, 200, 20), 6);
    ck_assert(kit_has(&kit, 0) && kit_has(&kit, 1) && !kit_has(&kit, 2));
    /* Whoever goes meanwhile. */
    store_owner_end(kit.store, worker->owner);
    store_owner_gone(kit.store, worker->owner);
    kit_tick(&kit);
    worker = kit_worker(&kit);
    ck_assert_uint_eq(push(worker, 300, 20), 6);
    clock_advance(10 * CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 0);
    ck_assert_uint_eq(push(worker, 400, 20), 8);
    kit_close(&kit);
}
END_TEST

START_TEST(S28_pins_cannot_freeze_the_store)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct store_scope scope;
    uint32_t count;

    ck_assert_uint_eq(push(worker, 100, 8), 8);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 0, 8), 0), 8);
    scope = kit_scope(&kit, worker, 100, 1);
    ck_assert_int_eq(store_pin(kit.store, &scope, 0, &count, &kit.why), KVC_E_NO_ROOM);
    ck_assert_str_eq(kit.why.field, "keys");
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 0, 8), 0), 8);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 8);
    ck_assert_uint_eq(kit_unpin(&kit, (struct store_scope){.part = kit.part}), 8);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 100, 8), 0), 8);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 8);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_pins_end_with_their_blocks)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    uint8_t key[KVC_KEY_BYTES];
    uint64_t lease;

    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 0, 6), 0), 6);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, worker, 0, 2)), 2);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 4);
    /* One that was found damaged. */
    ck_assert_uint_eq(kit_lookup(&kit, worker, 2, 1, &lease), 1);
    kit_load(&kit, worker, lease, 0, 2, 1, &load);
    kit_key(2, key);
    store_report(kit.store, worker->owner, kit.part, key, load.locations[0].tier,
                 load.locations[0].generation);
    kit_check(&kit);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 3);
    kit_close_load(&kit, &load);
    ck_assert_uint_eq(kit_flush(&kit, (struct store_scope){.part = kit.part}), 5);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    kit_close(&kit);
}
END_TEST

/* _i: the allocation that fails. */
START_TEST(S28_pins_that_are_refused_pin_nothing)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct store_scope scope = kit_scope(&kit, worker, 0, 4);
    uint32_t count = 77;

    fault_arm("mem.alloc", (uint32_t)_i, 1);
    ck_assert_int_eq(store_pin(kit.store, &scope, 9, &count, &kit.why), KVC_E_NO_MEMORY);
    ck_assert_uint_eq(fault_fired("mem.alloc"), 1);
    ck_assert_uint_eq(count, 77);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 0);
    kit_check(&kit);
    ck_assert_uint_eq(kit_pin(&kit, scope, 9), 4);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/pin", CHECK_UNIT_S,
                 {S28_a_pinned_block_is_not_evicted_until_its_time_is_over, 0, 0, CHECK_BOTH_WAYS},
                 {S28_pins_cannot_freeze_the_store, 0, 0, CHECK_BOTH_WAYS},
                 {S42_pins_end_with_their_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S28_pins_that_are_refused_pin_nothing, 0, 3, CHECK_BOTH_WAYS})
