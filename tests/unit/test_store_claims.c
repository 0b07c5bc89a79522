/* Extents that change their slot size: who gets them, what has to stay, and that nobody trades. */
#include "daemon/base/clock.h"
#include "daemon/store/claim.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define SMALL (64u << 10)
#define LARGE (5u << 20) /* three extents */

static struct kit kit;
static struct kit_save save;

/* A part that the kit's helpers work on. */
struct size {
    uint32_t part, epoch, slot_bytes;
};

static struct size now_used(void)
{
    return (struct size){kit.part, kit.epoch, kit.slot_bytes};
}

static void use(struct size size)
{
    kit.part = size.part;
    kit.epoch = size.epoch;
    kit.slot_bytes = size.slot_bytes;
}

static struct size add_size(struct kit_owner *worker, uint32_t slot_bytes)
{
    struct store_part_info info;

    kit_register(&kit, worker, 2, slot_bytes, &info);
    kit_map_all(&kit, worker);
    return (struct size){info.part, info.epoch, slot_bytes};
}

static uint32_t count_extents(enum tier_kind tier, uint32_t slot_bytes)
{
    const struct table *table = store_table(kit.store);
    uint32_t n = 0;

    for (uint32_t i = 0; i < table_header(table)->tiers[tier].extents; i++)
        n += table_extent(table, tier, i)->state == EXTENT_OWNED &&
             table_extent(table, tier, i)->slot_bytes == slot_bytes;
    return n;
}

/* What the daemon's loop does while it has something to do. */
static void run(uint64_t ms)
{
    for (uint64_t i = 0; i < ms; i++) {
        kit_tick(&kit);
        kit_moves(&kit, kit.n_moves, KVC_OK);
    }
}

/* Saves keys as far as there is room; how many of them were assigned. */
static uint32_t try_put(struct kit_owner *worker, uint32_t first, uint32_t n)
{
    kit.n_done = 0;
    kit_save_slowly(&kit, worker, kit_entry(&kit, first, n), &save);
    kit_prove(&kit, &save);
    return save.n_assigned;
}

/* Tries one key after another, as an engine does, until one lies in the gpu tier. */
static uint32_t until_in_gpu(struct kit_owner *worker, uint32_t first, uint32_t most)
{
    for (uint32_t i = 0; i < most; i++) {
        if (try_put(worker, first + i, 1) == 1 && save.locations[0].tier == TIER_GPU)
            return i;
        run(10);
    }
    ck_abort_msg("no key of %u got a slot in the gpu tier", most);
}

static struct kit_owner *open_full(uint32_t gpu_slots, uint32_t host_slots)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, gpu_slots);
    return worker;
}

/* What went for the second size is in the host tier, and nothing else has moved. */
START_TEST(S18_a_second_slot_size_gets_an_extent_of_a_full_tier)
{
    struct kit_owner *worker = open_full(32, 64);
    struct size first = now_used(), second = add_size(worker, SMALL);
    uint32_t in_gpu = 0;

    use(second);
    ck_assert_uint_lt(until_in_gpu(worker, 1000, 10), 5);
    ck_assert_uint_eq(count_extents(TIER_GPU, SMALL), 1);
    ck_assert_uint_eq(count_extents(TIER_GPU, KIT_SLOT_BYTES), 3);
    ck_assert_uint_eq(kit_stats(&kit).resized_extents, 1);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 0);
    use(first);
    for (uint32_t key = 0; key < 32; key++) {
        ck_assert(kit_has(&kit, key));
        in_gpu += kit_in_tier(&kit, key, TIER_GPU);
    }
    ck_assert_uint_eq(in_gpu, 24);
    kit_close(&kit);
}
END_TEST

START_TEST(S24_also_where_one_tier_is_all_there_is)
{
    struct kit_owner *worker;
    struct size second;

    kit_open(&kit, &(struct kit_config){.gpu_slots = _i ? 0 : 32, .host_slots = _i ? 32 : 0});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 32);
    second = add_size(worker, SMALL);
    use(second);
    for (uint32_t i = 0; i < 5 && try_put(worker, 1000 + i, 1) == 0; i++)
        run(10);
    ck_assert_uint_eq(save.n_assigned, 1);
    ck_assert_uint_eq(count_extents(_i ? TIER_HOST : TIER_GPU, SMALL), 1);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 8);
    kit_close(&kit);
}
END_TEST

/* The extent that was touched longest ago is the one that goes. */
START_TEST(the_coldest_extent_goes)
{
    struct kit_owner *worker = open_full(32, 64);
    struct size first = now_used();
    uint64_t lease;

    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        ck_assert_uint_eq(kit_lookup(&kit, worker, 8 * i, 8, &lease), 8);
        kit_release(&kit, worker, lease);
    }
    use(add_size(worker, SMALL));
    until_in_gpu(worker, 1000, 10);
    use(first);
    for (uint32_t key = 0; key < 32; key++)
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_GPU), key / 8 != 2);
    kit_close(&kit);
}
END_TEST

