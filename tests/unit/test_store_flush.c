/* Flushes: of a whole namespace, and of blocks by name. */
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;
static struct kit_load load;

static void flush(uint64_t expected)
{
    uint64_t blocks;

    ck_assert_int_eq(
        store_flush(kit.store, &(struct store_scope){.part = kit.part}, &blocks, &kit.why), KVC_OK);
    ck_assert_uint_eq(blocks, expected);
    kit_check(&kit);
}

static void register_again(struct kit_owner *worker)
{
    struct store_part_info info;

    kit_register(&kit, worker, 1, kit.slot_bytes, &info);
    ck_assert_uint_eq(info.epoch, kit.epoch + 1);
    kit.epoch = info.epoch;
}

START_TEST(S42_a_flush_drops_every_block_of_the_namespace)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 8);
    struct store_part_info second, elsewhere;
    struct kit_entry entries[2];

    kit_register(&kit, worker, 1, kit.slot_bytes / 2, &second);
    kit_register(&kit, worker, 2, kit.slot_bytes / 2, &elsewhere);
    entries[0] = (struct kit_entry){second.part, second.epoch, 0, 3};
    entries[1] = (struct kit_entry){elsewhere.part, elsewhere.epoch, 0, 3};
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 2, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    kit_prove(&kit, &save);
    flush(11);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 3);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 3);
    register_again(worker);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 0);
    kit_put(&kit, worker, 0, 2);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_old_epochs_are_stale)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 8);
    struct store_lookup_result result;
    struct store_lookup_part part;
    struct store_lookup lookup = {.parts = &part, .n_parts = 1};
    struct store_load request;
    struct kit_load load;
    struct kit_entry entry = kit_entry(&kit, 0, 1);
    uint8_t key[KVC_KEY_BYTES];
    uint64_t lease;

    kit_key(0, key);
    part = (struct store_lookup_part){kit.part, kit.epoch, key, 1};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &lookup, &result, &kit.why), KVC_OK);
    lease = result.lease;
    flush(8);
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &lookup, &result, &kit.why),
                     KVC_E_STALE);
    ck_assert_str_eq(kit.why.field, "parts[0].epoch");
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_E_STALE);
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, result.token, 16, kit.part, kit.epoch, 0,
                                 &result, &kit.why),
                     KVC_E_STALE);
    ck_assert_str_eq(kit.why.field, "epoch");
    request = (struct store_load){.lease = lease, .part = kit.part, .epoch = kit.epoch, .count = 1};
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_EXPIRED);
    kit_close(&kit);
}
END_TEST

/* 0 is no epoch: a daemon that is started again would refuse the table. */
START_TEST(S42_epochs_begin_anew_behind_the_last_number)
{
    const struct table *table;
    struct kit_owner *worker;
    struct store_part_info info;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    worker = kit_worker(&kit);
    table = store_table(kit.store);
    table_namespace(table, table_part(table, kit.part)->namespace_)->epoch = UINT32_MAX;
    kit_register(&kit, worker, 1, kit.slot_bytes, &info);
    ck_assert_uint_eq(info.epoch, UINT32_MAX);
    kit.epoch = info.epoch;
    kit_put(&kit, worker, 0, 4);
    flush(4);
    kit_register(&kit, worker, 1, kit.slot_bytes, &info);
    ck_assert_uint_eq(info.epoch, 1);
    kit.epoch = info.epoch;
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 4), 0);
    kit_put(&kit, worker, 0, 4);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 4), 4);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_nothing_in_flight_is_published_after_a_flush)
{
    static struct kit_save other;
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 8);
    struct kit_entry entry = kit_entry(&kit, 200, 20);

    kit_save(&kit, worker, 100, 4, &save);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &other), KVC_OK);
    flush(8);
    kit_prove(&kit, &save);
    kit_moves(&kit, 8, KVC_OK); /* that the second save needed */
    ck_assert_uint_eq(store_save_more(kit.store, other.open), 0);
    kit_save_seal(&kit, &other);
    ck_assert_uint_eq(kit_count(&other, STORE_KEY_SKIPPED), 20);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    register_again(worker);
    ck_assert_uint_eq(kit_probe(&kit, worker, 100, 4), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_an_empty_entry_is_in_no_namespace)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 0);
    struct store_part_info elsewhere;
    struct kit_entry entries[2] = {kit_entry(&kit, 0, 4)};
    uint64_t blocks;

    kit_register(&kit, worker, 2, kit.slot_bytes, &elsewhere);
    entries[1] = (struct kit_entry){elsewhere.part, elsewhere.epoch, 0, 0};
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 2, &save), KVC_OK);
    ck_assert_int_eq(
        store_flush(kit.store, &(struct store_scope){.part = elsewhere.part}, &blocks, &kit.why),
        KVC_OK);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, 4);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 4);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_open_loads_run_to_their_proof)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 8);
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 4, &load);
    flush(8);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 4);
    register_again(worker);
    /* The same keys anew, while the old bytes are still read. */
    kit_put(&kit, worker, 0, 8);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 8);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
    kit_close(&kit);
}
END_TEST

