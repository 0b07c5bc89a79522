/* What guests ask for: which blocks are here, and their bytes. */
#ifdef KVC_UCX

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define WAITING_MAX  64u    /* batches that a guest may have waiting */
#define LEASE_MS_MAX 60000u /* of a guest */

enum service_state {
    SERVE_WAITING, /* for a lane */
    SERVE_PACKING, /* on the pool */
    SERVE_SENDING, /* operations run */
    SERVE_PLACED,  /* the guest reads by itself until it says DONE */
};

struct put {
    struct ucx_op op;
    struct service *service;
};

struct service {
    struct list link; /* guest::waiting or running */
    struct peers *peers;
    struct guest *guest;
    enum service_state state;
    uint64_t id, lease, view_bytes, bytes;
    uint32_t part, mode, n, lane;
    const struct shape *shape;
    struct load *load; /* NULL: none is open */
    kvc_status status;
    uint32_t places[KVC_CHUNK_BLOCKS];
    uint64_t destinations[KVC_CHUNK_BLOCKS];
    uint8_t regions[KVC_CHUNK_BLOCKS];
    struct store_location from[KVC_CHUNK_BLOCKS];
    uint32_t n_puts, n_left;
    struct put puts[KVC_CHUNK_BLOCKS + 1];
    struct ucx_op send;
    uv_work_t work;
};

static void set_state(struct service *s, enum service_state state)
{
    static const uint8_t legal[] = {
        [SERVE_WAITING] = 1u << SERVE_PACKING | 1u << SERVE_SENDING | 1u << SERVE_PLACED,
        [SERVE_PACKING] = 1u << SERVE_SENDING,
        [SERVE_SENDING] = 0,
        [SERVE_PLACED] = 0,
    };

    assert(legal[s->state] & 1u << state);
    (void)legal;
    s->state = state;
}

static const uint8_t *address_of(const struct service *s, uint32_t i)
{
    return tier_address(s->peers->config.tiers[s->from[i].tier], s->from[i].offset);
}

/* Answers. */

static void refuse(struct guest *g, uint64_t id, kvc_status status)
{
    const struct message m = {.type = MESSAGE_RESULT, .result = {.id = id, .status = status}};

    g->refused++;
    g->peers->figures.refused++;
    if (g->control != NULL)
        link_send(g->control, &m);
}

static void report(const struct service *s)
{
    uint8_t checksums[KVC_CHUNK_BLOCKS * 8], offsets[KVC_CHUNK_BLOCKS * 8];
    uint8_t checked[KVC_CHUNK_BLOCKS], regions[KVC_CHUNK_BLOCKS];
    const struct message m = {
        .type = MESSAGE_RESULT,
        .result = {.id = s->id,
                   .status = KVC_OK,
                   .n = s->n,
                   .checksums = checksums,
                   .checked = checked,
                   .offsets = offsets,
                   .regions = regions},
    };

    for (uint32_t i = 0; i < s->n; i++) {
        message_set_u64(checksums, i, s->from[i].checksum);
        message_set_u64(offsets, i, s->from[i].offset);
        checked[i] = s->from[i].checked;
        regions[i] = s->from[i].tier;
    }
    if (s->guest->control != NULL)
        link_send(s->guest->control, &m);
}

static void start_some(struct guest *g);

/* The one end of every service. */
static void end(struct service *s, bool served)
{
    struct guest *g = s->guest;

    list_remove(&s->link);
    if (s->state == SERVE_WAITING) {
        g->n_waiting--;
    } else {
        g->n_running--;
        s->peers->sending -= s->bytes;
        if (s->lane < PEER_LANES)
            g->lanes.used[s->lane] = false;
    }
    if (s->load != NULL)
        store_load_copied(s->peers->config.store, s->load, served);
    if (served) {
        g->batches++;
        g->useful += (uint64_t)s->n * s->shape->pack.block_bytes;
        g->wire += s->mode == MESSAGE_VIEWS ? s->view_bytes : s->bytes;
        s->peers->figures.served_blocks += s->n;
        s->peers->figures.served_bytes += (uint64_t)s->n * s->shape->pack.block_bytes;
    }
    s->peers->n_services--;
    mem_free(s);
}

