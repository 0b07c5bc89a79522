/*
 * Saves: what each key is, what is admitted, and how it is cut into chunks. Tests with two cases
 * run once for each way to copy.
 */
#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save, other;

static void expect_states(const struct kit_save *s, const char *expected)
{
    static const char letters[] = "HAPS";
    char states[KIT_KEYS + 1] = {0};

    for (uint32_t i = 0; i < s->n_keys; i++)
        states[i] = letters[s->states[i]];
    ck_assert_str_eq(states, expected);
}

static void expect_chunks(const struct kit_save *s, uint32_t n, const uint32_t *blocks)
{
    ck_assert_uint_eq(s->result.n_chunks, n);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(s->chunks[i].blocks, blocks[i]);
}

#define EXPECT_CHUNKS(s, ...)                                                                      \
    expect_chunks(s, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),                         \
                  (uint32_t[]){__VA_ARGS__})

START_TEST(save_then_load_round_trip)
{
    struct kit_owner *worker;
    struct kit_load load;
    uint64_t lease;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 16});
    worker = kit_worker(&kit);
    kit_save(&kit, worker, 100, 8, &save);
    expect_states(&save, "AAAAAAAA");
    EXPECT_CHUNKS(&save, 8);
    ck_assert_uint_eq(kit_probe(&kit, worker, 100, 8), 0);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 100, 9, &lease), 8);
    kit_load(&kit, worker, lease, 0, 100, 8, &load);
    kit_verify(&kit, &load);
    kit_release(&kit, worker, lease);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 1);
    kit_close_load(&kit, &load);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S1_hits_copy_nothing_and_are_used_last_first)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8);
    kit_save(&kit, worker, 0, 4, &save);
    expect_states(&save, "HHHH");
    ck_assert_uint_eq(save.result.save, 0);
    ck_assert_uint_eq(save.result.n_chunks, 0);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 0);
    /* 4 to 7 are colder now, then 3 and 2. */
    kit_put(&kit, worker, 100, 4);
    for (uint32_t key = 0; key < 8; key++)
        ck_assert_int_eq(kit_has(&kit, key), key < 4);
    kit_put(&kit, worker, 200, 2);
    for (uint32_t key = 0; key < 4; key++)
        ck_assert_int_eq(kit_has(&kit, key), key < 2);
    kit_close(&kit);
}
END_TEST

START_TEST(S1_head_of_a_saved_prefix_is_evicted_last)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 512, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 512);
    kit_put(&kit, worker, 1000, 100);
    for (uint32_t key = 0; key < 512; key++)
        ck_assert_int_eq(kit_has(&kit, key), key < 412);
    kit_close(&kit);
}
END_TEST

START_TEST(S2_chunks_of_64_blocks)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 512, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    kit_save(&kit, worker, 0, 150, &save);
    EXPECT_CHUNKS(&save, 64, 64, 22);
    kit_prove(&kit, &save);
    /* Hits between misses do not cut a chunk. */
    kit_put(&kit, worker, 200, 1);
    kit_put(&kit, worker, 220, 3);
    kit_save(&kit, worker, 180, 80, &save);
    EXPECT_CHUNKS(&save, 64, 12);
    kit_prove(&kit, &save);
    kit_close(&kit);
}
END_TEST

START_TEST(S2_chunks_of_16_MiB_and_oversize_blocks)
{
    struct store_part_info medium, large;
    struct kit_owner *worker;
    struct kit_entry entries[3];

    kit_open(&kit, &(struct kit_config){.gpu_slots = 48, .slot_bytes = 2u << 20});
    worker = kit_worker(&kit);
    kit_register(&kit, worker, 1, 6u << 20, &medium);
    kit_register(&kit, worker, 1, 18u << 20, &large);
    kit_map_all(&kit, worker);
    kit_save(&kit, worker, 0, 9, &save);
    EXPECT_CHUNKS(&save, 8, 1);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    entries[0] = (struct kit_entry){medium.part, medium.epoch, 0, 3};
    entries[1] = (struct kit_entry){large.part, large.epoch, 0, 1};
    entries[2] = kit_entry(&kit, 0, 2);
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 3, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    expect_states(&save, "AAAAAA");
    EXPECT_CHUNKS(&save, 2, 1, 1, 2);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S3_blocks_share_no_slot_and_go_alone)
{
    struct kit_owner *worker;
    struct kit_load load;
    uint64_t lease;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    kit_save(&kit, worker, 0, 8, &save);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_uint_eq(save.locations[i].offset % kit.slot_bytes, 0);
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(save.locations[i].offset, save.locations[j].offset);
    }
    kit_prove(&kit, &save);
    kit_save(&kit, worker, 0, 7, &save); /* makes 7 the coldest */
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 8);
    kit_put(&kit, worker, 100, 1);
    ck_assert(!kit_has(&kit, 7));
    ck_assert_uint_eq(kit_stats(&kit).evictions, 1);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 7);
    kit_load(&kit, worker, lease, 0, 0, 7, &load);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_close(&kit);
}
END_TEST

