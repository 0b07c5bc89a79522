/* LOOKUP, EXTEND, RELEASE, ADOPT: leases. */
#include "daemon/api/remote.h"
#include "daemon/api/session.h"

/* Parts without keys of their own share the lookup's; all must be of one length. */
static kvc_status read_parts(const struct msg_lookup *lookup, struct store_lookup_part *parts,
                             struct refusal *why)
{
    uint32_t n_shared, n_total;
    kvc_status status = keys_count(lookup->keys, &n_shared, why, "keys");

    if (status != KVC_OK)
        return status;
    if (n_shared > KVC_KEYS_MAX)
        return refuse(why, KVC_E_LIMIT, "more keys than a request may have", "keys");
    n_total = n_shared;
    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        const struct msg_lookup_part *p = &lookup->parts[i];
        uint32_t n;

        parts[i] = (struct store_lookup_part){
            .part = p->part, .epoch = p->epoch, .keys = lookup->keys.data, .n_keys = n_shared};
        if (p->keys.len == 0)
            continue;
        status = keys_count(p->keys, &n, why, "parts[%u].keys", i);
        if (status != KVC_OK)
            return status;
        n_total += n;
        if (n_total > KVC_KEYS_MAX)
            return refuse(why, KVC_E_LIMIT, "more keys than a request may have", "parts[%u].keys",
                          i);
        parts[i].keys = p->keys.data;
        parts[i].n_keys = n;
    }
    for (uint32_t i = 1; i < lookup->n_parts; i++)
        if (parts[i].n_keys != parts[0].n_keys)
            return refuse(why, KVC_E_INVALID, "not as many keys as the first part has",
                          "parts[%u].keys", i);
    return KVC_OK;
}

kvc_status lookup_lookup(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_lookup *lookup = &request->lookup;
    struct store_lookup_part parts[KVC_PARTS_MAX];
    struct store_lookup req = {
        .request = lookup->request,
        .lease = lookup->lease,
        .offset = lookup->offset,
        .lease_ms = lookup->lease_ms,
        .probe = lookup->probe,
        .more = lookup->more,
        .parts = parts,
        .n_parts = (uint32_t)lookup->n_parts,
    };
    struct store_lookup_result result;
    struct msg_lookup_reply reply;
    kvc_status status;

    if (lookup->n_parts == 0)
        return refuse(why, KVC_E_INVALID, "a lookup names at least one part", "parts");
    if (lookup->n_parts > KVC_PARTS_MAX)
        return refuse(why, KVC_E_LIMIT, "more parts than a lookup may name", "parts");
    status = read_parts(lookup, parts, why);
    if (status == KVC_OK)
        status = store_lookup(s->api->store, s->owner, &req, &result, why);
    if (status != KVC_OK)
        return status;
    inspect_note_hits(s->api);
    reply = (struct msg_lookup_reply){
        .count = result.count,
        .lease = result.lease,
        .token = result.lease != 0 ? result.token : NULL,
        .lease_ms = result.lease_ms,
        .gpu = result.in_tier[TIER_GPU],
        .host = result.in_tier[TIER_HOST],
        .pending = result.pending,
        .reach = result.reach,
    };
    remote_begin(s, lookup->remote_ms, &req, &result, &reply);
    session_reply(s, WIRE_LOOKUP, request->seq, codec_lookup(s->api->codec, &reply));
    return KVC_OK;
}

kvc_status lookup_extend(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_extend *extend = &request->extend;
    uint32_t granted_ms;
    kvc_status status =
        store_extend(s->api->store, s->owner, extend->lease, extend->lease_ms, &granted_ms, why);

    if (status == KVC_OK)
        session_reply(s, WIRE_EXTEND, request->seq, codec_extend(s->api->codec, granted_ms));
    return status;
}

kvc_status lookup_release(struct session *s, const struct request *request, struct refusal *why)
{
    kvc_status status = store_release(s->api->store, s->owner, request->release.lease, why);

    if (status == KVC_OK)
        session_reply(s, WIRE_RELEASE, request->seq, codec_empty(s->api->codec));
    return status;
}

kvc_status lookup_adopt(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_adopt *adopt = &request->adopt;
    struct store_lookup_result result;
    struct msg_adopt_reply reply;
    kvc_status status;

    if (adopt->token.len != KVC_TOKEN_BYTES)
        return refuse(why, KVC_E_INVALID, "not 16 bytes", "token");
    status = store_adopt(s->api->store, s->owner, adopt->token.data, KVC_TOKEN_BYTES, adopt->part,
                         adopt->epoch, adopt->lease_ms, &result, why);
    if (status != KVC_OK)
        return status;
    reply = (struct msg_adopt_reply){
        .lease = result.lease, .count = result.count, .lease_ms = result.lease_ms};
    session_reply(s, WIRE_ADOPT, request->seq, codec_adopt(s->api->codec, &reply));
    return KVC_OK;
}
