/* Batches of this daemon's fetches: queued by turns, asked for, moved, verified. */
#ifdef KVC_UCX

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

enum batch_state {
    BATCH_WAITING,
    BATCH_ASKED,   /* the RESULT, or the bytes, are waited for */
    BATCH_GETTING, /* operations of this daemon run */
    BATCH_JUDGED,  /* on the pool: unpacked, verified */
    BATCH_LOST,    /* its link has ended: its memory is free when the endpoint is gone */
};

struct get {
    struct ucx_op op;
    struct batch *batch;
};

struct batch {
    struct list link; /* peer::waiting or running */
    struct peers *peers;
    struct peer *peer;
    struct fetch *fetch;
    const struct shape *shape;
    enum batch_state state;
    uint64_t id, lease, turn, bytes, begun_us;
    uint32_t part, chunk, mode, lane;
    enum view view;
    uint64_t view_bytes;
    bool told, came; /* views: the RESULT, the bytes */
    uint32_t n, n_gets, n_left;
    kvc_status status;
    struct batch_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS], checksums[KVC_CHUNK_BLOCKS];
    bool checked[KVC_CHUNK_BLOCKS];
    struct ucx_op receive;
    struct get gets[KVC_CHUNK_BLOCKS];
    uv_work_t work;
};

static void set_state(struct batch *b, enum batch_state state)
{
    static const uint8_t legal[] = {
        [BATCH_WAITING] = 1u << BATCH_ASKED,
        [BATCH_ASKED] = 1u << BATCH_GETTING | 1u << BATCH_JUDGED | 1u << BATCH_LOST,
        [BATCH_GETTING] = 1u << BATCH_JUDGED | 1u << BATCH_LOST,
        [BATCH_JUDGED] = 0,
        [BATCH_LOST] = 0,
    };

    assert(legal[b->state] & 1u << state);
    (void)legal;
    b->state = state;
}

static uint8_t *address_of(const struct batch *b, uint32_t i)
{
    return tier_address(b->peers->config.tiers[b->blocks[i].tier], b->blocks[i].offset);
}

/* The one end of every batch. */
static void end(struct batch *b, kvc_status status)
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
static void finish(struct batch *b, kvc_status status)
{
    struct peers *peers = b->peers;

    end(b, status);
    batch_start_some(peers);
}

/* Verifying, on the pool. */

static void judge_cb(uv_work_t *work)
{
    struct batch *b = container_of(work, struct batch, work);
    const uint8_t *packed = b->mode == MESSAGE_VIEWS ? lane_base(&b->peer->lanes, b->lane) : NULL;

    while (fault_fires("peer.judge_late"))
        usleep(1000);
    for (uint32_t i = 0; i < b->n; i++) {
        struct device_slab *slab = tier_slab(b->peers->config.tiers[b->blocks[i].tier]);
        uint8_t *slot = address_of(b, i);

        if (packed != NULL) {
            kvc_status ready = slab->ops->slab_ready(slab, b->blocks[i].offset, b->shape->span);

            if (ready != KVC_OK) {
                b->status = ready;
                return;
            }
            memcpy(slot, packed + i * b->shape->span, b->shape->span);
        }
        b->cells[i] = pack_checksum_slot(&b->shape->pack, slot);
        if (b->checked[i] && b->cells[i] != b->checksums[i])
            b->status = KVC_E_CHECKSUM;
    }
}

static void judged_cb(uv_work_t *work, int status)
{
    struct batch *b = container_of(work, struct batch, work);

    if (status < 0)
        b->status = KVC_E_CANCELLED;
    if (b->status == KVC_E_CHECKSUM)
        log_warn("peer", "a batch is not what was published there peer=%s", b->peer->name);
    finish(b, b->status);
}

static void judge(struct batch *b)
{
    set_state(b, BATCH_JUDGED);
    b->status = fault_fires("peer.judge") ? KVC_E_CHECKSUM : KVC_OK;
    if (uv_queue_work(b->peers->config.loop, &b->work, judge_cb, judged_cb) < 0)
        finish(b, KVC_E_NO_MEMORY);
}

