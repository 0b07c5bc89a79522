/*
 * Accepts connections on a socket that the caller has bound. When descriptors run out it pauses,
 * and the clients wait in the backlog; it resumes by itself when there are some again.
 */
#ifndef KVC_CONN_LISTENER_H
#define KVC_CONN_LISTENER_H

#include <stdbool.h>
#include <uv.h>

#include "proto/status.h"

struct listener;

/* Gets each accepted socket (CLOEXEC, non-blocking), which is its own from then on. */
typedef void listener_accept_cb(void *arg, int sock);

/* Listens. The socket stays the caller's, and open until listener_close's callback. */
kvc_status listener_open(uv_loop_t *loop, int sock, listener_accept_cb *accept, void *arg,
                         struct listener **listener);

/* Accepts no more; memory goes when the loop has closed the handles. NULL is fine. */
void listener_close(struct listener *listener);

/*
 * Gives one spare descriptor up, for what an accepted connection needs besides its socket; false if
 * there is none left. Accepting pauses until the spare is back.
 */
bool listener_spend_spare(struct listener *listener);

/* A descriptor was closed somewhere: a paused listener tries again at once. */
void listener_retry(struct listener *listener);

#endif
