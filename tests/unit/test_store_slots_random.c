/* Slots of a tier in random use, against a plain list of what was taken. */
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/random.h"
#include "tests/lib/slotkit.h"

#define MODEL_MAX 4000

struct model {
    struct slotkit w;
    uint64_t random;
    uint32_t n;
    struct {
        uint32_t number, tenant;
        uint64_t bytes;
    } taken[MODEL_MAX];
};

static uint32_t pick(struct model *m, uint32_t below)
{
    return (uint32_t)(random_next(&m->random) >> 16) % below;
}

/* No two slots share a byte, and all lie inside extents of their tenant. */
static void check_places(const struct model *m)
{
    static uint8_t unit[64 * SLOTKIT_EXTENT / 512]; /* bytes / KVC_SLOT_ALIGN */
    uint64_t bytes = 0;

    memset(unit, 0, sizeof(unit));
    for (uint32_t i = 0; i < m->n; i++) {
        uint64_t offset = slots_offset(m->w.slots, m->taken[i].number);
        uint32_t extent = slots_extent(m->w.slots, m->taken[i].number);

        ck_assert_uint_eq(slots_bytes(m->w.slots, m->taken[i].number), m->taken[i].bytes);
        ck_assert_uint_le(offset + m->taken[i].bytes, 64 * SLOTKIT_EXTENT);
        ck_assert_uint_eq(table_extent(m->w.table, TIER_HOST, extent)->tenant, m->taken[i].tenant);
        ck_assert_ptr_null(memchr(&unit[offset / 512], 1, m->taken[i].bytes / 512));
        memset(&unit[offset / 512], 1, m->taken[i].bytes / 512);
        bytes += m->taken[i].bytes;
    }
    ck_assert_uint_eq(slotkit_count(&m->w).used_bytes, bytes);
    ck_assert_uint_eq(slotkit_count(&m->w).used_slots, m->n);
}

static void model_take(struct model *m)
{
    static const uint64_t sizes[] = {
        4096, 4096, 4608, 65536, SLOTKIT_MIB, SLOTKIT_EXTENT, 2 * SLOTKIT_EXTENT, 3 * SLOTKIT_MIB};
    uint32_t tenant = pick(m, 3);
    uint64_t bytes = sizes[pick(m, sizeof(sizes) / sizeof(sizes[0]))];
    uint64_t free = slots_free_count(m->w.slots, tenant, bytes);
    uint32_t number;

    if (m->n == MODEL_MAX)
        return;
    number = slotkit_take(&m->w, tenant, bytes);
    ck_assert((number != SLOT_NONE) == (free > 0));
    if (number == SLOT_NONE)
        return;
    /* A large block may be put where it parts a run that two would have fitted in, or not. */
    if (bytes <= SLOTKIT_EXTENT)
        ck_assert_uint_eq(slots_free_count(m->w.slots, tenant, bytes), free - 1);
    m->taken[m->n].number = number;
    m->taken[m->n].tenant = tenant;
    m->taken[m->n++].bytes = bytes;
}

static void model_give(struct model *m)
{
    uint32_t i;

    if (!m->n)
        return;
    i = pick(m, m->n);
    slotkit_give(&m->w, m->taken[i].number);
    m->taken[i] = m->taken[--m->n];
}

/* What a daemon that attaches would see: everything again from the table. */
static void model_recreate(struct model *m)
{
    struct slots_count before = slotkit_count(&m->w), after;

    slots_destroy(m->w.slots);
    ck_assert_int_eq(slots_create(m->w.table, TIER_HOST, &m->w.slots), KVC_OK);
    after = slotkit_count(&m->w);
    ck_assert_mem_eq(&before, &after, sizeof(before));
}

START_TEST(test_random)
{
    struct model *m = calloc(1, sizeof(*m));
    uint32_t steps = check_long() ? 40000 : 8000;

    m->random = 88172645463325252ull + _i;
    slotkit_open(&m->w, 64);
    for (uint32_t tenant = 0; tenant < 3; tenant++)
        slots_grant(m->w.slots, tenant, 20);
    for (uint32_t step = 0; step < steps; step++) {
        /* It fills and empties in turn, so that full, mixed and empty tiers all come up. */
        bool filling = step / 1000 % 2 == 0;

        if (pick(m, 10) < (filling ? 8 : 3))
            model_take(m);
        else
            model_give(m);
        if (step % 97 == 0)
            slotkit_check(&m->w);
        if (step % 331 == 0)
            check_places(m);
        if (step % 613 == 0)
            model_recreate(m);
    }
    while (m->n)
        model_give(m);
    slotkit_check(&m->w);
    ck_assert_uint_eq(slotkit_count(&m->w).slots, 0);
    for (uint32_t tenant = 0; tenant < 3; tenant++)
        ck_assert_uint_eq(slots_free_count(m->w.slots, tenant, SLOTKIT_EXTENT), 20);
    slotkit_close(&m->w);
    free(m);
}
END_TEST

CHECK_MAIN_LOOPS("store/slots_random", CHECK_LIFE_S, {test_random, 0, 7})
