/* Extents that move from one tenant to another: who gives, who has to unmap first, what is lost. */
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/store/claim.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define SLOTS 8u /* of an extent */

static struct kit kit;
static struct kit_save save;

static uint32_t count_extents(uint32_t tenant)
{
    const struct table *table = store_table(kit.store);
    uint32_t n = 0;

    for (uint32_t i = 0; i < table_header(table)->tiers[TIER_GPU].extents; i++)
        n += table_extent(table, TIER_GPU, i)->state == EXTENT_OWNED &&
             table_extent(table, TIER_GPU, i)->tenant == tenant;
    return n;
}

/* The helpers of the kit work on the part of whoever was named last. */
static void work_as(const struct kit_owner *owner)
{
    kit.tenant = owner->tenant;
    kit.part = owner->part;
    kit.epoch = owner->epoch;
}

static struct kit_owner *worker_of(const char *tenant)
{
    struct kit_owner *owner = kit_worker_of(&kit, tenant);

    work_as(owner);
    return owner;
}

/* Only a gpu tier, of so many extents, and a tenant that has filled it. */
static struct kit_owner *open_full(uint32_t extents)
{
    struct kit_owner *first;

    kit_open(&kit, &(struct kit_config){.gpu_slots = extents * SLOTS});
    first = worker_of("first");
    kit_put(&kit, first, 0, extents * SLOTS);
    return first;
}

/* The daemon's loop, with workers that do what they are asked; NULL: nobody does. */
static void run(uint64_t ms, struct kit_owner *const answers[], uint32_t n)
{
    for (uint64_t i = 0; i < ms; i++) {
        kit_tick(&kit);
        kit_moves(&kit, kit.n_moves, KVC_OK);
        kit_renews(&kit, KVC_OK);
        for (uint32_t a = 0; a < n; a++) {
            kit_unmap(&kit, answers[a]);
            if (answers[a]->n_granted > 0)
                kit_map_all(&kit, answers[a]);
            answers[a]->n_granted = 0;
        }
    }
}

static void run_both(uint64_t ms, struct kit_owner *a, struct kit_owner *b)
{
    run(ms, (struct kit_owner *const[]){a, b}, 2);
}

static uint32_t try_put(struct kit_owner *worker, uint32_t first, uint32_t n)
{
    work_as(worker);
    kit_save(&kit, worker, first, n, &save);
    kit_prove(&kit, &save);
    kit.n_done = 0;
    return save.n_assigned;
}

START_TEST(a_tenant_that_comes_late_gets_an_extent)
{
    struct kit_owner *first = open_full(4), *second = worker_of("second");
    uint64_t extent_bytes = SLOTS * KIT_SLOT_BYTES, offset;

    ck_assert_uint_eq(count_extents(first->tenant), 4);
    ck_assert_uint_eq(try_put(second, 1000, 1), 0);
    kit_tick(&kit);
    /* It is emptied, and the first is asked for it. */
    ck_assert_uint_eq(first->n_withdrawn, 1);
    ck_assert_uint_eq(kit_stats(&kit).waiting_extents, 1);
    ck_assert_uint_eq(kit.n_renews, 0);
    offset = (first->withdrawn[0] & 0x7fffffffu) * extent_bytes;
    ck_assert(memcmp(kit.memory[TIER_GPU] + offset, (char[8]){0}, 8) != 0);
    kit_unmap(&kit, first);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_renews, 1);
    ck_assert_uint_eq(kit_stats(&kit).waiting_extents, 0);
    ck_assert_uint_eq(count_extents(second->tenant), 0);
    kit_renews(&kit, KVC_OK);
    kit_tick(&kit);
    ck_assert_uint_eq(count_extents(second->tenant), 1);
    ck_assert_uint_eq(second->n_granted, 1);
    ck_assert_uint_eq(kit_stats(&kit).moved_extents, 1);
    ck_assert_int_eq(memcmp(kit.memory[TIER_GPU] + offset, (char[8]){0}, 8), 0);
    /* Not before it has mapped it. */
    ck_assert_uint_eq(try_put(second, 1000, 1), 0);
    kit_map_all(&kit, second);
    ck_assert_uint_eq(try_put(second, 1000, SLOTS), SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++)
        ck_assert_uint_eq(save.locations[i].offset / extent_bytes, offset / extent_bytes);
    ck_assert_uint_eq(kit_probe(&kit, second, 1000, SLOTS), SLOTS);
    kit_close(&kit);
}
END_TEST

