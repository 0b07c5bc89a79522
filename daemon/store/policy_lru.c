#include <assert.h>

#include "daemon/store/policy.h"

/* A doubly linked list through the blocks' links of the policy's tier, coldest first. */

static struct policy_link *link_of(const struct policy *policy, uint32_t block)
{
    return &blocks_get(policy->blocks, block)->link[policy->tier];
}

static uint32_t *next_of(struct policy *policy, uint32_t block)
{
    return block == BLOCK_NONE ? &policy->head : &link_of(policy, block)->next;
}

static uint32_t *prev_of(struct policy *policy, uint32_t block)
{
    return block == BLOCK_NONE ? &policy->tail : &link_of(policy, block)->prev;
}

/* Puts a block behind `prev`, which is BLOCK_NONE to make it the coldest. */
static void insert_behind(struct policy *policy, uint32_t prev, uint32_t block)
{
    uint32_t next = *next_of(policy, prev);

    *link_of(policy, block) = (struct policy_link){prev, next};
    *next_of(policy, prev) = block;
    *prev_of(policy, next) = block;
    if (policy->finger == BLOCK_NONE)
        policy->finger = block;
}

static void unlink(struct policy *policy, uint32_t block)
{
    struct policy_link *link = link_of(policy, block);
    const uint32_t prev = link->prev, next = link->next;
    uint32_t *to_it = next_of(policy, prev), *back = prev_of(policy, next);

    assert(*to_it == block && *back == block);
    *to_it = next;
    *back = prev;
    if (policy->finger == block)
        policy->finger = prev != BLOCK_NONE ? prev : next;
    *link = (struct policy_link){BLOCK_NONE, BLOCK_NONE};
}

static void lru_add(struct policy *policy, uint32_t block)
{
    insert_behind(policy, policy->tail, block);
    policy->count++;
}

static void lru_touch(struct policy *policy, uint32_t block)
{
    unlink(policy, block);
    insert_behind(policy, policy->tail, block);
}

static void lru_remove(struct policy *policy, uint32_t block)
{
    unlink(policy, block);
    policy->count--;
}

static uint32_t lru_victim(const struct policy *policy)
{
    return policy->head;
}

static uint64_t last_use(const struct policy *policy, uint32_t block)
{
    return blocks_record(policy->blocks, block, policy->tier)->last_use;
}

static bool is_later(const struct policy *policy, uint32_t block, uint64_t when)
{
    return last_use(policy, block) > when;
}

/* One step of a walk from `at` to the place of `when`; true: *prev is what it lies behind. */
static bool step(const struct policy *policy, uint32_t *at, uint64_t when, uint32_t *prev)
{
    const struct policy_link *link = link_of(policy, *at);

    if (is_later(policy, *at, when)) {
        *prev = link->prev;
        *at = link->prev;
        return *at == BLOCK_NONE || !is_later(policy, *at, when);
    }
    *prev = *at;
    *at = link->next;
    return *at == BLOCK_NONE || is_later(policy, *at, when);
}

/*
 * Looked for from the last place found and from both ends at once. Blocks are cleaned in the order
 * of their last use, so the next one belongs a little behind the one before, however many hotter
 * and colder ones there are.
 */
static void place_from(struct policy *policy, uint32_t block, uint32_t from)
{
    uint64_t when = last_use(policy, block);
    uint32_t cold = policy->head, hot = policy->tail, prev = BLOCK_NONE;
    bool found = from == BLOCK_NONE;

    while (!found) {
        policy->steps++;
        found = step(policy, &from, when, &prev) || step(policy, &hot, when, &prev) ||
                step(policy, &cold, when, &prev);
    }
    insert_behind(policy, prev, block);
    policy->count++;
}

static void lru_place(struct policy *policy, uint32_t block)
{
    place_from(policy, block, policy->finger);
    policy->finger = block;
}

/* The place found last stays what it is: it is of those that are cleaned. */
static void lru_place_near(struct policy *policy, uint32_t block, uint32_t near)
{
    place_from(policy, block, near);
}

static uint32_t lru_neighbour(const struct policy *policy, uint32_t block)
{
    const struct policy_link *link = link_of(policy, block);

    return link->prev != BLOCK_NONE ? link->prev : link->next;
}

const struct policy_ops policy_lru = {
    .name = "lru",
    .add = lru_add,
    .place = lru_place,
    .place_near = lru_place_near,
    .neighbour = lru_neighbour,
    .touch = lru_touch,
    .remove = lru_remove,
    .victim = lru_victim,
};

void policy_init(struct policy *policy, const struct policy_ops *ops, struct blocks *blocks,
                 enum tier_kind tier)
{
    *policy = (struct policy){
        .ops = ops,
        .blocks = blocks,
        .tier = tier,
        .head = BLOCK_NONE,
        .tail = BLOCK_NONE,
        .finger = BLOCK_NONE,
    };
}
