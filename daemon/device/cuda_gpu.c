/*
 * GPU memory: one reserved range, and in it extents that each are an allocation with a descriptor,
 * spread over the GPUs in their order. A mapping keeps its memory, so that only the descriptor is
 * kept of what made it.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/device/cuda.h"

struct gpu_slab {
    struct device_cuda_slab common;
    uint64_t reserved; /* bytes */
    int *fds;          /* of each extent; -1: not created */
};

static struct gpu_slab *gpu_of(const struct device_slab *slab)
{
    return slab->state;
}

static uint64_t address_of(const struct device_slab *slab, uint32_t extent)
{
    return (uintptr_t)slab->base + extent * slab->extent_bytes;
}

static struct cuda_allocation allocation_on(const struct cuda_gpu *gpu)
{
    return (struct cuda_allocation){
        .type = 1,
        .handle_types = CUDA_HANDLE_FD,
        .location = {1, gpu->ordinal},
    };
}

static kvc_status check_granularity(struct device_cuda *cuda, uint64_t extent_bytes)
{
    for (uint32_t i = 0; i < cuda->n_gpus; i++) {
        const struct cuda_allocation allocation = allocation_on(&cuda->gpus[i]);
        size_t granularity = 0;
        kvc_status status = device_cuda_check(
            cuda, i, "no granularity", 0,
            cuda->driver.vmm_granularity(&granularity, &allocation, CUDA_GRANULARITY_MINIMUM));

        if (status != KVC_OK)
            return status;
        if (granularity == 0 || extent_bytes % granularity != 0) {
            log_warn("device", "extents of %llu bytes are no multiple of this GPU's %zu",
                     (unsigned long long)extent_bytes, granularity);
            return KVC_E_UNSUPPORTED;
        }
    }
    return KVC_OK;
}

static kvc_status reserve(struct device_cuda *cuda, uint64_t extent_bytes, uint64_t bytes,
                          void **base)
{
    kvc_status status = check_granularity(cuda, extent_bytes);

    if (status == KVC_OK)
        status = device_cuda_enter(cuda, 0);
    if (status != KVC_OK)
        return status;
    status = device_cuda_check(cuda, 0, "no address space for the slab", 0,
                               cuda->driver.vmm_reserve(base, bytes, 0, 0, 0));
    device_cuda_leave(cuda);
    return status;
}

static kvc_status make_slab(struct device_cuda *cuda, uint64_t extent_bytes, uint32_t n_extents,
                            struct gpu_slab *gpu, struct device_slab *slab)
{
    const uint64_t bytes = extent_bytes * n_extents;
    void *base = NULL;
    kvc_status status = device_cuda_make_streams(&gpu->common);

    if (status != KVC_OK)
        return status;
    if (n_extents > 0)
        status = reserve(cuda, extent_bytes, bytes, &base);
    if (status != KVC_OK) {
        device_cuda_free_streams(&gpu->common);
        return status;
    }
    gpu->reserved = bytes;
    *slab = (struct device_slab){.ops = &device_cuda_gpu,
                                 .base = base,
                                 .extent_bytes = extent_bytes,
                                 .n_extents = n_extents,
                                 .state = gpu};
    return KVC_OK;
}

static kvc_status gpu_slab_create(void *state, uint64_t extent_bytes, uint32_t n_extents,
                                  struct device_slab *slab)
{
    struct device_cuda *cuda = state;
    struct gpu_slab *gpu = mem_zalloc(sizeof(*gpu));
    kvc_status status;

    if (gpu == NULL)
        return KVC_E_NO_MEMORY;
    gpu->common.cuda = cuda;
    gpu->fds = mem_array(n_extents + 1, sizeof(*gpu->fds));
    if (gpu->fds == NULL) {
        mem_free(gpu);
        return KVC_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_extents; i++)
        gpu->fds[i] = -1;
    status = make_slab(cuda, extent_bytes, n_extents, gpu, slab);
    if (status != KVC_OK) {
        mem_free(gpu->fds);
        mem_free(gpu);
    }
    return status;
}

