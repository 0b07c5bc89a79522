// How the driver without a GPU fails on demand, and what it notes. libcuda.c says what the switches
// are.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/fake/fake.h"

void fake_note(const char *name)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[512];
    int fd;

    if (folder == NULL)
        return;
    snprintf(path, sizeof(path), "%s/%s-%d", folder, name, (int)getpid());
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0)
        close(fd);
}

bool fake_switch(const char *name)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", folder != NULL ? folder : "", name);
    return folder != NULL && access(path, F_OK) == 0;
}

void fake_hang(const char *name)
{
    while (fake_switch(name))
        usleep(1000);
}

static int broken[FAKE_GPUS_MAX]; // the error that stays

EXPORT int kvc_fake_capturing;
int kvc_fake_capturing;
static __thread int capture_mode;

int fake_capture_mode(int *mode)
{
    const int before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return 0;
}

// What the driver takes for unsafe while a stream is captured, whatever that stream is.
static bool ends_a_capture(const char *name)
{
    static const char *const unsafe[] = {
        "memory_alloc", "memory_free",     "host_alloc",         "host_free",   "host_register",
        "event_query",  "host_unregister", "stream_synchronize", "module_load", "event_synchronize",
        "vmm_map",      "vmm_unmap",       "to_device_async",
    };

    for (size_t i = 0; i < sizeof(unsafe) / sizeof(unsafe[0]); i++)
        if (strcmp(name, unsafe[i]) == 0)
            return kvc_fake_capturing > 1 ||
                   (kvc_fake_capturing && capture_mode != CUDA_CAPTURE_RELAXED);
    return false;
}

// What the file of that name makes of a call.
static int break_by(const char *name)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    int pid = 0, skip = 0, error = 0, stays = 0, gpu = fake_gpu();
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/break-%s", folder != NULL ? folder : "", name);
    file = folder != NULL ? fopen(path, "r+e") : NULL;
    if (file == NULL)
        return 0;
    if (fscanf(file, "%d %d %d %d", &pid, &skip, &error, &stays) != 4 ||
        (pid != getpid() && pid != 0)) {
        fclose(file);
        return 0;
    }
    if (skip > 0) {
        rewind(file);
        fprintf(file, "%d %d %d %d ", pid, skip - 1, error, stays);
        fclose(file);
        return 0;
    }
    fclose(file);
    for (int i = 0; i < FAKE_GPUS_MAX && stays; i++)
        if (i == (gpu >= 0 ? gpu : 0) || error == CUDA_ILLEGAL_ADDRESS)
            broken[i] = error;
    return unlink(path) == 0 ? error : 0;
}

int fake_fails(const char *function)
{
    const char *name = function + strlen("fake_");
    const int gpu = fake_gpu();
    int error;

    if (gpu >= 0 && broken[gpu] != 0)
        return broken[gpu];
    if (ends_a_capture(name)) {
        fake_note("capture-broken");
        return 900; // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    }
    error = break_by(name);
    return error != 0 ? error : break_by("any");
}
