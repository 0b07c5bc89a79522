/* Peers that this daemon asks: found, linked, looked after, and linked again. */
#ifdef KVC_UCX

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define BACKOFF_MS     100u
#define BACKOFF_MAX_MS 10000u
#define PINGS          3u /* in the time that a peer may be silent */

static void set_state(struct peer *peer, enum peer_state state)
{
    static const uint8_t legal[] = {
        [PEER_WAITING] = 1u << PEER_RESOLVING | 1u << PEER_STOPPED,
        [PEER_RESOLVING] = 1u << PEER_LINKING | 1u << PEER_WAITING | 1u << PEER_STOPPED,
        [PEER_LINKING] = 1u << PEER_OPEN | 1u << PEER_CLOSING | 1u << PEER_WAITING,
        [PEER_OPEN] = 1u << PEER_CLOSING,
        [PEER_CLOSING] = 1u << PEER_WAITING,
        [PEER_STOPPED] = 0,
    };

    assert(legal[peer->state] & 1u << state);
    (void)legal;
    peer->state = state;
}

static void attempt_cb(uv_timer_t *timer);

static void stopped_cb(uv_handle_t *handle)
{
    struct peer *peer = container_of((uv_timer_t *)handle, struct peer, timer);

    set_state(peer, PEER_STOPPED);
    if (peer->retired)
        peer_free(peer);
}

/* Nothing of the last attempt is left: waits for the next, or is at its end. */
static void wait_for_next(struct peer *peer)
{
    set_state(peer, PEER_WAITING);
    if (peer->peers->stopping) {
        uv_close((uv_handle_t *)&peer->timer, stopped_cb);
        return;
    }
    uv_timer_start(&peer->timer, attempt_cb, peer->backoff_ms, 0);
    peer->backoff_ms *= 2;
    if (peer->backoff_ms > BACKOFF_MAX_MS)
        peer->backoff_ms = BACKOFF_MAX_MS;
}

/* Said at the first failure, and then when something has changed. */
static void note_failure(struct peer *peer, const char *why)
{
    bool new =
        peer->state == PEER_OPEN || strncmp(peer->reason, why, sizeof(peer->reason) - 1) != 0;

    if (peer->peers->stopping)
        return;
    snprintf(peer->reason, sizeof(peer->reason), "%s", why);
    if (new)
        log_info("peer", "peer lost name=%s reason=\"%s\"", peer->name, why);
}

static void link_to(struct peer *peer, const struct sockaddr *address)
{
    memcpy(&peer->address, address,
           address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in));
    set_state(peer, PEER_LINKING);
    if (link_connect(&peer->peers->ask_links, address, peer->name, peer, &peer->control) == KVC_OK)
        return;
    note_failure(peer, "out of memory");
    wait_for_next(peer);
}

static void resolved_cb(uv_getaddrinfo_t *resolving, int status, struct addrinfo *found)
{
    struct peer *peer = container_of(resolving, struct peer, resolving);
    const struct addrinfo *address = found;

    while (address != NULL && address->ai_family != AF_INET && address->ai_family != AF_INET6)
        address = address->ai_next;
    if (peer->peers->stopping) {
        wait_for_next(peer);
    } else if (status < 0 || address == NULL) {
        note_failure(peer, status < 0 ? uv_strerror(status) : "no address");
        wait_for_next(peer);
    } else {
        link_to(peer, address->ai_addr);
    }
    uv_freeaddrinfo(found);
}

static void attempt_cb(uv_timer_t *timer)
{
    struct peer *peer = container_of(timer, struct peer, timer);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int rc = uv_getaddrinfo(peer->peers->config.loop, &peer->resolving, resolved_cb, peer->host,
                            peer->port, &hints);

    peer->attempts++;
    set_state(peer, PEER_RESOLVING);
    if (rc == 0)
        return;
    note_failure(peer, uv_strerror(rc));
    wait_for_next(peer);
}

/* The way of the bytes. */

bool lanes_have(const char *lanes, const char *kind)
{
    for (const char *at = lanes; (at = strstr(at, kind)) != NULL; at++)
        if (at == lanes || at[-1] == ' ')
            return true;
    return false;
}

