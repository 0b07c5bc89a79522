#include "daemon/device/nvml.h"

#include <dlfcn.h>
#include <stdio.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define PROCESSES_MAX 1024u /* of one GPU; more are an error */

#define NVML_SUCCESS       0
#define NVML_NOT_SUPPORTED 3

/* nvmlProcessInfo_t of the third version. */
struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

typedef int list_fn(void *device, unsigned *count, struct process_info *infos);

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, void **device);
    int (*mig_mode)(void *device, unsigned *current, unsigned *pending);
    /* Processes with contexts of their own, and those of the multi-process server. */
    list_fn *lists[2];
};

static bool find(struct nvml *nvml)
{
    *(void **)&nvml->init = dlsym(nvml->library, "nvmlInit_v2");
    *(void **)&nvml->shutdown = dlsym(nvml->library, "nvmlShutdown");
    *(void **)&nvml->by_uuid = dlsym(nvml->library, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml->mig_mode = dlsym(nvml->library, "nvmlDeviceGetMigMode");
    *(void **)&nvml->lists[0] = dlsym(nvml->library, "nvmlDeviceGetComputeRunningProcesses_v3");
    *(void **)&nvml->lists[1] = dlsym(nvml->library, "nvmlDeviceGetMPSComputeRunningProcesses_v3");
    return nvml->init != NULL && nvml->shutdown != NULL && nvml->by_uuid != NULL &&
           nvml->lists[0] != NULL;
}

kvc_status nvml_open(struct nvml **ret)
{
    struct nvml *nvml = mem_zalloc(sizeof(*nvml));

    if (nvml == NULL)
        return KVC_E_NO_MEMORY;
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL)
        goto free_nvml;
    if (!find(nvml) || nvml->init() != NVML_SUCCESS)
        goto close_library;
    *ret = nvml;
    return KVC_OK;

close_library:
    dlclose(nvml->library);
free_nvml:
    mem_free(nvml);
    return KVC_E_NO_DEVICE;
}

void nvml_close(struct nvml *nvml)
{
    if (nvml == NULL)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
    mem_free(nvml);
}

static void *device_of(const struct nvml *nvml, const uint8_t u[KVC_UUID_BYTES])
{
    char text[48];
    void *device = NULL;

    snprintf(text, sizeof(text),
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
             u[15]);
    return nvml->by_uuid(text, &device) == NVML_SUCCESS ? device : NULL;
}

/* Whether the pid is in one of the lists; an error of NVML. */
static int search(const struct nvml *nvml, int list, void *device, int32_t pid, bool *found)
{
    struct process_info infos[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    int error =
        nvml->lists[list] != NULL ? nvml->lists[list](device, &count, infos) : NVML_NOT_SUPPORTED;

    for (unsigned p = 0; error == NVML_SUCCESS && p < count; p++)
        *found = *found || infos[p].pid == (unsigned)pid;
    return error;
}

kvc_status nvml_lists_process(struct nvml *nvml, const uint8_t uuid[KVC_UUID_BYTES], int32_t pid,
                              bool *listed)
{
    void *device = device_of(nvml, uuid);
    bool found = false;

    if (device == NULL) {
        log_warn("device", "NVML knows no such GPU");
        return KVC_E_DEVICE;
    }
    for (int i = 0; i < 2; i++) {
        const int error = search(nvml, i, device, pid, &found);

        if (error == NVML_NOT_SUPPORTED && i > 0)
            continue;
        if (error != NVML_SUCCESS) {
            log_warn("device", "NVML lists no processes error=%d", error);
            return KVC_E_DEVICE;
        }
    }
    *listed = found;
    return KVC_OK;
}

bool nvml_is_divided(struct nvml *nvml, const uint8_t uuid[KVC_UUID_BYTES])
{
    void *device = device_of(nvml, uuid);
    unsigned current = 0, pending = 0;

    return device != NULL && nvml->mig_mode != NULL &&
           nvml->mig_mode(device, &current, &pending) == NVML_SUCCESS && current != 0;
}

bool nvml_is_under_mps(struct nvml *nvml, const uint8_t uuid[KVC_UUID_BYTES], int32_t pid)
{
    void *device = device_of(nvml, uuid);
    bool found = false;

    return device != NULL && search(nvml, 1, device, pid, &found) == NVML_SUCCESS && found;
}
