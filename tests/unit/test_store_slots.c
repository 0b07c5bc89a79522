/* Slots of a tier: who gets which, how extents change their size, and that counts stay exact. */
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/store/slots.h"
#include "tests/lib/check_main.h"

#define MIB    (1ull << 20)
#define EXTENT (2 * MIB)

/* A host tier of `extents` extents of 2 MiB. */
struct world {
    struct table *table;
    struct slots *slots;
};

static void world_open(struct world *w, uint32_t extents)
{
    const uint64_t budget[TIER_COUNT] = {0, extents * EXTENT};

    ck_assert_int_eq(table_create(budget, 1, &w->table), KVC_OK);
    ck_assert_int_eq(slots_create(w->table, TIER_HOST, &w->slots), KVC_OK);
}

static void world_close(struct world *w)
{
    slots_destroy(w->slots);
    table_destroy(w->table);
}

static void check(const struct world *w)
{
    const char *why = slots_check(w->slots);

    ck_assert_msg(!why, "%s", why);
}

static struct slots_count count(const struct world *w)
{
    struct slots_count c;

    slots_count(w->slots, &c);
    return c;
}

/* SLOT_NONE when there is none. */
static uint32_t take(struct world *w, uint32_t tenant, uint64_t bytes)
{
    uint32_t number = SLOT_NONE;

    if (slots_take(w->slots, tenant, bytes, NULL, &number))
        table_slot_set_state(slots_record(w->slots, number), SLOT_FILLING);
    return number;
}

static void give(struct world *w, uint32_t number)
{
    table_slot_set_state(slots_record(w->slots, number), SLOT_FREE);
    slots_give(w->slots, number);
}

START_TEST(test_grant)
{
    struct world w;

    world_open(&w, 10);
    ck_assert_uint_eq(take(&w, 0, 4096), SLOT_NONE);
    ck_assert_uint_eq(slots_grant(w.slots, 0, 3), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 0, 3), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 0, 2), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 1, 0), 0);
    ck_assert_uint_eq(slots_grant(w.slots, 1, UINT32_MAX), 7);
    ck_assert_uint_eq(slots_grant(w.slots, 0, UINT32_MAX), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 2, 1), 0);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_a_tier_without_extents)
{
    const uint64_t budget[TIER_COUNT] = {0, 2 * MIB};
    struct table *table;
    struct slots *slots;
    struct slots_count c;
    uint32_t number;

    ck_assert_int_eq(table_create(budget, 1, &table), KVC_OK);
    ck_assert_int_eq(slots_create(table, TIER_GPU, &slots), KVC_OK);
    ck_assert_uint_eq(slots_grant(slots, 0, UINT32_MAX), 0);
    ck_assert(!slots_take(slots, 0, 4096, NULL, &number));
    ck_assert(!slots_take(slots, 0, 4 * MIB, NULL, &number));
    ck_assert_uint_eq(slots_free_count(slots, 0, 4096), 0);
    ck_assert_uint_eq(slots_free_count(slots, 0, 4 * MIB), 0);
    slots_count(slots, &c);
    ck_assert_uint_eq(c.bytes, 0);
    ck_assert_ptr_null(slots_check(slots));
    slots_destroy(slots);
    slots_destroy(NULL);
    table_destroy(table);
}
END_TEST

