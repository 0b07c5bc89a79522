/* Quotas and shares: who gives room to whom, what a scan cannot take, and what leases may hold. */
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define NAMESPACES 4u

static struct kit kit;
static struct kit_save save;
static struct kit_owner *worker;
static struct store_part_info parts[NAMESPACES];
static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];

static void open_namespaces(uint32_t gpu_slots, uint32_t host_slots)
{
    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < NAMESPACES; i++)
        kit_register(&kit, worker, (uint8_t)(20 + i), kit.slot_bytes, &parts[i]);
    kit_map_all(&kit, worker);
    kit_keys(0, KIT_KEYS, keys);
}

/* Saves keys into a namespace and lets copies end as long as that helps; returns how many fit. */
static uint32_t put(uint32_t ns, uint32_t first, uint32_t n)
{
    struct kit_entry entry = {parts[ns].part, parts[ns].epoch, first, n};

    kit_save_slowly(&kit, worker, entry, &save);
    kit_prove(&kit, &save);
    kit.n_done = 0;
    return save.n_assigned;
}

/* A scan: so many keys that nobody asks for again, a few at a time. */
static void scan(uint32_t ns, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(put(ns, first + i, 1), 1);
        kit_check(&kit);
    }
}

static struct store_lookup_result look(uint32_t ns, uint32_t first, uint32_t n, bool probe)
{
    struct store_lookup_part part = {parts[ns].part, parts[ns].epoch, keys + first * KVC_KEY_BYTES,
                                     n};
    struct store_lookup request = {.parts = &part, .n_parts = 1, .probe = probe};
    struct store_lookup_result result;

    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why), KVC_OK);
    kit_check(&kit);
    return result;
}

/* Which of the keys are hits, in any order. */
static uint32_t count(uint32_t ns, uint32_t first, uint32_t n)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++)
        found += look(ns, first + i, 1, true).count;
    return found;
}

static uint64_t used(uint32_t ns, enum tier_kind tier)
{
    struct store_namespace_usage usage;

    for (uint32_t i = 0; i < TABLE_NAMESPACES; i++) {
        if (table_namespace(store_table(kit.store), i)->digest[0] != 20 + ns)
            continue;
        store_namespace_usage(kit.store, i, &usage);
        return usage.used[tier] / kit.slot_bytes;
    }
    ck_abort_msg("no such namespace");
}

static kvc_status set(uint32_t ns, uint64_t gpu_slots, uint64_t host_slots, uint64_t leases)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {(uint8_t)(20 + ns)};
    const struct store_quota quota = {
        .bytes = {gpu_slots * kit.slot_bytes, host_slots * kit.slot_bytes}, .leases = leases};
    uint32_t n = 0;
    kvc_status status = store_set_quota(kit.store, digest, &quota, false, &n, &kit.why);

    ck_assert(status != KVC_OK || n == 1);
    return status;
}

START_TEST(a_scan_takes_nothing_below_a_share)
{
    open_namespaces(16, 0);
    put(0, 0, 8);
    scan(1, 100, 60);
    ck_assert_uint_eq(count(0, 0, 8), 8);
    ck_assert_uint_eq(used(0, TIER_GPU), 8);
    ck_assert_uint_eq(used(1, TIER_GPU), 8);
    ck_assert_uint_eq(count(1, 152, 8), 8);
    kit_close(&kit);
}
END_TEST

START_TEST(a_scan_takes_nothing_below_a_share_of_either_tier)
{
    open_namespaces(16, 16);
    put(0, 0, 16); /* over its share as soon as somebody else comes */
    scan(1, 100, 100);
    ck_assert_uint_eq(used(0, TIER_GPU), 8);
    ck_assert_uint_eq(used(1, TIER_GPU), 8);
    ck_assert_uint_eq(used(0, TIER_HOST), 8);
    ck_assert_uint_eq(count(0, 0, 16), 16);
    ck_assert_uint_ge(count(1, 100, 100), 8);
    kit_close(&kit);
}
END_TEST

