#include "tests/lib/tablekit.h"

#include <check.h>
#include <string.h>

const uint64_t tablekit_small[TIER_COUNT] = {10 * TABLEKIT_MIB, 20 * TABLEKIT_MIB};

struct table *tablekit_create(const uint64_t budget[TIER_COUNT])
{
    struct table *table = NULL;

    ck_assert_int_eq(table_create(budget, 7, &table), KVC_OK);
    return table;
}

/* ---- shape ---- */

uint32_t tablekit_tenant(struct table *table, const char *name, uint32_t uid)
{
    uint32_t index = TABLE_NONE;

    ck_assert_int_eq(table_add_tenant(table, name, uid, &index), KVC_OK);
    return index;
}

struct table_part tablekit_part(struct table *table, uint32_t slice_bytes)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {9};
    struct table_part part = {.tenant = tablekit_tenant(table, "p", 0)};

    ck_assert_int_eq(table_add_namespace(table, part.tenant, digest, "model", &part.namespace_),
                     KVC_OK);
    ck_assert_int_eq(table_add_layout(table, 16, &slice_bytes, 1, NULL, &part.layout), KVC_OK);
    return part;
}

void tablekit_fill(struct slots *slots, uint32_t number, uint32_t part, uint8_t key)
{
    struct table_slot *record = slots_record(slots, number);

    memset(record->key, key, sizeof(record->key));
    record->part = (uint16_t)part;
    record->epoch = 1;
    record->checksum = key * 77u;
    record->session = 1;
    record->last_use = 5;
    record->flags = SLOT_CHECKED;
    table_slot_set_state(record, SLOT_FILLING);
}
