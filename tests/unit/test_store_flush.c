/* Flushes and pins: blocks by name. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/store/flush.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;
static struct kit_load load;
static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];

static struct kit_owner *open_with(uint32_t gpu_slots, uint32_t host_slots, uint32_t blocks)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, blocks);
    return worker;
}

static struct store_scope of_keys(const struct kit_owner *owner, uint32_t first, uint32_t n)
{
    kit_keys(first, n, keys);
    return (struct store_scope){
        .owner = owner ? owner->owner : NULL, .part = kit.part, .keys = keys, .n_keys = n};
}

static uint64_t flush(struct store_scope scope)
{
    uint64_t blocks;

    ck_assert_int_eq(store_flush(kit.store, &scope, &blocks, &kit.why), KVC_OK);
    kit_check(&kit);
    return blocks;
}

static uint32_t pin(struct store_scope scope, uint32_t seconds)
{
    uint32_t count;

    ck_assert_int_eq(store_pin(kit.store, &scope, seconds, &count, &kit.why), KVC_OK);
    kit_check(&kit);
    return count;
}

static uint32_t unpin(struct store_scope scope)
{
    uint32_t count;

    ck_assert_int_eq(store_unpin(kit.store, &scope, &count, &kit.why), KVC_OK);
    kit_check(&kit);
    return count;
}

/* Saves n new keys into a full store; how many got room. */
static uint32_t push(struct kit_owner *worker, uint32_t first, uint32_t n)
{
    struct kit_entry entry = kit_entry(&kit, first, n);

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    while (save.short_of > 0 && kit_moves(&kit, 1, KVC_OK) > 0)
        save.short_of = store_save_more(kit.store, save.open);
    kit_save_seal(&kit, &save);
    kit_prove(&kit, &save);
    return save.n_assigned;
}

START_TEST(S42_keys_are_flushed_and_nothing_else)
{
    struct kit_owner *worker = open_with(16, 16, 8);
    uint64_t lost, kept;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 4, &lost), 4);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 4, 4, &kept), 4);
    ck_assert_uint_eq(flush(of_keys(worker, 2, 2)), 2);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 6);
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 2);
    ck_assert_uint_eq(kit_probe(&kit, worker, 4, 4), 4);
    kit_load(&kit, worker, kept, 0, 4, 4, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* The same again, and keys that nobody has. */
    ck_assert_uint_eq(flush(of_keys(NULL, 2, 2)), 0);
    ck_assert_uint_eq(flush(of_keys(worker, 500, 20)), 0);
    kit_put(&kit, worker, 2, 2);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
    kit_close(&kit);
}
END_TEST

/* _i: whether the save is still being admitted. */
START_TEST(S42_a_save_that_fills_a_flushed_key_ends)
{
    struct kit_owner *worker = open_with(16, 0, 4), *other = kit_worker(&kit);
    struct kit_entry entry = kit_entry(&kit, 100, 4);
    struct kit_save untouched;

    kit_save(&kit, other, 200, 2, &untouched);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    if (!_i)
        kit_save_seal(&kit, &save);
    ck_assert_uint_eq(flush(of_keys(other, 102, 1)), 0);
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
    struct kit_owner *worker = open_with(8, 0, 8);
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 4, &load);
    ck_assert_uint_eq(flush(of_keys(worker, 0, 8)), 8);
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
    struct kit_owner *worker = open_with(16, 0, 4), *stranger;
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
        flush((struct store_scope){.owner = stranger->owner, .namespace_digest = first}), 0);
    kit_register(&kit, worker, 1, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, kit.epoch);
    ck_assert_uint_eq(flush((struct store_scope){.namespace_digest = first}), 4);
    kit_register(&kit, worker, 1, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, kit.epoch + 1);
    kit_register(&kit, stranger, 1, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, same.epoch + 2);
    ck_assert_uint_eq(flush((struct store_scope){.all = true}), 2);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    kit_register(&kit, worker, 2, kit.slot_bytes, &own);
    ck_assert_uint_eq(own.epoch, elsewhere.epoch + 1);
    ck_assert_uint_eq(flush((struct store_scope){.namespace_digest = second}), 0);
    kit_close(&kit);
}
END_TEST

