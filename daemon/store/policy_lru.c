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
}

static void unlink(struct policy *policy, uint32_t block)
{
    struct policy_link *link = link_of(policy, block);

    assert(*next_of(policy, link->prev) == block && *prev_of(policy, link->next) == block);
    *next_of(policy, link->prev) = link->next;
    *prev_of(policy, link->next) = link->prev;
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

/* Looked for from both ends at once: a block comes back among the coldest, or is fairly new. */
static void lru_place(struct policy *policy, uint32_t block)
{
    uint64_t when = last_use(policy, block);
    uint32_t cold = policy->head, hot = policy->tail;

    while (hot != BLOCK_NONE && last_use(policy, hot) > when) {
        if (last_use(policy, cold) > when) {
            hot = link_of(policy, cold)->prev;
            break;
        }
        cold = link_of(policy, cold)->next;
        hot = link_of(policy, hot)->prev;
    }
    insert_behind(policy, hot, block);
    policy->count++;
}

const struct policy_ops policy_lru = {
    .name = "lru",
    .add = lru_add,
    .place = lru_place,
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
    };
}
