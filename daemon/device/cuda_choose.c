/* Which GPUs a daemon uses, whether they can do what is needed, and their contexts. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/device/cuda.h"
#include "daemon/device/nvml.h"

static kvc_status refuse(char why[DEVICE_WHY_MAX], kvc_status status, const char *name,
                         const char *sentence)
{
    snprintf(why, DEVICE_WHY_MAX, "%s%s%s", name, name[0] != '\0' ? " " : "", sentence);
    return status;
}

static kvc_status check_gpu(struct device_cuda *cuda, const struct cuda_gpu *gpu,
                            const struct device_cuda_choice *choice, char why[DEVICE_WHY_MAX])
{
    const struct cuda_driver *driver = &cuda->driver;
    int vmm = 0, export = 0, pointers = 0;

    if (driver->device_attribute(&vmm, CUDA_HAS_VMM, gpu->ordinal) != 0 ||
        driver->device_attribute(&export, CUDA_HAS_FD_EXPORT, gpu->ordinal) != 0 ||
        driver->device_attribute(&pointers, CUDA_HAS_HOST_POINTERS, gpu->ordinal) != 0)
        return refuse(why, KVC_E_DEVICE, gpu->name, "does not say what it can do");
    if (strstr(gpu->name, " MIG ") != NULL ||
        (cuda->nvml != NULL && nvml_is_divided(cuda->nvml, gpu->uuid)))
        return refuse(why, KVC_E_UNSUPPORTED, gpu->name,
                      "is divided (MIG), which cannot share memory between processes");
    if ((!vmm || !export) && choice->memory == DEVICE_MEMORY_DESCRIPTORS)
        return refuse(why, KVC_E_UNSUPPORTED, gpu->name,
                      "cannot export memory as file descriptors");
    cuda->legacy = cuda->legacy || !vmm || !export || choice->memory == DEVICE_MEMORY_HANDLES;
    if (!pointers)
        return refuse(why, KVC_E_UNSUPPORTED, gpu->name,
                      "has no common addresses for registered host memory");
    return KVC_OK;
}

/* Those that the driver shows, in its order. */
static kvc_status describe(const struct device_cuda *cuda, int ordinal, struct cuda_gpu *gpu,
                           char why[DEVICE_WHY_MAX])
{
    const struct cuda_driver *driver = &cuda->driver;

    if (driver->device_get(&gpu->ordinal, ordinal) != 0 ||
        driver->device_uuid(gpu->uuid, gpu->ordinal) != 0 ||
        driver->device_name(gpu->name, sizeof(gpu->name), gpu->ordinal) != 0)
        return refuse(why, KVC_E_DEVICE, "", "a GPU does not say which one it is");
    return KVC_OK;
}

