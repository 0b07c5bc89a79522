/* A client and its session: connect, reconnect, close. */
#include "client/client.h"
#include "client/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/key.h"

#undef client_distrust /* defined for analysers of other files */

#define DEFAULT_SOCKET     "/run/kvcached/kvcached.sock"
#define DEFAULT_CONNECT_MS 1000u
#define DEFAULT_LOOKUP_MS  100u
#define DEFAULT_LOAD_MS    1000u
#define DISPATCH_PACKETS   256u /* of one kvc_dispatch: a flood must not hold it */

static bool is_forked(const kvc_client *client)
{
    return client->pid != getpid();
}

kvc_status client_enter(kvc_client *client)
{
    if (client == NULL)
        return KVC_E_INVALID;
    if (is_forked(client))
        return rpc_fail(&client->rpc, KVC_E_FORKED, NULL, "%s", kvc_status_text(KVC_E_FORKED));
    return client->rpc.broken;
}

kvc_status client_refuse_stream(kvc_client *client, kvc_status status)
{
    return rpc_fail(&client->rpc, status, "stream", "%s",
                    status == KVC_E_BUSY ? "it is being captured" : "it cannot be used");
}

kvc_status client_distrust(kvc_client *client, const char *field, const char *detail)
{
    return rpc_break(&client->rpc, KVC_E_PROTOCOL, field, "%s", detail);
}

kvc_status client_call(kvc_client *client, struct call *call, kvc_status packed, uint32_t ms,
                       struct wire_packet *reply)
{
    kvc_status status = packed;

    if (status != KVC_OK)
        return rpc_fail(&client->rpc, status, NULL, "the request does not fit into a packet");
    status = rpc_call(&client->rpc, call->type, client->rpc.body, call->len, call->arg,
                      rpc_deadline_us(ms), reply, &call->seq);
    if (status != KVC_OK || reply->n_fds == 0)
        return status;
    wire_close_fds(reply);
    return client_distrust(client, "fds", "descriptors came with a reply that has none");
}

static void take_outcome(kvc_client *client, uint64_t save, const struct codec_outcome *got)
{
    kvc_outcome outcome = {(kvc_status)got->status, got->published, got->dropped};

    saves_end(&client->saves, save != 0 ? save : got->save, &outcome);
}

static void take_notice(kvc_client *client, const struct wire_packet *packet)
{
    struct codec_outcome outcome;

    switch (packet->type) {
    case WIRE_SAVE_DONE:
        if (codec_get_save_done(&client->scratch, packet, &outcome))
            take_outcome(client, 0, &outcome);
        else
            client_distrust(client, "SaveDone", "malformed");
        break;
    case WIRE_EXTENTS:
        extents_take_notice(client, packet);
        break;
    case WIRE_STOPPING:
        client->stopping = true;
        break;
    default: /* of a later daemon */
        break;
    }
}

/* A save that the daemon does not know any more has ended. Any other refusal leaves it running, and
 * nobody would say when it ends. */
static void take_refused_abort(kvc_client *client, uint64_t save, const struct wire_packet *packet)
{
    const kvc_outcome ended = {.status = KVC_E_UNKNOWN};
    struct codec_error error;

    if (!codec_get_error(packet, &error))
        client_distrust(client, "Error", "malformed");
    else if (error.status == KVC_E_UNKNOWN)
        saves_end(&client->saves, save, &ended);
    else if (SAVE_IS_UNNAMED(save))
        rpc_break(&client->rpc, KVC_E_DISCONNECTED, error.field, "%s", error.detail);
}

/* What comes while another reply is awaited, or while none is. */
static void client_take(void *ctx, const struct rpc_pending *request, struct wire_packet *packet)
{
    kvc_client *client = ctx;
    struct codec_outcome outcome;

    if (request == NULL) {
        take_notice(client, packet);
        return;
    }
    switch (request->type) {
    case WIRE_MAP:
        extents_take_reply(client, packet);
        break;
    case WIRE_LOAD:
        if (packet->type != WIRE_ERROR && request->arg != LOAD_BY_DAEMON)
            load_take_late(client, packet);
        break;
    case WIRE_LOOKUP:
    case WIRE_ADOPT:
        if (packet->type != WIRE_ERROR && request->arg != 0)
            lookup_take_late(client, request->type, packet);
        break;
    case WIRE_ABORT:
        if (packet->type == WIRE_ERROR)
            take_refused_abort(client, request->arg, packet);
        else if (codec_get_abort_reply(&client->scratch, packet, &outcome))
            take_outcome(client, request->arg, &outcome);
        break;
    default:
        break;
    }
}

