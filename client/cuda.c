#include "client/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvc_status refuse(char why[CUDA_WHY_MAX], kvc_status status, const char *sentence,
                         const char *detail)
{
    snprintf(why, CUDA_WHY_MAX, "%s%s", sentence, detail);
    return status;
}

/* The GPU that the caller works with: of its current context, else the first. */
static kvc_status choose_device(struct cuda *cuda, char why[CUDA_WHY_MAX])
{
    const struct cuda_driver *driver = &cuda->driver;
    void *context = NULL;
    int pointers = 0, readonly = 0;

    if (driver->context_current(&context) != 0 || context == NULL ||
        driver->context_device(&cuda->ordinal) != 0)
        cuda->ordinal = 0;
    if (driver->device_uuid(cuda->uuid, cuda->ordinal) != 0 ||
        driver->device_attribute(&pointers, CUDA_HAS_HOST_POINTERS, cuda->ordinal) != 0 ||
        driver->device_attribute(&readonly, CUDA_HAS_READONLY_REGISTER, cuda->ordinal) != 0)
        return refuse(why, KVC_E_DEVICE, "the GPU does not say what it can do", "");
    if (!pointers)
        return refuse(why, KVC_E_UNSUPPORTED,
                      "the GPU has no common addresses for registered host memory", "");
    cuda->registers_readonly = readonly != 0;
    return KVC_OK;
}

/* Scratch is zeroed here, once; launches leave it so. */
static int make_lanes(struct cuda *cuda)
{
    const struct cuda_driver *driver = &cuda->driver;
    const uint64_t bytes = (pack_cuda_scratch_bytes() + 255) / 256 * 256;
    uint64_t scratch = 0;
    int error = driver->memory_alloc(&scratch, bytes * CUDA_LANES);

    cuda->lanes[0].scratch = scratch;
    if (error == 0)
        error = driver->set_async(scratch, 0, bytes * CUDA_LANES, cuda->stream);
    for (uint32_t i = 0; i < CUDA_LANES && error == 0; i++) {
        cuda->lanes[i].scratch = scratch + i * bytes;
        error = driver->event_create(&cuda->lanes[i].event, CUDA_EVENT_NO_TIMING);
    }
    return error == 0 ? driver->stream_synchronize(cuda->stream) : error;
}

static kvc_status make_parts(struct cuda *cuda, char why[CUDA_WHY_MAX])
{
    const struct cuda_driver *driver = &cuda->driver;
    int error = 0;
    kvc_status status;

    status = pack_cuda_open(&cuda->pack, &driver->pack, &error);
    cuda->has_kernels = status == KVC_OK;
    if (status != KVC_E_DEVICE)
        error = driver->stream_create(&cuda->stream, CUDA_STREAM_NON_BLOCKING);
    if (error == 0)
        error = make_lanes(cuda);
    if (error == 0)
        return KVC_OK;
    snprintf(why, CUDA_WHY_MAX, "the GPU cannot be used: %s%s", cuda_error_name(driver, error),
             status == KVC_E_DEVICE ? cuda_image_hint(error) : "");
    return cuda_status(error);
}

kvc_status cuda_open(struct cuda **ret, char why[CUDA_WHY_MAX])
{
    struct cuda *cuda = calloc(1, sizeof(*cuda));
    kvc_status status;
    int error;

    if (cuda == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "no memory for a GPU", "");
    status = cuda_driver_open(&cuda->driver, why);
    if (status != KVC_OK) {
        free(cuda);
        return status;
    }
    status = choose_device(cuda, why);
    if (status != KVC_OK)
        goto close;
    error = cuda->driver.context_retain(&cuda->context, cuda->ordinal);
    if (error != 0) {
        cuda->context = NULL;
        status = refuse(why, cuda_status(error),
                        "the GPU gives no context: ", cuda_error_name(&cuda->driver, error));
        goto close;
    }
    status = cuda_enter(cuda);
    if (status == KVC_OK) {
        status = make_parts(cuda, why);
        cuda_leave(cuda);
    }
    if (status != KVC_OK)
        goto close;
    *ret = cuda;
    return KVC_OK;

close:
    cuda_close(cuda, false);
    return status;
}

