/* A client: connect, close, and what comes unasked. */
#include "client/client.h"
#include "client/cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Defined for analysers of other files. */
#undef client_enter
#undef client_distrust

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
                      call->deadline_us != 0 ? call->deadline_us : rpc_deadline_us(ms), reply,
                      &call->seq);
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
        status = client_open(made);
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
