#include "tests/lib/slotkit.h"

#include <check.h>

void slotkit_open(struct slotkit *w, uint32_t extents)
{
    const uint64_t budget[TIER_COUNT] = {0, extents * SLOTKIT_EXTENT};

    ck_assert_int_eq(table_create(budget, 1, &w->table), KVC_OK);
    ck_assert_int_eq(slots_create(w->table, TIER_HOST, &w->slots), KVC_OK);
}

void slotkit_close(struct slotkit *w)
{
    slots_destroy(w->slots);
    table_destroy(w->table);
}

void slotkit_check(const struct slotkit *w)
{
    const char *why = slots_check(w->slots);

    ck_assert_msg(!why, "%s", why);
}

struct slots_count slotkit_count(const struct slotkit *w)
{
    struct slots_count c;

    slots_count(w->slots, &c);
    return c;
}

uint32_t slotkit_take(struct slotkit *w, uint32_t tenant, uint64_t bytes)
{
    uint32_t number = SLOT_NONE;

    if (slots_take(w->slots, tenant, bytes, NULL, &number))
        table_slot_set_state(slots_record(w->slots, number), SLOT_FILLING);
    return number;
}

void slotkit_give(struct slotkit *w, uint32_t number)
{
    table_slot_set_state(slots_record(w->slots, number), SLOT_FREE);
    slots_give(w->slots, number);
}
