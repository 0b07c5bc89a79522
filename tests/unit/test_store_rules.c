/* Parts with other rules than full: which prefix they grant, what of it is held, and what a save
 * gives them. */
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define N 24u /* keys of the tests' prompt */

enum { FULL, WINDOW, STATE, PARTS };

static struct kit kit;
static struct kit_owner *worker;
static struct store_part_info parts[PARTS];
static struct kit_save save;
static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];
static uint32_t needed[PARTS] = {UINT32_MAX, 0, 1};

/* A hybrid model: the window needs `blocks` blocks. */
static void open_hybrid(uint32_t gpu_slots, uint32_t host_slots, uint32_t blocks)
{
    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    kit_register_rule(&kit, worker, 10, STORE_RULE_FULL, 0, 9, &parts[FULL]);
    kit_register_rule(&kit, worker, 11, STORE_RULE_WINDOW, KIT_TOKENS * blocks + 1, 9,
                      &parts[WINDOW]);
    kit_register_rule(&kit, worker, 12, STORE_RULE_STATE, 0, 9, &parts[STATE]);
    needed[WINDOW] = blocks;
    kit_map_all(&kit, worker);
    kit_keys(0, KIT_KEYS, keys);
}

static void put(uint32_t part, uint32_t first, uint32_t n)
{
    struct kit_entry entry = {parts[part].part, parts[part].epoch, first, n};

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    kit_prove(&kit, &save);
    kit.n_done = 0;
}

struct ask {
    uint32_t mask; /* parts */
    uint32_t first, n;
    uint64_t lease;
    bool probe, more;
};

static struct store_lookup_result look(struct kit_owner *owner, struct ask ask)
{
    struct store_lookup_part list[PARTS];
    struct store_lookup request = {.parts = list,
                                   .lease = ask.lease,
                                   .offset = ask.lease ? ask.first : 0,
                                   .probe = ask.probe,
                                   .more = ask.more};
    struct store_lookup_result result;

    for (uint32_t p = 0; p < PARTS; p++)
        if (ask.mask >> p & 1)
            list[request.n_parts++] = (struct store_lookup_part){
                parts[p].part, parts[p].epoch, keys + ask.first * KVC_KEY_BYTES, ask.n};
    ck_assert_int_eq(store_lookup(kit.store, owner->owner, &request, &result, &kit.why), KVC_OK);
    kit_check(&kit);
    return result;
}

static uint32_t found(uint32_t mask, uint32_t n)
{
    return look(worker, (struct ask){.mask = mask, .n = n, .probe = true}).count;
}

static kvc_status load_one(struct kit_owner *owner, uint64_t lease, uint32_t part, uint32_t at)
{
    struct store_load request = {.lease = lease,
                                 .part = parts[part].part,
                                 .epoch = parts[part].epoch,
                                 .first = at,
                                 .count = 1};
    struct kit_load load;
    kvc_status status = kit_try_load(&kit, owner, &request, &load);

    if (status == KVC_OK)
        kit_close_load(&kit, &load);
    kit_tick(&kit);
    return status;
}

START_TEST(S36_a_window_part_needs_its_last_blocks)
{
    open_hybrid(64, 0, 2);
    put(FULL, 0, 10);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 12), 0);
    put(WINDOW, 4, 2);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 12), 6);
    ck_assert_uint_eq(found(1 << WINDOW, 12), 6);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 5), 0); /* 5 needs 3 and 4 */
    put(WINDOW, 9, 1);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 12), 6);
    put(WINDOW, 8, 1);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 12), 10);
    put(WINDOW, 10, 2);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 12), 10); /* the full part ends there */
    put(WINDOW, 0, 1);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 3), 1); /* all of a prefix that is shorter */
    kit_close(&kit);
}
END_TEST

START_TEST(S36_a_state_part_needs_the_boundary)
{
    open_hybrid(64, 0, 2);
    put(FULL, 0, 10);
    put(STATE, 6, 1);
    ck_assert_uint_eq(found(1 << FULL | 1 << STATE, 12), 7);
    ck_assert_uint_eq(found(1 << FULL | 1 << STATE, 6), 0);
    put(WINDOW, 5, 5);
    ck_assert_uint_eq(found(7, 12), 7);
    put(STATE, 9, 1);
    ck_assert_uint_eq(found(7, 12), 10);
    put(STATE, 10, 2);
    ck_assert_uint_eq(found(7, 12), 10);
    kit_close(&kit);
}
END_TEST

