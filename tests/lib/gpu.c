#include "tests/lib/gpu.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda_driver.h"

static struct cuda_driver driver;
static __thread bool entered;

bool gpu_is_used(void)
{
    const char *device = getenv("KVC_TEST_DEVICE");

    return device != NULL && strcmp(device, "cuda") == 0;
}

static void succeed(int error, const char *what)
{
    ck_assert_msg(error == 0, "%s: %s", what, cuda_error_name(&driver, error));
}

// Starts the driver; its first GPU's context is the calling thread's.
static void gpu_enter(void)
{
    char why[CUDA_WHY_MAX] = "";
    void *context = NULL;

    if (driver.library == NULL)
        ck_assert_msg(cuda_driver_open(&driver, why) == KVC_OK, "%s", why);
    if (entered)
        return;
    succeed(driver.context_retain(&context, 0), "no context");
    succeed(driver.context_push(context), "no context");
    entered = true;
}

uint8_t *gpu_alloc(size_t bytes)
{
    uint64_t memory = 0;

    gpu_enter();
    succeed(driver.memory_alloc(&memory, bytes), "no memory of the GPU");
    return (uint8_t *)(uintptr_t)memory;
}

void gpu_free(uint8_t *memory)
{
    succeed(driver.memory_free((uintptr_t)memory), "cannot free");
}

static void copy(uintptr_t to, uintptr_t from, size_t bytes)
{
    gpu_enter();
    succeed(driver.copy_async(to, from, bytes, NULL), "cannot copy");
    succeed(driver.stream_synchronize(NULL), "cannot copy");
}

void gpu_write(uint8_t *to, const void *from, size_t bytes)
{
    copy((uintptr_t)to, (uintptr_t)from, bytes);
}

void gpu_read(void *to, const uint8_t *from, size_t bytes)
{
    copy((uintptr_t)to, (uintptr_t)from, bytes);
}