/* _i: whether the copy succeeds. */
START_TEST(S42_a_flush_while_blocks_are_copied)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 16);
    struct kit_entry entry = kit_entry(&kit, 100, 4);

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(kit.n_moves, 4);
    flush(16);
    /* The sources stay while they are read. */
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 4);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    kit_moves(&kit, 4, _i ? KVC_OK : KVC_E_DEVICE);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_HOST].used_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).demotions, 0);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_keys_are_flushed_and_nothing_else)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 8);
    uint64_t lost, kept;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 4, &lost), 4);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 4, 4, &kept), 4);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, worker, 2, 2)), 2);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 6);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 2);
    ck_assert_uint_eq(kit_probe(&kit, worker, 4, 4), 4);
    kit_load(&kit, worker, kept, 0, 4, 4, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* The same again, and keys that nobody has. */
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, NULL, 2, 2)), 0);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, worker, 500, 20)), 0);
    kit_put(&kit, worker, 2, 2);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
    kit_close(&kit);
}
END_TEST

/* _i: whether the save is still being admitted. */
START_TEST(S42_a_save_that_fills_a_flushed_key_ends)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 0, 4), *other = kit_worker(&kit);
    struct kit_entry entry = kit_entry(&kit, 100, 4);
    struct kit_save untouched;

    kit_save(&kit, other, 200, 2, &untouched);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    if (!_i)
        kit_save_seal(&kit, &save);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, other, 102, 1)), 0);
    if (_i)
        kit_save_seal(&kit, &save);
    else
        kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), _i ? 4 : 0);
    kit_prove(&kit, &untouched);
    ck_assert_uint_eq(kit_probe(&kit, worker, 100, 4), 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 200, 2), 2);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 6);
    if (!_i)
        ck_assert_int_eq(kit.done[0].status, KVC_E_STALE);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_open_loads_of_flushed_keys_run_to_their_proof)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 0, 8);
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 4, &load);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, worker, 0, 8)), 8);
    kit_save(&kit, worker, 100, 8, &save);
    ck_assert_uint_eq(save.n_assigned, 4);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 4);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_an_operator_flushes_a_namespace_of_every_tenant_or_all)
{
    struct owner_identity identity = {.role = STORE_ROLE_SCHEDULER};
    struct kit_owner *worker = kit_open_with(&kit, 16, 0, 4), *stranger;
    const uint8_t first[KVC_NAMESPACE_BYTES] = {1}, second[KVC_NAMESPACE_BYTES] = {2};
    struct store_part_info own, same, elsewhere;
    struct kit_entry entry;

    kit_register(&kit, worker, 2, kit.slot_bytes, &elsewhere);
    entry = (struct kit_entry){elsewhere.part, elsewhere.epoch, 0, 2};
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    kit_prove(&kit, &save);
    ck_assert_int_eq(store_tenant(kit.store, "uid:2", 2, &identity.tenant), KVC_OK);
    stranger = &kit.owners[kit.n_owners++];
    ck_assert_int_eq(store_owner_open(kit.store, &identity, stranger, &stranger->owner), KVC_OK);
    kit_register(&kit, stranger, 1, kit.slot_bytes, &same);
    /* Of a session's own tenant only. */
    ck_assert_uint_eq(
        kit_flush(&kit, (struct store_scope){.owner = stranger->owner, .namespace_digest = first}),
        0);
    kit_register(&kit, worker, 1, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, kit.epoch);
    ck_assert_uint_eq(kit_flush(&kit, (struct store_scope){.namespace_digest = first}), 4);
    kit_register(&kit, worker, 1, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, kit.epoch + 1);
    kit_register(&kit, stranger, 1, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, same.epoch + 2);
    ck_assert_uint_eq(kit_flush(&kit, (struct store_scope){.all = true}), 2);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    kit_register(&kit, worker, 2, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, elsewhere.epoch + 1);
    ck_assert_uint_eq(kit_flush(&kit, (struct store_scope){.namespace_digest = second}), 0);
    kit_close(&kit);
}
END_TEST

