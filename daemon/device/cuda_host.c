/*
 * Host memory beside a GPU: the host device's memory files, each registered with the driver once
 * all its pages are there. Until then, and where registering fails, copies work and are slower.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/base/mem.h"
#include "daemon/device/cuda.h"

struct host_slab {
    struct device_cuda_slab common;
    struct device_slab memory; /* of the host device */
    atomic_bool *registered;   /* each extent */
    pthread_mutex_t registering;
};

static struct host_slab *host_of(const struct device_slab *slab)
{
    return slab->state;
}

static uint8_t *address_of(const struct device_slab *slab, uint32_t extent)
{
    return slab->base + extent * slab->extent_bytes;
}

static kvc_status host_slab_create(void *state, uint64_t extent_bytes, uint32_t n_extents,
                                   struct device_slab *slab)
{
    struct host_slab *host = mem_zalloc(sizeof(*host));
    kvc_status status = KVC_E_NO_MEMORY;

    if (host == NULL)
        return KVC_E_NO_MEMORY;
    host->common.cuda = state;
    pthread_mutex_init(&host->registering, NULL);
    host->registered = mem_array(n_extents + 1, sizeof(*host->registered));
    if (host->registered == NULL)
        goto free_host;
    status = device_host.slab_create(NULL, extent_bytes, n_extents, &host->memory);
    if (status != KVC_OK)
        goto free_registered;
    status = device_cuda_make_streams(&host->common);
    if (status != KVC_OK)
        goto destroy_memory;
    *slab = host->memory;
    slab->ops = &device_cuda_host;
    slab->state = host;
    return KVC_OK;

destroy_memory:
    device_host.slab_destroy(&host->memory);
free_registered:
    mem_free(host->registered);
free_host:
    pthread_mutex_destroy(&host->registering);
    mem_free(host);
    return status;
}

static void host_slab_destroy(struct device_slab *slab)
{
    struct host_slab *host = host_of(slab);
    struct device_cuda *cuda;
    uint32_t gpu;

    if (host == NULL)
        return;
    cuda = host->common.cuda;
    if (device_cuda_enter_any(cuda, &gpu) == KVC_OK) {
        for (uint32_t i = 0; i < slab->n_extents; i++)
            if (atomic_load(&host->registered[i]))
                (void)cuda->driver.host_unregister(address_of(slab, i));
        device_cuda_leave(cuda);
    }
    device_cuda_free_streams(&host->common);
    pthread_mutex_destroy(&host->registering);
    device_host.slab_destroy(&host->memory);
    mem_free(host->registered);
    mem_free(host);
    *slab = (struct device_slab){0};
}

static kvc_status host_extent_create(struct device_slab *slab, uint32_t extent)
{
    return device_host.extent_create(&host_of(slab)->memory, extent);
}

static kvc_status host_extent_export(struct device_slab *slab, uint32_t extent, bool readonly,
                                     int *fd)
{
    return device_host.extent_export(&host_of(slab)->memory, extent, readonly, fd);
}

/* Copies by the daemon may need an extent that is not registered yet. */
static void register_extent(struct device_slab *slab, uint32_t extent)
{
    struct host_slab *host = host_of(slab);
    struct device_cuda *cuda = host->common.cuda;
    uint32_t gpu;

    if (device_cuda_enter_any(cuda, &gpu) != KVC_OK)
        return;
    pthread_mutex_lock(&host->registering);
    if (!atomic_load(&host->registered[extent]) &&
        device_cuda_check(cuda, gpu, "not registered, copies are slower", extent,
                          cuda->driver.host_register(address_of(slab, extent), slab->extent_bytes,
                                                     CUDA_HOST_PORTABLE)) == KVC_OK)
        atomic_store(&host->registered[extent], true);
    pthread_mutex_unlock(&host->registering);
    device_cuda_leave(cuda);
}

/* Pieces come in order, so the last one of an extent finds all its pages there. */
static kvc_status host_extent_populate(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                       uint64_t bytes)
{
    kvc_status status;

    status = device_host.extent_populate(&host_of(slab)->memory, extent, offset, bytes);
    if (status == KVC_OK && offset + bytes == slab->extent_bytes)
        register_extent(slab, extent);
    return status;
}

static kvc_status unregister_extent(struct device_slab *slab, uint32_t extent)
{
    struct host_slab *host = host_of(slab);
    struct device_cuda *cuda = host->common.cuda;
    uint32_t gpu;
    kvc_status status = device_cuda_enter_any(cuda, &gpu);

    if (status != KVC_OK)
        return status;
    pthread_mutex_lock(&host->registering);
    if (atomic_load(&host->registered[extent]))
        status = device_cuda_check(cuda, gpu, "cannot be unregistered", extent,
                                   cuda->driver.host_unregister(address_of(slab, extent)));
    if (status == KVC_OK)
        atomic_store(&host->registered[extent], false);
    pthread_mutex_unlock(&host->registering);
    device_cuda_leave(cuda);
    return status;
}

/* Pages that the driver has pinned must not go under it. */
static kvc_status host_extent_discard(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                      uint64_t bytes)
{
    kvc_status status = unregister_extent(slab, extent);

    return status == KVC_OK
               ? device_host.extent_discard(&host_of(slab)->memory, extent, offset, bytes)
               : KVC_E_BUSY;
}

/* It is registered again when its last page is there. */
static kvc_status host_extent_renew(struct device_slab *slab, uint32_t extent)
{
    if (unregister_extent(slab, extent) != KVC_OK)
        return KVC_E_BUSY;
    return device_host.extent_renew(&host_of(slab)->memory, extent);
}

kvc_status device_cuda_host_ready(struct device_slab *slab, uint32_t extent, uint64_t offset,
                                  uint64_t bytes)
{
    struct host_slab *host = host_of(slab);

    if (atomic_load(&host->registered[extent]))
        return KVC_OK;
    return device_host.extent_populate(&host->memory, extent, offset, bytes);
}

/* Kernels reach registered memory only. */
static kvc_status slab_ready(struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    struct host_slab *host = host_of(slab);
    const uint64_t size = slab->extent_bytes * slab->n_extents;
    kvc_status status = KVC_OK;

    if (offset > size || bytes > size - offset)
        return KVC_E_INVALID;
    for (uint64_t at = offset / slab->extent_bytes;
         at * slab->extent_bytes < offset + bytes && status == KVC_OK; at++) {
        const uint32_t extent = (uint32_t)at;

        if (atomic_load(&host->registered[extent]))
            continue;
        status = device_host.extent_populate(&host->memory, extent, 0, slab->extent_bytes);
        if (status == KVC_OK)
            register_extent(slab, extent);
        if (status == KVC_OK && !atomic_load(&host->registered[extent]))
            status = KVC_E_MAP;
    }
    return status;
}

const struct device_ops device_cuda_host = {
    .memory = DEVICE_MEMORY_MEMFD,
    .slab_create = host_slab_create,
    .slab_destroy = host_slab_destroy,
    .extent_create = host_extent_create,
    .extent_export = host_extent_export,
    .extent_populate = host_extent_populate,
    .extent_discard = host_extent_discard,
    .extent_renew = host_extent_renew,
    .slab_ready = slab_ready,
    .copy = device_cuda_copy,
    .settle = device_cuda_settle,
};
