/* Walks over blocks, leases and copies, some at a time, while others use them. */
#include "daemon/store/walk.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define N 40u

static uint32_t count_blocks(const struct kit *kit, uint32_t steps_each)
{
    struct store_block block;
    uint64_t cursor = 0;
    uint32_t n = 0;

    for (;;) {
        uint32_t steps = steps_each;
        enum store_walk found;

        while ((found = store_walk_blocks(kit->store, &cursor, &steps, &block)) == STORE_WALK_FOUND)
            n++;
        if (found == STORE_WALK_END)
            return n;
        ck_assert_uint_eq(steps, 0);
    }
}

START_TEST(every_block_is_met_once_however_few_steps_a_call_has)
{
    static struct kit kit;

    kit_open_with(&kit, 64, 64, N);
    for (uint32_t steps = 1; steps < 70; steps += 7)
        ck_assert_uint_eq(count_blocks(&kit, steps), N);
    kit_close(&kit);
}
END_TEST

START_TEST(a_walk_of_leases_meets_those_that_have_not_ended)
{
    static struct kit kit;
    struct kit_owner *w = kit_open_with(&kit, 64, 64, N);
    struct store_lease lease;
    uint64_t ids[3], cursor = 0;
    uint32_t steps = 1000, blocks = 0, n = 0;

    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(kit_lookup(&kit, w, 0, 10 + i, &ids[i]), 10 + i);
    kit_release(&kit, w, ids[1]);
    while (store_walk_leases(kit.store, &cursor, &steps, &lease) == STORE_WALK_FOUND) {
        ck_assert(lease.lease == ids[0] || lease.lease == ids[2]);
        ck_assert_ptr_eq(lease.owner, w->owner);
        ck_assert_uint_gt(lease.ends_us, 0);
        blocks += lease.blocks;
        n++;
    }
    ck_assert_uint_eq(n, 2);
    ck_assert_uint_eq(blocks, 22);
    kit_close(&kit);
}
END_TEST

static uint32_t take_copies(struct kit *kit, struct store_copy *copies)
{
    uint64_t cursor = 0, unchecked = 0;
    uint32_t steps = 10000, n = 0;

    while (store_walk_copies(kit->store, &cursor, &steps, &unchecked, &copies[n]) ==
           STORE_WALK_FOUND)
        n++;
    ck_assert_uint_eq(cursor, store_walk_copies_end(kit->store));
    ck_assert_uint_eq(unchecked, 0);
    return n;
}

/* What is read is neither evicted nor lost by a flush, and given back it is as it was. */
START_TEST(a_copy_that_is_read_stays_where_it_is)
{
    static struct kit kit;
    static struct store_copy copies[2 * N];
    const struct store_scope all = {.all = true};
    uint64_t blocks;
    uint32_t n;

    kit_open_with(&kit, N, N, N);
    n = take_copies(&kit, copies);
    ck_assert_uint_eq(n, N);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(copies[i].checksum,
                          kit_checksum(&kit, kit.memory[copies[i].tier] + copies[i].offset));
    ck_assert_ptr_null(store_check(kit.store));
    if (_i == 1)
        ck_assert_int_eq(store_flush(kit.store, &all, &blocks, NULL), KVC_OK);
    ck_assert_ptr_null(store_check(kit.store));
    /* Nothing is free, and nothing may go. */
    if (_i == 0)
        for (uint32_t i = 0; i < N; i++)
            ck_assert(kit_has(&kit, i));
    for (uint32_t i = 0; i < n; i++)
        store_give_copy(kit.store, &copies[i], false);
    ck_assert_ptr_null(store_check(kit.store));
    ck_assert_uint_eq(count_blocks(&kit, 100), _i == 0 ? N : 0);
    kit_close(&kit);
}
END_TEST

START_TEST(a_bad_copy_takes_its_block_with_it)
{
    static struct kit kit;
    static struct store_copy copies[2 * N];
    uint32_t n;

    kit_open_with(&kit, 64, 64, N);
    n = take_copies(&kit, copies);
    for (uint32_t i = 0; i < n; i++)
        store_give_copy(kit.store, &copies[i], i % 4 == 0);
    ck_assert_ptr_null(store_check(kit.store));
    ck_assert_uint_eq(count_blocks(&kit, 100), N - n / 4);
    ck_assert_uint_eq(kit_stats(&kit).checksum_failures, n / 4);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/walk", CHECK_UNIT_S,
                 {every_block_is_met_once_however_few_steps_a_call_has, 0, 0},
                 {a_walk_of_leases_meets_those_that_have_not_ended, 0, 0},
                 {a_copy_that_is_read_stays_where_it_is, 0, 1},
                 {a_bad_copy_takes_its_block_with_it, 0, 0})
