/* Guests: daemons that ask this one. */
#ifdef KVC_UCX

#include <stdio.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define GUESTS_MAX    (2 * PEERS_MAX) /* that have passed the greeting */
#define CONNECTED_MAX 256u            /* with those that have not: each has 128 KiB of buffers */

static bool has_greeted(const struct guest *g)
{
    return g->lanes.slab.base != NULL;
}

static void free_guest(struct guest *g)
{
    struct peers *peers = g->peers;

    if (g->owner != NULL)
        store_owner_end(peers->config.store, g->owner);
    if (has_greeted(g)) {
        lanes_close(peers, &g->lanes);
        peers->n_greeted--;
    }
    list_remove(&g->link);
    peers->n_guests--;
    mem_free(g);
}

void guest_settle(struct guest *g)
{
    if (g->control == NULL && g->endpoint == NULL && g->n_waiting == 0 && g->n_running == 0)
        free_guest(g);
}

static void endpoint_failed(void *arg, kvc_status status)
{
    struct guest *g = arg;

    (void)status;
    if (g->control != NULL)
        link_end(g->control, "UCX says that it failed");
}

static bool on_ready(void *arg, struct link *link, struct message_ready *ready)
{
    struct guest *g = arg;

    (void)link;
    if (g->peers->n_greeted == GUESTS_MAX || lanes_open(g->peers, &g->lanes) != KVC_OK)
        return false;
    g->peers->n_greeted++;
    g->registrations = 1;
    peers_describe(g->peers, &g->lanes, ready);
    return true;
}

static kvc_status on_open(void *arg, struct link *link, const struct message_ready *ready)
{
    struct guest *g = arg;
    const struct owner_identity identity = {
        .tenant = g->tenant, .role = STORE_ROLE_READER, .pid = getpid()};
    kvc_status status = store_owner_open(g->peers->config.store, &identity, NULL, &g->owner);

    if (status != KVC_OK)
        return status;
    g->ready = ready_keep(ready);
    if (g->ready == NULL)
        return KVC_E_NO_MEMORY;
    g->epoch = link->epoch;
    g->modes = ready->modes & peers_modes(g->peers);
    log_info("peer", "peer asks name=%s", g->name);
    return KVC_OK;
}

/* Its endpoint. Only who has passed the greeting, and has none, is waited for. */

static bool waits_for_call(const struct guest *g)
{
    return g->control != NULL && g->control->state == LINK_OPEN && g->ready != NULL;
}

bool guest_is_expected(void *arg, const struct sockaddr_storage *from)
{
    const struct peers *peers = arg;
    const struct guest *g;
    struct sockaddr_storage host;

    list_for_each(g, &peers->guests, link)
        if (waits_for_call(g) && link_peer(g->control, &host) &&
            (peers_is_same_host(&host, from) ||
             (link_is_loopback(&host) && link_is_loopback(from))))
            return true;
    return false;
}

static kvc_status take_call(struct guest *g, struct ucx_call *call)
{
    const struct ucx_endpoint_events events = {g, endpoint_failed};
    char lanes[UCX_LANES_MAX];
    kvc_status status = ucx_accept(call, &events, &g->endpoint);

    if (status != KVC_OK)
        return status;
    /* Where it may be put by itself; asker.c says why nowhere else. */
    ucx_lanes(g->endpoint, lanes);
    if (peers_native_mode(g->peers, lanes) != MESSAGE_PUT)
        return KVC_OK;
    g->registrations += g->ready->n_regions;
    return regions_open(g->endpoint, g->ready, g->regions);
}

void guest_called(void *arg, uint64_t number, struct ucx_call *call)
{
    struct peers *peers = arg;
    struct guest *g;

    list_for_each(g, &peers->guests, link) {
        kvc_status status;

        if (!waits_for_call(g) || g->ready->caller != number)
            continue;
        status = take_call(g, call);
        mem_free(g->ready);
        g->ready = NULL;
        if (status == KVC_OK)
            serve_start_some(g);
        else
            link_end(g->control, kvc_status_text(status));
        return;
    }
}

static void on_message(void *arg, struct link *link, const struct message *m)
{
    struct guest *g = arg;

    switch (m->type) {
    case MESSAGE_QUERY:
        serve_query(g, &m->query);
        break;
    case MESSAGE_FETCH:
        serve_fetch(g, &m->fetch);
        break;
    case MESSAGE_DONE:
        serve_done(g, m->id);
        break;
    case MESSAGE_RELEASE:
        (void)store_release(g->peers->config.store, g->owner, m->id, NULL);
        break;
    case MESSAGE_ASK_KEYS:
        gpu_tell(g);
        break;
    case MESSAGE_PING:
        link_send(link, &(struct message){.type = MESSAGE_PONG, .id = m->id});
        break;
    default:
        break;
    }
}

static void endpoint_closed(void *arg)
{
    struct guest *g = arg;

    regions_close(g->endpoint, g->regions);
    g->endpoint = NULL;
    guest_settle(g);
}

static void on_ended(void *arg, struct link *link, const char *why)
{
    struct guest *g = arg;

    (void)link;
    g->control = NULL;
    mem_free(g->ready);
    g->ready = NULL;
    if (g->owner != NULL && !g->peers->stopping)
        log_info("peer", "peer asks no more name=%s reason=\"%s\"", g->name, why);
    serve_end_all(g);
    if (g->endpoint != NULL)
        ucx_disconnect(g->endpoint, endpoint_closed, g);
    guest_settle(g);
}

const struct link_events guest_events = {on_ready, on_open, on_message, on_ended};

/* Who says nothing keeps nobody out: the first of them goes, since peers greet at once. */
static void make_room(struct peers *peers)
{
    struct guest *g;

    if (peers->n_guests < CONNECTED_MAX)
        return;
    list_for_each(g, &peers->guests, link) {
        if (has_greeted(g) || g->control == NULL || g->control->state == LINK_CLOSING)
            continue;
        link_end(g->control, "others want to greet, too");
        return;
    }
}

bool guest_accept(struct peers *peers)
{
    struct guest *g = mem_zalloc(sizeof(*g));
    struct sockaddr_storage address;

    if (g == NULL)
        return false;
    g->peers = peers;
    g->tenant = peers->tenant;
    list_init(&g->waiting);
    list_init(&g->running);
    list_init(&g->link);
    if (link_accept(&peers->serve_links, (uv_stream_t *)&peers->listener, g, &g->control) !=
        KVC_OK) {
        mem_free(g);
        return false;
    }
    make_room(peers);
    list_push_back(&peers->guests, &g->link);
    peers->n_guests++;
    snprintf(g->name, sizeof(g->name), "%s", g->control->name);
    if (peers->stopping || !link_peer(g->control, &address))
        link_end(g->control, "it is gone already");
    else if (!peers_admit(peers, &address, &g->tenant)) {
        log_warn("peer", "a stranger is refused address=%s", g->name);
        link_end(g->control, "a stranger");
    }
    return true;
}

/* Its pings have stopped: it is gone, or hangs. */
void guest_look(struct guest *g, uint64_t now)
{
    const uint64_t silence = g->peers->config.silence_ms * CLOCK_MS_US;

    if (g->control != NULL && g->control->state == LINK_OPEN && now > g->control->heard_us &&
        now - g->control->heard_us > silence)
        link_end(g->control, "it is silent");
}

#endif
