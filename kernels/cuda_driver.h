/*
 * The entry points of the CUDA driver, found at run time: the same binaries start on a machine
 * without a driver, and the versions asked for are fixed here, whatever the driver's are. Daemon
 * and library share this table; nothing here makes a context or keeps state but in its arguments.
 *
 * Types of the driver appear as what they are in its binary interface: handles as void *, CUresult
 * as int (0 is success), device addresses and generic allocation handles as uint64_t. Numbers are
 * those of cuda.h.
 */
#ifndef KVC_CUDA_DRIVER_H
#define KVC_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/pack_cuda.h"
#include "proto/status.h"

enum cuda_result { /* of CUresult, those that this project tells apart */
                   CUDA_SUCCESS = 0,
                   CUDA_INVALID_VALUE = 1,
                   CUDA_OUT_OF_MEMORY = 2,
                   CUDA_NOT_INITIALIZED = 3,
                   CUDA_NO_DEVICE = 100,
                   CUDA_INVALID_DEVICE = 101,
                   CUDA_INVALID_IMAGE = 200,
                   CUDA_NO_CONTEXT = 201,
                   CUDA_ALREADY_MAPPED = 208,
                   CUDA_NO_BINARY = 209,
                   CUDA_NO_PEER_ACCESS = 217,
                   CUDA_INVALID_PTX = 218,
                   CUDA_NEWER_PTX = 222,
                   CUDA_INVALID_HANDLE = 400,
                   CUDA_NOT_FOUND = 500,
                   CUDA_NOT_READY = 600,
                   CUDA_ILLEGAL_ADDRESS = 700,
                   CUDA_OUT_OF_RESOURCES = 701,
                   CUDA_IS_ENABLED = 704,    /* access to a peer */
                   CUDA_IS_REGISTERED = 712, /* host memory */
                   CUDA_IS_NOT_REGISTERED = 713,
                   CUDA_LAUNCH_FAILED = 719,
                   CUDA_NOT_PERMITTED = 800,
                   CUDA_NOT_SUPPORTED = 801,
                   CUDA_IS_CAPTURING = 906, /* the legacy stream, since another one is */
};

enum cuda_attribute { /* CUdevice_attribute */
                      CUDA_HAS_HOST_POINTERS =
                          91, /* registered host memory has one address on host and device */
                      CUDA_HAS_VMM = 102,
                      CUDA_HAS_FD_EXPORT = 103,
                      CUDA_HAS_READONLY_REGISTER = 113,
};

#define CUDA_CAPTURE_RELAXED        2 /* CUstreamCaptureMode */
#define CUDA_CONTEXT_BLOCKING_SYNC  4u
#define CUDA_STREAM_NON_BLOCKING    1u
#define CUDA_EVENT_NO_TIMING        2u
#define CUDA_IPC_PEER_ACCESS        1u
#define CUDA_HOST_PORTABLE          1u
#define CUDA_HOST_MAPPED            2u
#define CUDA_HOST_READONLY          8u
#define CUDA_HANDLE_FD              1
#define CUDA_GRANULARITY_MINIMUM    0
#define CUDA_POINTER_MEMORY_TYPE    2
#define CUDA_POINTER_DEVICE_ORDINAL 9
#define CUDA_POINTER_HAS_HANDLE     10 /* a legacy one */
#define CUDA_MEMORY_DEVICE          2u

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc */
struct cuda_location {
    int type; /* 1: device */
    int id;
};
struct cuda_allocation {
    int type; /* 1: pinned */
    int handle_types;
    struct cuda_location location;
    void *windows;
    uint8_t compression, rdma;
    uint16_t usage;
    uint8_t reserved[4];
};
struct cuda_access {
    struct cuda_location location;
    int flags; /* 1: read, 3: read and write */
};
/* CUipcMemHandle and CUipcEventHandle, which are passed by value. */
#define CUDA_IPC_BYTES 64
struct cuda_ipc {
    uint8_t bytes[CUDA_IPC_BYTES];
};
#define CUDA_ACCESS_READ      1
#define CUDA_ACCESS_READWRITE 3

