#ifdef KVC_DIRECTORY

#include "daemon/peer/directory.h"

#include <assert.h>
#include <fcntl.h>
#include <hiredis/adapters/libuv.h>
#include <hiredis/async.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define BACKOFF_MS     100u
#define BACKOFF_MAX_MS 5000u
/* The adapter does not hear of a connection that was refused, so this is how that is found. */
#define CONNECT_MS   1000u
#define WALK_MS      1u
#define WALK_SLOTS   2048u  /* looked at in one turn of the loop */
#define OWED_MAX     65536u /* commands without an answer: the server does not keep up */
#define SET_NAME_MAX 256u

enum directory_state {
    DIRECTORY_WAITING,
    DIRECTORY_RESOLVING,
    DIRECTORY_CONNECTING,
    DIRECTORY_TELLING, /* connected; what is here is being said */
    DIRECTORY_OPEN,
    DIRECTORY_STOPPED,
};

struct directory {
    struct directory_config config;
    enum directory_state state;
    redisAsyncContext *redis; /* NULL: there is none */
    uv_timer_t timer;
    uv_getaddrinfo_t resolving;
    uint32_t backoff_ms, owed;
    bool stopping, quiet, timer_open, said_down; /* quiet: nothing is said of what is here */
    enum tier_kind walk_tier;
    uint32_t walk_slot;
    uint64_t told[(TABLE_PARTS + 63) / 64]; /* parts that it has sets of */
};

/* A question to several nodes, answered when the last of them is. */
struct question {
    struct directory *directory;
    uint64_t number;
    uint32_t n, n_left, n_found;
    const char *found[PEERS_MAX];
    struct {
        struct question *question;
        char name[PEER_NAME_MAX];
    } nodes[PEERS_MAX];
};

static void set_state(struct directory *d, enum directory_state state)
{
    static const uint8_t legal[] = {
        [DIRECTORY_WAITING] = 1u << DIRECTORY_RESOLVING | 1u << DIRECTORY_STOPPED,
        [DIRECTORY_RESOLVING] = 1u << DIRECTORY_CONNECTING | 1u << DIRECTORY_WAITING,
        [DIRECTORY_CONNECTING] = 1u << DIRECTORY_TELLING | 1u << DIRECTORY_WAITING,
        [DIRECTORY_TELLING] = 1u << DIRECTORY_OPEN | 1u << DIRECTORY_WAITING,
        [DIRECTORY_OPEN] = 1u << DIRECTORY_TELLING | 1u << DIRECTORY_WAITING,
        [DIRECTORY_STOPPED] = 0,
    };

    assert(legal[d->state] & 1u << state);
    (void)legal;
    d->state = state;
}

static bool is_connected(const struct directory *d)
{
    return d->state == DIRECTORY_TELLING || d->state == DIRECTORY_OPEN;
}

static void timer_closed_cb(uv_handle_t *handle)
{
    container_of((uv_timer_t *)handle, struct directory, timer)->timer_open = false;
}

static void attempt_cb(uv_timer_t *timer);

/* There is no connection any more. */
static void down(struct directory *d, const char *why)
{
    d->redis = NULL;
    d->owed = 0;
    set_state(d, DIRECTORY_WAITING);
    if (!d->said_down && !d->stopping)
        log_warn("directory", "directory lost address=%s:%s reason=\"%s\"", d->config.host,
                 d->config.port, why);
    d->said_down = true;
    if (d->stopping) {
        set_state(d, DIRECTORY_STOPPED);
        uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
        return;
    }
    uv_timer_start(&d->timer, attempt_cb, d->backoff_ms, 0);
    d->backoff_ms = d->backoff_ms * 2 < BACKOFF_MAX_MS ? d->backoff_ms * 2 : BACKOFF_MAX_MS;
}

/* Saying. */

static void set_name(const struct directory *d, const char *node, uint32_t index,
                     char name[SET_NAME_MAX])
{
    const struct table *table = store_table(d->config.peers->config.store);
    const struct table_part *part = table_part(table, index);
    const uint8_t *digest = table_namespace(table, part->namespace_)->digest;
    const uint8_t *print = table_layout(table, part->layout)->fingerprint;
    size_t n = (size_t)snprintf(name, SET_NAME_MAX, "kvcached:keys:%s:", node);

    for (uint32_t i = 0; i < KVC_NAMESPACE_BYTES; i++)
        n += (size_t)snprintf(name + n, SET_NAME_MAX - n, "%02x", digest[i]);
    n += (size_t)snprintf(name + n, SET_NAME_MAX - n, ":");
    for (uint32_t i = 0; i < KVC_FINGERPRINT_BYTES; i++)
        n += (size_t)snprintf(name + n, SET_NAME_MAX - n, "%02x", print[i]);
}

