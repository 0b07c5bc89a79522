/* The GPUs of a daemon: opening them, and copies between slabs. */
#include "daemon/device/cuda.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/device/nvml.h"

kvc_status device_cuda_check(struct device_cuda *cuda, uint32_t gpu, const char *what,
                             uint32_t extent, int error)
{
    if (error != CUDA_SUCCESS && !cuda_suspect(cuda, gpu, error))
        log_warn("device", "%s gpu=%u extent=%u error=%s", what, gpu, extent,
                 cuda_error_name(&cuda->driver, error));
    return cuda_status(error);
}

kvc_status device_cuda_enter(struct device_cuda *cuda, uint32_t gpu)
{
    if (atomic_load(&cuda->gpus[gpu].lost))
        return KVC_E_DEVICE;
    return device_cuda_check(cuda, gpu, "cannot enter the context", 0,
                             cuda->driver.context_push(cuda->gpus[gpu].context));
}

kvc_status device_cuda_enter_any(struct device_cuda *cuda, uint32_t *gpu)
{
    kvc_status status = KVC_E_DEVICE;

    for (*gpu = 0; *gpu < cuda->n_gpus; ++*gpu) {
        status = device_cuda_enter(cuda, *gpu);
        if (status == KVC_OK)
            break;
    }
    return status;
}

void device_cuda_leave(struct device_cuda *cuda)
{
    void *context;

    (void)cuda->driver.context_pop(&context);
}

kvc_status device_cuda_make_streams(struct device_cuda_slab *slab)
{
    struct device_cuda *cuda = slab->cuda;
    kvc_status status = KVC_OK;

    for (uint32_t i = 0; i < cuda->n_gpus && status == KVC_OK; i++) {
        status = device_cuda_enter(cuda, i);
        if (status != KVC_OK)
            break;
        status = device_cuda_check(
            cuda, i, "no stream", 0,
            cuda->driver.stream_create(&slab->streams[i], CUDA_STREAM_NON_BLOCKING));
        device_cuda_leave(cuda);
    }
    if (status != KVC_OK)
        device_cuda_free_streams(slab);
    return status;
}

void device_cuda_free_streams(struct device_cuda_slab *slab)
{
    struct device_cuda *cuda = slab->cuda;

    for (uint32_t i = 0; i < cuda->n_gpus; i++) {
        if (slab->streams[i] == NULL || device_cuda_enter(cuda, i) != KVC_OK)
            continue;
        (void)cuda->driver.stream_destroy(slab->streams[i]);
        device_cuda_leave(cuda);
        slab->streams[i] = NULL;
    }
}

uint32_t device_cuda_gpu_of(const struct device_slab *slab, uint32_t extent)
{
    const struct device_cuda_slab *state = slab->state;

    return (uint32_t)((uint64_t)extent * state->cuda->n_gpus / slab->n_extents);
}

kvc_status device_cuda_nothing(struct device_slab *slab, uint32_t extent, uint64_t offset,
                               uint64_t bytes)
{
    (void)slab;
    (void)extent;
    (void)offset;
    (void)bytes;
    return KVC_OK;
}

static uint64_t address_of(const struct device_slab *slab, uint64_t offset)
{
    return slab->ops->address != NULL ? (uintptr_t)slab->ops->address(slab, offset)
                                      : (uintptr_t)slab->base + offset;
}

/* The GPU whose copy engines move between two extents: the one that has either of them. */
static uint32_t engine_of(const struct device_slab *to, uint32_t to_extent,
                          const struct device_slab *from, uint32_t from_extent)
{
    if (to->ops != &device_cuda_host)
        return device_cuda_gpu_of(to, to_extent);
    return from->ops != &device_cuda_host ? device_cuda_gpu_of(from, from_extent) : 0;
}

/* One run that lies in one extent of either slab: host memory is registered by the extent. */
static kvc_status copy_run(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                           uint64_t from_offset, uint64_t bytes, uint32_t *begun)
{
    const struct device_cuda_slab *state = to->state;
    struct device_cuda *cuda = state->cuda;
    const uint32_t extent = (uint32_t)(to_offset / to->extent_bytes);
    const uint32_t from_extent = (uint32_t)(from_offset / from->extent_bytes);
    const uint32_t gpu = engine_of(to, extent, from, from_extent);
    kvc_status status = KVC_OK;

    if (from->ops == &device_cuda_host)
        status = device_cuda_host_ready(from, from_extent, from_offset % from->extent_bytes, bytes);
    if (status == KVC_OK && to->ops == &device_cuda_host)
        status = device_cuda_host_ready(to, extent, to_offset % to->extent_bytes, bytes);
    if (status == KVC_OK)
        status = device_cuda_enter(cuda, gpu);
    if (status != KVC_OK)
        return status;
    *begun |= 1u << gpu;
    status = device_cuda_check(cuda, gpu, "cannot copy", extent,
                               cuda->driver.copy_async(address_of(to, to_offset),
                                                       address_of(from, from_offset), bytes,
                                                       state->streams[gpu]));
    device_cuda_leave(cuda);
    return status;
}