START_TEST(S36_a_window_of_one_token_needs_nothing)
{
    open_hybrid(64, 0, 0);
    put(FULL, 0, 4);
    ck_assert_uint_eq(found(1 << FULL | 1 << WINDOW, 12), 4);
    ck_assert_uint_eq(found(1 << WINDOW, 12), 12);
    kit_close(&kit);
}
END_TEST

START_TEST(S36_only_what_the_rules_need_is_leased)
{
    struct store_lookup_result r;

    open_hybrid(64, 0, 2);
    for (uint32_t p = 0; p < PARTS; p++)
        put(p, 0, 10);
    r = look(worker, (struct ask){.mask = 7, .n = 12});
    ck_assert_uint_eq(r.count, 10);
    ck_assert_uint_eq(r.reach, 10);
    for (uint32_t i = 0; i < 10; i++) {
        ck_assert_int_eq(load_one(worker, r.lease, FULL, i), KVC_OK);
        ck_assert_int_eq(load_one(worker, r.lease, WINDOW, i), i >= 8 ? KVC_OK : KVC_E_INVALID);
        ck_assert_int_eq(load_one(worker, r.lease, STATE, i), i >= 9 ? KVC_OK : KVC_E_INVALID);
        if (i < 9)
            ck_assert_str_eq(kit.why.field, "first");
    }
    kit_release(&kit, worker, r.lease);
    kit_close(&kit);
}
END_TEST

START_TEST(S35_a_window_part_is_handed_over)
{
    struct store_lookup_result r, adopted;
    struct kit_owner *scheduler;

    open_hybrid(64, 0, 2);
    scheduler = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    kit_register_rule(&kit, scheduler, 10, STORE_RULE_FULL, 0, 0, &parts[FULL]);
    kit_register_rule(&kit, scheduler, 11, STORE_RULE_WINDOW, KIT_TOKENS * 2 + 1, 0,
                      &parts[WINDOW]);
    put(FULL, 0, 10);
    put(WINDOW, 0, 10);
    r = look(scheduler, (struct ask){.mask = 1 << FULL | 1 << WINDOW, .n = 12});
    ck_assert_uint_eq(r.count, 10);
    ck_assert_int_eq(store_adopt(kit.store, worker->owner, r.token, KVC_TOKEN_BYTES,
                                 parts[WINDOW].part, parts[WINDOW].epoch, 0, &adopted, &kit.why),
                     KVC_OK);
    ck_assert_uint_eq(adopted.count, 10);
    ck_assert_uint_eq(adopted.in_tier[TIER_GPU], 2);
    kit_release(&kit, scheduler, r.lease);
    ck_assert_int_eq(load_one(worker, adopted.lease, WINDOW, 7), KVC_E_INVALID);
    ck_assert_int_eq(load_one(worker, adopted.lease, WINDOW, 8), KVC_OK);
    kit_release(&kit, worker, adopted.lease);
    kit_close(&kit);
}
END_TEST

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* Said again, plainly: a bit a block that is there. */
static uint32_t expected(const uint32_t have[PARTS], uint32_t mask, uint32_t n)
{
    for (uint32_t end = n; end > 0; end--) {
        bool holds = true;

        for (uint32_t p = 0; p < PARTS; p++)
            for (uint32_t i = 0; (mask >> p & 1) && i < end; i++)
                if (end - i <= needed[p] && !(have[p] >> i & 1))
                    holds = false;
        if (holds)
            return end;
    }
    return 0;
}

static void check_loads(struct kit_owner *owner, uint64_t lease, uint32_t mask, uint32_t count)
{
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; (mask >> p & 1) && i < count; i++)
            ck_assert_int_eq(load_one(owner, lease, p, i),
                             count - i <= needed[p] ? KVC_OK : KVC_E_INVALID);
}

