/* Lookups, leases, and handing them over. */
#include <string.h>

#include "client/client.h"

#define ORPHAN 1u /* call.arg: if the reply comes too late, nobody will know its lease */

static kvc_status refuse(kvc_client *client, const char *field, const char *detail)
{
    return rpc_fail(&client->rpc, KVC_E_INVALID, field, "%s", detail);
}

static kvc_status take_parts(kvc_client *client, const kvc_part *parts, uint32_t n_parts,
                             struct codec_lookup *lookup)
{
    kvc_status status = rpc_check_count(&client->rpc, "parts", parts, n_parts, KVC_PARTS_MAX);

    if (status != KVC_OK)
        return status;
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct part *part = part_of(client, parts[i]);

        if (part == NULL)
            return rpc_fail(&client->rpc, KVC_E_UNKNOWN, NULL, "parts[%u]: no part %u", i,
                            parts[i]);
        lookup->parts[i] = part->id;
        lookup->epochs[i] = part->epoch;
    }
    lookup->n_parts = n_parts;
    return KVC_OK;
}

static kvc_status ask(kvc_client *client, const struct codec_lookup *lookup, uint64_t deadline_us,
                      struct codec_lookup_reply *reply)
{
    struct call call = {.type = WIRE_LOOKUP, .deadline_us = deadline_us};
    struct wire_packet packet;
    kvc_status status;

    /* A lease under a request's name is found again by it; an appended one is known. */
    if (lookup->request == 0 && lookup->lease == 0 && !lookup->probe)
        call.arg = ORPHAN;
    status = codec_put_lookup(lookup, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->lookup_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_lookup_reply(&client->scratch, &packet, reply))
        return client_distrust(client, "LookupReply", "malformed");
    return KVC_OK;
}

static kvc_status enter_lookup(kvc_client *client, const kvc_part *parts, uint32_t n_parts,
                               const uint8_t *keys, uint32_t n_keys, const void *out,
                               struct codec_lookup *lookup)
{
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    if (out == NULL)
        return refuse(client, "lease", "NULL");
    if (keys == NULL && n_keys > 0)
        return refuse(client, "keys", "NULL");
    if (client->stopping)
        return rpc_fail(&client->rpc, KVC_E_STOPPING, NULL, "the daemon is shutting down");
    return take_parts(client, parts, n_parts, lookup);
}

static void set_lease(const struct codec_lookup_reply *reply, uint32_t blocks, kvc_lease *lease)
{
    memset(lease, 0, sizeof(*lease));
    lease->pending = reply->pending;
    lease->remote = reply->remote;
    lease->fetch = reply->fetch;
    if (reply->lease == 0)
        return;
    lease->id = reply->lease;
    memcpy(lease->token, reply->token, KVC_TOKEN_BYTES);
    lease->blocks = blocks;
    lease->ms = reply->lease_ms;
    lease->gpu = reply->gpu;
    lease->host = reply->host;
}

/*
 * Appends the keys behind the first packet of them, as far as every full part has them. A refusal
 * there, or no answer in time, ends the prefix and is no error: what is leased so far is one, too.
 */
static kvc_status append(kvc_client *client, struct codec_lookup *lookup, const uint8_t *keys,
                         uint32_t n_keys, uint64_t deadline_us, struct codec_lookup_reply *reply)
{
    struct codec_lookup_reply more;
    kvc_status status;

    while (reply->lease != 0 && lookup->offset + lookup->n_keys == reply->reach &&
           reply->reach < n_keys) {
        const uint32_t left = n_keys - reply->reach;

        lookup->request = 0;
        lookup->lease = reply->lease;
        lookup->offset = reply->reach;
        lookup->keys = keys + (size_t)reply->reach * KVC_KEY_BYTES;
        lookup->n_keys = left < client->keys_max ? left : client->keys_max;
        lookup->more = left > lookup->n_keys;
        status = ask(client, lookup, deadline_us, &more);
        if (status != KVC_OK)
            return client->rpc.broken;
        if (more.lease == 0) {
            *reply = more;
            return KVC_OK;
        }
        if (more.lease != reply->lease || more.count < reply->count ||
            more.reach > lookup->offset + lookup->n_keys)
            return client_distrust(client, "LookupReply.count", "not what was appended to");
        more.gpu += reply->gpu;
        more.host += reply->host;
        *reply = more;
    }
    return KVC_OK;
}

