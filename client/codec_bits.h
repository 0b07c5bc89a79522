/* What the codec's files share; only they may see protobuf types. */
#ifndef KVC_CLIENT_CODEC_BITS_H
#define KVC_CLIENT_CODEC_BITS_H

#include "client/codec.h"
#include "proto/kvcache.pb-c.h"

/* Unpacks into scratch, whose former content ends; NULL when malformed or over the budget. */
void *codec_unpack_body(struct codec_scratch *scratch, const ProtobufCMessageDescriptor *descriptor,
                        const struct wire_packet *packet);

/* More memory that lives as long as what was unpacked; NULL when the budget is used up. */
void *codec_scratch_more(struct codec_scratch *scratch, size_t size);

/* Makes numbers ADMIN_UNKNOWN that a daemon does not send because it is older than they are: those
 * of 64 bits behind the last one that it knows, or, 0, behind `first`, which each one knows. */
void codec_mark_unknown(ProtobufCMessage *message, uint32_t known, uint32_t first);

kvc_status codec_pack_body(const ProtobufCMessage *message, uint8_t *body, size_t *len);

/* A bytes field for bytes that are only read; NULL is an empty one. */
static inline ProtobufCBinaryData codec_bytes(const void *data, size_t len)
{
    ProtobufCBinaryData bytes = {.len = data != NULL ? len : 0, .data = (uint8_t *)data};

    return bytes;
}

#endif