/* Slots in use beside those of `blocks` that are here. */
static uint64_t flushed_slots(uint64_t blocks)
{
    const struct store_stats stats = kit_stats(&kit);

    ck_assert_uint_eq(stats.blocks, blocks);
    return stats.tier[TIER_GPU].used_slots + stats.tier[TIER_HOST].used_slots - blocks;
}

/* The kit's namespace is flushed, and used anew. */
static void flush_many(uint64_t blocks)
{
    const uint64_t before = flushed_slots(blocks) + blocks;

    ck_assert_uint_eq(flush((struct store_scope){.part = kit.part}), blocks);
    kit.epoch++;
    ck_assert_uint_eq(flushed_slots(0), before - FLUSH_STEPS);
}

/* One turn. */
static void sweep(uint64_t blocks)
{
    const uint64_t before = flushed_slots(blocks);

    ck_assert_uint_eq(store_next_wake(kit.store), 0);
    store_tick(kit.store);
    kit_check(&kit);
    ck_assert_uint_ge(flushed_slots(blocks) + FLUSH_STEPS, before);
}

/* Saves new keys, which takes one turn. */
static void put_at_once(struct kit_owner *worker, uint32_t first, uint32_t n)
{
    kit_save(&kit, worker, first, n, &save);
    ck_assert_uint_eq(save.n_assigned, n);
    for (uint32_t i = 0; i < save.result.n_chunks; i++)
        kit_write(&kit, &save, i);
    clock_advance(KVC_POLL_MS * CLOCK_MS_US);
    store_tick(kit.store);
    kit_check(&kit);
    ck_assert_uint_eq(kit_probe(&kit, worker, first, n), n);
}

START_TEST(S42_many_blocks_are_flushed_at_once_and_their_slots_come_back_by_turns)
{
    struct kit_owner *worker = open_with(1024, 0, 1000);

    flush_many(1000);
    ck_assert_uint_eq(kit_probe(&kit, worker, 999, 1), 0);
    /* The same keys are saved anew beside what is left of them. */
    put_at_once(worker, 990, 10);
    ck_assert_uint_eq(kit_probe(&kit, worker, 990, 10), 10);
    ck_assert_uint_eq(kit_probe(&kit, worker, 980, 1), 0);
    ck_assert_uint_eq(pin(of_keys(worker, 980, 20), 1000), 10);
    ck_assert_uint_gt(flushed_slots(10), FLUSH_STEPS);
    while (flushed_slots(10) > 0)
        sweep(10);
    ck_assert_uint_gt(store_next_wake(kit.store), 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 990, 10), 10);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_a_flush_while_another_is_swept)
{
    struct kit_owner *worker = open_with(1024, 0, 1000);

    flush_many(1000);
    put_at_once(worker, 0, 20);
    ck_assert_uint_gt(flushed_slots(20), 2 * FLUSH_STEPS);
    flush_many(20);
    put_at_once(worker, 10, 5);
    ck_assert_uint_gt(flushed_slots(5), FLUSH_STEPS);
    while (flushed_slots(5) > 0)
        sweep(5);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 1), 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 10, 5), 5);
    kit_close(&kit);
}
END_TEST

/* Nothing of it is copied to the host tier, or counts as evicted. */
START_TEST(S42_what_was_flushed_makes_room_for_saves)
{
    struct kit_owner *worker = open_with(512, 512, 512);
    struct kit_entry entry;

    flush_many(512);
    entry = kit_entry(&kit, 1000, 400);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    ck_assert_uint_eq(save.short_of, 0);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(save.n_assigned, 400);
    kit_prove(&kit, &save);
    while (flushed_slots(400) > 0)
        sweep(400);
    ck_assert_uint_eq(kit.moves_started, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier_evictions[TIER_GPU], 0);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 0);
    ck_assert_uint_eq(kit_probe(&kit, worker, 1000, 400), 400);
    kit_close(&kit);
}
END_TEST