START_TEST(S5_several_parts_in_one_call)
{
    struct store_part_info second;
    struct kit_owner *worker;
    struct kit_entry entries[3];

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16});
    worker = kit_worker(&kit);
    kit_register(&kit, worker, 1, kit.slot_bytes / 2, &second);
    kit_map_all(&kit, worker);
    entries[0] = kit_entry(&kit, 0, 3);
    entries[1] = (struct kit_entry){second.part, second.epoch, 7, 0};
    entries[2] = (struct kit_entry){second.part, second.epoch, 1, 2};
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 3, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    expect_states(&save, "AAAAA");
    EXPECT_CHUNKS(&save, 5);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S5_empty_entries_do_nothing)
{
    struct kit_owner *worker;
    struct kit_entry entry;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    entry = kit_entry(&kit, 0, 0);
    for (uint32_t n = 0; n < 2; n++) {
        ck_assert_int_eq(kit_save_open(&kit, worker, &entry, n, &save), KVC_OK);
        ck_assert_uint_eq(save.short_of, 0);
        kit_save_seal(&kit, &save);
        ck_assert_uint_eq(save.result.save, 0);
    }
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S6_entries_of_one_call_share_a_prefix)
{
    struct kit_owner *worker;
    struct kit_entry entries[2];

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 1);
    entries[0] = kit_entry(&kit, 0, 4);
    entries[1] = kit_entry(&kit, 0, 6);
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 2, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    expect_states(&save, "HAAAHHHHAA");
    EXPECT_CHUNKS(&save, 5);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 5);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 7), 6);
    kit_close(&kit);
}
END_TEST

START_TEST(S6_shared_keys_without_room_are_skipped_in_both)
{
    struct kit_owner *worker;
    struct kit_entry entries[2];

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    entries[0] = kit_entry(&kit, 0, 10);
    entries[1] = kit_entry(&kit, 6, 4);
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 2, &save), KVC_OK);
    kit_save_seal(&kit, &save);
    expect_states(&save, "AAAAAAAASSHHSS");
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S7_pending_is_not_a_hit)
{
    struct kit_owner *a, *b;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    a = kit_worker(&kit);
    b = kit_worker(&kit);
    kit_save(&kit, a, 0, 4, &save);
    kit_save(&kit, b, 0, 6, &other);
    expect_states(&other, "PPPPAA");
    kit_prove(&kit, &save);
    kit_save(&kit, b, 0, 4, &save);
    expect_states(&save, "HHHH");
    ck_assert_int_eq(kit_abort(&kit, &other, true), 0);
    kit_save(&kit, a, 0, 6, &other);
    expect_states(&other, "HHHHAA");
    ck_assert_int_eq(kit_abort(&kit, &other, true), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S8_a_save_does_not_evict_its_own_hits)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 4);
    kit_put(&kit, worker, 100, 4);
    /* Its hits 0 to 3 are the coldest, and it needs six slots: four can be had. */
    kit_save(&kit, worker, 0, 10, &save);
    expect_states(&save, "HHHHAAAASS");
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 4), 4);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 10), 8);
    kit_close(&kit);
}
END_TEST

START_TEST(S8_a_hit_lost_before_the_call_is_copied)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8);
    kit_put(&kit, worker, 100, 1); /* evicts 7 */
    kit_save(&kit, worker, 0, 8, &save);
    expect_states(&save, "HHHHHHHA");
    kit_prove(&kit, &save);
    kit_close(&kit);
}
END_TEST

START_TEST(S10_the_leading_run_is_admitted)
{
    struct kit_owner *a, *b;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    a = kit_worker(&kit);
    b = kit_worker(&kit);
    kit_save(&kit, a, 2, 2, &other);
    /* 2 and 3 are pending: they count as present, and are not waited for. */
    kit_save(&kit, b, 0, 12, &save);
    expect_states(&save, "AAPPAAAASSSS");
    ck_assert_uint_eq(kit_stats(&kit).skipped_blocks, 4);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, b, 0, 12), 2);
    kit_prove(&kit, &other);
    ck_assert_uint_eq(kit_probe(&kit, b, 0, 12), 8);
    kit_close(&kit);
}
END_TEST

