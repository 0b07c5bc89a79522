#include "daemon/conn/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/mem.h"
#include "proto/wire.h"

/* How often to start again when the lock file was removed by its last holder meanwhile. */
#define LOCK_TRIES 16

struct endpoint {
    struct sockaddr_un address;
    char lock_path[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
    int lock;
    int sock;
    bool bound; /* the file is there, and is `file` */
    struct stat file;
};

static kvc_status explain(char *why, kvc_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static kvc_status explain(char *why, kvc_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, ENDPOINT_WHY_MAX, format, args);
    va_end(args);
    return status;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/*
 * The holder of the lock removes its file before it lets go, so a lock may be won on a file that is
 * in the folder no more, while somebody else wins the next one. Only a lock on the file that the
 * path names counts.
 */
static kvc_status take_lock(struct endpoint *e, char *why)
{
    struct stat held, named;

    for (int i = 0; i < LOCK_TRIES; i++) {
        e->lock = fault_fires("endpoint.lock")
                      ? (errno = EACCES, -1)
                      : open(e->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (e->lock < 0)
            return explain(why, KVC_E_SYSTEM, "cannot make %s: %s", e->lock_path, strerror(errno));
        if (flock(e->lock, LOCK_EX | LOCK_NB) < 0) {
            int error = errno;

            fd_reset(&e->lock);
            if (error == EWOULDBLOCK)
                return explain(why, KVC_E_BUSY, "another daemon is running on %s",
                               e->address.sun_path);
            return explain(why, KVC_E_SYSTEM, "cannot lock %s: %s", e->lock_path, strerror(error));
        }
        if (fstat(e->lock, &held) == 0 && lstat(e->lock_path, &named) == 0 &&
            same_file(&held, &named))
            return KVC_OK;
        fd_reset(&e->lock);
    }
    return explain(why, KVC_E_BUSY, "other daemons come and go on %s", e->address.sun_path);
}

static void drop_lock(struct endpoint *e)
{
    if (e->lock < 0) /* adopted */
        return;
    unlink(e->lock_path);
    fd_reset(&e->lock);
}

/* Nothing is made, not even a lock, beside a file that is no socket. */
static kvc_status look_at_path(const struct endpoint *e, bool *exists, char *why)
{
    const char *path = e->address.sun_path;
    struct stat st;

    *exists = lstat(path, &st) == 0;
    if (!*exists && errno != ENOENT)
        return explain(why, KVC_E_SYSTEM, "cannot look at %s: %s", path, strerror(errno));
    if (*exists && !S_ISSOCK(st.st_mode))
        return explain(why, KVC_E_INVALID, "%s exists and is not a socket", path);
    return KVC_OK;
}

/* With the lock held, whoever listens at the path is no daemon that we know of: left alone. */
static kvc_status remove_stale(struct endpoint *e, char *why)
{
    const char *path = e->address.sun_path;
    bool exists;
    int sock;
    kvc_status status = look_at_path(e, &exists, why);

    if (status != KVC_OK || !exists)
        return status;
    switch (wire_connect(path, &sock)) {
    case KVC_E_DISCONNECTED:
        break;
    case KVC_OK:
        fd_close(sock);
        return explain(why, KVC_E_BUSY, "somebody listens on %s already", path);
    case KVC_E_BUSY:
    case KVC_E_PROTOCOL:
        return explain(why, KVC_E_BUSY, "somebody listens on %s already", path);
    default:
        return explain(why, KVC_E_SYSTEM, "cannot tell whether somebody listens on %s: %s", path,
                       strerror(errno));
    }
    if (unlink(path) < 0 && errno != ENOENT)
        return explain(why, KVC_E_SYSTEM, "cannot remove the stale socket %s: %s", path,
                       strerror(errno));
    return KVC_OK;
}

static kvc_status bind_socket(struct endpoint *e, mode_t mode, gid_t group, char *why)
{
    const char *path = e->address.sun_path;
    mode_t mask;
    int rc;

    e->sock = fault_fires("endpoint.socket")
                  ? (errno = EMFILE, -1)
                  : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (e->sock < 0)
        return explain(why, KVC_E_SYSTEM, "cannot make a socket: %s", strerror(errno));
    /* Nobody but this user may open it before it has its mode. */
    mask = umask(0177);
    rc = fault_fires("endpoint.bind")
             ? (errno = EACCES, -1)
             : bind(e->sock, (const struct sockaddr *)&e->address, sizeof(e->address));
    umask(mask);
    if (rc < 0)
        return explain(why, KVC_E_SYSTEM, "cannot bind %s: %s", path, strerror(errno));
    if ((group != (gid_t)-1 && lchown(path, (uid_t)-1, group) < 0) || chmod(path, mode) < 0 ||
        lstat(path, &e->file) < 0) {
        explain(why, KVC_E_SYSTEM, "cannot set group and mode of %s: %s", path, strerror(errno));
        unlink(path);
        return KVC_E_SYSTEM;
    }
    e->bound = true;
    return KVC_OK;
}

kvc_status endpoint_open(const char *path, mode_t mode, gid_t group, struct endpoint **endpoint,
                         char *why)
{
    const size_t len = strlen(path);
    struct endpoint *e;
    kvc_status status;
    bool exists;

    if (len == 0 || len >= sizeof(e->address.sun_path))
        return explain(why, KVC_E_INVALID,
                       "the socket's path has %zu bytes, a socket allows 1 to %zu", len,
                       sizeof(e->address.sun_path) - 1);
    e = mem_zalloc(sizeof(*e));
    if (e == NULL)
        return explain(why, KVC_E_NO_MEMORY, "out of memory");
    e->lock = e->sock = -1;
    e->address.sun_family = AF_UNIX;
    memcpy(e->address.sun_path, path, len);
    snprintf(e->lock_path, sizeof(e->lock_path), "%s.lock", path);

    status = look_at_path(e, &exists, why);
    if (status == KVC_OK)
        status = take_lock(e, why);
    if (status != KVC_OK)
        goto free_endpoint;
    status = remove_stale(e, why);
    if (status != KVC_OK)
        goto unlock;
    status = bind_socket(e, mode, group, why);
    if (status != KVC_OK)
        goto unlock;
    *endpoint = e;
    return KVC_OK;

unlock:
    fd_reset(&e->sock);
    drop_lock(e);
free_endpoint:
    mem_free(e);
    return status;
}

kvc_status endpoint_adopt(int sock, struct endpoint **endpoint, char *why)
{
    const int flags = fcntl(sock, F_GETFL);
    struct endpoint *e = NULL;

    if (flags >= 0 && fcntl(sock, F_SETFL, flags | O_NONBLOCK) == 0 &&
        fcntl(sock, F_SETFD, FD_CLOEXEC) == 0)
        e = mem_zalloc(sizeof(*e));
    if (e == NULL) {
        fd_close(sock);
        return explain(why, KVC_E_SYSTEM, "cannot use the service manager's socket");
    }
    e->lock = -1;
    e->sock = sock;
    *endpoint = e;
    return KVC_OK;
}

int endpoint_socket(const struct endpoint *endpoint)
{
    return endpoint->sock;
}

void endpoint_hide(struct endpoint *e)
{
    struct stat now;

    if (e->bound && lstat(e->address.sun_path, &now) == 0 && same_file(&now, &e->file))
        unlink(e->address.sun_path);
    e->bound = false;
}

void endpoint_close(struct endpoint *e)
{
    if (e == NULL)
        return;
    endpoint_hide(e);
    fd_reset(&e->sock);
    drop_lock(e);
    mem_free(e);
}
