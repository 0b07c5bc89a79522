/* The index of blocks alone, with tags chosen to be as bad as can be. */
#include "daemon/store/index.h"
#include "tests/lib/check_main.h"

static uint32_t count_tag(const struct index *index, uint32_t tag)
{
    struct index_walk walk = index_seek(index, tag);
    uint32_t n = (uint32_t)__builtin_popcount(index_have(index_here(&walk), tag));

    while (!index_free(index_here(&walk))) {
        index_next(&walk);
        n += (uint32_t)__builtin_popcount(index_have(index_here(&walk), tag));
    }
    return n;
}

START_TEST(test_index_equal_tags)
{
    const uint32_t tags[] = {0, 1, 0x80000000u, UINT32_MAX - 1, UINT32_MAX};
    struct index index;
    const char *why;

    ck_assert_int_eq(index_init(&index), KVC_OK);
    for (uint32_t i = 0; i < 60; i++)
        for (uint32_t t = 0; t < 5; t++)
            ck_assert_int_eq(index_insert(&index, tags[t], i * 5 + t), KVC_OK);
    why = index_check(&index);
    ck_assert_msg(!why, "%s", why);
    for (uint32_t t = 0; t < 5; t++)
        ck_assert_uint_eq(count_tag(&index, tags[t]), 60);
    for (uint32_t i = 60; i-- > 0;) {
        for (uint32_t t = 0; t < 5; t++)
            index_remove(&index, tags[t], (i * 7 % 60) * 5 + t);
        why = index_check(&index);
        ck_assert_msg(!why, "%s", why);
    }
    ck_assert_uint_eq(index.count, 0);
    index_fini(&index);
}
END_TEST

START_TEST(test_index_clustered_tags)
{
    struct index index;
    const char *why;

    ck_assert_int_eq(index_init(&index), KVC_OK);
    for (uint32_t i = 0; i < 5000; i++)
        ck_assert_int_eq(index_insert(&index, UINT32_MAX - i * 64, i), KVC_OK);
    why = index_check(&index);
    ck_assert_msg(!why, "%s", why);
    for (uint32_t i = 0; i < 5000; i++)
        ck_assert_uint_eq(count_tag(&index, UINT32_MAX - i * 64), 1);
    index_fini(&index);
}
END_TEST

/* So many that buckets are full, also the last, behind which the first comes. */
START_TEST(test_index_full_buckets)
{
    enum { N = 47 * 8 };
    struct index index;
    uint32_t tags[N], random = 1;

    ck_assert_int_eq(index_init(&index), KVC_OK);
    for (uint32_t i = 0; i < N; i++) {
        /* All of few homes. */
        do
            random = random * 1664525u + 1013904223u;
        while (index_home(random, INDEX_BUCKETS_MAX) % INDEX_BUCKETS_MAX > 1 &&
               index_home(random, INDEX_BUCKETS_MAX) < INDEX_BUCKETS_MAX - 2);
        tags[i] = random;
        ck_assert_int_eq(index_insert(&index, tags[i], i), KVC_OK);
    }
    ck_assert_ptr_null(index_check(&index));
    for (uint32_t n = 0, i = 0; n < N; n++, i = (i + 97) % N) {
        ck_assert_uint_eq(count_tag(&index, tags[i]), 1);
        index_remove(&index, tags[i], i);
        ck_assert_uint_eq(count_tag(&index, tags[i]), 0);
        ck_assert_ptr_null(index_check(&index));
    }
    ck_assert_uint_eq(index.count, 0);
    index_fini(&index);
}
END_TEST

CHECK_MAIN("store/index", CHECK_LIFE_S, test_index_equal_tags, test_index_clustered_tags,
           test_index_full_buckets)
