/* The order of eviction. */
#include <string.h>

#include "daemon/store/block.h"
#include "daemon/store/policy.h"
#include "daemon/store/slots.h"
#include "tests/lib/check_main.h"

#define BLOCKS 64

struct world {
    struct table *table;
    struct slots *slots[TIER_COUNT];
    struct blocks *blocks;
    struct policy policy[TIER_COUNT];
    uint32_t ids[BLOCKS];
    uint64_t now;
};

/* Every block has a slot in both tiers, so that both of its links can be tried. */
static void world_open(struct world *w)
{
    const uint64_t budget[TIER_COUNT] = {2 << 20, 2 << 20};

    memset(w, 0, sizeof(*w));
    ck_assert_int_eq(table_create(budget, 1, &w->table), KVC_OK);
    ck_assert_int_eq(blocks_create(w->table, &w->blocks), KVC_OK);
    for (int t = 0; t < TIER_COUNT; t++) {
        ck_assert_int_eq(slots_create(w->table, t, &w->slots[t]), KVC_OK);
        slots_grant(w->slots[t], 0, 1);
        policy_init(&w->policy[t], &policy_lru, w->blocks, t);
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t slot[TIER_COUNT];

        for (int t = 0; t < TIER_COUNT; t++) {
            ck_assert(slots_take(w->slots[t], 0, 4096, NULL, &slot[t]));
            memset(slots_record(w->slots[t], slot[t])->key, (int)i, KVC_KEY_BYTES);
        }
        ck_assert_int_eq(blocks_add(w->blocks, 0, TIER_GPU, slot[TIER_GPU], &w->ids[i]), KVC_OK);
        blocks_get(w->blocks, w->ids[i])->slot[TIER_HOST] = slot[TIER_HOST];
    }
}

static void world_close(struct world *w)
{
    blocks_destroy(w->blocks);
    for (int t = 0; t < TIER_COUNT; t++)
        slots_destroy(w->slots[t]);
    table_destroy(w->table);
}

static void used_now(struct world *w, enum tier_kind tier, uint32_t i)
{
    blocks_record(w->blocks, w->ids[i], tier)->last_use = ++w->now;
}

static void add(struct world *w, enum tier_kind tier, uint32_t i)
{
    used_now(w, tier, i);
    policy_lru.add(&w->policy[tier], w->ids[i]);
}

/* Takes out victim after victim: they must be these, by place in ids. */
static void expect(struct world *w, enum tier_kind tier, const uint32_t *order, uint32_t n)
{
    struct policy *policy = &w->policy[tier];

    ck_assert_uint_eq(policy->count, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t victim = policy_lru.victim(policy);

        ck_assert_uint_eq(victim, w->ids[order[i]]);
        ck_assert_uint_eq(policy_lru.victim(policy), victim); /* it stays inside */
        policy_lru.remove(policy, victim);
    }
    ck_assert_uint_eq(policy->count, 0);
    ck_assert_uint_eq(policy_lru.victim(policy), BLOCK_NONE);
    ck_assert_uint_eq(policy->head, BLOCK_NONE);
    ck_assert_uint_eq(policy->tail, BLOCK_NONE);
}

START_TEST(test_empty)
{
    struct world w;

    world_open(&w);
    expect(&w, TIER_GPU, NULL, 0);
    world_close(&w);
}
END_TEST

START_TEST(test_coldest_first)
{
    struct world w;

    world_open(&w);
    for (uint32_t i = 0; i < 5; i++)
        add(&w, TIER_GPU, i);
    expect(&w, TIER_GPU, (uint32_t[]){0, 1, 2, 3, 4}, 5);
    world_close(&w);
}
END_TEST

START_TEST(test_touch)
{
    struct world w;

    world_open(&w);
    for (uint32_t i = 0; i < 5; i++)
        add(&w, TIER_GPU, i);
    policy_lru.touch(&w.policy[TIER_GPU], w.ids[0]);
    policy_lru.touch(&w.policy[TIER_GPU], w.ids[2]);
    policy_lru.touch(&w.policy[TIER_GPU], w.ids[2]);
    expect(&w, TIER_GPU, (uint32_t[]){1, 3, 4, 0, 2}, 5);
    add(&w, TIER_GPU, 7);
    policy_lru.touch(&w.policy[TIER_GPU], w.ids[7]);
    expect(&w, TIER_GPU, (uint32_t[]){7}, 1);
    world_close(&w);
}
END_TEST

