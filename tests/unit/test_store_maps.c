/* Handles and deadlines, against plain arrays. */
#include "daemon/base/fault.h"
#include "daemon/store/expiry.h"
#include "daemon/store/handles.h"
#include "tests/lib/check_main.h"
#include "tests/lib/random.h"

#define ITEMS 500u

static uint64_t state = RANDOM_STATE;

/* _i: ids that count up, ids that share their low bits, random ids. */
START_TEST(handles_find_what_was_put)
{
    static uint64_t ids[ITEMS];
    static bool there[ITEMS];
    struct handles handles = {0};
    uint32_t count = 0;

    ck_assert_ptr_null(handles_get(&handles, 1));
    for (uint32_t i = 0; i < ITEMS; i++)
        ids[i] = _i == 0 ? i + 1 : _i == 1 ? (uint64_t)(i + 1) << 32 : random_next(&state);
    for (int step = 0; step < 5000; step++) {
        uint32_t i = (uint32_t)(random_next(&state) >> 20) % ITEMS;

        if (there[i]) {
            handles_remove(&handles, ids[i]);
            count--;
        } else {
            ck_assert_int_eq(handles_reserve(&handles), KVC_OK);
            handles_put(&handles, ids[i], &ids[i]);
            count++;
        }
        there[i] = !there[i];
        ck_assert_uint_eq(handles.count, count);
        if (step % 100 == 0)
            for (i = 0; i < ITEMS; i++)
                ck_assert_ptr_eq(handles_get(&handles, ids[i]), there[i] ? &ids[i] : NULL);
    }
    ck_assert_ptr_null(handles_get(&handles, 0));
    handles_free(&handles);
}
END_TEST

START_TEST(handles_without_memory_stay_as_they_were)
{
    struct handles handles = {0};
    uint32_t i;

    for (i = 1; i < ITEMS; i++) {
        fault_arm("mem.alloc", 0, 1);
        if (handles_reserve(&handles) != KVC_OK) {
            ck_assert_uint_eq(handles.count, i - 1);
            ck_assert_int_eq(handles_reserve(&handles), KVC_OK);
        }
        fault_off("mem.alloc");
        handles_put(&handles, i, &state);
    }
    for (i = 1; i < ITEMS; i++)
        ck_assert_ptr_eq(handles_get(&handles, i), &state);
    handles_free(&handles);
}
END_TEST

static uint64_t earliest(const struct expiry_item *items, const bool *there)
{
    uint64_t at = UINT64_MAX;

    for (uint32_t i = 0; i < ITEMS; i++)
        if (there[i] && items[i].at < at)
            at = items[i].at;
    return at;
}

START_TEST(expiry_first_is_the_earliest)
{
    static struct expiry_item items[ITEMS];
    static bool there[ITEMS];
    struct expiry expiry = {0};

    ck_assert_ptr_null(expiry_first(&expiry));
    for (int step = 0; step < 5000; step++) {
        uint32_t i = (uint32_t)(random_next(&state) >> 20) % ITEMS;
        uint64_t at = random_next(&state) % 1000;
        const struct expiry_item *first;

        if (!there[i]) {
            ck_assert_int_eq(expiry_reserve(&expiry), KVC_OK);
            expiry_add(&expiry, &items[i], at);
            there[i] = true;
        } else if (at % 2) {
            expiry_move(&expiry, &items[i], at);
        } else {
            expiry_remove(&expiry, &items[i]);
            there[i] = false;
        }
        first = expiry_first(&expiry);
        ck_assert_uint_eq(first ? first->at : UINT64_MAX, earliest(items, there));
    }
    expiry_free(&expiry);
}
END_TEST

CHECK_MAIN_LOOPS("store/maps", CHECK_UNIT_S, {handles_find_what_was_put, 0, 2},
                 {handles_without_memory_stay_as_they_were, 0, 0},
                 {expiry_first_is_the_earliest, 0, 0})
