/*
 * Packets that wait to be sent, with the descriptors that go with them. Kept in user space, since a
 * socket's own buffer cannot be relied on: it is small, and full of what its reader does not read.
 */
#ifndef KVC_CONN_OUTQUEUE_H
#define KVC_CONN_OUTQUEUE_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/base/list.h"
#include "proto/wire.h"

struct outqueue {
    struct list packets;
    size_t bytes;        /* of memory for all packets, a descriptor counted as OUTQUEUE_FD_BYTES */
    uint32_t fds_unread; /* sent since the other side was last known to have read everything */
};

/* What a queued descriptor weighs: a full packet of them stops reading, sixteen cut. */
#define OUTQUEUE_FD_BYTES 1024u

void outqueue_init(struct outqueue *queue);

/* Frees everything and closes the descriptors. */
void outqueue_clear(struct outqueue *queue);

bool outqueue_empty(const struct outqueue *queue);

/* Copies the body and takes the descriptors over. KVC_E_NO_MEMORY leaves both as they were. */
kvc_status outqueue_push(struct outqueue *queue, const struct wire_packet *packet);

enum outqueue_result {
    OUTQUEUE_SENT,  /* everything */
    OUTQUEUE_WAIT,  /* until the socket is writable */
    OUTQUEUE_LATER, /* only a clock can tell when to try again */
    OUTQUEUE_OVER,  /* nobody reads at the other end, or the socket failed */
};

/* Sends what can be sent; *sent is set when at least one packet went. */
enum outqueue_result outqueue_flush(struct outqueue *queue, int sock, bool *sent);

/*
 * Sends one packet past an empty queue; on OUTQUEUE_SENT its descriptors have been closed, else
 * they are still the caller's.
 */
enum outqueue_result outqueue_direct(struct outqueue *queue, int sock, struct wire_packet *packet);

#endif