/* X(name, symbol without its version, version of the interface, arguments) */
#define CUDA_CALLS(X)                                                                              \
    X(init, "cuInit", 2000, (unsigned flags))                                                      \
    X(driver_version, "cuDriverGetVersion", 2020, (int *version))                                  \
    X(error_name, "cuGetErrorName", 6000, (int error, const char **name))                          \
    X(device_count, "cuDeviceGetCount", 2000, (int *count))                                        \
    X(device_get, "cuDeviceGet", 2000, (int *device, int ordinal))                                 \
    X(device_name, "cuDeviceGetName", 2000, (char *name, int size, int device))                    \
    X(device_uuid, "cuDeviceGetUuid", 11040, (uint8_t * uuid, int device))                         \
    X(device_attribute, "cuDeviceGetAttribute", 2000, (int *value, int attribute, int device))     \
    X(context_retain, "cuDevicePrimaryCtxRetain", 7000, (void **context, int device))              \
    X(context_release, "cuDevicePrimaryCtxRelease", 11000, (int device))                           \
    X(context_flags, "cuDevicePrimaryCtxSetFlags", 11000, (int device, unsigned flags))            \
    X(context_push, "cuCtxPushCurrent", 4000, (void *context))                                     \
    X(context_pop, "cuCtxPopCurrent", 4000, (void **context))                                      \
    X(context_current, "cuCtxGetCurrent", 4000, (void **context))                                  \
    X(context_device, "cuCtxGetDevice", 2000, (int *device))                                       \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, (int *mode))                       \
    X(context_priorities, "cuCtxGetStreamPriorityRange", 5050, (int *least, int *greatest))        \
    X(peer_can, "cuDeviceCanAccessPeer", 4000, (int *can, int device, int peer))                   \
    X(peer_enable, "cuCtxEnablePeerAccess", 4000, (void *context, unsigned flags))                 \
    X(memory_info, "cuMemGetInfo", 3020, (size_t * free, size_t * total))                          \
    X(memory_alloc, "cuMemAlloc", 3020, (uint64_t * memory, size_t bytes))                         \
    X(memory_free, "cuMemFree", 3020, (uint64_t memory))                                           \
    X(memory_range, "cuMemGetAddressRange", 3020,                                                  \
      (uint64_t * base, size_t * bytes, uint64_t address))                                         \
    X(ipc_export, "cuIpcGetMemHandle", 4010, (struct cuda_ipc * handle, uint64_t base))            \
    X(ipc_open, "cuIpcOpenMemHandle", 11000,                                                       \
      (uint64_t * address, struct cuda_ipc handle, unsigned flags))                                \
    X(ipc_close, "cuIpcCloseMemHandle", 4010, (uint64_t address))                                  \
    X(host_alloc, "cuMemHostAlloc", 2020, (void **memory, size_t bytes, unsigned flags))           \
    X(host_free, "cuMemFreeHost", 2000, (void *memory))                                            \
    X(host_register, "cuMemHostRegister", 6050, (void *memory, size_t bytes, unsigned flags))      \
    X(host_unregister, "cuMemHostUnregister", 4000, (void *memory))                                \
    X(vmm_granularity, "cuMemGetAllocationGranularity", 10020,                                     \
      (size_t * bytes, const struct cuda_allocation *allocation, int option))                      \
    X(vmm_create, "cuMemCreate", 10020,                                                            \
      (uint64_t * handle, size_t bytes, const struct cuda_allocation *allocation,                  \
       unsigned long long flags))                                                                  \
    X(vmm_release, "cuMemRelease", 10020, (uint64_t handle))                                       \
    X(vmm_reserve, "cuMemAddressReserve", 10020,                                                   \
      (void **address, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags))   \
    X(vmm_unreserve, "cuMemAddressFree", 10020, (uint64_t address, size_t bytes))                  \
    X(vmm_map, "cuMemMap", 10020,                                                                  \
      (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))  \
    X(vmm_unmap, "cuMemUnmap", 10020, (uint64_t address, size_t bytes))                            \
    X(vmm_access, "cuMemSetAccess", 10020,                                                         \
      (uint64_t address, size_t bytes, const struct cuda_access *access, size_t count))            \
    X(vmm_export, "cuMemExportToShareableHandle", 10020,                                           \
      (void *shareable, uint64_t handle, int type, unsigned long long flags))                      \
    X(vmm_import, "cuMemImportFromShareableHandle", 10020,                                         \
      (uint64_t * handle, intptr_t shareable, int type))                                           \
    X(vmm_retain, "cuMemRetainAllocationHandle", 11000, (uint64_t * handle, void *address))        \
    X(pointer_attribute, "cuPointerGetAttribute", 4000,                                            \
      (void *value, int attribute, uint64_t pointer))                                              \
    X(stream_create, "cuStreamCreate", 2000, (void **stream, unsigned flags))                      \
    X(stream_create_low, "cuStreamCreateWithPriority", 5050,                                       \
      (void **stream, unsigned flags, int priority))                                               \
    X(stream_destroy, "cuStreamDestroy", 4000, (void *stream))                                     \
    X(stream_synchronize, "cuStreamSynchronize", 2000, (void *stream))                             \
    X(stream_capturing, "cuStreamIsCapturing", 10000, (void *stream, int *status))                 \
    X(stream_wait, "cuStreamWaitEvent", 3020, (void *stream, void *event, unsigned flags))         \
    X(stream_write, "cuStreamWriteValue64", 11070,                                                 \
      (void *stream, uint64_t to, uint64_t value, unsigned flags))                                 \
    X(stream_call, "cuLaunchHostFunc", 10000, (void *stream, void (*call)(void *arg), void *arg))  \
    X(event_create, "cuEventCreate", 2000, (void **event, unsigned flags))                         \
    X(event_destroy, "cuEventDestroy", 4000, (void *event))                                        \
    X(event_record, "cuEventRecord", 2000, (void *event, void *stream))                            \
    X(event_query, "cuEventQuery", 2000, (void *event))                                            \
    X(event_elapsed, "cuEventElapsedTime", 2000, (float *ms, void *start, void *end))              \
    X(event_synchronize, "cuEventSynchronize", 2000, (void *event))                                \
    X(copy_async, "cuMemcpyAsync", 4000, (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    X(to_device_async, "cuMemcpyHtoDAsync", 3020,                                                  \
      (uint64_t to, const void *from, size_t bytes, void *stream))                                 \
    X(set_async, "cuMemsetD8Async", 3020,                                                          \
      (uint64_t to, unsigned char value, size_t bytes, void *stream))                              \
    X(module_load, "cuModuleLoadData", 2000, (void **module, const void *image))                   \
    X(module_unload, "cuModuleUnload", 2000, (void *module))                                       \
    X(module_function, "cuModuleGetFunction", 2000,                                                \
      (void **function, void *module, const char *name))                                           \
    X(function_attribute, "cuFuncGetAttribute", 2020, (int *value, int attribute, void *function)) \
    X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050,                              \
      (int *thread_blocks, void *function, int threads, size_t shared_bytes))                      \
    X(launch, "cuLaunchKernel", 4000,                                                              \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, \
       void **extra))                                                                              \
    X(launch_with, "cuLaunchKernelEx", 11060,                                                      \
      (const struct pack_cuda_config *config, void *function, void **parameters, void **extra))

