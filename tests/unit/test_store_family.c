/* Families: the parts of one model, which are evicted together. */
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_owner *worker;
static struct kit_save save;
static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];

/* Two ranks and a window group of one model, and a part of another. */
static struct store_part_info ranks[4];

static void put(const struct store_part_info *part, uint32_t first, uint32_t n)
{
    struct kit_entry entry = {part->part, part->epoch, first, n};

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    kit_prove(&kit, &save);
}

static uint32_t count(const struct store_part_info *part, uint32_t first, uint32_t n)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct store_lookup_part one = {part->part, part->epoch, keys + (first + i) * KVC_KEY_BYTES,
                                        1};
        struct store_lookup request = {.parts = &one, .n_parts = 1, .probe = true};
        struct store_lookup_result result;

        ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why),
                         KVC_OK);
        count += result.count;
    }
    return count;
}

static void open_family(uint32_t gpu_slots, uint32_t host_slots)
{
    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    kit_register_rule(&kit, worker, 20, STORE_RULE_FULL, 0, 7, &ranks[0]);
    kit_register_rule(&kit, worker, 21, STORE_RULE_FULL, 0, 7, &ranks[1]);
    kit_register_rule(&kit, worker, 22, STORE_RULE_WINDOW, KIT_TOKENS + 1, 7, &ranks[2]);
    kit_register_rule(&kit, worker, 23, STORE_RULE_FULL, 0, 8, &ranks[3]);
    kit_map_all(&kit, worker);
    kit_keys(0, KIT_KEYS, keys);
}

START_TEST(S1_ranks_of_a_key_are_evicted_together)
{
    open_family(16, 0);
    put(&ranks[3], 0, 4);
    put(&ranks[0], 0, 4);
    put(&ranks[1], 0, 4);
    put(&ranks[2], 0, 4);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 16);
    put(&ranks[3], 100, 1); /* the family has twelve of sixteen slots: it gives */
    ck_assert_uint_eq(count(&ranks[3], 0, 4), 4);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(count(&ranks[i], 0, 4), 3);
    put(&ranks[3], 200, 3); /* into what the others of the family have left, and one */
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(count(&ranks[i], 0, 4), 2);
    kit_close(&kit);
}
END_TEST

START_TEST(S1_a_window_block_takes_no_full_one_with_it)
{
    open_family(8, 0);
    put(&ranks[2], 0, 4);
    put(&ranks[0], 0, 4);
    put(&ranks[0], 100, 2);
    ck_assert_uint_eq(count(&ranks[2], 0, 4), 2);
    ck_assert_uint_eq(count(&ranks[0], 0, 4), 4);
    kit_close(&kit);
}
END_TEST

START_TEST(S1_leased_ranks_stay_where_they_are)
{
    struct store_lookup_part one;
    struct store_lookup request = {.parts = &one, .n_parts = 1};
    struct store_lookup_result result;

    open_family(8, 0);
    put(&ranks[0], 0, 4);
    put(&ranks[1], 0, 4);
    one = (struct store_lookup_part){ranks[1].part, ranks[1].epoch, keys, 4};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &request, &result, &kit.why), KVC_OK);
    put(&ranks[0], 100, 4);
    ck_assert_uint_eq(count(&ranks[0], 0, 4), 0);
    ck_assert_uint_eq(count(&ranks[1], 0, 4), 4);
    kit_release(&kit, worker, result.lease);
    kit_close(&kit);
}
END_TEST

/* The host block that goes for a demotion is of the family of the one to be demoted. */
START_TEST(S20_a_demotion_whose_room_takes_its_own_block)
{
    struct kit_entry entry;

    open_family(8, 8);
    put(&ranks[0], 0, 8);
    entry = (struct kit_entry){ranks[1].part, ranks[1].epoch, 0, 8};
    kit_save_slowly(&kit, worker, entry, &save);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(count(&ranks[0], 0, 8), 8);
    ck_assert_uint_eq(count(&ranks[1], 0, 8), 8);
    for (uint32_t round = 0; round < 4; round++) {
        entry = (struct kit_entry){ranks[3].part, ranks[3].epoch, 100 + 10 * round, 3};
        ck_assert_uint_eq(kit_save_slowly(&kit, worker, entry, &save), 3);
        kit_prove(&kit, &save);
    }
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/family", CHECK_UNIT_S,
                 {S1_ranks_of_a_key_are_evicted_together, 0, 0, CHECK_BOTH_WAYS},
                 {S1_a_window_block_takes_no_full_one_with_it, 0, 0, CHECK_BOTH_WAYS},
                 {S1_leased_ranks_stay_where_they_are, 0, 0, CHECK_BOTH_WAYS},
                 {S20_a_demotion_whose_room_takes_its_own_block, 0, 0, CHECK_BOTH_WAYS})
