// Memory of another process, for the driver without a GPU: a handle is a pid and a descriptor
// there, so that who exports and who opens must see each other in /proc.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/fake/fake.h"

struct ticket {
    uint32_t magic;
    int32_t pid, fd, gpu;
    uint64_t bytes;
};

#define MEMORY_MAGIC 0x4d454d4fu

static int open_there(const struct ticket *ticket)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->pid, ticket->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

int fake_ipc_export(struct cuda_ipc *handle, uint64_t base)
{
    struct fake_range range;
    struct ticket ticket;

    NEED_CONTEXT;
    if (!fake_find(base, 1u << FAKE_ALLOCATED, &range))
        return INVALID;
    ticket = (struct ticket){MEMORY_MAGIC, getpid(), range.fd, range.gpu, range.bytes};
    memset(handle, 0, sizeof(*handle));
    memcpy(handle, &ticket, sizeof(ticket));
    return 0;
}

int fake_ipc_open(uint64_t *address, struct cuda_ipc handle, unsigned flags)
{
    struct fake_range range = {.kind = FAKE_OPENED, .opens = 1};
    struct ticket ticket;
    struct stat st;
    void *at;

    NEED_CONTEXT;
    fake_hang("hang-open");
    memcpy(&ticket, &handle, sizeof(ticket));
    if (flags != CUDA_IPC_PEER_ACCESS || ticket.magic != MEMORY_MAGIC)
        return INVALID;
    if (ticket.pid == getpid())
        return CUDA_NO_CONTEXT; // as the real one says
    range.owner = (uint64_t)ticket.pid << 32 | (uint32_t)ticket.fd;
    if (fake_count_open(range.owner, address, 1) > 0)
        return 0;
    range.fd = open_there(&ticket);
    if (range.fd < 0 || fstat(range.fd, &st) != 0)
        return INVALID;
    at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, range.fd, 0);
    if (at == MAP_FAILED)
        return INVALID;
    range.at = *address = (uintptr_t)at;
    range.bytes = (uint64_t)st.st_size;
    range.gpu = ticket.gpu;
    return fake_add(&range) ? 0 : CUDA_OUT_OF_MEMORY;
}

int fake_ipc_close(uint64_t address)
{
    struct fake_range range;

    NEED_CONTEXT;
    fake_hang("hang-close");
    switch (fake_count_open(0, &address, -1)) {
    case 0:
        fake_note("bad-free");
        return INVALID;
    case 1:
        break;
    default:
        return 0;
    }
    if (!fake_drop(address, FAKE_OPENED, &range))
        return INVALID;
    close(range.fd);
    return munmap((void *)(uintptr_t)address, range.bytes) == 0 ? 0 : INVALID;
}