/* The session. */

static const struct copy_ops *copy_of(const char *device)
{
    static const struct copy_ops *const all[] = {&copy_host, &copy_cuda};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(device, all[i]->name) == 0)
            return all[i];
    return NULL;
}

static kvc_status accept_hello(kvc_client *client, const struct codec_hello_reply *hello,
                               const struct wire_packet *packet)
{
    const bool copies = role_copies(client->role);
    const char *what = "";
    kvc_status status;

    if (hello->version != WIRE_VERSION)
        return rpc_break(&client->rpc, KVC_E_VERSION, "version", "the daemon speaks %u, this is %u",
                         hello->version, WIRE_VERSION);
    if (hello->session == 0)
        return client_distrust(client, "session", "0");
    if (packet->n_fds != (copies ? 1u : 0u))
        return client_distrust(client, "fds", "a completion page for roles that copy, else none");
    if (copies) {
        const struct copy_ops *copy = copy_of(hello->device);

        /* What waits for a result was made by the device that it was copied by. */
        if (copy != client->copy)
            loads_free(client, false);
        client->copy = copy;
        if (copy == NULL)
            return rpc_fail(&client->rpc, KVC_E_NO_DEVICE, "device",
                            "this library cannot copy for \"%s\"", hello->device);
        /* It was not said which GPU: once more, when there is one. */
        if (client->copy == &copy_cuda && client->cuda == NULL)
            return KVC_OK;
        status = map_open(&client->map, hello, packet->fds[0], client->role == KVC_ROLE_WORKER,
                          client->copy == &copy_cuda ? client->cuda : NULL, &what);
        if (status == KVC_E_PROTOCOL)
            return client_distrust(client, what, "sizes or memory that cannot be");
        if (status != KVC_OK)
            return rpc_fail(&client->rpc, status, what, "%s", strerror(errno));
    }
    client->session.id = hello->session;
    client->session.boot_epoch = hello->boot_epoch;
    memcpy(client->session.secret, hello->secret, KVC_SECRET_BYTES);
    memcpy(client->device, hello->device, sizeof(client->device));
    client->keys_max = hello->keys_max;
    if (client->keys_max == 0 || client->keys_max > KVC_KEYS_MAX)
        client->keys_max = KVC_KEYS_MAX;
    client->stopping = false;
    return KVC_OK;
}

static kvc_status hello(kvc_client *client, uint64_t deadline_us)
{
    const struct codec_hello request = {
        .role = client->role,
        .pid = (uint32_t)client->pid,
        .name = client->name,
        .device_uuids = client->cuda != NULL ? client->cuda->uuid : NULL,
        .n_devices = client->cuda != NULL,
    };
    struct codec_hello_reply reply;
    struct wire_packet packet;
    kvc_status status;
    size_t len = 0;

    status = codec_put_hello(&request, client->rpc.body, &len);
    if (status == KVC_OK)
        status = rpc_call(&client->rpc, WIRE_HELLO, client->rpc.body, len, 0, deadline_us, &packet,
                          NULL);
    if (status != KVC_OK)
        return status;
    if (codec_get_hello_reply(&client->scratch, &packet, &reply))
        status = accept_hello(client, &reply, &packet);
    else
        status = client_distrust(client, "HelloReply", "malformed");
    wire_close_fds(&packet);
    return status;
}

static kvc_status connect_and_hello(kvc_client *client)
{
    const uint64_t deadline_us = rpc_deadline_us(client->connect_ms);
    kvc_status status = rpc_open(&client->rpc, client->socket, deadline_us);

    return status == KVC_OK ? hello(client, deadline_us) : status;
}

/* Its time is not the daemon's, and not bounded. */
static kvc_status open_cuda(kvc_client *client)
{
    char why[CUDA_WHY_MAX];
    kvc_status status;

    status = cuda_open(&client->cuda, why);
    if (status == KVC_OK)
        status = loads_open(client);
    else
        return rpc_fail(&client->rpc, status, "device", "%s", why);
    return status;
}