/* A kept block in each extent: nothing is closed, or dropped in vain. */
START_TEST(S28_extents_with_kept_blocks_stay)
{
    struct kit_owner *worker = open_full(32, 64);
    struct size first = now_used(), second;
    uint64_t leases[4];

    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(kit_lookup(&kit, worker, 8 * i + i, 1, &leases[i]), 1);
    second = add_size(worker, SMALL);
    use(second);
    for (uint32_t i = 0; i < 10; i++) {
        ck_assert_uint_eq(try_put(worker, 1000 + i, 1), 1);
        ck_assert_int_eq(save.locations[0].tier, TIER_HOST);
        run(30);
    }
    ck_assert_uint_eq(count_extents(TIER_GPU, SMALL), 0);
    ck_assert_uint_eq(kit.moves_started, 0);
    kit_release(&kit, worker, leases[3]);
    until_in_gpu(worker, 2000, 40);
    use(first);
    for (uint32_t key = 0; key < 32; key++)
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_GPU), key < 24);
    for (uint32_t i = 0; i < 3; i++)
        kit_release(&kit, worker, leases[i]);
    kit_close(&kit);
}
END_TEST

/* A lease that comes while the extent is emptied, and stays: so does the extent, and is counted. */
START_TEST(S28_a_lease_that_comes_later_is_honoured)
{
    struct kit_owner *worker = open_full(16, 64);
    struct size first = now_used();
    struct kit_load load;
    uint64_t lease;

    use(add_size(worker, SMALL));
    try_put(worker, 1000, 1);
    kit_tick(&kit);
    ck_assert_uint_gt(kit.n_moves, 0); /* it is being emptied */
    use(first);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 16, &lease), 16);
    run(100);
    ck_assert_uint_eq(kit_stats(&kit).kept_extents, 0);
    clock_advance(CLAIM_STUCK_US);
    run(100);
    ck_assert_uint_eq(kit_stats(&kit).kept_extents, 1);
    ck_assert_uint_eq(kit_stats(&kit).resized_extents, 0);
    kit_load(&kit, worker, lease, 0, 0, 16, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_release(&kit, worker, lease);
    /* It serves its size again. */
    ck_assert_uint_eq(try_put(worker, 100, 8), 8);
    kit_close(&kit);
}
END_TEST

/* Slots that a save fills, that wait for proof, or that a load reads are not for others. */
START_TEST(S15_unproved_slots_keep_their_extent)
{
    struct kit_owner *worker, *other;
    struct kit_save filling;
    struct size first;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 64});
    worker = kit_worker(&kit);
    other = kit_worker(&kit);
    first = now_used();
    kit_put(&kit, worker, 0, 8);
    kit_save(&kit, other, 8, 8, &filling);
    if (_i == 1) /* quarantine */
        kit_abort(&kit, &filling, false);
    use(add_size(worker, SMALL));
    until_in_gpu(worker, 1000, 20);
    run(3000);
    for (uint32_t i = 0; i < 40; i++) {
        try_put(worker, 2000 + i, 1);
        run(10);
    }
    ck_assert_uint_eq(count_extents(TIER_GPU, SMALL), 1);
    ck_assert_uint_eq(count_extents(TIER_GPU, KIT_SLOT_BYTES), 1);
    use(first);
    kit_prove(&kit, &filling);
    run(200); /* words this old are looked at now and then */
    ck_assert_int_eq(kit_has(&kit, 8), _i == 0);
    kit_close(&kit);
}
END_TEST

/* Two sizes that are used alike do not take from each other in turns. */
START_TEST(two_sizes_that_are_used_alike_do_not_trade)
{
    struct kit_owner *worker = open_full(32, 64);
    struct size first = now_used(), second = add_size(worker, SMALL);
    uint32_t resized;

    use(second);
    until_in_gpu(worker, 100000, 10);
    for (uint32_t i = 0; i < 400; i++) {
        use(i % 2 ? first : second);
        try_put(worker, 1000 + i * 4, 4);
        run(5);
    }
    resized = (uint32_t)kit_stats(&kit).resized_extents;
    ck_assert_uint_gt(count_extents(TIER_GPU, SMALL), 0);
    ck_assert_uint_gt(count_extents(TIER_GPU, KIT_SLOT_BYTES), 0);
    for (uint32_t i = 400; i < 1000; i++) {
        use(i % 2 ? first : second);
        try_put(worker, 1000 + i * 4, 4);
        run(5);
    }
    ck_assert_uint_le(kit_stats(&kit).resized_extents - resized, 1);
    kit_close(&kit);
}
END_TEST

