/* REGISTER, UNREGISTER, MAP, UNMAP: parts, and the memory that their blocks may lie in. */
#include "daemon/api/session.h"

#include "daemon/base/fd.h"

#define EXTENT_TIER(extent)  ((enum tier_kind)((extent) >> 31))
#define EXTENT_INDEX(extent) ((extent)&0x7fffffffu)

static kvc_status check_register(const struct msg_register *r, struct refusal *why)
{
    if (r->namespace_digest.len != KVC_NAMESPACE_BYTES)
        return refuse(why, KVC_E_INVALID, "not 32 bytes", "namespace_digest");
    if (r->slice_bytes.n > KVC_SLICES_MAX)
        return refuse(why, KVC_E_LIMIT, "more slices than a layout may have", "slice_bytes");
    if (r->slice_bytes.n == 0)
        return refuse(why, KVC_E_INVALID, "a layout has at least one slice", "slice_bytes");
    if (r->slice_dtypes.len != 0 && r->slice_dtypes.len != r->slice_bytes.n)
        return refuse(why, KVC_E_INVALID, "not one byte a slice", "slice_dtypes");
    if (r->family.len != 0 && r->family.len != 16)
        return refuse(why, KVC_E_INVALID, "not 16 bytes", "family");
    return name_check(r->name, why, "name");
}

/* Extents with handles lie apart, and a block cannot lie in two of them. */
static kvc_status check_size(const struct session *s, const struct msg_register *r,
                             struct refusal *why)
{
    const struct tier *gpu = s->api->tiers[TIER_GPU];
    uint64_t bytes = 0;

    if (gpu == NULL || tier_bytes(gpu) == 0 || tier_memory(gpu) != DEVICE_MEMORY_CUDA_HANDLE)
        return KVC_OK;
    for (uint32_t i = 0; i < r->slice_bytes.n; i++)
        bytes += r->slice_bytes.values[i] + (uint64_t)KVC_SLICE_ALIGN;
    if (bytes > tier_extent_bytes(gpu))
        return refuse(why, KVC_E_LIMIT,
                      "a block that is larger than an extent of this GPU's memory", "slice_bytes");
    return KVC_OK;
}

kvc_status layout_register(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_register *r = &request->register_;
    struct store_part part = {
        .namespace_digest = r->namespace_digest.data,
        .slice_bytes = r->slice_bytes.values,
        .n_slices = (uint32_t)r->slice_bytes.n,
        .dtypes = r->slice_dtypes.len > 0 ? r->slice_dtypes.data : NULL,
        .block_tokens = r->block_tokens,
        .rule = r->rule,
        .window = r->window,
        .family = r->family.len > 0 ? r->family.data : NULL,
        .name = r->name[0] != '\0' ? r->name : NULL,
    };
    struct store_part_info info;
    struct msg_register_reply reply;
    kvc_status status = check_register(r, why);

    /* Before anything is looked for: the answer is the same whether it exists or not. */
    if (status == KVC_OK && !access_has_namespace(session_door(s), r->namespace_digest.data))
        return refuse(why, KVC_E_DENIED, "not a namespace of this socket", "namespace_digest");
    if (status == KVC_OK)
        status = check_size(s, r, why);
    if (status == KVC_OK)
        status = store_register(s->api->store, s->owner, &part, &info, why);
    if (status != KVC_OK)
        return status;
    reply = (struct msg_register_reply){
        .part = info.part,
        .epoch = info.epoch,
        .fingerprint = info.fingerprint,
        .slot_bytes = info.slot_bytes,
        .extents = info.extents,
    };
    session_reply(s, WIRE_REGISTER, request->seq, codec_register(s->api->codec, &reply));
    return KVC_OK;
}

kvc_status layout_unregister(struct session *s, const struct request *request, struct refusal *why)
{
    kvc_status status = store_unregister(s->api->store, s->owner, request->unregister.part, why);

    if (status == KVC_OK)
        session_reply(s, WIRE_UNREGISTER, request->seq, codec_empty(s->api->codec));
    return status;
}

/*
 * All acknowledged extents are looked at before the first counts, so that a refusal changes none.
 * One that is being withdrawn may still be acknowledged: the client has not seen the notice yet.
 */
