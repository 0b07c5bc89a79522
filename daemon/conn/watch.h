/*
 * Descriptors on the loop, with errors. libuv adds a descriptor to its epoll set before it sleeps,
 * when there is nobody left to tell, and calls abort() when the kernel has no memory for that, or
 * when its user has used up all watches (fs.epoll.max_user_watches).
 */
#ifndef KVC_CONN_WATCH_H
#define KVC_CONN_WATCH_H

#include <uv.h>

#include "proto/status.h"

/*
 * As uv_poll_start; KVC_E_NO_MEMORY when it cannot be watched, and then it is stopped. Fault site
 * "watch.add".
 */
kvc_status watch_start(uv_poll_t *poll, int events, uv_poll_cb cb);

/* The descriptors that a loop has for itself, before it runs for the first time. */
kvc_status watch_loop(uv_loop_t *loop);

#endif
