/*
 * Which of the daemon's extents are mapped: MAP requests one behind the other, each acknowledging
 * what the one before brought. They are posted, so that a grant which comes as a notice needs
 * nobody to wait for it.
 */
#include "client/client.h"
#include "client/cuda.h"

static void pull_end(struct pull *pull, kvc_status status)
{
    pull->active = false;
    pull->status = status;
}

static void post_map(kvc_client *client, const uint32_t *mapped, uint32_t n)
{
    size_t len = 0;
    kvc_status status = codec_put_map(client->pull.cursor, mapped, n, client->rpc.spare, &len);

    if (status == KVC_OK)
        status = rpc_post(&client->rpc, WIRE_MAP, client->rpc.spare, len, 0);
    if (status != KVC_OK)
        pull_end(&client->pull, status);
}

/* From the first extent on: what was granted since may lie anywhere between those that are mapped.
 */
static void pull_start(kvc_client *client)
{
    client->pull.active = true;
    client->pull.again = false;
    client->pull.cursor = 0;
    client->pull.status = KVC_OK;
    post_map(client, NULL, 0);
}

/* What an extent came as: a descriptor, or a handle. */
struct arrivals {
    uint32_t fd, handle; /* that are taken so far */
};

static kvc_status map_one(kvc_client *client, const struct codec_map_reply *reply,
                          const struct wire_packet *packet, uint32_t i, struct arrivals *taken)
{
    const char *what = "";

    if (reply->kinds[i] == MAP_CUDA_HANDLE) {
        if (taken->handle >= reply->n_handles)
            return KVC_E_PROTOCOL;
        return map_open_extent(&client->map, reply->extents[i],
                               reply->handles + (size_t)taken->handle++ * CODEC_HANDLE_BYTES,
                               &what);
    }
    if (taken->fd >= packet->n_fds)
        return KVC_E_PROTOCOL;
    return map_extent(&client->map, reply->extents[i], reply->kinds[i], packet->fds[taken->fd++],
                      &what);
}

/* Maps what came; mapped is what is acknowledged: what this process has no room for is left out. */
static kvc_status map_all(kvc_client *client, const struct codec_map_reply *reply,
                          const struct wire_packet *packet, uint32_t *mapped, uint32_t *n_mapped)
{
    struct arrivals taken = {0};

    *n_mapped = 0;
    for (uint32_t i = 0; i < reply->n_extents; i++) {
        kvc_status status = map_one(client, reply, packet, i, &taken);

        if (status == KVC_OK)
            mapped[(*n_mapped)++] = reply->extents[i];
        else if (status != KVC_E_MAP)
            return status;
    }
    return taken.fd == packet->n_fds && taken.handle == reply->n_handles ? KVC_OK : KVC_E_PROTOCOL;
}

void extents_take_reply(kvc_client *client, struct wire_packet *packet)
{
    uint32_t mapped[KVC_WIRE_FDS_MAX], n_mapped;
    struct codec_map_reply reply;
    struct codec_error error;
    uint64_t began_us;
    bool good;

    if (packet->type == WIRE_ERROR) {
        if (codec_get_error(packet, &error))
            pull_end(&client->pull,
                     rpc_fail(&client->rpc, error.status, error.field, "%s", error.detail));
        else
            client_distrust(client, "Error", "malformed");
        return;
    }
    began_us = rpc_now_us();
    good = codec_get_map_reply(&client->scratch, packet, &reply) &&
           reply.n_extents <= KVC_WIRE_FDS_MAX &&
           map_all(client, &reply, packet, mapped, &n_mapped) == KVC_OK;
    client->pull.mapping_us += rpc_now_us() - began_us;
    if (!good) {
        client_distrust(client, "MapReply", "not extents with a stable descriptor each");
        return;
    }
    client->pull.cursor = reply.cursor;
    if (reply.n_extents > 0)
        post_map(client, mapped, n_mapped);
    else if (client->pull.again)
        pull_start(client);
    else
        pull_end(&client->pull, KVC_OK);
}

static void withdraw(kvc_client *client, const struct codec_extents *extents)
{
    size_t len = 0;
    kvc_status status;

    for (uint32_t i = 0; i < extents->n_withdrawn; i++) {
        const char *what = "";

        status = map_drop(&client->map, extents->withdrawn[i], &what);
        if (status == KVC_E_MAP) {
            rpc_break(&client->rpc, KVC_E_PROTOCOL, what, "an extent cannot be given back");
            return;
        }
        if (status != KVC_OK) {
            client_distrust(client, what, "no such extent");
            return;
        }
    }
    status = codec_put_unmap(extents->withdrawn, extents->n_withdrawn, client->rpc.spare, &len);
    if (status == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_UNMAP, client->rpc.spare, len);
}

/* Copies on the host have ended when their call returns; those of a GPU are waited for. */
void extents_take_notice(kvc_client *client, const struct wire_packet *packet)
{
    struct codec_extents extents;

    if (!role_copies(client->role))
        return;
    if (!codec_get_extents(&client->scratch, packet, &extents)) {
        client_distrust(client, "Extents", "malformed");
        return;
    }
    if (extents.n_withdrawn > 0 && client->cuda != NULL)
        cuda_drain(client->cuda);
    if (extents.n_withdrawn > 0)
        withdraw(client, &extents);
    if (!extents.granted)
        return;
    if (client->pull.active)
        client->pull.again = true;
    else
        pull_start(client);
}

kvc_status extents_pull(kvc_client *client, uint32_t granted)
{
    const uint64_t limit_us = rpc_deadline_us(client->connect_ms);
    struct pull *pull = &client->pull;
    uint64_t deadline_us;
    kvc_status status = KVC_OK;

    if (!role_copies(client->role)) /* maps nothing */
        return KVC_OK;
    if (pull->active)
        pull->again = true;
    else if (client->map.n_mapped < granted)
        pull_start(client);
    else
        return KVC_OK;
    pull->mapping_us = 0;
    while (pull->active && status == KVC_OK) {
        /* Registering with the GPU takes its time, of which the daemon is not to blame. */
        deadline_us = limit_us + pull->mapping_us;
        status = rpc_pump(&client->rpc, deadline_us);
        if (status == KVC_OK && pull->active && rpc_now_us() >= limit_us + pull->mapping_us)
            status = KVC_E_DEADLINE;
    }
    if (status == KVC_E_DEADLINE)
        return rpc_fail(&client->rpc, status, "extents", "not all were mapped in time");
    return status == KVC_OK ? pull->status : status;
}