/* Views. */

static struct batch *find(struct peer *peer, uint64_t id)
{
    struct batch *b;

    list_for_each(b, &peer->running, link)
        if (b->id == id && b->state != BATCH_LOST)
            return b;
    return NULL;
}

static void received_cb(struct ucx_op *op, kvc_status status)
{
    struct batch *b = container_of(op, struct batch, receive);

    b->came = true;
    if (b->state == BATCH_LOST)
        return; /* with the endpoint */
    if (status != KVC_OK)
        finish(b, status);
    else if (b->told)
        judge(b);
}

void *batch_message(void *arg, uint64_t id, size_t bytes, struct ucx_op **op)
{
    struct peers *peers = arg;
    struct peer *peer;

    list_for_each(peer, &peers->list, link) {
        struct batch *b = find(peer, id);

        if (b == NULL)
            continue;
        if (b->mode != MESSAGE_VIEWS || b->came || b->receive.done != NULL ||
            bytes != b->view_bytes)
            break;
        b->receive.done = received_cb;
        ucx_expect(peer->endpoint, &b->receive);
        *op = &b->receive;
        return lane_base(&peer->lanes, b->lane);
    }
    peers->figures.stale++;
    return NULL;
}

/* Exact. */

static void got_cb(struct ucx_op *op, kvc_status status)
{
    struct batch *b = container_of(op, struct get, op)->batch;

    if (status != KVC_OK && b->status == KVC_OK)
        b->status = status;
    if (--b->n_left > 0 || b->state == BATCH_LOST)
        return;
    link_send(b->peer->control, &(struct message){.type = MESSAGE_DONE, .id = b->id});
    if (b->status == KVC_OK)
        judge(b);
    else
        finish(b, b->status);
}

/* Neighbours on both sides are one operation; regions and tiers part them. */
static void get_run(struct batch *b, const struct message_result *result, uint32_t first,
                    uint32_t n)
{
    struct peer *peer = b->peer;
    const struct region *region = &peer->regions[result->regions[first]];
    uint64_t from[KVC_CHUNK_BLOCKS], to[KVC_CHUNK_BLOCKS];
    struct plan_run runs[KVC_CHUNK_BLOCKS];
    uint32_t n_runs;

    for (uint32_t i = 0; i < n; i++) {
        from[i] = region->base + message_u64(result->offsets, first + i);
        to[i] = (uint64_t)(uintptr_t)address_of(b, first + i);
    }
    n_runs = plan_runs(from, to, n, b->shape->span, runs);
    for (uint32_t i = 0; i < n_runs; i++) {
        struct get *get = &b->gets[b->n_gets++];

        get->batch = b;
        get->op.done = got_cb;
        b->n_left++;
        ucx_get(peer->endpoint, &get->op, (void *)(uintptr_t)runs[i].to, runs[i].bytes,
                &b->peers->memory[b->blocks[first].tier], runs[i].from, region->rkey);
    }
}

static void get_all(struct batch *b, const struct message_result *result)
{
    uint32_t first = 0;

    set_state(b, BATCH_GETTING);
    for (uint32_t i = 1; i <= b->n; i++) {
        if (i < b->n && result->regions[i] == result->regions[first] &&
            b->blocks[i].tier == b->blocks[first].tier)
            continue;
        get_run(b, result, first, i - first);
        first = i;
    }
}

static bool can_get(const struct batch *b, const struct message_result *result)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (result->regions[i] >= TIER_COUNT ||
            !region_holds(&b->peer->regions[result->regions[i]], message_u64(result->offsets, i),
                          b->shape->span))
            return false;
    return true;
}

/* Control. */

