/* Loads, and what a worker may be told. */
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;
static struct kit_load load;

/* Of eight slots all can go but two, which are read. */
static void expect_all_but_two_go(struct kit_owner *other)
{
    kit.copy_status = KVC_E_DEVICE;
    for (int i = 0; i < 10; i++) {
        clock_advance(CLOCK_S_US);
        kit_save(&kit, other, 100, 8, &save);
        if (save.n_assigned)
            break;
    }
    ck_assert_uint_eq(save.n_assigned, 6);
    ck_assert_uint_eq(kit_probe(&kit, other, 0, 8), 2);
}

START_TEST(S29_blocks_under_an_open_load_outlast_the_session)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    struct kit_load open;
    uint64_t lease, second;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 4, &lease), 4);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 4, 4, &second), 4);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 2, &load), KVC_OK);
    open = load;
    store_owner_end(kit.store, worker->owner);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 1);
    kit_tick(&kit);
    ck_assert(!worker->freed);
    expect_all_but_two_go(other);
    kit_verify(&kit, &open);
    clock_advance(3600 * CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 1);
    kit_close_load(&kit, &open);
    clock_advance(CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    ck_assert(worker->freed);
    kit_close(&kit);
}
END_TEST

START_TEST(S30_a_load_after_the_end_is_refused_before_any_tick)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    uint64_t lease;
    uint32_t ms;
    struct kit_load open;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    ck_assert_int_eq(store_extend(kit.store, worker->owner, lease, 500, &ms, &kit.why), KVC_OK);
    ck_assert_uint_eq(ms, 500);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 8, &load), KVC_OK);
    open = load;
    clock_advance(501 * CLOCK_MS_US);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 8, &load), KVC_E_EXPIRED);
    ck_assert_str_eq(kit.why.field, "lease");
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    /* The open one outlasts the lease. */
    kit_save(&kit, worker, 100, 8, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), 8);
    kit_verify(&kit, &open);
    kit_close_load(&kit, &open);
    kit_close(&kit);
}
END_TEST

START_TEST(S31_loads_that_are_refused)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    struct kit_owner *scheduler = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    struct store_part_info second;
    struct store_load request;
    uint64_t lease;

    kit_register(&kit, worker, 2, kit.slot_bytes, &second);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 6, &lease), 6);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, 0, 0, 1, &load), KVC_E_UNKNOWN);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease + 1000, 0, 1, &load), KVC_E_UNKNOWN);
    ck_assert_int_eq(kit_try_load_part(&kit, other, lease, 0, 1, &load), KVC_E_DENIED);
    ck_assert_int_eq(kit_try_load_part(&kit, scheduler, lease, 0, 1, &load), KVC_E_DENIED);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 7, &load), KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "count");
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 6, 1, &load), KVC_E_INVALID);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, ~0u, 2, &load), KVC_E_INVALID);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 1, ~0u, &load), KVC_E_INVALID);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 0, &load), KVC_E_INVALID);
    request = (struct store_load){.lease = lease, .part = kit.part, .epoch = 99, .count = 1};
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_STALE);
    request = (struct store_load){.lease = lease, .part = second.part, .epoch = 1, .count = 1};
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "part");
    request = (struct store_load){
        .lease = lease, .part = kit.part, .epoch = kit.epoch, .count = 1, .n_slices = 3};
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "slices");
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S31_a_block_in_extents_that_are_not_mapped)
{
    struct owner_identity identity = {.role = STORE_ROLE_READER};
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *late;
    struct store_part_info info;
    uint64_t lease;

    (void)worker;
    late = &kit.owners[kit.n_owners++];
    identity.tenant = kit.tenant;
    ck_assert_int_eq(store_owner_open(kit.store, &identity, late, &late->owner), KVC_OK);
    kit_register(&kit, late, 1, kit.slot_bytes, &info);
    ck_assert_uint_eq(kit_lookup(&kit, late, 0, 8, &lease), 8);
    ck_assert_int_eq(kit_try_load_part(&kit, late, lease, 0, 8, &load), KVC_E_BUSY);
    ck_assert_str_eq(kit.why.field, "lease");
    kit_map_all(&kit, late);
    ck_assert_int_eq(kit_try_load_part(&kit, late, lease, 0, 8, &load), KVC_OK);
    ck_assert_int_eq(store_drained(kit.store, late->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S32_one_key_into_many_places)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_load loads[3];
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    for (int i = 0; i < 3; i++) {
        kit_load(&kit, worker, lease, 0, 0, 8, &loads[i]);
        kit_verify(&kit, &loads[i]);
        for (int j = 0; j < i && !loads[i].copy; j++) {
            ck_assert_uint_ne(loads[i].word, loads[j].word);
            ck_assert_uint_ne(loads[i].number, loads[j].number);
        }
    }
    kit_release(&kit, worker, lease);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 3);
    for (int i = 0; i < 3; i++)
        kit_close_load(&kit, &loads[i]);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    ck_assert_uint_eq(kit_stats(&kit).bytes_loaded[TIER_GPU], 24ull * kit.slot_bytes);
    kit_close(&kit);
}
END_TEST