static void gpu_slab_destroy(struct device_slab *slab)
{
    struct gpu_slab *gpu = gpu_of(slab);
    struct device_cuda *cuda;
    uint32_t any;

    if (gpu == NULL)
        return;
    cuda = gpu->common.cuda;
    if (device_cuda_enter_any(cuda, &any) == KVC_OK) {
        for (uint32_t i = 0; i < slab->n_extents; i++)
            if (gpu->fds[i] >= 0)
                (void)cuda->driver.vmm_unmap(address_of(slab, i), slab->extent_bytes);
        if (gpu->reserved > 0)
            (void)cuda->driver.vmm_unreserve((uintptr_t)slab->base, gpu->reserved);
        device_cuda_leave(cuda);
    }
    device_cuda_free_streams(&gpu->common);
    for (uint32_t i = 0; i < slab->n_extents; i++)
        fd_close(gpu->fds[i]);
    mem_free(gpu->fds);
    mem_free(gpu);
    *slab = (struct device_slab){0};
}

/* All GPUs use it: copies by the daemon run where the worker's memory is. */
static kvc_status map_extent(struct device_slab *slab, uint32_t extent, uint64_t handle)
{
    struct device_cuda *cuda = gpu_of(slab)->common.cuda;
    struct cuda_access access[DEVICE_GPUS_MAX];
    const uint64_t at = address_of(slab, extent);
    const uint32_t on = device_cuda_gpu_of(slab, extent);
    kvc_status status = device_cuda_check(
        cuda, on, "cannot map", extent, cuda->driver.vmm_map(at, slab->extent_bytes, 0, handle, 0));

    if (status != KVC_OK)
        return status;
    for (uint32_t i = 0; i < cuda->n_gpus; i++)
        access[i] = (struct cuda_access){{1, cuda->gpus[i].ordinal}, CUDA_ACCESS_READWRITE};
    status =
        device_cuda_check(cuda, on, "cannot be given access", extent,
                          cuda->driver.vmm_access(at, slab->extent_bytes, access, cuda->n_gpus));
    if (status != KVC_OK)
        (void)cuda->driver.vmm_unmap(at, slab->extent_bytes);
    return status;
}

static kvc_status make_extent(struct device_slab *slab, uint32_t extent)
{
    struct gpu_slab *gpu = gpu_of(slab);
    struct device_cuda *cuda = gpu->common.cuda;
    const uint32_t on = device_cuda_gpu_of(slab, extent);
    const struct cuda_allocation allocation = allocation_on(&cuda->gpus[on]);
    uint64_t handle = 0;
    size_t free = 0, total = 0;
    int fd = -1;
    int error = cuda->driver.vmm_create(&handle, slab->extent_bytes, &allocation, 0);
    kvc_status status;

    if (error == CUDA_OUT_OF_MEMORY) {
        (void)cuda->driver.memory_info(&free, &total);
        log_warn("device", "the GPU is out of memory gpu=%u extent=%u of=%u free=%zuM total=%zuM",
                 on, extent, slab->n_extents, free >> 20, total >> 20);
        return KVC_E_NO_MEMORY;
    }
    status = device_cuda_check(cuda, on, "no memory of the GPU", extent, error);
    if (status != KVC_OK)
        return status;
    status = device_cuda_check(cuda, on, "cannot export", extent,
                               cuda->driver.vmm_export(&fd, handle, CUDA_HANDLE_FD, 0));
    if (status == KVC_OK) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        status = map_extent(slab, extent, handle);
        if (status == KVC_OK)
            gpu->fds[extent] = fd;
        else
            fd_close(fd);
    }
    (void)cuda->driver.vmm_release(handle);
    return status;
}

