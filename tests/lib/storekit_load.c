/* Lookups, leases and loads. */
#include "tests/lib/storekit.h"

#include <check.h>
#include <stddef.h>

#include "kernels/pack.h"
#include "tests/lib/check_main.h"

static kvc_status lookup(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
                         bool probe, struct store_lookup_result *result)
{
    static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];
    struct store_lookup_part part = {
        .part = kit->part, .epoch = kit->epoch, .keys = keys, .n_keys = n};
    struct store_lookup request = {.probe = probe, .parts = &part, .n_parts = 1};

    kit_keys(first, n, keys);
    return store_lookup(kit->store, owner->owner, &request, result, &kit->why);
}

uint32_t kit_lookup(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
                    uint64_t *lease)
{
    struct store_lookup_result result;

    ck_assert_int_eq(lookup(kit, owner, first, n, false, &result), KVC_OK);
    ck_assert_int_eq(result.lease != 0, result.count > 0);
    kit_check(kit);
    *lease = result.lease;
    return result.count;
}

uint32_t kit_probe(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n)
{
    struct store_lookup_result result;

    ck_assert_int_eq(lookup(kit, owner, first, n, true, &result), KVC_OK);
    return result.count;
}

static struct kit_owner *anybody(struct kit *kit)
{
    for (uint32_t i = 0; i < kit->n_owners; i++)
        if (kit->owners[i].owner && kit->owners[i].page)
            return &kit->owners[i];
    ck_abort_msg("nobody is connected");
}

bool kit_has(struct kit *kit, uint32_t key)
{
    return kit_probe(kit, anybody(kit), key, 1) == 1;
}

bool kit_in_tier(struct kit *kit, uint32_t key, enum tier_kind tier)
{
    const struct table *table = store_table(kit->store);
    const struct table_tier *geometry = &table_header((struct table *)table)->tiers[tier];
    uint8_t bytes[KVC_KEY_BYTES];

    kit_key(key, bytes);
    for (uint32_t e = 0; e < geometry->extents; e++) {
        for (uint32_t i = 0; i < geometry->extent_bytes / kit->slot_bytes; i++) {
            const struct table_slot *record =
                table_slot(table, tier, e * geometry->slots_per_extent + i);

            if (record->state == SLOT_READY && memcmp(record->key, bytes, sizeof(bytes)) == 0)
                return true;
        }
    }
    return false;
}

void kit_release(struct kit *kit, struct kit_owner *owner, uint64_t lease)
{
    ck_assert_int_eq(store_release(kit->store, owner->owner, lease, &kit->why), KVC_OK);
    kit_check(kit);
}

kvc_status kit_try_load(struct kit *kit, struct kit_owner *owner, const struct store_load *request,
                        struct kit_load *load)
{
    kvc_status status;

    memset(load, 0, sizeof(*load));
    load->owner = owner;
    load->first = request->first;
    load->count = request->count;
    if (kit_daemon_copies()) {
        load->copy = kit_take_copy(kit);
        status = store_load_by_daemon(kit->store, owner->owner, request, load->locations,
                                      &load->copy->load, &kit->why);
    } else {
        status = store_load(kit->store, owner->owner, request, load->locations, &load->word,
                            &load->number, &kit->why);
    }
    kit_check(kit);
    return status;
}

void kit_load(struct kit *kit, struct kit_owner *owner, uint64_t lease, uint32_t from,
              uint32_t first_key, uint32_t count, struct kit_load *load)
{
    struct store_load request = {
        .lease = lease, .part = kit->part, .epoch = kit->epoch, .first = from, .count = count};

    ck_assert_int_eq(kit_try_load(kit, owner, &request, load), KVC_OK);
    load->first = first_key;
}

void kit_verify(struct kit *kit, const struct kit_load *load)
{
    uint8_t *expected = calloc(1, kit->slot_bytes);

    for (uint32_t i = 0; i < load->count; i++) {
        const struct store_location *location = &load->locations[i];

        kit_fill(kit, load->first + i, expected);
        ck_assert(location->checked);
        ck_assert_uint_eq(location->checksum, kit_checksum(kit, expected));
        ck_assert_int_eq(
            memcmp(kit->memory[location->tier] + location->offset, expected, kit->slot_bytes), 0);
    }
    free(expected);
}

kvc_status kit_try_load_part(struct kit *kit, struct kit_owner *owner, uint64_t lease,
                             uint32_t first, uint32_t count, struct kit_load *load)
{
    const struct store_load request = {
        .lease = lease, .part = kit->part, .epoch = kit->epoch, .first = first, .count = count};
    kvc_status status = kit_try_load(kit, owner, &request, load);

    if (status != KVC_OK)
        for (uint32_t i = 0; i < KIT_KEYS; i++)
            ck_assert_uint_eq(load->locations[i].generation, 0);
    return status;
}

void kit_close_load(struct kit *kit, const struct kit_load *load)
{
    if (load->copy) {
        store_load_copied(kit->store, load->copy->load, true);
        load->copy->load = NULL;
    } else {
        kit_word(kit, load->owner, load->word, load->number);
    }
    kit_tick(kit);
}

struct kit_owner *kit_open_with(struct kit *kit, uint32_t gpu_slots, uint32_t host_slots,
                                uint32_t blocks)
{
    struct kit_owner *worker;

    kit_open(kit, &(struct kit_config){.gpu_slots = gpu_slots, .host_slots = host_slots});
    worker = kit_worker(kit);
    if (blocks > 0)
        kit_put(kit, worker, 0, blocks);
    return worker;
}

void kit_hit(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n)
{
    uint64_t lease;

    ck_assert_uint_eq(kit_lookup(kit, owner, first, n, &lease), n);
    kit_release(kit, owner, lease);
}
