/* Where blocks come to lie when an owner would rather have them in some extents of the gpu tier. */
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define SLOTS 8u /* of an extent */

static struct kit kit;

/* How many of the keys lie in extents from one on. */
static uint32_t count_from(uint32_t extent, uint32_t first, uint32_t n)
{
    const struct table *table = store_table(kit.store);
    const struct table_tier *geometry = &table_header((struct table *)table)->tiers[TIER_GPU];
    uint32_t count = 0;

    for (uint32_t e = extent; e < geometry->extents; e++)
        for (uint32_t i = 0; i < SLOTS; i++) {
            const struct table_slot *record =
                table_slot((struct table *)table, TIER_GPU, e * geometry->slots_per_extent + i);

            for (uint32_t k = first; k < first + n; k++) {
                uint8_t key[KVC_KEY_BYTES];

                kit_key(k, key);
                count += record->state == SLOT_READY && memcmp(record->key, key, sizeof(key)) == 0;
            }
        }
    return count;
}

static struct kit_owner *worker_near(uint32_t first, uint32_t n)
{
    struct kit_owner *worker = kit_owner(&kit, STORE_ROLE_WORKER);

    ck_assert_int_eq(store_owner_near(worker->owner, first, n), KVC_OK);
    kit_map_all(&kit, worker);
    return worker;
}

/* Each on its own GPU as long as there is room, then on the other's. */
START_TEST(free_slots_near_come_first)
{
    struct kit_owner *left, *right;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 4 * SLOTS, .host_slots = 4 * SLOTS});
    left = worker_near(0, 2);
    right = worker_near(2, 2);
    kit_put(&kit, right, 0, SLOTS);
    kit_put(&kit, left, 100, SLOTS);
    kit_put(&kit, right, 200, SLOTS);
    ck_assert_uint_eq(count_from(2, 0, SLOTS) + count_from(2, 200, SLOTS), 2 * SLOTS);
    ck_assert_uint_eq(count_from(2, 100, SLOTS), 0);
    kit_put(&kit, right, 300, SLOTS);
    ck_assert_uint_eq(count_from(2, 300, SLOTS), 0);
    ck_assert(kit_in_tier(&kit, 300, TIER_GPU));
    kit_close(&kit);
}
END_TEST

/* In a full tier a clean block that is near makes way, if it is little less cold. */
START_TEST(clean_blocks_near_make_way)
{
    struct kit_owner *left, *right;

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 32, .host_slots = 64, .clean_low = 900, .clean_high = 1000});
    left = worker_near(0, 2);
    right = worker_near(2, 2);
    for (uint32_t i = 0; i < 16; i += 4) {
        kit_put(&kit, left, i, 4);
        kit_put(&kit, right, 100 + i, 4);
    }
    for (int i = 0; i < 20; i++) {
        kit_tick(&kit);
        kit_moves(&kit, kit.n_moves, KVC_OK);
    }
    ck_assert_uint_eq(kit_stats(&kit).demotions, 32);
    kit_put(&kit, right, 200, 4);
    ck_assert_uint_eq(count_from(2, 200, 4), 4);
    kit_put(&kit, left, 300, 4);
    ck_assert_uint_eq(count_from(2, 300, 4), 0);
    kit_close(&kit);
}
END_TEST

/* All of the tier is no preference, and none of it neither. */
START_TEST(all_or_nothing_is_near)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 3 * SLOTS, .host_slots = SLOTS});
    worker = worker_near(0, 3);
    kit_put(&kit, worker, 0, 2 * SLOTS);
    worker = worker_near(0, 0);
    kit_put(&kit, worker, 100, SLOTS);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_BOTH_WAYS("store/near", CHECK_LIFE_S, free_slots_near_come_first,
                     clean_blocks_near_make_way, all_or_nothing_is_near)