/* As much as the other, however hot that is, and no more as long as it is. */
START_TEST(two_tenants_that_work_have_as_much_each)
{
    struct kit_owner *first = open_full(8), *second = worker_of("second");

    for (uint32_t i = 0; i < 200; i++) {
        try_put(first, 1000 + 8 * i, 8);
        try_put(second, 1000 + 8 * i, 8);
        run_both(20, first, second);
    }
    ck_assert_uint_eq(count_extents(first->tenant), 4);
    ck_assert_uint_eq(count_extents(second->tenant), 4);
    ck_assert_uint_eq(kit_stats(&kit).moved_extents, 4);
    kit_close(&kit);
}
END_TEST

/* What went cold is had by who works, down to nothing; and is had back. */
START_TEST(memory_follows_use_between_tenants)
{
    struct kit_owner *first = open_full(4), *second = worker_of("second");

    for (int round = 0; round < 2; round++) {
        struct kit_owner *hot = round ? first : second, *cold = round ? second : first;

        clock_advance(100 * CLOCK_S_US);
        for (uint32_t i = 0; i < 500 && count_extents(hot->tenant) < 4; i++) {
            try_put(hot, 10000 * (1 + (uint32_t)round) + 8 * i, 8);
            run_both(20, first, second);
        }
        ck_assert_uint_eq(count_extents(hot->tenant), 4);
        ck_assert_uint_eq(count_extents(cold->tenant), 0);
    }
    kit_close(&kit);
}
END_TEST

/* Who does not answer keeps what it maps, for its tenant; the others go on with it. */
START_TEST(S15_a_session_that_never_unmaps_keeps_its_extents)
{
    struct kit_owner *first = open_full(4), *second, *third;
    uint32_t withdrawn;

    work_as(first);
    third = worker_of("first"); /* it answers */
    second = worker_of("second");
    try_put(second, 1000, 1);
    run_both(1000, second, third);
    ck_assert_uint_eq(first->n_withdrawn, 1);
    ck_assert_uint_eq(kit_stats(&kit).waiting_extents, 1);
    ck_assert_uint_eq(kit_stats(&kit).kept_extents, 0);
    clock_advance(CLAIM_UNMAP_US);
    run_both(100, second, third);
    ck_assert_uint_eq(kit_stats(&kit).kept_extents, 1);
    ck_assert_uint_eq(kit_stats(&kit).waiting_extents, 0);
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_uint_eq(try_put(second, 2000 + i, 1), 0);
        run_both(100, second, third);
    }
    ck_assert_uint_eq(first->n_withdrawn, 1);
    ck_assert_uint_eq(kit_stats(&kit).kept_extents, 1);
    ck_assert_uint_eq(count_extents(first->tenant), 4);

    /* The one that answered uses all of it; the other all but that. */
    withdrawn = first->withdrawn[0] & 0x7fffffffu;
    ck_assert_uint_eq(try_put(third, 3000, 4 * SLOTS), 4 * SLOTS);
    try_put(first, 4000, 4 * SLOTS);
    for (uint32_t i = 0; i < save.n_keys; i++)
        ck_assert(save.states[i] != STORE_KEY_ASSIGNED ||
                  save.locations[i].offset / (SLOTS * KIT_SLOT_BYTES) != withdrawn);

    /* When it answers at last, extents can leave again, and that one can be mapped again. */
    kit_unmap(&kit, first);
    for (uint32_t i = 0; i < 10 && count_extents(second->tenant) == 0; i++) {
        try_put(second, 5000 + i, 1);
        run(100, (struct kit_owner *const[]){first, second, third}, 3);
    }
    ck_assert_uint_gt(count_extents(second->tenant), 0);
    ck_assert(store_owner_holds(first->owner, withdrawn) ||
              table_extent(store_table(kit.store), TIER_GPU, withdrawn)->tenant == second->tenant);
    kit_close(&kit);
}
END_TEST

