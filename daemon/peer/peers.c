/* Start and end, what all links share, and who may connect. */
#ifdef KVC_UCX

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define BUSY_TICK_MS 2u   /* while fetches have deadlines */
#define IDLE_TICK_MS 250u /* while only life is looked for */
#define BACKLOG      64

static kvc_status explain(char *why, size_t size, kvc_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return status;
}

static bool is_none(const char *text)
{
    return text == NULL || text[0] == '\0' || strcmp(text, "none") == 0;
}

/* Who may connect: with a secret whoever proves it; else who is here, or is named. And of which
 * tenant he is: that of the peer at his address. */

bool peers_is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family)
        return false;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

bool peers_admit(const struct peers *peers, const struct sockaddr_storage *address,
                 uint32_t *tenant)
{
    bool admitted = peers->secret.len > 0 || link_is_loopback(address);
    bool named = false, unknown = false;
    const struct peer *peer;

    *tenant = peers->tenant;
    /* Who can write to the directory does not open this door. */
    list_for_each(peer, &peers->list, link) {
        unknown = unknown || (peer->address.ss_family == 0 && peer->tenant != peers->tenant);
        if (peer->hinted || !peers_is_same_host(&peer->address, address))
            continue;
        /* Two names, one host: nobody knows which of them it is. */
        if (named && *tenant != peer->tenant)
            return false;
        *tenant = peer->tenant;
        named = true;
    }
    /* Whose name was not looked up yet is nobody's guest, rather than of the wrong tenant. */
    return named || (admitted && !unknown);
}

/* The loop brings nobody else before this one is taken: without memory he is tried at each tick. */
static void accept_one(struct peers *peers)
{
    const bool waited = peers->accept_waits;

    peers->accept_waits = !guest_accept(peers);
    if (peers->accept_waits && !waited)
        log_warn("peer", "accept paused reason=no_memory");
    else if (waited && !peers->accept_waits)
        log_info("peer", "accept resumed");
}

static void connection_cb(uv_stream_t *listener, int status)
{
    struct peers *peers = container_of((uv_tcp_t *)listener, struct peers, listener);

    if (status < 0)
        log_warn("peer", "cannot accept reason=\"%s\"", uv_strerror(status));
    else
        accept_one(peers);
}

static kvc_status listen_at(struct peers *peers, char *why, size_t size)
{
    const char *text = peers->config.listen;
    char host[PEER_NAME_MAX], port[8];
    struct sockaddr_storage address;
    int rc;

    if (is_none(text))
        return KVC_OK;
    if (!peer_name_split(text, host, port))
        return explain(why, size, KVC_E_INVALID, "peer-listen: \"%.80s\" is not address:port",
                       text);
    if (uv_ip4_addr(host, atoi(port), (struct sockaddr_in *)&address) < 0 &&
        uv_ip6_addr(host, atoi(port), (struct sockaddr_in6 *)&address) < 0)
        return explain(why, size, KVC_E_INVALID, "peer-listen: \"%s\" is no address", host);
    rc = uv_tcp_bind(&peers->listener, (struct sockaddr *)&address, 0);
    if (rc == 0)
        rc = uv_listen((uv_stream_t *)&peers->listener, BACKLOG, connection_cb);
    if (rc < 0)
        return explain(why, size, KVC_E_SYSTEM, "peer-listen: %s: %s", text, uv_strerror(rc));
    peers->ask_links.from = address;
    if (ucx_listen(peers->serve, &address) != KVC_OK)
        return explain(why, size, KVC_E_SYSTEM, "peer-listen: UCX cannot listen at %s", host);
    return KVC_OK;
}

/* "own", "uid:N" or a name. */
static kvc_status find_tenant(struct peers *peers, const char *text, char *why, size_t size,
                              uint32_t *tenant)
{
    char name[KVC_NAME_MAX + 1];
    uint32_t uid = UINT32_MAX;
    kvc_status status;

    if (!peer_tenant_check(text, why, size))
        return KVC_E_INVALID;
    if (strcmp(text, "own") == 0) {
        uid = geteuid();
        snprintf(name, sizeof(name), "uid:%u", uid);
        text = name;
    } else if (strncmp(text, "uid:", 4) == 0) {
        uid = (uint32_t)strtoul(text + 4, NULL, 10);
    }
    status = store_tenant(peers->config.store, text, uid, tenant);
    return status == KVC_OK
               ? status
               : explain(why, size, status, "peer-tenant: %s", kvc_status_text(status));
}

static kvc_status add_all(struct peers *peers, char *why, size_t size)
{
    struct peer_name names[PEERS_MAX];
    uint32_t n, tenant;

    if (is_none(peers->config.list))
        return KVC_OK;
    if (!peer_names_read(peers->config.list, names, &n, why, size))
        return KVC_E_INVALID;
    for (uint32_t i = 0; i < n; i++) {
        kvc_status status = KVC_OK;

        tenant = peers->tenant;
        if (names[i].tenant[0] != '\0')
            status = find_tenant(peers, names[i].tenant, why, size, &tenant);
        if (status != KVC_OK)
            return status;
        status = peer_add(peers, &names[i], tenant, false);
        if (status != KVC_OK)
            return explain(why, size, status, "peers: %s: %s", names[i].host,
                           kvc_status_text(status));
    }
    return KVC_OK;
}