static bool is_fast(const char *lanes)
{
    return lanes_have(lanes, "rc") || lanes_have(lanes, "dc") || lanes_have(lanes, "cma") ||
           lanes_have(lanes, "xpmem") || lanes_have(lanes, "cuda");
}

/*
 * What the lanes do by themselves: InfiniBand's reads always; copies between processes and puts
 * over TCP only with the protocols that are on from UCX 1.16. Everything else UCX emulates by
 * copies of its own, without a word: messages are better there. MESSAGE_VIEWS: nothing.
 */
uint32_t peers_native_mode(const struct peers *peers, const char *lanes)
{
    const char *version = ucx_version(peers->ucx);
    unsigned major = 0, minor = 0;
    bool new;

    sscanf(version, "%u.%u", &major, &minor);
    new = major > 1 || (major == 1 && minor >= 16);
    if (lanes_have(lanes, "rc") || lanes_have(lanes, "dc"))
        return MESSAGE_GET;
    if (new && (lanes_have(lanes, "cma") || lanes_have(lanes, "xpmem")))
        return MESSAGE_GET;
    if (new &&lanes_have(lanes, "tcp"))
        return MESSAGE_PUT;
    return MESSAGE_VIEWS;
}

static kvc_status choose_mode(struct peer *peer, uint32_t theirs)
{
    const uint32_t allowed = theirs & peers_modes(peer->peers);
    const char *version = ucx_version(peer->peers->ucx);
    uint32_t native = peers_native_mode(peer->peers, peer->transports);

    peer->mode = native;
    peer->may_send = (allowed & 1u << MESSAGE_SEND) != 0;
    if (native == MESSAGE_PUT && peer->may_send) {
        /* Puts over TCP were measured to take twice their time (1.22). */
        peer->mode = MESSAGE_SEND;
        snprintf(peer->reason, sizeof(peer->reason), "faster than puts of UCX %.16s over TCP",
                 version);
    } else if (native != MESSAGE_VIEWS && allowed & 1u << native) {
        snprintf(peer->reason, sizeof(peer->reason), "native in UCX %.16s", version);
    } else if (peer->may_send) {
        peer->mode = MESSAGE_SEND;
        snprintf(peer->reason, sizeof(peer->reason), "UCX %.16s would emulate one-sided operations",
                 version);
    } else if (allowed & 1u << MESSAGE_VIEWS) {
        peer->mode = MESSAGE_VIEWS;
        snprintf(peer->reason, sizeof(peer->reason), "a setting, here or there");
    } else {
        return KVC_E_UNSUPPORTED;
    }
    return KVC_OK;
}

static void endpoint_failed(void *arg, kvc_status status)
{
    struct peer *peer = arg;

    (void)status;
    if (peer->control != NULL)
        link_end(peer->control, "UCX says that it failed");
}

static void note_lanes(struct peer *peer, const char *lanes)
{
    bool was_fast = is_fast(peer->transports);

    snprintf(peer->transports, sizeof(peer->transports), "%s", lanes);
    if (!was_fast || is_fast(lanes))
        return;
    peer->peers->figures.slow_lanes++;
    log_warn("peer", "peer is slower than it was name=%s lanes=\"%s\"", peer->name, lanes);
}

static bool on_ready(void *arg, struct link *link, struct message_ready *ready)
{
    struct peer *peer = arg;

    (void)link;
    peers_describe(peer->peers, &peer->lanes, ready);
    return true;
}

/* Its lanes are known: the way of the bytes is chosen. Remote keys are opened only where they will
 * be used: for operations that it emulates UCX greets the other side by itself then. */
static kvc_status choose_way(struct peer *peer)
{
    char lanes[UCX_LANES_MAX];
    kvc_status status;

    ucx_lanes(peer->endpoint, lanes);
    note_lanes(peer, lanes);
    status = choose_mode(peer, peer->ready->modes);
    peer->gpu_wanted = gpu_is_native(peer->peers, lanes) &&
                       (peer->ready->modes & peers_modes(peer->peers) & 1u << MESSAGE_GPU) != 0;
    if (status != KVC_OK || peer->mode != MESSAGE_GET)
        return status;
    peer->registrations += peer->ready->n_regions;
    return regions_open(peer->endpoint, peer->ready, peer->regions);
}

