// A CUDA driver without a GPU, for the paths of daemon and library around the kernels: memory is
// memory files, a device address is an address, a stream is done at once, and a launch of this
// project's kernels does on the CPU what they would do. It is built as libcuda.so.1 and found with
// LD_LIBRARY_PATH or by having been loaded.
//
// In the folder $KVC_FAKE_CUDA each process with a context holds a lock on a file named by its pid,
// which lasts as long as a forked child of it lives: that is what fake/libnvidia-ml.c lists.
// Files in that folder are switches (fake_switch). One named "break-" and a call's name in
// kernels/cuda_driver.h makes that call fail once, in one process: its text are that pid, how many
// such calls pass before, the error, and whether it stays, for all calls in that context, or, as on
// an H200, in all of the process after an illegal address. The file goes when it has done so. "any"
// stands for each call's name, pid 0 for any process.
// $KVC_FAKE_CUDA_NAME is the GPUs' name, $KVC_FAKE_CUDA_GPUS how many there are, of which
// CUDA_VISIBLE_DEVICES hides and reorders some. A stream of the value 0xca is being captured; while
// kvc_fake_capturing is set, another one is, of which a thread has to be careful as long as it has
// not said that it knows (fake_capture_mode); with 2 that does not help.
// $KVC_FAKE_CUDA_DRIVER is the driver's version (12080), $KVC_FAKE_CUDA_REGISTER_MAX the most bytes
// of host memory that are registered at once, $KVC_FAKE_CUDA_SHIFTED makes registered host memory
// have another address on the device, $KVC_FAKE_CUDA_KERNELS is the architecture that kernels were
// compiled for (90), and less does not wait for the launch before.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "kernels/checksum.h"
#include "kernels/pack_cuda_args.h"
#include "tests/gpu/fake/fake.h"

#define DEPTH_MAX 16

EXPORT int cuGetProcAddress_v2(const char *symbol, void **address, int version, uint64_t flags,
                               int *status);

static struct {
    pthread_mutex_t lock;
    int retained;
    int lock_fd;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .lock_fd = -1};

static char contexts[FAKE_GPUS_MAX]; // their addresses are the contexts

static __thread int stack[DEPTH_MAX]; // GPUs of the contexts of this thread
static __thread int depth;

EXPORT int kvc_fake_hold;
int kvc_fake_hold;

int fake_gpu(void)
{
    return depth > 0 ? stack[depth - 1] : -1;
}

int fake_gpu_at(int ordinal)
{
    const char *all = getenv("KVC_FAKE_CUDA_GPUS"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = all != NULL ? atoi(all) : 1;

    if (ordinal < 0 || ordinal >= FAKE_GPUS_MAX)
        return -1;
    if (visible == NULL)
        return ordinal < count ? ordinal : -1;
    for (; *visible != '\0'; visible = strchr(visible, ',') + 1) {
        if (ordinal-- == 0)
            return atoi(visible) < count ? atoi(visible) : -1;
        if (strchr(visible, ',') == NULL)
            break;
    }
    return -1;
}

int fake_ordinal_of(int gpu)
{
    for (int i = 0; i < FAKE_GPUS_MAX; i++)
        if (fake_gpu_at(i) == gpu)
            return i;
    return -1;
}

static pid_t user; // who started the driver: a forked child of it cannot use it

bool fake_is_inherited(void)
{
    return user != 0 && user != getpid();
}

int fake_init(unsigned flags)
{
    (void)flags;
    if (user == 0)
        user = getpid();
    if (fake_is_inherited())
        return CUDA_NOT_INITIALIZED;
    return fake_gpu_at(0) >= 0 ? 0 : CUDA_NO_DEVICE;
}

static int version_of_driver(void)
{
    const char *version = getenv("KVC_FAKE_CUDA_DRIVER");

    return version != NULL ? atoi(version) : 12080;
}

int fake_driver_version(int *version)
{
    *version = version_of_driver();
    return 0;
}

int fake_error_name(int error, const char **name)
{
    (void)error;
    *name = "CUDA_ERROR_OF_THE_FAKE";
    return 0;
}

int fake_device_count(int *count)
{
    for (*count = 0; fake_gpu_at(*count) >= 0;)
        ++*count;
    return 0;
}

int fake_device_get(int *device, int ordinal)
{
    MAY_FAIL;
    *device = ordinal;
    return fake_gpu_at(ordinal) >= 0 ? 0 : INVALID;
}

int fake_device_name(char *name, int size, int device)
{
    const char *given = getenv("KVC_FAKE_CUDA_NAME");

    (void)device;
    MAY_FAIL;
    snprintf(name, (size_t)size, "%s", given != NULL ? given : "no GPU at all");
    return 0;
}

int fake_device_uuid(uint8_t *uuid, int device)
{
    MAY_FAIL;
    memset(uuid, 0x5a, 16);
    uuid[15] = (uint8_t)(0x5a + fake_gpu_at(device));
    return 0;
}

int fake_device_attribute(int *value, int attribute, int device)
{
    (void)device;
    MAY_FAIL;
    *value = attribute == 16 ? 4 : 1;
    if (attribute == CUDA_HAS_HOST_POINTERS && getenv("KVC_FAKE_CUDA_SHIFTED") != NULL)
        *value = 0;
    if (attribute == CUDA_HAS_FD_EXPORT && getenv("KVC_FAKE_CUDA_LEGACY") != NULL)
        *value = 0;
    return 0;
}

int fake_context_retain(void **context, int device)
{
    const char *folder = getenv("KVC_FAKE_CUDA");
    char path[256];

    MAY_FAIL;
    if (fake_gpu_at(device) < 0)
        return INVALID;
    fake_alive(1);
    pthread_mutex_lock(&fake.lock);
    if (fake.retained++ == 0 && folder != NULL) {
        snprintf(path, sizeof(path), "%s/%d", folder, (int)getpid());
        fake.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fake.lock_fd >= 0)
            (void)flock(fake.lock_fd, LOCK_EX | LOCK_NB); // one pid in two namespaces
    }
    pthread_mutex_unlock(&fake.lock);
    *context = &contexts[fake_gpu_at(device)];
    return 0;
}

