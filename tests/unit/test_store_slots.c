/* Slots of a tier: who gets which, how extents change their size, and that counts stay exact. */
#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "tests/lib/check_main.h"
#include "tests/lib/slotkit.h"

START_TEST(test_grant)
{
    struct slotkit w;

    slotkit_open(&w, 10);
    ck_assert_uint_eq(slotkit_take(&w, 0, 4096), SLOT_NONE);
    ck_assert_uint_eq(slots_grant(w.slots, 0, 3), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 0, 3), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 0, 2), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 1, 0), 0);
    ck_assert_uint_eq(slots_grant(w.slots, 1, UINT32_MAX), 7);
    ck_assert_uint_eq(slots_grant(w.slots, 0, UINT32_MAX), 3);
    ck_assert_uint_eq(slots_grant(w.slots, 2, 1), 0);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_a_tier_without_extents)
{
    const uint64_t budget[TIER_COUNT] = {0, 2 * SLOTKIT_MIB};
    struct table *table;
    struct slots *slots;
    struct slots_count c;
    uint32_t number;

    ck_assert_int_eq(table_create(budget, 1, &table), KVC_OK);
    ck_assert_int_eq(slots_create(table, TIER_GPU, &slots), KVC_OK);
    ck_assert_uint_eq(slots_grant(slots, 0, UINT32_MAX), 0);
    ck_assert(!slots_take(slots, 0, 4096, NULL, &number));
    ck_assert(!slots_take(slots, 0, 4 * SLOTKIT_MIB, NULL, &number));
    ck_assert_uint_eq(slots_free_count(slots, 0, 4096), 0);
    ck_assert_uint_eq(slots_free_count(slots, 0, 4 * SLOTKIT_MIB), 0);
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
    struct slotkit w;
    uint32_t numbers[400];

    slotkit_open(&w, 4);
    slots_grant(w.slots, 0, 2);
    ck_assert_uint_eq(slotkit_count(&w).bytes, 4 * SLOTKIT_EXTENT);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 2 * 163);
    for (uint32_t i = 0; i < 2 * 163; i++) {
        numbers[i] = slotkit_take(&w, 0, size);
        ck_assert_uint_ne(numbers[i], SLOT_NONE);
        ck_assert_uint_eq(slotkit_count(&w).used_slots, i + 1);
        ck_assert_uint_eq(slotkit_count(&w).used_bytes, (i + 1) * size);
        ck_assert_uint_eq(slotkit_count(&w).slots, i < 163 ? 163 : 2 * 163);
        ck_assert_uint_eq(slots_bytes(w.slots, numbers[i]), size);
        ck_assert_uint_eq(slots_offset(w.slots, numbers[i]),
                          i / 163 * SLOTKIT_EXTENT + i % 163 * size);
        ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 2 * 163 - i - 1);
    }
    slotkit_check(&w);
    ck_assert_uint_eq(slotkit_take(&w, 0, size), SLOT_NONE);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, 4096), 0);
    for (uint32_t i = 0; i < 2 * 163; i++)
        slotkit_give(&w, numbers[i]);
    ck_assert_uint_eq(slotkit_count(&w).slots, 0);
    ck_assert_uint_eq(slotkit_count(&w).used_bytes, 0);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_generation_rises_with_each_use)
{
    struct slotkit w;
    uint32_t number, before = 0;

    slotkit_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    for (uint32_t i = 0; i < 5; i++) {
        /* Also when the extent had another slot size in between. */
        number = slotkit_take(&w, 0, i % 2 ? 8192 : 4096);
        ck_assert_uint_eq(number, 0);
        ck_assert_uint_eq(slots_record(w.slots, 0)->generation, before + 1);
        before++;
        slotkit_give(&w, number);
    }
    slots_record(w.slots, 0)->generation = UINT32_MAX;
    number = slotkit_take(&w, 0, 4096);
    ck_assert_uint_eq(slots_record(w.slots, number)->generation, 1); /* 0 means none */
    slotkit_give(&w, number);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_partly_filled_extents_first)
{
    struct slotkit w;
    uint32_t a[512], number;

    slotkit_open(&w, 3);
    slots_grant(w.slots, 0, UINT32_MAX);
    for (uint32_t i = 0; i < 512; i++)
        a[i] = slotkit_take(&w, 0, 4096);
    number = slotkit_take(&w, 0, 8192);
    ck_assert_uint_eq(slots_extent(w.slots, number), 1);
    slotkit_give(&w, a[100]);
    ck_assert_uint_eq(slotkit_take(&w, 0, 4096), a[100]);
    ck_assert_uint_eq(slots_extent(w.slots, slotkit_take(&w, 0, 8192)), 1);
    ck_assert_uint_eq(slots_extent(w.slots, slotkit_take(&w, 0, 4096)), 2);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_an_empty_extent_changes_its_size)
{
    struct slotkit w;
    uint32_t a, b;

    slotkit_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    a = slotkit_take(&w, 0, 4096);
    b = slotkit_take(&w, 0, 4096);
    ck_assert_uint_eq(slotkit_take(&w, 0, SLOTKIT_MIB), SLOT_NONE);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, SLOTKIT_MIB), 0);
    slotkit_give(&w, a);
    ck_assert_uint_eq(slotkit_take(&w, 0, SLOTKIT_MIB), SLOT_NONE);
    slotkit_give(&w, b);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 0)->slot_bytes, 0);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, SLOTKIT_MIB), 2);
    ck_assert_uint_ne(slotkit_take(&w, 0, SLOTKIT_MIB), SLOT_NONE);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 0)->slot_bytes, SLOTKIT_MIB);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_tenants_never_share_an_extent)
{
    struct slotkit w;
    uint32_t owner[4] = {0}, number;

    slotkit_open(&w, 4);
    slots_grant(w.slots, 5, 2);
    slots_grant(w.slots, 9, 2);
    for (uint32_t i = 0; i < 2 * 1024; i++) {
        uint32_t tenant = i % 2 ? 5 : 9, extent;

        number = slotkit_take(&w, tenant, 4096);
        ck_assert_uint_ne(number, SLOT_NONE);
        extent = slots_extent(w.slots, number);
        ck_assert(owner[extent] == 0 || owner[extent] == tenant);
        owner[extent] = tenant;
    }
    ck_assert_uint_eq(slotkit_take(&w, 5, 4096), SLOT_NONE);
    ck_assert_uint_eq(slotkit_take(&w, 9, 4096), SLOT_NONE);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

/* A session is given slots of extents that it has mapped, and of no others. */
START_TEST(test_mapped)
{
    struct slotkit w;
    uint64_t mapped[2] = {0};
    uint32_t number;

    slotkit_open(&w, 70);
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
    number = slotkit_take(&w, 0, 4096);
    ck_assert(!slots_is_mapped(w.slots, number, mapped));
    ck_assert(slots_is_mapped(w.slots, number, NULL));
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_large_blocks)
{
    const uint64_t size = 2 * SLOTKIT_EXTENT + 512; /* three extents */
    struct slotkit w;
    uint32_t a, b, number;
    struct slots_count c;

    slotkit_open(&w, 8);
    slots_grant(w.slots, 0, 7);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 2);
    a = slotkit_take(&w, 0, size);
    b = slotkit_take(&w, 0, size);
    ck_assert_uint_eq(slots_offset(w.slots, a), 0);
    ck_assert_uint_eq(slots_offset(w.slots, b), 3 * SLOTKIT_EXTENT);
    ck_assert_uint_eq(slots_bytes(w.slots, b), size);
    ck_assert_uint_eq(slotkit_take(&w, 0, size), SLOT_NONE);
    c = slotkit_count(&w);
    ck_assert_uint_eq(c.used_bytes, 2 * size);
    ck_assert_uint_eq(c.slots, 2);
    ck_assert_uint_eq(c.used_slots, 2);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 4)->state, EXTENT_TAIL);
    ck_assert_uint_eq(table_extent(w.table, TIER_HOST, 4)->head, 3);
    slotkit_check(&w);
    /* The last extent of the tenant is all that small blocks can have. */
    number = slotkit_take(&w, 0, SLOTKIT_MIB);
    ck_assert_uint_eq(slots_extent(w.slots, number), 6);
    slotkit_give(&w, a);
    slotkit_check(&w);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, size), 1);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, SLOTKIT_MIB), 1 + 3 * 2);
    /* Not adjacent: the middle one is in use. */
    a = slotkit_take(&w, 0, 2 * SLOTKIT_MIB);
    ck_assert_uint_ne(slotkit_take(&w, 0, SLOTKIT_MIB), SLOT_NONE);
    ck_assert_uint_ne(slotkit_take(&w, 0, 2 * SLOTKIT_MIB), SLOT_NONE);
    ck_assert_uint_eq(slotkit_take(&w, 0, size), SLOT_NONE);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_large_blocks_need_all_extents_mapped)
{
    struct slotkit w;
    uint64_t mapped[1] = {0};
    uint32_t number;

    slotkit_open(&w, 6);
    slots_grant(w.slots, 0, UINT32_MAX);
    mapped[0] = 0x2d; /* 0, 2, 3, 5 */
    ck_assert(slots_take(w.slots, 0, 2 * SLOTKIT_EXTENT, mapped, &number));
    ck_assert_uint_eq(slots_extent(w.slots, number), 2);
    ck_assert(slots_is_mapped(w.slots, number, mapped));
    mapped[0] = 0x25;
    ck_assert(!slots_is_mapped(w.slots, number, mapped)); /* its tail is not */
    ck_assert(!slots_take(w.slots, 0, 2 * SLOTKIT_EXTENT, mapped, &number));
    slotkit_close(&w);
}
END_TEST