/* Bytes in use are slots in use times their size; what an extent cannot hold is not a slot. */
START_TEST(test_counts_are_exact)
{
    const uint64_t size = 3 * 4096 + 512; /* 163 in an extent, and a rest */
    struct world w;
    uint32_t numbers[400];

    world_open(&w, 4);
    slots_grant(w.slots, 0, 2);
    ck_assert_uint_eq(count(&w).bytes, 4 * EXTENT);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 2 * 163);
    for (uint32_t i = 0; i < 2 * 163; i++) {
        numbers[i] = take(&w, 0, size);
        ck_assert_uint_ne(numbers[i], SLOT_NONE);
        ck_assert_uint_eq(count(&w).used_slots, i + 1);
        ck_assert_uint_eq(count(&w).used_bytes, (i + 1) * size);
        ck_assert_uint_eq(count(&w).slots, i < 163 ? 163 : 2 * 163);
        ck_assert_uint_eq(slots_bytes(w.slots, numbers[i]), size);
        ck_assert_uint_eq(slots_offset(w.slots, numbers[i]), i / 163 * EXTENT + i % 163 * size);
        ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 2 * 163 - i - 1);
    }
    check(&w);
    ck_assert_uint_eq(take(&w, 0, size), SLOT_NONE);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, 4096), 0);
    for (uint32_t i = 0; i < 2 * 163; i++)
        give(&w, numbers[i]);
    ck_assert_uint_eq(count(&w).slots, 0);
    ck_assert_uint_eq(count(&w).used_bytes, 0);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_generation_rises_with_each_use)
{
    struct world w;
    uint32_t number, before = 0;

    world_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    for (uint32_t i = 0; i < 5; i++) {
        /* Also when the extent had another slot size in between. */
        number = take(&w, 0, i % 2 ? 8192 : 4096);
        ck_assert_uint_eq(number, 0);
        ck_assert_uint_eq(slots_record(w.slots, 0)->generation, before + 1);
        before++;
        give(&w, number);
    }
    slots_record(w.slots, 0)->generation = UINT32_MAX;
    number = take(&w, 0, 4096);
    ck_assert_uint_eq(slots_record(w.slots, number)->generation, 1); /* 0 means none */
    give(&w, number);
    world_close(&w);
}
END_TEST

START_TEST(test_partly_filled_extents_first)
{
    struct world w;
    uint32_t a[512], number;

    world_open(&w, 3);
    slots_grant(w.slots, 0, UINT32_MAX);
    for (uint32_t i = 0; i < 512; i++)
        a[i] = take(&w, 0, 4096);
    number = take(&w, 0, 8192);
    ck_assert_uint_eq(slots_extent(w.slots, number), 1);
    give(&w, a[100]);
    ck_assert_uint_eq(take(&w, 0, 4096), a[100]);
    ck_assert_uint_eq(slots_extent(w.slots, take(&w, 0, 8192)), 1);
    ck_assert_uint_eq(slots_extent(w.slots, take(&w, 0, 4096)), 2);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_an_empty_extent_changes_its_size)
{
    struct world w;
    uint32_t a, b;

    world_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    a = take(&w, 0, 4096);
    b = take(&w, 0, 4096);
    ck_assert_uint_eq(take(&w, 0, MIB), SLOT_NONE);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, MIB), 0);
    give(&w, a);
    ck_assert_uint_eq(take(&w, 0, MIB), SLOT_NONE);
    give(&w, b);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 0)->slot_bytes, 0);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, MIB), 2);
    ck_assert_uint_ne(take(&w, 0, MIB), SLOT_NONE);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 0)->slot_bytes, MIB);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_tenants_never_share_an_extent)
{
    struct world w;
    uint32_t owner[4] = {0}, number;

    world_open(&w, 4);
    slots_grant(w.slots, 5, 2);
    slots_grant(w.slots, 9, 2);
    for (uint32_t i = 0; i < 2 * 1024; i++) {
        uint32_t tenant = i % 2 ? 5 : 9, extent;

        number = take(&w, tenant, 4096);
        ck_assert_uint_ne(number, SLOT_NONE);
        extent = slots_extent(w.slots, number);
        ck_assert(owner[extent] == 0 || owner[extent] == tenant);
        owner[extent] = tenant;
    }
    ck_assert_uint_eq(take(&w, 5, 4096), SLOT_NONE);
    ck_assert_uint_eq(take(&w, 9, 4096), SLOT_NONE);
    check(&w);
    world_close(&w);
}
END_TEST