static kvc_status read_secret(struct peers *peers, char *why, size_t size)
{
    if (is_none(peers->config.secret_file)) {
        log_info("peer", "there is no peer-secret-file: only daemons on this host, and at the "
                         "addresses in peers, may connect");
        return KVC_OK;
    }
    if (!secret_read(peers->config.secret_file, &peers->secret, why, size))
        return KVC_E_INVALID;
    return KVC_OK;
}

/* A node that the directory has. One that was named in the settings stays what it is. */
#ifdef KVC_DIRECTORY
static void node_cb(struct peers *peers, const char *name)
{
    struct peer_name node = {0};
    const struct peer *peer;

    if (peers->stopping || !peer_name_split(name, node.host, node.port))
        return;
    list_for_each(peer, &peers->list, link)
        if (strcmp(peer->host, node.host) == 0 && strcmp(peer->port, node.port) == 0)
            return;
    if (peers->n_peers == PEERS_MAX) {
        peers_retire_one(peers); /* this one is found again then */
        return;
    }
    log_info("peer", "the directory has a peer name=%s", name);
    if (peer_add(peers, &node, peers->tenant, true) != KVC_OK)
        log_warn("peer", "no memory for a peer name=%s", name);
}
#endif

static kvc_status open_directory(struct peers *peers, char *why, size_t size)
{
    if (is_none(peers->config.directory))
        return KVC_OK;
    if (!peer_name_split(peers->config.directory, peers->directory_host, peers->directory_port))
        return explain(why, size, KVC_E_INVALID, "directory: \"%.80s\" is not host:port",
                       peers->config.directory);
    if (is_none(peers->config.listen))
        return explain(why, size, KVC_E_INVALID,
                       "directory: a daemon that is in it needs peer-listen");
#ifdef KVC_DIRECTORY
    const struct directory_config config = {
        .peers = peers,
        .host = peers->directory_host,
        .port = peers->directory_port,
        .name = peers->config.listen,
        .ttl_ms = peers->config.directory_ms,
        .node = node_cb,
        .hint = fetch_hint,
    };
    kvc_status status = directory_create(&config, &peers->directory);

    return status == KVC_OK ? status
                            : explain(why, size, status, "directory: %s", kvc_status_text(status));
#else
    return explain(why, size, KVC_E_UNSUPPORTED,
                   "directory: this build has none; hiredis (Debian: libhiredis-dev) was absent");
#endif
}

void peers_note(struct peers *peers, uint32_t part, const uint8_t *key, bool here)
{
#ifdef KVC_DIRECTORY
    if (peers->directory != NULL)
        directory_note(peers->directory, part, key, here);
#else
    (void)peers, (void)part, (void)key, (void)here;
#endif
}

static void tick_cb(uv_timer_t *timer)
{
    struct peers *peers = container_of(timer, struct peers, tick);
    const uint64_t now = clock_now_us();
    struct peer *peer;
    struct guest *guest, *after;
    bool busy = peers->n_fetches > 0;

    if (peers->accept_waits)
        accept_one(peers);
    list_for_each(peer, &peers->list, link) {
        /* UCX wakes nobody when a connection has been made. */
        busy = busy || (peer->state == PEER_LINKING && peer->endpoint != NULL);
        peer_look(peer, now);
        batch_look(peer, now);
    }
    list_for_each_safe(guest, after, &peers->guests, link)
        guest_look(guest, now);
    fetch_look_all(peers, now);
    uv_timer_start(&peers->tick, tick_cb, busy ? BUSY_TICK_MS : IDLE_TICK_MS, 0);
}

void peers_tick_soon(struct peers *peers)
{
    uv_timer_start(&peers->tick, tick_cb, BUSY_TICK_MS, 0);
}

static kvc_status open_transport(struct peers *peers, char *why, size_t size)
{
    const struct ucx_worker_events asking = {
        .arg = peers, .message = batch_message, .progressed = batch_peek_all};
    const struct ucx_worker_events serving = {
        .arg = peers, .expects = guest_is_expected, .called = guest_called};
    char text[UCX_WHY_MAX];
    kvc_status status = ucx_open(peers->config.ucx, text, &peers->ucx);

    if (status != KVC_OK)
        return explain(why, size, status, "%s", text);
    status = peers_register_tiers(peers);
    if (status == KVC_OK)
        status = gpu_open(peers);
    if (status == KVC_OK)
        status = staging_open(peers);
    if (status == KVC_OK)
        status = ucx_worker_open(peers->ucx, peers->config.loop, &asking, &peers->ask);
    if (status == KVC_OK)
        status = ucx_worker_open(peers->ucx, peers->config.loop, &serving, &peers->serve);
    return status == KVC_OK ? status
                            : explain(why, size, status, "UCX: %s", kvc_status_text(status));
}

kvc_status peers_create(const struct peers_config *config, char *why, size_t size,
                        struct peers **ret)
{
    struct peers *peers = mem_zalloc(sizeof(*peers));
    kvc_status status;

