/* Parts: what a worker's blocks look like, and under which number the daemon knows them. */
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "client/cuda.h"

struct part *part_of(kvc_client *client, kvc_part handle)
{
    if (handle == 0 || handle > KVC_PARTS_MAX || !client->parts[handle - 1].used)
        return NULL;
    return &client->parts[handle - 1];
}

kvc_status part_find(kvc_client *client, kvc_part handle, struct part **part)
{
    *part = part_of(client, handle);
    if (*part == NULL)
        return rpc_fail(&client->rpc, KVC_E_UNKNOWN, "part", "no part %u", handle);
    return KVC_OK;
}

/* No copy may be using its table. In a forked child that stays. */
static void part_free(kvc_client *client, struct part *part, bool inherited)
{
    lend_free(part->lent);
    if (part->table != NULL && !inherited)
        copy_cuda.part_close(client->cuda, part->table);
    free(part->slices);
    *part = (struct part){0};
}

/* Waits for copies that use its table. */
static void part_retire(kvc_client *client, struct part *part)
{
    if (part->table != NULL)
        cuda_drain(client->cuda);
    part_free(client, part, false);
}

void parts_free(kvc_client *client, bool inherited)
{
    for (uint32_t i = 0; i < KVC_PARTS_MAX; i++)
        part_free(client, &client->parts[i], inherited);
}

static kvc_status refuse_slice(kvc_client *client, uint32_t slice, const char *field,
                               const char *detail)
{
    return rpc_fail(&client->rpc, KVC_E_INVALID, NULL, "slices[%u].%s: %s", slice, field, detail);
}

/* Blocks of a slice must lie apart and inside the address space. */
static kvc_status check_slice(kvc_client *client, const kvc_part_desc *desc, uint32_t i)
{
    const kvc_slice *slice = &desc->slices[i];
    const uint64_t last = desc->n_blocks > 0 ? desc->n_blocks - 1 : 0;
    uint64_t end;

    if ((slice->base != NULL) != (desc->slices[0].base != NULL))
        return refuse_slice(client, i, "base", "NULL in some slices and not in others");
    if (slice->base == NULL || desc->n_blocks == 0)
        return KVC_OK;
    if (last > 0 && slice->stride < slice->bytes)
        return refuse_slice(client, i, "stride", "smaller than the slice");
    if (__builtin_mul_overflow(last, slice->stride, &end) ||
        __builtin_add_overflow(end, (uint64_t)slice->bytes, &end) ||
        __builtin_add_overflow(end, (uint64_t)(uintptr_t)slice->base, &end))
        return refuse_slice(client, i, "stride", "the last block ends behind all addresses");
    return KVC_OK;
}

static kvc_status check_desc(kvc_client *client, const kvc_part_desc *desc)
{
    kvc_status status =
        rpc_check_count(&client->rpc, "slices", desc->slices, desc->n_slices, KVC_SLICES_MAX);

    if (status != KVC_OK)
        return status;
    if ((unsigned)desc->copy > KVC_COPY_DAEMON)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "copy", "no such way");
    if (desc->block_tokens == 0 || desc->block_tokens > KVC_BLOCK_TOKENS_MAX)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "block_tokens", "%u, must be 1 to %u",
                        desc->block_tokens, KVC_BLOCK_TOKENS_MAX);
    for (uint32_t i = 0; i < desc->n_slices && status == KVC_OK; i++)
        status = check_slice(client, desc, i);
    return status;
}

/* One allocation, widest alignment first; it is the slices' address that is freed. */
static bool part_allocate(struct part *part, uint32_t n, size_t name_bytes)
{
    const size_t slices = n * sizeof(struct pack_slice), offsets = n * sizeof(uint64_t),
                 bytes = n * sizeof(uint32_t);
    uint8_t *memory = calloc(1, slices + offsets + bytes + n + name_bytes);

    if (memory == NULL)
        return false;
    part->slices = (struct pack_slice *)(void *)memory;
    part->layout.slice_offsets = (uint64_t *)(void *)(memory + slices);
    part->layout.slice_bytes = (uint32_t *)(void *)(memory + slices + offsets);
    part->dtypes = memory + slices + offsets + bytes;
    part->name = (char *)(part->dtypes + n);
    return true;
}

