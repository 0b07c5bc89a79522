// Memory of the driver without a GPU: memory files, each mapped where a device address is.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/fake/fake.h"

#define RANGES_MAX 8192

static struct {
    pthread_mutex_t lock;
    struct fake_range ranges[RANGES_MAX]; // of 0 bytes: free
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool fake_add(const struct fake_range *range)
{
    bool added = false;

    pthread_mutex_lock(&memory.lock);
    for (int i = 0; i < RANGES_MAX && !added; i++) {
        added = memory.ranges[i].bytes == 0;
        if (added)
            memory.ranges[i] = *range;
    }
    pthread_mutex_unlock(&memory.lock);
    return added;
}

bool fake_drop(uint64_t at, enum fake_kind kind, struct fake_range *range)
{
    bool found = false;

    pthread_mutex_lock(&memory.lock);
    for (int i = 0; i < RANGES_MAX && !found; i++) {
        struct fake_range *r = &memory.ranges[i];

        found = r->bytes != 0 && r->at == at && r->kind == kind;
        if (found) {
            *range = *r;
            r->bytes = 0;
        }
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

bool fake_find(uint64_t address, unsigned kinds, struct fake_range *range)
{
    bool found = false;

    pthread_mutex_lock(&memory.lock);
    for (int i = 0; i < RANGES_MAX && !found; i++) {
        const struct fake_range *r = &memory.ranges[i];

        found = (kinds >> r->kind & 1) && address - r->at < r->bytes;
        if (found)
            *range = *r;
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

static atomic_int alive;

void fake_alive(int change)
{
    atomic_fetch_add(&alive, change);
}

EXPORT int kvc_fake_alive(void);

// What of this process there is: memory and addresses, and all else that is made and given back.
int kvc_fake_alive(void)
{
    int n = atomic_load(&alive);

    pthread_mutex_lock(&memory.lock);
    for (int i = 0; i < RANGES_MAX; i++)
        n += memory.ranges[i].bytes != 0;
    pthread_mutex_unlock(&memory.lock);
    return n;
}

uint32_t fake_count_open(uint64_t owner, uint64_t *at, int change)
{
    uint32_t opens = 0;

    pthread_mutex_lock(&memory.lock);
    for (int i = 0; i < RANGES_MAX; i++) {
        struct fake_range *r = &memory.ranges[i];

        if (r->bytes == 0 || r->kind != FAKE_OPENED || (owner ? r->owner != owner : r->at != *at))
            continue;
        *at = r->at;
        r->opens += (uint32_t)change;
        opens = r->opens + (change < 0); // one that was counted down to 0 is there still
    }
    pthread_mutex_unlock(&memory.lock);
    return opens;
}

int fake_memory_info(size_t *free, size_t *total)
{
    *free = *total = 1 << 30;
    return 0;
}

int fake_memory_alloc(uint64_t *address, size_t bytes)
{
    const size_t whole = (bytes + 4095) / 4096 * 4096;
    int fd;
    void *at;

    NEED_CONTEXT;
    fd = memfd_create("fake-legacy", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)whole) != 0)
        return CUDA_OUT_OF_MEMORY;
    at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return CUDA_OUT_OF_MEMORY;
    *address = (uintptr_t)at;
    return fake_add(&(struct fake_range){*address, whole, FAKE_ALLOCATED, fake_gpu(), fd, 0, 0})
               ? 0
               : CUDA_OUT_OF_MEMORY;
}

int fake_memory_free(uint64_t address)
{
    struct fake_range range;

    NEED_CONTEXT;
    if (!fake_drop(address, FAKE_ALLOCATED, &range)) {
        fake_note("bad-free");
        return INVALID;
    }
    close(range.fd);
    return munmap((void *)(uintptr_t)address, range.bytes) == 0 ? 0 : INVALID;
}

int fake_memory_range(uint64_t *base, size_t *bytes, uint64_t address)
{
    struct fake_range range;

    NEED_CONTEXT;
    if (!fake_find(address, 1u << FAKE_ALLOCATED | 1u << FAKE_MAPPED | 1u << FAKE_OPENED, &range))
        return INVALID;
    *base = range.at;
    *bytes = range.bytes;
    return 0;
}

int fake_host_alloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    NEED_CONTEXT;
    *address = calloc(1, bytes);
    if (*address == NULL)
        return CUDA_OUT_OF_MEMORY;
    return fake_add(
               &(struct fake_range){(uintptr_t)*address, bytes, FAKE_PINNED, fake_gpu(), -1, 0, 0})
               ? 0
               : CUDA_OUT_OF_MEMORY;
}

int fake_host_free(void *address)
{
    struct fake_range range;

    NEED_CONTEXT;
    if (!fake_drop((uintptr_t)address, FAKE_PINNED, &range)) {
        fake_note("bad-free");
        return INVALID;
    }
    free(address);
    return 0;
}

int fake_host_register(void *address, size_t bytes, unsigned flags)
{
    const char *most = getenv("KVC_FAKE_CUDA_REGISTER_MAX");

    NEED_CONTEXT;
    if (most != NULL && bytes > strtoull(most, NULL, 10))
        return INVALID;
    if (madvise(address, bytes,
                flags & CUDA_HOST_READONLY ? MADV_POPULATE_READ : MADV_POPULATE_WRITE) != 0)
        return INVALID;
    fake_alive(1);
    return 0;
}

int fake_host_unregister(void *address)
{
    (void)address;
    NEED_CONTEXT;
    fake_alive(-1);
    return 0;
}

int fake_vmm_granularity(size_t *bytes, const struct cuda_allocation *allocation, int option)
{
    (void)allocation;
    (void)option;
    MAY_FAIL;
    *bytes = 2 << 20;
    return 0;
}

// A handle is a descriptor of the memory, and in its upper half the GPU that it lies on. The memory
// file's name tells that GPU, and whether it may be exported.
#define NAME_SHARED "fake-gpu"
#define NAME_OWN    "fake-own"

// The GPU of a memory file of that kind; -1: it is none.
static int gpu_of_file(int fd, const char *name)
{
    char path[64], link[64] = "", wanted[32];
    const size_t n = (size_t)snprintf(wanted, sizeof(wanted), "/memfd:%s", name);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (readlink(path, link, sizeof(link) - 1) < 0 || strncmp(link, wanted, n) != 0)
        return -1;
    return atoi(link + n);
}

static int fd_of(uint64_t handle)
{
    return (int)(uint32_t)handle;
}

int fake_vmm_create(uint64_t *handle, size_t bytes, const struct cuda_allocation *allocation,
                    unsigned long long flags)
{
    char name[32];
    int fd;

    MAY_FAIL;
    (void)flags;
    if (allocation->type != 1 || allocation->location.type != 1 || bytes % (2 << 20) != 0)
        return INVALID;
    snprintf(name, sizeof(name), "%s%d",
             allocation->handle_types == CUDA_HANDLE_FD ? NAME_SHARED : NAME_OWN,
             fake_gpu_at(allocation->location.id));
    fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return CUDA_OUT_OF_MEMORY;
    *handle = (uint64_t)fake_gpu_at(allocation->location.id) << 32 | (uint32_t)fd;
    return 0;
}

int fake_vmm_release(uint64_t handle)
{
    MAY_FAIL;
    return close(fd_of(handle)) == 0 ? 0 : INVALID;
}

int fake_vmm_reserve(void **address, size_t bytes, size_t alignment, uint64_t hint,
                     unsigned long long flags)
{
    void *at;

    MAY_FAIL;
    (void)alignment;
    (void)hint;
    (void)flags;
    at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || bytes % (2 << 20) != 0)
        return at == MAP_FAILED ? CUDA_OUT_OF_MEMORY : INVALID;
    *address = at;
    (void)fake_add(&(struct fake_range){(uintptr_t)at, bytes, FAKE_RESERVED, 0, -1, 0, 0});
    return 0;
}

int fake_vmm_unreserve(uint64_t address, size_t bytes)
{
    struct fake_range range;

    MAY_FAIL;
    if (!fake_drop(address, FAKE_RESERVED, &range) || range.bytes != bytes) {
        fake_note("bad-free");
        return INVALID;
    }
    return munmap((void *)(uintptr_t)address, bytes) == 0 ? 0 : INVALID;
}

int fake_vmm_map(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
                 unsigned long long flags)
{
    struct fake_range range = {
        .at = address, .bytes = bytes, .kind = FAKE_MAPPED, .gpu = (int)(handle >> 32)};
    struct stat st;

    MAY_FAIL;
    (void)flags;
    if (offset != 0 || fstat(fd_of(handle), &st) != 0 || (off_t)bytes != st.st_size)
        return INVALID;
    if (mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd_of(handle),
             0) == MAP_FAILED)
        return INVALID;
    range.fd = fcntl(fd_of(handle), F_DUPFD_CLOEXEC, 3); // what the mapping keeps
    return fake_add(&range) ? 0 : CUDA_OUT_OF_MEMORY;
}

