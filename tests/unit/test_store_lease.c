/* Leases: what is granted, for how long, and to whom. */
#include "daemon/base/clock.h"
#include "daemon/store/lease.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;
static struct kit_load load;

struct ask {
    uint64_t request, lease;
    uint32_t offset, ms;
    uint32_t part, first, n;
};

static kvc_status ask(struct kit_owner *owner, struct ask ask, struct store_lookup_result *result)
{
    static uint8_t keys[2 * KVC_KEYS_MAX * KVC_KEY_BYTES];
    struct store_lookup_part part = {
        .part = ask.part ? ask.part : kit.part, .epoch = kit.epoch, .keys = keys, .n_keys = ask.n};
    struct store_lookup request = {.request = ask.request,
                                   .lease = ask.lease,
                                   .offset = ask.offset,
                                   .lease_ms = ask.ms,
                                   .parts = &part,
                                   .n_parts = 1};
    kvc_status status;

    kit_keys(ask.first, ask.n, keys);
    status = store_lookup(kit.store, owner->owner, &request, result, &kit.why);
    kit_check(&kit);
    return status;
}

START_TEST(S27_the_longest_published_prefix_is_leased)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 4);
    struct store_lookup_result result;

    kit_save(&kit, worker, 4, 2, &save);
    kit_put(&kit, worker, 6, 2);
    ck_assert_int_eq(ask(worker, (struct ask){.n = 10}, &result), KVC_OK);
    ck_assert_uint_eq(result.count, 4);
    ck_assert_uint_eq(result.pending, 4); /* 4, 5 are filling and 6, 7 are there */
    ck_assert_uint_eq(result.in_tier[TIER_GPU], 4);
    ck_assert_uint_ne(result.lease, 0);
    ck_assert_int_eq(ask(worker, (struct ask){.first = 4, .n = 10}, &result), KVC_OK);
    ck_assert_uint_eq(result.count, 0);
    ck_assert_uint_eq(result.lease, 0);
    ck_assert_int_eq(ask(worker, (struct ask){.n = 0}, &result), KVC_OK);
    ck_assert_uint_eq(result.lease, 0);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    ck_assert_uint_eq(kit_stats(&kit).hits[TIER_GPU], 4);
    ck_assert_uint_eq(kit_stats(&kit).misses, 16);
    kit_close(&kit);
}
END_TEST

START_TEST(S27_a_repeated_lookup_extends_the_same_lease)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 4), *other = kit_worker(&kit);
    struct store_lookup_result a, b;
    uint64_t hits;

    ck_assert_int_eq(ask(worker, (struct ask){.request = 7, .n = 8, .ms = 1000}, &a), KVC_OK);
    kit_put(&kit, worker, 4, 2);
    clock_advance(900 * CLOCK_MS_US);
    ck_assert_int_eq(ask(worker, (struct ask){.request = 7, .n = 8, .ms = 1000}, &b), KVC_OK);
    ck_assert_uint_eq(a.lease, b.lease);
    ck_assert_int_eq(memcmp(a.token, b.token, sizeof(a.token)), 0);
    ck_assert_uint_eq(b.count, 6);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    clock_advance(900 * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    hits = kit_stats(&kit).hits[TIER_GPU];
    ck_assert_uint_eq(hits, 4); /* a request is counted once */
    /* Another session's request of that name is another. */
    ck_assert_int_eq(ask(other, (struct ask){.request = 7, .n = 8}, &b), KVC_OK);
    ck_assert_uint_ne(a.lease, b.lease);
    clock_advance(200 * CLOCK_MS_US);
    /* The first has ended: the name is free again. */
    ck_assert_int_eq(ask(worker, (struct ask){.request = 7, .n = 8}, &b), KVC_OK);
    ck_assert_uint_ne(a.lease, b.lease);
    kit_close(&kit);
}
END_TEST

