#include "daemon/conn/codec_memory.h"

/* What wire types there are in protobuf; groups (3 and 4) are parsed by nobody here. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* A message within the body is an allocation with room for all of its fields. */
#define MESSAGE_WEIGHT 8u

struct cursor {
    const uint8_t *at, *end;
};

static bool take_varint(struct cursor *c, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; c->at < c->end && shift < 64; shift += 7) {
        const uint8_t byte = *c->at++;

        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool skip(struct cursor *c, uint64_t bytes)
{
    if (bytes > (uint64_t)(c->end - c->at))
        return false;
    c->at += bytes;
    return true;
}

/* Goes over one value; *inner is what it holds if it is BYTES. False where the body is broken. */
static bool take_value(struct cursor *c, unsigned wire_type, struct cursor *inner)
{
    uint64_t value;

    switch (wire_type) {
    case VARINT:
        return take_varint(c, &value);
    case FIXED64:
        return skip(c, 8);
    case FIXED32:
        return skip(c, 4);
    case BYTES:
        if (!take_varint(c, &value))
            return false;
        inner->at = c->at;
        if (!skip(c, value))
            return false;
        inner->end = c->at;
        return true;
    default:
        return false;
    }
}

static const ProtobufCMessageDescriptor *message_of(const ProtobufCMessageDescriptor *descriptor,
                                                    uint64_t tag)
{
    const ProtobufCFieldDescriptor *field;

    if ((tag & 7) != BYTES || tag >> 3 > UINT32_MAX)
        return NULL;
    field = protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(tag >> 3));
    return field != NULL && field->type == PROTOBUF_C_TYPE_MESSAGE ? field->descriptor : NULL;
}

/* As deep as messages hold others, which none of ours does in a circle.
   NOLINTNEXTLINE(misc-no-recursion) */
static bool scan(const ProtobufCMessageDescriptor *descriptor, struct cursor c, uint32_t *left)
{
    while (c.at < c.end) {
        const ProtobufCMessageDescriptor *message;
        struct cursor inner = {0};
        uint32_t weight = 1;
        uint64_t tag;

        /* What is broken is left to the parser, which finds it where this has stopped. */
        if (!take_varint(&c, &tag) || !take_value(&c, tag & 7, &inner))
            return true;
        message = message_of(descriptor, tag);
        if (message != NULL)
            weight += MESSAGE_WEIGHT;
        if (weight > *left)
            return false;
        *left -= weight;
        if (message != NULL && !scan(message, inner, left))
            return false;
    }
    return true;
}

bool codec_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *body, size_t len)
{
    uint32_t left = KVC_WIRE_FIELDS_MAX;

    return scan(descriptor, (struct cursor){body, body + len}, &left);
}