START_TEST(test_larger_than_the_tier)
{
    struct slotkit w;

    slotkit_open(&w, 3);
    slots_grant(w.slots, 0, UINT32_MAX);
    ck_assert_uint_eq(slotkit_take(&w, 0, 3 * SLOTKIT_EXTENT + 512), SLOT_NONE);
    ck_assert_uint_eq(slotkit_take(&w, 0, KVC_BLOCK_BYTES_MAX * 1024), SLOT_NONE);
    ck_assert_uint_ne(slotkit_take(&w, 0, 3 * SLOTKIT_EXTENT), SLOT_NONE);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

START_TEST(test_lost_extents_are_not_used)
{
    struct slotkit w;

    slotkit_open(&w, 3);
    table_extent(w.table, TIER_HOST, 1)->state = EXTENT_LOST;
    ck_assert_uint_eq(slots_grant(w.slots, 0, UINT32_MAX), 2);
    ck_assert_uint_eq(slots_free_count(w.slots, 0, SLOTKIT_EXTENT), 2);
    ck_assert_uint_eq(slotkit_take(&w, 0, 2 * SLOTKIT_EXTENT), SLOT_NONE);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_ne(slots_extent(w.slots, slotkit_take(&w, 0, SLOTKIT_EXTENT)), 1);
    ck_assert_uint_eq(slotkit_take(&w, 0, SLOTKIT_EXTENT), SLOT_NONE);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

/* An extent has as many classes of slot sizes as it has extents, at worst. */
START_TEST(test_every_extent_another_size)
{
    struct slotkit w;
    uint32_t numbers[40];

    slotkit_open(&w, 40);
    slots_grant(w.slots, 0, UINT32_MAX);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 40; i++) {
            numbers[i] = slotkit_take(&w, 0, 4096 + (i + round) * 512);
            ck_assert_uint_ne(numbers[i], SLOT_NONE);
        }
        ck_assert_uint_eq(slotkit_take(&w, 0, SLOTKIT_MIB), SLOT_NONE);
        slotkit_check(&w);
        for (uint32_t i = 0; i < 40; i++)
            slotkit_give(&w, numbers[i]);
        slotkit_check(&w);
    }
    slotkit_close(&w);
}
END_TEST

