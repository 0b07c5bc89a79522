#include "client/rpc.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/codec.h"

#undef rpc_fail /* defined for analysers of other files */
#undef rpc_break

/* How long to pause where the kernel gives no event to wait for. */
#define RETRY_US 1000u
/* Of a path that is too long to be one, before what is wrong. */
#define PATH_SHOWN 128

struct rpc_out {
    struct rpc_out *next;
    uint32_t seq;
    uint16_t type;
    uint32_t len;
    uint8_t body[];
};

uint64_t rpc_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t rpc_deadline_us(uint32_t ms)
{
    return rpc_now_us() + (uint64_t)ms * 1000u;
}

static void set_error(struct rpc *rpc, const char *field, const char *detail, va_list args)
{
    int n = 0;

    if (field != NULL && *field != '\0')
        n = snprintf(rpc->error, sizeof(rpc->error), "%s: ", field);
    if (n >= 0 && (size_t)n < sizeof(rpc->error))
        vsnprintf(rpc->error + n, sizeof(rpc->error) - (size_t)n, detail, args);
}

kvc_status rpc_fail(struct rpc *rpc, kvc_status status, const char *field, const char *detail, ...)
{
    va_list args;

    va_start(args, detail);
    set_error(rpc, field, detail, args);
    va_end(args);
    return status;
}

kvc_status rpc_check_count(struct rpc *rpc, const char *field, const void *array, uint32_t n,
                           uint32_t most)
{
    if (array == NULL || n == 0)
        return rpc_fail(rpc, KVC_E_INVALID, field, "none");
    if (n > most)
        return rpc_fail(rpc, KVC_E_LIMIT, field, "%u, at most %u", n, most);
    return KVC_OK;
}

static void drop_out(struct rpc *rpc)
{
    while (rpc->out != NULL) {
        struct rpc_out *first = rpc->out;

        rpc->out = first->next;
        free(first);
    }
    rpc->out_end = &rpc->out;
}

/*
 * The descriptor stays open until rpc_open or rpc_close, so that an event loop that watches it sees
 * the end and can forget it before its number means something else.
 */
kvc_status rpc_break(struct rpc *rpc, kvc_status status, const char *field, const char *detail, ...)
{
    va_list args;

    if (rpc->broken != KVC_OK)
        return rpc->broken;
    va_start(args, detail);
    set_error(rpc, field, detail, args);
    va_end(args);
    rpc->broken = status;
    drop_out(rpc);
    rpc->n_pending = 0;
    shutdown(rpc->sock, SHUT_RDWR);
    return status;
}

void rpc_init(struct rpc *rpc, rpc_take *take, void *ctx)
{
    rpc->sock = -1;
    rpc->broken = KVC_E_DISCONNECTED;
    rpc->take = take;
    rpc->ctx = ctx;
    rpc->out_end = &rpc->out;
}

static void pause_until(uint64_t deadline_us)
{
    uint64_t now = rpc_now_us();
    uint64_t us = deadline_us > now ? deadline_us - now : 0;
    struct timespec pause = {.tv_nsec = (long)(us < RETRY_US ? us : RETRY_US) * 1000};

    nanosleep(&pause, NULL);
}

kvc_status rpc_open(struct rpc *rpc, const char *path, uint64_t deadline_us)
{
    kvc_status status;
    int sock;

    rpc_close(rpc, KVC_E_DISCONNECTED);
    while ((status = wire_connect(path, &sock)) == KVC_E_BUSY && rpc_now_us() < deadline_us)
        pause_until(deadline_us);
    if (status != KVC_OK)
        return rpc_fail(rpc, status, "socket", "%.*s: %s", PATH_SHOWN, path,
                        status == KVC_E_BUSY ? kvc_status_text(status) : strerror(errno));
    rpc->sock = sock;
    rpc->broken = KVC_OK;
    return KVC_OK;
}