START_TEST(S27_a_repeated_lookup_that_finds_nothing_ends_the_lease)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 4);
    struct store_lookup_result a, b;

    ck_assert_int_eq(ask(worker, (struct ask){.request = 7, .n = 4}, &a), KVC_OK);
    ck_assert_int_eq(ask(worker, (struct ask){.request = 7, .first = 50, .n = 4}, &b), KVC_OK);
    ck_assert_uint_eq(b.lease, 0);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, a.lease, 0, 1, &load), KVC_E_EXPIRED);
    kit_close(&kit);
}
END_TEST

START_TEST(S27_a_lookup_appends_to_a_lease)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 10);
    struct store_lookup_result a, b;

    ck_assert_int_eq(ask(worker, (struct ask){.n = 4}, &a), KVC_OK);
    ck_assert_int_eq(ask(worker, (struct ask){.lease = a.lease, .offset = 5, .n = 1}, &b),
                     KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "offset");
    ck_assert_int_eq(ask(worker, (struct ask){.offset = 4, .n = 1}, &b), KVC_E_INVALID);
    ck_assert_int_eq(
        ask(worker, (struct ask){.lease = a.lease, .offset = 4, .first = 4, .n = 8}, &b), KVC_OK);
    ck_assert_uint_eq(b.lease, a.lease);
    ck_assert_uint_eq(b.count, 10);
    ck_assert_uint_eq(b.in_tier[TIER_GPU], 6);
    /* The same again changes nothing. */
    ck_assert_int_eq(
        ask(worker, (struct ask){.lease = a.lease, .offset = 4, .first = 4, .n = 8}, &b), KVC_OK);
    ck_assert_uint_eq(b.count, 10);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, a.lease, 0, 10, &load), KVC_OK);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* Nothing found behind an offset shortens the lease to it. */
    ck_assert_int_eq(
        ask(worker, (struct ask){.lease = a.lease, .offset = 3, .first = 90, .n = 1}, &b), KVC_OK);
    ck_assert_uint_eq(b.count, 3);
    kit_close(&kit);
}
END_TEST

START_TEST(S27_lookups_that_are_refused)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 4), *other = kit_worker(&kit);
    struct kit_owner *admin = kit_owner(&kit, STORE_ROLE_OPERATOR);
    struct store_part_info second;
    struct store_lookup_result a, b;

    kit_register(&kit, worker, 2, kit.slot_bytes, &second);
    ck_assert_int_eq(ask(worker, (struct ask){.n = 4}, &a), KVC_OK);
    ck_assert_int_eq(ask(other, (struct ask){.lease = a.lease, .n = 1}, &b), KVC_E_DENIED);
    ck_assert_int_eq(ask(admin, (struct ask){.n = 1}, &b), KVC_E_DENIED);
    ck_assert_int_eq(ask(other, (struct ask){.part = second.part, .n = 1}, &b), KVC_E_UNKNOWN);
    ck_assert_str_eq(kit.why.field, "parts[0].part");
    ck_assert_int_eq(ask(worker, (struct ask){.part = second.part, .lease = a.lease, .n = 1}, &b),
                     KVC_E_INVALID);
    ck_assert_int_eq(ask(worker, (struct ask){.n = KVC_KEYS_MAX + 1}, &b), KVC_E_LIMIT);
    ck_assert_int_eq(ask(worker, (struct ask){.lease = ~0ull, .n = 1}, &b), KVC_E_UNKNOWN);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    kit_close(&kit);
}
END_TEST

START_TEST(S28_a_leased_block_is_neither_evicted_nor_moved)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_entry entry = kit_entry(&kit, 100, 8);
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 6, &lease), 6);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(kit.n_moves, 2);
    kit_moves(&kit, 2, KVC_OK);
    ck_assert_uint_eq(store_save_more(kit.store, save.open), 0);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, 2);
    for (uint32_t key = 0; key < 6; key++)
        ck_assert(kit_in_tier(&kit, key, TIER_GPU) && !kit_in_tier(&kit, key, TIER_HOST));
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    kit_close(&kit);
}
END_TEST