/* _i: the seed. The same keys in one packet, and appended in packets of a few keys. */
START_TEST(S36_random_parts_against_what_the_rules_say)
{
    uint64_t seed = (uint64_t)_i * 7919 + 1;

    open_hybrid(80, 0, (uint32_t)_i % 4);
    for (int round = 0; round < 12; round++) {
        uint32_t have[PARTS] = {0}, mask = 1 + (uint32_t)next_random(&seed) % 7, count;
        struct store_lookup_result r, more = {0};
        uint32_t step = 1 + (uint32_t)next_random(&seed) % 9, at = 0;

        for (uint32_t p = 0; p < PARTS; p++) {
            struct store_scope all = {.part = parts[p].part};
            uint32_t holes = (uint32_t)next_random(&seed) % (p == FULL ? 2 : 8);
            uint64_t blocks;

            ck_assert_int_eq(store_flush(kit.store, &all, &blocks, &kit.why), KVC_OK);
            parts[p].epoch++;
            have[p] = (1u << N) - 1;
            for (uint32_t h = 0; h < holes; h++)
                have[p] &= ~(1u << next_random(&seed) % N);
            for (uint32_t i = 0; i < N; i++)
                if (have[p] >> i & 1)
                    put(p, i, 1);
        }
        count = expected(have, mask, N);
        ck_assert_uint_eq(found(mask, N), count);
        r = look(worker, (struct ask){.mask = mask, .n = N});
        ck_assert_uint_eq(r.count, count);
        ck_assert_uint_eq(r.lease != 0, count > 0);
        if (count > 0)
            check_loads(worker, r.lease, mask, count);
        for (uint32_t reach = 0; reach == at && at < N; at += step) {
            uint32_t n = step < N - at ? step : N - at;

            more = look(
                worker,
                (struct ask){
                    .mask = mask, .first = at, .n = n, .lease = more.lease, .more = at + n < N});
            reach = more.lease != 0 ? more.reach : 0;
            ck_assert_uint_eq(more.count, expected(have, mask, at + n));
            if (reach != at + n)
                break;
        }
        ck_assert_uint_eq(more.count, count);
        if (more.lease != 0)
            check_loads(worker, more.lease, mask, more.count);
        kit_release(&kit, worker, r.lease);
        kit_release(&kit, worker, more.lease);
        ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    }
    kit_close(&kit);
}
END_TEST

static uint8_t state_of(uint32_t entry_first, uint32_t i)
{
    return save.states[entry_first + i];
}

START_TEST(S10_a_window_part_gets_its_last_blocks)
{
    struct kit_entry entry;

    open_hybrid(8, 0, 2);
    entry = (struct kit_entry){parts[WINDOW].part, parts[WINDOW].epoch, 0, 12};
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    for (uint32_t i = 0; i < 12; i++)
        ck_assert_int_eq(state_of(0, i), i < 4 ? STORE_KEY_SKIPPED : STORE_KEY_ASSIGNED);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(found(1 << WINDOW, 12), 12);
    kit_close(&kit);
}
END_TEST

START_TEST(S10_other_parts_end_where_the_full_one_does)
{
    struct kit_entry entries[4];

    open_hybrid(16, 0, 2);
    put(FULL, 100, 8);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 8);
    /* Leased, so that there are eight free slots and no more. */
    ck_assert_uint_ne(look(worker, (struct ask){.mask = 1, .first = 100, .n = 8}).lease, 0);
    entries[0] = (struct kit_entry){parts[WINDOW].part, parts[WINDOW].epoch, 4, 8};
    entries[1] = (struct kit_entry){parts[FULL].part, parts[FULL].epoch, 0, 12};
    entries[2] = (struct kit_entry){parts[STATE].part, parts[STATE].epoch, 11, 1};
    entries[3] = (struct kit_entry){parts[STATE].part, parts[STATE].epoch, 500, 1};
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 4, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    /* The full part takes all eight, being first in use. */
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_ASSIGNED), 8);
    for (uint32_t i = 0; i < 12; i++)
        ck_assert_int_eq(state_of(8, i), i < 8 ? STORE_KEY_ASSIGNED : STORE_KEY_SKIPPED);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    /* Four of them are there: the others have room, and use it up to key 7. */
    put(FULL, 0, 4);
    put(FULL, 200, 2); /* two slots left */
    ck_assert_uint_ne(look(worker, (struct ask){.mask = 1, .first = 200, .n = 2}).lease, 0);
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 4, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    for (uint32_t i = 0; i < 12; i++)
        ck_assert_int_eq(state_of(8, i), i < 4   ? STORE_KEY_HIT
                                         : i < 6 ? STORE_KEY_ASSIGNED
                                                 : STORE_KEY_SKIPPED);
    kit_prove(&kit, &save);
    kit_close(&kit);
}
END_TEST