static void joined_cb(struct ucx_op *op, kvc_status status)
{
    struct peer *peer = container_of(op, struct peer, joining);

    if (peer->state != PEER_LINKING || peer->control->state != LINK_OPEN)
        return;
    if (status != KVC_OK) {
        link_end(peer->control, "UCX cannot connect");
        return;
    }
    status = choose_way(peer);
    mem_free(peer->ready);
    peer->ready = NULL;
    if (status != KVC_OK) {
        link_end(peer->control, kvc_status_text(status));
        return;
    }
    peer->backoff_ms = BACKOFF_MS;
    peer->attempts = 0;
    set_state(peer, PEER_OPEN);
    if (peer->gpu_wanted)
        link_send(peer->control, &(struct message){.type = MESSAGE_ASK_KEYS, .id = peer->epoch});
    log_info("peer", "peer open name=%s mode=\"%s\" lanes=\"%s\" reason=\"%s\"", peer->name,
             message_mode_name(peer->mode), peer->transports, peer->reason);
}

static kvc_status on_open(void *arg, struct link *link, const struct message_ready *ready)
{
    const struct ucx_endpoint_events events = {arg, endpoint_failed};
    struct peer *peer = arg;
    struct ucx_way way = {.port = (uint16_t)ready->port};
    kvc_status status;

    if (ready->port == 0 || !link_self(link, &way.from) || !link_peer(link, &way.to))
        return KVC_E_UNSUPPORTED;
    peer->ready = ready_keep(ready);
    if (peer->ready == NULL)
        return KVC_E_NO_MEMORY;
    status = ucx_connect(peer->peers->ask, &way, &events, &peer->endpoint);
    if (status != KVC_OK)
        return status;
    peer->epoch = link->epoch;
    peer->streak = (struct view_streak){0};
    peer->joining.done = joined_cb;
    peer->joining_us = clock_now_us();
    ucx_flush(peer->endpoint, &peer->joining);
    peers_tick_soon(peer->peers);
    return KVC_OK;
}

static void learn(struct peer *peer, const struct message_keys *keys)
{
    const size_t len = strlen(peer->reason);
    kvc_status status = gpu_learn(peer, keys);

    if (status != KVC_OK)
        link_end(peer->control, status == KVC_E_PROTOCOL ? "keys that do not follow each other"
                                                         : "keys that UCX does not take");
    else if (peer->gpu_wanted && peer->gpu.known == peer->gpu.n)
        snprintf(peer->reason + len, sizeof(peer->reason) - len, "; from GPU to GPU: get");
}

static void on_message(void *arg, struct link *link, const struct message *m)
{
    struct peer *peer = arg;

    (void)link;
    switch (m->type) {
    case MESSAGE_ANSWER:
        fetch_answer(peer, &m->answer);
        break;
    case MESSAGE_RESULT:
        batch_result(peer, &m->result);
        break;
    case MESSAGE_KEYS:
        learn(peer, &m->keys);
        break;
    default: /* PONG: it was heard */
        break;
    }
}

static void endpoint_closed(void *arg)
{
    struct peer *peer = arg;

    regions_close(peer->endpoint, peer->regions);
    gpu_forget(peer);
    peer->endpoint = NULL;
    batch_endpoint_gone(peer);
    wait_for_next(peer);
}

static void on_ended(void *arg, struct link *link, const char *why)
{
    struct peer *peer = arg;

    (void)link;
    note_failure(peer, why);
    peer->control = NULL;
    mem_free(peer->ready);
    peer->ready = NULL;
    if (peer->endpoint == NULL) {
        wait_for_next(peer);
        return;
    }
    set_state(peer, PEER_CLOSING);
    peer->peers->figures.failed_links++;
    batch_link_lost(peer);
    ucx_disconnect(peer->endpoint, endpoint_closed, peer);
    fetch_peer_lost(peer);
}

const struct link_events peer_events = {on_ready, on_open, on_message, on_ended};

/* Life. */