int fake_context_release(int device)
{
    (void)device;
    fake_alive(-1);
    pthread_mutex_lock(&fake.lock);
    if (--fake.retained == 0 && fake.lock_fd >= 0) {
        close(fake.lock_fd);
        fake.lock_fd = -1;
    }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

int fake_context_flags(int device, unsigned flags)
{
    (void)device;
    (void)flags;
    return 0;
}

int fake_context_push(void *context)
{
    const long gpu = (char *)context - contexts;

    MAY_FAIL;
    if (gpu < 0 || gpu >= FAKE_GPUS_MAX || depth == DEPTH_MAX)
        return INVALID;
    stack[depth++] = (int)gpu;
    return 0;
}

int fake_context_pop(void **context)
{
    if (fake_gpu() < 0)
        return CUDA_NO_CONTEXT;
    *context = &contexts[stack[--depth]];
    return 0;
}

int fake_context_current(void **context)
{
    *context = depth > 0 ? &contexts[fake_gpu()] : NULL;
    return 0;
}

int fake_context_device(int *device)
{
    NEED_CONTEXT;
    *device = fake_ordinal_of(fake_gpu());
    return 0;
}

int fake_peer_can(int *can, int device, int peer)
{
    *can = device != peer;
    return 0;
}

int fake_peer_enable(void *context, unsigned flags)
{
    (void)context;
    NEED_CONTEXT;
    return flags == 0 ? 0 : INVALID;
}

static __thread const void *launched; // where the last thing that this thread enqueued is a launch

// One at a time: another, or anything else on a stream, makes it first.
static __thread struct {
    uint64_t to;
    const void *from;
    size_t bytes;
} late;

void fake_catch_up(void)
{
    launched = NULL;
    if (late.bytes > 0)
        memcpy((void *)(uintptr_t)late.to, late.from, late.bytes);
    late.bytes = 0;
}

int fake_copy_async(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

int fake_to_device_async(uint64_t to, const void *from, size_t bytes, void *stream)
{
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    late.to = to;
    late.from = from;
    late.bytes = bytes;
    if (getenv("KVC_FAKE_CUDA_LATE") == NULL)
        fake_catch_up();
    return 0;
}

int fake_set_async(uint64_t to, unsigned char value, size_t bytes, void *stream)
{
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    memset((void *)(uintptr_t)to, value, bytes);
    fake_share_anew(to, bytes);
    return 0;
}

int fake_module_load(void **module, const void *image)
{
    NEED_CONTEXT;
    fake_alive(1);
    *module = (void *)image;
    return 0;
}

int fake_module_unload(void *module)
{
    (void)module;
    NEED_CONTEXT;
    fake_alive(-1);
    return 0;
}

// Kernels with a full list; behind them those with a short one, in the same order.
#define FULL_KERNELS 8

int fake_module_function(void **function, void *module, const char *name)
{
    static const char *const names[] = {"pack_gather",
                                        "pack_scatter",
                                        "pack_gather_summed",
                                        "pack_scatter_summed",
                                        "pack_gather_small",
                                        "pack_scatter_small",
                                        "pack_gather_small_summed",
                                        "pack_scatter_small_summed"};

    (void)module;
    NEED_CONTEXT;
    for (size_t i = 0; i < FULL_KERNELS; i++) {
        const size_t n = strlen(names[i]);

        if (strncmp(name, names[i], n) != 0 || (name[n] != 0 && strcmp(name + n, "_short") != 0))
            continue;
        *function = (void *)(i + 1 + (name[n] != 0 ? FULL_KERNELS : 0));
        return 0;
    }
    return NOT_FOUND;
}

static int architecture_of_kernels(void)
{
    const char *architecture = getenv("KVC_FAKE_CUDA_KERNELS");

    return architecture != NULL ? atoi(architecture) : 90;
}

int fake_function_attribute(int *value, int attribute, void *function)
{
    (void)function;
    NEED_CONTEXT;
    *value = architecture_of_kernels();
    return attribute == 5 ? 0 : INVALID;
}

int fake_occupancy(int *thread_blocks, void *function, int threads, size_t shared_bytes)
{
    (void)function;
    (void)threads;
    (void)shared_bytes;
    NEED_CONTEXT;
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

__thread bool fake_more;

int fake_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
                void **parameters, void **extra)
{
    struct pack_cuda_args copy, *args = &copy;
    const struct pack_cuda_row *rows;
    const bool is_short = (uintptr_t)function > FULL_KERNELS;
    const bool gather = (uintptr_t)function % 2 == 1;
    const bool summed = ((uintptr_t)function - 1) / 2 % 2 == 1;
    const bool behind = launched == stream;
    const struct pack_cuda_span_args *spans = pack_cuda_spans(args);
    uint64_t sums[PACK_CUDA_BLOCKS];

    memset(args, 0xa5, sizeof(*args));
    memcpy(args, parameters[0], is_short ? sizeof(struct pack_cuda_short_args) : sizeof(*args));
    rows = (const void *)(uintptr_t)args->rows;
    (void)grid_y;
    (void)grid_z;
    (void)block_x;
    (void)block_y;
    (void)block_z;
    (void)shared_bytes;
    (void)extra;
    fake_more = false;
    NEED_CONTEXT;
    OWN_STREAM(stream);
    fake_catch_up();
    if (grid_x == 0 || (args->follows != 0 && !behind) ||
        (args->scratch != 0 && !fake_share(args->scratch, stream)))
        return INVALID;
    launched = stream;
    fake_more = args->more != 0;
    if (kvc_fake_hold)
        return 0;
    if (fake_switch("slow-launch"))
        usleep(2000);
    if (fake_switch("fail-launch"))
        return 719; // CUDA_ERROR_LAUNCH_FAILED
    for (uint32_t b = 0; b < args->n_blocks; b++) {
        uint64_t sum = 0;

        for (uint32_t s = args->first_slice; s < args->first_slice + args->n_slices; s++) {
            uint8_t *paged =
                (uint8_t *)(uintptr_t)(rows[s].base + pack_cuda_ids(args)[b] * rows[s].stride);
            uint8_t *packed =
                (uint8_t *)(uintptr_t)(pack_cuda_slots(args)[b] + rows[s].offset * 16ull);

            sum +=
                gather ? copy_slice(packed, paged, &rows[s]) : copy_slice(paged, packed, &rows[s]);
        }
        sums[b] = sum;
    }
    for (uint32_t i = 0; i < args->n_spans; i++) {
        const struct pack_cuda_span_args *span = &spans[i];

        if (summed && span->n_blocks > 0)
            memcpy((void *)(uintptr_t)span->cells, sums + span->first_block,
                   span->n_blocks * sizeof(sums[0]));
        if (span->word != 0)
            __atomic_store_n((uint64_t *)(uintptr_t)span->word, span->word_value, __ATOMIC_RELEASE);
    }
    return 0;
}

int fake_launch_with(const struct pack_cuda_config *config, void *function, void **parameters,
                     void **extra)
{
    const struct pack_cuda_args *args = parameters[0];

    if (config->n_attributes != 1 || config->attributes->id != 6 ||
        config->block_x != PACK_CUDA_THREADS || args->follows == 0 ||
        architecture_of_kernels() < 90)
        return INVALID;
    return fake_launch(function, config->grid_x, config->grid_y, config->grid_z, config->block_x,
                       config->block_y, config->block_z, config->shared_bytes, config->stream,
                       parameters, extra);
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
    // A newer driver has other arguments under a newer version, an older one knows no such version.
    if (version > version_of_driver() || version >= 13000) {
        *status = 2;
        return NOT_FOUND;
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (strcmp(calls[i].symbol, symbol) == 0 && calls[i].version == version) {
            *address = calls[i].at;
            *status = 0;
            return 0;
        }
    *status = 1;
    return NOT_FOUND;
}