START_TEST(S33_mixed_tiers_in_order)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_entry entry = kit_entry(&kit, 8, 4);
    uint64_t lease;

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_moves(&kit, 8, KVC_OK);
    ck_assert_uint_eq(store_save_more(kit.store, save.open), 0);
    kit_save_seal(&kit, &save);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 12, &lease), 12);
    kit_load(&kit, worker, lease, 0, 0, 12, &load);
    for (uint32_t i = 0; i < 12; i++)
        ck_assert_int_eq(load.locations[i].tier, i >= 4 && i < 8 ? TIER_HOST : TIER_GPU);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    ck_assert_uint_eq(kit_stats(&kit).bytes_loaded[TIER_HOST], 4ull * kit.slot_bytes);
    kit_close(&kit);
}
END_TEST

START_TEST(report_drops_a_damaged_block)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    struct kit_load open;
    uint8_t key[KVC_KEY_BYTES];
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 8, &open);
    kit_key(3, key);
    /* A report of another generation, tier, part or key changes nothing. */
    store_report(kit.store, worker->owner, kit.part, key, TIER_GPU,
                 open.locations[3].generation + 1);
    store_report(kit.store, worker->owner, kit.part, key, TIER_HOST, open.locations[3].generation);
    store_report(kit.store, worker->owner, kit.part + 1, key, TIER_GPU,
                 open.locations[3].generation);
    store_report(kit.store, worker->owner, kit.part, key, 7, open.locations[3].generation);
    ck_assert_uint_eq(kit_stats(&kit).stale_completions, 4);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 8);
    store_report(kit.store, worker->owner, kit.part, key, TIER_GPU, open.locations[3].generation);
    ck_assert_uint_eq(kit_stats(&kit).checksum_failures, 1);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 3);
    /* Its slot stays while it is read, its place in the lease while that lasts. */
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 8);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 2, 3, &load), KVC_E_CHECKSUM);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 4, 4, &load), KVC_OK);
    kit_close_load(&kit, &load);
    kit_close_load(&kit, &open);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 7);
    /* The key can be saved again. */
    kit_put(&kit, other, 3, 1);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 3, 1, &load), KVC_E_CHECKSUM);
    kit_close(&kit);
}
END_TEST

START_TEST(load_without_a_free_word)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 1);
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 1, &lease), 1);
    for (uint32_t i = 0; i < KVC_PAGE_WORDS; i++)
        kit_load(&kit, worker, lease, 0, 0, 1, &load);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 1, &load), KVC_E_BUSY);
    ck_assert_str_eq(kit.why.field, "word");
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    kit_load(&kit, worker, lease, 0, 0, 1, &load);
    kit_close(&kit);
}
END_TEST

/* What the load has opened stays until its proof, and the rest of the lease can go at once. */
START_TEST(S29_a_load_that_ends_its_lease_keeps_its_blocks)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    struct store_load request = {.part = kit.part, .epoch = kit.epoch, .count = 9, .release = true};
    struct kit_load again;
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    request.lease = lease;
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_INVALID);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    request.count = 2;
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &again), KVC_E_EXPIRED);
    expect_all_but_two_go(other);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    clock_advance(CLOCK_S_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/load", CHECK_UNIT_S,
                 {S29_blocks_under_an_open_load_outlast_the_session, 0, 0, CHECK_BOTH_WAYS},
                 {S29_a_load_that_ends_its_lease_keeps_its_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S30_a_load_after_the_end_is_refused_before_any_tick, 0, 0, CHECK_BOTH_WAYS},
                 {S31_loads_that_are_refused, 0, 0, CHECK_BOTH_WAYS},
                 {S31_a_block_in_extents_that_are_not_mapped, 0, 0},
                 {S32_one_key_into_many_places, 0, 0, CHECK_BOTH_WAYS},
                 {S33_mixed_tiers_in_order, 0, 0, CHECK_BOTH_WAYS},
                 {report_drops_a_damaged_block, 0, 0, CHECK_BOTH_WAYS},
                 {load_without_a_free_word, 0, 0})