static bool read_uuid(const char *text, size_t len, uint8_t uuid[KVC_UUID_BYTES])
{
    uint32_t digits = 0;

    if (len > 4 && strncmp(text, "GPU-", 4) == 0) {
        text += 4;
        len -= 4;
    }
    memset(uuid, 0, KVC_UUID_BYTES);
    for (size_t i = 0; i < len; i++) {
        const char c = text[i];
        const int value = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;

        if (c == '-')
            continue;
        if (value < 0 || digits == 2 * KVC_UUID_BYTES)
            return false;
        uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 2 * KVC_UUID_BYTES;
}

/* The GPU of a UUID, among all that the driver shows. */
static kvc_status find_uuid(const struct device_cuda *cuda, int count, const char *text, size_t len,
                            struct cuda_gpu *found, char why[DEVICE_WHY_MAX])
{
    uint8_t uuid[KVC_UUID_BYTES];

    if (!read_uuid(text, len, uuid)) {
        snprintf(why, DEVICE_WHY_MAX, "\"%.*s\" is no UUID of a GPU (nvidia-smi -L lists them)",
                 (int)(len < 64 ? len : 64), text);
        return KVC_E_INVALID;
    }
    for (int i = 0; i < count; i++) {
        kvc_status status = describe(cuda, i, found, why);

        if (status != KVC_OK || memcmp(found->uuid, uuid, KVC_UUID_BYTES) == 0)
            return status;
    }
    snprintf(why, DEVICE_WHY_MAX, "the driver shows no GPU %.*s", (int)(len < 64 ? len : 64), text);
    return KVC_E_NO_DEVICE;
}

static kvc_status find_listed(struct device_cuda *cuda, int count, const char *gpus,
                              char why[DEVICE_WHY_MAX])
{
    for (const char *at = gpus;;) {
        const size_t len = strcspn(at, ",");
        struct cuda_gpu gpu = {0};
        kvc_status status = find_uuid(cuda, count, at, len, &gpu, why);

        if (status != KVC_OK)
            return status;
        if (cuda->n_gpus == DEVICE_GPUS_MAX)
            return refuse(why, KVC_E_LIMIT, "", "more GPUs than a daemon can have");
        for (uint32_t i = 0; i < cuda->n_gpus; i++)
            if (cuda->gpus[i].ordinal == gpu.ordinal)
                return refuse(why, KVC_E_DUPLICATE, gpu.name, "is named twice");
        cuda->gpus[cuda->n_gpus++] = gpu;
        if (at[len] == '\0')
            return KVC_OK;
        at += len + 1;
    }
}

static kvc_status find_gpus(struct device_cuda *cuda, const char *gpus, char why[DEVICE_WHY_MAX])
{
    const bool all = strcmp(gpus, "all") == 0, first = strcmp(gpus, "first") == 0;
    int count = 0;

    if (cuda->driver.device_count(&count) != 0 || count == 0)
        return refuse(why, KVC_E_NO_DEVICE, "", "the CUDA driver finds no GPU");
    if (!all && !first)
        return find_listed(cuda, count, gpus, why);
    if (first)
        count = 1;
    if (count > (int)DEVICE_GPUS_MAX)
        return refuse(why, KVC_E_LIMIT, "", "more GPUs than a daemon can have");
    for (int i = 0; i < count; i++) {
        kvc_status status = describe(cuda, i, &cuda->gpus[i], why);

        if (status != KVC_OK)
            return status;
        cuda->n_gpus++;
    }
    return KVC_OK;
}

/* Threads that wait for a copy sleep. An error says that the context is there already. */
static kvc_status open_gpu(struct device_cuda *cuda, uint32_t i, char why[DEVICE_WHY_MAX])
{
    struct cuda_gpu *gpu = &cuda->gpus[i];
    void *context = NULL;
    int error;
    kvc_status status;

    (void)cuda->driver.context_flags(gpu->ordinal, CUDA_CONTEXT_BLOCKING_SYNC);
    error = cuda->driver.context_retain(&context, gpu->ordinal);
    if (error != 0) {
        snprintf(why, DEVICE_WHY_MAX, "%s gives no context: %s", gpu->name,
                 cuda_error_name(&cuda->driver, error));
        return cuda_status(error);
    }
    gpu->context = context;
    list_init(&gpu->openings);
    status = device_cuda_enter(cuda, i);
    if (status != KVC_OK)
        return refuse(why, status, gpu->name, "has a context that cannot be used");
    status = pack_cuda_open(&gpu->pack, &cuda->driver.pack, &error);
    device_cuda_leave(cuda);
    gpu->has_kernels = status == KVC_OK;
    if (cuda->nvml != NULL && nvml_is_under_mps(cuda->nvml, gpu->uuid, (int32_t)getpid()))
        log_warn("device",
                 "under MPS: a fatal error of any process there ends the work of all gpu=%u", i);
    if (status == KVC_E_UNSUPPORTED)
        log_info("device", "built without nvcc: workers copy by themselves");
    else if (status != KVC_OK)
        snprintf(why, DEVICE_WHY_MAX, "%s loads no kernels: %s%s", gpu->name,
                 cuda_error_name(&cuda->driver, error), cuda_image_hint(error));
    return gpu->has_kernels || status == KVC_E_UNSUPPORTED ? KVC_OK : status;
}

/* Copies run on the GPU of the worker's memory, wherever the slot is. */
static kvc_status check_peers(const struct device_cuda *cuda, char why[DEVICE_WHY_MAX])
{
    for (uint32_t a = 0; a < cuda->n_gpus; a++)
        for (uint32_t b = 0; b < cuda->n_gpus; b++) {
            int can = 0;

            if (a != b &&
                (cuda->driver.peer_can(&can, cuda->gpus[a].ordinal, cuda->gpus[b].ordinal) != 0 ||
                 !can))
                return refuse(why, KVC_E_UNSUPPORTED, cuda->gpus[a].name,
                              "cannot reach the memory of another of the GPUs; a daemon for each "
                              "of them can be started (--gpus)");
        }
    return KVC_OK;
}

/* Memory of one context is reached from another only if that was asked for, but for mappings. */
static kvc_status enable_peers(struct device_cuda *cuda, char why[DEVICE_WHY_MAX])
{
    for (uint32_t a = 0; a < cuda->n_gpus; a++)
        for (uint32_t b = 0; b < cuda->n_gpus; b++) {
            int error = 0;

            if (a == b || device_cuda_enter(cuda, a) != KVC_OK)
                continue;
            error = cuda->driver.peer_enable(cuda->gpus[b].context, 0);
            device_cuda_leave(cuda);
            if (error != 0 && error != CUDA_IS_ENABLED)
                return refuse(why, cuda_status(error), cuda->gpus[a].name,
                              "is given no access to another of the GPUs");
        }
    return KVC_OK;
}

kvc_status device_cuda_choose(struct device_cuda *cuda, const struct device_cuda_choice *choice,
                              char why[DEVICE_WHY_MAX])
{
    kvc_status status = find_gpus(cuda, choice->gpus, why);

    for (uint32_t i = 0; i < cuda->n_gpus && status == KVC_OK; i++)
        status = check_gpu(cuda, &cuda->gpus[i], choice, why);
    if (status == KVC_OK)
        status = check_peers(cuda, why);
    for (uint32_t i = 0; i < cuda->n_gpus && status == KVC_OK; i++)
        status = open_gpu(cuda, i, why);
    if (status == KVC_OK && cuda->legacy)
        status = enable_peers(cuda, why);
    return status;
}

void device_cuda_release(struct device_cuda *cuda)
{
    for (uint32_t i = 0; i < cuda->n_gpus; i++) {
        struct cuda_gpu *gpu = &cuda->gpus[i];

        if (gpu->context == NULL)
            continue;
        if (gpu->has_kernels && device_cuda_enter(cuda, i) == KVC_OK) {
            pack_cuda_close(&gpu->pack);
            device_cuda_leave(cuda);
        }
        (void)cuda->driver.context_release(gpu->ordinal);
        gpu->context = NULL;
    }
}
