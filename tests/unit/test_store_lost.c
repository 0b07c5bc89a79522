/* Extents whose memory fails, as when a GPU is lost: what is left, and what loads and saves say. */
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define SLOTS 8u /* of an extent */

static struct kit kit;

static void run(struct kit_owner *owner, uint32_t ms)
{
    for (uint32_t i = 0; i < ms; i++) {
        kit_tick(&kit);
        kit_moves(&kit, kit.n_moves, KVC_E_DEVICE);
        kit_unmap(&kit, owner);
    }
}

static void lose_gpu(uint32_t first, uint32_t n)
{
    store_fail_extents(kit.store, TIER_GPU, first, n);
    kit_check(&kit);
}

static uint32_t count_hits(uint32_t first, uint32_t n)
{
    uint32_t hits = 0;

    for (uint32_t i = first; i < first + n; i++)
        hits += kit_has(&kit, i);
    return hits;
}

/* Keys 0 .. 7 are in both tiers, 8 .. 23 in the gpu tier only. */
static struct kit_owner *open_half_clean(void)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 24, .host_slots = 24, .clean_low = 300, .clean_high = 340});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8); /* the coldest */
    kit_put(&kit, worker, 8, 16);
    for (int i = 0; i < 10; i++) {
        kit_tick(&kit);
        kit_moves(&kit, kit.n_moves, KVC_OK);
    }
    ck_assert_uint_eq(kit_stats(&kit).demotions, 8);
    return worker;
}

/* What has a copy goes on in the host tier, and so do saves. */
START_TEST(all_of_the_gpu_tier_is_lost)
{
    struct kit_owner *worker = open_half_clean();
    struct kit_load load;
    uint64_t lease;

    lose_gpu(0, 3);
    ck_assert_uint_eq(count_hits(0, 24), 8);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 8);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 24, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 8, &load);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(load.locations[i].tier, TIER_HOST);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_release(&kit, worker, lease);
    kit_put(&kit, worker, 100, 8);
    ck_assert(kit_in_tier(&kit, 100, TIER_HOST) && !kit_in_tier(&kit, 100, TIER_GPU));
    run(worker, 50);
    ck_assert_uint_eq(kit_lost_extents(&kit), 3);
    ck_assert_uint_eq(kit_stats(&kit).lost_extents, 3);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    kit_close(&kit);
}
END_TEST

/* One of two GPUs: the other one's blocks stay, and new ones come there. */
START_TEST(a_part_of_the_gpu_tier_is_lost)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 4 * SLOTS, .host_slots = SLOTS});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 3 * SLOTS);
    lose_gpu(0, 2);
    ck_assert_uint_eq(count_hits(0, 3 * SLOTS), SLOTS);
    kit_put(&kit, worker, 100, SLOTS);
    ck_assert_uint_eq(count_hits(100, SLOTS), SLOTS);
    ck_assert(kit_in_tier(&kit, 100, TIER_GPU));
    run(worker, 50);
    ck_assert_uint_eq(kit_lost_extents(&kit), 2);
    ck_assert_uint_eq(count_hits(100, SLOTS), SLOTS);
    lose_gpu(0, 2); /* once more changes nothing */
    run(worker, 50);
    ck_assert_uint_eq(kit_stats(&kit).lost_extents, 2);
    kit_close(&kit);
}
END_TEST

/* A lease is no promise that memory does not fail, but a load of it says so before it reads. */
START_TEST(leased_blocks_that_are_lost)
{
    struct kit_owner *worker = open_half_clean();
    struct kit_load before, load;
    struct store_load request = {.count = 8};
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 24, &lease), 24);
    kit_load(&kit, worker, lease, 4, 4, 8, &before);
    lose_gpu(0, 3);
    request.lease = lease;
    request.part = kit.part;
    request.epoch = kit.epoch;
    request.first = 8;
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_DEVICE);
    request.first = 4;
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_E_DEVICE);
    request.first = 0;
    ck_assert_int_eq(kit_try_load(&kit, worker, &request, &load), KVC_OK);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(load.locations[i].tier, TIER_HOST);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    /* What is read there stays until it has been read. */
    run(worker, 50);
    ck_assert_uint_lt(kit_lost_extents(&kit), 3);
    kit_close_load(&kit, &before);
    kit_release(&kit, worker, lease);
    run(worker, 50);
    ck_assert_uint_eq(kit_lost_extents(&kit), 3);
    ck_assert_uint_eq(count_hits(0, 24), 8);
    kit_close(&kit);
}
END_TEST

/* Nothing of it is published, and its slots are free when nobody writes there any more. */
START_TEST(saves_that_were_filling_it_fail)
{
    struct kit_owner *worker;
    struct kit_save save;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 2 * SLOTS, .host_slots = SLOTS});
    worker = kit_worker(&kit);
    kit_save(&kit, worker, 0, 4, &save);
    ck_assert_uint_eq(save.n_assigned, 4);
    lose_gpu(0, 2);
    ck_assert_uint_eq(count_hits(0, 4), 0);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 0);
    run(worker, 50);
    ck_assert_uint_lt(kit_lost_extents(&kit), 2);
    kit_end_copy(&kit, &save, 0);
    run(worker, 50);
    ck_assert_uint_eq(kit_lost_extents(&kit), 2);
    ck_assert_uint_eq(count_hits(0, 4), 0);
    ck_assert_uint_eq(kit_stats(&kit).published_blocks, 0);
    kit_close(&kit);
}
END_TEST

/* _i: whether the copy that was under way says that it went well. */
START_TEST(copies_between_tiers_are_under_way)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 24, .host_slots = 24, .clean_low = 300, .clean_high = 340});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 24);
    kit_tick(&kit);
    ck_assert_uint_gt(kit.n_moves, 0);
    lose_gpu(0, 3);
    ck_assert_uint_eq(count_hits(0, 24), 0);
    kit_moves(&kit, kit.n_moves, _i ? KVC_OK : KVC_E_DEVICE);
    ck_assert_uint_eq(count_hits(0, 24), 0);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 0);
    run(worker, 50);
    ck_assert_uint_eq(kit_lost_extents(&kit), 3);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_HOST].used_slots, 0);
    kit_put(&kit, worker, 0, 8);
    kit_close(&kit);
}
END_TEST

/* A pin keeps the block and no place: it is pinned where its other copy is. */
START_TEST(pinned_blocks)
{
    struct kit_owner *worker = open_half_clean();
    uint8_t keys[24 * KVC_KEY_BYTES];
    const struct store_scope scope = {
        .owner = worker->owner, .part = kit.part, .keys = keys, .n_keys = 24};
    uint32_t pinned = 0;

    kit_keys(0, 24, keys);
    ck_assert_int_eq(store_pin(kit.store, &scope, 60, &pinned, &kit.why), KVC_OK);
    ck_assert_uint_eq(pinned, 24);
    lose_gpu(0, 3);
    ck_assert_uint_eq(kit_stats(&kit).pinned_blocks, 8);
    run(worker, 50);
    ck_assert_uint_eq(kit_lost_extents(&kit), 3);
    ck_assert_uint_eq(count_hits(0, 24), 8);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/lost", CHECK_LIFE_S, {all_of_the_gpu_tier_is_lost, 0, 0},
                 {a_part_of_the_gpu_tier_is_lost, 0, 0}, {leased_blocks_that_are_lost, 0, 0},
                 {saves_that_were_filling_it_fail, 0, 0},
                 {copies_between_tiers_are_under_way, 0, 2}, {pinned_blocks, 0, 0})