/* _i: a load that is open goes on, or a copy to the host tier, in what waits for its turn. */
START_TEST(S42_what_is_under_way_in_flushed_blocks_ends_before_their_slots_come_back)
{
    struct kit_owner *worker = open_with(512, 512, 504);
    struct kit_entry entry = kit_entry(&kit, 1000, 9);
    uint64_t lease = 0;

    if (_i == 0) {
        ck_assert_uint_eq(kit_lookup(&kit, worker, 500, 4, &lease), 4);
        kit_load(&kit, worker, lease, 0, 500, 4, &load);
    } else {
        ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
        ck_assert_uint_eq(save.short_of, 1);
        ck_assert_uint_eq(kit.n_moves, 1);
    }
    ck_assert_uint_eq(flush((struct store_scope){.part = kit.part}), 504);
    kit.epoch++;
    while (flushed_slots(0) > (_i == 0 ? 4 : 2))
        sweep(0);
    if (_i == 0) {
        kit_verify(&kit, &load);
        kit_close_load(&kit, &load);
    } else {
        kit_moves(&kit, 1, KVC_OK);
        kit_save_seal(&kit, &save);
        ck_assert_uint_eq(save.n_assigned, 0);
    }
    ck_assert_uint_eq(flushed_slots(0), 0);
    kit_close(&kit);
}
END_TEST

/* What random operations leave of keys while flushed blocks lie about everywhere. */
#define CHAOS_KEYS 200u

struct chaos {
    struct kit_owner *worker;
    unsigned random;
    bool saved[CHAOS_KEYS]; /* since the latest flush */
    struct kit_save late;   /* has not been proved; owner NULL: there is none */
    uint64_t flushed;
};

static uint32_t below(struct chaos *c, uint32_t n)
{
    return (uint32_t)rand_r(&c->random) % n;
}

static void prove(struct chaos *c, struct kit_save *proved)
{
    for (uint32_t i = 0; i < proved->result.n_chunks; i++)
        kit_write(&kit, proved, i);
    clock_advance(KVC_POLL_MS * CLOCK_MS_US);
    store_tick(kit.store);
    for (uint32_t i = 0; i < proved->n_keys; i++)
        c->saved[proved->keys[i]] |= proved->states[i] == STORE_KEY_ASSIGNED;
    proved->owner = NULL;
}

static void chaos_save(struct chaos *c)
{
    const uint32_t n = 1 + below(c, 12);
    struct kit_entry entry = kit_entry(&kit, below(c, CHAOS_KEYS - n), n);

    ck_assert_int_eq(kit_save_open(&kit, c->worker, &entry, 1, &save), KVC_OK);
    while (save.short_of > 0 && kit_moves(&kit, 1, KVC_OK) > 0)
        save.short_of = store_save_more(kit.store, save.open);
    kit_save_seal(&kit, &save);
    if (c->late.owner == NULL && below(c, 3) == 0)
        c->late = save;
    else
        prove(c, &save);
}