START_TEST(test_create_out_of_memory)
{
    struct slotkit w;
    struct slots *slots = NULL;
    kvc_status status = KVC_E_NO_MEMORY;
    uint32_t k;

    slotkit_open(&w, 2);
    for (k = 0; status; k++) {
        fault_arm("mem.alloc", k, 1);
        status = slots_create(w.table, TIER_HOST, &slots);
        fault_off("*");
        ck_assert(status == KVC_OK || (status == KVC_E_NO_MEMORY && !slots));
    }
    ck_assert_uint_eq(k, 4);
    slots_destroy(slots);
    slotkit_close(&w);
}
END_TEST

/* Taking and giving need no memory at all, so they cannot fail for want of it. */
START_TEST(test_no_allocation_on_the_way)
{
    struct slotkit w;
    uint32_t numbers[600];
    uint64_t live;

    slotkit_open(&w, 4);
    live = mem_live_count();
    fault_arm("mem.alloc", 0, UINT32_MAX);
    slots_grant(w.slots, 0, UINT32_MAX);
    for (uint32_t i = 0; i < 600; i++)
        numbers[i] = slotkit_take(&w, 0, i % 2 ? 4096 : 8192);
    for (uint32_t i = 0; i < 600; i++)
        slotkit_give(&w, numbers[i]);
    ck_assert_uint_eq(fault_passed("mem.alloc"), 0);
    ck_assert_uint_eq(mem_live_count(), live);
    fault_off("*");
    slotkit_close(&w);
}
END_TEST

