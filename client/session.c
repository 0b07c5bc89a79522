/* A session of a client: HELLO, what is left of an earlier one, and another one after it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/client.h"
#include "client/cuda.h"

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
kvc_status client_open(kvc_client *client)
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
    status = client_open(client);
    if (status == KVC_OK)
        status = drain_all_old(client);
    if (status == KVC_OK)
        status = announce_parts(client);
    if (status != KVC_OK)
        session_end(client, KVC_E_DISCONNECTED);
    return status;
}
