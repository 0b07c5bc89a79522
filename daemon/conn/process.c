#include "daemon/conn/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/conn/watch.h"

/* Linux 6.5; the headers of older systems do not have it. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct process {
    uv_poll_t poll;
    int pidfd;
    struct ucred cred;
    gid_t *groups; /* supplementary ones */
    size_t n_groups;
    bool gone;
    process_gone_cb *cb;
    void *arg;
};

/* Field 22, counted behind the command's closing bracket, since a command may hold anything. */
static uint64_t read_start_time(pid_t pid)
{
    char path[48], text[512];
    char *at;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    fd_close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

static bool is_connected(int sock)
{
    struct pollfd p = {.fd = sock, .events = POLLRDHUP};

    return poll(&p, 1, 0) >= 0 && !(p.revents & (POLLHUP | POLLRDHUP | POLLERR));
}

static kvc_status status_of(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
        return KVC_E_NO_FDS;
    case ESRCH:
    case EINVAL: /* SO_PEERPIDFD of a process that was reaped */
        return KVC_E_DISCONNECTED;
    case ENOMEM:
        return KVC_E_NO_MEMORY;
    default:
        return KVC_E_SYSTEM;
    }
}

/*
 * Where the kernel cannot give a pidfd of the peer, one of the pid that connected is taken. The pid
 * may have ended and been given to another process before; a peer that is still connected after the
 * pidfd was opened has not ended, so it is the right one.
 */
static kvc_status open_pidfd(int sock, pid_t pid, int *pidfd)
{
    const bool old_kernel = fault_fires("process.peerpidfd");
    socklen_t len = sizeof(*pidfd);
    int fd = -1;

    if (fault_fires("process.pidfd"))
        return KVC_E_NO_FDS;
    if (!old_kernel && getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0) {
        *pidfd = fd;
        return KVC_OK;
    }
    if (!old_kernel && errno != ENOPROTOOPT)
        return status_of(errno);
    if (pid <= 0) {
        log_warn("conn", "connection not served reason=\"its process is in a pid namespace that is "
                         "not visible from here, and Linux is older than 6.5\"");
        return KVC_E_DISCONNECTED;
    }
    fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return status_of(errno);
    if (!is_connected(sock)) {
        fd_close(fd);
        return KVC_E_DISCONNECTED;
    }
    *pidfd = fd;
    return KVC_OK;
}

static void poll_cb(uv_poll_t *poll, int status, int events)
{
    struct process *p = container_of(poll, struct process, poll);

    (void)status;
    (void)events;
    uv_poll_stop(poll);
    p->gone = true;
    p->cb(p->arg);
}

bool process_peer(int sock, struct ucred *peer)
{
    socklen_t len = sizeof(*peer);

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, peer, &len) == 0;
}

/* The kernel says how much room the list needs. Without an answer there are none. */
static kvc_status read_groups(struct process *p, int sock)
{
    socklen_t len = 0;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) == 0 || errno != ERANGE)
        return KVC_OK;
    p->groups = mem_array(len / sizeof(gid_t) + 1, sizeof(gid_t));
    if (p->groups == NULL)
        return KVC_E_NO_MEMORY;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, p->groups, &len) == 0)
        p->n_groups = len / sizeof(gid_t);
    return KVC_OK;
}

kvc_status process_open(uv_loop_t *loop, int sock, process_gone_cb *gone, void *arg,
                        struct process **process)
{
    struct process *p = mem_zalloc(sizeof(*p));
    kvc_status status;

    if (p == NULL)
        return KVC_E_NO_MEMORY;
    p->cb = gone;
    p->arg = arg;
    if (!process_peer(sock, &p->cred)) {
        status = KVC_E_SYSTEM;
        goto free_process;
    }
    status = read_groups(p, sock);
    if (status == KVC_OK)
        status = open_pidfd(sock, p->cred.pid, &p->pidfd);
    if (status != KVC_OK)
        goto free_process;
    if (fault_fires("process.poll") || uv_poll_init(loop, &p->poll, p->pidfd) < 0) {
        status = KVC_E_SYSTEM;
        goto close_pidfd;
    }
    /* Or the process would never be seen to end. */
    if (watch_start(&p->poll, UV_READABLE, poll_cb) != KVC_OK) {
        process_close(p);
        return KVC_E_NO_MEMORY;
    }
    *process = p;
    return KVC_OK;

close_pidfd:
    fd_close(p->pidfd);
free_process:
    mem_free(p->groups);
    mem_free(p);
    return status;
}

static void close_cb(uv_handle_t *handle)
{
    struct process *p = container_of((uv_poll_t *)handle, struct process, poll);

    fd_close(p->pidfd);
    mem_free(p->groups);
    mem_free(p);
}

void process_close(struct process *process)
{
    if (process != NULL)
        uv_close((uv_handle_t *)&process->poll, close_cb);
}

pid_t process_pid(const struct process *process)
{
    return process->cred.pid;
}

uid_t process_uid(const struct process *process)
{
    return process->cred.uid;
}

bool process_has_group(const struct process *process, gid_t gid)
{
    bool found = process->cred.gid == gid;

    for (size_t i = 0; i < process->n_groups && !found; i++)
        found = process->groups[i] == gid;
    return found;
}

/* Once the process has ended, its pid may be another's. */
uint64_t process_start_time(const struct process *process)
{
    const uint64_t ticks = read_start_time(process->cred.pid);
    struct pollfd end = {.fd = process->pidfd, .events = POLLIN};

    return poll(&end, 1, 0) == 0 ? ticks : 0;
}

bool process_is_gone(const struct process *process)
{
    return process->gone;
}
