#include "daemon/conn/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/conn/watch.h"

/*
 * One connection a wake, so that those which have been let in wait for no more than that, and so
 * many within a millisecond: who connects without end gets a part of the loop's time and not all.
 */
#define ACCEPTS_PER_TICK 10u
#define TICK_MS          1u
/* How long descriptors may be short without anybody telling; see listener_retry. */
#define PAUSE_MS 100

struct listener {
    uv_poll_t poll;
    uv_timer_t timer; /* runs while paused, or resting */
    int sock;
    int spare;
    bool paused;
    bool resting; /* until the tick is over */
    bool closing;
    uint64_t tick_us;  /* when it began */
    uint32_t accepted; /* in it */
    int open_handles;
    listener_accept_cb *accept;
    void *arg;
};

static bool hold_spare(struct listener *l)
{
    if (l->spare < 0)
        l->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return l->spare >= 0;
}

static void timer_cb(uv_timer_t *timer);

static void pause_accepting(struct listener *l, const char *why)
{
    if (l->paused || l->closing)
        return;
    l->paused = true;
    l->resting = false;
    uv_poll_stop(&l->poll);
    uv_timer_start(&l->timer, timer_cb, PAUSE_MS, PAUSE_MS);
    log_warn("conn", "accept paused reason=%s", why);
}

enum accepted { ACCEPTED, ACCEPTED_NONE, ACCEPT_SHORT };

/* Linux looks for a free descriptor first, so that EAGAIN also says that there is one. */
static enum accepted accept_one(struct listener *l)
{
    const bool fails = fault_fires("listener.accept");
    int sock = fails ? -1 : accept4(l->sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (sock >= 0) {
        l->accept(l->arg, sock);
        return ACCEPTED;
    }
    if (!fails && (errno == EINTR || errno == ECONNABORTED))
        return ACCEPTED;
    if (!fails && errno == EAGAIN)
        return ACCEPTED_NONE;
    pause_accepting(l,
                    !fails && errno != EMFILE && errno != ENFILE ? "no_memory" : "no_descriptors");
    return ACCEPT_SHORT;
}

static void rest(struct listener *l)
{
    l->resting = true;
    uv_poll_stop(&l->poll);
    uv_timer_start(&l->timer, timer_cb, TICK_MS, 0);
}

static void poll_cb(uv_poll_t *poll, int status, int events)
{
    struct listener *l = container_of(poll, struct listener, poll);
    const uint64_t now = clock_now_us();

    (void)status;
    (void)events;
    if (now - l->tick_us >= TICK_MS * CLOCK_MS_US) {
        l->tick_us = now;
        l->accepted = 0;
    }
    accept_one(l);
    if (++l->accepted >= ACCEPTS_PER_TICK && !l->paused && !l->closing)
        rest(l);
}

static void timer_cb(uv_timer_t *timer)
{
    struct listener *l = container_of(timer, struct listener, timer);

    if (!l->resting)
        listener_retry(l);
    else if (watch_start(&l->poll, UV_READABLE, poll_cb) != KVC_OK)
        uv_timer_start(&l->timer, timer_cb, PAUSE_MS, 0);
    else
        l->resting = false;
}

kvc_status listener_open(uv_loop_t *loop, int sock, listener_accept_cb *accept, void *arg,
                         struct listener **listener)
{
    struct listener *l = mem_zalloc(sizeof(*l));
    kvc_status status = KVC_E_SYSTEM;

    if (l == NULL)
        return KVC_E_NO_MEMORY;
    l->sock = sock;
    l->spare = -1;
    l->accept = accept;
    l->arg = arg;
    if (!hold_spare(l)) {
        status = KVC_E_NO_FDS;
        goto free_listener;
    }
    if (fault_fires("listener.poll") || uv_poll_init(loop, &l->poll, sock) < 0)
        goto close_spare;
    uv_timer_init(loop, &l->timer);
    l->open_handles = 2;
    if (watch_start(&l->poll, UV_READABLE, poll_cb) != KVC_OK) {
        listener_close(l);
        return KVC_E_NO_MEMORY;
    }
    /* Last, so that nobody is let in who is not served. */
    if (fault_fires("listener.listen") || listen(sock, SOMAXCONN) < 0) {
        listener_close(l);
        return KVC_E_SYSTEM;
    }
    *listener = l;
    return KVC_OK;

close_spare:
    fd_close(l->spare);
free_listener:
    mem_free(l);
    return status;
}

static void close_handle(struct listener *l)
{
    if (--l->open_handles > 0)
        return;
    fd_close(l->spare);
    mem_free(l);
}

static void poll_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_poll_t *)handle, struct listener, poll));
}

static void timer_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_timer_t *)handle, struct listener, timer));
}

void listener_close(struct listener *l)
{
    if (l == NULL)
        return;
    l->closing = true;
    uv_close((uv_handle_t *)&l->poll, poll_close_cb);
    uv_close((uv_handle_t *)&l->timer, timer_close_cb);
}

bool listener_spend_spare(struct listener *l)
{
    if (l->spare < 0)
        return false;
    fd_reset(&l->spare);
    pause_accepting(l, "no_descriptors");
    return true;
}

void listener_retry(struct listener *l)
{
    if (!l->paused || l->closing || !hold_spare(l))
        return;
    if (accept_one(l) == ACCEPT_SHORT || l->spare < 0)
        return;
    if (watch_start(&l->poll, UV_READABLE, poll_cb) != KVC_OK)
        return;
    l->paused = false;
    uv_timer_stop(&l->timer);
    log_info("conn", "accept resumed");
}
