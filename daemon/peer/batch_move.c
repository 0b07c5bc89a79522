/* Batches are asked for, and their bytes come: packed, read from there, or block by block. */
#ifdef KVC_UCX

#include <assert.h>

#include "daemon/peer/batch.h"

/* An operation that brings blocks first .. first + n - 1 begins. */
static struct batch_piece *begin_piece(struct batch *b, uint32_t first, uint32_t n,
                                       void (*done)(struct ucx_op *op, kvc_status status))
{
    struct batch_piece *piece = &b->pieces[first];

    piece->batch = b;
    piece->blocks = UINT64_MAX >> (KVC_CHUNK_BLOCKS - n) << first;
    piece->op.done = done;
    b->coming |= piece->blocks;
    b->n_left++;
    return piece;
}

static struct batch *end_piece(struct ucx_op *op, kvc_status status)
{
    struct batch_piece *piece = container_of(op, struct batch_piece, op);
    struct batch *b = piece->batch;

    assert(b->n_left > 0);
    b->n_left--;
    if (status == KVC_OK)
        b->came |= piece->blocks;
    else if (b->status == KVC_OK)
        b->status = status;
    return b;
}

/* Messages. */

static void received_cb(struct ucx_op *op, kvc_status status)
{
    batch_settle(end_piece(op, status));
}

/* Slots that lie one behind the other. */
static bool are_neighbours(const struct batch *b, uint32_t first, uint32_t n)
{
    for (uint32_t i = first + 1; i < first + n; i++)
        if (b->blocks[i].tier != b->blocks[first].tier ||
            b->blocks[i].offset != b->blocks[i - 1].offset + b->shape->span)
            return false;
    return true;
}

/* Where a message of a batch goes, if it is what was asked for and has not come. */
static void *place_message(struct batch *b, const struct ucx_tag *tag, size_t bytes)
{
    if (b->state != BATCH_ASKED || b->status != KVC_OK)
        return NULL;
    if (b->mode == MESSAGE_VIEWS)
        return tag->first == 0 && tag->n == b->n && b->coming == 0 && bytes == b->view_bytes
                   ? lane_base(&b->peer->lanes, b->lane)
                   : NULL;
    if (b->mode != MESSAGE_SEND || tag->n == 0 || tag->n > b->n || tag->first > b->n - tag->n ||
        bytes != tag->n * b->shape->span ||
        (b->coming & UINT64_MAX >> (KVC_CHUNK_BLOCKS - tag->n) << tag->first) != 0 ||
        !are_neighbours(b, tag->first, tag->n))
        return NULL;
    return batch_address(b, tag->first);
}

void *batch_message(void *arg, const struct ucx_tag *tag, size_t bytes, struct ucx_op **op)
{
    struct peers *peers = arg;
    struct peer *peer;

    list_for_each(peer, &peers->list, link) {
        struct batch *b = batch_find(peer, tag->id);
        void *to;

        if (b == NULL)
            continue;
        to = place_message(b, tag, bytes);
        if (to == NULL)
            break;
        *op = &begin_piece(b, tag->first, tag->n, received_cb)->op;
        ucx_expect(peer->endpoint, *op);
        return to;
    }
    peers->figures.stale++;
    return NULL;
}

/* Exact, by get. */

static void got_cb(struct ucx_op *op, kvc_status status)
{
    struct batch *b = end_piece(op, status);

    if (b->n_left == 0 && b->state != BATCH_LOST)
        link_send(b->peer->control, &(struct message){.type = MESSAGE_DONE, .id = b->id});
    batch_settle(b);
}

/*
 * Blocks from `first` on, whose places at the peer are told, all of one remote key and of memory
 * that is registered together here. Neighbours on both sides are one operation.
 */
static void get_blocks(struct batch *b, uint32_t first, const uint64_t *from, uint32_t n,
                       const struct ucx_memory *memory, struct ucx_rkey *rkey)
{
    uint64_t to[KVC_CHUNK_BLOCKS];
    struct plan_run runs[KVC_CHUNK_BLOCKS];
    uint32_t n_runs;

    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint64_t)(uintptr_t)batch_address(b, first + i);
    n_runs = plan_runs(from, to, n, b->shape->span, runs);
    for (uint32_t i = 0, at = first; i < n_runs; i++) {
        uint32_t blocks = (uint32_t)(runs[i].bytes / b->shape->span);

        ucx_get(b->peer->endpoint, &begin_piece(b, at, blocks, got_cb)->op,
                (void *)(uintptr_t)runs[i].to, runs[i].bytes, memory, runs[i].from, rkey);
        at += blocks;
    }
}

