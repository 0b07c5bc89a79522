#include "kernels/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>

#define VERSION_MIN 12000 /* of the driver: what has cuGetProcAddress_v2 */

/* cuGetProcAddress of 12.0; status says why there is none, and nobody here asks. */
typedef int get_address_fn(const char *symbol, void **address, int version, uint64_t flags,
                           int *status);

static kvc_status refuse(char why[CUDA_WHY_MAX], const char *sentence, const char *detail)
{
    snprintf(why, CUDA_WHY_MAX, "%s%s", sentence, detail);
    return KVC_E_NO_DEVICE;
}

static kvc_status find_calls(struct cuda_driver *driver, get_address_fn *get_address,
                             char why[CUDA_WHY_MAX])
{
    const struct {
        const char *symbol;
        int version;
        void **at;
    } calls[] = {
#define CUDA_ROW(name, symbol, version, arguments) {symbol, version, (void **)&driver->name},
        CUDA_CALLS(CUDA_ROW)
#undef CUDA_ROW
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        int status = 0;

        if (get_address(calls[i].symbol, calls[i].at, calls[i].version, 0, &status) != 0 ||
            *calls[i].at == NULL)
            return refuse(why, "the CUDA driver has no ", calls[i].symbol);
    }
    driver->pack = (struct pack_cuda_driver){
        .module_load = driver->module_load,
        .module_unload = driver->module_unload,
        .module_function = driver->module_function,
        .context_device = driver->context_device,
        .device_attribute = driver->device_attribute,
        .occupancy = driver->occupancy,
        .function_attribute = driver->function_attribute,
        .launch = driver->launch,
        .launch_with = driver->launch_with,
    };
    return KVC_OK;
}

static kvc_status initialise(struct cuda_driver *driver, char why[CUDA_WHY_MAX])
{
    int version = 0, count = 0;
    int error = driver->init(0);

    if (error == CUDA_NO_DEVICE)
        return refuse(why, "the CUDA driver finds no GPU", "");
    if (error != 0)
        return refuse(why, "the CUDA driver does not start: ", cuda_error_name(driver, error));
    if (driver->driver_version(&version) != 0 || version < VERSION_MIN)
        return refuse(why, "the CUDA driver is older than 12.0", "");
    if (driver->device_count(&count) != 0 || count == 0)
        return refuse(why, "the CUDA driver finds no GPU", "");
    return KVC_OK;
}

kvc_status cuda_driver_open(struct cuda_driver *driver, char why[CUDA_WHY_MAX])
{
    get_address_fn *get_address;
    kvc_status status;

    *driver = (struct cuda_driver){.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL)
        return refuse(why, "no CUDA driver here (libcuda.so.1)", "");
    *(void **)&get_address = dlsym(driver->library, "cuGetProcAddress_v2");
    if (get_address == NULL)
        status = refuse(why, "the CUDA driver is older than 12.0", "");
    else
        status = find_calls(driver, get_address, why);
    if (status == KVC_OK)
        status = initialise(driver, why);
    if (status != KVC_OK)
        cuda_driver_close(driver);
    return status;
}

void cuda_driver_close(struct cuda_driver *driver)
{
    if (driver->library != NULL)
        dlclose(driver->library);
    *driver = (struct cuda_driver){0};
}

const char *cuda_error_name(const struct cuda_driver *driver, int error)
{
    const char *name = NULL;

    return driver->error_name(error, &name) == 0 && name != NULL ? name : "an unknown error";
}

const char *cuda_image_hint(int error)
{
    return error == CUDA_INVALID_IMAGE || error == CUDA_NO_BINARY || error == CUDA_INVALID_PTX ||
                   error == CUDA_NEWER_PTX
               ? " (a driver loads what an nvcc no newer than itself has built)"
               : "";
}

kvc_status cuda_status(int error)
{
    switch (error) {
    case CUDA_SUCCESS:
        return KVC_OK;
    case CUDA_OUT_OF_MEMORY:
        return KVC_E_NO_MEMORY;
    case CUDA_NO_DEVICE:
        return KVC_E_NO_DEVICE;
    case CUDA_NOT_SUPPORTED:
        return KVC_E_UNSUPPORTED;
    default:
        return KVC_E_DEVICE;
    }
}

bool cuda_is_about_call(int error)
{
    switch (error) {
    case CUDA_SUCCESS:
    case CUDA_INVALID_VALUE:
    case CUDA_OUT_OF_MEMORY:
    case CUDA_NO_DEVICE:
    case CUDA_INVALID_DEVICE:
    case CUDA_INVALID_IMAGE:
    case CUDA_ALREADY_MAPPED:
    case CUDA_NO_BINARY:
    case CUDA_NO_PEER_ACCESS:
    case CUDA_INVALID_PTX:
    case CUDA_NEWER_PTX:
    case CUDA_INVALID_HANDLE:
    case CUDA_NOT_FOUND:
    case CUDA_NOT_READY:
    case CUDA_OUT_OF_RESOURCES:
    case CUDA_IS_ENABLED:
    case CUDA_IS_REGISTERED:
    case CUDA_IS_NOT_REGISTERED:
    case CUDA_NOT_PERMITTED:
    case CUDA_NOT_SUPPORTED:
    case CUDA_IS_CAPTURING:
        return true;
    default:
        return false;
    }
}
