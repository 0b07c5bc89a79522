/* Memory that peers reach: tiers, lanes, and what a READY says of them. */
#ifdef KVC_UCX

#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

bool peers_is_memory(const struct peers *peers, enum tier_kind tier)
{
    const struct tier *t = peers->config.tiers[tier];

    return t != NULL && tier_extents(t) > 0 &&
           (tier == TIER_HOST || tier_memory(t) == DEVICE_MEMORY_MEMFD);
}

kvc_status peers_register_tiers(struct peers *peers)
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        struct tier *tier = peers->config.tiers[t];
        kvc_status status;

        if (!peers_is_memory(peers, t))
            continue;
        status =
            ucx_register(peers->ucx, tier_address(tier, 0), tier_bytes(tier), &peers->memory[t]);
        if (status != KVC_OK)
            return status;
        peers->figures.registrations++;
    }
    return KVC_OK;
}

uint32_t peers_modes(const struct peers *peers)
{
    const uint32_t views = 1u << MESSAGE_VIEWS,
                   exact = 1u << MESSAGE_GET | 1u << MESSAGE_PUT | 1u << MESSAGE_SEND |
                           (peers->n_extents > 0 ? 1u << MESSAGE_GPU : 0);

    switch (peers->config.transfer) {
    case PEERS_EXACT:
        return exact;
    case PEERS_VIEWS:
        return views;
    default:
        return exact | views;
    }
}

void peers_describe(struct peers *peers, const struct lanes *lanes, struct message_ready *ready)
{
    *ready = (struct message_ready){
        .modes = peers_modes(peers),
        .view_bytes = {lanes->slab.bytes[VIEW_FULL] / PEER_LANES, lanes->slab.bytes[VIEW_SMALL]},
        .caller = ucx_worker_number(peers->ask),
        .port = ucx_worker_port(peers->serve),
    };
    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        const struct tier *tier = peers->config.tiers[t];

        /* Who is not to address memory here is not told how to. */
        if (peers->memory[t].rkey == NULL || peers->config.transfer == PEERS_VIEWS ||
            peers->memory[t].rkey_len > MESSAGE_RKEY_MAX)
            continue;
        ready->regions[ready->n_regions++] = (struct message_region){
            .tier = t,
            .base = (uint64_t)(uintptr_t)tier_address(tier, 0),
            .bytes = tier_bytes(tier),
            .rkey = peers->memory[t].rkey,
            .rkey_len = (uint32_t)peers->memory[t].rkey_len,
        };
    }
}

/* One piece of memory: the remote keys lie behind it. */
struct message_ready *ready_keep(const struct message_ready *ready)
{
    struct message_ready *kept;
    size_t bytes = sizeof(*kept);
    uint8_t *at;

    for (uint32_t i = 0; i < ready->n_regions; i++)
        bytes += ready->regions[i].rkey_len;
    kept = mem_alloc(bytes);
    if (kept == NULL)
        return NULL;
    *kept = *ready;
    at = (uint8_t *)(kept + 1);
    for (uint32_t i = 0; i < ready->n_regions; i++) {
        const struct message_region *from = &ready->regions[i];

        kept->regions[i].rkey = memcpy(at, from->rkey, from->rkey_len);
        at += from->rkey_len;
    }
    return kept;
}

kvc_status regions_open(struct ucx_endpoint *endpoint, const struct message_ready *ready,
                        struct region regions[TIER_COUNT])
{
    for (uint32_t i = 0; i < ready->n_regions; i++) {
        const struct message_region *from = &ready->regions[i];
        struct region *region;
        kvc_status status;

        if (from->tier >= TIER_COUNT || regions[from->tier].rkey != NULL)
            return KVC_E_PROTOCOL;
        region = &regions[from->tier];
        status = ucx_rkey_open(endpoint, from->rkey, from->rkey_len, &region->rkey);
        if (status != KVC_OK)
            return status;
        region->base = from->base;
        region->bytes = from->bytes;
    }
    return KVC_OK;
}

void regions_close(struct ucx_endpoint *endpoint, struct region regions[TIER_COUNT])
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        ucx_rkey_close(endpoint, regions[t].rkey);
        regions[t] = (struct region){0};
    }
}

bool region_holds(const struct region *region, uint64_t offset, uint64_t bytes)
{
    return region->rkey != NULL && bytes <= region->bytes && offset <= region->bytes - bytes;
}

/* Lanes. */

kvc_status lanes_open(struct peers *peers, struct lanes *lanes)
{
    kvc_status status = view_slab_create(PEER_LANES * VIEW_SLAB_BYTES, &lanes->slab);

    if (status != KVC_OK)
        return status;
    status =
        ucx_register(peers->ucx, lanes->slab.base, lanes->slab.bytes[VIEW_FULL], &lanes->memory);
    if (status != KVC_OK)
        view_slab_destroy(&lanes->slab);
    else
        peers->figures.registrations++;
    return status;
}

void lanes_close(struct peers *peers, struct lanes *lanes)
{
    ucx_unregister(peers->ucx, &lanes->memory);
    view_slab_destroy(&lanes->slab);
}

uint32_t lane_take(struct lanes *lanes)
{
    for (uint32_t i = 0; i < PEER_LANES; i++) {
        if (lanes->used[i])
            continue;
        lanes->used[i] = true;
        return i;
    }
    return PEER_LANES;
}

uint8_t *lane_base(const struct lanes *lanes, uint32_t lane)
{
    return lanes->slab.base + lane * VIEW_SLAB_BYTES;
}

#endif
