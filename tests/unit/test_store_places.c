/* Blocks that were held and not used go back to where they were in the eviction orders, at once. */
#include "daemon/base/clock.h"
#include "daemon/store/partition.h"
#include "daemon/store/walk.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define MANY   256u
#define NEEDED 2u /* blocks that the window part's rule asks for */

static struct kit kit;
static struct kit_owner *worker;
static struct store_part_info window;

/* Of looking for places, in the orders of all blocks. */
static uint64_t count_steps(void)
{
    const struct partition *partition;
    const struct tier_class *cls;
    uint64_t steps = 0;

    list_for_each(cls, &kit.store->classes, link)
        list_for_each(partition, &cls->partitions, link)
            for (enum order o = ORDER_DIRTY; o < ORDER_COUNT; o++)
                steps += partition->orders[o].steps;
    return steps;
}

static uint32_t draw(uint32_t n)
{
    static uint64_t random = 1;

    random = random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random >> 33) % n;
}

/* However the blocks were used, and so lie in the orders. */
START_TEST(what_is_given_back_finds_its_place_at_once)
{
    enum { BATCH = 64 };
    static struct store_copy copies[BATCH];
    uint64_t cursor = 0, unchecked = 0, before, lease;
    enum store_walk found = STORE_WALK_FOUND;
    uint32_t steps = UINT32_MAX, n;

    worker = kit_open_with(&kit, MANY, MANY, MANY);
    for (uint32_t i = 0; i < 4 * MANY; i++) {
        ck_assert_uint_eq(kit_lookup(&kit, worker, draw(MANY), 1, &lease), 1);
        kit_release(&kit, worker, lease);
    }
    before = count_steps();
    while (found == STORE_WALK_FOUND) {
        for (n = 0; n < BATCH && found == STORE_WALK_FOUND; n += found == STORE_WALK_FOUND)
            found = store_walk_copies(kit.store, &cursor, &steps, &unchecked, &copies[n]);
        while (n-- > 0)
            store_give_copy(kit.store, &copies[n], false);
    }
    ck_assert_uint_le(count_steps() - before, 2 * MANY);
    ck_assert_ptr_null(store_check(kit.store));
    kit_close(&kit);
}
END_TEST

static void open_window(uint32_t gpu_slots, uint32_t host_slots)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {10};
    const uint32_t slices[] = {KIT_SLOT_BYTES};
    const struct store_part part = {
        .namespace_digest = digest,
        .slice_bytes = slices,
        .n_slices = 1,
        .block_tokens = 16,
        .rule = STORE_RULE_WINDOW,
        .window = NEEDED * 16,
    };

    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    ck_assert_int_eq(store_register(kit.store, worker->owner, &part, &window, &kit.why), KVC_OK);
    kit_map_all(&kit, worker);
}

static void save_window(uint32_t first, uint32_t n, struct kit_save *save)
{
    const struct kit_entry entry = {window.part, window.epoch, first, n};

    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, save), KVC_OK);
    kit_save_seal(&kit, save);
    kit_prove(&kit, save);
    kit.n_done = 0;
}

/* Blocks 0 .. n - 1, used one by one in no order, and no longer as a prompt's. */
static void put_in_no_order(uint32_t n)
{
    static struct kit_save save;
    uint32_t keys[MANY];

    for (uint32_t i = 0; i < n; i++)
        keys[i] = i;
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t other = draw(i + 1), key = keys[i];

        keys[i] = keys[other];
        keys[other] = key;
    }
    for (uint32_t i = 0; i < n; i++) {
        clock_advance(CLOCK_MS_US);
        save_window(keys[i], 1, &save);
        ck_assert_uint_eq(save.n_assigned, 1);
    }
}

static uint64_t last_use(uint32_t key)
{
    uint8_t name[KVC_KEY_BYTES];
    uint32_t id;

    kit_key(key, name);
    id = blocks_find(kit.store->blocks, window.part, name);
    ck_assert_uint_ne(id, BLOCK_NONE);
    return blocks_record(kit.store->blocks, id, TIER_GPU)->last_use;
}

START_TEST(S1_hits_that_a_rule_does_not_use_go_back_at_once)
{
    static struct kit_save save;
    uint64_t used[MANY], before;

    open_window(MANY, 0);
    put_in_no_order(MANY);
    for (uint32_t i = 0; i < MANY; i++)
        used[i] = last_use(i);
    before = count_steps();
    save_window(0, MANY, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_HIT), MANY);
    ck_assert_uint_le(count_steps() - before, 2 * MANY);
    for (uint32_t i = 0; i < MANY; i++)
        ck_assert_msg((last_use(i) == used[i]) == (i < MANY - NEEDED), "key %u", i);
    ck_assert_ptr_null(store_check(kit.store));
    kit_close(&kit);
}
END_TEST

/* What they lay beside is evicted for the call's own new blocks, or copied meanwhile. */
START_TEST(S1_S8_hits_go_back_at_once_though_their_neighbours_went)
{
    enum { HITS = MANY / 2 };
    static struct kit_save save;
    uint64_t before;
    struct kit_entry entries[2];

    open_window(MANY, _i * MANY);
    put_in_no_order(MANY);
    before = count_steps();
    entries[0] = (struct kit_entry){window.part, window.epoch, 0, HITS};
    entries[1] = (struct kit_entry){kit.part, kit.epoch, 1000, HITS / 2};
    ck_assert_int_eq(kit_save_open(&kit, worker, entries, 2, &save), KVC_OK);
    while (save.short_of > 0 && kit_moves(&kit, 1, KVC_OK) > 0)
        save.short_of = store_save_more(kit.store, save.open);
    kit_save_seal(&kit, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_HIT), HITS);
    ck_assert_uint_eq(save.n_assigned, HITS / 2);
    ck_assert_uint_le(count_steps() - before, 3 * MANY);
    kit_prove(&kit, &save);
    kit_moves(&kit, UINT32_MAX, KVC_OK);
    ck_assert_ptr_null(store_check(kit.store));
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/places", CHECK_UNIT_S, {what_is_given_back_finds_its_place_at_once, 0, 0},
                 {S1_hits_that_a_rule_does_not_use_go_back_at_once, 0, 0, CHECK_BOTH_WAYS},
                 {S1_S8_hits_go_back_at_once_though_their_neighbours_went, 0, 2, CHECK_BOTH_WAYS})