START_TEST(save_without_words_admits_leading_chunks)
{
    struct kit_save *saves = calloc(6, sizeof(*saves));
    struct kit_owner *worker;
    uint32_t n;

    /* Blocks of 16 MiB are chunks of their own: a word each. Only the first bytes are touched. */
    kit_open(&kit, &(struct kit_config){.gpu_slots = 264, .slot_bytes = 16u << 20});
    worker = kit_worker(&kit);
    for (n = 0; n < 5; n++)
        kit_save(&kit, worker, n * 50, 50, &saves[n]);
    ck_assert_uint_eq(saves[4].n_assigned, 50);
    kit_save(&kit, worker, 250, 10, &saves[5]);
    expect_states(&saves[5], "AAAAAASSSS");
    kit_save(&kit, worker, 300, 2, &save);
    expect_states(&save, "SS");
    ck_assert_int_eq(kit_abort(&kit, &saves[0], true), 0);
    kit_save(&kit, worker, 300, 2, &save);
    expect_states(&save, "AA");
    for (n = 1; n < 6; n++)
        ck_assert_int_eq(kit_abort(&kit, &saves[n], true), 0);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    free(saves);
    kit_close(&kit);
}
END_TEST

START_TEST(save_fault_of_a_word_skips_the_rest)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 512, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    fault_arm("store.word", 1, 1);
    kit_save(&kit, worker, 0, 150, &save);
    ck_assert_uint_eq(fault_fired("store.word"), 1);
    EXPECT_CHUNKS(&save, 64);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), 86);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 64);
    fault_arm("store.word", 0, 1);
    kit_save(&kit, worker, 500, 4, &other);
    expect_states(&other, "SSSS");
    ck_assert_uint_eq(other.result.save, 0);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 150), 64);
    kit_close(&kit);
}
END_TEST

START_TEST(save_uses_only_extents_that_are_mapped)
{
    struct owner_identity identity = {.role = STORE_ROLE_WORKER};
    struct kit_owner *worker, *late;
    struct store_part_info info;
    uint32_t extent, cursor;
    bool more;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 16});
    worker = kit_worker(&kit);
    late = &kit.owners[kit.n_owners++];
    identity.tenant = kit.tenant;
    ck_assert_int_eq(store_owner_open(kit.store, &identity, late, &late->owner), KVC_OK);
    kit_register(&kit, late, 1, kit.slot_bytes, &info);
    kit_save(&kit, late, 0, 2, &save);
    expect_states(&save, "SS");
    /* The second of the tier's two extents only. */
    ck_assert_uint_eq(store_owner_extents(kit.store, late->owner, 1, &extent, 1, &cursor, &more),
                      1);
    ck_assert_int_eq(store_owner_mapped(kit.store, late->owner, extent), KVC_OK);
    kit_save(&kit, late, 0, 10, &save);
    expect_states(&save, "AAAAAAAASS");
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_ge(save.locations[i].offset, 2u << 20);
    ck_assert_int_eq(kit_abort(&kit, &save, true), 0);
    /* A full tier: what lies in the other extent is not evicted for it. */
    kit_put(&kit, worker, 100, 16);
    kit_save(&kit, late, 0, 16, &save);
    ck_assert_uint_le(save.n_assigned, 8);
    for (uint32_t i = 0; i < save.n_assigned; i++)
        ck_assert_uint_ge(save.locations[i].offset, 2u << 20);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/save", CHECK_UNIT_S, {save_then_load_round_trip, 0, 0, CHECK_BOTH_WAYS},
                 {S1_hits_copy_nothing_and_are_used_last_first, 0, 0, CHECK_BOTH_WAYS},
                 {S1_head_of_a_saved_prefix_is_evicted_last, 0, 0, CHECK_BOTH_WAYS},
                 {S2_chunks_of_64_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S2_chunks_of_16_MiB_and_oversize_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S3_blocks_share_no_slot_and_go_alone, 0, 0, CHECK_BOTH_WAYS},
                 {S5_several_parts_in_one_call, 0, 0, CHECK_BOTH_WAYS},
                 {S5_empty_entries_do_nothing, 0, 0, CHECK_BOTH_WAYS},
                 {S6_entries_of_one_call_share_a_prefix, 0, 0, CHECK_BOTH_WAYS},
                 {S6_shared_keys_without_room_are_skipped_in_both, 0, 0, CHECK_BOTH_WAYS},
                 {S7_pending_is_not_a_hit, 0, 0, CHECK_BOTH_WAYS},
                 {S8_a_save_does_not_evict_its_own_hits, 0, 0, CHECK_BOTH_WAYS},
                 {S8_a_hit_lost_before_the_call_is_copied, 0, 0, CHECK_BOTH_WAYS},
                 {S10_the_leading_run_is_admitted, 0, 0, CHECK_BOTH_WAYS},
                 {save_without_words_admits_leading_chunks, 0, 0},
                 {save_fault_of_a_word_skips_the_rest, 0, 0},
                 {save_uses_only_extents_that_are_mapped, 0, 0})
