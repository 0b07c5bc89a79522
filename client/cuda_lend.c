/* The worker's own GPU memory, for a daemon that copies: what it consists of, and exporting it. */
#include <fcntl.h>
#include <string.h>

#include "client/cuda.h"

kvc_status cuda_find_piece(const struct cuda *cuda, uint64_t address, struct cuda_piece *piece,
                           const char **why)
{
    uint64_t base = 0;
    size_t bytes = 0;
    int ordinal = -1;
    unsigned legacy = 0;
    kvc_status status = cuda_enter(cuda);

    *why = "the GPU's context cannot be entered";
    if (status != KVC_OK)
        return status;
    if (cuda->driver.memory_range(&base, &bytes, address) != 0 || address - base >= bytes) {
        *why = "no memory of a GPU";
        status = KVC_E_INVALID;
    } else if (cuda->driver.pointer_attribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL, address) !=
                   0 ||
               ordinal != cuda->ordinal) {
        *why = "memory of another GPU than this client's";
        status = KVC_E_INVALID;
    } else {
        (void)cuda->driver.pointer_attribute(&legacy, CUDA_POINTER_HAS_HANDLE, address);
        *piece = (struct cuda_piece){base, bytes, legacy != 0};
    }
    cuda_leave(cuda);
    return status;
}

static kvc_status export_mapped(const struct cuda *cuda, uint64_t at, int *fd)
{
    uint64_t handle = 0;
    int error = cuda->driver.vmm_retain(&handle, (void *)(uintptr_t)at);

    if (error == 0) {
        error = cuda->driver.vmm_export(fd, handle, CUDA_HANDLE_FD, 0);
        (void)cuda->driver.vmm_release(handle);
    }
    if (error != 0)
        return KVC_E_UNSUPPORTED;
    (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return KVC_OK;
}

kvc_status cuda_export(const struct cuda *cuda, uint64_t at, bool legacy, int *fd,
                       uint8_t handle[CUDA_IPC_BYTES])
{
    struct cuda_ipc ipc;
    kvc_status status = cuda_enter(cuda);

    if (status != KVC_OK)
        return status;
    *fd = -1;
    if (!legacy)
        status = export_mapped(cuda, at, fd);
    else if (cuda->driver.ipc_export(&ipc, at) != 0)
        status = KVC_E_UNSUPPORTED;
    else
        memcpy(handle, &ipc, sizeof(ipc));
    cuda_leave(cuda);
    return status;
}

kvc_status cuda_share_event(const struct cuda *cuda, struct cuda_lane *lane, void *stream,
                            uint8_t handle[CUDA_IPC_BYTES])
{
    int error = 0;

    if (lane->shared == NULL) {
        error = cuda->driver.event_create(&lane->shared,
                                          CUDA_EVENT_NO_TIMING | CUDA_EVENT_INTERPROCESS);
        if (error != 0)
            lane->shared = NULL;
        else
            error = cuda->driver.ipc_export_event(&lane->handle, lane->shared);
    }
    if (error == 0)
        error = cuda->driver.event_record(lane->shared, stream);
    if (error == 0)
        memcpy(handle, &lane->handle, sizeof(lane->handle));
    return cuda_status(error);
}
