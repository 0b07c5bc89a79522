#include "daemon/conn/connection.h"

#include <errno.h>
#include <poll.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/base/turn.h"
#include "daemon/conn/outqueue.h"
#include "daemon/conn/watch.h"

/*
 * One client gives way to the others after this many packets, or fewer with descriptors, or the
 * first that ends so late: a lookup in many parts costs as much as a thousand pings.
 */
#define PACKETS_PER_WAKE  16
#define FDS_LIKE_A_PACKET 8
/* Packets that come so soon behind others are read together, those after a while one by one. */
#define BURST_US 10u
/* How often a queue that does not empty by itself is looked at. */
#define QUEUE_LOOK_MS  250
#define QUEUE_RETRY_MS 5
/* How long the closer gets for what a client has sent, before it may send more. */
#define CLOSER_HOLD_US 10000u
/* And all of them, when the daemon ends. */
#define CLOSE_WAIT_US (2 * CLOCK_S_US)

enum connection_state {
    CONNECTION_OPEN,
    CONNECTION_CLOSING, /* waits for the loop to close its handles */
};

struct connection {
    struct connection_hub *hub;
    const struct connection_events *events;
    void *arg;
    uv_poll_t poll;
    uv_timer_t timer; /* runs while the queue is not empty */
    uv_timer_t hold;  /* runs while it is held */
    int sock;
    enum connection_state state;
    int open_handles;
    int polled; /* UV_READABLE and UV_WRITABLE, as asked of the loop */
    bool later; /* sending is retried by the clock only */
    struct outqueue out;
    uint64_t progress_us; /* when something left the queue, or it began to fill */
    uint64_t read_us;     /* when it was last read */
    pid_t pid;
    uid_t uid;
    uint32_t user; /* of closer_source */
};

kvc_status connection_hub_init(struct connection_hub *hub, uv_loop_t *loop)
{
    *hub = (struct connection_hub){.loop = loop, .buffer = mem_alloc(KVC_WIRE_PACKET_MAX)};
    return hub->buffer != NULL && closer_create(&hub->closer) == 0 ? KVC_OK : KVC_E_NO_MEMORY;
}

void connection_hub_fini(struct connection_hub *hub)
{
    closer_destroy(hub->closer, CLOSE_WAIT_US);
    mem_free(hub->buffer);
    hub->closer = NULL;
    hub->buffer = NULL;
}

static struct closer_source source_of(const struct connection *c)
{
    return (struct closer_source){.user = c->user, .process = c->pid};
}

static void close_fd(void *arg, int fd)
{
    const struct connection *c = arg;

    closer_close(c->hub->closer, fd, source_of(c));
}

/*
 * Whether packets wait in a socket that takes no more of them: what they bring is closed with it.
 * The end looks like an empty packet, but for the sender's name that each packet has if asked for.
 */
static bool has_packets(int sock)
{
    const int on = 1;
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct msghdr msg = {.msg_control = control.bytes, .msg_controllen = sizeof(control)};

    return shutdown(sock, SHUT_RDWR) < 0 ||
           setsockopt(sock, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
           recvmsg(sock, &msg, MSG_PEEK | MSG_DONTWAIT) != 0 || msg.msg_controllen > 0 ||
           (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
}

static void close_socket(struct connection *c)
{
    if (has_packets(c->sock))
        close_fd(c, c->sock);
    else
        fd_close(c->sock);
}

static void close_handle(struct connection *c)
{
    if (--c->open_handles > 0)
        return;
    close_socket(c);
    c->events->ended(c->arg);
    mem_free(c);
}

static void poll_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_poll_t *)handle, struct connection, poll));
}

static void timer_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_timer_t *)handle, struct connection, timer));
}

static void hold_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_timer_t *)handle, struct connection, hold));
}

/* The queue's descriptors end now; the socket, which is polled, when the loop has let it go. */
void connection_end(struct connection *c)
{
    if (c->state == CONNECTION_CLOSING)
        return;
    c->state = CONNECTION_CLOSING;
    outqueue_clear(&c->out);
    uv_close((uv_handle_t *)&c->poll, poll_close_cb);
    uv_close((uv_handle_t *)&c->timer, timer_close_cb);
    uv_close((uv_handle_t *)&c->hold, hold_close_cb);
}