/* _i: whether the copy succeeds. */
START_TEST(S28_a_lease_on_a_block_that_is_being_demoted)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct kit_entry entry = kit_entry(&kit, 100, 2);
    uint64_t lease;

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(kit.n_moves, 2); /* 7 and 6 */
    ck_assert_uint_eq(kit_lookup(&kit, worker, 6, 2, &lease), 2);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, lease, 0, 2, &load), KVC_OK);
    load.first = 6;
    kit_moves(&kit, 2, _i ? KVC_OK : KVC_E_DEVICE);
    /* Clean now, perhaps, but not to be dropped. */
    while (store_save_more(kit.store, save.open) > 0)
        kit_moves(&kit, 1, KVC_OK);
    kit_save_seal(&kit, &save);
    ck_assert(kit_in_tier(&kit, 6, TIER_GPU) && kit_in_tier(&kit, 7, TIER_GPU));
    ck_assert_int_eq(load.locations[0].tier, TIER_GPU);
    kit_verify(&kit, &load);
    kit_release(&kit, worker, lease);
    ck_assert(kit_in_tier(&kit, 6, TIER_GPU) && kit_in_tier(&kit, 7, TIER_GPU));
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

START_TEST(S29_release_is_idempotent_and_by_its_owner)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    ck_assert_int_eq(store_release(kit.store, other->owner, lease, &kit.why), KVC_E_DENIED);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    for (int i = 0; i < 3; i++)
        kit_release(&kit, worker, lease);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S30_a_lease_ends_by_time_and_can_be_extended)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8), *other = kit_worker(&kit);
    struct store_lookup_result a;
    uint32_t granted;

    ck_assert_int_eq(ask(worker, (struct ask){.n = 8, .ms = 500}, &a), KVC_OK);
    ck_assert_uint_eq(a.lease_ms, 500);
    clock_advance(400 * CLOCK_MS_US);
    ck_assert_int_eq(store_extend(kit.store, worker->owner, a.lease, 500, &granted, &kit.why),
                     KVC_OK);
    ck_assert_uint_eq(granted, 500);
    ck_assert_int_eq(store_extend(kit.store, other->owner, a.lease, 500, &granted, &kit.why),
                     KVC_E_DENIED);
    clock_advance(400 * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    ck_assert_uint_le(store_next_wake(kit.store), 100 * CLOCK_MS_US);
    clock_advance(100 * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    ck_assert_int_eq(store_extend(kit.store, worker->owner, a.lease, 500, &granted, &kit.why),
                     KVC_E_EXPIRED);
    ck_assert_int_eq(ask(worker, (struct ask){.n = 8}, &a), KVC_OK);
    ck_assert_uint_eq(a.lease_ms, KVC_LEASE_MS_DEFAULT);
    ck_assert_int_eq(ask(worker, (struct ask){.n = 8, .ms = ~0u}, &a), KVC_OK);
    ck_assert_uint_eq(a.lease_ms, KVC_LEASE_MS_MAX);
    kit_close(&kit);
}
END_TEST

START_TEST(S35_a_lease_is_handed_over)
{
    struct kit_owner *scheduler, *worker = kit_open_with(&kit, 8, 8, 8), *second = kit_worker(&kit);
    struct store_lookup_result granted, adopted, again;

    scheduler = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    ck_assert_int_eq(ask(scheduler, (struct ask){.n = 8}, &granted), KVC_OK);
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, granted.token, KVC_TOKEN_BYTES, kit.part,
                                 kit.epoch, 1000, &adopted, &kit.why),
                     KVC_OK);
    ck_assert_uint_eq(adopted.count, 8);
    ck_assert_uint_eq(adopted.lease_ms, 1000);
    ck_assert_uint_ne(adopted.lease, granted.lease);
    ck_assert_int_eq(memcmp(adopted.token, granted.token, KVC_TOKEN_BYTES) == 0, false);
    ck_assert_int_eq(store_adopt(kit.store, second->owner, granted.token, KVC_TOKEN_BYTES, kit.part,
                                 kit.epoch, 0, &again, &kit.why),
                     KVC_OK);
    ck_assert_uint_eq(again.lease_ms, KVC_LEASE_MS_DEFAULT);
    store_owner_end(kit.store, scheduler->owner);
    kit_tick(&kit);
    ck_assert(scheduler->freed);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, adopted.lease, 0, 8, &load), KVC_OK);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* A lease that nobody loads ends by its time. */
    clock_advance(1000 * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    clock_advance(KVC_LEASE_MS_DEFAULT * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S35_tokens_cannot_be_guessed)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct owner_identity stranger = {.role = STORE_ROLE_WORKER};
    struct kit_owner *other;
    struct store_part_info info;
    struct store_lookup_result granted, adopted;
    uint8_t token[KVC_TOKEN_BYTES];

    ck_assert_int_eq(ask(worker, (struct ask){.n = 8}, &granted), KVC_OK);
    for (uint32_t bit = 0; bit < 8 * KVC_TOKEN_BYTES; bit++) {
        memcpy(token, granted.token, sizeof(token));
        token[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(store_adopt(kit.store, worker->owner, token, sizeof(token), kit.part,
                                     kit.epoch, 0, &adopted, &kit.why),
                         KVC_E_UNKNOWN);
    }
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, granted.token, 15, kit.part, kit.epoch,
                                 0, &adopted, &kit.why),
                     KVC_E_INVALID);
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, granted.token, 16, kit.part,
                                 kit.epoch + 1, 0, &adopted, &kit.why),
                     KVC_E_STALE);
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, granted.token, 16, kit.part + 1,
                                 kit.epoch, 0, &adopted, &kit.why),
                     KVC_E_UNKNOWN);
    kit_register(&kit, worker, 9, kit.slot_bytes, &info);
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, granted.token, 16, info.part, info.epoch,
                                 0, &adopted, &kit.why),
                     KVC_E_INVALID);
    /* Not even the right one works for another tenant. */
    ck_assert_int_eq(store_tenant(kit.store, "uid:2", 2, &stranger.tenant), KVC_OK);
    other = &kit.owners[kit.n_owners++];
    ck_assert_int_eq(store_owner_open(kit.store, &stranger, other, &other->owner), KVC_OK);
    kit_register(&kit, other, 1, kit.slot_bytes, &info);
    ck_assert_uint_ne(info.part, kit.part);
    ck_assert_int_eq(store_adopt(kit.store, other->owner, granted.token, 16, info.part, info.epoch,
                                 0, &adopted, &kit.why),
                     KVC_E_UNKNOWN);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    kit_close(&kit);
}
END_TEST

