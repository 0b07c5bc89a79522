#include "daemon/base/list.h"
#include "tests/lib/check_main.h"

struct item {
    int value;
    struct list link;
};

static void expect_order(const struct list *head, const int *values, size_t n)
{
    struct item *it;
    size_t i = 0;

    list_for_each(it, head, link) {
        ck_assert_uint_lt(i, n);
        ck_assert_int_eq(it->value, values[i]);
        i++;
    }
    ck_assert_uint_eq(i, n);
    ck_assert_uint_eq(list_length(head), n);
}

#define EXPECT(head, ...)                                                                          \
    expect_order(head, (int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

START_TEST(list_new_is_empty)
{
    struct list head;

    list_init(&head);
    ck_assert(list_empty(&head));
    ck_assert_ptr_null(list_first(&head, struct item, link));
    ck_assert_uint_eq(list_length(&head), 0);
}
END_TEST

START_TEST(list_push_keeps_order)
{
    struct list head;
    struct item a = {1, {0}}, b = {2, {0}}, c = {3, {0}};

    list_init(&head);
    list_push_back(&head, &b.link);
    list_push_back(&head, &c.link);
    list_push_front(&head, &a.link);
    EXPECT(&head, 1, 2, 3);
    ck_assert_ptr_eq(list_first(&head, struct item, link), &a);
    ck_assert_ptr_eq(head.prev, &c.link);
}
END_TEST

START_TEST(list_remove_twice_is_harmless)
{
    struct list head;
    struct item a = {1, {0}}, b = {2, {0}};

    list_init(&head);
    list_push_back(&head, &a.link);
    list_push_back(&head, &b.link);
    ck_assert(list_linked(&a.link));
    list_remove(&a.link);
    ck_assert(!list_linked(&a.link));
    list_remove(&a.link);
    EXPECT(&head, 2);
}
END_TEST

START_TEST(list_move_back_also_from_another_list)
{
    struct list head, other;
    struct item a = {1, {0}}, b = {2, {0}}, c = {3, {0}};

    list_init(&head);
    list_init(&other);
    list_push_back(&head, &a.link);
    list_push_back(&head, &b.link);
    list_push_back(&other, &c.link);
    list_move_back(&head, &a.link);
    EXPECT(&head, 2, 1);
    list_move_back(&head, &c.link);
    EXPECT(&head, 2, 1, 3);
    ck_assert(list_empty(&other));
}
END_TEST

START_TEST(list_splice_back_takes_all)
{
    struct list head, from;
    struct item a = {1, {0}}, b = {2, {0}}, c = {3, {0}};

    list_init(&head);
    list_init(&from);
    list_splice_back(&head, &from);
    ck_assert(list_empty(&head));
    list_push_back(&from, &b.link);
    list_push_back(&from, &c.link);
    list_push_back(&head, &a.link);
    list_splice_back(&head, &from);
    EXPECT(&head, 1, 2, 3);
    ck_assert(list_empty(&from));
}
END_TEST

START_TEST(list_for_each_safe_may_remove_each)
{
    struct list head;
    struct item items[5], *it, *after;

    list_init(&head);
    for (int i = 0; i < 5; i++) {
        items[i].value = i;
        list_push_back(&head, &items[i].link);
    }
    list_for_each_safe(it, after, &head, link) {
        if (it->value % 2 == 0)
            list_remove(&it->link);
    }
    EXPECT(&head, 1, 3);
}
END_TEST

CHECK_MAIN("base/list", CHECK_UNIT_S, list_new_is_empty, list_push_keeps_order,
           list_remove_twice_is_harmless, list_move_back_also_from_another_list,
           list_splice_back_takes_all, list_for_each_safe_may_remove_each)
