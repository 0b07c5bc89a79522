/* Which of the keys that guests ask for are here. */
#ifdef KVC_UCX

#include "daemon/peer/state.h"

#define LEASE_MS_MAX (KVC_REMOTE_MS_MAX + 30000u) /* of a guest: a fetch, and then some */

/* The part that this is here, if anybody has it: 0: nobody has, or nothing is shared now. */
static uint32_t find_part(const struct guest *g, const struct message_query *q)
{
    const struct table *table = store_table(g->peers->config.store);
    struct table_part part = {.tenant = g->tenant, .rule = q->rule, .window = q->window};
    uint32_t index;

    if (g->peers->draining)
        return 0;
    part.namespace_ = table_find_namespace(table, part.tenant, q->namespace_digest);
    part.layout = table_find_layout(table, q->fingerprint);
    if (part.namespace_ == TABLE_NONE || part.layout == TABLE_NONE)
        return 0;
    index = table_find_part(table, &part);
    return index == TABLE_NONE ? 0 : index;
}

/* Which of the blocks that were leased MESSAGE_GPU has: none, all, or a bit each. */
static void find_on_gpu(const struct guest *g, const struct store_lookup_part *part, uint8_t *bits,
                        struct message_answer *answer)
{
    uint64_t in[KVC_KEYS_MAX / 64];

    store_find_in(g->peers->config.store, TIER_GPU, part->part, part->keys, answer->count, in);
    for (uint32_t i = 0; i < (answer->count + 63) / 64; i++) {
        answer->on_gpu += (uint32_t)__builtin_popcountll(in[i]);
        message_set_u64(bits, i, in[i]);
    }
    if (answer->on_gpu == 0 || answer->on_gpu == answer->count)
        return;
    answer->n_keys = answer->count;
    answer->has = bits;
}

static void lease(const struct guest *g, const struct store_lookup_part *part, uint32_t lease_ms,
                  uint8_t *bits, struct message_answer *answer)
{
    const struct store_lookup lookup = {
        .lease_ms = lease_ms, .quiet = true, .parts = part, .n_parts = 1};
    struct store_lookup_result result;

    if (store_lookup(g->peers->config.store, g->owner, &lookup, &result, NULL) != KVC_OK)
        return;
    answer->lease = result.lease;
    answer->count = result.count;
    if (g->gpu)
        find_on_gpu(g, part, bits, answer);
}

/* The first run of the keys that is here, leased for the guest. */
static void find_run(const struct guest *g, const struct message_query *q, uint32_t index,
                     const uint64_t *has, uint8_t *bits, struct message_answer *answer)
{
    const struct table *table = store_table(g->peers->config.store);
    struct store_lookup_part part = {
        .part = index,
        .epoch = table_namespace(table, table_part(table, index)->namespace_)->epoch,
    };
    uint32_t at = 0;

    while (at < q->n_keys && !(has[at / 64] & 1ull << at % 64))
        at++;
    if (at == q->n_keys)
        return;
    part.keys = q->keys + (size_t)at * KVC_KEY_BYTES;
    part.n_keys = q->n_keys - at;
    answer->first = at;
    answer->part = index;
    lease(g, &part, q->lease_ms < LEASE_MS_MAX ? q->lease_ms : LEASE_MS_MAX, bits, answer);
}

void serve_query(struct guest *g, const struct message_query *q)
{
    struct message m = {.type = MESSAGE_ANSWER, .answer = {.id = q->id, .load = g->peers->sending}};
    uint64_t has[KVC_KEYS_MAX / 64] = {0}, coming[KVC_KEYS_MAX / 64];
    const uint32_t part = find_part(g, q);
    uint8_t bits[KVC_KEYS_MAX / 8];

    if (part != 0 && peers_join(g->peers, g->owner, part) == KVC_OK)
        store_find(g->peers->config.store, part, q->keys, q->n_keys, has, coming);
    if (q->lease_ms > 0) {
        find_run(g, q, part, has, bits, &m.answer);
    } else {
        for (uint32_t i = 0; i < (q->n_keys + 63) / 64; i++)
            message_set_u64(bits, i, has[i]);
        m.answer.n_keys = q->n_keys;
        m.answer.has = bits;
    }
    link_send(g->control, &m);
    if (m.answer.lease != 0)
        ucx_worker_soon(g->peers->serve);
}

#endif