/* When one is not used the other gets nearly all, and the first gets it back when it is used again.
 */
START_TEST(memory_follows_use)
{
    struct kit_owner *worker = open_full(32, 64);
    struct size first = now_used(), second = add_size(worker, SMALL);

    for (int round = 0; round < 2; round++) {
        struct size hot = round ? first : second, cold = round ? second : first;

        clock_advance(KVC_NAMESPACE_IDLE_MS * CLOCK_MS_US);
        use(hot);
        for (uint32_t i = 0; i < 2000 && count_extents(TIER_GPU, hot.slot_bytes) < 4; i++) {
            try_put(worker, 10000 + 100000 * (uint32_t)round + 16 * i, 16);
            run(5);
        }
        ck_assert_uint_eq(count_extents(TIER_GPU, cold.slot_bytes), 0);
        ck_assert_uint_eq(count_extents(TIER_GPU, hot.slot_bytes), 4);
    }
    kit_close(&kit);
}
END_TEST

/* A block larger than an extent gets adjacent ones. */
START_TEST(S3_a_large_block_gets_a_run_of_extents)
{
    struct kit_owner *worker = open_full(64, 0);
    struct size first = now_used();
    uint64_t lease;

    /* In the middle of the tier one is kept. */
    ck_assert_uint_eq(kit_lookup(&kit, worker, 8 * 4, 1, &lease), 1);
    use(add_size(worker, LARGE));
    until_in_gpu(worker, 1000, 10);
    ck_assert_uint_eq(count_extents(TIER_GPU, LARGE), 1);
    ck_assert_uint_eq(count_extents(TIER_GPU, KIT_SLOT_BYTES), 5);
    ck_assert_uint_eq(kit_stats(&kit).resized_extents, 3);
    /* And back: its three extents are for the others again. */
    use(first);
    clock_advance(KVC_NAMESPACE_IDLE_MS * CLOCK_MS_US);
    for (uint32_t i = 0; i < 100 && count_extents(TIER_GPU, LARGE) > 0; i++) {
        try_put(worker, 5000 + 8 * i, 8);
        run(10);
    }
    ck_assert_uint_eq(count_extents(TIER_GPU, LARGE), 0);
    kit_release(&kit, worker, lease);
    kit_close(&kit);
}
END_TEST

/* What was emptied for one size is not taken by another on the way, but not kept for ever either.
 */
START_TEST(a_promise_is_kept_and_ends)
{
    struct kit_owner *worker = open_full(32, 0);
    struct size first = now_used(), second = add_size(worker, SMALL);

    use(second);
    ck_assert_uint_eq(try_put(worker, 1000, 1), 0);
    run(20);
    ck_assert_uint_eq(kit_stats(&kit).resized_extents, 1);
    use(first);
    ck_assert_uint_eq(try_put(worker, 100, 8), 8);
    ck_assert_uint_eq(count_extents(TIER_GPU, KIT_SLOT_BYTES), 3);
    if (_i == 0) {
        use(second);
        ck_assert_uint_eq(try_put(worker, 1000, 1), 1);
        kit_close(&kit);
        return;
    }
    run(1100);
    ck_assert_uint_eq(try_put(worker, 200, 8), 8);
    ck_assert_uint_eq(count_extents(TIER_GPU, KIT_SLOT_BYTES), 4);
    kit_close(&kit);
}
END_TEST

/* Copies that fail: what cannot be demoted is dropped, and the extent is had all the same. */
START_TEST(S19_also_with_a_host_tier_that_takes_nothing)
{
    struct kit_owner *worker = open_full(32, 64);

    kit.copy_status = KVC_E_DEVICE;
    use(add_size(worker, SMALL));
    try_put(worker, 1000, 1);
    for (uint32_t i = 0; i < 5000 && kit_stats(&kit).resized_extents == 0; i++)
        run(1);
    ck_assert_uint_eq(kit_stats(&kit).resized_extents, 1);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 8);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/claims", CHECK_LIFE_S,
                 {S18_a_second_slot_size_gets_an_extent_of_a_full_tier, 0, 0},
                 {S24_also_where_one_tier_is_all_there_is, 0, 1}, {the_coldest_extent_goes, 0, 0},
                 {S28_extents_with_kept_blocks_stay, 0, 0},
                 {S28_a_lease_that_comes_later_is_honoured, 0, 0},
                 {S15_unproved_slots_keep_their_extent, 0, 1},
                 {two_sizes_that_are_used_alike_do_not_trade, 0, 0}, {memory_follows_use, 0, 0},
                 {S3_a_large_block_gets_a_run_of_extents, 0, 0}, {a_promise_is_kept_and_ends, 0, 1},
                 {S19_also_with_a_host_tier_that_takes_nothing, 0, 0})