/* A session is given slots of extents that it has mapped, and of no others. */
START_TEST(test_mapped)
{
    struct world w;
    uint64_t mapped[2] = {0};
    uint32_t number;

    world_open(&w, 70);
    slots_grant(w.slots, 0, UINT32_MAX);
    ck_assert(!slots_take(w.slots, 0, 4096, mapped, &number));
    mapped[1] = 1u << 2; /* extent 66 */
    for (uint32_t i = 0; i < 512; i++) {
        ck_assert(slots_take(w.slots, 0, 4096, mapped, &number));
        ck_assert_uint_eq(slots_extent(w.slots, number), 66);
        ck_assert(slots_is_mapped(w.slots, number, mapped));
        table_slot_set_state(slots_record(w.slots, number), SLOT_FILLING);
    }
    ck_assert(!slots_take(w.slots, 0, 4096, mapped, &number));
    number = take(&w, 0, 4096);
    ck_assert(!slots_is_mapped(w.slots, number, mapped));
    ck_assert(slots_is_mapped(w.slots, number, NULL));
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_large_blocks)
{
    const uint64_t size = 2 * EXTENT + 512; /* three extents */
    struct world w;
    uint32_t a, b, number;
    struct slots_count c;

    world_open(&w, 8);
    slots_grant(w.slots, 0, 7);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 2);
    a = take(&w, 0, size);
    b = take(&w, 0, size);
    ck_assert_uint_eq(slots_offset(w.slots, a), 0);
    ck_assert_uint_eq(slots_offset(w.slots, b), 3 * EXTENT);
    ck_assert_uint_eq(slots_bytes(w.slots, b), size);
    ck_assert_uint_eq(take(&w, 0, size), SLOT_NONE);
    c = count(&w);
    ck_assert_uint_eq(c.used_bytes, 2 * size);
    ck_assert_uint_eq(c.slots, 2);
    ck_assert_uint_eq(c.used_slots, 2);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 4)->state, EXTENT_TAIL);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 4)->head, 3);
    check(&w);
    /* The last extent of the tenant is all that small blocks can have. */
    number = take(&w, 0, MIB);
    ck_assert_uint_eq(slots_extent(w.slots, number), 6);
    give(&w, a);
    check(&w);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 1);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, MIB), 1 + 3 * 2);
    /* Not adjacent: the middle one is in use. */
    a = take(&w, 0, 2 * MIB);
    ck_assert_uint_ne(take(&w, 0, MIB), SLOT_NONE);
    ck_assert_uint_ne(take(&w, 0, 2 * MIB), SLOT_NONE);
    ck_assert_uint_eq(take(&w, 0, size), SLOT_NONE);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_large_blocks_need_all_extents_mapped)
{
    struct world w;
    uint64_t mapped[1] = {0};
    uint32_t number;

    world_open(&w, 6);
    slots_grant(w.slots, 0, UINT32_MAX);
    mapped[0] = 0x2d; /* 0, 2, 3, 5 */
    ck_assert(slots_take(w.slots, 0, 2 * EXTENT, mapped, &number));
    ck_assert_uint_eq(slots_extent(w.slots, number), 2);
    ck_assert(slots_is_mapped(w.slots, number, mapped));
    mapped[0] = 0x25;
    ck_assert(!slots_is_mapped(w.slots, number, mapped)); /* its tail is not */
    ck_assert(!slots_take(w.slots, 0, 2 * EXTENT, mapped, &number));
    world_close(&w);
}
END_TEST

START_TEST(test_larger_than_the_tier)
{
    struct world w;

    world_open(&w, 3);
    slots_grant(w.slots, 0, UINT32_MAX);
    ck_assert_uint_eq(take(&w, 0, 3 * EXTENT + 512), SLOT_NONE);
    ck_assert_uint_eq(take(&w, 0, KVC_BLOCK_BYTES_MAX * 1024), SLOT_NONE);
    ck_assert_uint_ne(take(&w, 0, 3 * EXTENT), SLOT_NONE);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_lost_extents_are_not_used)
{
    struct world w;

    world_open(&w, 3);
    table_extent(w.table, TIER_HOST, 1)->state = EXTENT_LOST;
    ck_assert_uint_eq(slots_grant(w.slots, 0, UINT32_MAX), 2);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, EXTENT), 2);
    ck_assert_uint_eq(take(&w, 0, 2 * EXTENT), SLOT_NONE);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_ne(slots_extent(w.slots, take(&w, 0, EXTENT)), 1);
    ck_assert_uint_eq(take(&w, 0, EXTENT), SLOT_NONE);
    check(&w);
    world_close(&w);
}
END_TEST