/* Nobody waits for the answer. */
static kvc_status release_aside(kvc_client *client, uint64_t lease)
{
    size_t len = 0;
    kvc_status status = codec_put_release(lease, client->rpc.body, &len);

    return status == KVC_OK ? rpc_tell(&client->rpc, WIRE_RELEASE, client->rpc.body, len) : status;
}

/* A lease that was made to be gone on with, and holds no prefix after all. */
static kvc_status forget_empty(kvc_client *client, struct codec_lookup_reply *reply)
{
    kvc_status status = KVC_OK;

    if (reply->lease != 0 && reply->count == 0) {
        status = release_aside(client, reply->lease);
        *reply = (struct codec_lookup_reply){
            .pending = reply->pending, .remote = reply->remote, .fetch = reply->fetch};
    }
    return status;
}

static kvc_status look_up(kvc_client *client, struct codec_lookup *lookup, const kvc_part *parts,
                          uint32_t n_parts, const uint8_t *keys, uint32_t n_keys, kvc_lease *lease)
{
    struct codec_lookup_reply reply = {0};
    uint64_t deadline_us;
    kvc_status status = enter_lookup(client, parts, n_parts, keys, n_keys, lease, lookup);

    if (status != KVC_OK)
        return status;
    /* Of all packets together: who asks has so much time for a prompt, however long it is. */
    deadline_us = rpc_deadline_us(client->lookup_ms);
    lookup->keys = keys;
    lookup->n_keys = n_keys < client->keys_max ? n_keys : client->keys_max;
    lookup->more = n_keys > lookup->n_keys;
    if (n_keys > 0) {
        status = ask(client, lookup, deadline_us, &reply);
        if (status == KVC_OK && reply.reach > lookup->n_keys)
            status = client_distrust(client, "LookupReply.count", "more than was asked for");
    }
    if (status == KVC_OK)
        status = append(client, lookup, keys, n_keys, deadline_us, &reply);
    if (status == KVC_OK)
        status = forget_empty(client, &reply);
    if (status != KVC_OK)
        return status;
    set_lease(&reply, reply.count, lease);
    return KVC_OK;
}

kvc_status kvc_lookup(kvc_client *client, uint64_t request, const kvc_part *parts, uint32_t n_parts,
                      const uint8_t *keys, uint32_t n_keys, uint32_t ms, kvc_lease *lease)
{
    struct codec_lookup lookup = {
        .request = request, .lease_ms = ms, .remote_ms = client != NULL ? client->remote_ms : 0};

    return look_up(client, &lookup, parts, n_parts, keys, n_keys, lease);
}

static kvc_status ask_remote(kvc_client *client, uint64_t fetch, uint32_t ms, bool decline,
                             bool *done, uint32_t *blocks)
{
    struct call call = {.type = WIRE_REMOTE};
    struct wire_packet packet;
    kvc_status status = codec_put_remote(fetch, ms, decline, client->rpc.body, &call.len);

    status = client_call(client, &call, status, client->lookup_ms + ms, &packet);
    if (status == KVC_OK && !codec_get_remote_reply(&client->scratch, &packet, done, blocks))
        status = client_distrust(client, "RemoteReply", "malformed");
    return status;
}

kvc_status kvc_remote(kvc_client *client, uint64_t fetch, uint32_t ms, uint32_t *blocks)
{
    bool done = true;
    uint32_t came = 0;
    kvc_status status = client_enter(client);

    if (ms > KVC_REMOTE_MS_MAX)
        ms = KVC_REMOTE_MS_MAX;
    if (status == KVC_OK && fetch != 0)
        status = ask_remote(client, fetch, ms, false, &done, &came);
    if (status == KVC_OK && !done)
        status = rpc_fail(&client->rpc, KVC_E_DEADLINE, "fetch", "it is not over");
    if (status == KVC_OK && blocks != NULL)
        *blocks = came;
    return status;
}

kvc_status kvc_decline(kvc_client *client, uint64_t fetch)
{
    bool done;
    uint32_t came;
    kvc_status status = client_enter(client);

    if (status == KVC_OK && fetch != 0)
        status = ask_remote(client, fetch, 0, true, &done, &came);
    return status;
}

static bool all_full(kvc_client *client, const kvc_part *parts, uint32_t n_parts)
{
    for (uint32_t i = 0; i < n_parts; i++)
        if (part_of(client, parts[i])->rule != KVC_RULE_FULL)
            return false;
    return true;
}

/* With other rules than full a packet means nothing without those before it, which a lease holds.
 * No peer is asked for anything, as by other probes. */