static void finish(struct service *s, bool served)
{
    struct guest *g = s->guest;

    end(s, served);
    start_some(g);
    guest_settle(g);
}

/* Checks what the guest asks for, and opens the load that keeps it where it is. */
static kvc_status open_load(struct service *s)
{
    const struct table *table = store_table(s->peers->config.store);
    uint32_t first = UINT32_MAX, last = 0;
    struct store_load req = {.lease = s->lease, .part = s->part};
    struct store_location *locations;
    kvc_status status;

    if (store_owner_layout(s->peers->config.store, s->guest->owner, s->part) == NULL)
        return KVC_E_UNKNOWN;
    s->shape = shape_of(s->peers, table_part(table, s->part)->layout);
    if (s->shape == NULL)
        return KVC_E_NO_MEMORY;
    for (uint32_t i = 0; i < s->n; i++) {
        first = s->places[i] < first ? s->places[i] : first;
        last = s->places[i] > last ? s->places[i] : last;
    }
    if (last - first >= KVC_KEYS_MAX)
        return KVC_E_LIMIT;
    req.epoch = table_namespace(table, table_part(table, s->part)->namespace_)->epoch;
    req.first = first;
    req.count = last - first + 1;
    locations = mem_array(req.count, sizeof(*locations));
    if (locations == NULL)
        return KVC_E_NO_MEMORY;
    status = store_load_by_daemon(s->peers->config.store, s->guest->owner, &req, locations,
                                  &s->load, NULL);
    for (uint32_t i = 0; status == KVC_OK && i < s->n; i++) {
        s->from[i] = locations[s->places[i] - first];
        if (!peers_is_memory(s->peers, (enum tier_kind)s->from[i].tier))
            status = KVC_E_DEVICE; /* only on a GPU, which this transport does not reach */
    }
    mem_free(locations);
    return status;
}

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

static void pack_cb(uv_work_t *work)
{
    struct service *s = container_of(work, struct service, work);
    uint8_t *to = lane_base(&s->guest->lanes, s->lane);

    while (fault_fires("peer.pack_late"))
        usleep(1000);
    for (uint32_t i = 0; i < s->n; i++)
        memcpy(to + i * s->shape->span, address_of(s, i), s->shape->span);
}

static void sent_cb(struct ucx_op *op, kvc_status status)
{
    struct service *s = container_of(op, struct service, send);

    finish(s, status == KVC_OK);
}

static void packed_cb(uv_work_t *work, int status)
{
    struct service *s = container_of(work, struct service, work);
    struct guest *g = s->guest;

    (void)status;
    if (g->control == NULL || g->control->state != LINK_OPEN || g->endpoint == NULL) {
        finish(s, false);
        return;
    }
    set_state(s, SERVE_SENDING);
    report(s);
    s->send.done = sent_cb;
    ucx_send(g->endpoint, &s->send, s->id, lane_base(&g->lanes, s->lane), s->view_bytes,
             &g->lanes.memory);
}

static kvc_status begin_views(struct service *s)
{
    kvc_status status = check_view(s);

    if (status != KVC_OK)
        return status;
    s->lane = lane_take(&s->guest->lanes);
    assert(s->lane < PEER_LANES);
    set_state(s, SERVE_PACKING);
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
        report(s);
    else
        refuse(s->guest, s->id, s->status);
    finish(s, s->status == KVC_OK);
}

static struct ucx_op *next_op(struct service *s)
{
    struct put *put = &s->puts[s->n_puts++];

    put->service = s;
    put->op.done = put_cb;
    s->n_left++;
    return &put->op;
}

static void put_run(struct service *s, uint32_t first, uint32_t n)
{
    const struct region *region = &s->guest->regions[s->regions[first]];
    uint64_t from[KVC_CHUNK_BLOCKS], to[KVC_CHUNK_BLOCKS];
    struct plan_run runs[KVC_CHUNK_BLOCKS];
    uint32_t n_runs;

    for (uint32_t i = 0; i < n; i++) {
        from[i] = (uint64_t)(uintptr_t)address_of(s, first + i);
        to[i] = region->base + s->destinations[first + i];
    }
    n_runs = plan_runs(from, to, n, s->shape->span, runs);
    for (uint32_t i = 0; i < n_runs; i++)
        ucx_put(s->guest->endpoint, next_op(s), (const void *)(uintptr_t)runs[i].from,
                runs[i].bytes, &s->peers->memory[s->from[first].tier], runs[i].to, region->rkey);
}

