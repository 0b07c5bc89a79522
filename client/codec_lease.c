/* Bodies of lookups and leases. */
#include <string.h>

#include "client/codec_bits.h"

kvc_status codec_put_lookup(const struct codec_lookup *lookup, uint8_t *body, size_t *len)
{
    Kvcache__Lookup message = KVCACHE__LOOKUP__INIT;
    Kvcache__LookupPart parts[KVC_PARTS_MAX], *pointers[KVC_PARTS_MAX];

    for (uint32_t i = 0; i < lookup->n_parts; i++) {
        parts[i] = (Kvcache__LookupPart)KVCACHE__LOOKUP_PART__INIT;
        parts[i].part = lookup->parts[i];
        parts[i].epoch = lookup->epochs[i];
        pointers[i] = &parts[i];
    }
    message.request = lookup->request;
    message.keys = codec_bytes(lookup->keys, (size_t)lookup->n_keys * KVC_KEY_BYTES);
    message.n_parts = lookup->n_parts;
    message.parts = pointers;
    message.lease = lookup->lease;
    message.offset = lookup->offset;
    message.lease_ms = lookup->lease_ms;
    message.probe = lookup->probe;
    message.more = lookup->more;
    message.remote_ms = lookup->remote_ms;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_lookup_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            struct codec_lookup_reply *reply)
{
    Kvcache__LookupReply *message;

    message = codec_unpack_body(scratch, &kvcache__lookup_reply__descriptor, packet);
    if (message == NULL || (message->lease != 0 && message->token.len != KVC_TOKEN_BYTES))
        return false;
    memset(reply, 0, sizeof(*reply));
    reply->count = message->count;
    reply->lease = message->lease;
    reply->lease_ms = message->lease_ms;
    reply->gpu = message->gpu;
    reply->host = message->host;
    reply->pending = message->pending;
    reply->remote = message->remote;
    reply->fetch = message->fetch;
    /* A daemon that does not tell it knows of no other rules. */
    reply->reach = message->reach > message->count ? message->reach : message->count;
    if (message->lease != 0)
        memcpy(reply->token, message->token.data, KVC_TOKEN_BYTES);
    return true;
}

kvc_status codec_put_remote(uint64_t fetch, uint32_t wait_ms, bool decline, uint8_t *body,
                            size_t *len)
{
    Kvcache__Remote message = KVCACHE__REMOTE__INIT;

    message.fetch = fetch;
    message.wait_ms = wait_ms;
    message.decline = decline;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_remote_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            bool *done, uint32_t *blocks)
{
    Kvcache__RemoteReply *message;

    message = codec_unpack_body(scratch, &kvcache__remote_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *done = message->done;
    *blocks = message->blocks;
    return true;
}

kvc_status codec_put_extend(uint64_t lease, uint32_t ms, uint8_t *body, size_t *len)
{
    Kvcache__Extend message = KVCACHE__EXTEND__INIT;

    message.lease = lease;
    message.lease_ms = ms;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_extend_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            uint32_t *ms)
{
    Kvcache__ExtendReply *message;

    message = codec_unpack_body(scratch, &kvcache__extend_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *ms = message->lease_ms;
    return true;
}

kvc_status codec_put_release(uint64_t lease, uint8_t *body, size_t *len)
{
    Kvcache__Release message = KVCACHE__RELEASE__INIT;

    message.lease = lease;
    return codec_pack_body(&message.base, body, len);
}

kvc_status codec_put_adopt(const uint8_t *token, uint32_t part, uint32_t epoch, uint32_t ms,
                           uint8_t *body, size_t *len)
{
    Kvcache__Adopt message = KVCACHE__ADOPT__INIT;

    message.token = codec_bytes(token, KVC_TOKEN_BYTES);
    message.part = part;
    message.epoch = epoch;
    message.lease_ms = ms;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_adopt_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct codec_lookup_reply *reply)
{
    Kvcache__AdoptReply *message;

    message = codec_unpack_body(scratch, &kvcache__adopt_reply__descriptor, packet);
    if (message == NULL)
        return false;
    memset(reply, 0, sizeof(*reply));
    reply->lease = message->lease;
    reply->count = message->count;
    reply->lease_ms = message->lease_ms;
    return true;
}
