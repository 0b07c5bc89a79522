/* Batches of this daemon's fetches: queued by turns, begun, and their ends. */
#ifdef KVC_UCX

#include <assert.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
#include "daemon/peer/batch.h"

void batch_set_state(struct batch *b, enum batch_state state)
{
    static const uint8_t legal[] = {
        [BATCH_WAITING] = 1u << BATCH_READYING | 1u << BATCH_ASKED,
        [BATCH_READYING] = 1u << BATCH_ASKED | 1u << BATCH_LOST,
        [BATCH_ASKED] = 1u << BATCH_GETTING | 1u << BATCH_JUDGED | 1u << BATCH_LOST,
        [BATCH_GETTING] = 1u << BATCH_JUDGED | 1u << BATCH_LOST,
        [BATCH_JUDGED] = 0,
        [BATCH_LOST] = 0,
    };

    assert(legal[b->state] & 1u << state);
    (void)legal;
    b->state = state;
}

uint8_t *batch_address(const struct batch *b, uint32_t i)
{
    return tier_address(b->peers->config.tiers[b->blocks[i].tier], b->blocks[i].offset);
}

uint64_t batch_all(const struct batch *b)
{
    return UINT64_MAX >> (KVC_CHUNK_BLOCKS - b->n);
}

struct batch *batch_find(struct peer *peer, uint64_t id)
{
    struct batch *b;

    list_for_each(b, &peer->running, link)
        if (b->id == id && b->state != BATCH_LOST)
            return b;
    return NULL;
}

/* The one end of every batch. */
void batch_end(struct batch *b, kvc_status status)
{
    struct peers *peers = b->peers;
    struct peer *peer = b->peer;

    list_remove(&b->link);
    if (b->state != BATCH_WAITING) {
        peer->n_running--;
        peer->bytes -= b->bytes;
        peers->bytes -= b->bytes;
        if (b->lane < PEER_LANES)
            peer->lanes.used[b->lane] = false;
    }
    if (status == KVC_OK) {
        peer->useful += (uint64_t)b->n * b->shape->pack.block_bytes;
        peer->wire += b->mode == MESSAGE_VIEWS ? b->view_bytes : b->bytes;
        peer->batches[b->mode == MESSAGE_VIEWS ? b->view : VIEW_FULL]++;
    }
    peers->n_batches--;
    fetch_batch_ended(b->fetch, peer, b->chunk, b->blocks, b->n, b->cells, status);
    mem_free(b);
}

/* A batch of a link that lives has come to its end. */
void batch_finish(struct batch *b, kvc_status status)
{
    struct peers *peers = b->peers;

    batch_end(b, status);
    batch_start_some(peers);
}

/* From a GPU to a GPU, if that is where it goes. */
static uint32_t mode_of(const struct batch *b)
{
    return peers_is_memory(b->peers, (enum tier_kind)b->blocks[0].tier) ? b->peer->mode
                                                                        : MESSAGE_GPU;
}

static void begin(struct batch *b)
{
    struct peer *peer = b->peer;

    list_move_back(&peer->running, &b->link);
    peer->n_running++;
    peer->bytes += b->bytes;
    b->peers->bytes += b->bytes;
    peer->turn = b->turn;
    b->mode = mode_of(b);
    b->begun_us = clock_now_us();
    batch_begin(b);
}

static uint32_t most_of(const struct batch *b)
{
    return mode_of(b) == MESSAGE_GPU ? PEER_READS : PEER_LANES;
}

static bool may_begin(const struct peer *peer)
{
    const struct peers *peers = peer->peers;
    const struct batch *b = list_first(&peer->waiting, struct batch, link);

    return b != NULL && peer->state == PEER_OPEN && peer->n_running < most_of(b) &&
           (peer->n_running == 0 || peer->bytes + b->bytes <= peers->config.bytes_each) &&
           (peers->bytes == 0 || peers->bytes + b->bytes <= peers->config.bytes_all);
}

/* Peers take turns, a batch each time; the one that was served goes to the end of the list. */
void batch_start_some(struct peers *peers)
{
    bool any = true;

    while (any) {
        struct peer *peer;
        struct batch *next;

        any = false;
        list_for_each(peer, &peers->list, link) {
            if (!may_begin(peer))
                continue;
            list_move_back(&peers->list, &peer->link);
            next = list_first(&peer->waiting, struct batch, link);
            assert(next != NULL);
            begin(next);
            any = true;
            break;
        }
    }
}

/*
 * Fetches share a peer fairly: the k-th batch of one goes in front of the k+1-th of others, counted
 * from where the queue was when it came.
 */
kvc_status batch_add(struct peers *peers, const struct batch_plan *plan)
{
    struct batch *b = mem_zalloc(sizeof(*b));
    struct list *at;

    if (b == NULL)
        return KVC_E_NO_MEMORY;
    assert(plan->n > 0 && plan->n <= KVC_CHUNK_BLOCKS);
    b->peers = peers;
    b->peer = plan->peer;
    b->fetch = plan->fetch;
    b->shape = plan->shape;
    b->id = peers->next_id++;
    b->lease = plan->lease;
    b->part = plan->part;
    b->chunk = plan->chunk;
    b->n = plan->n;
    b->bytes = plan->n * plan->shape->span;
    b->lane = PEER_LANES;
    b->turn = plan->peer->turn + plan->rank;
    memcpy(b->blocks, plan->blocks, plan->n * sizeof(b->blocks[0]));
    for (at = plan->peer->waiting.prev; at != &plan->peer->waiting; at = at->prev)
        if (container_of(at, struct batch, link)->turn <= b->turn)
            break;
    list_init(&b->link);
    list_insert_before(at->next, &b->link);
    peers->n_batches++;
    return KVC_OK;
}

/* Ends. */

static void end_waiting(struct list *dropped, kvc_status status)
{
    struct batch *b;

    while ((b = list_first(dropped, struct batch, link)) != NULL)
        batch_end(b, status);
}

void batch_drop_waiting(struct peers *peers, struct fetch *fetch)
{
    struct list dropped;
    struct peer *peer;
    struct batch *b, *after;

    list_init(&dropped);
    list_for_each(peer, &peers->list, link)
        list_for_each_safe(b, after, &peer->waiting, link)
            if (b->fetch == fetch)
                list_move_back(&dropped, &b->link);
    end_waiting(&dropped, KVC_E_CANCELLED);
}

void batch_link_lost(struct peer *peer)
{
    struct list dropped;
    struct batch *b;

    list_init(&dropped);
    list_splice_back(&dropped, &peer->waiting);
    list_for_each(b, &peer->running, link)
        if (b->state != BATCH_JUDGED)
            batch_set_state(b, BATCH_LOST);
    end_waiting(&dropped, KVC_E_PEER);
}

void batch_endpoint_gone(struct peer *peer)
{
    struct list lost;
    struct batch *b, *after;

    list_init(&lost);
    list_for_each_safe(b, after, &peer->running, link) {
        if (b->state != BATCH_LOST)
            continue;
        else if (b->pooled)
            b->forsaken = true;
        else
            list_move_back(&lost, &b->link);
    }
    end_waiting(&lost, KVC_E_PEER);
}

void batch_look(struct peer *peer, uint64_t now)
{
    const uint64_t patience = peer->peers->config.silence_ms * CLOCK_MS_US;
    struct batch *b;

    if (peer->state != PEER_OPEN)
        return;
    list_for_each(b, &peer->running, link)
        if (b->state != BATCH_JUDGED && now > b->begun_us && now - b->begun_us > patience) {
            link_end(peer->control, "a batch does not come to its end");
            return;
        }
}

#endif