int fake_vmm_unmap(uint64_t address, size_t bytes)
{
    struct fake_range range;

    MAY_FAIL;
    fake_hang("hang-unmap");
    for (uint64_t at = address; at < address + bytes; at += range.bytes) {
        if (!fake_drop(at, FAKE_MAPPED, &range)) {
            fake_note("bad-free");
            return INVALID;
        }
        close(range.fd);
    }
    return mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED
               ? 0
               : INVALID;
}

int fake_vmm_access(uint64_t address, size_t bytes, const struct cuda_access *access, size_t count)
{
    int protection = PROT_NONE;

    MAY_FAIL;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type != 1)
            return INVALID;
        protection |= access[i].flags == CUDA_ACCESS_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    }
    return mprotect((void *)(uintptr_t)address, bytes, protection) == 0 ? 0 : INVALID;
}

int fake_vmm_export(void *shareable, uint64_t handle, int type, unsigned long long flags)
{
    MAY_FAIL;
    (void)flags;
    if (type != CUDA_HANDLE_FD || gpu_of_file(fd_of(handle), NAME_SHARED) < 0)
        return INVALID;
    *(int *)shareable = fcntl(fd_of(handle), F_DUPFD, 3);
    return 0;
}

int fake_vmm_import(uint64_t *handle, intptr_t shareable, int type)
{
    const int gpu = gpu_of_file((int)shareable, NAME_SHARED);
    int fd;

    MAY_FAIL;
    fake_hang("hang-import");
    if (type != CUDA_HANDLE_FD || gpu < 0)
        return INVALID;
    fd = fcntl((int)shareable, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return INVALID;
    *handle = (uint64_t)gpu << 32 | (uint32_t)fd;
    return 0;
}

int fake_vmm_retain(uint64_t *handle, void *address)
{
    struct fake_range range;

    MAY_FAIL;
    if (!fake_find((uintptr_t)address, 1u << FAKE_MAPPED, &range))
        return INVALID;
    *handle = (uint64_t)range.gpu << 32 | (uint32_t)fcntl(range.fd, F_DUPFD_CLOEXEC, 3);
    return 0;
}

int fake_pointer_attribute(void *value, int attribute, uint64_t pointer)
{
    struct fake_range range;

    NEED_CONTEXT;
    if (!fake_find(pointer,
                   1u << FAKE_ALLOCATED | 1u << FAKE_MAPPED | 1u << FAKE_OPENED | 1u << FAKE_PINNED,
                   &range))
        return INVALID;
    if (attribute == CUDA_POINTER_HAS_HANDLE) {
        *(int *)value = range.kind == FAKE_ALLOCATED;
        return 0;
    }
    if (attribute == CUDA_POINTER_MEMORY_TYPE)
        *(int *)value = range.kind == FAKE_PINNED ? 1 /* of the host */ : (int)CUDA_MEMORY_DEVICE;
    else
        *(int *)value = fake_ordinal_of(range.gpu);
    return 0;
}
