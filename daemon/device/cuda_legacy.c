/*
 * GPU memory where descriptors are not to be had: extents that each are an allocation, which others
 * open by a legacy handle. They lie where the driver puts them, so that nothing lies in two of
 * them.
 */
#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/device/cuda.h"

struct legacy_slab {
    struct device_cuda_slab common;
    uint64_t addresses[]; /* of each extent; 0: not created */
};

static struct legacy_slab *legacy_of(const struct device_slab *slab)
{
    return slab->state;
}

static uint8_t *legacy_address(const struct device_slab *slab, uint64_t offset)
{
    return (uint8_t *)(uintptr_t)(legacy_of(slab)->addresses[offset / slab->extent_bytes] +
                                  offset % slab->extent_bytes);
}

static kvc_status legacy_slab_create(void *state, uint64_t extent_bytes, uint32_t n_extents,
                                     struct device_slab *slab)
{
    struct legacy_slab *legacy =
        mem_zalloc(sizeof(*legacy) + n_extents * sizeof(legacy->addresses[0]));
    kvc_status status;

    if (legacy == NULL)
        return KVC_E_NO_MEMORY;
    legacy->common.cuda = state;
    status = device_cuda_make_streams(&legacy->common);
    if (status != KVC_OK) {
        mem_free(legacy);
        return status;
    }
    *slab = (struct device_slab){.ops = &device_cuda_legacy,
                                 .extent_bytes = extent_bytes,
                                 .n_extents = n_extents,
                                 .state = legacy};
    return KVC_OK;
}

static void free_extent(struct device_slab *slab, uint32_t extent)
{
    struct legacy_slab *legacy = legacy_of(slab);
    struct device_cuda *cuda = legacy->common.cuda;

    if (legacy->addresses[extent] == 0 ||
        device_cuda_enter(cuda, device_cuda_gpu_of(slab, extent)) != KVC_OK)
        return;
    (void)cuda->driver.memory_free(legacy->addresses[extent]);
    device_cuda_leave(cuda);
    legacy->addresses[extent] = 0;
}

static void legacy_slab_destroy(struct device_slab *slab)
{
    struct legacy_slab *legacy = legacy_of(slab);

    if (legacy == NULL)
        return;
    for (uint32_t i = 0; i < slab->n_extents; i++)
        free_extent(slab, i);
    device_cuda_free_streams(&legacy->common);
    mem_free(legacy);
    *slab = (struct device_slab){0};
}

/* Zeroed, whoever had it before. */
static kvc_status legacy_extent_create(struct device_slab *slab, uint32_t extent)
{
    struct legacy_slab *legacy = legacy_of(slab);
    struct device_cuda *cuda = legacy->common.cuda;
    const uint32_t gpu = device_cuda_gpu_of(slab, extent);
    void *stream = legacy->common.streams[gpu];
    uint64_t address = 0;
    kvc_status status = device_cuda_enter(cuda, gpu);

    assert(extent < slab->n_extents && legacy->addresses[extent] == 0);
    if (status != KVC_OK)
        return status;
    status = device_cuda_check(cuda, gpu, "no memory of the GPU", extent,
                               cuda->driver.memory_alloc(&address, slab->extent_bytes));
    if (status == KVC_OK) {
        legacy->addresses[extent] = address;
        status = device_cuda_check(cuda, gpu, "cannot zero", extent,
                                   cuda->driver.set_async(address, 0, slab->extent_bytes, stream));
    }
    if (status == KVC_OK)
        status = device_cuda_check(cuda, gpu, "cannot zero", extent,
                                   cuda->driver.stream_synchronize(stream));
    device_cuda_leave(cuda);
    return status;
}

static kvc_status legacy_extent_export(struct device_slab *slab, uint32_t extent, bool readonly,
                                       int *fd)
{
    (void)slab;
    (void)extent;
    (void)readonly;
    (void)fd;
    return KVC_E_UNSUPPORTED;
}

static kvc_status legacy_extent_handle(struct device_slab *slab, uint32_t extent, uint8_t *handle)
{
    struct legacy_slab *legacy = legacy_of(slab);
    struct device_cuda *cuda = legacy->common.cuda;
    struct cuda_ipc ipc;
    const uint32_t gpu = device_cuda_gpu_of(slab, extent);
    kvc_status status = device_cuda_enter(cuda, gpu);

    if (status != KVC_OK)
        return status;
    status = device_cuda_check(cuda, gpu, "cannot export", extent,
                               cuda->driver.ipc_export(&ipc, legacy->addresses[extent]));
    device_cuda_leave(cuda);
    if (status == KVC_OK)
        memcpy(handle, &ipc, sizeof(ipc));
    return status;
}

/* Nobody has it open any more, or this is called for nothing. */
static kvc_status legacy_extent_renew(struct device_slab *slab, uint32_t extent)
{
    free_extent(slab, extent);
    return legacy_of(slab)->addresses[extent] == 0 ? legacy_extent_create(slab, extent)
                                                   : KVC_E_BUSY;
}

static kvc_status legacy_slab_ready(struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    const uint64_t size = slab->extent_bytes * slab->n_extents;

    if (offset > size || bytes > size - offset ||
        (bytes > 0 && offset / slab->extent_bytes != (offset + bytes - 1) / slab->extent_bytes))
        return KVC_E_INVALID;
    return legacy_of(slab)->addresses[offset / slab->extent_bytes] != 0 ? KVC_OK : KVC_E_NO_MEMORY;
}

const struct device_ops device_cuda_legacy = {
    .memory = DEVICE_MEMORY_CUDA_HANDLE,
    .address = legacy_address,
    .slab_create = legacy_slab_create,
    .slab_destroy = legacy_slab_destroy,
    .extent_create = legacy_extent_create,
    .extent_export = legacy_extent_export,
    .extent_handle = legacy_extent_handle,
    .extent_populate = device_cuda_nothing,
    .extent_discard = device_cuda_nothing,
    .extent_renew = legacy_extent_renew,
    .slab_ready = legacy_slab_ready,
    .copy = device_cuda_copy,
    .settle = device_cuda_settle,
    .extent_gpu = device_cuda_gpu_of,
};