/*
 * HELLO names the GPU that the worker will use, and only its reply tells whether the daemon has
 * one: a worker of a daemon without never touches the driver. So the first session with a GPU
 * begins with a second HELLO.
 */
static kvc_status session_open(kvc_client *client)
{
    kvc_status status = connect_and_hello(client);

    if (status == KVC_OK && client->session.id == 0) {
        rpc_close(&client->rpc, KVC_E_DISCONNECTED);
        status = open_cuda(client);
        if (status == KVC_OK)
            status = connect_and_hello(client);
    }
    return status;
}

/* Ends the session here. Its number is kept: the daemon may wait to hear that it is drained. */
static void session_end(kvc_client *client, kvc_status broken)
{
    if (client->cuda != NULL)
        cuda_drain(client->cuda);
    rpc_close(&client->rpc, broken);
    map_close(&client->map, false);
    client->pull = (struct pull){0};
    saves_end_all(&client->saves, KVC_E_DISCONNECTED);
    if (client->session.id == 0)
        return;
    if (client->n_old == OLD_SESSIONS_MAX)
        memmove(client->old, client->old + 1, --client->n_old * sizeof(client->old[0]));
    if (role_copies(client->role))
        client->old[client->n_old++] = client->session;
    client->session.id = 0;
}

/* Also KVC_OK when the daemon knows nothing of that session any more, or will never tell. */
static kvc_status drain_old(kvc_client *client, const struct old_session *old, uint64_t deadline_us)
{
    struct call call = {.type = WIRE_DRAINED};
    struct wire_packet reply;
    kvc_status status;

    for (;;) {
        status = codec_put_drained(old->id, old->secret, client->rpc.body, &call.len);
        status = client_call(client, &call, status, client->connect_ms, &reply);
        if (status != KVC_E_BUSY || rpc_now_us() >= deadline_us)
            break;
        /* Its end has been sent, but not yet been seen. */
        usleep(1000);
    }
    if (status == KVC_E_DEADLINE || client->rpc.broken != KVC_OK)
        return status;
    return status == KVC_E_BUSY ? status : KVC_OK;
}

static kvc_status drain_all_old(kvc_client *client)
{
    const uint64_t deadline_us = rpc_deadline_us(client->connect_ms);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < client->n_old; i++) {
        const struct old_session old = client->old[i];
        kvc_status status = KVC_OK;

        if (old.boot_epoch == client->session.boot_epoch)
            status = drain_old(client, &old, deadline_us);
        if (status == KVC_E_BUSY) {
            client->old[kept++] = old;
        } else if (status != KVC_OK) {
            memmove(client->old + kept, client->old + i, (client->n_old - i) * sizeof(old));
            client->n_old -= i - kept;
            return status;
        }
    }
    client->n_old = kept;
    /* Copies of the daemon may still run into memory that the caller takes for its own again. */
    if (kept > 0 && lend_any(client))
        return rpc_fail(&client->rpc, KVC_E_BUSY, "session", "copies of an earlier one still run");
    return KVC_OK;
}

static kvc_status announce_parts(kvc_client *client)
{
    uint32_t extents = 0, told;
    kvc_status status = KVC_OK;

    for (uint32_t i = 0; i < KVC_PARTS_MAX && status == KVC_OK; i++) {
        struct part *part = &client->parts[i];

        if (!part->used)
            continue;
        status = part_again(client, part, &told);
        if (status == KVC_OK && part->lent != NULL)
            status = lend_announce(client, part);
        else if (status == KVC_OK)
            extents = told;
    }
    if (status == KVC_OK && extents > 0)
        status = extents_pull(client, extents);
    return status;
}

kvc_status kvc_reconnect(kvc_client *client)
{
    kvc_status status = client_enter(client);

    if (client == NULL || status == KVC_E_FORKED)
        return status;
    session_end(client, KVC_E_DISCONNECTED);
    status = session_open(client);
    if (status == KVC_OK)
        status = drain_all_old(client);
    if (status == KVC_OK)
        status = announce_parts(client);
    if (status != KVC_OK)
        session_end(client, KVC_E_DISCONNECTED);
    return status;
}

/* The client. */