struct cuda_driver {
    void *library;
/* A member of that name with those arguments. NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define CUDA_MEMBER(name, symbol, version, arguments) int(*name) arguments;
    CUDA_CALLS(CUDA_MEMBER)
#undef CUDA_MEMBER
    struct pack_cuda_driver pack; /* the same, as pack_cuda.h wants them */
};

#define CUDA_WHY_MAX 160

/*
 * Loads the driver and initialises it. KVC_E_NO_DEVICE with a sentence in why when there is none,
 * when it is too old (before 12.0), or when it finds no GPU. A driver that once was initialised
 * stays in the process: cuda_driver_close only gives the reference back. A process that forks
 * cannot use it in the child.
 */
kvc_status cuda_driver_open(struct cuda_driver *driver, char why[CUDA_WHY_MAX]);
void cuda_driver_close(struct cuda_driver *driver);

/* "CUDA_ERROR_OUT_OF_MEMORY", or a text without the number where the driver knows none. */
const char *cuda_error_name(const struct cuda_driver *driver, int error);
/* What to do about an error of loading kernels, behind its name, or nothing. */
const char *cuda_image_hint(int error);
/* What an error of the driver is to this project. */
kvc_status cuda_status(int error);
/*
 * Whether an error says what was wrong with the call, its arguments or the room for it. Any other
 * may be one of those that stay: an illegal address, an uncorrectable error of memory, a GPU that
 * is gone. Every later call in that context then fails as well, until the process ends.
 */
bool cuda_is_about_call(int error);

#endif