static void release(struct cuda *cuda)
{
    const struct cuda_driver *driver = &cuda->driver;

    if (cuda->context == NULL)
        return;
    if (cuda_enter(cuda) == KVC_OK) {
        for (uint32_t i = 0; i < CUDA_LANES; i++)
            if (cuda->lanes[i].event != NULL)
                (void)driver->event_destroy(cuda->lanes[i].event);
        if (cuda->lanes[0].scratch != 0) /* that of all lanes */
            (void)driver->memory_free(cuda->lanes[0].scratch);
        if (cuda->stream != NULL)
            (void)driver->stream_destroy(cuda->stream);
        if (cuda->has_kernels)
            pack_cuda_close(&cuda->pack);
        cuda_leave(cuda);
    }
    (void)driver->context_release(cuda->ordinal);
}

void cuda_close(struct cuda *cuda, bool inherited)
{
    if (cuda == NULL)
        return;
    if (!inherited) {
        release(cuda);
        cuda_driver_close(&cuda->driver);
    }
    free(cuda);
}

kvc_status cuda_enter(struct cuda *cuda)
{
    const int error = cuda->driver.context_push(cuda->context);

    if (error != 0)
        return cuda_status(error);
    if (cuda->entered++ == 0) {
        cuda->capture_mode = CUDA_CAPTURE_RELAXED;
        if (cuda->driver.capture_mode(&cuda->capture_mode) != 0)
            cuda->capture_mode = -1;
    }
    return KVC_OK;
}

void cuda_leave(struct cuda *cuda)
{
    void *context;

    if (--cuda->entered == 0 && cuda->capture_mode >= 0)
        (void)cuda->driver.capture_mode(&cuda->capture_mode);
    (void)cuda->driver.context_pop(&context);
}

void cuda_drain(struct cuda *cuda)
{
    if (cuda_enter(cuda) != KVC_OK)
        return;
    /* After an error of the context nothing of it runs, and that is what is waited for. */
    for (uint32_t i = 0; i < CUDA_LANES; i++)
        if (cuda->lanes[i].used)
            (void)cuda->driver.event_synchronize(cuda->lanes[i].event);
    cuda_leave(cuda);
}

bool cuda_is_drained(struct cuda *cuda)
{
    bool drained = true;

    if (cuda_enter(cuda) != KVC_OK)
        return true;
    for (uint32_t i = 0; i < CUDA_LANES && drained; i++)
        drained = !cuda->lanes[i].used ||
                  cuda->driver.event_query(cuda->lanes[i].event) != CUDA_NOT_READY;
    cuda_leave(cuda);
    return drained;
}

kvc_status cuda_reserve(struct cuda *cuda, uint64_t bytes, uint8_t **base)
{
    void *address = NULL;
    kvc_status status = cuda_enter(cuda);

    if (status != KVC_OK)
        return status;
    if (cuda->driver.vmm_reserve(&address, bytes, 0, 0, 0) != 0)
        status = KVC_E_MAP;
    cuda_leave(cuda);
    if (status != KVC_OK)
        return status;
    *base = address;
    return KVC_OK;
}

void cuda_unreserve(struct cuda *cuda, uint8_t *base, uint64_t bytes)
{
    if (cuda_enter(cuda) != KVC_OK)
        return;
    (void)cuda->driver.vmm_unreserve((uintptr_t)base, bytes);
    cuda_leave(cuda);
}

static int map_handle(const struct cuda *cuda, uint8_t *at, uint64_t bytes, uint64_t handle,
                      bool writable)
{
    const struct cuda_access access = {{1, cuda->ordinal},
                                       writable ? CUDA_ACCESS_READWRITE : CUDA_ACCESS_READ};
    int error = cuda->driver.vmm_map((uintptr_t)at, bytes, 0, handle, 0);

    if (error != 0)
        return error;
    error = cuda->driver.vmm_access((uintptr_t)at, bytes, &access, 1);
    if (error != 0)
        (void)cuda->driver.vmm_unmap((uintptr_t)at, bytes);
    return error;
}

static void note_place(struct cuda *cuda, const uint8_t *at)
{
    int ordinal = -1;

    if (cuda->driver.pointer_attribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL, (uintptr_t)at) != 0 ||
        ordinal != cuda->ordinal)
        cuda->reaches_peers = true;
}

