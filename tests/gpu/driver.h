/*
 * The CUDA driver for the GPU tests, found at run time: they build on any machine, and say WAIVED
 * on one without a GPU. Types are as in kernels/pack_cuda.h. Every call that fails ends the test
 * program with status 1 and a line that names it.
 */
#ifndef KVC_TESTS_GPU_DRIVER_H
#define KVC_TESTS_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/pack_cuda.h"

#define GPU_WAIVED 77 /* exit status of a test that cannot run here */

typedef uint64_t gpu_ptr;

/* X(name, driver symbol, arguments) */
#define GPU_CALLS(X)                                                                               \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                       \
    X(device_name, "cuDeviceGetName", (char *name, int len, int device))                           \
    X(driver_version, "cuDriverGetVersion", (int *version))                                        \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                    \
    X(context_set, "cuCtxSetCurrent", (void *context))                                             \
    X(context_synchronize, "cuCtxSynchronize", (void))                                             \
    X(alloc, "cuMemAlloc_v2", (gpu_ptr * memory, size_t bytes))                                    \
    X(free, "cuMemFree_v2", (gpu_ptr memory))                                                      \
    X(to_device, "cuMemcpyHtoD_v2", (gpu_ptr to, const void *from, size_t bytes))                  \
    X(to_host, "cuMemcpyDtoH_v2", (void *to, gpu_ptr from, size_t bytes))                          \
    X(copy_async, "cuMemcpyDtoDAsync_v2", (gpu_ptr to, gpu_ptr from, size_t bytes, void *stream))  \
    X(set_async, "cuMemsetD8Async", (gpu_ptr to, unsigned char value, size_t bytes, void *stream)) \
    X(host_register, "cuMemHostRegister_v2", (void *memory, size_t bytes, unsigned flags))         \
    X(host_unregister, "cuMemHostUnregister", (void *memory))                                      \
    X(host_pointer, "cuMemHostGetDevicePointer_v2",                                                \
      (gpu_ptr * device, void *memory, unsigned flags))                                            \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                            \
    X(stream_synchronize, "cuStreamSynchronize", (void *stream))                                   \
    X(stream_write, "cuStreamWriteValue64_v2",                                                     \
      (void *stream, gpu_ptr to, uint64_t value, unsigned flags))                                  \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                               \
    X(event_record, "cuEventRecord", (void *event, void *stream))                                  \
    X(event_elapsed, "cuEventElapsedTime", (float *ms, void *start, void *end))                    \
    X(module_load, "cuModuleLoadData", (void **module, const void *image))                         \
    X(module_unload, "cuModuleUnload", (void *module))                                             \
    X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name))   \
    X(function_attribute, "cuFuncGetAttribute", (int *value, int attribute, void *function))       \
    X(context_device, "cuCtxGetDevice", (int *device))                                             \
    X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))           \
    X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                                    \
      (int *thread_blocks, void *function, int threads, size_t shared_bytes))                      \
    X(launch, "cuLaunchKernel",                                                                    \
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,            \
       unsigned bz, unsigned shared, void *stream, void **parameters, void **extra))               \
    X(launch_with, "cuLaunchKernelEx",                                                             \
      (const struct pack_cuda_config *config, void *function, void **parameters, void **extra))

struct gpu {
#define GPU_MEMBER(name, symbol, arguments) int(*name) arguments;
    GPU_CALLS(GPU_MEMBER)
#undef GPU_MEMBER
    struct pack_cuda_driver driver;
    struct pack_cuda pack;
    void *stream;
    char device[128];
    int version;
};

/* Opens device 0 with the kernels loaded. Exits with GPU_WAIVED where there is none. */
void gpu_open(struct gpu *gpu);

/* Device memory of `bytes` bytes, never 0. */
gpu_ptr gpu_alloc(struct gpu *gpu, size_t bytes);

void gpu_check(int result, const char *what, const char *file, int line);
#define GPU(call) gpu_check(call, #call, __FILE__, __LINE__)

#endif
