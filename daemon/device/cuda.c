/* The GPU of a daemon: choosing it, its context, copies. */
#include "daemon/device/cuda.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/device/nvml.h"

kvc_status device_cuda_check(const struct device_cuda *cuda, const char *what, uint32_t extent,
                             int error)
{
    if (error != CUDA_SUCCESS)
        log_warn("device", "%s extent=%u error=%s", what, extent,
                 cuda_error_name(&cuda->driver, error));
    return cuda_status(error);
}

kvc_status device_cuda_enter(struct device_cuda *cuda)
{
    return device_cuda_check(cuda, "cannot enter the context", 0,
                             cuda->driver.context_push(cuda->context));
}

void device_cuda_leave(struct device_cuda *cuda)
{
    void *context;

    (void)cuda->driver.context_pop(&context);
}

/* One run that lies in one extent of either slab: host memory is registered by the extent. */
static kvc_status copy_run(struct device_slab *to, uint64_t to_offset, struct device_slab *from,
                           uint64_t from_offset, uint64_t bytes)
{
    const struct device_cuda_slab *state = to->state;
    uint32_t extent = (uint32_t)(to_offset / to->extent_bytes);
    kvc_status status = KVC_OK;

    if (from->ops == &device_cuda_host)
        status = device_cuda_host_ready(from, (uint32_t)(from_offset / from->extent_bytes),
                                        from_offset % from->extent_bytes, bytes);
    if (status == KVC_OK && to->ops == &device_cuda_host)
        status = device_cuda_host_ready(to, extent, to_offset % to->extent_bytes, bytes);
    if (status != KVC_OK)
        return status;
    return device_cuda_check(state->cuda, "cannot copy", extent,
                             state->cuda->driver.copy_async((uintptr_t)to->base + to_offset,
                                                            (uintptr_t)from->base + from_offset,
                                                            bytes, state->stream));
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
                            uint64_t from_offset, uint64_t bytes)
{
    struct device_cuda_slab *state = to->state;
    kvc_status status;

    if (!in_slab(to, to_offset, bytes) || !in_slab(from, from_offset, bytes))
        return KVC_E_INVALID;
    status = device_cuda_enter(state->cuda);
    if (status != KVC_OK)
        return status;
    while (bytes > 0 && status == KVC_OK) {
        uint64_t run = bytes;

        if (run > run_of(to, to_offset))
            run = run_of(to, to_offset);
        if (run > run_of(from, from_offset))
            run = run_of(from, from_offset);
        status = copy_run(to, to_offset, from, from_offset, run);
        to_offset += run;
        from_offset += run;
        bytes -= run;
    }
    device_cuda_leave(state->cuda);
    return status;
}

kvc_status device_cuda_settle(struct device_slab *to)
{
    struct device_cuda_slab *state = to->state;
    kvc_status status = device_cuda_enter(state->cuda);

    if (status != KVC_OK)
        return status;
    status = device_cuda_check(state->cuda, "copies failed", 0,
                               state->cuda->driver.stream_synchronize(state->stream));
    device_cuda_leave(state->cuda);
    return status;
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

static kvc_status refuse(char why[DEVICE_WHY_MAX], kvc_status status, const char *name,
                         const char *sentence)
{
    snprintf(why, DEVICE_WHY_MAX, "%s%s%s", name, name[0] != '\0' ? " " : "", sentence);
    return status;
}

static kvc_status check_device(struct device_cuda *cuda, char why[DEVICE_WHY_MAX])
{
    const struct cuda_driver *driver = &cuda->driver;
    int vmm = 0, export = 0, pointers = 0;

    if (driver->device_get(&cuda->ordinal, 0) != 0 ||
        driver->device_uuid(cuda->uuid, cuda->ordinal) != 0 ||
        driver->device_name(cuda->name, sizeof(cuda->name), cuda->ordinal) != 0 ||
        driver->device_attribute(&vmm, CUDA_HAS_VMM, cuda->ordinal) != 0 ||
        driver->device_attribute(&export, CUDA_HAS_FD_EXPORT, cuda->ordinal) != 0 ||
        driver->device_attribute(&pointers, CUDA_HAS_HOST_POINTERS, cuda->ordinal) != 0)
        return refuse(why, KVC_E_DEVICE, "", "the first GPU does not say what it can do");
    if (strstr(cuda->name, " MIG ") != NULL ||
        (cuda->nvml != NULL && nvml_is_divided(cuda->nvml, cuda->uuid)))
        return refuse(why, KVC_E_UNSUPPORTED, cuda->name,
                      "is divided (MIG), which cannot share memory between processes");
    if (!vmm || !export)
        return refuse(why, KVC_E_UNSUPPORTED, cuda->name,
                      "cannot export memory as file descriptors");
    if (!pointers)
        return refuse(why, KVC_E_UNSUPPORTED, cuda->name,
                      "has no common addresses for registered host memory");
    return KVC_OK;
}

static void cuda_close(struct device *device)
{
    struct device_cuda *cuda = device->state;

    if (cuda->context != NULL)
        (void)cuda->driver.context_release(cuda->ordinal);
    nvml_close(cuda->nvml);
    cuda_driver_close(&cuda->driver);
    mem_free(cuda);
    *device = (struct device){0};
}

kvc_status device_cuda_open(struct device *device, char why[DEVICE_WHY_MAX])
{
    struct device_cuda *cuda = mem_zalloc(sizeof(*cuda));
    struct device made = {
        .name = "cuda",
        .gpu = &device_cuda_gpu,
        .host = &device_cuda_host,
        .state = cuda,
        .lists_process = lists_process,
        .close = cuda_close,
    };
    kvc_status status;
    int error;

    _Static_assert(DEVICE_WHY_MAX >= CUDA_WHY_MAX, "the driver's sentence fits");
    if (cuda == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", kvc_status_text(KVC_E_NO_MEMORY));
    status = cuda_driver_open(&cuda->driver, why);
    if (status != KVC_OK) {
        mem_free(cuda);
        return status;
    }
    if (nvml_open(&cuda->nvml) != KVC_OK)
        log_warn("device", "no NVML (libnvidia-ml.so.1): what a killed worker was writing to stays "
                           "in quarantine");
    status = check_device(cuda, why);
    if (status != KVC_OK)
        goto close;
    /* Threads that wait for a copy sleep. An error says that the context is there already. */
    (void)cuda->driver.context_flags(cuda->ordinal, CUDA_CONTEXT_BLOCKING_SYNC);
    error = cuda->driver.context_retain(&cuda->context, cuda->ordinal);
    if (error != 0) {
        cuda->context = NULL;
        snprintf(why, DEVICE_WHY_MAX, "%s gives no context: %s", cuda->name,
                 cuda_error_name(&cuda->driver, error));
        status = cuda_status(error);
        goto close;
    }
    log_info("device", "gpu name=\"%s\"", cuda->name);
    *device = made;
    return KVC_OK;

close:
    cuda_close(&made);
    return status;
}