static void chaos_load(struct chaos *c)
{
    uint64_t lease;
    const uint32_t first = below(c, CHAOS_KEYS - 8);
    const uint32_t count = kit_lookup(&kit, c->worker, first, 8, &lease);

    if (count == 0)
        return;
    kit_load(&kit, c->worker, lease, 0, first, count, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_release(&kit, c->worker, lease);
}

static void chaos_step(struct chaos *c)
{
    switch (below(c, 12)) {
    case 0:
        c->flushed += flush((struct store_scope){.part = kit.part});
        kit.epoch++;
        memset(c->saved, 0, sizeof(c->saved));
        if (c->late.owner != NULL)
            prove(c, &c->late);
        memset(c->saved, 0, sizeof(c->saved));
        break;
    case 1:
        chaos_load(c);
        break;
    case 2:
        if (c->late.owner != NULL)
            prove(c, &c->late);
        break;
    case 3:
        (void)pin(of_keys(c->worker, below(c, CHAOS_KEYS - 4), 4), 1 + below(c, 2));
        break;
    case 4:
        kit_moves(&kit, 1 + below(c, 4), below(c, 10) == 0 ? KVC_E_DEVICE : KVC_OK);
        break;
    case 5:
        clock_advance(below(c, 400) * CLOCK_MS_US);
        store_tick(kit.store);
        break;
    default:
        chaos_save(c);
    }
    kit_check(&kit);
    kit.n_done = 0; /* what it was told of so far */
    for (uint32_t key = below(c, 20); key < CHAOS_KEYS; key += 20)
        ck_assert(c->saved[key] || kit_probe(&kit, c->worker, key, 1) == 0);
}

/* _i: the seed. */
START_TEST(S42_nothing_that_was_flushed_is_found_whatever_happens_to_its_blocks)
{
    static struct chaos chaos;

    chaos = (struct chaos){.random = (unsigned)_i + 1};
    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 64, .host_slots = 64, .clean_low = 100, .clean_high = 300});
    chaos.worker = kit_worker(&kit);
    fault_arm("flush.turn", 0, UINT32_MAX);
    for (int step = 0; step < 600; step++)
        chaos_step(&chaos);
    ck_assert_uint_gt(chaos.flushed, 200);
    fault_off("flush.turn");
    if (chaos.late.owner != NULL)
        prove(&chaos, &chaos.late);
    flush((struct store_scope){.part = kit.part});
    kit.epoch++;
    while (kit.n_moves > 0)
        kit_moves(&kit, 1, KVC_OK);
    clock_advance(CLOCK_S_US); /* old words are looked at less often */
    kit_tick(&kit);
    ck_assert_uint_eq(flushed_slots(0), 0);
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
    struct kit_owner *worker = open_with(8, 8, 4), *other = kit_worker(&kit);
    const uint8_t first[KVC_NAMESPACE_BYTES] = {1}, unknown[KVC_NAMESPACE_BYTES] = {9};
    struct store_part_info second;
    uint32_t count;

    kit_register(&kit, worker, 2, kit.slot_bytes, &second);
    refused((struct store_scope){0}, KVC_E_INVALID, "part");
    refused((struct store_scope){.part = kit.part, .all = true}, KVC_E_INVALID, "all");
    refused((struct store_scope){.part = kit.part, .namespace_digest = first}, KVC_E_INVALID,
            "part");
    refused((struct store_scope){.owner = worker->owner, .all = true}, KVC_E_DENIED, "all");
    refused((struct store_scope){.all = true, .keys = keys, .n_keys = 1}, KVC_E_INVALID, "keys");
    refused((struct store_scope){.part = ~0u}, KVC_E_UNKNOWN, "part");
    refused((struct store_scope){.part = second.part + 1}, KVC_E_UNKNOWN, "part");
    refused((struct store_scope){.owner = other->owner, .part = second.part}, KVC_E_UNKNOWN,
            "part");
    refused((struct store_scope){.namespace_digest = unknown}, KVC_E_UNKNOWN, "namespace_digest");
    refused((struct store_scope){.owner = other->owner,
                                 .namespace_digest = (const uint8_t[KVC_NAMESPACE_BYTES]){2}},
            KVC_E_UNKNOWN, "namespace_digest");
    refused((struct store_scope){.part = kit.part, .keys = keys, .n_keys = KVC_KEYS_MAX + 1},
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

START_TEST(S28_a_pinned_block_is_not_evicted_until_its_time_is_over)
{
    struct kit_owner *worker = open_with(8, 0, 8);

    ck_assert_uint_eq(pin(of_keys(worker, 0, 4), 10), 4);
    ck_assert_uint_eq(unpin(of_keys(worker, 2, 10)), 2);
    ck_assert_uint_eq(pin(of_keys(worker, 2, 2), 10), 2);
    ck_assert_uint_eq(pin(of_keys(worker, 500, 2), 10), 0); /* not there */
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 4);
    ck_assert_uint_eq(push(worker, 100, 20), 4);
    for (uint32_t key = 0; key < 4; key++)
        ck_assert(kit_has(&kit, key));
    /* Anew for two of them. */
    clock_advance(9 * CLOCK_S_US);
    ck_assert_uint_eq(pin(of_keys(NULL, 0, 2), 10), 2);
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
    struct kit_owner *worker = open_with(8, 8, 8);
    struct store_scope scope;
    uint32_t count;

    ck_assert_uint_eq(push(worker, 100, 8), 8);
    ck_assert_uint_eq(pin(of_keys(worker, 0, 8), 0), 8);
    scope = of_keys(worker, 100, 1);
    ck_assert_int_eq(store_pin(kit.store, &scope, 0, &count, &kit.why), KVC_E_NO_ROOM);
    ck_assert_str_eq(kit.why.field, "keys");
    ck_assert_uint_eq(pin(of_keys(worker, 0, 8), 0), 8);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 8);
    ck_assert_uint_eq(unpin((struct store_scope){.part = kit.part}), 8);
    ck_assert_uint_eq(pin(of_keys(worker, 100, 8), 0), 8);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 8);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_pins_end_with_their_blocks)
{
    struct kit_owner *worker = open_with(8, 8, 8);
    uint8_t key[KVC_KEY_BYTES];
    uint64_t lease;

    ck_assert_uint_eq(pin(of_keys(worker, 0, 6), 0), 6);
    ck_assert_uint_eq(flush(of_keys(worker, 0, 2)), 2);
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
    ck_assert_uint_eq(flush((struct store_scope){.part = kit.part}), 5);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    kit_close(&kit);
}
END_TEST

