#include "daemon/base/fd.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef KVC_DEBUG
#include <dirent.h>
#endif

#include "daemon/base/fault.h"

/* Meanwhile nothing else of the process can be mapped or unmapped, the loop's mappings included. */
#define UNMAP_BYTES ((size_t)4 << 20)

// The lowest descriptor to hand out: 0 to 2 are what stray prints go to.
#define FD_LOWEST 3

void fd_close(int fd)
{
    int saved = errno;

    if (fd < 0)
        return;
    if (close(fd) < 0)
        assert(errno != EBADF);
    errno = saved;
}

void fd_reset(int *fd)
{
    fd_close(*fd);
    *fd = -1;
}

int fd_memfd(const char *name, unsigned flags)
{
    int fd;

    if (fault_fires("fd.memfd"))
        return -EMFILE;
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0)
        return -errno;
    if (fchmod(fd, 0600) < 0) {
        int error = -errno;

        fd_close(fd);
        return error;
    }
    return fd;
}

int fd_truncate(int fd, uint64_t size)
{
    if (fault_fires("fd.truncate"))
        return -ENOSPC;
    return ftruncate(fd, (off_t)size) < 0 ? -errno : 0;
}

int fd_seal(int fd, int seals)
{
    if (fault_fires("fd.seal"))
        return -EPERM;
    return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int fd_dup(int fd)
{
    int copy;

    if (fault_fires("fd.dup"))
        return -EMFILE;
    copy = fcntl(fd, F_DUPFD_CLOEXEC, FD_LOWEST);
    return copy < 0 ? -errno : copy;
}

int fd_reopen_readonly(int fd)
{
    char path[32];
    int copy;

    if (fault_fires("fd.reopen"))
        return -EMFILE;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    copy = open(path, O_RDONLY | O_CLOEXEC);
    return copy < 0 ? -errno : copy;
}

int fd_map(int fd, size_t size, int prot, int flags, uint64_t offset, void **ret_addr)
{
    void *addr;

    if (fault_fires("fd.map"))
        return -ENOMEM;
    addr = mmap(NULL, size, prot, flags, fd, (off_t)offset);
    if (addr == MAP_FAILED)
        return -errno;
    *ret_addr = addr;
    return 0;
}

void fd_unmap(void *addr, size_t size)
{
    uint8_t *at = addr;

    for (size_t n; at && size > 0; at += n, size -= n) {
        n = size < UNMAP_BYTES ? size : UNMAP_BYTES;
        if (munmap(at, n) < 0)
            assert(!"munmap of what is not a mapping");
    }
}

#ifdef KVC_DEBUG
int fd_count_open(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    if (!dir)
        return -1;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n - 1; // without the descriptor of the folder itself
}
#endif