kvc_status cuda_map(struct cuda *cuda, uint8_t *at, uint64_t bytes, int fd, bool writable)
{
    uint64_t handle = 0;
    kvc_status status = cuda_enter(cuda);
    int error;

    if (status != KVC_OK)
        return status;
    error = cuda->driver.vmm_import(&handle, fd, CUDA_HANDLE_FD);
    if (error == 0) {
        error = map_handle(cuda, at, bytes, handle, writable);
        (void)cuda->driver.vmm_release(handle); /* the mapping keeps the memory */
        if (error == 0)
            note_place(cuda, at);
    }
    cuda_leave(cuda);
    return error == 0 ? KVC_OK : KVC_E_MAP;
}

void cuda_unmap(struct cuda *cuda, uint8_t *at, uint64_t bytes)
{
    if (cuda_enter(cuda) != KVC_OK)
        return;
    (void)cuda->driver.vmm_unmap((uintptr_t)at, bytes);
    cuda_leave(cuda);
}

kvc_status cuda_open_handle(struct cuda *cuda, const uint8_t handle[CUDA_IPC_BYTES], uint64_t bytes,
                            uint8_t **at)
{
    struct cuda_ipc ipc;
    uint64_t address = 0, base = 0;
    size_t size = 0;
    kvc_status status = cuda_enter(cuda);
    int error;

    if (status != KVC_OK)
        return status;
    memcpy(&ipc, handle, sizeof(ipc));
    error = cuda->driver.ipc_open(&address, ipc, CUDA_IPC_PEER_ACCESS);
    if (error == 0 && (cuda->driver.memory_range(&base, &size, address) != 0 || base != address ||
                       size < bytes)) {
        (void)cuda->driver.ipc_close(address);
        error = CUDA_NOT_SUPPORTED;
    }
    if (error == 0)
        note_place(cuda, (const uint8_t *)(uintptr_t)address);
    cuda_leave(cuda);
    if (error != 0)
        return KVC_E_MAP;
    *at = (uint8_t *)(uintptr_t)address;
    return KVC_OK;
}

void cuda_close_handle(struct cuda *cuda, uint8_t *at)
{
    if (cuda_enter(cuda) != KVC_OK)
        return;
    (void)cuda->driver.ipc_close((uintptr_t)at);
    cuda_leave(cuda);
}

void cuda_know_host(struct cuda *cuda, const uint8_t *base, uint64_t bytes)
{
    cuda->host_base = (uintptr_t)base;
    cuda->host_bytes = bytes;
}

void cuda_know_page(struct cuda *cuda, const uint8_t *page)
{
    cuda->page = (uintptr_t)page;
}

kvc_status cuda_register(struct cuda *cuda, uint8_t *at, uint64_t bytes, bool writable)
{
    unsigned flags = CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED;
    kvc_status status;
    int error;

    if (!writable) {
        if (!cuda->registers_readonly)
            return KVC_E_MAP;
        flags |= CUDA_HOST_READONLY;
    }
    status = cuda_enter(cuda);
    if (status != KVC_OK)
        return status;
    error = cuda->driver.host_register(at, bytes, flags);
    cuda_leave(cuda);
    return error == 0 ? KVC_OK : KVC_E_MAP;
}

void cuda_unregister(struct cuda *cuda, uint8_t *at)
{
    if (cuda_enter(cuda) != KVC_OK)
        return;
    (void)cuda->driver.host_unregister(at);
    cuda_leave(cuda);
}

const char *cuda_judge(struct cuda *cuda, const void *address)
{
    unsigned type = 0;
    int ordinal = -1;
    const char *wrong = NULL;

    if (cuda_enter(cuda) != KVC_OK)
        return "the GPU's context cannot be entered";
    if (cuda->driver.pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (uintptr_t)address) != 0)
        wrong = "neither memory of a GPU nor registered with CUDA";
    else if (type == CUDA_MEMORY_DEVICE &&
             (cuda->driver.pointer_attribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL,
                                             (uintptr_t)address) != 0 ||
              ordinal != cuda->ordinal))
        wrong = "memory of another GPU than this client's";
    cuda_leave(cuda);
    return wrong;
}