static void refused(struct store_scope scope, kvc_status expected, const char *field)
{
    struct store_stats before = kit_stats(&kit), after;
    uint64_t blocks = 77;
    uint32_t count = 77;

    ck_assert_int_eq(store_flush(kit.store, &scope, &blocks, &kit.why), expected);
    ck_assert_str_eq(kit.why.field, field);
    ck_assert_int_eq(store_pin(kit.store, &scope, 0, &count, &kit.why), expected);
    ck_assert_str_eq(kit.why.field, field);
    ck_assert_int_eq(store_unpin(kit.store, &scope, &count, &kit.why), expected);
    ck_assert_str_eq(kit.why.field, field);
    ck_assert_uint_eq(blocks, 77);
    ck_assert_uint_eq(count, 77);
    after = kit_stats(&kit);
    ck_assert_mem_eq(&before, &after, sizeof(before));
}

START_TEST(S42_nonsense_is_refused)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 4), *other = kit_worker(&kit);
    const uint8_t first[KVC_NAMESPACE_BYTES] = {1}, unknown[KVC_NAMESPACE_BYTES] = {9};
    struct store_part_info second;
    uint32_t count;

    kit_register(&kit, worker, 2, kit.slot_bytes, &second);
    refused((struct store_scope){0}, KVC_E_INVALID, "part");
    refused((struct store_scope){.part = kit.part, .all = true}, KVC_E_INVALID, "all");
    refused((struct store_scope){.part = kit.part, .namespace_digest = first}, KVC_E_INVALID,
            "part");
    refused((struct store_scope){.owner = worker->owner, .all = true}, KVC_E_DENIED, "all");
    refused((struct store_scope){.all = true, .keys = kit.scope_keys, .n_keys = 1}, KVC_E_INVALID,
            "keys");
    refused((struct store_scope){.part = ~0u}, KVC_E_UNKNOWN, "part");
    refused((struct store_scope){.part = second.part + 1}, KVC_E_UNKNOWN, "part");
    refused((struct store_scope){.owner = other->owner, .part = second.part}, KVC_E_UNKNOWN,
            "part");
    refused((struct store_scope){.namespace_digest = unknown}, KVC_E_UNKNOWN, "namespace_digest");
    refused((struct store_scope){.owner = other->owner,
                                 .namespace_digest = (const uint8_t[KVC_NAMESPACE_BYTES]){2}},
            KVC_E_UNKNOWN, "namespace_digest");
    refused(
        (struct store_scope){.part = kit.part, .keys = kit.scope_keys, .n_keys = KVC_KEYS_MAX + 1},
        KVC_E_LIMIT, "keys");
    ck_assert_int_eq(store_pin(kit.store, &(struct store_scope){.all = true}, 0, &count, &kit.why),
                     KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "all");
    ck_assert_int_eq(store_pin(kit.store, &(struct store_scope){.part = kit.part},
                               KVC_PIN_SECONDS_MAX + 1, &count, &kit.why),
                     KVC_E_LIMIT);
    ck_assert_str_eq(kit.why.field, "seconds");
    kit_close(&kit);
}
END_TEST

