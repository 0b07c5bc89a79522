#include "daemon/tier/tier.h"

#include <assert.h>

#include "daemon/base/mem.h"

struct tier {
    struct device_slab slab;
    uint64_t populated;
    tier_renewing_cb *renewing;
    void *arg;
};

kvc_status tier_create(enum tier_kind kind, const struct device *device, uint64_t extent_bytes,
                       uint32_t n_extents, struct tier **ret)
{
    const struct device_ops *ops = kind == TIER_GPU ? device->gpu : device->host;
    struct tier *tier = mem_zalloc(sizeof(*tier));
    kvc_status status;

    if (!tier)
        return KVC_E_NO_MEMORY;
    status = ops->slab_create(device->state, extent_bytes, n_extents, &tier->slab);
    if (status != KVC_OK)
        goto free_tier;
    for (uint32_t i = 0; i < n_extents; i++) {
        status = ops->extent_create(&tier->slab, i);
        if (status != KVC_OK)
            goto destroy_slab;
    }
    *ret = tier;
    return KVC_OK;

destroy_slab:
    ops->slab_destroy(&tier->slab);
free_tier:
    mem_free(tier);
    return status;
}

void tier_destroy(struct tier *tier)
{
    if (!tier)
        return;
    tier->slab.ops->slab_destroy(&tier->slab);
    mem_free(tier);
}

const char *tier_name(enum tier_kind kind)
{
    return kind == TIER_GPU ? "gpu" : "host";
}

enum device_memory tier_memory(const struct tier *tier)
{
    return tier->slab.ops->memory;
}

uint64_t tier_bytes(const struct tier *tier)
{
    return tier->slab.extent_bytes * tier->slab.n_extents;
}

uint64_t tier_extent_bytes(const struct tier *tier)
{
    return tier->slab.extent_bytes;
}

uint32_t tier_extents(const struct tier *tier)
{
    return tier->slab.n_extents;
}

void tier_on_gpu(const struct tier *tier, uint32_t gpu, uint32_t *first, uint32_t *n)
{
    const struct device_slab *slab = &tier->slab;

    *first = *n = 0;
    if (slab->ops->extent_gpu == NULL)
        return;
    while (*first < slab->n_extents && slab->ops->extent_gpu(slab, *first) != gpu)
        ++*first;
    while (*first + *n < slab->n_extents && slab->ops->extent_gpu(slab, *first + *n) == gpu)
        ++*n;
}

struct device_slab *tier_slab(struct tier *tier)
{
    return &tier->slab;
}

kvc_status tier_export(struct tier *tier, uint32_t extent, bool readonly, int *fd)
{
    if (extent >= tier->slab.n_extents)
        return KVC_E_INVALID;
    return tier->slab.ops->extent_export(&tier->slab, extent, readonly, fd);
}

kvc_status tier_export_handle(struct tier *tier, uint32_t extent, uint8_t *handle)
{
    if (extent >= tier->slab.n_extents)
        return KVC_E_INVALID;
    return tier->slab.ops->extent_handle(&tier->slab, extent, handle);
}

uint8_t *tier_address(const struct tier *tier, uint64_t offset)
{
    assert(offset < tier_bytes(tier));
    return tier->slab.ops->address != NULL ? tier->slab.ops->address(&tier->slab, offset)
                                           : tier->slab.base + offset;
}

void tier_watch(struct tier *tier, tier_renewing_cb *renewing, void *arg)
{
    tier->renewing = renewing;
    tier->arg = arg;
}

void tier_renewing(const struct tier *tier, uint32_t extent)
{
    if (tier->renewing != NULL)
        tier->renewing(tier->arg, extent);
}

uint64_t tier_populated(const struct tier *tier)
{
    return tier->populated;
}

void tier_set_populated(struct tier *tier, uint64_t bytes)
{
    assert(bytes <= tier_bytes(tier));
    tier->populated = bytes;
}