START_TEST(S36_leased_in_all_parts_or_in_none)
{
    struct kit_owner *worker = kit_open_with(&kit, 16, 16, 5);
    struct store_part_info second;
    struct store_lookup_result result;
    struct kit_entry entry;
    uint8_t keys[8 * KVC_KEY_BYTES];
    struct store_lookup_part parts[2];
    struct store_lookup request = {.parts = parts, .n_parts = 2};

    kit_register(&kit, worker, 2, kit.slot_bytes, &second);
    entry = (struct kit_entry){second.part, second.epoch, 0, 3};
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    kit_keys(0, 8, keys);
    parts[0] = (struct store_lookup_part){kit.part, kit.epoch, keys, 8};
    parts[1] = (struct store_lookup_part){second.part, second.epoch, keys, 8};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why), KVC_OK);
    ck_assert_uint_eq(result.count, 0);
    ck_assert_uint_eq(result.pending, 3);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    kit_prove(&kit, &save);
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why), KVC_OK);
    ck_assert_uint_eq(result.count, 3);
    kit_check(&kit);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, result.lease, 0, 4, &load), KVC_E_INVALID);
    ck_assert_int_eq(kit_try_load_part(&kit, worker, result.lease, 0, 3, &load), KVC_OK);
    kit_close_load(&kit, &load);
    parts[1] = parts[0];
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why),
                     KVC_E_DUPLICATE);
    parts[1].part = second.part;
    parts[1].n_keys = 7;
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why),
                     KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "parts[1].keys");
    kit_close(&kit);
}
END_TEST

