/* A flush of many blocks: their slots come back by turns. */
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

    ck_assert_uint_eq(kit_flush(&kit, (struct store_scope){.part = kit.part}), blocks);
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
    struct kit_owner *worker = kit_open_with(&kit, 1024, 0, 1000);

    flush_many(1000);
    ck_assert_uint_eq(kit_probe(&kit, worker, 999, 1), 0);
    /* The same keys are saved anew beside what is left of them. */
    put_at_once(worker, 990, 10);
    ck_assert_uint_eq(kit_probe(&kit, worker, 990, 10), 10);
    ck_assert_uint_eq(kit_probe(&kit, worker, 980, 1), 0);
    ck_assert_uint_eq(kit_pin(&kit, kit_scope(&kit, worker, 980, 20), 1000), 10);
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
    struct kit_owner *worker = kit_open_with(&kit, 1024, 0, 1000);

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
    struct kit_owner *worker = kit_open_with(&kit, 512, 512, 512);
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
    struct kit_owner *worker = kit_open_with(&kit, 512, 512, 504);
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
    ck_assert_uint_eq(kit_flush(&kit, (struct store_scope){.part = kit.part}), 504);
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

    kit_save_slowly(&kit, c->worker, kit_entry(&kit, below(c, CHAOS_KEYS - n), n), &save);
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
        c->flushed += kit_flush(&kit, (struct store_scope){.part = kit.part});
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
        (void)kit_pin(&kit, kit_scope(&kit, c->worker, below(c, CHAOS_KEYS - 4), 4),
                      1 + below(c, 2));
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
    kit_flush(&kit, (struct store_scope){.part = kit.part});
    kit.epoch++;
    while (kit.n_moves > 0)
        kit_moves(&kit, 1, KVC_OK);
    clock_advance(CLOCK_S_US); /* old words are looked at less often */
    kit_tick(&kit);
    ck_assert_uint_eq(flushed_slots(0), 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/sweep", CHECK_UNIT_S,
                 {S42_many_blocks_are_flushed_at_once_and_their_slots_come_back_by_turns, 0, 0,
                  CHECK_BOTH_WAYS},
                 {S42_a_flush_while_another_is_swept, 0, 0, CHECK_BOTH_WAYS},
                 {S42_what_was_flushed_makes_room_for_saves, 0, 0, CHECK_BOTH_WAYS},
                 {S42_what_is_under_way_in_flushed_blocks_ends_before_their_slots_come_back, 0, 1,
                  CHECK_BOTH_WAYS},
                 {S42_nothing_that_was_flushed_is_found_whatever_happens_to_its_blocks, 0, 9,
                  CHECK_BOTH_WAYS})
