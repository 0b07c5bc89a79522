/*
 * UCX: the only place that knows it. The library is looked for when it is first needed, so a daemon
 * without peers never loads it, and one binary runs with 1.13 and later. A worker is one direction
 * of this daemon; its progress is made by the loop, which sleeps only while UCX says that its
 * descriptor will wake it.
 *
 * Whatever goes wrong with an endpoint ends that endpoint: its operations complete with an error,
 * and only when the last of them has, `closed` is called. Until then their memory is not the
 * caller's to reuse.
 */
#ifndef KVC_PEER_UCX_H
#define KVC_PEER_UCX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/list.h"
#include "proto/status.h"

#define UCX_WHY_MAX   200u
#define UCX_LANES_MAX 96u

struct ucx;
struct ucx_worker;
struct ucx_endpoint;
struct ucx_rkey;

/* KVC_E_UNSUPPORTED, with a sentence: built without it, it is not there, or it is too old. */
kvc_status ucx_open(const char *library, char why[UCX_WHY_MAX], struct ucx **ucx);
/* After its workers and memories. NULL is fine. */
void ucx_close(struct ucx *ucx);
const char *ucx_version(const struct ucx *ucx);

/* Whether it knows memory of GPUs at all, as a UCX that was built with CUDA does. */
bool ucx_knows_gpus(const struct ucx *ucx);

/* Registered memory, and what a peer needs to reach it. Of a GPU it is without a handle, too. */
struct ucx_memory {
    void *handle;
    uint8_t *rkey;
    size_t rkey_len;
    bool gpu;
};
/* memory->gpu says which kind it is. */
kvc_status ucx_register(struct ucx *ucx, void *base, size_t bytes, struct ucx_memory *memory);
/* Whether there is a transport that reaches it by its key; what none does UCX emulates. */
bool ucx_is_reachable(const struct ucx_memory *memory);
/* Whether such a transport may be UCX's own mappings of other processes' GPU memory. */
bool ucx_maps_gpus(const struct ucx *ucx);
void ucx_unregister(struct ucx *ucx, struct ucx_memory *memory);

/* Workers. */

/* What a message is known by: blocks of a batch. */
struct ucx_tag {
    uint64_t id;
    uint32_t first, n;
};
/*
 * A message of `bytes` has come under a tag, which its sender chose: where it is to be written, or
 * NULL, which refuses it. *op completes when it is there.
 */
struct ucx_op;
typedef void *ucx_message_cb(void *arg, const struct ucx_tag *tag, size_t bytes,
                             struct ucx_op **op);

struct ucx_call; /* that is coming in */
struct ucx_worker_events {
    void *arg;
    ucx_message_cb *message; /* NULL: none are taken */
    /* Of a worker that listens: whether somebody from there is waited for; and then who it is, to
     * be accepted inside the call, or he is refused. */
    bool (*expects)(void *arg, const struct sockaddr_storage *from);
    void (*called)(void *arg, uint64_t number, struct ucx_call *call);
    void (*progressed)(void *arg); /* something has happened; NULL is fine */
};
kvc_status ucx_worker_open(struct ucx *ucx, uv_loop_t *loop, const struct ucx_worker_events *events,
                           struct ucx_worker **worker);
/* Its endpoints are closed. `done` when it is gone: its handles are then closed, too. */
void ucx_worker_close(struct ucx_worker *worker, void (*done)(void *arg), void *arg);
/* Something was asked or answered over a link, so that there will be more to do soon: for a moment
 * the loop stays awake, as it does while bytes are on their way. */
void ucx_worker_soon(struct ucx_worker *worker);
/* For who asks, until he has all that he asked for: when the last leaves, the moment is over. */
void ucx_worker_join(struct ucx_worker *worker);
void ucx_worker_leave(struct ucx_worker *worker);
/* By which it is known to those whom it calls; at random. */
uint64_t ucx_worker_number(const struct ucx_worker *worker);
/* At a port of UCX's own choice; 0: it does not listen. */
kvc_status ucx_listen(struct ucx_worker *worker, const struct sockaddr_storage *host);
uint16_t ucx_worker_port(const struct ucx_worker *worker);

/* Endpoints. */

struct ucx_endpoint_events {
    void *arg;
    /* The peer failed: it must be closed. Once, from the loop, never from inside a call. */
    void (*failed)(void *arg, kvc_status status);
};
struct ucx_way {
    struct sockaddr_storage from, to; /* hosts */
    uint16_t port;                    /* there */
};
/*
 * Calls who listens there. Endpoints are made by calls, not by addresses of workers that both sides
 * know: only so does UCX 1.13 receive over TCP right where the bytes belong, on endpoints whose
 * failures are told; else each byte is copied once more. It has lanes when a flush has completed.
 */
kvc_status ucx_connect(struct ucx_worker *worker, const struct ucx_way *way,
                       const struct ucx_endpoint_events *events, struct ucx_endpoint **endpoint);
kvc_status ucx_accept(struct ucx_call *call, const struct ucx_endpoint_events *events,
                      struct ucx_endpoint **endpoint);
/* Transports of its lanes, "tcp", or "cma posix tcp". */
void ucx_lanes(const struct ucx_endpoint *endpoint, char lanes[UCX_LANES_MAX]);
/* Nothing can be begun on it any more; closed() when all of its operations have completed. */
void ucx_disconnect(struct ucx_endpoint *endpoint, void (*closed)(void *arg), void *arg);

kvc_status ucx_rkey_open(struct ucx_endpoint *endpoint, const uint8_t *bytes, size_t len,
                         struct ucx_rkey **rkey);
/* Whether UCX has mapped what is at an address there; it does so here, if it can. */
bool ucx_rkey_maps(struct ucx_endpoint *endpoint, struct ucx_rkey *rkey, uint64_t address);
void ucx_rkey_close(struct ucx_endpoint *endpoint, struct ucx_rkey *rkey); /* NULL is fine */

/* Operations. */

/* The caller's memory until done was called; done is called once, never from inside a call. */
struct ucx_op {
    void (*done)(struct ucx_op *op, kvc_status status);

    /* Its own. */
    struct list link; /* of those that have completed */
    struct ucx_endpoint *endpoint;
    kvc_status status;
    struct ucx_tag tag; /* of a message, which is not copied when it is sent */
};

void ucx_get(struct ucx_endpoint *endpoint, struct ucx_op *op, void *to, size_t bytes,
             const struct ucx_memory *memory, uint64_t from, struct ucx_rkey *rkey);
void ucx_put(struct ucx_endpoint *endpoint, struct ucx_op *op, const void *from, size_t bytes,
             const struct ucx_memory *memory, uint64_t to, struct ucx_rkey *rkey);
/* Completes when everything that was put before is there. */
void ucx_flush(struct ucx_endpoint *endpoint, struct ucx_op *op);
/* By rendezvous: no byte moves before the other side has said where to. */
void ucx_send(struct ucx_endpoint *endpoint, struct ucx_op *op, const struct ucx_tag *tag,
              const void *from, size_t bytes, const struct ucx_memory *memory);
/* Puts an operation that ucx_message_cb named under the endpoint that it comes from, so that the
 * endpoint's end waits for it. */
void ucx_expect(struct ucx_endpoint *endpoint, struct ucx_op *op);

#endif
