/* Batches that guests ask for: checked, begun by turns, and their ends. */
#ifdef KVC_UCX

#include <assert.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/peer/serve.h"

#define WAITING_MAX 64u /* batches that a guest may have waiting */

void service_set_state(struct service *s, enum service_state state)
{
    static const uint8_t legal[] = {
        [SERVE_WAITING] =
            1u << SERVE_STAGING | 1u << SERVE_PACKING | 1u << SERVE_SENDING | 1u << SERVE_PLACED,
        [SERVE_STAGING] = 1u << SERVE_PACKING | 1u << SERVE_SENDING,
        [SERVE_PACKING] = 1u << SERVE_SENDING,
        [SERVE_SENDING] = 0,
        [SERVE_PLACED] = 0,
    };

    assert(legal[s->state] & 1u << state);
    (void)legal;
    s->state = state;
}

const uint8_t *service_address(const struct service *s, uint32_t i)
{
    if (s->staged & 1ull << i)
        return staging_address(s->peers, s->stage) + i * s->shape->span;
    return tier_address(s->peers->config.tiers[s->from[i].tier], s->from[i].offset);
}

/* Answers. */

void service_refuse(struct guest *g, uint64_t id, kvc_status status)
{
    const struct message m = {.type = MESSAGE_RESULT, .result = {.id = id, .status = status}};

    g->refused++;
    if (g->control != NULL)
        link_send(g->control, &m);
}

void service_report(const struct service *s)
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

static bool give_stage(struct service *s)
{
    if (s->stage == PEERS_STAGES)
        return false;
    staging_give(s->peers, s->stage);
    s->stage = PEERS_STAGES;
    s->guest->n_staged--;
    return true;
}

/* The one end of every service. */
static void end(struct service *s, bool served)
{
    struct guest *g = s->guest;

    list_remove(&s->link);
    give_stage(s);
    if (!s->running) {
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
        g->small += s->mode == MESSAGE_VIEWS && s->view_bytes == VIEW_SMALL_BYTES;
        g->useful += (uint64_t)s->n * s->shape->pack.block_bytes;
        g->wire += s->mode == MESSAGE_VIEWS ? s->view_bytes : s->bytes;
        s->peers->figures.served_blocks += s->n;
    }
    s->peers->n_services--;
    mem_free(s);
}

/* One that has a place, and may hang, is not to hide those behind it. */
static bool goes_before(const struct guest *a, const struct guest *b)
{
    if ((a->n_staged == 0) != (b->n_staged == 0))
        return a->n_staged == 0;
    return a->staged < b->staged;
}

/* Memory to pass through was given back: who has had none for the longest time comes first. */
static void share_stage(struct peers *peers)
{
    struct guest *g, *first = NULL;

    list_for_each(g, &peers->guests, link)
        if (g->n_waiting > 0 && g->n_running < PEER_LANES &&
            (first == NULL || goes_before(g, first)))
            first = g;
    if (first != NULL)
        serve_start_some(first);
    /* What it did not take, since what waited was refused. */
    list_for_each(g, &peers->guests, link)
        serve_start_some(g);
}

void service_unstage(struct service *s)
{
    if (give_stage(s))
        share_stage(s->peers);
}

void service_finish(struct service *s, bool served)
{
    struct peers *peers = s->peers;
    struct guest *g = s->guest;
    const bool staged = give_stage(s);

    end(s, served);
    if (staged)
        share_stage(peers);
    serve_start_some(g);
    guest_settle(g);
}

/* Whether the block is where its mode takes it from, or can be brought there. */
static kvc_status note_place(struct service *s, uint32_t i)
{
    if (s->mode == MESSAGE_GPU)
        return s->from[i].tier == TIER_GPU && gpu_holds(s->peers, s->from[i].offset, s->shape->span)
                   ? KVC_OK
                   : KVC_E_DEVICE;
    if (!peers_is_memory(s->peers, (enum tier_kind)s->from[i].tier))
        s->staged |= 1ull << i;
    return KVC_OK;
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
        status = note_place(s, i);
    }
    mem_free(locations);
    return status;
}

static kvc_status move(struct service *s)
{
    if (fault_fires("peer.serve"))
        return KVC_E_DEVICE;
    return s->staged != 0 ? service_stage(s) : service_move(s);
}

/* false: it waits on, for memory to pass through. */
static bool begin(struct service *s)
{
    struct guest *g = s->guest;
    kvc_status status;

    s->staged = 0;
    status = open_load(s);
    s->bytes = status == KVC_OK ? s->n * s->shape->span : 0;
    if (status == KVC_OK)
        status = move(s);
    if (status == KVC_E_BUSY && s->load != NULL) {
        store_load_copied(s->peers->config.store, s->load, false);
        s->load = NULL;
        return false;
    }
    if (status == KVC_OK) {
        s->running = true;
        list_move_back(&g->running, &s->link);
        g->n_running++;
        g->n_waiting--;
        s->peers->sending += s->bytes;
    } else {
        if (s->lane < PEER_LANES)
            g->lanes.used[s->lane] = false;
        service_refuse(g, s->id, status);
        end(s, false);
    }
    return true;
}

static uint32_t most_of(const struct service *s)
{
    return s->mode == MESSAGE_GPU ? PEER_READS : PEER_LANES;
}

void serve_start_some(struct guest *g)
{
    struct service *s;

    while (g->control != NULL && g->endpoint != NULL &&
           (s = list_first(&g->waiting, struct service, link)) != NULL && g->n_running < most_of(s))
        if (!begin(s))
            return;
}

void serve_fetch(struct guest *g, const struct message_fetch *m)
{
    struct service *s;

    if (!(g->modes & 1u << m->mode)) {
        service_refuse(g, m->id, KVC_E_UNSUPPORTED);
        return;
    }
    s = g->n_waiting < WAITING_MAX ? mem_zalloc(sizeof(*s)) : NULL;
    if (s == NULL) {
        service_refuse(g, m->id, KVC_E_BUSY);
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
    s->stage = PEERS_STAGES;
    for (uint32_t i = 0; i < m->n; i++) {
        s->places[i] = message_u32(m->places, i);
        if (!message_has_destinations(m->mode))
            continue;
        s->destinations[i] = message_u64(m->destinations, i);
        s->regions[i] = m->regions[i];
    }
    list_init(&s->link);
    list_push_back(&g->waiting, &s->link);
    g->n_waiting++;
    g->peers->n_services++;
    serve_start_some(g);
}

void serve_done(struct guest *g, uint64_t id)
{
    struct service *s;

    list_for_each(s, &g->running, link) {
        if (s->id != id || s->state != SERVE_PLACED)
            continue;
        service_finish(s, true);
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

#endif
