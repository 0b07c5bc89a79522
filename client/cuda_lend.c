/* The worker's own GPU memory, for a daemon that copies: what it consists of, and exporting it. */
#include <fcntl.h>
#include <string.h>

#include "client/copy.h"
#include "client/cuda.h"

kvc_status cuda_find_piece(struct cuda *cuda, uint64_t address, struct cuda_piece *piece,
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

static kvc_status export_mapped(struct cuda *cuda, uint64_t at, int *fd)
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

kvc_status cuda_export(struct cuda *cuda, uint64_t at, bool legacy, int *fd,
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

/* The next number is written behind the one before, also when the lane has another stream by then.
 */
kvc_status cuda_write_gate(struct cuda *cuda, const struct cuda_lane *lane, void *stream,
                           struct copy_gate *gate)
{
    const uint32_t index = (uint32_t)(lane - cuda->lanes);
    int error;

    if (cuda->page == 0)
        return KVC_E_UNSUPPORTED;
    gate->index = index;
    gate->number = ++cuda->gates;
    error = cuda->driver.stream_write(
        stream, cuda->page + (uint64_t)index * KVC_PAGE_STRIDE + KVC_PAGE_GATE_OFFSET, gate->number,
        0);
    return cuda_status(error);
}