static kvc_status part_make(kvc_client *client, const kvc_part_desc *desc, struct part *part)
{
    const char *name = desc->name != NULL ? desc->name : "";
    const size_t name_bytes = strnlen(name, KVC_NAME_MAX) + 1;
    uint32_t *slice_bytes;
    bool dtypes = false;
    kvc_status status = check_desc(client, desc);

    if (status != KVC_OK)
        return status;
    *part = (struct part){.used = true};
    if (!part_allocate(part, desc->n_slices, name_bytes))
        return rpc_fail(&client->rpc, KVC_E_NO_MEMORY, NULL, "no memory for a part");
    slice_bytes = (uint32_t *)part->layout.slice_bytes;
    for (uint32_t i = 0; i < desc->n_slices; i++) {
        slice_bytes[i] = desc->slices[i].bytes;
        part->slices[i] = (struct pack_slice){desc->slices[i].base, desc->slices[i].stride};
        part->dtypes[i] = desc->slices[i].dtype;
        dtypes = dtypes || desc->slices[i].dtype != 0;
    }
    if (!dtypes)
        part->dtypes = NULL;
    memcpy(part->name, name, name_bytes - 1);
    memcpy(part->namespace_digest, desc->namespace_digest, KVC_NAMESPACE_BYTES);
    part->has_family = desc->family != NULL;
    if (part->has_family)
        memcpy(part->family, desc->family, CODEC_FAMILY_BYTES);
    part->n_blocks = desc->n_blocks;
    part->has_memory = desc->slices[0].base != NULL;
    part->block_tokens = desc->block_tokens;
    part->rule = desc->rule;
    part->window = desc->window;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): part->slices holds all of it, for part_free */
    status = pack_layout_init(&part->layout, slice_bytes, desc->n_slices);
    if (status != KVC_OK) {
        part_free(client, part, false);
        return rpc_fail(&client->rpc, status, "slices", "%s",
                        status == KVC_E_LIMIT ? "more bytes than a block may have"
                                              : "a slice of no bytes");
    }
    if (desc->copy == KVC_COPY_DAEMON)
        status = lend_make(client, desc, &part->lent);
    if (status != KVC_OK)
        part_free(client, part, false);
    return status;
}

static bool same_layout(const struct part *a, const struct part *b)
{
    const uint32_t n = a->layout.n_slices;

    return n == b->layout.n_slices && a->block_tokens == b->block_tokens &&
           memcmp(a->layout.slice_bytes, b->layout.slice_bytes, n * sizeof(uint32_t)) == 0 &&
           (a->dtypes == NULL) == (b->dtypes == NULL) &&
           (a->dtypes == NULL || memcmp(a->dtypes, b->dtypes, n) == 0);
}

static bool same_memory(const struct part *a, const struct part *b)
{
    for (uint32_t i = 0; i < a->layout.n_slices; i++)
        if (a->slices[i].base != b->slices[i].base || a->slices[i].stride != b->slices[i].stride)
            return false;
    return a->n_blocks == b->n_blocks;
}

static bool part_equal(const struct part *a, const struct part *b)
{
    return a->used && b->used && same_layout(a, b) && same_memory(a, b) && a->rule == b->rule &&
           a->window == b->window && a->has_family == b->has_family &&
           lend_equal(a->lent, b->lent) && memcmp(a->family, b->family, CODEC_FAMILY_BYTES) == 0 &&
           memcmp(a->namespace_digest, b->namespace_digest, KVC_NAMESPACE_BYTES) == 0;
}

/* The daemon must lay blocks out as this library does: it would otherwise copy past a slot. */
static bool reply_fits(const struct part *part, const struct codec_register_reply *reply)
{
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];

    pack_layout_fingerprint(&part->layout, part->block_tokens, part->dtypes, fingerprint);
    return reply->part != 0 && reply->slot_bytes == part->layout.slot_bytes &&
           memcmp(reply->fingerprint, fingerprint, KVC_FINGERPRINT_BYTES) == 0;
}

/* What the device needs to know of the part's memory. */
static kvc_status part_open(kvc_client *client, struct part *part)
{
    uint32_t slice = 0;
    const char *why = "";
    kvc_status status;

    if (!part->has_memory || part->lent != NULL || !role_copies(client->role))
        return KVC_OK;
    status = client->copy->part_open(client->cuda, &part->layout, part->slices, &part->table,
                                     &slice, &why);
    if (status == KVC_E_INVALID)
        return refuse_slice(client, slice, "base", why);
    if (status == KVC_E_UNSUPPORTED)
        return rpc_fail(&client->rpc, status, "copy",
                        "this library was built without nvcc and has no kernels: only the daemon "
                        "can copy (KVC_COPY_DAEMON)");
    if (status != KVC_OK)
        return rpc_fail(&client->rpc, status, "slices", "the device has no room for their table");
    return KVC_OK;
}

static kvc_status part_announce(kvc_client *client, struct part *part, uint32_t *extents)
{
    const struct codec_register request = {
        .namespace_digest = part->namespace_digest,
        .family = part->has_family ? part->family : NULL,
        .name = part->name,
        .block_tokens = part->block_tokens,
        .rule = part->rule,
        .window = part->window,
        .n_slices = part->layout.n_slices,
        .slice_bytes = part->layout.slice_bytes,
        .slice_dtypes = part->dtypes,
    };
    struct call call = {.type = WIRE_REGISTER};
    struct codec_register_reply reply;
    struct wire_packet packet;
    kvc_status status;

    status = codec_put_register(&request, client->rpc.body, &call.len);
    status = client_call(client, &call, status, client->connect_ms, &packet);
    if (status != KVC_OK)
        return status;
    if (!codec_get_register_reply(&client->scratch, &packet, &reply))
        return client_distrust(client, "RegisterReply", "malformed");
    if (!reply_fits(part, &reply))
        return client_distrust(client, "RegisterReply", "another packing than this library's");
    part->id = reply.part;
    part->epoch = reply.epoch;
    *extents = reply.extents;
    return KVC_OK;
}

