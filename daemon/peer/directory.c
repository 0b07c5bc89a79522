/* The connection to the directory: made, lost, and made again. */
#ifdef KVC_DIRECTORY

#include "daemon/peer/directory.h"

#include <assert.h>
#include <fcntl.h>
#include <hiredis/adapters/libuv.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/directory_internal.h"

#define BACKOFF_MS     100u
#define BACKOFF_MAX_MS 5000u
/* The adapter does not hear of a connection that was refused, so this is how that is found. */
#define CONNECT_MS 1000u

void directory_set_state(struct directory *d, enum directory_state state)
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

bool directory_is_connected(const struct directory *d)
{
    return d->state == DIRECTORY_TELLING || d->state == DIRECTORY_OPEN;
}

struct directory *directory_answered(redisAsyncContext *redis)
{
    struct directory *d = redis->data;

    if (d != NULL && d->owed > 0)
        d->owed--;
    if (d != NULL)
        d->silent_ms = 0;
    return d;
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
    d->silent_ms = 0;
    directory_set_state(d, DIRECTORY_WAITING);
    if (!d->said_down && !d->stopping)
        log_warn("directory", "directory lost address=%s:%s reason=\"%s\"", d->config.host,
                 d->config.port, why);
    d->said_down = true;
    if (d->stopping) {
        directory_set_state(d, DIRECTORY_STOPPED);
        uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
        return;
    }
    uv_timer_start(&d->timer, attempt_cb, d->backoff_ms, 0);
    d->backoff_ms = d->backoff_ms * 2 < BACKOFF_MAX_MS ? d->backoff_ms * 2 : BACKOFF_MAX_MS;
}

static void begin_telling(struct directory *d)
{
    directory_set_state(d, DIRECTORY_TELLING);
    d->backoff_ms = BACKOFF_MS;
    d->said_down = false;
    log_info("directory", "directory open address=%s:%s name=%s", d->config.host, d->config.port,
             d->config.name);
    directory_tell(d);
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

static void give_up(struct directory *d, const char *why)
{
    redisAsyncContext *redis = d->redis;

    redis->data = NULL;
    redisAsyncFree(redis);
    down(d, why);
}

static void late_cb(uv_timer_t *timer)
{
    give_up(container_of(timer, struct directory, timer), "no connection in time");
}

/* Its machine may be gone without a word, and then nobody else says so. */
bool directory_gives_up(struct directory *d, uint32_t ms)
{
    if (d->owed > 0)
        d->silent_ms += ms;
    if (d->silent_ms <= d->config.ttl_ms)
        return false;
    give_up(d, "it does not answer");
    return true;
}

static void connect_to(struct directory *d, const struct sockaddr *address)
{
    char host[INET6_ADDRSTRLEN] = "";
    redisAsyncContext *redis;

    if (address->sa_family == AF_INET6)
        uv_ip6_name((const struct sockaddr_in6 *)address, host, sizeof(host));
    else
        uv_ip4_name((const struct sockaddr_in *)address, host, sizeof(host));
    directory_set_state(d, DIRECTORY_CONNECTING);
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

    directory_set_state(d, DIRECTORY_RESOLVING);
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

void directory_stop(struct directory *d)
{
    if (d->stopping)
        return;
    d->stopping = true;
    if (d->state == DIRECTORY_WAITING) {
        directory_set_state(d, DIRECTORY_STOPPED);
        uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
    } else if (d->state == DIRECTORY_RESOLVING) {
        uv_cancel((uv_req_t *)&d->resolving);
    } else if (d->state == DIRECTORY_CONNECTING) {
        late_cb(&d->timer);
    } else {
        directory_take_back(d);
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

#endif