/* _i: the allocation that fails. */
START_TEST(S28_pins_that_are_refused_pin_nothing)
{
    struct kit_owner *worker = open_with(8, 8, 8);
    struct store_scope scope = of_keys(worker, 0, 4);
    uint32_t count = 77;

    fault_arm("mem.alloc", (uint32_t)_i, 1);
    ck_assert_int_eq(store_pin(kit.store, &scope, 9, &count, &kit.why), KVC_E_NO_MEMORY);
    ck_assert_uint_eq(fault_fired("mem.alloc"), 1);
    ck_assert_uint_eq(count, 77);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 0);
    kit_check(&kit);
    ck_assert_uint_eq(pin(scope, 9), 4);
    kit_close(&kit);
}
END_TEST

START_TEST(S42_a_flush_of_keys_leaves_leases_that_lost_none_of_them)
{
    struct kit_owner *worker = open_with(8, 8, 8), *other = kit_worker(&kit);
    uint64_t lease, theirs;
    uint8_t key[KVC_KEY_BYTES];

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 2, &lease), 2);
    ck_assert_uint_eq(kit_lookup(&kit, other, 0, 6, &theirs), 6);
    kit_load(&kit, worker, lease, 1, 1, 1, &load);
    kit_key(1, key);
    store_report(kit.store, worker->owner, kit.part, key, load.locations[0].tier,
                 load.locations[0].generation);
    ck_assert_uint_eq(flush(of_keys(worker, 5, 1)), 1);
    /* The first lease lost a block before, and not by the flush. */
    ck_assert_uint_eq(kit_stats(&kit).leases, 1);
    kit_close_load(&kit, &load);
    kit_load(&kit, worker, lease, 0, 0, 1, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

START_TEST(S15_the_quarantine_is_told_with_age_and_owner)
{
    struct kit_owner *worker = open_with(8, 0, 0), *other = kit_worker(&kit);
    struct store_quarantine row;
    struct kit_save second;

    ck_assert(!store_next_quarantine(kit.store, 0, &row));
    kit_save(&kit, worker, 0, 3, &save);
    kit_save(&kit, other, 10, 2, &second);
    ck_assert_int_eq(kit_abort(&kit, &save, false), -1);
    clock_advance(3600 * CLOCK_S_US);
    kit_tick(&kit); /* the second save is over its time by now */
    clock_advance(7 * CLOCK_S_US);
    ck_assert(store_next_quarantine(kit.store, 0, &row));
    ck_assert_ptr_eq(row.owner, worker->owner);
    ck_assert_uint_eq(row.save, save.result.save);
    ck_assert_uint_eq(row.slots, 3);
    ck_assert_uint_eq(row.part, kit.part);
    ck_assert_uint_eq(row.bytes, 3 * kit.slot_bytes);
    ck_assert_uint_ge(row.age_us, 3607 * CLOCK_S_US);
    ck_assert_int_eq(row.status, KVC_E_CANCELLED);
    ck_assert(store_next_quarantine(kit.store, row.save, &row));
    ck_assert_ptr_eq(row.owner, other->owner);
    ck_assert_uint_eq(row.slots, 2);
    ck_assert_uint_ge(row.age_us, 7 * CLOCK_S_US);
    ck_assert_int_eq(row.status, KVC_E_DEADLINE);
    ck_assert(!store_next_quarantine(kit.store, row.save, &row));
    /* No time ends it, only proof. */
    kit_end_copy(&kit, &save, 0);
    clock_advance(CLOCK_S_US);
    kit_tick(&kit);
    ck_assert(store_next_quarantine(kit.store, 0, &row));
    ck_assert_ptr_eq(row.owner, other->owner);
    ck_assert_int_eq(store_drained(kit.store, other->owner, 0, NULL, 0, &kit.why), KVC_OK);
    if (second.copy) {
        /* Nobody but the daemon knows of its copies. */
        ck_assert(store_next_quarantine(kit.store, 0, &row));
        kit_end_copy(&kit, &second, 0);
    }
    ck_assert(!store_next_quarantine(kit.store, 0, &row));
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS(
    "store/flush", CHECK_UNIT_S, {S42_keys_are_flushed_and_nothing_else, 0, 0, CHECK_BOTH_WAYS},
    {S42_a_save_that_fills_a_flushed_key_ends, 0, 1, CHECK_BOTH_WAYS},
    {S42_open_loads_of_flushed_keys_run_to_their_proof, 0, 0, CHECK_BOTH_WAYS},
    {S42_an_operator_flushes_a_namespace_of_every_tenant_or_all, 0, 0, CHECK_BOTH_WAYS},
    {S42_many_blocks_are_flushed_at_once_and_their_slots_come_back_by_turns, 0, 0, CHECK_BOTH_WAYS},
    {S42_a_flush_while_another_is_swept, 0, 0, CHECK_BOTH_WAYS},
    {S42_what_was_flushed_makes_room_for_saves, 0, 0, CHECK_BOTH_WAYS},
    {S42_what_is_under_way_in_flushed_blocks_ends_before_their_slots_come_back, 0, 1,
     CHECK_BOTH_WAYS},
    {S42_nothing_that_was_flushed_is_found_whatever_happens_to_its_blocks, 0, 9, CHECK_BOTH_WAYS},
    {S42_nonsense_is_refused, 0, 0, CHECK_BOTH_WAYS},
    {S28_a_pinned_block_is_not_evicted_until_its_time_is_over, 0, 0, CHECK_BOTH_WAYS},
    {S28_pins_cannot_freeze_the_store, 0, 0, CHECK_BOTH_WAYS},
    {S42_pins_end_with_their_blocks, 0, 0, CHECK_BOTH_WAYS},
    {S28_pins_that_are_refused_pin_nothing, 0, 3, CHECK_BOTH_WAYS},
    {S42_a_flush_of_keys_leaves_leases_that_lost_none_of_them, 0, 0, CHECK_BOTH_WAYS},
    {S15_the_quarantine_is_told_with_age_and_owner, 0, 0, CHECK_BOTH_WAYS})