kvc_status part_again(kvc_client *client, struct part *part, uint32_t *extents)
{
    const bool on_gpu = part->table != NULL;

    if (part->has_memory && part->lent == NULL && role_copies(client->role) &&
        on_gpu != (client->copy == &copy_cuda))
        return rpc_fail(&client->rpc, KVC_E_NO_DEVICE, "slices",
                        "not for a daemon whose device is \"%s\"", client->device);
    return part_announce(client, part, extents);
}

/* The place of an equal part, or a free one; NULL when all are in use. */
static struct part *find_place(kvc_client *client, const struct part *part)
{
    struct part *place = NULL;

    for (uint32_t i = 0; i < KVC_PARTS_MAX; i++) {
        if (part_equal(&client->parts[i], part))
            return &client->parts[i];
        if (place == NULL && !client->parts[i].used)
            place = &client->parts[i];
    }
    return place;
}

/* Parts that differ only in the worker's memory are one to the daemon. */
static void refresh_same(kvc_client *client, const struct part *part)
{
    for (uint32_t i = 0; i < KVC_PARTS_MAX; i++)
        if (client->parts[i].used && client->parts[i].id == part->id)
            client->parts[i].epoch = part->epoch;
}

/* A part that is here is said to the daemon once more: its namespace was flushed. */
static kvc_status register_again(kvc_client *client, kvc_part handle)
{
    struct part *part;
    uint32_t extents = 0;
    kvc_status status = part_find(client, handle, &part);

    if (status != KVC_OK)
        return status;
    status = part_again(client, part, &extents);
    if (status == KVC_OK)
        refresh_same(client, part);
    if (status == KVC_OK && part->lent == NULL)
        status = extents_pull(client, extents);
    return status;
}

kvc_status kvc_register(kvc_client *client, const kvc_part_desc *desc, kvc_part *part)
{
    struct part made = {0}, *place;
    uint32_t extents = 0;
    kvc_status status = client_enter(client);

    if (status != KVC_OK)
        return status;
    if (part == NULL)
        return rpc_fail(&client->rpc, KVC_E_INVALID, "part", "NULL");
    if (desc == NULL)
        return register_again(client, *part);
    status = part_make(client, desc, &made);
    if (status != KVC_OK)
        return status;
    place = find_place(client, &made);
    if (place == NULL)
        status = rpc_fail(&client->rpc, KVC_E_LIMIT, "part", "%u are registered", KVC_PARTS_MAX);
    if (status == KVC_OK)
        status = part_open(client, &made);
    if (status == KVC_OK)
        status = part_announce(client, &made, &extents);
    if (status == KVC_OK && made.lent != NULL)
        status = lend_announce(client, &made);
    else if (status == KVC_OK)
        status = extents_pull(client, extents);
    if (status != KVC_OK || place == NULL) {
        part_free(client, &made, false);
        return status;
    }
    part_retire(client, place);
    *place = made;
    refresh_same(client, place);
    *part = (kvc_part)(place - client->parts) + 1;
    return KVC_OK;
}

/* Whether another handle stands for the same part of the daemon. */
static bool is_shared(const kvc_client *client, const struct part *part)
{
    for (uint32_t i = 0; i < KVC_PARTS_MAX; i++)
        if (&client->parts[i] != part && client->parts[i].used && client->parts[i].id == part->id)
            return true;
    return false;
}

kvc_status kvc_unregister(kvc_client *client, kvc_part handle)
{
    struct call call = {.type = WIRE_UNREGISTER};
    struct wire_packet reply;
    struct part *part;
    kvc_status status = client_enter(client);

    if (client == NULL || status == KVC_E_FORKED)
        return status;
    part = part_of(client, handle);
    if (part == NULL)
        return rpc_fail(&client->rpc, KVC_E_UNKNOWN, "part", "%u", handle);
    if (status == KVC_OK && part->lent != NULL) {
        status = lend_drop(client, part);
        if (status != KVC_OK && client->rpc.broken == KVC_OK)
            return status;
    }
    /* Without a connection nothing is copied, and kvc_reconnect must not register it again. */
    if (status == KVC_OK && !is_shared(client, part)) {
        status = codec_put_unregister(part->id, client->rpc.body, &call.len);
        status = client_call(client, &call, status, client->connect_ms, &reply);
        if (status != KVC_OK && client->rpc.broken == KVC_OK)
            return status;
    }
    part_retire(client, part);
    return KVC_OK;
}