static kvc_status configure(kvc_client *client, const kvc_options *options)
{
    static const kvc_options none;
    const kvc_options *given = options != NULL ? options : &none;
    const char *socket = given->socket != NULL ? given->socket : getenv("KVCACHE_SOCKET");

    client->pid = getpid();
    client->socket = strdup(socket != NULL && *socket != '\0' ? socket : DEFAULT_SOCKET);
    client->name = strdup(given->name != NULL ? given->name : program_invocation_short_name);
    client->role = given->role != 0 ? given->role : KVC_ROLE_WORKER;
    client->connect_ms = given->connect_ms != 0 ? given->connect_ms : DEFAULT_CONNECT_MS;
    client->lookup_ms = given->lookup_ms != 0 ? given->lookup_ms : DEFAULT_LOOKUP_MS;
    client->load_ms = given->load_ms != 0 ? given->load_ms : DEFAULT_LOAD_MS;
    client->remote_ms = given->remote_ms;
    client->save_ms = given->save_ms != 0 ? given->save_ms : KVC_SAVE_REPLY_MS;
    if (client->socket == NULL || client->name == NULL)
        return KVC_E_NO_MEMORY;
    if ((unsigned)client->role > KVC_ROLE_OPERATOR)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "role", "no such role");
    return KVC_OK;
}

static kvc_status say_why(kvc_status status, const char *error, char *why, size_t size)
{
    if (why != NULL && size > 0)
        snprintf(why, size, "%s", *error != '\0' ? error : kvc_status_text(status));
    return status;
}

kvc_status kvc_connect_why(const kvc_options *options, kvc_client **client, char *why, size_t size)
{
    kvc_client *made;
    kvc_status status;

    if (client == NULL)
        return say_why(KVC_E_INVALID, "client: NULL", why, size);
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return say_why(KVC_E_NO_MEMORY, "", why, size);
    rpc_init(&made->rpc, client_take, made);
    status = configure(made, options);
    if (status == KVC_OK)
        status = session_open(made);
    if (status == KVC_OK) {
        *client = made;
        return KVC_OK;
    }
    say_why(status, made->rpc.error, why, size);
    kvc_close(made);
    return status;
}

kvc_status kvc_connect(const kvc_options *options, kvc_client **client)
{
    return kvc_connect_why(options, client, NULL, 0);
}

void kvc_close(kvc_client *client)
{
    bool inherited;

    if (client == NULL)
        return;
    inherited = is_forked(client);
    if (inherited)
        client->rpc.broken = KVC_E_FORKED; /* what waits to be sent is not this process's to send */
    else if (client->cuda != NULL)
        cuda_drain(client->cuda);
    rpc_close(&client->rpc, KVC_E_DISCONNECTED);
    map_close(&client->map, inherited);
    parts_free(client, inherited);
    loads_free(client, inherited);
    cuda_close(client->cuda, inherited);
    codec_scratch_free(&client->scratch);
    free(client->socket);
    free(client->name);
    free(client);
}

int kvc_fd(const kvc_client *client)
{
    if (client == NULL || client->rpc.broken != KVC_OK || is_forked(client))
        return -1;
    return client->rpc.sock;
}

kvc_status kvc_dispatch(kvc_client *client)
{
    kvc_status status = client_enter(client);

    for (uint32_t i = 0; i < DISPATCH_PACKETS && status == KVC_OK; i++)
        status = rpc_pump(&client->rpc, RPC_NO_WAIT);
    return status == KVC_E_DEADLINE ? KVC_OK : status;
}

kvc_status kvc_drain(kvc_client *client)
{
    struct call call = {.type = WIRE_DRAINED};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_drained(0, NULL, client->rpc.body, &call.len);
    return client_call(client, &call, status, client->lookup_ms, &reply);
}

const char *kvc_error(const kvc_client *client)
{
    return client != NULL ? client->rpc.error : "";
}

const char *kvc_version(void)
{
    return KVC_BUILD_VERSION;
}

const char *kvc_text(kvc_status status)
{
    return kvc_status_text(status);
}

uint64_t kvc_session(const kvc_client *client)
{
    return client->session.id;
}

uint64_t kvc_boot_epoch(const kvc_client *client)
{
    return client->session.boot_epoch;
}

const char *kvc_device(const kvc_client *client)
{
    return client->device;
}