/* Saves that ask for the host tier are under its shares like what is demoted to it. */
START_TEST(a_scan_to_the_host_takes_nothing_below_a_share)
{
    open_namespaces(16, 16);
    kit.place = STORE_PLACE_HOST_ONLY;
    put(0, 0, 16); /* over its share as soon as somebody else comes */
    scan(1, 100, 60);
    ck_assert_uint_eq(used(0, TIER_HOST), 8);
    ck_assert_uint_eq(used(1, TIER_HOST), 8);
    ck_assert_uint_eq(count(0, 0, 16), 8);
    ck_assert_uint_eq(count(1, 152, 8), 8);
    ck_assert_uint_eq(used(0, TIER_GPU) + used(1, TIER_GPU), 0);
    kit_close(&kit);
}
END_TEST

/* What lies in an extent that is closed makes no room for others, whoever gives it. */
START_TEST(who_gives_what_makes_no_room_is_not_the_last_one_asked)
{
    struct store_lookup_result leased;

    open_namespaces(0, 16);
    ck_assert_int_eq(set(0, 0, 1, 0), KVC_OK);
    put(0, 0, 8);
    put(1, 100, 8);
    leased = look(0, 0, 1, false);
    store_lose_extent(kit.store, TIER_HOST, 0);
    kit_tick(&kit);
    ck_assert_uint_eq(used(0, TIER_HOST), 1);
    ck_assert_int_eq(store_release(kit.store, worker->owner, leased.lease, &kit.why), KVC_OK);
    ck_assert_uint_eq(put(1, 200, 1), 1);
    kit_close(&kit);
}
END_TEST

START_TEST(a_namespace_over_its_share_gives_first)
{
    open_namespaces(16, 0);
    put(0, 0, 14);
    put(1, 100, 2);
    ck_assert_uint_eq(used(0, TIER_GPU), 14); /* nobody else wanted it */
    put(1, 200, 4);
    ck_assert_uint_eq(count(1, 100, 2), 2);
    ck_assert_uint_eq(used(0, TIER_GPU), 10);
    ck_assert_uint_eq(count(0, 0, 14), 10);
    put(2, 300, 4); /* three: shares of five */
    ck_assert_uint_eq(used(0, TIER_GPU), 6);
    ck_assert_uint_eq(used(1, TIER_GPU), 6);
    kit_close(&kit);
}
END_TEST

/* What is filling or leased gives nothing; then nobody else below its share does so for it. */
START_TEST(who_has_nothing_to_give_takes_nothing_below_a_share)
{
    struct kit_entry entry;

    open_namespaces(16, 0);
    put(0, 0, 8);
    entry = (struct kit_entry){parts[1].part, parts[1].epoch, 100, 12};
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, 8);
    ck_assert_uint_eq(count(0, 0, 8), 8);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(look(1, 100, 8, false).count, 8);
    ck_assert_uint_eq(put(1, 200, 2), 0);
    ck_assert_uint_eq(count(0, 0, 8), 8);
    kit_close(&kit);
}
END_TEST

START_TEST(a_quota_is_the_share)
{
    open_namespaces(16, 0);
    ck_assert_int_eq(set(0, 12, 0, 0), KVC_OK);
    put(0, 0, 12);
    scan(1, 100, 40);
    ck_assert_uint_eq(count(0, 0, 12), 12);
    ck_assert_uint_eq(used(1, TIER_GPU), 4);
    ck_assert_int_eq(set(0, 2, 0, 0), KVC_OK); /* at run time */
    scan(1, 200, 40);
    ck_assert_uint_eq(used(0, TIER_GPU), 2);
    ck_assert_uint_eq(used(1, TIER_GPU), 14);
    kit_close(&kit);
}
END_TEST

START_TEST(quotas_of_more_than_there_is_share_it)
{
    open_namespaces(16, 0);
    ck_assert_int_eq(set(0, 16, 0, 0), KVC_OK);
    ck_assert_int_eq(set(1, 16, 0, 0), KVC_OK);
    put(0, 0, 16);
    scan(1, 100, 40);
    ck_assert_uint_eq(used(0, TIER_GPU), 8);
    ck_assert_uint_eq(put(2, 200, 10), 0); /* nothing is left for one without */
    kit_close(&kit);
}
END_TEST

