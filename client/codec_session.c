/* Bodies of hello, parts and extents. */
#include <stdio.h>
#include <string.h>

#include "client/codec_bits.h"

kvc_status codec_put_hello(const struct codec_hello *hello, uint8_t *body, size_t *len)
{
    Kvcache__Hello message = KVCACHE__HELLO__INIT;
    char name[KVC_NAME_MAX + 1];

    snprintf(name, sizeof(name), "%s", hello->name);
    message.version = WIRE_VERSION;
    message.role = (Kvcache__Role)hello->role;
    message.pid = hello->pid;
    message.name = name;
    message.device_uuids =
        codec_bytes(hello->device_uuids, (size_t)hello->n_devices * KVC_UUID_BYTES);
    message.build = KVC_BUILD_VERSION;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_hello_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct codec_hello_reply *reply)
{
    Kvcache__HelloReply *message;

    message = codec_unpack_body(scratch, &kvcache__hello_reply__descriptor, packet);
    if (message == NULL || message->secret.len != KVC_SECRET_BYTES)
        return false;
    memset(reply, 0, sizeof(*reply));
    reply->version = message->version;
    reply->session = message->session;
    reply->boot_epoch = message->boot_epoch;
    memcpy(reply->secret, message->secret.data, KVC_SECRET_BYTES);
    snprintf(reply->device, sizeof(reply->device), "%s", message->device);
    for (size_t i = 0; i < message->n_tiers; i++) {
        const Kvcache__TierGeometry *tier = message->tiers[i];

        if ((unsigned)tier->tier < CODEC_TIERS)
            reply->tiers[tier->tier] =
                (struct codec_tier){tier->bytes, tier->extent_bytes, tier->extents};
    }
    reply->page_words = message->page_words;
    reply->page_stride = message->page_stride;
    reply->keys_max = message->keys_max;
    return true;
}

kvc_status codec_put_register(const struct codec_register *part, uint8_t *body, size_t *len)
{
    Kvcache__Register message = KVCACHE__REGISTER__INIT;

    message.namespace_digest = codec_bytes(part->namespace_digest, KVC_NAMESPACE_BYTES);
    message.family = codec_bytes(part->family, CODEC_FAMILY_BYTES);
    message.block_tokens = part->block_tokens;
    message.n_slice_bytes = part->n_slices;
    message.slice_bytes = (uint32_t *)part->slice_bytes;
    message.slice_dtypes = codec_bytes(part->slice_dtypes, part->n_slices);
    message.rule = (Kvcache__Rule)part->rule;
    message.window = part->window;
    message.name = (char *)(part->name != NULL ? part->name : "");
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_register_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                              struct codec_register_reply *reply)
{
    Kvcache__RegisterReply *message;

    message = codec_unpack_body(scratch, &kvcache__register_reply__descriptor, packet);
    if (message == NULL || message->fingerprint.len != KVC_FINGERPRINT_BYTES)
        return false;
    reply->part = message->part;
    reply->epoch = message->epoch;
    reply->extents = message->extents;
    reply->slot_bytes = message->slot_bytes;
    memcpy(reply->fingerprint, message->fingerprint.data, KVC_FINGERPRINT_BYTES);
    return true;
}

kvc_status codec_put_unregister(uint32_t part, uint8_t *body, size_t *len)
{
    Kvcache__Unregister message = KVCACHE__UNREGISTER__INIT;

    message.part = part;
    return codec_pack_body(&message.base, body, len);
}

kvc_status codec_put_map(uint32_t cursor, const uint32_t *mapped, uint32_t n_mapped, uint8_t *body,
                         size_t *len)
{
    Kvcache__Map message = KVCACHE__MAP__INIT;

    message.cursor = cursor;
    message.n_mapped = n_mapped;
    message.mapped = (uint32_t *)mapped;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_map_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                         struct codec_map_reply *reply)
{
    Kvcache__MapReply *message;

    message = codec_unpack_body(scratch, &kvcache__map_reply__descriptor, packet);
    if (message == NULL || message->kinds.len != message->n_extents ||
        message->handles.len % CODEC_HANDLE_BYTES != 0)
        return false;
    reply->n_handles = (uint32_t)(message->handles.len / CODEC_HANDLE_BYTES);
    reply->handles = message->handles.data;
    reply->n_extents = (uint32_t)message->n_extents;
    reply->extents = message->extents;
    reply->kinds = message->kinds.data;
    reply->cursor = message->cursor;
    reply->more = message->more;
    return true;
}

kvc_status codec_put_unmap(const uint32_t *extents, uint32_t n, uint8_t *body, size_t *len)
{
    Kvcache__Unmap message = KVCACHE__UNMAP__INIT;

    message.n_extents = n;
    message.extents = (uint32_t *)extents;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_extents(struct codec_scratch *scratch, const struct wire_packet *packet,
                       struct codec_extents *extents)
{
    Kvcache__Extents *message = codec_unpack_body(scratch, &kvcache__extents__descriptor, packet);

    if (message == NULL)
        return false;
    extents->n_withdrawn = (uint32_t)message->n_withdrawn;
    extents->withdrawn = message->withdrawn;
    extents->granted = message->granted;
    return true;
}

kvc_status codec_put_drained(uint64_t session, const uint8_t *secret, uint8_t *body, size_t *len)
{
    Kvcache__Drained message = KVCACHE__DRAINED__INIT;

    message.session = secret != NULL ? session : 0;
    message.secret = codec_bytes(secret, KVC_SECRET_BYTES);
    return codec_pack_body(&message.base, body, len);
}