static void said_cb(redisAsyncContext *redis, void *reply, void *arg)
{
    struct directory *d = redis->data;

    (void)reply, (void)arg;
    if (d != NULL && d->owed > 0)
        d->owed--;
}

#define SAY(d, ...)                                                                                \
    do {                                                                                           \
        if (redisAsyncCommand((d)->redis, said_cb, NULL, __VA_ARGS__) == REDIS_OK)                 \
            (d)->owed++;                                                                           \
    } while (0)

/* Only what peers can ask for. */
static bool is_shared(const struct directory *d, uint32_t index)
{
    const struct table_part *part = table_part(store_table(d->config.peers->config.store), index);

    return part->used && part->tenant == d->config.peers->tenant && part->rule == STORE_RULE_FULL;
}

static void say_key(struct directory *d, uint32_t part, const uint8_t *key, bool here)
{
    char name[SET_NAME_MAX];

    if (d->quiet)
        return;
    set_name(d, d->config.name, part, name);
    if (!here) {
        SAY(d, "SREM %s %b", name, key, (size_t)KVC_KEY_BYTES);
        return;
    }
    SAY(d, "SADD %s %b", name, key, (size_t)KVC_KEY_BYTES);
    if (d->told[part / 64] & 1ull << part % 64)
        return;
    d->told[part / 64] |= 1ull << part % 64;
    SAY(d, "PEXPIRE %s %u", name, d->config.ttl_ms);
}

void directory_note(struct directory *d, uint32_t part, const uint8_t *key, bool here)
{
    if (!is_connected(d) || !is_shared(d, part))
        return;
    if (d->owed > OWED_MAX)
        redisAsyncDisconnect(d->redis); /* and begin anew: nothing may be left out */
    else
        say_key(d, part, key, here);
}

/* Living. */

static void alive_cb(redisAsyncContext *redis, void *arg, void *name)
{
    struct directory *d = redis->data;
    const redisReply *reply = arg;

    if (d == NULL) {
        mem_free(name);
        return;
    }
    if (d->owed > 0)
        d->owed--;
    if (reply != NULL && reply->type == REDIS_REPLY_INTEGER && !d->stopping) {
        if (reply->integer != 0)
            d->config.node(d->config.peers, name);
        else
            SAY(d, "SREM kvcached:nodes %s", name);
    }
    mem_free(name);
}

static void nodes_cb(redisAsyncContext *redis, void *arg, void *unused)
{
    struct directory *d = redis->data;
    const redisReply *reply = arg;

    (void)unused;
    if (d == NULL)
        return;
    if (d->owed > 0)
        d->owed--;
    for (size_t i = 0; reply != NULL && reply->type == REDIS_REPLY_ARRAY && i < reply->elements;
         i++) {
        const redisReply *name = reply->element[i];
        char *copy;

        if (name->type != REDIS_REPLY_STRING || name->len >= PEER_NAME_MAX || d->stopping ||
            strcmp(name->str, d->config.name) == 0 || i >= 4 * PEERS_MAX)
            continue;
        copy = mem_strdup(name->str);
        if (copy == NULL)
            continue;
        if (redisAsyncCommand(redis, alive_cb, copy, "EXISTS kvcached:node:%s", copy) == REDIS_OK)
            d->owed++;
        else
            mem_free(copy);
    }
}

static void say_alive(struct directory *d)
{
    char name[SET_NAME_MAX];

    if (d->quiet)
        return;
    SAY(d, "SET kvcached:node:%s 1 PX %u", d->config.name, d->config.ttl_ms);
    SAY(d, "SADD kvcached:nodes %s", d->config.name);
    for (uint32_t part = 1; part < TABLE_PARTS; part++) {
        if (!(d->told[part / 64] & 1ull << part % 64))
            continue;
        set_name(d, d->config.name, part, name);
        SAY(d, "PEXPIRE %s %u", name, d->config.ttl_ms);
    }
}

static void refresh(struct directory *d)
{
    say_alive(d);
    if (redisAsyncCommand(d->redis, nodes_cb, NULL, "SMEMBERS kvcached:nodes") == REDIS_OK)
        d->owed++;
}

static void refresh_cb(uv_timer_t *timer)
{
    struct directory *d = container_of(timer, struct directory, timer);

    refresh(d);
    uv_timer_start(&d->timer, refresh_cb, d->config.ttl_ms / 3, 0);
}