/* False when the connection's other end is gone, which rpc_pump finds out in its turn. */
static bool transmit_fds(struct rpc *rpc, uint16_t type, uint32_t seq, const void *body, size_t len,
                         const int *fds, uint32_t n_fds, bool *clock_only)
{
    struct wire_packet packet;
    enum wire_result result;

    packet.type = type;
    packet.seq = seq;
    packet.body = body;
    packet.body_len = (uint32_t)len;
    packet.n_fds = n_fds;
    if (n_fds > 0)
        memcpy(packet.fds, fds, n_fds * sizeof(*fds));
    result = wire_send(rpc->sock, &packet);
    *clock_only = result == WIRE_FAIL;
    /* The end is not an error yet: replies that came before it are still to be received. */
    return result == WIRE_OK || result == WIRE_EOF;
}

static bool transmit(struct rpc *rpc, uint16_t type, uint32_t seq, const void *body, size_t len,
                     bool *clock_only)
{
    return transmit_fds(rpc, type, seq, body, len, NULL, 0, clock_only);
}

static void flush(struct rpc *rpc, bool *clock_only)
{
    *clock_only = false;
    while (rpc->out != NULL) {
        struct rpc_out *first = rpc->out;

        if (!transmit(rpc, first->type, first->seq, first->body, first->len, clock_only))
            return;
        rpc->out = first->next;
        if (rpc->out == NULL)
            rpc->out_end = &rpc->out;
        free(first);
    }
}

void rpc_close(struct rpc *rpc, kvc_status broken)
{
    bool clock_only;

    if (rpc->sock >= 0) {
        if (rpc->broken == KVC_OK)
            flush(rpc, &clock_only);
        close(rpc->sock);
    }
    drop_out(rpc);
    rpc->sock = -1;
    rpc->n_pending = 0;
    rpc->broken = broken;
}

static kvc_status enqueue(struct rpc *rpc, uint16_t type, uint32_t seq, const void *body,
                          size_t len)
{
    bool clock_only;
    struct rpc_out *out;

    if (rpc->out == NULL && transmit(rpc, type, seq, body, len, &clock_only))
        return KVC_OK;
    out = malloc(sizeof(*out) + len);
    if (out == NULL)
        return rpc_fail(rpc, KVC_E_NO_MEMORY, NULL, "no memory for a request");
    out->next = NULL;
    out->seq = seq;
    out->type = type;
    out->len = (uint32_t)len;
    if (len > 0)
        memcpy(out->body, body, len);
    *rpc->out_end = out;
    rpc->out_end = &out->next;
    return KVC_OK;
}

/* Takes a request back that has not left this process. */
static bool unsend(struct rpc *rpc, uint32_t seq)
{
    for (struct rpc_out **at = &rpc->out; *at != NULL; at = &(*at)->next) {
        struct rpc_out *out = *at;

        if (out->seq != seq)
            continue;
        *at = out->next;
        if (*at == NULL)
            rpc->out_end = at;
        free(out);
        return true;
    }
    return false;
}

static uint32_t next_seq(struct rpc *rpc)
{
    if (++rpc->last_seq == 0)
        rpc->last_seq = 1;
    return rpc->last_seq;
}

static void remember(struct rpc *rpc, uint32_t seq, uint16_t type, uint64_t arg)
{
    if (rpc->n_pending < RPC_PENDING_MAX)
        rpc->pending[rpc->n_pending++] = (struct rpc_pending){seq, type, arg};
}

/* A daemon that does not answer is not given more than it may still have to do. */
static kvc_status check_pending(struct rpc *rpc)
{
    kvc_status status = KVC_OK;

    if (rpc->broken != KVC_OK)
        return rpc->broken;
    while (rpc->n_pending >= RPC_PENDING_MAX && status == KVC_OK)
        status = rpc_pump(rpc, RPC_NO_WAIT);
    if (status == KVC_E_DEADLINE)
        return rpc_fail(rpc, KVC_E_BUSY, NULL, "the daemon has not answered %u requests",
                        RPC_PENDING_MAX);
    return status;
}

kvc_status rpc_post(struct rpc *rpc, uint16_t type, const void *body, size_t len, uint64_t arg)
{
    uint32_t seq = next_seq(rpc);
    kvc_status status;

    if (rpc->broken != KVC_OK)
        return rpc->broken;
    if (rpc->n_pending >= RPC_PENDING_MAX)
        return rpc_fail(rpc, KVC_E_BUSY, NULL, "the daemon has not answered %u requests",
                        RPC_PENDING_MAX);
    status = enqueue(rpc, type, seq, body, len);
    if (status == KVC_OK)
        remember(rpc, seq, type, arg);
    return status;
}