kvc_status peer_add(struct peers *peers, const struct peer_name *name, uint32_t tenant, bool hinted)
{
    const char *host = name->host, *port = name->port;
    struct peer *peer = mem_zalloc(sizeof(*peer));
    kvc_status status;

    if (peer == NULL)
        return KVC_E_NO_MEMORY;
    status = lanes_open(peers, &peer->lanes);
    if (status != KVC_OK) {
        mem_free(peer);
        return status;
    }
    peer->peers = peers;
    peer->hinted = hinted;
    peer->tenant = tenant;
    snprintf(peer->host, sizeof(peer->host), "%s", host);
    snprintf(peer->port, sizeof(peer->port), "%s", port);
    /* A number is known before it is looked up: it may be the first to connect. */
    if (uv_ip4_addr(host, 0, (struct sockaddr_in *)&peer->address) < 0 &&
        uv_ip6_addr(host, 0, (struct sockaddr_in6 *)&peer->address) < 0)
        peer->address = (struct sockaddr_storage){0};
    snprintf(peer->name, sizeof(peer->name), strchr(host, ':') ? "[%.48s]:%s" : "%.50s:%s", host,
             port);
    list_init(&peer->waiting);
    list_init(&peer->running);
    peer->registrations = 1;
    peer->backoff_ms = BACKOFF_MS;
    uv_timer_init(peers->config.loop, &peer->timer);
    uv_timer_start(&peer->timer, attempt_cb, 0, 0);
    list_push_back(&peers->list, &peer->link);
    peers->n_peers++;
    return KVC_OK;
}

void peer_stop(struct peer *peer)
{
    if (peer->retired)
        return;
    if (peer->control != NULL)
        link_end(peer->control, "the daemon stops");
    else if (peer->state == PEER_WAITING)
        uv_close((uv_handle_t *)&peer->timer, stopped_cb);
    else if (peer->state == PEER_RESOLVING)
        uv_cancel((uv_req_t *)&peer->resolving);
}

void peer_free(struct peer *peer)
{
    assert(peer->state == PEER_STOPPED && list_empty(&peer->running));
    lanes_close(peer->peers, &peer->lanes);
    list_remove(&peer->link);
    peer->peers->n_peers--;
    mem_free(peer);
}

/* What it has counted stays counted. */
static void retire(struct peer *peer)
{
    struct peers_figures *figures = &peer->peers->figures;

    figures->wire_bytes += peer->wire;
    figures->stale += peer->stale;
    for (enum view view = 0; view < VIEW_COUNT; view++)
        figures->batches[view] += peer->batches[view];
    peer->useful = peer->wire = peer->stale = 0;
    memset(peer->batches, 0, sizeof(peer->batches));
    peer->retired = true;
    log_info("peer", "peer gives up its place name=%s reason=\"%s\"", peer->name, peer->reason);
    uv_close((uv_handle_t *)&peer->timer, stopped_cb);
}

void peers_retire_one(struct peers *peers)
{
    struct peer *peer, *oldest = NULL;

    list_for_each(peer, &peers->list, link) {
        if (peer->retired)
            return;
        /* Twice, so that one that has just come is not taken for one that is gone. */
        if (peer->hinted && peer->state == PEER_WAITING && peer->attempts >= 2 &&
            list_empty(&peer->running) && list_empty(&peer->waiting) &&
            (oldest == NULL || peer->attempts > oldest->attempts))
            oldest = peer;
    }
    if (oldest != NULL)
        retire(oldest);
}

void peer_look(struct peer *peer, uint64_t now)
{
    const uint64_t silence = peer->peers->config.silence_ms * CLOCK_MS_US;
    const struct message ping = {.type = MESSAGE_PING, .id = now};

    if (peer->state == PEER_LINKING && peer->endpoint != NULL && now > peer->joining_us + silence)
        link_end(peer->control, "UCX does not connect");
    if (peer->state != PEER_OPEN || now < peer->control->heard_us)
        return;
    if (now - peer->control->heard_us > silence)
        link_end(peer->control, "it is silent");
    else if (now - peer->control->heard_us > silence / PINGS &&
             now - peer->pinged_us > silence / PINGS) {
        peer->pinged_us = now;
        link_send(peer->control, &ping);
    }
}

#endif
