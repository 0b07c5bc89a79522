#include "daemon/api/session.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/memory.h"
#include "daemon/api/remote.h"
#include "daemon/api/silence.h"
#include "daemon/api/transfer.h"
#include "daemon/api/watch.h"
#include "daemon/base/clock.h"
#include "daemon/base/fd.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define VERSION_SPOKEN 1u
#define DEVICES_MAX    (sizeof(((struct owner_identity *)0)->devices) / KVC_UUID_BYTES)

static void send_body(struct session *s, uint16_t type, uint32_t seq, struct bytes body)
{
    if (s->connection != NULL)
        connection_send(s->connection, type, seq, body.data, body.len, NULL, 0);
}

void session_reply(struct session *s, uint16_t type, uint32_t seq, struct bytes body)
{
    send_body(s, type | WIRE_REPLY, seq, body);
}

void session_notice(struct session *s, uint16_t type, struct bytes body)
{
    send_body(s, type, 0, body);
}

void session_refuse(struct session *s, uint32_t seq, kvc_status status, const struct refusal *why)
{
    struct msg_error error = {
        .status = status,
        .field = why->field,
        .detail = why->detail[0] != '\0' ? why->detail : kvc_status_text(status),
    };

    s->api->refused_requests++;
    send_body(s, WIRE_ERROR, seq, codec_error(s->api->codec, &error));
}

bool session_is_operator(const struct session *s)
{
    return (s->grant.roles & ACCESS_OPERATOR) != 0;
}

const struct access_door *session_door(const struct session *s)
{
    return &s->api->access.doors[s->door];
}

/* Descriptors were closed: doors that have none try again. */
static void retry_doors(struct api *api)
{
    for (uint32_t i = 0; i < api->access.n_doors; i++)
        if (api->doors[i].listener != NULL)
            listener_retry(api->doors[i].listener);
}

/* Whoever is let in may look at what is its own; that is what operators without the grant do. */
static bool may_be(const struct access_grant *grant, uint32_t role)
{
    return role == STORE_ROLE_OPERATOR || (grant->roles & ACCESS_ROLE(role)) != 0;
}

void session_judge(struct session *s)
{
    struct access_grant grant;

    if (s->state != SESSION_OPEN || s->connection == NULL)
        return;
    if (access_judge(&s->api->access, s->door, s->process, &grant) && may_be(&grant, s->role) &&
        strcmp(grant.tenant, s->grant.tenant) == 0)
        s->grant = grant;
    else
        connection_cut(s->connection, "what it is is not allowed any more");
}

void session_free(struct session *s)
{
    struct api *api = s->api;

    gone_forget(api->gone, &s->on_gpu);
    process_close(s->process);
    list_remove(&s->link);
    mem_free(s);
    retry_doors(api);
}

void session_gone(struct gone_process *process)
{
    struct session *s = container_of(process, struct session, on_gpu);

    store_owner_gone(s->api->store, s->owner);
}

/* The process has ended and its connection is over. */
static void process_and_connection_ended(struct session *s)
{
    if (s->on_gpu.state == GONE_UNWATCHED)
        store_owner_gone(s->api->store, s->owner);
    else
        gone_expect(s->api->gone, &s->on_gpu);
}

static void connection_ended(void *arg)
{
    struct session *s = arg;
    struct api *api = s->api; /* which outlives it */

    s->connection = NULL;
    api->n_connections--;
    log_debug("api", "disconnected pid=%d session=%llu", (int)process_pid(s->process),
              (unsigned long long)(s->owner != NULL ? owner_id(s->owner) : 0));
    if (s->state == SESSION_NEW) {
        connection_was_silent(&s->api->hub, process_pid(s->process), process_uid(s->process));
        session_free(s);
        return;
    }
    s->state = SESSION_ENDED;
    save_forget_session(s);
    remote_forget_session(s);
    watch_forget_session(s);
    store_owner_end(s->api->store, s->owner);
    transfer_forget_session(s);
    memory_forget_session(s);
    if (process_is_gone(s->process))
        process_and_connection_ended(s);
    retry_doors(api);
}

/* What the process had sent before it ended counts, so the socket is read to its end first. */
static void process_gone(void *arg)
{
    struct session *s = arg;

    if (s->connection != NULL)
        connection_finish(s->connection);
    else if (s->owner != NULL)
        process_and_connection_ended(s);
}

static const struct connection_events events = {
    .packet = session_packet,
    .ended = connection_ended,
};

/* With no descriptor left for the pidfd, the listener's spare one is for it. */
static kvc_status open_process(const struct api_door *door, int sock, struct session *s)
{
    uv_loop_t *loop = door->api->config.loop;
    kvc_status status = process_open(loop, sock, process_gone, s, &s->process);

    if (status == KVC_E_NO_FDS && listener_spend_spare(door->listener))
        status = process_open(loop, sock, process_gone, s, &s->process);
    return status;
}