static kvc_status check_mapped(const struct session *s, struct numbers mapped, struct refusal *why)
{
    if (mapped.n > KVC_WIRE_FDS_MAX)
        return refuse(why, KVC_E_LIMIT, "more than one reply can have told", "mapped");
    for (uint32_t i = 0; i < mapped.n; i++)
        if (!store_owner_may_map(s->owner, mapped.values[i]) &&
            !store_owner_holds(s->owner, mapped.values[i]))
            return refuse(why, KVC_E_DENIED, "not an extent of this tenant", "mapped[%u]", i);
    return KVC_OK;
}

static void close_fds(int *fds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fd_close(fds[i]);
}

/* What extents are handed out as. */
struct handed {
    uint8_t kinds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds, n_handles;
    int fds[KVC_WIRE_FDS_MAX];
    uint8_t handles[KVC_WIRE_FDS_MAX * DEVICE_HANDLE_BYTES];
};

static kvc_status export_extents(const struct session *s, const uint32_t *extents, uint32_t n,
                                 struct handed *handed, struct refusal *why)
{
    const bool readonly = s->role != STORE_ROLE_WORKER;

    handed->n_fds = handed->n_handles = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct tier *tier = s->api->tiers[EXTENT_TIER(extents[i])];
        const bool has_handle = tier_memory(tier) == DEVICE_MEMORY_CUDA_HANDLE;
        kvc_status status = has_handle
                                ? tier_export_handle(tier, EXTENT_INDEX(extents[i]),
                                                     handed->handles + (size_t)handed->n_handles *
                                                                           DEVICE_HANDLE_BYTES)
                                : tier_export(tier, EXTENT_INDEX(extents[i]), readonly,
                                              &handed->fds[handed->n_fds]);

        if (status != KVC_OK) {
            close_fds(handed->fds, handed->n_fds);
            return refuse(why, status, "an extent cannot be handed out now", "%s", "");
        }
        handed->n_handles += has_handle;
        handed->n_fds += !has_handle;
        handed->kinds[i] = (uint8_t)tier_memory(tier);
    }
    return KVC_OK;
}

kvc_status layout_map(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_map *map = &request->map;
    uint32_t extents[KVC_WIRE_FDS_MAX];
    struct handed handed;
    struct msg_map_reply reply = {.extents = extents, .kinds = handed.kinds};
    struct bytes body;
    kvc_status status = check_mapped(s, map->mapped, why);

    if (status != KVC_OK)
        return status;
    reply.n = store_owner_extents(s->api->store, s->owner, map->cursor, extents, KVC_WIRE_FDS_MAX,
                                  &reply.cursor, &reply.more);
    status = export_extents(s, extents, reply.n, &handed, why);
    if (status != KVC_OK)
        return status;
    for (uint32_t i = 0; i < map->mapped.n; i++) {
        status = store_owner_mapped(s->api->store, s->owner, map->mapped.values[i]);
        if (status != KVC_OK) {
            close_fds(handed.fds, handed.n_fds);
            return refuse(why, status, "cannot be acknowledged", "mapped[%u]", i);
        }
    }
    for (uint32_t i = 0; i < reply.n; i++)
        store_owner_offer(s->api->store, s->owner, extents[i]);
    reply.handles = (struct bytes){handed.handles, (size_t)handed.n_handles * DEVICE_HANDLE_BYTES};
    body = codec_map(s->api->codec, &reply);
    connection_send(s->connection, WIRE_MAP | WIRE_REPLY, request->seq, body.data, body.len,
                    handed.fds, handed.n_fds);
    return KVC_OK;
}

kvc_status layout_unmap(struct session *s, const struct request *request, struct refusal *why)
{
    const struct numbers extents = request->unmap.extents;

    for (uint32_t i = 0; i < extents.n; i++)
        if (!store_owner_has_extent(s->owner, extents.values[i]))
            return refuse(why, KVC_E_INVALID, "no such extent", "extents[%u]", i);
    for (uint32_t i = 0; i < extents.n; i++)
        (void)store_owner_unmapped(s->api->store, s->owner, extents.values[i]);
    session_reply(s, WIRE_UNMAP, request->seq, codec_empty(s->api->codec));
    return KVC_OK;
}

void layout_extents(struct session *s, const uint32_t *withdrawn, uint32_t n, bool granted)
{
    const struct msg_extents extents = {withdrawn, n, granted};

    session_notice(s, WIRE_EXTENTS, codec_extents(s->api->codec, &extents));
}
