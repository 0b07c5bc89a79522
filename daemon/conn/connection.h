/*
 * Sockets, packets and bodies. conn/ knows nothing of sessions or of the store; it may include
 * base/ and proto/, libuv, and protobuf in codec*.c only. The doors are endpoint.h (where to
 * listen), listener.h (new sockets), connection.h (packets), process.h (who is at the other end),
 * codec.h (bodies, which are message.h's structs) and watch.h (descriptors on the loop).
 *
 * A connection reads packets from one socket, a bounded number each time the loop wakes, and queues
 * what it sends. A client that does not read its replies is not read from either
 * (KVC_OUT_STOP_BYTES) and in the end cut (KVC_OUT_CUT_BYTES, KVC_OUT_CUT_MS). Nor is one that is
 * held for what its process has sent (pace.h).
 *
 * Descriptors that came from a client, and its socket, which may hold more of them, are closed by
 * the closer.
 */
#ifndef KVC_CONN_CONNECTION_H
#define KVC_CONN_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "daemon/base/closer.h"
#include "daemon/conn/pace.h"
#include "proto/status.h"
#include "proto/wire.h"

struct connection;

/* What the connections of a loop share. */
struct connection_hub {
    uv_loop_t *loop;
    uint8_t *buffer; /* KVC_WIRE_PACKET_MAX bytes: one packet is handled at a time */
    struct closer *closer;
    struct pace pace;
    uint64_t bad_packets;
};

kvc_status connection_hub_init(struct connection_hub *hub, uv_loop_t *loop);
void connection_hub_fini(struct connection_hub *hub);

struct connection_events {
    /*
     * One packet. Its fds are not its own any more when this returns, except those that were taken
     * by setting them to -1. It may send, end or finish the connection.
     */
    void (*packet)(void *arg, struct wire_packet *packet);
    /*
     * The connection is over, and freed when this returns. Called once, from the loop, never from
     * inside another call.
     */
    void (*ended)(void *arg);
};

/* Takes the socket over, on success only. */
kvc_status connection_open(struct connection_hub *hub, int sock,
                           const struct connection_events *events, void *arg,
                           struct connection **connection);

/*
 * Queues a packet; body is copied, fds (n_fds of them) are taken over in any case. Nothing happens
 * on a connection that is over. One that has no memory for a packet is ended.
 */
void connection_send(struct connection *connection, uint16_t type, uint32_t seq,
                     const uint8_t *body, size_t body_len, const int *fds, uint32_t n_fds);

/* Whether the other side has closed, seen now and not only when all that it sent was read. */
bool connection_is_over(const struct connection *connection);

/* Ends it; ended() follows. Harmless on one that is over. */
void connection_end(struct connection *connection);

/* Ends it because of a packet that breaks the protocol: with one warning, and counted. */
void connection_malformed(struct connection *connection, const char *why);

/* Ends it because of what it does not do: with one warning that says why, and counted. */
void connection_cut(struct connection *connection, const char *why);

/* Handles what has arrived so far, however full the queue is, then ends it: its process is gone. */
void connection_finish(struct connection *connection);

/* A request that was refused brought so many descriptors. */
void connection_in_vain(struct connection *connection, uint32_t n_fds);
/* It has ended, and nothing was said. */
void connection_was_silent(struct connection_hub *hub, pid_t pid, uid_t uid);
/* Before the first packet: for the log, and for what its process, and its user as the closer has
 * them, have done. */
void connection_set_peer(struct connection *connection, pid_t pid, uid_t uid, uint32_t user);

size_t connection_queued_bytes(const struct connection *connection);

#endif