/* Regions and tiers part operations. */
static void get_run(struct batch *b, const struct message_result *result, uint32_t first,
                    uint32_t n)
{
    const struct region *region = &b->peer->regions[result->regions[first]];
    uint64_t from[KVC_CHUNK_BLOCKS];

    for (uint32_t i = 0; i < n; i++)
        from[i] = region->base + message_u64(result->offsets, first + i);
    get_blocks(b, first, from, n, &b->peers->memory[b->blocks[first].tier], region->rkey);
}

static void get_all(struct batch *b, const struct message_result *result)
{
    uint32_t first = 0;

    batch_set_state(b, BATCH_GETTING);
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

/* From GPU to GPU: as get, and extents part operations, too. */

static bool are_of_one_extent(const struct batch *b, const struct message_result *result,
                              uint32_t i)
{
    const struct peer *peer = b->peer;

    return gpu_extent_at(peer, message_u64(result->offsets, i), b->shape->span) ==
               gpu_extent_at(peer, message_u64(result->offsets, i - 1), b->shape->span) &&
           gpu_memory(b->peers, b->blocks[i].offset) ==
               gpu_memory(b->peers, b->blocks[i - 1].offset);
}

static void read_run(struct batch *b, const struct message_result *result, uint32_t first,
                     uint32_t n)
{
    const struct peer *peer = b->peer;
    const uint64_t start = message_u64(result->offsets, first);
    const struct gpu_extent *extent = gpu_extent_at(peer, start, b->shape->span);
    uint64_t from[KVC_CHUNK_BLOCKS];

    for (uint32_t i = 0; i < n; i++)
        from[i] = extent->base + message_u64(result->offsets, first + i) % peer->gpu.extent_bytes;
    get_blocks(b, first, from, n, gpu_memory(b->peers, b->blocks[first].offset), extent->rkey);
}

static void read_all(struct batch *b, const struct message_result *result)
{
    uint32_t first = 0;

    batch_set_state(b, BATCH_GETTING);
    for (uint32_t i = 1; i <= b->n; i++) {
        if (i < b->n && are_of_one_extent(b, result, i))
            continue;
        read_run(b, result, first, i - first);
        first = i;
    }
}

static bool can_read(const struct batch *b, const struct message_result *result)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (result->regions[i] != TIER_GPU ||
            gpu_extent_at(b->peer, message_u64(result->offsets, i), b->shape->span) == NULL)
            return false;
    return true;
}

/* Control. */

static void send_fetch(struct batch *b)
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
    ucx_worker_soon(b->peers->ask);
}

void batch_result(struct peer *peer, const struct message_result *result)
{
    struct batch *b = batch_find(peer, result->id);

    if (b == NULL || b->state != BATCH_ASKED || b->told) {
        peer->stale++;
        return;
    }
    if (result->status == KVC_E_DEVICE && b->mode == MESSAGE_GET && peer->may_send) {
        b->mode = MESSAGE_SEND; /* what cannot be read there can be sent */
        batch_mark(b);
        send_fetch(b);
        return;
    }
    if (result->status != KVC_OK) {
        /* It sends nothing under this number any more; if it does, nobody takes it. */
        if (b->n_left > 0) {
            link_end(peer->control, "it refused what it had begun to send");
            return;
        }
        b->status = (kvc_status)result->status;
        batch_settle(b);
        return;
    }
    if (result->n != b->n || (b->mode == MESSAGE_GET && !can_get(b, result)) ||
        (b->mode == MESSAGE_GPU && !can_read(b, result))) {
        link_end(peer->control, "a result that does not fit what was asked for");
        return;
    }
    for (uint32_t i = 0; i < b->n; i++) {
        b->checksums[i] = message_u64(result->checksums, i);
        b->checked[i] = result->checked[i] != 0;
    }
    b->told = true;
    if (b->mode == MESSAGE_GET) {
        get_all(b, result);
        return;
    }
    if (b->mode == MESSAGE_GPU) {
        read_all(b, result);
        return;
    }
    if (b->mode == MESSAGE_PUT)
        b->came = batch_all(b);
    batch_settle(b);
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

static void ask(struct batch *b)
{
    batch_set_state(b, BATCH_ASKED);
    if (b->mode == MESSAGE_SEND)
        batch_mark(b);
    send_fetch(b);
}

/* Nothing may be written to what has no memory yet; a view is unpacked on the pool, which sees to
 * it there. */
void batch_begin(struct batch *b)
{
    kvc_status status;

    if (b->mode == MESSAGE_GPU) {
        ask(b);
        return;
    }
    if (b->mode != MESSAGE_VIEWS) {
        batch_make_ready(b, ask);
        return;
    }
    b->lane = lane_take(&b->peer->lanes);
    status = choose_view(b);
    if (status == KVC_OK) {
        ask(b);
    } else {
        batch_set_state(b, BATCH_ASKED);
        batch_end(b, status);
    }
}

#endif