/* What is here already, some slots a turn; what comes and goes meanwhile says so itself. */
static void walk_cb(uv_timer_t *timer)
{
    struct directory *d = container_of(timer, struct directory, timer);
    const struct table *table = store_table(d->config.peers->config.store);
    const struct table_tier *tiers = table_header(table)->tiers;
    uint32_t left = WALK_SLOTS;

    while (d->walk_tier < TIER_COUNT && left > 0 && d->owed < OWED_MAX / 2) {
        const uint32_t n = tiers[d->walk_tier].extents * tiers[d->walk_tier].slots_per_extent;
        const struct table_slot *slot;

        if (d->walk_slot >= n) {
            d->walk_tier++;
            d->walk_slot = 0;
            continue;
        }
        slot = table_slot(table, d->walk_tier, d->walk_slot++);
        left--;
        if (slot->state == SLOT_READY && is_shared(d, slot->part))
            say_key(d, slot->part, slot->key, true);
    }
    if (d->walk_tier < TIER_COUNT) {
        uv_timer_start(&d->timer, walk_cb, WALK_MS, 0);
        return;
    }
    set_state(d, DIRECTORY_OPEN);
    refresh_cb(timer);
}

/* Connecting. */

static void tell(struct directory *d)
{
    char name[SET_NAME_MAX];

    /* What an earlier life of this node has said means nothing. */
    for (uint32_t part = 1; part < TABLE_PARTS; part++) {
        if (!is_shared(d, part))
            continue;
        set_name(d, d->config.name, part, name);
        SAY(d, "DEL %s", name);
    }
    memset(d->told, 0, sizeof(d->told));
    d->walk_tier = 0;
    d->walk_slot = 0;
    refresh(d);
    uv_timer_start(&d->timer, walk_cb, 0, 0);
}

static void begin_telling(struct directory *d)
{
    set_state(d, DIRECTORY_TELLING);
    d->backoff_ms = BACKOFF_MS;
    d->said_down = false;
    log_info("directory", "directory open address=%s:%s name=%s", d->config.host, d->config.port,
             d->config.name);
    tell(d);
}

static void connected_cb(const redisAsyncContext *redis, int status)
{
    struct directory *d = redis->data;

    if (d == NULL)
        return;
    if (status != REDIS_OK)
        down(d, redis->errstr);
    else
        begin_telling(d);
}

static void disconnected_cb(const redisAsyncContext *redis, int status)
{
    struct directory *d = redis->data;

    if (d != NULL)
        down(d, status != REDIS_OK ? redis->errstr : "closed");
}

static void late_cb(uv_timer_t *timer)
{
    struct directory *d = container_of(timer, struct directory, timer);
    redisAsyncContext *redis = d->redis;

    redis->data = NULL;
    redisAsyncFree(redis);
    down(d, "no connection in time");
}

static void connect_to(struct directory *d, const struct sockaddr *address)
{
    char host[INET6_ADDRSTRLEN] = "";
    redisAsyncContext *redis;

    if (address->sa_family == AF_INET6)
        uv_ip6_name((const struct sockaddr_in6 *)address, host, sizeof(host));
    else
        uv_ip4_name((const struct sockaddr_in *)address, host, sizeof(host));
    set_state(d, DIRECTORY_CONNECTING);
    redis = redisAsyncConnect(host, ntohs(((const struct sockaddr_in *)address)->sin_port));
    if (redis == NULL || redis->err != 0 ||
        redisLibuvAttach(redis, d->config.peers->config.loop) != REDIS_OK) {
        if (redis != NULL)
            redisAsyncFree(redis);
        down(d, "cannot connect");
        return;
    }
    fcntl(redis->c.fd, F_SETFD, FD_CLOEXEC);
    redis->data = d;
    d->redis = redis;
    uv_timer_start(&d->timer, late_cb, CONNECT_MS, 0);
    redisAsyncSetConnectCallback(redis, connected_cb);
    redisAsyncSetDisconnectCallback(redis, disconnected_cb);
}

static void resolved_cb(uv_getaddrinfo_t *resolving, int status, struct addrinfo *found)
{
    struct directory *d = container_of(resolving, struct directory, resolving);
    const struct addrinfo *address = found;

    while (address != NULL && address->ai_family != AF_INET && address->ai_family != AF_INET6)
        address = address->ai_next;
    if (status < 0 || address == NULL || d->stopping)
        down(d, status < 0 ? uv_strerror(status) : "no address");
    else
        connect_to(d, address->ai_addr);
    uv_freeaddrinfo(found);
}

/* hiredis would resolve the name itself, and block. */
static void attempt_cb(uv_timer_t *timer)
{
    struct directory *d = container_of(timer, struct directory, timer);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    int rc = uv_getaddrinfo(d->config.peers->config.loop, &d->resolving, resolved_cb,
                            d->config.host, d->config.port, &hints);

    set_state(d, DIRECTORY_RESOLVING);
    if (rc < 0)
        down(d, uv_strerror(rc));
}