START_TEST(test_fault_switch)
{
    struct slotkit w;

    slotkit_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    fault_arm("slots.take", 1, 1);
    ck_assert_uint_ne(slotkit_take(&w, 0, 4096), SLOT_NONE);
    ck_assert_uint_eq(slotkit_take(&w, 0, 4096), SLOT_NONE);
    ck_assert_uint_ne(slotkit_take(&w, 0, 4096), SLOT_NONE);
    slotkit_check(&w);
    slotkit_close(&w);
}
END_TEST

/* What a published slot says of its bytes may not change under those who were told of it. */
START_TEST(test_check_sees_a_published_slot_change)
{
    struct slotkit w;
    struct table_slot *record;

    slotkit_open(&w, 1);
    slots_grant(w.slots, 0, 1);
    record = slots_record(w.slots, slotkit_take(&w, 0, 4096));
    record->checksum = 1;
    table_slot_set_state(record, SLOT_READY);
    record->last_use = 9;
    record->loads = 3;
    slotkit_check(&w);
    record->checksum = 2;
    ck_assert_str_eq(slots_check(w.slots), "a slot changed after it was published");
    record->checksum = 1;
    record->key[3] = 1;
    ck_assert_ptr_nonnull(slots_check(w.slots));
    slotkit_close(&w);
}
END_TEST

CHECK_MAIN("store/slots", CHECK_LIFE_S, test_grant, test_a_tier_without_extents,
           test_counts_are_exact, test_generation_rises_with_each_use,
           test_partly_filled_extents_first, test_an_empty_extent_changes_its_size,
           test_tenants_never_share_an_extent, test_mapped, test_large_blocks,
           test_large_blocks_need_all_extents_mapped, test_larger_than_the_tier,
           test_lost_extents_are_not_used, test_every_extent_another_size,
           test_create_out_of_memory, test_no_allocation_on_the_way, test_fault_switch,
           test_check_sees_a_published_slot_change)
