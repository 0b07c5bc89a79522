/* What the parts of the codec share: its memory, and a look ahead. Included by codec*.c only. */
#ifndef KVC_CONN_CODEC_MEMORY_H
#define KVC_CONN_CODEC_MEMORY_H

#include <protobuf-c/protobuf-c.h>

#include "daemon/conn/codec.h"

struct codec {
    ProtobufCAllocator allocator; /* its data is this codec */
    size_t used;
    bool over;      /* a body asked for more than the budget */
    uint8_t *arena; /* KVC_WIRE_UNPACK_BUDGET bytes */
    uint8_t *out;   /* KVC_WIRE_BODY_MAX bytes */
};

/* Zeroed memory of the arena, or NULL. All of it ends with the next codec_memory_reset. */
void *codec_memory_take(struct codec *codec, size_t size);
void codec_memory_reset(struct codec *codec);

/*
 * Whether a body has no more fields than KVC_WIRE_FIELDS_MAX allows. It reads the body once, which
 * is a small part of what unpacking costs, and stops where it is broken.
 */
bool codec_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *body, size_t len);

#endif