START_TEST(test_remove_anywhere)
{
    struct world w;

    world_open(&w);
    for (uint32_t i = 0; i < 6; i++)
        add(&w, TIER_GPU, i);
    policy_lru.remove(&w.policy[TIER_GPU], w.ids[0]);
    policy_lru.remove(&w.policy[TIER_GPU], w.ids[5]);
    policy_lru.remove(&w.policy[TIER_GPU], w.ids[2]);
    add(&w, TIER_GPU, 2);
    expect(&w, TIER_GPU, (uint32_t[]){1, 3, 4, 2}, 4);
    world_close(&w);
}
END_TEST

/* A block is in one order of each tier at a time, and they do not know of each other. */
START_TEST(test_tiers_are_separate)
{
    struct world w;

    world_open(&w);
    for (uint32_t i = 0; i < 4; i++) {
        add(&w, TIER_GPU, i);
        add(&w, TIER_HOST, 3 - i);
    }
    policy_lru.touch(&w.policy[TIER_GPU], w.ids[1]);
    expect(&w, TIER_GPU, (uint32_t[]){0, 2, 3, 1}, 4);
    expect(&w, TIER_HOST, (uint32_t[]){3, 2, 1, 0}, 4);
    world_close(&w);
}
END_TEST

/* A block that was taken out for a copy that failed comes back where it was. */
START_TEST(test_place)
{
    struct policy *policy;
    struct world w;

    world_open(&w);
    policy = &w.policy[TIER_GPU];
    for (uint32_t i = 0; i < 6; i++)
        add(&w, TIER_GPU, i);
    for (uint32_t i = 0; i < 6; i++) {
        policy_lru.remove(policy, w.ids[i]);
        policy_lru.place(policy, w.ids[i]);
    }
    for (uint32_t i = 0; i < 3; i++)
        policy_lru.remove(policy, w.ids[2 * i]);
    policy_lru.place(policy, w.ids[4]);
    policy_lru.place(policy, w.ids[0]);
    policy_lru.place(policy, w.ids[2]);
    expect(&w, TIER_GPU, (uint32_t[]){0, 1, 2, 3, 4, 5}, 6);
    policy_lru.place(policy, w.ids[3]);
    expect(&w, TIER_GPU, (uint32_t[]){3}, 1);
    world_close(&w);
}
END_TEST

static void expect_all_in_order(struct world *w, enum tier_kind tier)
{
    uint32_t order[BLOCKS];

    for (uint32_t i = 0; i < BLOCKS; i++)
        order[i] = i;
    expect(w, tier, order, BLOCKS);
}

START_TEST(test_place_random)
{
    struct world w;
    struct policy *policy;
    uint32_t order[BLOCKS], random = 12345;

    world_open(&w);
    policy = &w.policy[TIER_HOST];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        used_now(&w, TIER_HOST, i);
        order[i] = i;
    }
    for (uint32_t i = BLOCKS; i-- > 1;) {
        uint32_t j = (random = random * 1664525 + 1013904223) % (i + 1), t = order[i];

        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        policy_lru.place(policy, w.ids[order[i]]);
    expect_all_in_order(&w, TIER_HOST);
    world_close(&w);
}
END_TEST

/*
 * Blocks are cleaned in the order of their last use, while hotter ones lie in the order already:
 * finding a place must not walk over those, or over the ones that were cleaned before.
 */
START_TEST(S26_place_does_not_walk)
{
    struct world w;
    struct policy *policy;

    world_open(&w);
    policy = &w.policy[TIER_GPU];
    for (uint32_t i = 0; i < BLOCKS; i++)
        used_now(&w, TIER_GPU, i);
    for (uint32_t i = BLOCKS / 2; i < BLOCKS; i++)
        policy_lru.place(policy, w.ids[i]);
    policy->steps = 0;
    for (uint32_t i = 0; i < BLOCKS / 2; i++)
        policy_lru.place(policy, w.ids[i]);
    ck_assert_uint_le(policy->steps, BLOCKS / 2);
    expect_all_in_order(&w, TIER_GPU);
    world_close(&w);
}
END_TEST

CHECK_MAIN("store/policy", CHECK_UNIT_S, test_empty, test_coldest_first, test_touch,
           test_remove_anywhere, test_tiers_are_separate, test_place, test_place_random,
           S26_place_does_not_walk)