START_TEST(what_rules_say_is_in_force_until_a_quota_is_set)
{
    struct store_quota_rule rules[] = {
        {.all = true, .quota.bytes[TIER_GPU] = 2u * KIT_SLOT_BYTES, .quota.leases = 3},
        {.digest = {20}, .quota.bytes[TIER_GPU] = 14u * KIT_SLOT_BYTES}};
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {20};
    struct store_quota quota = {.bytes[TIER_GPU] = 4u * KIT_SLOT_BYTES};
    struct store_namespace_usage usage;
    uint32_t n;

    open_namespaces(16, 0);
    ck_assert_int_eq(store_quota_rules(kit.store, rules, 2), KVC_OK);
    put(0, 0, 14);
    scan(1, 100, 30);
    ck_assert_uint_eq(used(0, TIER_GPU), 14);
    ck_assert_int_eq(store_set_quota(kit.store, digest, &quota, false, &n, &kit.why), KVC_OK);
    store_namespace_usage(kit.store, 1, &usage);
    ck_assert_uint_eq(usage.quota.bytes[TIER_GPU], 4u * KIT_SLOT_BYTES);
    ck_assert_uint_eq(usage.quota.leases, 3);
    quota = (struct store_quota){0};
    ck_assert_int_eq(store_set_quota(kit.store, digest, &quota, true, &n, &kit.why), KVC_OK);
    store_namespace_usage(kit.store, 1, &usage);
    ck_assert_uint_eq(usage.quota.bytes[TIER_GPU], 14u * KIT_SLOT_BYTES);
    ck_assert_int_eq(store_quota_rules(kit.store, NULL, 0), KVC_OK);
    store_namespace_usage(kit.store, 1, &usage);
    ck_assert_uint_eq(usage.quota.bytes[TIER_GPU], 0);
    kit_check(&kit);
    kit_close(&kit);
}
END_TEST

START_TEST(what_is_left_of_a_model_gives_first)
{
    clock_stop();
    open_namespaces(16, 0);
    put(0, 0, 8);
    put(1, 100, 2);
    clock_advance(KVC_NAMESPACE_IDLE_MS * CLOCK_MS_US);
    kit_tick(&kit);
    put(1, 200, 2);
    scan(1, 300, 30);
    ck_assert_uint_eq(used(0, TIER_GPU), 0);
    ck_assert_uint_eq(used(1, TIER_GPU), 16);
    put(0, 0, 8); /* it is back */
    scan(1, 400, 30);
    ck_assert_uint_eq(used(0, TIER_GPU), 8);
    kit_close(&kit);
}
END_TEST

static uint64_t leased(uint32_t ns)
{
    struct store_namespace_usage usage;

    store_namespace_usage(kit.store, ns + 1, &usage);
    return usage.leased;
}

START_TEST(a_lookup_over_the_quota_of_leases_is_granted_shorter)
{
    struct store_lookup_result first, second, third;

    open_namespaces(16, 0);
    put(0, 0, 12);
    ck_assert_int_eq(set(0, 0, 0, 6), KVC_OK);
    first = look(0, 0, 4, false);
    ck_assert_uint_eq(first.count, 4);
    second = look(0, 0, 12, false); /* four of them are leased already: they cost nothing */
    ck_assert_uint_eq(second.count, 6);
    ck_assert_uint_eq(leased(0), 6);
    third = look(0, 6, 4, false);
    ck_assert_uint_eq(third.count, 0);
    ck_assert_uint_eq(third.lease, 0);
    ck_assert_uint_eq(look(0, 0, 12, true).count, 12); /* a probe holds nothing */
    ck_assert_uint_eq(kit_stats(&kit).limited_lookups, 2);
    kit_release(&kit, worker, second.lease);
    ck_assert_uint_eq(leased(0), 4);
    ck_assert_uint_eq(look(0, 6, 4, false).count, 2);
    kit_close(&kit);
}
END_TEST

START_TEST(a_quota_of_leases_is_the_namespaces_own)
{
    struct store_lookup_part list[2];
    struct store_lookup request = {.parts = list, .n_parts = 2};
    struct store_lookup_result result;

    open_namespaces(24, 0);
    put(0, 0, 8);
    put(1, 0, 8);
    ck_assert_int_eq(set(0, 0, 0, 3), KVC_OK);
    ck_assert_uint_eq(look(1, 0, 8, false).count, 8);
    for (uint32_t i = 0; i < 2; i++)
        list[i] = (struct store_lookup_part){parts[i].part, parts[i].epoch, keys, 8};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why), KVC_OK);
    ck_assert_uint_eq(result.count, 3); /* in all parts or in none */
    ck_assert_uint_eq(leased(0), 3);
    ck_assert_uint_eq(leased(1), 8);
    kit_close(&kit);
}
END_TEST