/* An extent has as many classes of slot sizes as it has extents, at worst. */
START_TEST(test_every_extent_another_size)
{
    struct world w;
    uint32_t numbers[40];

    world_open(&w, 40);
    slots_grant(w.slots, 0, UINT32_MAX);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 40; i++) {
            numbers[i] = take(&w, 0, 4096 + (i + round) * 512);
            ck_assert_uint_ne(numbers[i], SLOT_NONE);
        }
        ck_assert_uint_eq(take(&w, 0, MIB), SLOT_NONE);
        check(&w);
        for (uint32_t i = 0; i < 40; i++)
            give(&w, numbers[i]);
        check(&w);
    }
    world_close(&w);
}
END_TEST

START_TEST(test_create_out_of_memory)
{
    struct world w;
    struct slots *slots = NULL;
    kvc_status status = KVC_E_NO_MEMORY;
    uint32_t k;

    world_open(&w, 2);
    for (k = 0; status; k++) {
        fault_arm("mem.alloc", k, 1);
        status = slots_create(w.table, TIER_HOST, &slots);
        fault_off("*");
        ck_assert(status == KVC_OK || (status == KVC_E_NO_MEMORY && !slots));
    }
    ck_assert_uint_eq(k, 4);
    slots_destroy(slots);
    world_close(&w);
}
END_TEST

/* Taking and giving need no memory at all, so they cannot fail for want of it. */
START_TEST(test_no_allocation_on_the_way)
{
    struct world w;
    uint32_t numbers[600];
    uint64_t live;

    world_open(&w, 4);
    live = mem_live_count();
    fault_arm("mem.alloc", 0, UINT32_MAX);
    slots_grant(w.slots, 0, UINT32_MAX);
    for (uint32_t i = 0; i < 600; i++)
        numbers[i] = take(&w, 0, i % 2 ? 4096 : 8192);
    for (uint32_t i = 0; i < 600; i++)
        give(&w, numbers[i]);
    ck_assert_uint_eq(fault_passed("mem.alloc"), 0);
    ck_assert_uint_eq(mem_live_count(), live);
    fault_off("*");
    world_close(&w);
}
END_TEST

START_TEST(test_fault_switch)
{
    struct world w;

    world_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    fault_arm("slots.take", 1, 1);
    ck_assert_uint_ne(take(&w, 0, 4096), SLOT_NONE);
    ck_assert_uint_eq(take(&w, 0, 4096), SLOT_NONE);
    ck_assert_uint_ne(take(&w, 0, 4096), SLOT_NONE);
    check(&w);
    world_close(&w);
}
END_TEST

/* What a published slot says of its bytes may not change under those who were told of it. */
START_TEST(test_check_sees_a_published_slot_change)
{
    struct world w;
    struct table_slot *record;

    world_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    record = slots_record(w.slots, take(&w, 0, 4096));
    record->checksum = 1;
    table_slot_set_state(record, SLOT_READY);
    record->last_use = 9;
    record->loads = 3;
    check(&w);
    record->checksum = 2;
    ck_assert_str_eq(slots_check(w.slots), "a slot changed after it was published");
    record->checksum = 1;
    record->key[3] = 1;
    ck_assert_ptr_nonnull(slots_check(w.slots));
    world_close(&w);
}
END_TEST

/* ---- random use against a plain list of what was taken ---- */

#define MODEL_MAX 4000

struct model {
    struct world w;
    uint64_t random;
    uint32_t n;
    struct {
        uint32_t number, tenant;
        uint64_t bytes;
    } taken[MODEL_MAX];
};

static uint32_t pick(struct model *m, uint32_t below)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (uint32_t)(m->random >> 16) % below;
}

