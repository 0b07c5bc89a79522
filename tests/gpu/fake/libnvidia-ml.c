// NVML for the fake CUDA driver beside this: lists the processes that hold a lock on their file in
// the folder $KVC_FAKE_CUDA. With a file "divided" there its GPUs are divided (MIG).
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                   struct process_info *infos);
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count,
                                                      struct process_info *infos);
EXPORT int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = (void *)1;
    return strncmp(uuid, "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a", 38) == 0 ? 0 : 6;
}

static int is_on(const char *name)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", folder != NULL ? folder : "", name);
    return folder != NULL && access(path, F_OK) == 0;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    (void)device;
    *current = *pending = (unsigned)is_on("divided");
    return 0;
}

static int is_locked(const char *folder, const char *name)
{
    char path[512];
    int fd, locked;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 0;
    locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return locked;
}

static int list(unsigned *count, struct process_info *infos)
{
    const char *path = getenv("KVC_FAKE_CUDA");
    DIR *folder = path != NULL ? opendir(path) : NULL;
    unsigned n = 0;

    for (struct dirent *e = folder ? readdir(folder) : NULL; e != NULL; e = readdir(folder))
        if (atoi(e->d_name) > 0 && n < *count && is_locked(path, e->d_name))
            infos[n++] = (struct process_info){.pid = (unsigned)atoi(e->d_name)};
    if (folder != NULL)
        closedir(folder);
    *count = n;
    return 0;
}

// With "mps" all are in the other list.
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                            struct process_info *infos)
{
    (void)device;
    if (!is_on("mps"))
        return list(count, infos);
    *count = 0;
    return 0;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count,
                                               struct process_info *infos)
{
    (void)device;
    if (is_on("mps"))
        return list(count, infos);
    *count = 0;
    return 0;
}