static kvc_status gpu_extent_create(struct device_slab *slab, uint32_t extent)
{
    struct device_cuda *cuda = gpu_of(slab)->common.cuda;
    kvc_status status = device_cuda_enter(cuda, device_cuda_gpu_of(slab, extent));

    assert(extent < slab->n_extents && gpu_of(slab)->fds[extent] < 0);
    if (status != KVC_OK)
        return status;
    status = make_extent(slab, extent);
    device_cuda_leave(cuda);
    return status;
}

/* Whoever imports it chooses the access; only a slab of its own keeps another tenant out. */
static kvc_status gpu_extent_export(struct device_slab *slab, uint32_t extent, bool readonly,
                                    int *fd)
{
    int copy = fd_dup(gpu_of(slab)->fds[extent]);

    (void)readonly;
    if (copy < 0) {
        log_warn("device", "cannot export extent=%u error=%s", extent, strerror(-copy));
        return copy == -EMFILE || copy == -ENFILE ? KVC_E_NO_FDS : KVC_E_SYSTEM;
    }
    *fd = copy;
    return KVC_OK;
}

/* The driver says nothing of what new memory holds when it was this process's before. */
static kvc_status zero_extent(struct device_slab *slab, uint32_t extent)
{
    struct gpu_slab *gpu = gpu_of(slab);
    struct device_cuda *cuda = gpu->common.cuda;
    const uint32_t on = device_cuda_gpu_of(slab, extent);
    void *stream = gpu->common.streams[on];
    kvc_status status = device_cuda_check(
        cuda, on, "cannot zero", extent,
        cuda->driver.set_async(address_of(slab, extent), 0, slab->extent_bytes, stream));

    if (status == KVC_OK)
        status = device_cuda_check(cuda, on, "cannot zero", extent,
                                   cuda->driver.stream_synchronize(stream));
    return status;
}

/*
 * The old memory goes first, since the tier may be all that the GPU has left. A process that still
 * maps it keeps it, and then there may be none for the new.
 */
static kvc_status gpu_extent_renew(struct device_slab *slab, uint32_t extent)
{
    struct gpu_slab *gpu = gpu_of(slab);
    struct device_cuda *cuda = gpu->common.cuda;
    const uint32_t on = device_cuda_gpu_of(slab, extent);
    kvc_status status = device_cuda_enter(cuda, on);

    if (status != KVC_OK)
        return KVC_E_BUSY;
    status =
        device_cuda_check(cuda, on, "cannot be unmapped", extent,
                          cuda->driver.vmm_unmap(address_of(slab, extent), slab->extent_bytes));
    if (status != KVC_OK) {
        device_cuda_leave(cuda);
        return KVC_E_BUSY;
    }
    fd_reset(&gpu->fds[extent]);
    status = make_extent(slab, extent);
    if (status == KVC_OK)
        status = zero_extent(slab, extent);
    if (status != KVC_OK && gpu->fds[extent] >= 0 &&
        cuda->driver.vmm_unmap(address_of(slab, extent), slab->extent_bytes) == 0)
        fd_reset(&gpu->fds[extent]);
    device_cuda_leave(cuda);
    return status;
}

static kvc_status gpu_slab_ready(struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    const uint64_t size = slab->extent_bytes * slab->n_extents;

    return offset <= size && bytes <= size - offset ? KVC_OK : KVC_E_INVALID;
}

const struct device_ops device_cuda_gpu = {
    .memory = DEVICE_MEMORY_CUDA_FD,
    .slab_create = gpu_slab_create,
    .slab_destroy = gpu_slab_destroy,
    .extent_create = gpu_extent_create,
    .extent_export = gpu_extent_export,
    .extent_populate = device_cuda_nothing,
    .extent_discard = device_cuda_nothing,
    .extent_renew = gpu_extent_renew,
    .slab_ready = gpu_slab_ready,
    .copy = device_cuda_copy,
    .settle = device_cuda_settle,
    .extent_gpu = device_cuda_gpu_of,
};
