#include "daemon/conn/outqueue.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"

/*
 * Descriptors in packets that nobody has received count against the user's limit of open files, all
 * sockets together: a client that asks for many and reads none would use up everybody's. So no more
 * than this many are sent to one that has not read what it was sent before.
 */
#define FDS_UNREAD_MAX (2 * KVC_WIRE_FDS_MAX)

/* No larger than it must be: most packets are small, and carry no descriptor. */
struct out_packet {
    struct list link;
    uint16_t type;
    uint32_t seq, body_len, n_fds;
    int fds[]; /* and behind them the body */
};

static size_t size_of(const struct out_packet *out)
{
    return sizeof(*out) + out->n_fds * sizeof(out->fds[0]) + out->body_len;
}

static uint8_t *body_of(struct out_packet *out)
{
    return (uint8_t *)(out->fds + out->n_fds);
}

/* What its memory is, so that many small packets are not worth more than they say. */
static size_t weight(const struct out_packet *out)
{
    return size_of(out) + out->n_fds * (size_t)OUTQUEUE_FD_BYTES;
}

static void unpack(struct out_packet *out, struct wire_packet *packet)
{
    packet->type = out->type;
    packet->seq = out->seq;
    packet->body = body_of(out);
    packet->body_len = out->body_len;
    packet->n_fds = out->n_fds;
    memcpy(packet->fds, out->fds, out->n_fds * sizeof(out->fds[0]));
}

void outqueue_init(struct outqueue *queue)
{
    list_init(&queue->packets);
    queue->bytes = 0;
    queue->fds_unread = 0;
}

static void drop(struct outqueue *queue, struct out_packet *out)
{
    struct wire_packet packet;

    unpack(out, &packet);
    queue->bytes -= weight(out);
    list_remove(&out->link);
    wire_close_fds(&packet);
    mem_free(out);
}

void outqueue_clear(struct outqueue *queue)
{
    struct out_packet *out;

    while ((out = list_first(&queue->packets, struct out_packet, link)) != NULL)
        drop(queue, out);
}

bool outqueue_empty(const struct outqueue *queue)
{
    return list_empty(&queue->packets);
}

kvc_status outqueue_push(struct outqueue *queue, const struct wire_packet *packet)
{
    const struct out_packet head = {.type = packet->type,
                                    .seq = packet->seq,
                                    .body_len = packet->body_len,
                                    .n_fds = packet->n_fds};
    struct out_packet *out = mem_alloc(size_of(&head));

    if (out == NULL)
        return KVC_E_NO_MEMORY;
    *out = head;
    memcpy(out->fds, packet->fds, packet->n_fds * sizeof(out->fds[0]));
    memcpy(body_of(out), packet->body, packet->body_len);
    list_init(&out->link);
    list_push_back(&queue->packets, &out->link);
    queue->bytes += weight(out);
    return KVC_OK;
}

/* SIOCOUTQ is what the other side has not received yet, in bytes of the kernel's memory. */
static bool may_send_fds(struct outqueue *queue, int sock, uint32_t n)
{
    int unread = 0;

    if (queue->fds_unread + n <= FDS_UNREAD_MAX)
        return true;
    if (ioctl(sock, SIOCOUTQ, &unread) < 0 || unread > 0)
        return false;
    queue->fds_unread = 0;
    return true;
}

static enum outqueue_result send_one(struct outqueue *queue, int sock,
                                     const struct wire_packet *packet)
{
    if (packet->n_fds > 0 && !may_send_fds(queue, sock, packet->n_fds))
        return OUTQUEUE_LATER;
    if (fault_fires("outqueue.send")) /* as if ENOBUFS */
        return OUTQUEUE_LATER;
    switch (wire_send(sock, packet)) {
    case WIRE_OK:
        queue->fds_unread += packet->n_fds;
        return OUTQUEUE_SENT;
    case WIRE_AGAIN:
        return OUTQUEUE_WAIT;
    case WIRE_FAIL:
        if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM)
            return OUTQUEUE_LATER;
        return OUTQUEUE_OVER;
    default:
        return OUTQUEUE_OVER;
    }
}

enum outqueue_result outqueue_flush(struct outqueue *queue, int sock, bool *sent)
{
    struct out_packet *out;

    while ((out = list_first(&queue->packets, struct out_packet, link)) != NULL) {
        struct wire_packet packet;
        enum outqueue_result result;

        unpack(out, &packet);
        result = send_one(queue, sock, &packet);
        if (result != OUTQUEUE_SENT)
            return result;
        *sent = true;
        drop(queue, out);
    }
    return OUTQUEUE_SENT;
}

enum outqueue_result outqueue_direct(struct outqueue *queue, int sock, struct wire_packet *packet)
{
    enum outqueue_result result = send_one(queue, sock, packet);

    if (result == OUTQUEUE_SENT)
        wire_close_fds(packet);
    return result;
}