START_TEST(what_a_quota_of_leases_counts)
{
    struct store_scope scope = {.part = 0};
    struct store_lookup_result first, adopted;
    struct kit_entry entry;
    uint32_t n;

    open_namespaces(16, 0);
    put(0, 0, 8);
    ck_assert_int_eq(set(0, 0, 0, 4), KVC_OK);
    first = look(0, 0, 4, false);
    /* An adopted lease has no block that was not leased. */
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, first.token, KVC_TOKEN_BYTES,
                                 parts[0].part, parts[0].epoch, 0, &adopted, &kit.why),
                     KVC_OK);
    ck_assert_uint_eq(leased(0), 4);
    kit_release(&kit, worker, first.lease);
    ck_assert_uint_eq(leased(0), 4);
    kit_release(&kit, worker, adopted.lease);
    ck_assert_uint_eq(leased(0), 0);
    /* Pins and the hits of saves are no leases. */
    scope = (struct store_scope){.part = parts[0].part, .keys = keys, .n_keys = 8};
    ck_assert_int_eq(store_pin(kit.store, &scope, 0, &n, &kit.why), KVC_OK);
    entry = (struct kit_entry){parts[0].part, parts[0].epoch, 0, 8};
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(leased(0), 0);
    ck_assert_uint_eq(look(0, 0, 8, false).count, 4);
    kit_save_seal(&kit, &save);
    /* A leased block that is flushed is none any more. */
    ck_assert_int_eq(store_flush(kit.store, &scope, &(uint64_t){0}, &kit.why), KVC_OK);
    ck_assert_uint_eq(leased(0), 0);
    kit_check(&kit);
    kit_close(&kit);
}
END_TEST

/* Blocks of another slot size lie in extents of their own, which move to whoever needs them. */
START_TEST(a_scan_takes_no_extent_below_a_share)
{
    struct store_part_info big;
    struct kit_entry entry;

    clock_stop();
    open_namespaces(64, 0);
    kit_register(&kit, worker, 50, 2 * kit.slot_bytes, &big);
    kit_map_all(&kit, worker);
    put(0, 0, 64);
    for (uint32_t i = 0; i < 200; i++) {
        entry = (struct kit_entry){big.part, big.epoch, 100 + i, 1};
        ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
        kit_save_seal(&kit, &save);
        kit_prove(&kit, &save);
        kit.n_done = 0;
        clock_advance(CLOCK_S_US / 2);
        store_tick(kit.store);
        kit_check(&kit);
    }
    ck_assert_uint_eq(used(0, TIER_GPU), 32);
    ck_assert_uint_eq(count(0, 0, 64), 32);
    kit_close(&kit);
}
END_TEST

START_TEST(nonsense_is_refused_with_its_field)
{
    open_namespaces(16, 8);
    ck_assert_int_eq(set(7, 1, 0, 0), KVC_E_UNKNOWN);
    ck_assert_str_eq(kit.why.field, "namespace_digest");
    ck_assert_int_eq(set(0, 17, 0, 0), KVC_E_LIMIT);
    ck_assert_str_eq(kit.why.field, "gpu_bytes");
    ck_assert_int_eq(set(0, 1, 9, 0), KVC_E_LIMIT);
    ck_assert_str_eq(kit.why.field, "host_bytes");
    ck_assert_int_eq(set(0, 1, 1, 1ull << 40), KVC_E_LIMIT);
    ck_assert_str_eq(kit.why.field, "leases");
    ck_assert_int_eq(set(0, 16, 8, UINT32_MAX), KVC_OK);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN("store/quota", CHECK_UNIT_S, a_scan_takes_nothing_below_a_share,
           a_scan_takes_nothing_below_a_share_of_either_tier,
           a_scan_to_the_host_takes_nothing_below_a_share, a_namespace_over_its_share_gives_first,
           who_gives_what_makes_no_room_is_not_the_last_one_asked,
           who_has_nothing_to_give_takes_nothing_below_a_share, a_quota_is_the_share,
           quotas_of_more_than_there_is_share_it, what_rules_say_is_in_force_until_a_quota_is_set,
           what_is_left_of_a_model_gives_first, a_scan_takes_no_extent_below_a_share,
           a_lookup_over_the_quota_of_leases_is_granted_shorter,
           a_quota_of_leases_is_the_namespaces_own, what_a_quota_of_leases_counts,
           nonsense_is_refused_with_its_field)
