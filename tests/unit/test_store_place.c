/* Saves of the daemon's own, whose keys are told which tier they may go to. */
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define KEYS 16u

static struct kit kit;
static struct kit_owner *worker;
static uint8_t keys[KEYS * KVC_KEY_BYTES], states[KEYS];
static struct store_location locations[KEYS];
static struct store_chunk chunks[KEYS];

static void begin(uint32_t gpu_slots, uint32_t host_slots)
{
    kit_open(&kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < KEYS; i++)
        kit_key(i, keys + i * KVC_KEY_BYTES);
}

/* Saved, and published; which of the keys the gpu tier has. */
static uint64_t save(enum store_place place, const uint64_t *to_gpu, uint32_t n)
{
    const struct store_save_entry entry = {
        .part = kit.part, .epoch = kit.epoch, .keys = keys, .n_keys = n};
    const struct store_save request = {
        .entries = &entry, .n_entries = 1, .by_daemon = true, .place = place, .to_gpu = to_gpu};
    struct store_save_result result = {.states = states, .locations = locations, .chunks = chunks};
    uint64_t in[1], in_host[1];
    struct save *save;
    uint32_t short_of;

    ck_assert_int_eq(
        store_save_open(kit.store, worker->owner, &request, &save, &short_of, &kit.why), KVC_OK);
    store_save_seal(kit.store, save, &result);
    for (uint32_t i = 0; i < result.n_chunks; i++)
        store_chunk_copied(kit.store, save, i, NULL, KVC_OK);
    store_find_in(kit.store, TIER_GPU, kit.part, keys, KEYS, in);
    store_find_in(kit.store, TIER_HOST, kit.part, keys, KEYS, in_host);
    ck_assert_uint_eq(in[0] & in_host[0], 0);
    for (uint32_t i = 0; i < n; i++) {
        const bool here = (in[0] | in_host[0]) & 1ull << i;

        ck_assert_int_eq(here, states[i] == STORE_KEY_ASSIGNED);
        if (here)
            ck_assert_int_eq(locations[i].tier == TIER_GPU, (in[0] & 1ull << i) != 0);
    }
    kit_check(&kit);
    return in[0];
}

START_TEST(only_keys_that_may_go_to_the_gpu_do)
{
    static const uint64_t rows[] = {0, 0xffff, 0x00ff, 0xff00, 0x5a5a, 0x8001};

    begin(KEYS, KEYS);
    ck_assert_uint_eq(save(STORE_PLACE_GPU_OR_HOST, &rows[_i], KEYS), rows[_i]);
    kit_close(&kit);
}
END_TEST

START_TEST(all_may_where_nothing_is_said)
{
    begin(KEYS, KEYS);
    ck_assert_uint_eq(save(STORE_PLACE_GPU_OR_HOST, NULL, KEYS), 0xffff);
    kit_close(&kit);
}
END_TEST

START_TEST(what_is_said_is_of_that_place_only)
{
    static const uint64_t none = 0, all = UINT64_MAX;

    begin(KEYS, KEYS);
    if (_i == 0)
        ck_assert_uint_eq(save(STORE_PLACE_GPU_FIRST, &none, KEYS), 0xffff);
    else
        ck_assert_uint_eq(
            save(_i == 1 ? STORE_PLACE_HOST_FIRST : STORE_PLACE_HOST_ONLY, &all, KEYS), 0);
    kit_close(&kit);
}
END_TEST

/* Those of the gpu tier take the host's room when theirs is taken, and not the other way. */
START_TEST(there_is_less_room_than_wanted)
{
    static const uint64_t all = 0xffff, few = 0x0003;

    begin(8, 8);
    ck_assert_uint_eq(save(STORE_PLACE_GPU_OR_HOST, _i == 0 ? &all : &few, KEYS),
                      _i == 0 ? 0x00ff : 0x0003);
    kit_close(&kit);
}
END_TEST

/* Near to the GPU of who waits, as far as there is room. */
START_TEST(those_of_the_gpu_go_near)
{
    const uint32_t in_extent = 8, n = 12;

    begin(4 * in_extent, KEYS);
    ck_assert_int_eq(store_owner_near(worker->owner, 2, 1), KVC_OK);
    ck_assert_uint_eq(save(STORE_PLACE_GPU_OR_HOST, NULL, n), 0xfff);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(locations[i].offset / (in_extent * KIT_SLOT_BYTES) == 2, i < in_extent);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/place", CHECK_UNIT_S, {only_keys_that_may_go_to_the_gpu_do, 0, 5},
                 {all_may_where_nothing_is_said, 0, 0}, {what_is_said_is_of_that_place_only, 0, 2},
                 {there_is_less_room_than_wanted, 0, 1}, {those_of_the_gpu_go_near, 0, 0})
