// Loaded before a daemon (LD_PRELOAD), this breaks one of its contexts as a kernel that writes
// where nothing is does: when there is a file $KVC_TRAP, which names the GPU by its ordinal, such a
// kernel is launched in that GPU's primary context, and the file goes. Every later call of the
// daemon in that context fails then, which no call of the driver does on demand.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda_driver.h"

static const char code[] = ".version 7.0\n"
                           ".target sm_80\n"
                           ".address_size 64\n"
                           ".visible .entry trap_nowhere()\n"
                           "{\n"
                           "  .reg .u64 %rd<2>;\n"
                           "  mov.u64 %rd1, 4096;\n"
                           "  st.global.u32 [%rd1], 1;\n"
                           "  ret;\n"
                           "}\n";

static char path[512];

static int launch(const struct cuda_driver *driver, int ordinal)
{
    void *context, *module, *function, *stream = NULL;
    int error = driver->context_retain(&context, ordinal);

    if (error == 0)
        error = driver->context_push(context);
    if (error == 0)
        error = driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING);
    if (error == 0)
        error = driver->module_load(&module, code);
    if (error == 0)
        error = driver->module_function(&function, module, "trap_nowhere");
    if (error == 0)
        error = driver->launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    return error == 0 ? driver->stream_synchronize(stream) : error;
}

static void *wait_and_launch(void *arg)
{
    struct cuda_driver driver;
    char why[CUDA_WHY_MAX];
    int ordinal, n;
    FILE *file;

    (void)arg;
    while ((file = fopen(path, "re")) == NULL)
        usleep(5000);
    n = fscanf(file, "%d", &ordinal);
    fclose(file);
    if (n != 1 || cuda_driver_open(&driver, why) != KVC_OK)
        return NULL;
    fprintf(stderr, "trap: %s\n", cuda_error_name(&driver, launch(&driver, ordinal)));
    unlink(path);
    return NULL;
}

__attribute__((constructor)) static void begin(void)
{
    const char *where = getenv("KVC_TRAP");
    sigset_t all, before;
    pthread_t thread;

    if (where == NULL || strlen(where) >= sizeof(path))
        return;
    strcpy(path, where);
    unsetenv("KVC_TRAP");
    unsetenv("LD_PRELOAD");
    sigfillset(&all); // they are the daemon's
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&thread, NULL, wait_and_launch, NULL) == 0)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