/* No two slots share a byte, and all lie inside extents of their tenant. */
static void check_places(const struct model *m)
{
    static uint8_t unit[64 * EXTENT / 512]; /* bytes / KVC_SLOT_ALIGN */
    uint64_t bytes = 0;

    memset(unit, 0, sizeof(unit));
    for (uint32_t i = 0; i < m->n; i++) {
        uint64_t offset = slots_offset(m->w.slots, m->taken[i].number);
        uint32_t extent = slots_extent(m->w.slots, m->taken[i].number);

        ck_assert_uint_eq(slots_bytes(m->w.slots, m->taken[i].number), m->taken[i].bytes);
        ck_assert_uint_le(offset + m->taken[i].bytes, 64 * EXTENT);
        ck_assert_uint_eq(table_extent(m->w.table, TIER_HOST, extent)->tenant, m->taken[i].tenant);
        ck_assert_ptr_null(memchr(&unit[offset / 512], 1, m->taken[i].bytes / 512));
        memset(&unit[offset / 512], 1, m->taken[i].bytes / 512);
        bytes += m->taken[i].bytes;
    }
    ck_assert_uint_eq(count(&m->w).used_bytes, bytes);
    ck_assert_uint_eq(count(&m->w).used_slots, m->n);
}

static void model_take(struct model *m)
{
    static const uint64_t sizes[] = {4096, 4096, 4608, 65536, MIB, EXTENT, 2 * EXTENT, 3 * MIB};
    uint32_t tenant = pick(m, 3);
    uint64_t bytes = sizes[pick(m, sizeof(sizes) / sizeof(sizes[0]))];
    uint64_t free = slots_free_count(m->w.slots, tenant, bytes);
    uint32_t number;

    if (m->n == MODEL_MAX)
        return;
    number = take(&m->w, tenant, bytes);
    ck_assert((number != SLOT_NONE) == (free > 0));
    if (number == SLOT_NONE)
        return;
    /* A large block may be put where it parts a run that two would have fitted in, or not. */
    if (bytes <= EXTENT)
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
    give(&m->w, m->taken[i].number);
    m->taken[i] = m->taken[--m->n];
}

/* What a daemon that attaches would see: everything again from the table. */
static void model_recreate(struct model *m)
{
    struct slots_count before = count(&m->w), after;

    slots_destroy(m->w.slots);
    ck_assert_int_eq(slots_create(m->w.table, TIER_HOST, &m->w.slots), KVC_OK);
    after = count(&m->w);
    ck_assert_mem_eq(&before, &after, sizeof(before));
}

START_TEST(test_random)
{
    struct model *m = calloc(1, sizeof(*m));
    uint32_t steps = check_long() ? 40000 : 8000;

    m->random = 88172645463325252ull + _i;
    world_open(&m->w, 64);
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
            check(&m->w);
        if (step % 331 == 0)
            check_places(m);
        if (step % 613 == 0)
            model_recreate(m);
    }
    while (m->n)
        model_give(m);
    check(&m->w);
    ck_assert_uint_eq(count(&m->w).slots, 0);
    for (uint32_t tenant = 0; tenant < 3; tenant++)
        ck_assert_uint_eq(slots_free_count(m->w.slots, tenant, EXTENT), 20);
    world_close(&m->w);
    free(m);
}
END_TEST

CHECK_MAIN_LOOPS("store/slots", CHECK_LIFE_S, {test_grant, 0, 0},
                 {test_a_tier_without_extents, 0, 0}, {test_counts_are_exact, 0, 0},
                 {test_generation_rises_with_each_use, 0, 0},
                 {test_partly_filled_extents_first, 0, 0},
                 {test_an_empty_extent_changes_its_size, 0, 0},
                 {test_tenants_never_share_an_extent, 0, 0}, {test_mapped, 0, 0},
                 {test_large_blocks, 0, 0}, {test_large_blocks_need_all_extents_mapped, 0, 0},
                 {test_larger_than_the_tier, 0, 0}, {test_lost_extents_are_not_used, 0, 0},
                 {test_every_extent_another_size, 0, 0}, {test_create_out_of_memory, 0, 0},
                 {test_no_allocation_on_the_way, 0, 0}, {test_fault_switch, 0, 0},
                 {test_check_sees_a_published_slot_change, 0, 0}, {test_random, 0, 7})
