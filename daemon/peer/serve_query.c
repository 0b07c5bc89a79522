/* Which of the keys that guests ask for are here. */
#ifdef KVC_UCX

#include "daemon/peer/state.h"

#define LEASE_MS_MAX 60000u /* of a guest */

/* The part that this is here, if anybody has it: 0: nobody has. */
static uint32_t find_part(const struct guest *g, const struct message_query *q)
{
    const struct table *table = store_table(g->peers->config.store);
    struct table_part part = {.tenant = g->tenant, .rule = q->rule, .window = q->window};
    uint32_t index;

    part.namespace_ = table_find_namespace(table, part.tenant, q->namespace_digest);
    part.layout = table_find_layout(table, q->fingerprint);
    if (q->rule != STORE_RULE_FULL || part.namespace_ == TABLE_NONE || part.layout == TABLE_NONE)
        return 0;
    index = table_find_part(table, &part);
    return index == TABLE_NONE ? 0 : index;
}

static uint32_t probe(const struct guest *g, struct store_lookup_part part, uint32_t lease_ms,
                      uint64_t *lease)
{
    const struct store_lookup lookup = {
        .lease_ms = lease_ms, .probe = lease == NULL, .quiet = true, .parts = &part, .n_parts = 1};
    struct store_lookup_result result;

    if (store_lookup(g->peers->config.store, g->owner, &lookup, &result, NULL) != KVC_OK)
        return 0;
    if (lease != NULL)
        *lease = result.lease;
    return result.count;
}

/* The first run of the keys that is here, leased for the guest. */
static void find_run(const struct guest *g, const struct message_query *q, uint32_t index,
                     struct message_answer *answer)
{
    const struct table *table = store_table(g->peers->config.store);
    struct store_lookup_part part = {
        .part = index,
        .epoch = table_namespace(table, table_part(table, index)->namespace_)->epoch,
        .n_keys = 1,
    };
    uint32_t at = 0;

    for (; at < q->n_keys; at++) {
        part.keys = q->keys + (size_t)at * KVC_KEY_BYTES;
        if (probe(g, part, 0, NULL) > 0)
            break;
    }
    if (at == q->n_keys)
        return;
    part.n_keys = q->n_keys - at;
    answer->first = at;
    answer->part = index;
    answer->count =
        probe(g, part, q->lease_ms < LEASE_MS_MAX ? q->lease_ms : LEASE_MS_MAX, &answer->lease);
}

void serve_query(struct guest *g, const struct message_query *q)
{
    struct message m = {.type = MESSAGE_ANSWER, .answer = {.id = q->id, .load = g->peers->sending}};
    const uint32_t part = find_part(g, q);

    if (part != 0 && peers_join(g->peers, g->owner, part) == KVC_OK)
        find_run(g, q, part, &m.answer);
    link_send(g->control, &m);
}

#endif