/* A connection that has ended, with words that are owed: nothing of it moves before proof. */
START_TEST(S15_a_worker_that_ended_in_the_middle_keeps_its_extents_until_it_is_gone)
{
    struct kit_owner *first = open_full(4), *second;
    struct kit_save filling;

    work_as(first);
    ck_assert_uint_eq(try_put(first, 500, SLOTS), SLOTS);
    kit_save(&kit, first, 600, 1, &filling);
    store_owner_end(kit.store, first->owner);
    second = worker_of("second");
    for (uint32_t i = 0; i < 20; i++) {
        ck_assert_uint_eq(try_put(second, 1000 + i, 1), 0);
        run(100, &second, 1);
    }
    ck_assert_uint_eq(count_extents(second->tenant), 0);
    ck_assert_uint_eq(kit_stats(&kit).moved_extents, 0);
    if (_i == 0)
        store_owner_gone(kit.store, first->owner);
    else
        kit_word(&kit, first, filling.chunks[0].word, filling.chunks[0].number);
    run(500, &second, 1);
    ck_assert(first->freed);
    try_put(second, 2000, 1);
    run(500, &second, 1);
    ck_assert_uint_gt(count_extents(second->tenant), 0);
    ck_assert_uint_eq(try_put(second, 3000, 1), 1);
    kit_close(&kit);
}
END_TEST

/* A reader that holds a load open in an extent keeps that one only. */
START_TEST(S15_a_stuck_reader_keeps_the_extent_that_it_reads)
{
    struct kit_owner *first = open_full(4), *second;
    struct kit_load load;
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, first, 0, 1, &lease), 1);
    kit_load(&kit, first, lease, 0, 0, 1, &load);
    kit_release(&kit, first, lease);
    second = worker_of("second");
    clock_advance(100 * CLOCK_S_US);
    for (uint32_t i = 0; i < 60; i++) {
        try_put(second, 1000 + 8 * i, 8);
        run_both(50, first, second);
    }
    ck_assert_uint_eq(count_extents(first->tenant), 1);
    ck_assert_uint_eq(count_extents(second->tenant), 3);
    work_as(first);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

/* An acknowledgement that crosses the notice: the session has mapped it, and unmaps it after. */
START_TEST(an_acknowledgement_that_crosses_the_notice)
{
    struct kit_owner *first = open_full(2), *late, *second;
    uint32_t extents[4], cursor, n;
    bool more;

    /* It has got the descriptors, and has not said that it has mapped them. */
    late = worker_of("first");
    for (uint32_t i = 0; i < 2; i++)
        ck_assert_int_eq(store_owner_unmapped(kit.store, late->owner, i), KVC_OK);
    n = store_owner_extents(kit.store, late->owner, 0, extents, 4, &cursor, &more);
    ck_assert_uint_eq(n, 2);
    for (uint32_t i = 0; i < n; i++)
        store_owner_offer(kit.store, late->owner, extents[i]);
    second = worker_of("second");
    run(50, (struct kit_owner *const[]){first, second}, 2);
    ck_assert_uint_eq(late->n_withdrawn, 1);
    ck_assert_uint_eq(kit_stats(&kit).waiting_extents, 1);
    ck_assert(store_owner_holds(late->owner, late->withdrawn[0]));
    ck_assert_int_eq(store_owner_mapped(kit.store, late->owner, late->withdrawn[0]), KVC_OK);
    kit_check(&kit); /* and may not use it */
    run(50, (struct kit_owner *const[]){first, second}, 2);
    ck_assert_uint_eq(count_extents(second->tenant), 0);
    run(50, (struct kit_owner *const[]){first, second, late}, 3);
    ck_assert_uint_eq(count_extents(second->tenant), 1);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(store_owner_mapped(kit.store, late->owner, extents[i]),
                         table_extent(store_table(kit.store), TIER_GPU, extents[i])->tenant ==
                                 second->tenant
                             ? KVC_E_DENIED
                             : KVC_OK);
    kit_close(&kit);
}
END_TEST