kvc_status directory_create(const struct directory_config *config, struct directory **directory)
{
    struct directory *d = mem_zalloc(sizeof(*d));

    if (d == NULL)
        return KVC_E_NO_MEMORY;
    d->config = *config;
    d->backoff_ms = BACKOFF_MS;
    uv_timer_init(config->peers->config.loop, &d->timer);
    uv_timer_start(&d->timer, attempt_cb, 0, 0);
    d->timer_open = true;
    *directory = d;
    return KVC_OK;
}

static void take_back(struct directory *d)
{
    char name[SET_NAME_MAX];

    for (uint32_t part = 1; part < TABLE_PARTS; part++) {
        if (!(d->told[part / 64] & 1ull << part % 64))
            continue;
        set_name(d, d->config.name, part, name);
        SAY(d, "DEL %s", name);
    }
    memset(d->told, 0, sizeof(d->told));
    SAY(d, "DEL kvcached:node:%s", d->config.name);
    SAY(d, "SREM kvcached:nodes %s", d->config.name);
}

void directory_drain(struct directory *d, bool drain)
{
    if (d->quiet == drain)
        return;
    d->quiet = drain;
    if (!is_connected(d))
        return;
    if (drain) {
        take_back(d);
        return;
    }
    if (d->state == DIRECTORY_OPEN)
        set_state(d, DIRECTORY_TELLING);
    tell(d);
}

void directory_stop(struct directory *d)
{
    if (d->stopping)
        return;
    d->stopping = true;
    if (d->state == DIRECTORY_WAITING) {
        set_state(d, DIRECTORY_STOPPED);
        uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
    } else if (d->state == DIRECTORY_RESOLVING) {
        uv_cancel((uv_req_t *)&d->resolving);
    } else if (d->state == DIRECTORY_CONNECTING) {
        late_cb(&d->timer);
    } else {
        take_back(d);
        /* It ends when the answers are there, or the server is too late. */
        uv_timer_start(&d->timer, late_cb, CONNECT_MS, 0);
        redisAsyncDisconnect(d->redis);
    }
}

bool directory_is_busy(const struct directory *d)
{
    return d->state != DIRECTORY_STOPPED || d->timer_open;
}

void directory_destroy(struct directory *d)
{
    if (d == NULL)
        return;
    assert(!directory_is_busy(d));
    mem_free(d);
}

/* Asking. */

static bool has_any(const redisReply *reply)
{
    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY)
        return false;
    for (size_t i = 0; i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_INTEGER && reply->element[i]->integer != 0)
            return true;
    return false;
}

static void node_cb(redisAsyncContext *redis, void *reply, void *arg)
{
    struct question **slot = arg;
    struct question *q = *slot;
    struct directory *d = redis->data;
    const uint32_t i =
        (uint32_t)(((char *)slot - (char *)q->nodes) / (ptrdiff_t)sizeof(q->nodes[0]));

    if (d != NULL && d->owed > 0)
        d->owed--;
    if (has_any(reply))
        q->found[q->n_found++] = q->nodes[i].name;
    if (--q->n_left > 0)
        return;
    q->directory->config.hint(q->directory->config.peers, q->number, q->found, q->n_found);
    mem_free(q);
}

bool directory_ask(struct directory *d, uint64_t number, uint32_t part, const uint8_t *keys,
                   uint32_t n_keys, const char *const *names, uint32_t n)
{
    const char *argv[2 + KVC_KEYS_MAX];
    size_t lens[2 + KVC_KEYS_MAX];
    struct question *q;

    if (!is_connected(d) || d->stopping || n == 0 || d->owed > OWED_MAX)
        return false;
    q = mem_zalloc(sizeof(*q));
    if (q == NULL)
        return false;
    q->directory = d;
    q->number = number;
    argv[0] = "SMISMEMBER";
    lens[0] = strlen(argv[0]);
    for (uint32_t k = 0; k < n_keys; k++) {
        argv[2 + k] = (const char *)keys + (size_t)k * KVC_KEY_BYTES;
        lens[2 + k] = KVC_KEY_BYTES;
    }
    for (uint32_t i = 0; i < n; i++) {
        char set[SET_NAME_MAX];

        q->nodes[i].question = q;
        snprintf(q->nodes[i].name, sizeof(q->nodes[i].name), "%s", names[i]);
        set_name(d, names[i], part, set);
        argv[1] = set;
        lens[1] = strlen(set);
        if (redisAsyncCommandArgv(d->redis, node_cb, &q->nodes[i].question, (int)(2 + n_keys), argv,
                                  lens) == REDIS_OK) {
            q->n_left++;
            d->owed++;
        }
    }
    if (q->n_left > 0)
        return true;
    mem_free(q);
    return false;
}

#endif
