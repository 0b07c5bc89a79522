#include "daemon/conn/codec_memory.h"

#include <stdalign.h>
#include <string.h>

#include "daemon/base/mem.h"

/*
 * protobuf-c does not initialise the unknown fields of a message that it gives up on, and frees
 * what it finds there, so it must get zeroed memory.
 */
void *codec_memory_take(struct codec *codec, size_t size)
{
    const size_t align = alignof(max_align_t);
    void *p;

    if (size > KVC_WIRE_UNPACK_BUDGET - codec->used) {
        codec->over = true;
        return NULL;
    }
    p = codec->arena + codec->used;
    codec->used += (size + align - 1) / align * align;
    if (codec->used > KVC_WIRE_UNPACK_BUDGET)
        codec->used = KVC_WIRE_UNPACK_BUDGET;
    return memset(p, 0, size);
}

void codec_memory_reset(struct codec *codec)
{
    codec->used = 0;
    codec->over = false;
}

static void *take_cb(void *data, size_t size)
{
    return codec_memory_take(data, size);
}

static void free_cb(void *data, void *p)
{
    (void)data;
    (void)p;
}

kvc_status codec_create(struct codec **codec)
{
    struct codec *c = mem_zalloc(sizeof(*c));

    if (c == NULL)
        return KVC_E_NO_MEMORY;
    c->allocator = (ProtobufCAllocator){.alloc = take_cb, .free = free_cb, .allocator_data = c};
    c->arena = mem_alloc(KVC_WIRE_UNPACK_BUDGET);
    c->out = mem_alloc(KVC_WIRE_BODY_MAX);
    if (c->arena == NULL || c->out == NULL) {
        codec_destroy(c);
        return KVC_E_NO_MEMORY;
    }
    *codec = c;
    return KVC_OK;
}

void codec_destroy(struct codec *codec)
{
    if (codec == NULL)
        return;
    mem_free(codec->out);
    mem_free(codec->arena);
    mem_free(codec);
}
