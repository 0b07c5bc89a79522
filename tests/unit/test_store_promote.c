/* Copies from the host tier to the gpu tier. */
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;

/* Keys 0 to 7 in the host tier only, and free slots in the gpu tier. */
static struct kit_owner *open_demoted(void)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 16, 8);
    struct kit_load load;
    uint8_t key[KVC_KEY_BYTES];
    uint64_t lease;

    kit_put_slowly(&kit, worker, 100, 8);
    for (uint32_t i = 100; i < 108; i++) {
        ck_assert_uint_eq(kit_lookup(&kit, worker, i, 1, &lease), 1);
        kit_load(&kit, worker, lease, 0, i, 1, &load);
        kit_close_load(&kit, &load);
        kit_release(&kit, worker, lease);
        kit_key(i, key);
        store_report(kit.store, worker->owner, kit.part, key, load.locations[0].tier,
                     load.locations[0].generation);
    }
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_HOST].used_slots, 8);
    return worker;
}

START_TEST(S23_hit_twice_on_the_host_tier_is_promoted)
{
    struct kit_owner *worker = open_demoted();
    struct kit_load load;
    uint64_t lease;

    kit_hit(&kit, worker, 0, 4);
    ck_assert_uint_eq(kit.n_moves, 0);
    clock_advance((KVC_PROMOTION_MS - 10) * CLOCK_MS_US);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 3, &lease), 3);
    ck_assert_uint_eq(kit.n_moves, 0); /* a leased block is not moved */
    kit_release(&kit, worker, lease);
    ck_assert_uint_eq(kit.n_moves, 3);
    kit_moves(&kit, 3, KVC_OK);
    ck_assert_uint_eq(kit_stats(&kit).promotions, 3);
    for (uint32_t key = 0; key < 8; key++) {
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_GPU), key < 3);
        ck_assert(kit_in_tier(&kit, key, TIER_HOST));
    }
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_load(&kit, worker, lease, 0, 0, 8, &load);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_int_eq(load.locations[i].tier, i < 3 ? TIER_GPU : TIER_HOST);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

START_TEST(S23_hits_far_apart_do_not_promote)
{
    struct kit_owner *worker = open_demoted();

    kit_hit(&kit, worker, 0, 4);
    clock_advance((KVC_PROMOTION_MS + 10) * CLOCK_MS_US);
    kit_hit(&kit, worker, 0, 4);
    ck_assert_uint_eq(kit.n_moves, 0);
    kit_hit(&kit, worker, 0, 1);
    ck_assert_uint_eq(kit.n_moves, 1);
    kit_moves(&kit, 1, KVC_E_DEVICE); /* changes nothing */
    ck_assert(!kit_in_tier(&kit, 0, TIER_GPU) && kit_in_tier(&kit, 0, TIER_HOST));
    ck_assert_uint_eq(kit_stats(&kit).promotions, 0);
    ck_assert_uint_eq(kit_stats(&kit).failed_demotions, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S23_without_room_nothing_is_promoted)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);

    kit_put_slowly(&kit, worker, 100, 8);
    kit_hit(&kit, worker, 0, 8);
    kit_hit(&kit, worker, 0, 8);
    ck_assert_uint_eq(kit.n_moves, 0);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 16);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_BOTH_WAYS("store/promote", CHECK_UNIT_S, S23_hit_twice_on_the_host_tier_is_promoted,
                     S23_hits_far_apart_do_not_promote, S23_without_room_nothing_is_promoted)
