#include "daemon/conn/watch.h"

#include <errno.h>
#include <sys/epoll.h>

#include "daemon/base/fault.h"

/*
 * What libuv is going to add is there already, which it takes for one of its own from before, and
 * changes. Until then nothing is asked for, and the loop does not sleep.
 */
static kvc_status add(uv_loop_t *loop, int fd)
{
    struct epoll_event nothing = {.data.fd = fd};

    if (fault_fires("watch.add"))
        return KVC_E_NO_MEMORY;
    if (epoll_ctl(uv_backend_fd(loop), EPOLL_CTL_ADD, fd, &nothing) == 0 || errno == EEXIST)
        return KVC_OK;
    return KVC_E_NO_MEMORY;
}

kvc_status watch_start(uv_poll_t *poll, int events, uv_poll_cb cb)
{
    uv_os_fd_t fd;
    kvc_status status;

    if (uv_poll_start(poll, events, cb) < 0 || uv_fileno((uv_handle_t *)poll, &fd) < 0)
        return KVC_E_NO_MEMORY;
    status = add(poll->loop, fd);
    if (status != KVC_OK)
        uv_poll_stop(poll);
    return status;
}

kvc_status watch_loop(uv_loop_t *loop)
{
    kvc_status status = add(loop, loop->async_io_watcher.fd);

    return status == KVC_OK && loop->signal_pipefd[0] >= 0 ? add(loop, loop->signal_pipefd[0])
                                                           : status;
}