static kvc_status begin_put(struct service *s)
{
    kvc_status status = check_destinations(s);
    uint32_t first = 0;

    if (status != KVC_OK)
        return status;
    set_state(s, SERVE_SENDING);
    for (uint32_t i = 1; i <= s->n; i++) {
        if (i < s->n && s->regions[i] == s->regions[first] &&
            s->from[i].tier == s->from[first].tier)
            continue;
        put_run(s, first, i - first);
        first = i;
    }
    ucx_flush(s->guest->endpoint, next_op(s));
    return KVC_OK;
}

static kvc_status begin_mode(struct service *s)
{
    switch (s->mode) {
    case MESSAGE_VIEWS:
        return begin_views(s);
    case MESSAGE_PUT:
        return begin_put(s);
    default:
        set_state(s, SERVE_PLACED);
        report(s);
        return KVC_OK;
    }
}

static void begin(struct service *s)
{
    struct guest *g = s->guest;
    kvc_status status = open_load(s);

    s->bytes = status == KVC_OK ? s->n * s->shape->span : 0;
    if (status == KVC_OK) {
        list_move_back(&g->running, &s->link);
        g->n_running++;
        g->n_waiting--;
        s->peers->sending += s->bytes;
        status = fault_fires("peer.serve") ? KVC_E_DEVICE : begin_mode(s);
        if (status == KVC_OK)
            return;
        g->n_running--;
        g->n_waiting++;
        s->peers->sending -= s->bytes;
        if (s->lane < PEER_LANES)
            g->lanes.used[s->lane] = false;
        s->state = SERVE_WAITING;
    }
    refuse(g, s->id, status);
    end(s, false);
}

static void start_some(struct guest *g)
{
    struct service *s;

    while (g->n_running < PEER_LANES && g->control != NULL && g->endpoint != NULL &&
           (s = list_first(&g->waiting, struct service, link)) != NULL)
        begin(s);
}

void serve_fetch(struct guest *g, const struct message_fetch *m)
{
    struct service *s;

    if (!(g->modes & 1u << m->mode)) {
        refuse(g, m->id, KVC_E_UNSUPPORTED);
        return;
    }
    s = g->n_waiting < WAITING_MAX ? mem_zalloc(sizeof(*s)) : NULL;
    if (s == NULL) {
        refuse(g, m->id, KVC_E_BUSY);
        return;
    }
    s->peers = g->peers;
    s->guest = g;
    s->id = m->id;
    s->lease = m->lease;
    s->part = m->part;
    s->mode = m->mode;
    s->view_bytes = m->view_bytes;
    s->n = m->n;
    s->lane = PEER_LANES;
    for (uint32_t i = 0; i < m->n; i++) {
        s->places[i] = message_u32(m->places, i);
        if (m->mode != MESSAGE_PUT)
            continue;
        s->destinations[i] = message_u64(m->destinations, i);
        s->regions[i] = m->regions[i];
    }
    list_init(&s->link);
    list_push_back(&g->waiting, &s->link);
    g->n_waiting++;
    g->peers->n_services++;
    start_some(g);
}

void serve_done(struct guest *g, uint64_t id)
{
    struct service *s;

    list_for_each(s, &g->running, link) {
        if (s->id != id || s->state != SERVE_PLACED)
            continue;
        finish(s, true);
        return;
    }
    list_for_each(s, &g->waiting, link) {
        if (s->id != id)
            continue;
        end(s, false);
        return;
    }
    g->stale++;
}

void serve_end_all(struct guest *g)
{
    struct service *s, *after;

    list_for_each_safe(s, after, &g->waiting, link)
        end(s, false);
    list_for_each_safe(s, after, &g->running, link)
        if (s->state == SERVE_PLACED)
            end(s, false);
}

/* Queries. */

/* The part that this is here, if anybody has it: 0: nobody has. */
static uint32_t find_part(const struct guest *g, const struct message_query *q)
{
    const struct table *table = store_table(g->peers->config.store);
    struct table_part part = {.tenant = g->peers->tenant, .rule = q->rule, .window = q->window};
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
