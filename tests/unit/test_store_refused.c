/* Saves that are refused, and what that changes: nothing. */
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;

static void expect_refused(struct kit_owner *owner, struct kit_entry entry, kvc_status status,
                           const char *field)
{
    struct store_stats before = kit_stats(&kit), after;
    const struct kit_entry entries[] = {kit_entry(&kit, 500, 2), entry};

    ck_assert_int_eq(kit_save_open(&kit, owner, entries, 2, &save), status);
    ck_assert_str_eq(kit.why.field, field);
    after = kit_stats(&kit);
    ck_assert_int_eq(memcmp(&before, &after, sizeof(before)), 0);
}

START_TEST(S5_refusals_name_the_field_and_change_nothing)
{
    struct kit_owner *worker, *reader, *scheduler;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    reader = kit_owner(&kit, STORE_ROLE_READER);
    scheduler = kit_owner(&kit, STORE_ROLE_SCHEDULER);
    expect_refused(worker, (struct kit_entry){0, 1, 0, 1}, KVC_E_UNKNOWN, "entries[1].part");
    expect_refused(worker, (struct kit_entry){kit.part + 1, 1, 0, 1}, KVC_E_UNKNOWN,
                   "entries[1].part");
    expect_refused(worker, (struct kit_entry){~0u, 1, 0, 1}, KVC_E_UNKNOWN, "entries[1].part");
    expect_refused(worker, (struct kit_entry){kit.part, kit.epoch + 1, 0, 1}, KVC_E_STALE,
                   "entries[1].epoch");
    expect_refused(worker, kit_entry(&kit, 0, KVC_KEYS_MAX), KVC_E_LIMIT, "entries[1].keys");
    expect_refused(worker, kit_entry(&kit, 0, ~0u), KVC_E_LIMIT, "entries[1].keys");
    expect_refused(reader, kit_entry(&kit, 0, 1), KVC_E_DENIED, "");
    expect_refused(scheduler, kit_entry(&kit, 0, 1), KVC_E_DENIED, "");
    kit_close(&kit);
}
END_TEST

START_TEST(S5_duplicate_keys_and_slices_are_refused)
{
    struct kit_owner *worker;
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    struct store_save_entry entry;
    struct store_save request = {
        .entries = &entry, .n_entries = 1, .by_daemon = kit_daemon_copies()};
    struct save *open;
    uint32_t short_of;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 8});
    worker = kit_worker(&kit);
    kit_keys(0, KVC_KEYS_MAX, keys);
    kit_key(5, keys + 1000 * KVC_KEY_BYTES);
    entry = (struct store_save_entry){
        .part = kit.part, .epoch = kit.epoch, .keys = keys, .n_keys = KVC_KEYS_MAX};
    ck_assert_int_eq(
        store_save_open(kit.store, worker->owner, &request, &open, &short_of, &kit.why),
        KVC_E_DUPLICATE);
    ck_assert_str_eq(kit.why.field, "entries[0].keys");
    entry.n_keys = 4;
    entry.n_slices = 3;
    ck_assert_int_eq(
        store_save_open(kit.store, worker->owner, &request, &open, &short_of, &kit.why),
        KVC_E_INVALID);
    entry.n_slices = 2;
    ck_assert_int_eq(store_save_open(kit.store, worker->owner, &request, &open, &short_of, NULL),
                     KVC_OK);
    save.open = open;
    save.n_keys = 4;
    kit_save_seal(&kit, &save);
    kit_close(&kit);
}
END_TEST

START_TEST(save_limit_of_saves_in_flight)
{
    struct kit_owner *worker;
    struct kit_entry entry;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 512, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    for (uint32_t i = 0; i < KVC_SESSION_SAVES_MAX; i++)
        kit_save(&kit, worker, i, 1, &save);
    entry = kit_entry(&kit, 1000, 1);
    ck_assert_int_eq(kit_save_open(&kit, worker, &entry, 1, &save), KVC_E_LIMIT);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_BOTH_WAYS("store/refused", CHECK_UNIT_S, S5_refusals_name_the_field_and_change_nothing,
                     S5_duplicate_keys_and_slices_are_refused, save_limit_of_saves_in_flight)