kvc_status rpc_tell(struct rpc *rpc, uint16_t type, const void *body, size_t len)
{
    if (rpc->broken != KVC_OK)
        return rpc->broken;
    return enqueue(rpc, type, next_seq(rpc), body, len);
}

void rpc_hint(struct rpc *rpc, uint16_t type)
{
    bool clock_only;

    if (rpc->broken == KVC_OK && rpc->out == NULL)
        (void)transmit(rpc, type, next_seq(rpc), NULL, 0, &clock_only);
}

static kvc_status refusal(struct rpc *rpc, struct wire_packet *packet)
{
    struct codec_error error;

    if (!codec_get_error(packet, &error))
        return rpc_break(rpc, KVC_E_PROTOCOL, "Error", "malformed");
    /* Codes of the session's group say that this connection is of no use any more. */
    if (error.status >= KVC_E_PROTOCOL && error.status < KVC_E_DEVICE)
        return rpc_break(rpc, error.status, error.field, "%s", error.detail);
    return rpc_fail(rpc, error.status, error.field, "%s", error.detail);
}

static bool is_reply_to(const struct wire_packet *packet, uint16_t type)
{
    return packet->type == (type | WIRE_REPLY) || packet->type == WIRE_ERROR;
}

/* The reply to a request that nobody awaits; an unknown number is an old one of no interest. */
static void take_pending(struct rpc *rpc, struct wire_packet *packet)
{
    for (uint32_t i = 0; i < rpc->n_pending; i++) {
        struct rpc_pending request = rpc->pending[i];

        if (request.seq != packet->seq)
            continue;
        rpc->pending[i] = rpc->pending[--rpc->n_pending];
        if (is_reply_to(packet, request.type))
            rpc->take(rpc->ctx, &request, packet);
        else
            rpc_break(rpc, KVC_E_PROTOCOL, "type", "0x%x answers 0x%x", packet->type, request.type);
        return;
    }
}

static void deliver(struct rpc *rpc, struct wire_packet *packet)
{
    if (packet->type != WIRE_ERROR && !(packet->type & WIRE_REPLY)) {
        if (packet->type & WIRE_NOTICE)
            rpc->take(rpc->ctx, NULL, packet);
        else
            rpc_break(rpc, KVC_E_PROTOCOL, "type", "the daemon sent a request, 0x%x", packet->type);
    } else if (rpc->awaited != 0 && packet->seq == rpc->awaited && !rpc->answered) {
        rpc->answered = true;
        rpc->reply = *packet;
        return;
    } else {
        take_pending(rpc, packet);
    }
    wire_close_fds(packet);
}

static void wait_ready(struct rpc *rpc, uint64_t us, bool clock_only)
{
    struct pollfd ready = {.fd = rpc->sock, .events = POLLIN};
    struct timespec limit;

    if (rpc->out != NULL && clock_only)
        us = us < RETRY_US ? us : RETRY_US;
    else if (rpc->out != NULL)
        ready.events |= POLLOUT;
    limit.tv_sec = (time_t)(us / 1000000u);
    limit.tv_nsec = (long)(us % 1000000u) * 1000;
    (void)ppoll(&ready, 1, &limit, NULL);
}

kvc_status rpc_pump(struct rpc *rpc, uint64_t deadline_us)
{
    struct wire_packet packet;
    const char *why = NULL;
    bool clock_only;
    uint64_t now;

    while (rpc->broken == KVC_OK) {
        flush(rpc, &clock_only);
        switch (wire_recv(rpc->sock, rpc->in, &packet, &why)) {
        case WIRE_OK:
            deliver(rpc, &packet);
            return rpc->broken;
        case WIRE_AGAIN:
            now = rpc_now_us();
            if (now >= deadline_us)
                return KVC_E_DEADLINE;
            wait_ready(rpc, deadline_us - now, clock_only);
            break;
        case WIRE_EOF:
            return rpc_break(rpc, KVC_E_DISCONNECTED, NULL, "the daemon closed the connection");
        case WIRE_BAD:
            return rpc_break(rpc, KVC_E_PROTOCOL, "packet", "%s", why);
        case WIRE_LOST:
            /* What the packet gave is not known, so the session is over; but not for its fault. */
            rpc_break(rpc, KVC_E_DISCONNECTED, "packet", "%s: no number left for them", why);
            return KVC_E_NO_FDS;
        case WIRE_FAIL:
            return rpc_break(rpc, KVC_E_DISCONNECTED, "recvmsg", "%s", strerror(errno));
        }
    }
    return rpc->broken;
}