static struct store_lookup_result append_absent(uint32_t mask, uint64_t lease, uint32_t offset)
{
    struct store_lookup_part list[PARTS];
    struct store_lookup request = {.parts = list, .lease = lease, .offset = offset};
    struct store_lookup_result result;

    for (uint32_t p = 0; p < PARTS; p++)
        if (mask >> p & 1)
            list[request.n_parts++] = (struct store_lookup_part){parts[p].part, parts[p].epoch,
                                                                 keys + 300 * KVC_KEY_BYTES, 1};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why), KVC_OK);
    kit_check(&kit);
    return result;
}

/* Appending in the middle of a lease drops what is behind; the rules must hold for what is left. */
START_TEST(S36_what_is_left_of_a_lease_is_a_prefix_too)
{
    struct store_lookup_result result;

    open_hybrid(32, 0, 2);
    put(FULL, 0, 8);
    put(WINDOW, 0, 8);
    /* The window's blocks in front of key 5 were not held: nothing is left, and the lease ends. */
    result = look(worker, (struct ask){.mask = 3, .n = 8});
    ck_assert_uint_eq(result.count, 8);
    ck_assert_uint_eq(append_absent(3, result.lease, 5).lease, 0);
    ck_assert_uint_eq(kit_stats(&kit).leases, 0);
    result = look(worker, (struct ask){.mask = 3, .n = 8});
    ck_assert_uint_eq(append_absent(3, result.lease, 8).count, 8);
    kit_release(&kit, worker, result.lease);
    /* Of full parts alone any end will do. */
    result = look(worker, (struct ask){.mask = 1, .n = 8});
    ck_assert_uint_eq(append_absent(1, result.lease, 5).count, 5);
    kit_release(&kit, worker, result.lease);
    kit_close(&kit);
}
END_TEST

START_TEST(S1_hits_that_a_rule_does_not_use_stay_cold)
{
    struct kit_entry entry;

    open_hybrid(16, 0, 2);
    put(WINDOW, 0, 8);
    put(FULL, 100, 8);
    /* Of eight hits the rule uses the last two. */
    entry = (struct kit_entry){parts[WINDOW].part, parts[WINDOW].epoch, 0, 8};
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_HIT), 8);
    put(FULL, 200, 6);
    ck_assert_uint_eq(found(1 << WINDOW, 8), 8);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(
            look(worker, (struct ask){.mask = 1 << WINDOW, .first = i, .n = 1, .probe = true})
                .count,
            i >= 6);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/rules", CHECK_UNIT_S,
                 {S36_a_window_part_needs_its_last_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S36_a_state_part_needs_the_boundary, 0, 0, CHECK_BOTH_WAYS},
                 {S36_a_window_of_one_token_needs_nothing, 0, 0, CHECK_BOTH_WAYS},
                 {S36_only_what_the_rules_need_is_leased, 0, 0, CHECK_BOTH_WAYS},
                 {S35_a_window_part_is_handed_over, 0, 0, CHECK_BOTH_WAYS},
                 {S36_random_parts_against_what_the_rules_say, 0, 15, CHECK_BOTH_WAYS},
                 {S10_a_window_part_gets_its_last_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S10_other_parts_end_where_the_full_one_does, 0, 0, CHECK_BOTH_WAYS},
                 {S36_what_is_left_of_a_lease_is_a_prefix_too, 0, 0, CHECK_BOTH_WAYS},
                 {S1_hits_that_a_rule_does_not_use_stay_cold, 0, 0, CHECK_BOTH_WAYS})
