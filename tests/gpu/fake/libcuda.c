// A CUDA driver without a GPU, for the paths of daemon and library around the kernels: memory is
// memory files, a device address is an address, a stream is done at once, and a launch of this
// project's kernels does on the CPU what they would do. It is built as libcuda.so.1 and found with
// LD_LIBRARY_PATH or by having been loaded.
//
// In the folder $KVC_FAKE_CUDA each process with a context holds a lock on a file named by its pid,
// which lasts as long as a forked child of it lives: that is what fake/libnvidia-ml.c lists.
// $KVC_FAKE_CUDA_NAME is the GPU's name. A stream of the value 0xca is being captured.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/checksum.h"
#include "kernels/cuda_driver.h"
#include "kernels/pack_cuda_args.h"

#define INVALID       1
#define NO_CONTEXT    201
#define NOT_FOUND     500
#define EXPORT        __attribute__((visibility("default")))
#define HANDLES_MAX   4096
#define DEVICE_STREAM ((void *)0x10)

EXPORT int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
                               int *status);

// Memory that counts as the device's, so that its kind can be told.
static struct {
    pthread_mutex_t lock;
    struct {
        uint64_t at, bytes;
    } ranges[HANDLES_MAX];
    int retained;
    int lock_fd;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .lock_fd = -1};

static __thread int depth; // of the context stack

// Launches from now on never run.
EXPORT int kvc_fake_hold;
int kvc_fake_hold;

static void add_range(uint64_t at, uint64_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < HANDLES_MAX; i++)
        if (fake.ranges[i].bytes == 0) {
            fake.ranges[i].at = at;
            fake.ranges[i].bytes = bytes;
            break;
        }
    pthread_mutex_unlock(&fake.lock);
}

static uint64_t drop_range(uint64_t at)
{
    uint64_t bytes = 0;

    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < HANDLES_MAX; i++)
        if (fake.ranges[i].bytes != 0 && fake.ranges[i].at == at) {
            bytes = fake.ranges[i].bytes;
            fake.ranges[i].bytes = 0;
        }
    pthread_mutex_unlock(&fake.lock);
    return bytes;
}

static bool in_range(uint64_t at)
{
    bool found = false;

    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < HANDLES_MAX; i++)
        found = found || at - fake.ranges[i].at < fake.ranges[i].bytes;
    pthread_mutex_unlock(&fake.lock);
    return found;
}

#define NEED_CONTEXT                                                                               \
    if (depth == 0)                                                                                \
    return NO_CONTEXT

static int fake_init(unsigned flags)
{
    (void)flags;
    return 0;
}

static int fake_driver_version(int *version)
{
    *version = 12080;
    return 0;
}

static int fake_error_name(int error, const char **name)
{
    (void)error;
    *name = "CUDA_ERROR_OF_THE_FAKE";
    return 0;
}

static int fake_device_count(int *count)
{
    *count = 1;
    return 0;
}

static int fake_device_get(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? 0 : INVALID;
}

static int fake_device_name(char *name, int size, int device)
{
    const char *given = getenv("KVC_FAKE_CUDA_NAME");

    (void)device;
    snprintf(name, (size_t)size, "%s", given != NULL ? given : "no GPU at all");
    return 0;
}

static int fake_device_uuid(uint8_t *uuid, int device)
{
    (void)device;
    memset(uuid, 0x5a, 16);
    return 0;
}

static int fake_device_attribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 16 ? 4 : 1;
    return 0;
}

static int fake_context_retain(void **context, int device)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[256];

    (void)device;
    pthread_mutex_lock(&fake.lock);
    if (fake.retained++ == 0 && folder != NULL) {
        snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
        fake.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fake.lock_fd >= 0)
            (void)flock(fake.lock_fd, LOCK_EX);
    }
    pthread_mutex_unlock(&fake.lock);
    *context = &fake;
    return 0;
}