static kvc_status wait_reply(struct rpc *rpc, uint64_t deadline_us)
{
    kvc_status status;

    do {
        status = rpc_pump(rpc, deadline_us);
        if (rpc->answered)
            return KVC_OK;
    } while (status == KVC_OK && rpc_now_us() < deadline_us);
    return status == KVC_OK ? KVC_E_DEADLINE : status;
}

/* Waits for the reply to a request that was sent. KVC_E_DEADLINE says nothing yet. */
static kvc_status await(struct rpc *rpc, uint32_t number, uint16_t type, uint64_t deadline_us,
                        struct wire_packet *reply)
{
    kvc_status status;

    rpc->awaited = number;
    rpc->answered = false;
    status = wait_reply(rpc, deadline_us);
    rpc->awaited = 0;
    if (status != KVC_OK)
        return status;
    if (rpc->reply.type == WIRE_ERROR) {
        status = refusal(rpc, &rpc->reply);
    } else if (!is_reply_to(&rpc->reply, type)) {
        status = rpc_break(rpc, KVC_E_PROTOCOL, "type", "0x%x answers 0x%x", rpc->reply.type, type);
    } else {
        *reply = rpc->reply;
        return KVC_OK;
    }
    wire_close_fds(&rpc->reply);
    return status;
}

kvc_status rpc_call(struct rpc *rpc, uint16_t type, const void *body, size_t len, uint64_t arg,
                    uint64_t deadline_us, struct wire_packet *reply, uint32_t *seq)
{
    uint32_t number;
    kvc_status status = check_pending(rpc);

    if (status != KVC_OK)
        return status;
    number = next_seq(rpc);
    status = enqueue(rpc, type, number, body, len);
    if (status != KVC_OK)
        return status;
    status = await(rpc, number, type, deadline_us, reply);
    if (status == KVC_E_DEADLINE && !rpc->answered) {
        bool unsent = unsend(rpc, number);

        if (!unsent)
            remember(rpc, number, type, arg);
        if (seq != NULL)
            *seq = unsent ? 0 : number;
        return rpc_fail(rpc, status, NULL, "the daemon did not answer in time");
    }
    return status;
}

kvc_status rpc_call_fds(struct rpc *rpc, uint16_t type, const void *body, size_t len,
                        const int *fds, uint32_t n_fds, uint64_t deadline_us,
                        struct wire_packet *reply)
{
    kvc_status status = check_pending(rpc);
    const uint32_t number = next_seq(rpc);
    bool clock_only;
    uint64_t now;

    while (status == KVC_OK) {
        flush(rpc, &clock_only);
        if (rpc->out == NULL && transmit_fds(rpc, type, number, body, len, fds, n_fds, &clock_only))
            break;
        now = rpc_now_us();
        if (now >= deadline_us)
            return rpc_fail(rpc, KVC_E_DEADLINE, NULL, "the daemon takes no request");
        /* Descriptors do not wait in a queue of ours: they would have to be kept open there. */
        status = rpc_pump(rpc, now + RETRY_US < deadline_us ? now + RETRY_US : deadline_us);
        if (status == KVC_E_DEADLINE)
            status = KVC_OK;
    }
    if (status == KVC_OK)
        status = await(rpc, number, type, deadline_us, reply);
    if (status == KVC_E_DEADLINE && !rpc->answered) {
        remember(rpc, number, type, 0);
        return rpc_fail(rpc, status, NULL, "the daemon did not answer in time");
    }
    return status;
}
