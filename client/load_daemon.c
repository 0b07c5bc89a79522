/* Loads that the daemon copies: it answers when the bytes are in the worker's blocks. */
#include <string.h>

#include "client/client.h"

/* Ends a load whose answer did not come. KVC_E_DEADLINE: nothing of it runs any more. */
static kvc_status give_up(kvc_client *client, uint32_t seq)
{
    const struct codec_abort abort = {.request = seq};
    struct call call = {.type = WIRE_ABORT};
    struct wire_packet packet;
    kvc_status status;

    if (seq == 0) /* it was never sent */
        return KVC_E_DEADLINE;
    status = codec_put_abort(&abort, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->load_ms, &packet);
    if (status == KVC_OK || status == KVC_E_UNKNOWN)
        return rpc_fail(&client->rpc, KVC_E_DEADLINE, NULL, "the load did not end in time");
    if (client->rpc.broken != KVC_OK)
        return status;
    return rpc_fail(&client->rpc, KVC_E_BUSY, NULL,
                    "the load did not end in time, and may still write to its destinations");
}

/* sums: NULL when none were sent. */
static kvc_status take_reply(kvc_client *client, const struct wire_packet *packet, uint32_t n,
                             uint8_t *valid, uint64_t *sums, bool *mismatch)
{
    struct codec_load_reply reply;
    bool all = true;

    if (!codec_get_load_reply(&client->scratch, packet, &reply) || reply.n_valid != n ||
        reply.n_sums != (sums != NULL ? n : 0))
        return client_distrust(client, "LoadReply", "malformed");
    for (uint32_t i = 0; i < n; i++)
        all = all && reply.valid[i] == 1;
    if (all != (reply.status == KVC_OK))
        return client_distrust(client, "LoadReply.status", "not what the blocks say");
    if (valid != NULL)
        memcpy(valid, reply.valid, n);
    if (sums != NULL)
        memcpy(sums, reply.sums, n * sizeof(*sums));
    if (reply.status == KVC_E_CHECKSUM)
        *mismatch = true;
    else if (reply.status != KVC_OK)
        return rpc_fail(&client->rpc, (kvc_status)reply.status, NULL, "the daemon's copy failed");
    return KVC_OK;
}

kvc_status load_by_daemon(kvc_client *client, const kvc_load_args *args, const struct part *part,
                          uint32_t at, uint32_t n, bool *mismatch)
{
    struct copy_gate gate;
    struct codec_load load = {
        .lease = args->lease,
        .part = part->id,
        .epoch = part->epoch,
        .first = args->first + at,
        .count = n,
        .first_slice = args->first_slice,
        .n_slices = args->n_slices,
        .region = part->lent->region,
        .blocks = args->blocks + at,
        .sums = args->sums != NULL ? args->sums + at : NULL,
        .release = args->release && load_is_last(client, args, at + n),
    };
    struct call call = {.type = WIRE_LOAD, .arg = LOAD_BY_DAEMON};
    struct wire_packet packet;
    kvc_status status = client->copy->write_gate(client->cuda, args->stream, &gate);

    if (status != KVC_OK)
        return client_refuse_stream(client, status);
    load.gate = gate.index;
    load.gate_number = gate.number;
    status = codec_put_load(&load, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->load_ms, &packet);
    if (status == KVC_E_DEADLINE)
        return give_up(client, call.seq);
    if (status != KVC_OK)
        return status;
    return take_reply(client, &packet, n, args->valid != NULL ? args->valid + at : NULL,
                      args->sums != NULL ? args->sums + at : NULL, mismatch);
}