static int fake_context_release(int device)
{
    (void)device;
    pthread_mutex_lock(&fake.lock);
    if (--fake.retained == 0 && fake.lock_fd >= 0) {
        close(fake.lock_fd);
        fake.lock_fd = -1;
    }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int fake_context_flags(int device, unsigned flags)
{
    (void)device;
    (void)flags;
    return 0;
}

static int fake_context_push(void *context)
{
    depth++;
    return context == &fake ? 0 : INVALID;
}

static int fake_context_pop(void **context)
{
    NEED_CONTEXT;
    depth--;
    *context = &fake;
    return 0;
}

static int fake_context_current(void **context)
{
    *context = depth > 0 ? &fake : NULL;
    return 0;
}

static int fake_context_device(int *device)
{
    NEED_CONTEXT;
    *device = 0;
    return 0;
}

static int fake_memory_info(size_t *free, size_t *total)
{
    *free = *total = 1 << 30;
    return 0;
}

static int fake_memory_alloc(uint64_t *memory, size_t bytes)
{
    void *at;

    NEED_CONTEXT;
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_OUT_OF_MEMORY;
    *memory = (uintptr_t)at;
    add_range(*memory, bytes);
    return 0;
}

static int fake_memory_free(uint64_t memory)
{
    uint64_t bytes;

    NEED_CONTEXT;
    bytes = drop_range(memory);
    return bytes != 0 && munmap((void *)(uintptr_t)memory, bytes) == 0 ? 0 : INVALID;
}

static int fake_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    *memory = calloc(1, bytes);
    return *memory != NULL ? 0 : CUDA_OUT_OF_MEMORY;
}

static int fake_host_free(void *memory)
{
    NEED_CONTEXT;
    free(memory);
    return 0;
}

static int fake_host_register(void *memory, size_t bytes, unsigned flags)
{
    NEED_CONTEXT;
    return madvise(memory, bytes,
                   flags & CUDA_HOST_READONLY ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) == 0
               ? 0
               : INVALID;
}

static int fake_host_unregister(void *memory)
{
    (void)memory;
    NEED_CONTEXT;
    return 0;
}

static int fake_vmm_granularity(size_t *bytes, const struct cuda_allocation *allocation, int option)
{
    (void)allocation;
    (void)option;
    *bytes = 2 << 20;
    return 0;
}

static int fake_vmm_create(uint64_t *handle, size_t bytes, const struct cuda_allocation *allocation,
                           unsigned long long flags)
{
    int fd = memfd_create("fake-gpu", MFD_CLOEXEC);

    (void)flags;
    if (allocation->type != 1 || allocation->handle_types != CUDA_HANDLE_FD ||
        allocation->location.type != 1 || ftruncate(fd, (off_t)bytes) != 0)
        return INVALID;
    *handle = (uint64_t)fd;
    return 0;
}

static int fake_vmm_release(uint64_t handle)
{
    return close((int)handle) == 0 ? 0 : INVALID;
}

static int fake_vmm_reserve(void **address, size_t bytes, size_t alignment, uint64_t hint,
                            unsigned long long flags)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)alignment;
    (void)hint;
    (void)flags;
    if (at == MAP_FAILED)
        return CUDA_OUT_OF_MEMORY;
    *address = at;
    add_range((uintptr_t)at, bytes);
    return 0;
}

static int fake_vmm_unreserve(uint64_t address, size_t bytes)
{
    return drop_range(address) == bytes && munmap((void *)(uintptr_t)address, bytes) == 0 ? 0
                                                                                          : INVALID;
}

static int fake_vmm_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
                        unsigned long long flags)
{
    (void)flags;
    return mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle,
                (off_t)offset) != MAP_FAILED
               ? 0
               : INVALID;
}

static int fake_vmm_unmap(uint64_t address, size_t bytes)
{
    return mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED
               ? 0
               : INVALID;
}

static int fake_vmm_access(uint64_t address, size_t bytes, const struct cuda_access *access,
                           size_t count)
{
    if (count != 1 || access->location.type != 1)
        return INVALID;
    return mprotect((void *)(uintptr_t)address, bytes,
                    access->flags == CUDA_ACCESS_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ) ==
                   0
               ? 0
               : INVALID;
}

static int fake_vmm_export(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
    (void)flags;
    *(int *)shareable = fcntl((int)handle, F_DUPFD, 3);
    return type == CUDA_HANDLE_FD ? 0 : INVALID;
}

static int fake_vmm_import(uint64_t *handle, intptr_t shareable, int type)
{
    int fd = fcntl((int)shareable, F_DUPFD_CLOEXEC, 3);

    if (type != CUDA_HANDLE_FD || fd < 0)
        return INVALID;
    *handle = (uint64_t)fd;
    return 0;
}

static int fake_pointer_attribute(void *value, int attribute, uint64_t pointer)
{
    NEED_CONTEXT;
    if (!in_range(pointer))
        return INVALID;
    *(int *)value = attribute == CUDA_POINTER_MEMORY_TYPE ? (int)CUDA_MEMORY_DEVICE : 0;
    return 0;
}

static int fake_stream_create(void **stream, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    *stream = DEVICE_STREAM;
    return 0;
}

static int fake_stream_destroy(void *stream)
{
    (void)stream;
    NEED_CONTEXT;
    return 0;
}

static int fake_stream_synchronize(void *stream)
{
    (void)stream;
    NEED_CONTEXT;
    return 0;
}

