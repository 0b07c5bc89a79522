/* Saves that ask for the host tier: what a step has beyond the size of the gpu tier. */
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define GPU  8u
#define KEYS 24u

static struct kit kit;
static struct kit_owner *worker;
static struct kit_save first, second;

static void begin(uint32_t host_slots)
{
    kit_open(&kit, &(struct kit_config){.gpu_slots = GPU, .host_slots = host_slots});
    worker = kit_worker(&kit);
}

/* Keys from `from` on, for the host tier. */
static void save_to_host(uint32_t from, uint32_t n, struct kit_save *save)
{
    kit.place = STORE_PLACE_HOST_ONLY;
    kit_save(&kit, worker, from, n, save);
    kit.place = STORE_PLACE_GPU_FIRST;
    ck_assert_uint_eq(save->short_of, 0);
    for (uint32_t i = 0; i < n; i++)
        if (save->states[i] == STORE_KEY_ASSIGNED)
            ck_assert_int_eq(save->locations[i].tier, TIER_HOST);
}

START_TEST(S10_what_the_gpu_tier_has_no_room_for_can_go_to_the_host)
{
    uint64_t lease;

    begin(KEYS);
    kit_save(&kit, worker, 0, KEYS, &first);
    ck_assert_uint_eq(kit_count(&first, STORE_KEY_ASSIGNED), GPU);
    ck_assert_uint_eq(kit_count(&first, STORE_KEY_SKIPPED), KEYS - GPU);
    save_to_host(0, KEYS, &second);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_PENDING), GPU);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_ASSIGNED), KEYS - GPU);
    kit_prove(&kit, &second);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KEYS, &lease), 0);
    kit_prove(&kit, &first);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KEYS, &lease), KEYS);
    ck_assert_uint_eq(kit_stats(&kit).bytes_saved[TIER_HOST], (KEYS - GPU) * kit.slot_bytes);
    kit_close(&kit);
}
END_TEST

START_TEST(a_save_to_the_host_takes_nothing_of_the_gpu_tier)
{
    uint64_t lease;

    begin(KEYS);
    kit_put(&kit, worker, 0, GPU);
    save_to_host(GPU, KEYS - GPU, &second);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_ASSIGNED), KEYS - GPU);
    kit_prove(&kit, &second);
    ck_assert_uint_eq(kit_stats(&kit).tier_evictions[TIER_GPU], 0);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, KEYS, &lease), KEYS);
    kit_close(&kit);
}
END_TEST

START_TEST(S20_a_full_host_tier_gives_its_coldest_blocks_and_no_leased_ones)
{
    uint64_t lease;

    begin(GPU);
    save_to_host(0, GPU, &first);
    kit_prove(&kit, &first);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 2, &lease), 2);
    save_to_host(100, GPU, &second);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_ASSIGNED), GPU - 2);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_SKIPPED), 2);
    kit_prove(&kit, &second);
    ck_assert_uint_eq(kit_stats(&kit).evictions, GPU - 2);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, GPU, &lease), 2);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 100, GPU, &lease), GPU - 2);
    kit_close(&kit);
}
END_TEST

/* The one that copies by itself reaches nothing of the tier: nobody is evicted for it. */
START_TEST(who_has_not_mapped_the_host_tier_gets_no_slot_of_it)
{
    struct owner_identity identity = {.role = STORE_ROLE_WORKER};
    struct store_part_info info;

    begin(GPU);
    save_to_host(0, GPU, &first);
    kit_prove(&kit, &first);
    worker = &kit.owners[kit.n_owners++];
    identity.tenant = kit.tenant;
    ck_assert_int_eq(store_owner_open(kit.store, &identity, worker, &worker->owner), KVC_OK);
    kit_register(&kit, worker, 1, kit.slot_bytes, &info);
    save_to_host(100, GPU, &second);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_ASSIGNED), kit_daemon_copies() ? GPU : 0);
    ck_assert_uint_eq(kit_stats(&kit).evictions, kit_daemon_copies() ? GPU : 0);
    if (kit_daemon_copies())
        kit_prove(&kit, &second);
    kit_close(&kit);
}
END_TEST

/* All slots of the host are copies of what the gpu tier has: one more would be no use. */
START_TEST(a_host_tier_of_clean_copies_is_left_alone)
{
    begin(GPU);
    kit_put(&kit, worker, 0, GPU);
    while (kit.n_moves > 0)
        kit_moves(&kit, 1, KVC_OK);
    save_to_host(100, 1, &second);
    ck_assert_uint_le(kit_count(&second, STORE_KEY_ASSIGNED), 1);
    ck_assert_uint_eq(kit_stats(&kit).tier_evictions[TIER_GPU], 0);
    if (second.n_assigned > 0)
        kit_prove(&kit, &second);
    kit_close(&kit);
}
END_TEST

START_TEST(without_a_host_tier_all_is_skipped_and_nothing_evicted)
{
    begin(0);
    kit_put(&kit, worker, 0, GPU);
    save_to_host(0, KEYS, &second);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_HIT), GPU);
    ck_assert_uint_eq(kit_count(&second, STORE_KEY_SKIPPED), KEYS - GPU);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_BOTH_WAYS("store/to_host", CHECK_UNIT_S,
                     S10_what_the_gpu_tier_has_no_room_for_can_go_to_the_host,
                     a_save_to_the_host_takes_nothing_of_the_gpu_tier,
                     S20_a_full_host_tier_gives_its_coldest_blocks_and_no_leased_ones,
                     who_has_not_mapped_the_host_tier_gets_no_slot_of_it,
                     a_host_tier_of_clean_copies_is_left_alone,
                     without_a_host_tier_all_is_skipped_and_nothing_evicted)
