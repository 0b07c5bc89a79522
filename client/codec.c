#include "client/codec.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/admin.h"
#include "client/codec_bits.h"

/* A message's memory is freed as a whole, by the scratch's next use. */
static void *scratch_alloc(void *arg, size_t size)
{
    struct codec_scratch *scratch = arg;
    const size_t align = alignof(max_align_t);
    void *memory;

    if (size > KVC_WIRE_UNPACK_BUDGET)
        return NULL;
    size = (size + align - 1) & ~(align - 1);
    if (size > KVC_WIRE_UNPACK_BUDGET - scratch->used)
        return NULL;
    memory = scratch->memory + scratch->used;
    scratch->used += size;
    return memory;
}

void *codec_scratch_more(struct codec_scratch *scratch, size_t size)
{
    return scratch_alloc(scratch, size);
}

static void scratch_release(void *arg, void *memory)
{
    (void)arg;
    (void)memory;
}

void codec_scratch_free(struct codec_scratch *scratch)
{
    free(scratch->memory);
    *scratch = (struct codec_scratch){0};
}

void *codec_unpack_body(struct codec_scratch *scratch, const ProtobufCMessageDescriptor *descriptor,
                        const struct wire_packet *packet)
{
    ProtobufCAllocator allocator = {scratch_alloc, scratch_release, scratch};

    if (scratch->memory == NULL)
        scratch->memory = malloc(KVC_WIRE_UNPACK_BUDGET);
    if (scratch->memory == NULL)
        return NULL;
    scratch->used = 0;
    return protobuf_c_message_unpack(descriptor, &allocator, packet->body_len, packet->body);
}

void codec_mark_unknown(ProtobufCMessage *message, uint32_t known, uint32_t first)
{
    const ProtobufCMessageDescriptor *d = message->descriptor;

    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        uint64_t *value = (uint64_t *)(void *)((char *)message + f->offset);

        if (f->type == PROTOBUF_C_TYPE_UINT64 && f->label == PROTOBUF_C_LABEL_NONE &&
            f->id > (known != 0 ? known : first) && *value == 0)
            *value = ADMIN_UNKNOWN;
    }
}

kvc_status codec_pack_body(const ProtobufCMessage *message, uint8_t *body, size_t *len)
{
    if (protobuf_c_message_get_packed_size(message) > KVC_WIRE_BODY_MAX)
        return KVC_E_LIMIT;
    *len = protobuf_c_message_pack(message, body);
    return KVC_OK;
}

/* An error is short: it is unpacked with memory of its own, so that no scratch is disturbed. */
bool codec_get_error(const struct wire_packet *packet, struct codec_error *error)
{
    Kvcache__Error *message;
    struct codec_scratch scratch = {0};

    message = codec_unpack_body(&scratch, &kvcache__error__descriptor, packet);
    if (message != NULL && message->status != KVC_OK) {
        error->status = (kvc_status)message->status;
        snprintf(error->field, sizeof(error->field), "%s", message->field);
        snprintf(error->detail, sizeof(error->detail), "%s", message->detail);
    } else {
        message = NULL;
    }
    codec_scratch_free(&scratch);
    return message != NULL;
}