/* Users of a socket with a tenant are one, whatever their uids: containers are all run by root. */
static uint32_t user_of(const struct api *api, uint32_t door, uid_t uid)
{
    const struct access_door *doors = api->access.doors;
    uint32_t first = 0;

    if (doors[door].tenant[0] == '\0')
        return uid;
    while (strcmp(doors[first].tenant, doors[door].tenant) != 0)
        first++;
    return (1u << 31) + first; /* which no uid is */
}

/*
 * Who opens connections without end, or without HELLO, leaves descriptors for other users. Asked
 * first of all: who is refused costs next to nothing.
 */
static bool is_one_too_many(const struct api *api, const struct ucred *peer, uint32_t user)
{
    const struct session *other;
    uint32_t users = 0, own = 0;

    list_for_each(other, &api->sessions, link) {
        const bool same = other->connection != NULL && other->user == user;

        users += same;
        own += same && process_pid(other->process) == peer->pid;
    }
    return users >= KVC_TENANT_SESSIONS_MAX ||
           (own >= PACE_CONNECTIONS && pace_is_suspect(&api->hub.pace, peer->pid, peer->uid));
}

void session_accept(void *arg, int sock)
{
    struct api_door *door = arg;
    struct api *api = door->api;
    struct session *s = NULL;
    const uint32_t at = (uint32_t)(door - api->doors);
    kvc_status status = KVC_E_LIMIT;
    struct ucred peer = {.uid = CLOSER_NOBODY.user};
    const bool is_known = process_peer(sock, &peer);
    const uint32_t user = user_of(api, at, peer.uid);

    if (is_known && is_one_too_many(api, &peer, user))
        goto refuse;
    status = KVC_E_NO_MEMORY;
    s = mem_zalloc(sizeof(*s));
    if (s == NULL)
        goto refuse;
    s->api = api;
    s->door = at;
    s->user = user;
    list_init(&s->link);
    list_init(&s->aborts);
    list_init(&s->memories);
    list_init(&s->transfers);
    list_init(&s->remotes);
    copier_queue_init(&s->copies);
    list_init(&s->on_gpu.link);
    s->connected_us = clock_now_us();
    status = open_process(door, sock, s);
    if (status != KVC_OK)
        goto free_session;
    status = connection_open(&api->hub, sock, &events, s, &s->connection);
    if (status != KVC_OK)
        goto close_process;
    connection_set_peer(s->connection, process_pid(s->process), process_uid(s->process), user);
    list_push_back(&api->sessions, &s->link);
    api->n_connections++;
    silence_begins(api->silence);
    log_debug("api", "connected pid=%d uid=%u", (int)process_pid(s->process),
              process_uid(s->process));
    return;

close_process:
    process_close(s->process);
free_session:
    mem_free(s);
refuse:
    closer_close(api->hub.closer, sock, CLOSER_NOBODY);
    if (status != KVC_E_DISCONNECTED)
        log_warn("api", "connection not served reason=\"%s\"", kvc_status_text(status));
}

static kvc_status read_devices(const struct msg_hello *hello, struct owner_identity *identity,
                               struct refusal *why)
{
    const struct bytes uuids = hello->device_uuids;

    if (uuids.len % KVC_UUID_BYTES != 0)
        return refuse(why, KVC_E_INVALID, "not a multiple of 16 bytes", "device_uuids");
    if (uuids.len / KVC_UUID_BYTES > DEVICES_MAX)
        return refuse(why, KVC_E_LIMIT, "more devices than a session may name", "device_uuids");
    identity->n_devices = (uint32_t)(uuids.len / KVC_UUID_BYTES);
    if (uuids.len > 0)
        memcpy(identity->devices, uuids.data, uuids.len);
    return KVC_OK;
}

/* Before anything is made for it. */
static kvc_status ask_for_role(const struct session *s, uint32_t role, struct access_grant *grant,
                               struct refusal *why)
{
    if (!access_judge(&s->api->access, s->door, s->process, grant))
        return refuse(why, KVC_E_DENIED, "nobody that may use this socket", "%s", "");
    if (!may_be(grant, role))
        return refuse(why, KVC_E_DENIED, "not a role that it may have here", "role");
    return KVC_OK;
}

static kvc_status check_hello(const struct session *s, const struct msg_hello *hello,
                              struct refusal *why)
{
    kvc_status status;

    if (s->state != SESSION_NEW)
        return refuse(why, KVC_E_INVALID, "this connection has said HELLO already", "%s", "");
    if (s->api->stopping)
        return refuse(why, KVC_E_STOPPING, "the daemon is shutting down", "%s", "");
    if (hello->role < STORE_ROLE_WORKER || hello->role > STORE_ROLE_OPERATOR)
        return refuse(why, KVC_E_INVALID, "no such role", "role");
    status = name_check(hello->name, why, "name");
    return status == KVC_OK ? name_check(hello->build, why, "build") : status;
}

