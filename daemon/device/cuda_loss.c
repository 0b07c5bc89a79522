/*
 * GPUs that are lost. Some errors of CUDA stay: after a kernel's illegal address, an uncorrectable
 * error of memory, or when the GPU is gone, every call in the context fails with the same, and what
 * was under way there has ended, or never will begin. Only another process can use that GPU again.
 */
#include "daemon/base/log.h"
#include "daemon/device/cuda.h"

/*
 * What works in any context that works at all. An error code alone proves nothing: some are also
 * what a call says of arguments that a worker has made up.
 */
static int probe(struct device_cuda *cuda, uint32_t gpu)
{
    const struct cuda_driver *driver = &cuda->driver;
    void *stream = NULL;
    int error = driver->context_push(cuda->gpus[gpu].context);

    if (error != 0)
        return error;
    error = driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING);
    if (error == 0) {
        error = driver->stream_synchronize(stream);
        (void)driver->stream_destroy(stream);
    }
    device_cuda_leave(cuda);
    return error;
}

bool cuda_suspect(struct device_cuda *cuda, uint32_t gpu, int error)
{
    struct cuda_gpu *g = &cuda->gpus[gpu];
    int found;

    if (atomic_load(&g->lost))
        return true;
    if (cuda_is_about_call(error))
        return false;
    found = probe(cuda, gpu);
    if (cuda_is_about_call(found))
        return false;
    if (atomic_exchange(&g->lost, true))
        return true;
    log_error("device",
              "a GPU has failed, it is out of use until the daemon starts again gpu=%u name=\"%s\" "
              "error=%s",
              gpu, g->name, cuda_error_name(&cuda->driver, error));
    pthread_mutex_lock(&cuda->watch);
    if (cuda->lost != NULL)
        cuda->lost(cuda->lost_arg);
    pthread_mutex_unlock(&cuda->watch);
    return true;
}

bool cuda_is_lost(void *state, uint32_t gpu)
{
    struct device_cuda *cuda = state;

    return atomic_load(&cuda->gpus[gpu].lost);
}

void cuda_watch(void *state, device_lost_cb *lost, void *arg)
{
    struct device_cuda *cuda = state;

    pthread_mutex_lock(&cuda->watch);
    cuda->lost = lost;
    cuda->lost_arg = arg;
    pthread_mutex_unlock(&cuda->watch);
}