START_TEST(S42_a_flush_of_keys_leaves_leases_that_lost_none_of_them)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    uint64_t lease, theirs;
    uint8_t key[KVC_KEY_BYTES];

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 2, &lease), 2);
    ck_assert_uint_eq(kit_lookup(&kit, other, 0, 6, &theirs), 6);
    kit_load(&kit, worker, lease, 1, 1, 1, &load);
    kit_key(1, key);
    store_report(kit.store, worker->owner, kit.part, key, load.locations[0].tier,
                 load.locations[0].generation);
    ck_assert_uint_eq(kit_flush(&kit, kit_scope(&kit, worker, 5, 1)), 1);
    /* The first lease lost a block before, and not by the flush. */
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    kit_close_load(&kit, &load);
    kit_load(&kit, worker, lease, 0, 0, 1, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

/* A namespace may have more parts than a session, and each has to be looked at. */
START_TEST(keys_of_many_parts_are_few_at_a_time)
{
    struct kit_owner *worker;
    struct store_scope scope;
    uint64_t blocks;
    uint32_t count;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16});
    worker = kit_worker(&kit);
    for (uint32_t i = 1; i <= 2 * KVC_PARTS_MAX; i++) {
        const uint8_t digest[KVC_NAMESPACE_BYTES] = {1};
        const struct store_part part = {.namespace_digest = digest,
                                        .slice_bytes = &(uint32_t){4096 + 16 * i},
                                        .n_slices = 1,
                                        .block_tokens = 16};
        struct store_part_info info;

        ck_assert_int_eq(store_register(kit.store, worker->owner, &part, &info, &kit.why), KVC_OK);
        ck_assert_int_eq(store_unregister(kit.store, worker->owner, info.part, &kit.why), KVC_OK);
    }
    scope = kit_scope(&kit, NULL, 0, KVC_KEYS_MAX);
    scope.part = 0;
    scope.namespace_digest = (const uint8_t[KVC_NAMESPACE_BYTES]){1};
    refused(scope, KVC_E_LIMIT, "keys");
    ck_assert_int_eq(store_pin(kit.store, &scope, 0, &count, &kit.why), KVC_E_LIMIT);
    scope.n_keys = KVC_KEYS_MAX / 4;
    ck_assert_int_eq(store_flush(kit.store, &scope, &blocks, &kit.why), KVC_OK);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/flush", CHECK_UNIT_S,
                 {S42_a_flush_drops_every_block_of_the_namespace, 0, 0, CHECK_BOTH_WAYS},
                 {S42_old_epochs_are_stale, 0, 0, CHECK_BOTH_WAYS},
                 {S42_epochs_begin_anew_behind_the_last_number, 0, 0, CHECK_BOTH_WAYS},
                 {S42_nothing_in_flight_is_published_after_a_flush, 0, 0, CHECK_BOTH_WAYS},
                 {S42_an_empty_entry_is_in_no_namespace, 0, 0, CHECK_BOTH_WAYS},
                 {S42_open_loads_run_to_their_proof, 0, 0, CHECK_BOTH_WAYS},
                 {S42_a_flush_while_blocks_are_copied, 0, 1, CHECK_BOTH_WAYS},
                 {S42_keys_are_flushed_and_nothing_else, 0, 0, CHECK_BOTH_WAYS},
                 {S42_a_save_that_fills_a_flushed_key_ends, 0, 1, CHECK_BOTH_WAYS},
                 {S42_open_loads_of_flushed_keys_run_to_their_proof, 0, 0, CHECK_BOTH_WAYS},
                 {S42_an_operator_flushes_a_namespace_of_every_tenant_or_all, 0, 0,
                  CHECK_BOTH_WAYS},
                 {S42_nonsense_is_refused, 0, 0, CHECK_BOTH_WAYS},
                 {keys_of_many_parts_are_few_at_a_time, 0, 0},
                 {S42_a_flush_of_keys_leaves_leases_that_lost_none_of_them, 0, 0, CHECK_BOTH_WAYS})