/* Who does not map what it has got does not get more of others'. */
START_TEST(a_claimant_that_maps_nothing_takes_no_more)
{
    struct kit_owner *first = open_full(8), *second = worker_of("second");

    for (uint32_t i = 0; i < 30; i++) {
        ck_assert_uint_eq(try_put(second, 1000 + i, 1), 0);
        run(100, &first, 1);
    }
    ck_assert_uint_eq(count_extents(second->tenant), 1);
    kit_map_all(&kit, second);
    ck_assert_uint_eq(try_put(second, 2000, 1), 1);
    kit_close(&kit);
}
END_TEST

START_TEST(what_is_unmapped_unasked_is_not_used)
{
    struct kit_owner *first;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 2 * SLOTS});
    first = worker_of("first");
    ck_assert_int_eq(store_owner_unmapped(kit.store, first->owner, 0), KVC_OK);
    ck_assert_int_eq(store_owner_unmapped(kit.store, first->owner, 0), KVC_OK);
    ck_assert_int_eq(store_owner_unmapped(kit.store, first->owner, 2), KVC_E_INVALID);
    ck_assert_int_eq(store_owner_unmapped(kit.store, first->owner, 1u << 31), KVC_E_INVALID);
    kit_save(&kit, first, 0, 2 * SLOTS, &save);
    ck_assert_uint_eq(save.n_assigned, SLOTS);
    for (uint32_t i = 0; i < save.n_assigned; i++)
        ck_assert_uint_ge(save.locations[save.order[i]].offset, SLOTS * KIT_SLOT_BYTES);
    kit_prove(&kit, &save);
    kit_close(&kit);
}
END_TEST

/* Nothing has changed: it is tried again; no memory: it is lost, and only that one. */
START_TEST(new_memory_that_is_not_to_be_had)
{
    struct kit_owner *first = open_full(2), *second = worker_of("second");

    for (uint32_t i = 0; i < 50 && kit.n_renews == 0; i++) {
        kit_tick(&kit);
        kit_unmap(&kit, first);
    }
    ck_assert_uint_eq(kit.n_renews, 1);
    kit_renews(&kit, _i == 0 ? KVC_E_BUSY : KVC_E_NO_MEMORY);
    ck_assert_uint_eq(count_extents(first->tenant), _i == 0 ? 2 : 1);
    ck_assert_uint_eq(kit_stats(&kit).lost_extents, _i);
    try_put(second, 1000, 1);
    clock_advance(CLOCK_S_US);
    for (uint32_t i = 0; i < 20; i++) {
        try_put(second, 2000 + i, 1);
        run_both(50, first, second);
    }
    /* Of the one that is left each may have half: the first keeps it while it is not cold. */
    ck_assert_uint_eq(count_extents(first->tenant) + count_extents(second->tenant), 2 - _i);
    ck_assert_uint_ge(count_extents(second->tenant), 1);
    if (_i == 1) {
        ck_assert_uint_eq(kit.n_warnings, 1);
        kit.n_warnings = 0;
    }
    kit_close(&kit);
}
END_TEST

START_TEST(nobody_has_more_than_its_share)
{
    const struct store_share shares[] = {
        {.tenant = "small", .permille = {250, 250}},
        {.tenant = "bytes", .bytes = {3ull << 20, 3ull << 20}},
        {.tenant = "none"},
        {.tenant = "*", .permille = {500, 500}},
    };
    struct kit_owner *small, *bytes, *none, *other;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8 * SLOTS, .shares = shares, .n_shares = 4});
    small = worker_of("small");
    bytes = worker_of("bytes");
    none = worker_of("none");
    other = worker_of("other");
    clock_advance(100 * CLOCK_S_US);
    for (uint32_t i = 0; i < 40; i++) {
        struct kit_owner *all[] = {small, bytes, none, other};

        for (uint32_t k = 0; k < 4; k++)
            try_put(all[k], 8 * i, 8);
        run(30, all, 4);
    }
    ck_assert_uint_eq(count_extents(small->tenant), 2);
    ck_assert_uint_eq(count_extents(bytes->tenant), 1);
    ck_assert_uint_eq(count_extents(none->tenant), 0);
    ck_assert_uint_eq(count_extents(other->tenant), 4);
    ck_assert_uint_eq(kit_stats(&kit).moved_extents, 0);
    kit_close(&kit);
}
END_TEST

