// File descriptors: the few calls that make, share, map and close them, with the flags that keep
// them from leaking (CLOEXEC, never 0 to 2) and fault sites in debug builds.
// Calls return a descriptor or 0, or -errno.
#ifndef KVC_DAEMON_BASE_FD_H
#define KVC_DAEMON_BASE_FD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Closes once, whatever close() says (on Linux the descriptor is gone also after EINTR), and keeps
// errno. A negative fd is fine; one that is not open is a bug and aborts a debug build.
void fd_close(int fd);

// Closes *fd and sets it to -1.
void fd_reset(int *fd);

// A memfd that can be sealed, of mode 0600 from the start: whoever gets a read-only descriptor of a
// memfd with its usual mode 0777 could reopen it for writing. Fault site "fd.memfd".
int fd_memfd(const char *name, unsigned flags);

// Fault site "fd.truncate".
int fd_truncate(int fd, uint64_t size);

// Fault site "fd.seal".
int fd_seal(int fd, int seals);

// A duplicate that is CLOEXEC and at least 3. Fault site "fd.dup".
int fd_dup(int fd);

// A second, read-only open file of the same memfd, which F_DUPFD cannot give. Fault site
// "fd.reopen".
int fd_reopen_readonly(int fd);

// Fault site "fd.map". *ret_addr is set only on success.
int fd_map(int fd, size_t size, int prot, int flags, uint64_t offset, void **ret_addr);
void fd_unmap(void *addr, size_t size);

#ifdef KVC_DEBUG
// Descriptors that this process has open.
int fd_count_open(void);
#endif

#endif
