#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/driver.h"

void gpu_check(int result, const char *what, const char *file, int line)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s:%d: %s failed with %d\n", file, line, what, result);
    exit(1);
}

static void waive(const char *reason)
{
    printf("WAIVED %s\n", reason);
    exit(GPU_WAIVED);
}

void gpu_open(struct gpu *gpu)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        waive("no CUDA driver here");

    struct {
        const char *symbol;
        void **at;
    } calls[] = {
#define GPU_ROW(name, symbol, arguments) {symbol, (void **)&gpu->name},
        GPU_CALLS(GPU_ROW)
#undef GPU_ROW
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        *calls[i].at = dlsym(library, calls[i].symbol);
        if (!*calls[i].at)
            waive(calls[i].symbol);
    }

    int device;
    void *context;
    if (gpu->init(0) != 0 || gpu->device_get(&device, 0) != 0)
        waive("no GPU here");
    if (!pack_cuda_built())
        waive("built without nvcc");
    GPU(gpu->device_name(gpu->device, sizeof gpu->device, device));
    GPU(gpu->driver_version(&gpu->version));
    GPU(gpu->context_retain(&context, device));
    GPU(gpu->context_set(context));
    GPU(gpu->stream_create(&gpu->stream, 1 /* not ordered with the default stream */));

    gpu->driver = (struct pack_cuda_driver){
        .module_load = gpu->module_load,
        .module_unload = gpu->module_unload,
        .module_function = gpu->module_function,
        .context_device = gpu->context_device,
        .device_attribute = gpu->device_attribute,
        .occupancy = gpu->occupancy,
        .function_attribute = gpu->function_attribute,
        .launch = gpu->launch,
        .launch_with = gpu->launch_with,
    };
    int error = 0;
    if (pack_cuda_open(&gpu->pack, &gpu->driver, &error) != KVC_OK) {
        fprintf(stderr, "loading the kernels failed with %d\n", error);
        exit(1);
    }
}

gpu_ptr gpu_alloc(struct gpu *gpu, size_t bytes)
{
    gpu_ptr memory = 0;
    GPU(gpu->alloc(&memory, bytes));
    return memory;
}
