#include <stdint.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "tests/lib/check_main.h"

START_TEST(mem_counts_what_lives)
{
    void *a = mem_alloc(100);
    void *b = mem_zalloc(28);

    ck_assert_uint_eq(mem_live_count(), 2);
    ck_assert_uint_eq(mem_live_bytes(), 128);
    mem_free(a);
    ck_assert_uint_eq(mem_live_count(), 1);
    ck_assert_uint_eq(mem_live_bytes(), 28);
    mem_free(b);
    mem_free(NULL);
    ck_assert_uint_eq(mem_live_count(), 0);
    ck_assert_uint_eq(mem_live_bytes(), 0);
}
END_TEST

START_TEST(mem_zalloc_is_zero_and_aligned)
{
    static const unsigned char zero[1000];
    unsigned char *p = mem_zalloc(sizeof(zero));

    ck_assert_mem_eq(p, zero, sizeof(zero));
    ck_assert_uint_eq((uintptr_t)p % 16, 0);
    mem_free(p);
}
END_TEST

START_TEST(mem_array_refuses_an_overflow)
{
    volatile size_t half = SIZE_MAX / 2;
    uint64_t *p;

    ck_assert_ptr_null(mem_array(half, 3));
    p = mem_array(4, sizeof(*p));
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(p[3], 0);
    ck_assert_uint_eq(mem_live_bytes(), 32);
    mem_free(p);
}
END_TEST

START_TEST(mem_realloc_keeps_content)
{
    char *p = mem_realloc(NULL, 4);

    memcpy(p, "abc", 4);
    p = mem_realloc(p, 4000);
    ck_assert_str_eq(p, "abc");
    p = mem_realloc(p, 2);
    ck_assert_mem_eq(p, "ab", 2);
    ck_assert_uint_eq(mem_live_count(), 1);
    ck_assert_uint_eq(mem_live_bytes(), 2);
    mem_free(p);
}
END_TEST

START_TEST(mem_fails_the_allocation_that_was_named)
{
    void *p[5];

    for (unsigned k = 0; k < 5; k++) {
        fault_arm("mem.alloc", k, 1);
        for (unsigned i = 0; i < 5; i++) {
            p[i] = mem_alloc(8);
            ck_assert_int_eq(p[i] == NULL, i == k);
        }
        ck_assert_uint_eq(fault_fired("mem.alloc"), 1);
        for (unsigned i = 0; i < 5; i++)
            mem_free(p[i]);
    }
}
END_TEST

START_TEST(mem_realloc_that_fails_leaves_the_old)
{
    char *p = mem_strdup("kept");

    fault_arm("mem.alloc", 0, 1);
    ck_assert_ptr_null(mem_realloc(p, 100));
    ck_assert_str_eq(p, "kept");
    ck_assert_uint_eq(mem_live_count(), 1);
    mem_free(p);
}
END_TEST

START_TEST(mem_strdup_fails_without_a_trace)
{
    fault_arm("mem.alloc", 0, 1);
    ck_assert_ptr_null(mem_strdup("x"));
    ck_assert_uint_eq(mem_live_count(), 0);
}
END_TEST

CHECK_MAIN("base/mem", CHECK_UNIT_S, mem_counts_what_lives, mem_zalloc_is_zero_and_aligned,
           mem_array_refuses_an_overflow, mem_realloc_keeps_content,
           mem_fails_the_allocation_that_was_named, mem_realloc_that_fails_leaves_the_old,
           mem_strdup_fails_without_a_trace)
