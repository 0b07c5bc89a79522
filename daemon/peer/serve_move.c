/* The bytes of batches that guests ask for: packed, put, or block by block. */
#ifdef KVC_UCX

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/peer/serve.h"

static kvc_status check_view(const struct service *s)
{
    const uint64_t full = view_slab_bytes(s->shape->largest, s->shape->span);
    struct view_slab views;

    if (full > VIEW_SLAB_BYTES)
        return KVC_E_LIMIT;
    view_slab_init(NULL, full, &views);
    if (view_by_length(&views, s->view_bytes) == VIEW_COUNT || s->bytes > s->view_bytes)
        return KVC_E_INVALID;
    return KVC_OK;
}

static kvc_status check_destinations(const struct service *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->regions[i] >= TIER_COUNT ||
            !region_holds(&s->guest->regions[s->regions[i]], s->destinations[i], s->shape->span))
            return KVC_E_INVALID;
    return KVC_OK;
}

/* Views. */

static struct ucx_op *next_op(struct service *s, void (*done)(struct ucx_op *op, kvc_status status))
{
    struct put *put = &s->puts[s->n_puts++];

    put->service = s;
    put->op.done = done;
    s->n_left++;
    return &put->op;
}

static void pack_cb(uv_work_t *work)
{
    struct service *s = container_of(work, struct service, work);
    uint8_t *to = lane_base(&s->guest->lanes, s->lane);

    while (fault_fires("peer.pack_late"))
        usleep(1000);
    for (uint32_t i = 0; i < s->n; i++)
        memcpy(to + i * s->shape->span, service_address(s, i), s->shape->span);
}

static void sent_cb(struct ucx_op *op, kvc_status status)
{
    struct service *s = container_of(op, struct put, op)->service;
    struct guest *g = s->guest;

    if (status != KVC_OK)
        s->status = status;
    /* The guest was told that it comes, and would wait. */
    if (status != KVC_OK && g->control != NULL)
        link_end(g->control, "what was promised could not be sent");
    if (--s->n_left == 0)
        service_finish(s, s->status == KVC_OK);
}

static void packed_cb(uv_work_t *work, int status)
{
    struct service *s = container_of(work, struct service, work);
    struct guest *g = s->guest;

    (void)status;
    if (!service_is_wanted(s)) {
        service_finish(s, false);
        return;
    }
    service_set_state(s, SERVE_SENDING);
    service_report(s);
    ucx_send(g->endpoint, next_op(s, sent_cb), &(struct ucx_tag){s->id, 0, s->n},
             lane_base(&g->lanes, s->lane), s->view_bytes, &g->lanes.memory);
    /* It is sent from the guest's own memory: one that hangs holds up nobody else. */
    service_unstage(s);
}

static kvc_status begin_views(struct service *s)
{
    kvc_status status = check_view(s);

    if (status != KVC_OK)
        return status;
    s->lane = lane_take(&s->guest->lanes);
    assert(s->lane < PEER_LANES);
    service_set_state(s, SERVE_PACKING);
    if (uv_queue_work(s->peers->config.loop, &s->work, pack_cb, packed_cb) < 0)
        return KVC_E_NO_MEMORY;
    return KVC_OK;
}

/* Exact, by put. */

static void put_cb(struct ucx_op *op, kvc_status status)
{
    struct service *s = container_of(op, struct put, op)->service;

    if (status != KVC_OK && s->status == KVC_OK)
        s->status = status;
    if (--s->n_left > 0)
        return;
    if (s->status == KVC_OK)
        service_report(s);
    else
        service_refuse(s->guest, s->id, s->status);
    service_finish(s, s->status == KVC_OK);
}

static void put_run(struct service *s, uint32_t first, uint32_t n)
{
    const struct region *region = &s->guest->regions[s->regions[first]];
    uint64_t from[KVC_CHUNK_BLOCKS], to[KVC_CHUNK_BLOCKS];
    struct plan_run runs[KVC_CHUNK_BLOCKS];
    uint32_t n_runs;

    for (uint32_t i = 0; i < n; i++) {
        from[i] = (uint64_t)(uintptr_t)service_address(s, first + i);
        to[i] = region->base + s->destinations[first + i];
    }
    n_runs = plan_runs(from, to, n, s->shape->span, runs);
    for (uint32_t i = 0; i < n_runs; i++)
        ucx_put(s->guest->endpoint, next_op(s, put_cb), (const void *)(uintptr_t)runs[i].from,
                runs[i].bytes, service_memory(s, first), runs[i].to, region->rkey);
}

static kvc_status begin_put(struct service *s)
{
    kvc_status status = check_destinations(s);
    uint32_t first = 0;

    if (status != KVC_OK)
        return status;
    service_set_state(s, SERVE_SENDING);
    for (uint32_t i = 1; i <= s->n; i++) {
        if (i < s->n && s->regions[i] == s->regions[first] &&
            service_memory(s, i) == service_memory(s, first))
            continue;
        put_run(s, first, i - first);
        first = i;
    }
    ucx_flush(s->guest->endpoint, next_op(s, put_cb));
    return KVC_OK;
}

/* Exact, by messages. */

static bool are_neighbours(const struct service *s, uint32_t i)
{
    const uint64_t span = s->shape->span;

    return service_memory(s, i) == service_memory(s, i - 1) && s->regions[i] == s->regions[i - 1] &&
           service_address(s, i) == service_address(s, i - 1) + span &&
           s->destinations[i] == s->destinations[i - 1] + span;
}

/* Neighbours on both sides are one message: the guest looks for each block in it by itself. */
static kvc_status begin_send(struct service *s)
{
    uint32_t first = 0;

    service_set_state(s, SERVE_SENDING);
    service_report(s);
    for (uint32_t i = 1; i <= s->n; i++) {
        if (i < s->n && are_neighbours(s, i))
            continue;
        ucx_send(s->guest->endpoint, next_op(s, sent_cb),
                 &(struct ucx_tag){s->id, first, i - first}, service_address(s, first),
                 (i - first) * s->shape->span, service_memory(s, first));
        first = i;
    }
    return KVC_OK;
}

kvc_status service_move(struct service *s)
{
    switch (s->mode) {
    case MESSAGE_VIEWS:
        return begin_views(s);
    case MESSAGE_PUT:
        return begin_put(s);
    case MESSAGE_SEND:
        return begin_send(s);
    default:
        service_set_state(s, SERVE_PLACED);
        service_report(s);
        return KVC_OK;
    }
}

#endif