bool connection_is_over(const struct connection *c)
{
    struct pollfd end = {.fd = c->sock, .events = POLLRDHUP};

    return c->state == CONNECTION_CLOSING ||
           (poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
}

void connection_malformed(struct connection *c, const char *why)
{
    if (c->state == CONNECTION_CLOSING)
        return;
    c->hub->bad_packets++;
    pace_charge(&c->hub->pace, c->pid, c->uid, PACE_PACKET_US);
    log_warn("conn", "malformed packet pid=%d uid=%u reason=\"%s\"", (int)c->pid, c->uid, why);
    connection_end(c);
}

void connection_cut(struct connection *c, const char *why)
{
    if (c->state == CONNECTION_CLOSING)
        return;
    log_warn("conn", "connection cut pid=%d uid=%u reason=%s queued_bytes=%zu", (int)c->pid, c->uid,
             why, c->out.bytes);
    connection_end(c);
}

static void poll_cb(uv_poll_t *poll, int status, int events);

static bool is_held(const struct connection *c)
{
    return uv_is_active((const uv_handle_t *)&c->hold);
}

/* Asks the loop for what is needed now: writable only while something waits to be written. */
static void update_poll(struct connection *c)
{
    int wanted = 0;

    if (c->out.bytes < KVC_OUT_STOP_BYTES && !is_held(c))
        wanted |= UV_READABLE;
    if (!outqueue_empty(&c->out) && !c->later)
        wanted |= UV_WRITABLE;
    if (wanted == c->polled || c->state == CONNECTION_CLOSING)
        return;
    if (wanted == 0) {
        uv_poll_stop(&c->poll);
    } else if (watch_start(&c->poll, wanted, poll_cb) != KVC_OK) {
        log_warn("conn", "connection ended pid=%d uid=%u reason=no_memory", (int)c->pid, c->uid);
        connection_end(c);
        return;
    }
    c->polled = wanted;
}

static void flush(struct connection *c)
{
    bool sent = false;
    enum outqueue_result result = outqueue_flush(&c->out, c->sock, &sent);

    if (result == OUTQUEUE_OVER) {
        /* What the other side sent before it went is still to be read: the end comes from there. */
        outqueue_clear(&c->out);
        result = OUTQUEUE_SENT;
    }
    if (sent)
        c->progress_us = clock_now_us();
    c->later = result == OUTQUEUE_LATER;
    if (result == OUTQUEUE_SENT)
        uv_timer_stop(&c->timer);
    update_poll(c);
}

static void timer_cb(uv_timer_t *timer)
{
    struct connection *c = container_of(timer, struct connection, timer);

    if (c->later)
        flush(c);
    if (c->state == CONNECTION_CLOSING || outqueue_empty(&c->out))
        return;
    if (clock_now_us() - c->progress_us >= KVC_OUT_CUT_MS * CLOCK_MS_US) {
        connection_cut(c, "not_reading");
        return;
    }
    uv_timer_start(timer, timer_cb, c->later ? QUEUE_RETRY_MS : QUEUE_LOOK_MS, 0);
}

static void enqueue(struct connection *c, struct wire_packet *packet, bool later)
{
    const bool first = outqueue_empty(&c->out);

    if (outqueue_push(&c->out, packet) != KVC_OK) {
        wire_close_fds(packet);
        log_warn("conn", "connection ended pid=%d uid=%u reason=no_memory", (int)c->pid, c->uid);
        connection_end(c);
        return;
    }
    if (first) {
        c->later = later;
        c->progress_us = clock_now_us();
        uv_timer_start(&c->timer, timer_cb, later ? QUEUE_RETRY_MS : QUEUE_LOOK_MS, 0);
    }
    if (c->out.bytes >= KVC_OUT_CUT_BYTES)
        connection_cut(c, "too_much_unread");
    update_poll(c);
}

void connection_send(struct connection *c, uint16_t type, uint32_t seq, const uint8_t *body,
                     size_t body_len, const int *fds, uint32_t n_fds)
{
    struct wire_packet packet = {
        .type = type, .seq = seq, .body = body, .body_len = (uint32_t)body_len, .n_fds = n_fds};
    enum outqueue_result result = OUTQUEUE_WAIT;

    for (uint32_t i = 0; i < n_fds; i++)
        packet.fds[i] = fds[i];
    if (c->state == CONNECTION_CLOSING) {
        wire_close_fds(&packet);
        return;
    }
    if (outqueue_empty(&c->out)) {
        result = outqueue_direct(&c->out, c->sock, &packet);
        if (result == OUTQUEUE_SENT)
            return;
        if (result == OUTQUEUE_OVER) {
            wire_close_fds(&packet);
            return;
        }
    }
    enqueue(c, &packet, result == OUTQUEUE_LATER);
}

static void hold_cb(uv_timer_t *timer)
{
    update_poll(container_of(timer, struct connection, hold));
}

static void hold(struct connection *c, uint64_t us)
{
    uv_timer_start(&c->hold, hold_cb, (us + CLOCK_MS_US - 1) / CLOCK_MS_US, 0);
    update_poll(c);
}

void connection_in_vain(struct connection *c, uint32_t n_fds)
{
    pace_charge(&c->hub->pace, c->pid, c->uid, (uint64_t)n_fds * PACE_FD_US);
}

void connection_was_silent(struct connection_hub *hub, pid_t pid, uid_t uid)
{
    pace_charge(&hub->pace, pid, uid, PACE_SILENT_US);
}

/* Handles one packet; what it cost in packets, or 0 when there is none now, or no more. */
static uint32_t receive(struct connection *c)
{
    struct wire_packet packet = {0};
    const char *why = NULL;
    enum wire_result result;
    uint32_t cost;

    if (fault_fires("connection.recv"))
        result = (errno = ENOMEM, WIRE_FAIL);
    else
        result = wire_recv_close(c->sock, c->hub->buffer, &packet, &why, close_fd, c);
    switch (result) {
    case WIRE_OK:
        cost = 1 + packet.n_fds / FDS_LIKE_A_PACKET;
        c->events->packet(c->arg, &packet);
        for (uint32_t i = 0; i < packet.n_fds; i++)
            close_fd(c, packet.fds[i]);
        return c->state == CONNECTION_OPEN ? cost : 0;
    case WIRE_AGAIN:
        return 0;
    case WIRE_EOF:
        connection_end(c);
        return 0;
    case WIRE_BAD:
    case WIRE_LOST:
        connection_malformed(c, why);
        return 0;
    case WIRE_FAIL:
        log_warn("conn", "receive failed pid=%d uid=%u error=\"%m\"", (int)c->pid, c->uid);
        connection_end(c);
        return 0;
    }
    return 0;
}

static bool may_read(struct connection *c)
{
    uint64_t wait;

    if (c->state != CONNECTION_OPEN || c->out.bytes >= KVC_OUT_STOP_BYTES || is_held(c))
        return false;
    wait = pace_wait_us(&c->hub->pace, c->pid, c->uid);
    if (wait == 0 && closer_is_pressed(c->hub->closer, source_of(c)))
        wait = CLOSER_HOLD_US;
    if (wait > 0)
        hold(c, wait);
    return wait == 0;
}

/*
 * libuv stops a handle whose socket has an error, such as the reset of a peer that closed with
 * packets unread. What it sent before is still there: sending or receiving clears the error.
 */
static void poll_cb(uv_poll_t *poll, int status, int events)
{
    struct connection *c = container_of(poll, struct connection, poll);
    const uint64_t began = clock_now_us();
    /* Who waits for a reply before the next request would only be asked in vain for another. */
    const uint32_t most = began - c->read_us < BURST_US ? PACKETS_PER_WAKE : 1;

    if (status < 0)
        c->polled = 0;
    if ((events & UV_WRITABLE) || status < 0)
        flush(c);
    for (uint32_t spent = 0;
         spent < most && may_read(c) && (spent == 0 || clock_now_us() - began < TURN_US);) {
        uint32_t cost = receive(c);

        if (cost == 0)
            break;
        spent += cost;
    }
    c->read_us = clock_now_us();
    update_poll(c);
}

/*
 * A child that holds the same socket may go on sending; only what was there when the process ended
 * is read, which the size of the receive queue says. Of who has flooded the closer nothing is.
 */
void connection_finish(struct connection *c)
{
    int waiting = 0;

    if (c->state == CONNECTION_CLOSING || ioctl(c->sock, SIOCINQ, &waiting) < 0)
        waiting = 0;
    for (int got = 0; c->state == CONNECTION_OPEN && got < waiting; got += KVC_WIRE_HEADER_BYTES)
        if (closer_is_pressed(c->hub->closer, source_of(c)) || receive(c) == 0)
            break;
    connection_end(c);
}

kvc_status connection_open(struct connection_hub *hub, int sock,
                           const struct connection_events *events, void *arg,
                           struct connection **connection)
{
    struct connection *c = mem_zalloc(sizeof(*c));

    if (c == NULL)
        return KVC_E_NO_MEMORY;
    c->hub = hub;
    c->events = events;
    c->arg = arg;
    c->sock = sock;
    outqueue_init(&c->out);
    if (fault_fires("connection.poll") || uv_poll_init(hub->loop, &c->poll, sock) < 0) {
        mem_free(c);
        return KVC_E_SYSTEM;
    }
    uv_timer_init(hub->loop, &c->timer);
    uv_timer_init(hub->loop, &c->hold);
    c->open_handles = 3;
    *connection = c;
    update_poll(c);
    return KVC_OK;
}

void connection_set_peer(struct connection *c, pid_t pid, uid_t uid, uint32_t user)
{
    c->pid = pid;
    c->uid = uid;
    c->user = user;
}

size_t connection_queued_bytes(const struct connection *c)
{
    return c->out.bytes;
}