void batch_result(struct peer *peer, const struct message_result *result)
{
    struct batch *b = find(peer, result->id);

    if (b == NULL || b->state != BATCH_ASKED || b->told) {
        peer->stale++;
        return;
    }
    if (result->status != KVC_OK) {
        /* It sends nothing under this number any more; if it does, nobody takes it. */
        if (b->receive.done != NULL && !b->came)
            link_end(peer->control, "it refused what it had begun to send");
        else
            finish(b, (kvc_status)result->status);
        return;
    }
    if (result->n != b->n || (b->mode == MESSAGE_GET && !can_get(b, result))) {
        link_end(peer->control, "a result that does not fit what was asked for");
        return;
    }
    for (uint32_t i = 0; i < b->n; i++) {
        b->checksums[i] = message_u64(result->checksums, i);
        b->checked[i] = result->checked[i] != 0;
    }
    b->told = true;
    if (b->mode == MESSAGE_GET)
        get_all(b, result);
    else if (b->mode == MESSAGE_PUT || b->came)
        judge(b);
}

static kvc_status choose_view(struct batch *b)
{
    struct view_slab views;
    uint64_t full = view_slab_bytes(b->shape->largest, b->shape->span);
    kvc_status status;

    if (full > VIEW_SLAB_BYTES)
        return KVC_E_LIMIT;
    view_slab_init(NULL, full, &views);
    status = view_choose(&views, &b->peer->streak, b->bytes, &b->view);
    if (status == KVC_OK)
        b->view_bytes = views.bytes[b->view];
    return status;
}

/* Nothing may be written to what has no memory yet. */
static kvc_status make_ready(struct batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        struct device_slab *slab = tier_slab(b->peers->config.tiers[b->blocks[i].tier]);
        kvc_status status = slab->ops->slab_ready(slab, b->blocks[i].offset, b->shape->span);

        if (status != KVC_OK)
            return status;
    }
    return KVC_OK;
}

static void ask(struct batch *b)
{
    uint8_t places[KVC_CHUNK_BLOCKS * 4], destinations[KVC_CHUNK_BLOCKS * 8];
    uint8_t regions[KVC_CHUNK_BLOCKS];
    const struct message m = {
        .type = MESSAGE_FETCH,
        .fetch = {.id = b->id,
                  .lease = b->lease,
                  .part = b->part,
                  .mode = b->mode,
                  .view_bytes = b->view_bytes,
                  .n = b->n,
                  .places = places,
                  .destinations = destinations,
                  .regions = regions},
    };

    for (uint32_t i = 0; i < b->n; i++) {
        message_set_u32(places, i, b->blocks[i].place);
        message_set_u64(destinations, i, b->blocks[i].offset);
        regions[i] = b->blocks[i].tier;
    }
    link_send(b->peer->control, &m);
}

/* Begins a batch; its end may come at once. */
static void begin(struct batch *b)
{
    struct peer *peer = b->peer;
    kvc_status status;

    set_state(b, BATCH_ASKED);
    list_move_back(&peer->running, &b->link);
    peer->n_running++;
    peer->bytes += b->bytes;
    b->peers->bytes += b->bytes;
    peer->turn = b->turn;
    b->mode = peer->mode;
    b->begun_us = clock_now_us();
    b->lane = b->mode == MESSAGE_VIEWS ? lane_take(&peer->lanes) : PEER_LANES;
    status = b->mode == MESSAGE_VIEWS ? choose_view(b) : make_ready(b);
    if (status != KVC_OK)
        end(b, status);
    else
        ask(b);
}

static bool may_begin(const struct peer *peer)
{
    const struct peers *peers = peer->peers;
    const struct batch *b = list_first(&peer->waiting, struct batch, link);

    return b != NULL && peer->state == PEER_OPEN && peer->n_running < PEER_LANES &&
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
        end(b, status);
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
            set_state(b, BATCH_LOST);
    end_waiting(&dropped, KVC_E_PEER);
}

void batch_endpoint_gone(struct peer *peer)
{
    struct list lost;
    struct batch *b, *after;

    list_init(&lost);
    list_for_each_safe(b, after, &peer->running, link)
        if (b->state == BATCH_LOST)
            list_move_back(&lost, &b->link);
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