static int fake_stream_capturing(void *stream, int *status)
{
    NEED_CONTEXT;
    *status = stream == (void *)0xca;
    return 0;
}

static int fake_stream_wait(void *stream, void *event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    NEED_CONTEXT;
    return 0;
}

static int fake_event_create(void **event, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    *event = malloc(1);
    return 0;
}

static int fake_event_destroy(void *event)
{
    NEED_CONTEXT;
    free(event);
    return 0;
}

static int fake_event_record(void *event, void *stream)
{
    (void)event;
    (void)stream;
    NEED_CONTEXT;
    return 0;
}

static int fake_event_query(void *event)
{
    (void)event;
    NEED_CONTEXT;
    return 0;
}

static int fake_event_synchronize(void *event)
{
    return fake_event_query(event);
}

static int fake_copy_async(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    (void)stream;
    NEED_CONTEXT;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

static int fake_to_device_async(uint64_t to, const void *from, size_t bytes, void *stream)
{
    return fake_copy_async(to, (uintptr_t)from, bytes, stream);
}

static int fake_set_async(uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    (void)stream;
    NEED_CONTEXT;
    memset((void *)(uintptr_t)to, value, bytes);
    return 0;
}

static int fake_module_load(void **module, const void *image)
{
    NEED_CONTEXT;
    *module = (void *)image;
    return 0;
}

static int fake_module_unload(void *module)
{
    (void)module;
    NEED_CONTEXT;
    return 0;
}

static int fake_module_function(void **function, void *module, const char *name)
{
    static const char *const names[] = {"pack_gather", "pack_scatter", "pack_gather_summed",
                                        "pack_scatter_summed"};

    (void)module;
    for (size_t i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) {
            *function = (void *)(i + 1);
            return 0;
        }
    return NOT_FOUND;
}

static int fake_occupancy(int *thread_blocks, void *function, int threads, size_t shared_bytes)
{
    (void)function;
    (void)threads;
    (void)shared_bytes;
    *thread_blocks = 8;
    return 0;
}

static uint64_t copy_slice(uint8_t *to, const uint8_t *from, const struct pack_cuda_row *row)
{
    uint64_t sum = 0;

    memcpy(to, from, row->bytes);
    for (uint32_t at = 0; at < row->bytes; at += CHECKSUM_UNIT) {
        uint64_t half[2] = {0, 0};

        memcpy(half, from + at, row->bytes - at < 16 ? row->bytes - at : 16);
        sum += checksum_share(row->key + at / CHECKSUM_UNIT * CHECKSUM_STEP, half[0], half[1]);
    }
    return sum;
}

static int fake_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       void *stream, void **parameters, void **extra)
{
    const struct pack_cuda_args *args = parameters[0];
    const struct pack_cuda_row *rows = (const void *)(uintptr_t)args->rows;
    const bool gather = (uintptr_t)function % 2 == 1, summed = (uintptr_t)function > 2;

    (void)grid_y;
    (void)grid_z;
    (void)block_x;
    (void)block_y;
    (void)block_z;
    (void)shared_bytes;
    (void)stream;
    (void)extra;
    NEED_CONTEXT;
    if (grid_x == 0)
        return INVALID;
    if (kvc_fake_hold)
        return 0;
    for (uint32_t b = 0; b < args->n_blocks; b++) {
        uint64_t sum = 0;

        for (uint32_t s = args->first_slice; s < args->first_slice + args->n_slices; s++) {
            uint8_t *paged = (uint8_t *)(uintptr_t)(rows[s].base + args->ids[b] * rows[s].stride);
            uint8_t *packed = (uint8_t *)(uintptr_t)(args->slots[b] + rows[s].offset);

            sum +=
                gather ? copy_slice(packed, paged, &rows[s]) : copy_slice(paged, packed, &rows[s]);
        }
        if (summed)
            ((uint64_t *)(uintptr_t)args->cells)[b] = sum;
    }
    if (args->word != 0)
        __atomic_store_n((uint64_t *)(uintptr_t)args->word, args->word_value, __ATOMIC_RELEASE);
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
                        int *status)
{
    static const struct {
        const char *symbol;
        int version;
        void *at;
    } calls[] = {
#define FAKE_ROW(name, symbol, version, arguments) {symbol, version, (void *)fake_##name},
        CUDA_CALLS(FAKE_ROW)
#undef FAKE_ROW
    };

    (void)flags;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].symbol, symbol) == 0 && calls[i].version == version) {
            *address = calls[i].at;
            *status = 0;
            return 0;
        }
    *status = 1;
    return NOT_FOUND;
}