/* Where its memory lies, by the UUID: processes number GPUs as they like. */
static void find_gpu(struct session *s, const struct owner_identity *identity)
{
    const struct device *device = s->api->config.device;
    uint32_t first, n;

    for (uint32_t i = 0; i < device->n_gpus && identity->n_devices > 0 && !s->has_gpu; i++) {
        s->has_gpu = memcmp(device->gpus[i].uuid, identity->devices[0], KVC_UUID_BYTES) == 0;
        s->gpu = i;
    }
    s->copies.gpu = s->has_gpu ? s->gpu : 0;
    if (!s->has_gpu || s->api->tiers[TIER_GPU] == NULL)
        return;
    tier_on_gpu(s->api->tiers[TIER_GPU], s->gpu, &first, &n);
    (void)store_owner_near(s->owner, first, n); /* it only says where it would rather be */
}

static void watch_devices(struct session *s, const struct owner_identity *identity)
{
    _Static_assert(GONE_DEVICES_MAX == DEVICES_MAX, "all that a session may name");
    s->on_gpu.pid = identity->pid;
    s->on_gpu.n_uuids = identity->n_devices;
    memcpy(s->on_gpu.uuids, identity->devices, sizeof(s->on_gpu.uuids));
    gone_watch(s->api->gone, &s->on_gpu);
}

static kvc_status open_owner(struct session *s, const struct msg_hello *hello, struct refusal *why)
{
    struct owner_identity identity = {
        .role = hello->role,
        .pid = process_pid(s->process),
        .start_time = process_start_time(s->process),
    };
    struct access_grant grant;
    kvc_status status;

    status = ask_for_role(s, hello->role, &grant, why);
    if (status == KVC_OK)
        status = read_devices(hello, &identity, why);
    if (status != KVC_OK)
        return status;
    if (identity.n_devices > 0 && s->api->gone == NULL) {
        log_info("api", "devices ignored pid=%d devices=%u device=%s", (int)identity.pid,
                 identity.n_devices, s->api->config.device->name);
        identity.n_devices = 0;
    }
    status = store_tenant(s->api->store, grant.tenant,
                          grant.is_named ? UINT32_MAX : process_uid(s->process), &identity.tenant);
    if (status != KVC_OK)
        return refuse(why, status, "no room for another tenant", "%s", "");
    status = store_owner_open(s->api->store, &identity, s, &s->owner);
    if (status != KVC_OK)
        return refuse(why, status, "no session can be opened", "%s", "");
    s->state = SESSION_OPEN;
    s->role = hello->role;
    find_gpu(s, &identity);
    if (identity.n_devices > 0)
        watch_devices(s, &identity);
    snprintf(s->name, sizeof(s->name), "%s", hello->name);
    snprintf(s->build, sizeof(s->build), "%s", hello->build);
    s->grant = grant;
    return KVC_OK;
}

/* The page goes along as a duplicate, since what is sent is closed. */
static void reply_hello(struct session *s, uint32_t seq, int page)
{
    const struct api *api = s->api;
    struct msg_hello_reply reply = {
        .version = VERSION_SPOKEN,
        .session = owner_id(s->owner),
        .secret = owner_secret(s->owner),
        .boot_epoch = api->config.boot_epoch,
        .device = api->config.device->name,
        .tenant = s->grant.tenant,
        .build = KVC_BUILD_VERSION,
        .page = page >= 0,
        .lease_ms_max = api->config.lease_ms_max,
    };
    struct bytes body;

    for (uint32_t t = 0; t < TIER_COUNT; t++) {
        if (api->tiers[t] == NULL)
            continue;
        reply.tiers[t].bytes = tier_bytes(api->tiers[t]);
        reply.tiers[t].extent_bytes = tier_extent_bytes(api->tiers[t]);
        reply.tiers[t].extents = tier_extents(api->tiers[t]);
    }
    body = codec_hello(api->codec, &reply);
    connection_send(s->connection, WIRE_HELLO | WIRE_REPLY, seq, body.data, body.len, &page,
                    page >= 0);
}

kvc_status session_hello(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_hello *hello = &request->hello;
    kvc_status status = check_hello(s, hello, why);
    int page = -1;

    if (status != KVC_OK)
        return status;
    if (hello->version < VERSION_SPOKEN) {
        refuse(why, KVC_E_VERSION, "this daemon speaks version 1 and later", "version");
        session_refuse(s, request->seq, KVC_E_VERSION, why);
        connection_end(s->connection);
        return KVC_OK;
    }
    status = open_owner(s, hello, why);
    if (status != KVC_OK)
        return status;
    if (owner_page_fd(s->owner) >= 0) {
        page = fd_dup(owner_page_fd(s->owner));
        if (page < 0) {
            /* Nothing is known of this session to anybody: it ends with the connection. */
            refuse(why, KVC_E_NO_FDS, "no descriptor for the completion page", "%s", "");
            session_refuse(s, request->seq, KVC_E_NO_FDS, why);
            connection_end(s->connection);
            return KVC_OK;
        }
    }
    reply_hello(s, request->seq, page);
    return KVC_OK;
}