    if (peers == NULL)
        return explain(why, size, KVC_E_NO_MEMORY, "out of memory");
    peers->config = *config;
    list_init(&peers->list);
    list_init(&peers->guests);
    list_init(&peers->fillers);
    list_init(&peers->fetches);
    list_init(&peers->shapes);
    peers->ask_links = (struct link_config){.loop = config->loop,
                                            .epoch = config->boot_epoch,
                                            .secret = &peers->secret,
                                            .greet_ms = config->silence_ms,
                                            .events = &peer_events};
    peers->serve_links = peers->ask_links;
    peers->serve_links.events = &guest_events;
    uv_tcp_init(config->loop, &peers->listener);
    uv_timer_init(config->loop, &peers->tick);
    peers->handles = 2;
    status = getrandom(&peers->next_id, sizeof(peers->next_id), 0) == sizeof(peers->next_id)
                 ? KVC_OK
                 : explain(why, size, KVC_E_SYSTEM, "no random numbers");
    if (status == KVC_OK)
        status = read_secret(peers, why, size);
    if (status == KVC_OK)
        status = find_tenant(peers, config->tenant, why, size, &peers->tenant);
    if (status == KVC_OK)
        status = open_transport(peers, why, size);
    if (status == KVC_OK)
        status = add_all(peers, why, size);
    if (status == KVC_OK)
        status = listen_at(peers, why, size);
    if (status == KVC_OK)
        status = open_directory(peers, why, size);
    if (status != KVC_OK) {
        peers_stop(peers);
        *ret = peers; /* to be destroyed when nothing of it is left */
        return status;
    }
    log_info("peer", "peers ready ucx=%s listen=%s peers=%u", ucx_version(peers->ucx),
             config->listen, peers->n_peers);
    peers_tick_soon(peers);
    *ret = peers;
    return KVC_OK;
}

static void listener_closed_cb(uv_handle_t *handle)
{
    container_of((uv_tcp_t *)handle, struct peers, listener)->handles--;
}

static void tick_closed_cb(uv_handle_t *handle)
{
    container_of((uv_timer_t *)handle, struct peers, tick)->handles--;
}

void peers_stop(struct peers *peers)
{
    struct peer *peer;
    struct guest *guest;

    if (peers->stopping)
        return;
    peers->stopping = true;
    uv_close((uv_handle_t *)&peers->listener, listener_closed_cb);
    uv_close((uv_handle_t *)&peers->tick, tick_closed_cb);
#ifdef KVC_DIRECTORY
    if (peers->directory != NULL)
        directory_stop(peers->directory);
#endif
    list_for_each(peer, &peers->list, link)
        peer_stop(peer);
    list_for_each(guest, &peers->guests, link)
        if (guest->control != NULL)
            link_end(guest->control, "the daemon stops");
    fetch_stop_all(peers);
}

void peers_drain(struct peers *peers, bool drain)
{
    if (peers->stopping)
        return;
    peers->draining = drain;
    if (drain)
        fetch_hurry_all(peers);
#ifdef KVC_DIRECTORY
    if (peers->directory != NULL)
        directory_drain(peers->directory, drain);
#endif
}

uint32_t peers_fetching(const struct peers *peers)
{
    return peers->n_fetches;
}

static void worker_gone_cb(void *arg)
{
    ((struct peers *)arg)->workers--;
}

/* The workers go when no endpoint is left: here, since who waits asks. */
static void close_workers(struct peers *peers)
{
    if (peers->ask != NULL) {
        peers->workers++;
        ucx_worker_close(peers->ask, worker_gone_cb, peers);
        peers->ask = NULL;
    }
    if (peers->serve != NULL) {
        peers->workers++;
        ucx_worker_close(peers->serve, worker_gone_cb, peers);
        peers->serve = NULL;
    }
}

uint32_t peers_count(const struct peers *peers)
{
    const struct peer *peer;
    uint32_t n = peers->handles + peers->n_guests + peers->n_fetches + peers->n_batches +
                 peers->n_services + peers->workers;

    list_for_each(peer, &peers->list, link)
        n += peer->state != PEER_STOPPED;
#ifdef KVC_DIRECTORY
    n += peers->directory != NULL && directory_is_busy(peers->directory);
#endif
    if (n == 0 && peers->stopping && (peers->ask != NULL || peers->serve != NULL)) {
        close_workers((struct peers *)peers);
        n = peers->workers;
    }
    return n;
}

void peers_destroy(struct peers *peers)
{
    struct peer *peer;

    if (peers == NULL)
        return;
    assert(peers->handles == 0 && peers->workers == 0);
#ifdef KVC_DIRECTORY
    directory_destroy(peers->directory);
#endif
    while ((peer = list_first(&peers->list, struct peer, link)) != NULL)
        peer_free(peer);
    fillers_end(peers);
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        if (peers->ucx != NULL)
            ucx_unregister(peers->ucx, &peers->memory[t]);
    gpu_close(peers);
    staging_close(peers);
    ucx_close(peers->ucx);
    shapes_free(peers);
    secret_forget(&peers->secret);
    mem_free(peers);
}

#endif