/* Memory that fails: free extents at once, others when they are empty and nobody maps them. */
START_TEST(extents_without_memory_are_not_used)
{
    struct kit_owner *first;
    uint64_t lease;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 4 * SLOTS});
    store_lose_extent(kit.store, TIER_GPU, 3);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_lost_extents(&kit), 1);
    first = worker_of("first");
    ck_assert_uint_eq(count_extents(first->tenant), 3);
    kit_put(&kit, first, 0, 3 * SLOTS);
    ck_assert_uint_eq(kit_lookup(&kit, first, 0, 1, &lease), 1);
    for (uint32_t i = 0; i < 4; i++)
        store_lose_extent(kit.store, TIER_GPU, i);
    run(50, NULL, 0);
    ck_assert_uint_eq(kit_lost_extents(&kit), 1);
    ck_assert_uint_eq(first->n_withdrawn, 2);
    ck_assert(kit_has(&kit, 0));
    ck_assert_uint_eq(try_put(first, 1000, 1), 0);
    run(50, &first, 1);
    ck_assert_uint_eq(kit_lost_extents(&kit), 3);
    /* A lease keeps its block, for as long as it lasts. */
    run(5000, &first, 1);
    ck_assert(kit_has(&kit, 0));
    kit_release(&kit, first, lease);
    run(50, &first, 1);
    ck_assert_uint_eq(kit_lost_extents(&kit), 4);
    ck_assert_uint_eq(kit_stats(&kit).lost_extents, 4);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    ck_assert_uint_eq(kit.n_warnings, 3);
    kit.n_warnings = 0;
    kit_close(&kit);
}
END_TEST

/* The claimant goes on its way: the extent is nobody's, and whoever comes has it at once. */
START_TEST(a_claimant_that_has_gone_leaves_it_free)
{
    struct kit_owner *first = open_full(2), *second = worker_of("second"), *third;

    for (uint32_t i = 0; i < 50 && kit.n_renews == 0; i++) {
        kit_tick(&kit);
        kit_unmap(&kit, first);
    }
    ck_assert_uint_eq(kit.n_renews, 1);
    store_owner_end(kit.store, second->owner);
    kit_tick(&kit);
    ck_assert(second->freed);
    kit_renews(&kit, KVC_OK);
    ck_assert_uint_eq(count_extents(second->tenant), 0);
    third = worker_of("third");
    ck_assert_uint_eq(count_extents(third->tenant), 1);
    ck_assert_uint_eq(try_put(third, 0, 1), 1);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/tenants", CHECK_LIFE_S, {a_tenant_that_comes_late_gets_an_extent, 0, 0},
                 {two_tenants_that_work_have_as_much_each, 0, 0},
                 {memory_follows_use_between_tenants, 0, 0},
                 {S15_a_session_that_never_unmaps_keeps_its_extents, 0, 0},
                 {S15_a_worker_that_ended_in_the_middle_keeps_its_extents_until_it_is_gone, 0, 1},
                 {S15_a_stuck_reader_keeps_the_extent_that_it_reads, 0, 0},
                 {an_acknowledgement_that_crosses_the_notice, 0, 0},
                 {a_claimant_that_maps_nothing_takes_no_more, 0, 0},
                 {what_is_unmapped_unasked_is_not_used, 0, 0},
                 {new_memory_that_is_not_to_be_had, 0, 1}, {nobody_has_more_than_its_share, 0, 0},
                 {extents_without_memory_are_not_used, 0, 0},
                 {a_claimant_that_has_gone_leaves_it_free, 0, 0})