static kvc_status probe_by_lease(kvc_client *client, const kvc_part *parts, uint32_t n_parts,
                                 const uint8_t *keys, uint32_t n_keys, uint32_t *blocks)
{
    struct codec_lookup lookup = {0};
    kvc_lease lease;
    kvc_status status = look_up(client, &lookup, parts, n_parts, keys, n_keys, &lease);

    if (status == KVC_OK && lease.id != 0)
        status = release_aside(client, lease.id);
    if (status == KVC_OK)
        *blocks = lease.blocks;
    return status;
}

kvc_status kvc_probe(kvc_client *client, const kvc_part *parts, uint32_t n_parts,
                     const uint8_t *keys, uint32_t n_keys, uint32_t *blocks)
{
    struct codec_lookup lookup = {.probe = true};
    struct codec_lookup_reply reply;
    uint64_t deadline_us;
    uint32_t found = 0;
    kvc_status status = enter_lookup(client, parts, n_parts, keys, n_keys, blocks, &lookup);

    if (status != KVC_OK)
        return status;
    if (n_keys > client->keys_max && !all_full(client, parts, n_parts))
        return probe_by_lease(client, parts, n_parts, keys, n_keys, blocks);
    deadline_us = rpc_deadline_us(client->lookup_ms);
    /* Without a lease to append to, each packet is asked for by itself. */
    for (uint32_t at = 0; status == KVC_OK && at < n_keys && found == at; at += lookup.n_keys) {
        lookup.keys = keys + (size_t)at * KVC_KEY_BYTES;
        lookup.n_keys = n_keys - at < client->keys_max ? n_keys - at : client->keys_max;
        status = ask(client, &lookup, deadline_us, &reply);
        if (status == KVC_OK && (reply.count > lookup.n_keys || reply.lease != 0))
            status = client_distrust(client, "LookupReply.count", "more than was asked for");
        if (status == KVC_OK)
            found += reply.count;
    }
    /* What was found so far when the time is over is a prefix, as it is of a lookup. */
    if (status == KVC_E_DEADLINE && found > 0)
        status = KVC_OK;
    if (status == KVC_OK)
        *blocks = found;
    return status;
}

kvc_status kvc_extend(kvc_client *client, uint64_t lease, uint32_t ms, uint32_t *granted)
{
    struct call call = {.type = WIRE_EXTEND};
    struct wire_packet packet;
    uint32_t got;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    status = codec_put_extend(lease, ms, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->lookup_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_extend_reply(&client->scratch, &packet, &got))
        return client_distrust(client, "ExtendReply", "malformed");
    if (granted != NULL)
        *granted = got;
    return KVC_OK;
}

kvc_status kvc_release(kvc_client *client, uint64_t lease)
{
    struct call call = {.type = WIRE_RELEASE};
    struct wire_packet reply;
    kvc_status status = client_enter(client);

    if (status != KVC_OK || lease == 0)
        return status;
    status = codec_put_release(lease, client->rpc.body, &call.len);
    return client_call(client, &call, status, client->lookup_ms, &reply);
}

kvc_status kvc_adopt(kvc_client *client, const uint8_t token[KVC_TOKEN_BYTES], kvc_part handle,
                     uint32_t ms, kvc_lease *lease)
{
    struct call call = {.type = WIRE_ADOPT, .arg = ORPHAN};
    struct codec_lookup_reply reply;
    struct wire_packet packet;
    struct part *part;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    if (token == NULL || lease == NULL)
        return refuse(client, token == NULL ? "token" : "lease", "NULL");
    status = part_find(client, handle, &part);
    if (status != KVC_OK)
        return status;
    status = codec_put_adopt(token, part->id, part->epoch, ms, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->lookup_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_adopt_reply(&client->scratch, &packet, &reply))
        return client_distrust(client, "AdoptReply", "malformed");
    set_lease(&reply, reply.count, lease);
    return KVC_OK;
}

void lookup_take_late(kvc_client *client, uint16_t type, const struct wire_packet *packet)
{
    struct codec_lookup_reply reply;
    bool got = type == WIRE_ADOPT ? codec_get_adopt_reply(&client->scratch, packet, &reply)
                                  : codec_get_lookup_reply(&client->scratch, packet, &reply);
    size_t len = 0;

    if (!got)
        client_distrust(client, "LookupReply", "malformed");
    else if (reply.lease != 0 && codec_put_release(reply.lease, client->rpc.spare, &len) == KVC_OK)
        (void)rpc_tell(&client->rpc, WIRE_RELEASE, client->rpc.spare, len);
}