static bool in_slab(const struct device_slab *slab, uint64_t offset, uint64_t bytes)
{
    uint64_t size = slab->extent_bytes * slab->n_extents;

    return offset <= size && bytes <= size - offset;
}

static uint64_t run_of(const struct device_slab *slab, uint64_t offset)
{
    return slab->extent_bytes - offset % slab->extent_bytes;
}

kvc_status device_cuda_copy(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                            uint64_t from_offset, uint64_t bytes, uint32_t *begun)
{
    kvc_status status = KVC_OK;

    if (!in_slab(to, to_offset, bytes) || !in_slab(from, from_offset, bytes))
        return KVC_E_INVALID;
    while (bytes > 0 && status == KVC_OK) {
        uint64_t run = bytes;

        if (run > run_of(to, to_offset))
            run = run_of(to, to_offset);
        if (run > run_of(from, from_offset))
            run = run_of(from, from_offset);
        status = copy_run(to, to_offset, from, from_offset, run, begun);
        to_offset += run;
        from_offset += run;
        bytes -= run;
    }
    return status;
}

/* A lost GPU has ended what was begun there, and nobody knows how. */
kvc_status device_cuda_settle(struct device_slab *to, uint32_t begun)
{
    struct device_cuda_slab *state = to->state;
    kvc_status first = KVC_OK;

    for (uint32_t i = 0; i < state->cuda->n_gpus; i++) {
        kvc_status status;

        if (!(begun & 1u << i))
            continue;
        status = device_cuda_enter(state->cuda, i);
        if (status == KVC_OK) {
            status = device_cuda_check(state->cuda, i, "copies failed", 0,
                                       state->cuda->driver.stream_synchronize(state->streams[i]));
            device_cuda_leave(state->cuda);
        }
        if (first == KVC_OK)
            first = status;
    }
    return first;
}

static kvc_status lists_process(void *state, const uint8_t (*uuids)[KVC_UUID_BYTES],
                                uint32_t n_uuids, int32_t pid, bool *ret_listed)
{
    struct device_cuda *cuda = state;
    bool any = false;

    if (cuda->nvml == NULL)
        return KVC_E_NO_DEVICE;
    for (uint32_t i = 0; i < n_uuids; i++) {
        bool listed = false;
        kvc_status status = nvml_lists_process(cuda->nvml, uuids[i], pid, &listed);

        if (status != KVC_OK)
            return status;
        any = any || listed;
    }
    *ret_listed = any;
    return KVC_OK;
}

static kvc_status enter(void *state, uint32_t gpu)
{
    return device_cuda_enter(state, gpu);
}

static void leave(void *state)
{
    device_cuda_leave(state);
}

static void cuda_close(struct device *device)
{
    struct device_cuda *cuda = device->state;

    device_cuda_release(cuda);
    nvml_close(cuda->nvml);
    cuda_driver_close(&cuda->driver);
    pthread_mutex_destroy(&cuda->watch);
    mem_free(cuda);
    *device = (struct device){0};
}

static void describe(const struct device_cuda *cuda, struct device *device)
{
    device->n_gpus = cuda->n_gpus;
    for (uint32_t i = 0; i < cuda->n_gpus; i++) {
        memcpy(device->gpus[i].uuid, cuda->gpus[i].uuid, KVC_UUID_BYTES);
        memcpy(device->gpus[i].name, cuda->gpus[i].name, sizeof(device->gpus[i].name));
        log_info("device", "gpu=%u name=\"%s\"", i, cuda->gpus[i].name);
    }
    if (cuda->legacy)
        device->gpu = &device_cuda_legacy;
    if (cuda->gpus[0].has_kernels)
        device->lending = &device_cuda_lending;
}

kvc_status device_cuda_open(struct device *device, const struct device_cuda_choice *choice,
                            char why[DEVICE_WHY_MAX])
{
    struct device_cuda *cuda = mem_zalloc(sizeof(*cuda));
    struct device made = {
        .name = "cuda",
        .gpu = &device_cuda_gpu,
        .host = &device_cuda_host,
        .state = cuda,
        .lists_process = lists_process,
        .close = cuda_close,
        .watch = cuda_watch,
        .is_lost = cuda_is_lost,
        .enter = enter,
        .leave = leave,
    };
    kvc_status status;

    _Static_assert(DEVICE_WHY_MAX >= CUDA_WHY_MAX, "the driver's sentence fits");
    if (cuda == NULL) {
        snprintf(why, DEVICE_WHY_MAX, "%s", kvc_status_text(KVC_E_NO_MEMORY));
        return KVC_E_NO_MEMORY;
    }
    pthread_mutex_init(&cuda->watch, NULL);
    status = cuda_driver_open(&cuda->driver, why);
    if (status != KVC_OK) {
        pthread_mutex_destroy(&cuda->watch);
        mem_free(cuda);
        return status;
    }
    if (nvml_open(&cuda->nvml) != KVC_OK)
        log_warn("device", "no NVML (libnvidia-ml.so.1): what a killed worker was writing to stays "
                           "in quarantine");
    status = device_cuda_choose(cuda, choice, why);
    if (status != KVC_OK) {
        cuda_close(&made);
        return status;
    }
    describe(cuda, &made);
    *device = made;
    return KVC_OK;
}