START_TEST(lease_limits)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 1);
    struct store_lookup_result result;

    for (uint32_t i = 0; i < KVC_SESSION_LEASES_MAX - 1; i++) {
        struct store_lookup_part part = {.part = kit.part, .epoch = kit.epoch, .n_keys = 1};
        uint8_t key[KVC_KEY_BYTES];
        struct store_lookup request = {.request = i + 1, .parts = &part, .n_parts = 1};

        kit_key(0, key);
        part.keys = key;
        ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, NULL), KVC_OK);
    }
    ck_assert_int_eq(ask(worker, (struct ask){.n = 1}, &result), KVC_OK);
    ck_assert_int_eq(ask(worker, (struct ask){.n = 1}, &result), KVC_E_LIMIT);
    /* The same request again is no new lease. */
    ck_assert_int_eq(ask(worker, (struct ask){.request = 17, .n = 1}, &result), KVC_OK);
    clock_advance(KVC_LEASE_MS_DEFAULT * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    kit_close(&kit);
}
END_TEST

static kvc_status append(struct kit_owner *owner, uint64_t *lease, uint32_t offset,
                         const uint8_t *keys)
{
    struct store_lookup_part part = {
        .part = kit.part, .epoch = kit.epoch, .keys = keys, .n_keys = KVC_KEYS_MAX};
    struct store_lookup request = {.lease = *lease, .offset = offset, .parts = &part, .n_parts = 1};
    struct store_lookup_result result;
    kvc_status status = store_lookup(kit.store, owner->owner, &request, &result, &kit.why);

    if (status == KVC_OK)
        *lease = result.lease;
    return status;
}

/* One block is enough to ask for any number of holds on it. */
START_TEST(lease_limit_of_blocks)
{
    static uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 1), *other = kit_worker(&kit);
    uint64_t lease = 0, first = 0, fresh = 0;
    uint32_t n = 0;
    kvc_status status;

    for (uint32_t i = 0; i < KVC_KEYS_MAX; i++)
        kit_key(0, keys + (size_t)i * KVC_KEY_BYTES);
    do {
        uint32_t offset = n % KVC_LEASE_KEYS_MAX;

        lease = offset == 0 ? 0 : lease;
        status = append(worker, &lease, offset, keys);
        first = n == 0 ? lease : first;
        n += KVC_KEYS_MAX;
    } while (status == KVC_OK);
    ck_assert_int_eq(status, KVC_E_LIMIT);
    ck_assert_str_eq(kit.why.field, "lease");
    ck_assert_uint_eq(n - KVC_KEYS_MAX, KVC_SESSION_LEASE_BLOCKS_MAX);
    ck_assert_int_eq(append(other, &fresh, 0, keys), KVC_OK);
    kit_release(&kit, worker, first);
    fresh = 0;
    ck_assert_int_eq(append(worker, &fresh, 0, keys), KVC_OK);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/lease", CHECK_UNIT_S,
                 {S27_the_longest_published_prefix_is_leased, 0, 0, CHECK_BOTH_WAYS},
                 {S27_a_repeated_lookup_extends_the_same_lease, 0, 0, CHECK_BOTH_WAYS},
                 {S27_a_repeated_lookup_that_finds_nothing_ends_the_lease, 0, 0, CHECK_BOTH_WAYS},
                 {S27_a_lookup_appends_to_a_lease, 0, 0, CHECK_BOTH_WAYS},
                 {S27_lookups_that_are_refused, 0, 0, CHECK_BOTH_WAYS},
                 {S28_a_leased_block_is_neither_evicted_nor_moved, 0, 0, CHECK_BOTH_WAYS},
                 {S28_a_lease_on_a_block_that_is_being_demoted, 0, 1, CHECK_BOTH_WAYS},
                 {S29_release_is_idempotent_and_by_its_owner, 0, 0, CHECK_BOTH_WAYS},
                 {S30_a_lease_ends_by_time_and_can_be_extended, 0, 0, CHECK_BOTH_WAYS},
                 {S35_a_lease_is_handed_over, 0, 0, CHECK_BOTH_WAYS},
                 {S35_tokens_cannot_be_guessed, 0, 0, CHECK_BOTH_WAYS},
                 {S36_leased_in_all_parts_or_in_none, 0, 0, CHECK_BOTH_WAYS},
                 {lease_limits, 0, 0, CHECK_BOTH_WAYS},
                 {lease_limit_of_blocks, 0, 0, CHECK_BOTH_WAYS})
