/*
 * Requests and replies over one connection. A request has a sequence number; replies come in any
 * order. One request at a time is *awaited* by rpc_call; the replies to others (posted, or given up
 * when their time was over) and the daemon's notices go to `take`, from inside rpc_pump.
 *
 * Nothing blocks but rpc_pump and rpc_call, until their deadline. What the socket does not accept
 * waits in a queue of this process; a request that is given up while it still waits there is never
 * sent. The first error of the connection latches: everything fails with it until rpc_open.
 */
#ifndef KVC_CLIENT_RPC_H
#define KVC_CLIENT_RPC_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"
#include "proto/wire.h"

#define RPC_NO_WAIT     0u   /* a deadline that has passed: only looks */
#define RPC_PENDING_MAX 128u /* unanswered requests that nobody awaits */
#define RPC_ERROR_BYTES 192u

/* A request whose reply goes to take: posted, or given up. arg is the caller's. */
struct rpc_pending {
    uint32_t seq;
    uint16_t type;
    uint64_t arg;
};

struct rpc_out; /* a packet that the socket did not accept yet */

/*
 * request is NULL for notices. The packet and its descriptors are valid until take returns; it sets
 * those that it keeps to -1. It may post, and break the connection, but not call.
 */
typedef void rpc_take(void *ctx, const struct rpc_pending *request, struct wire_packet *packet);

struct rpc {
    int sock;          /* -1: never opened, or closed */
    kvc_status broken; /* KVC_OK: usable */
    uint32_t last_seq;
    rpc_take *take;
    void *ctx;

    struct rpc_out *out, **out_end;
    struct rpc_pending pending[RPC_PENDING_MAX];
    uint32_t n_pending;

    uint32_t awaited; /* 0: none */
    bool answered;
    struct wire_packet reply; /* points into `in` */

    char error[RPC_ERROR_BYTES];
    uint8_t body[KVC_WIRE_BODY_MAX];  /* where callers pack a request's body */
    uint8_t spare[KVC_WIRE_BODY_MAX]; /* where take does, while that may be in use */
    uint8_t in[KVC_WIRE_PACKET_MAX];
};

uint64_t rpc_now_us(void); /* CLOCK_MONOTONIC */
uint64_t rpc_deadline_us(uint32_t ms);

void rpc_init(struct rpc *rpc, rpc_take *take, void *ctx);

/* Connects; a full backlog is tried again until the deadline. */
kvc_status rpc_open(struct rpc *rpc, const char *path, uint64_t deadline_us);

/* Closes and forgets everything pending; sends what goes without waiting. */
void rpc_close(struct rpc *rpc, kvc_status broken);

/*
 * Sends a request and waits for its reply. On KVC_OK *reply is valid until the next call or pump,
 * and its descriptors are the caller's. A refusal by the daemon is its status, with its words in
 * rpc->error. KVC_E_DEADLINE: given up; *seq is its number, or 0 when it was never sent, and its
 * late reply goes to take with arg. KVC_E_BUSY at once when too many requests are unanswered.
 * body may be rpc->body.
 */
kvc_status rpc_call(struct rpc *rpc, uint16_t type, const void *body, size_t len, uint64_t arg,
                    uint64_t deadline_us, struct wire_packet *reply, uint32_t *seq);

/*
 * The same with descriptors, which stay the caller's. On KVC_E_DEADLINE it is not known whether the
 * request was sent.
 */
kvc_status rpc_call_fds(struct rpc *rpc, uint16_t type, const void *body, size_t len,
                        const int *fds, uint32_t n_fds, uint64_t deadline_us,
                        struct wire_packet *reply);

/* Sends a request whose reply goes to take. */
kvc_status rpc_post(struct rpc *rpc, uint16_t type, const void *body, size_t len, uint64_t arg);
/* Sends one whose reply, if there is any, nobody wants. */
kvc_status rpc_tell(struct rpc *rpc, uint16_t type, const void *body, size_t len);
/* The same, only if the socket takes it at once; otherwise nothing happens. */
void rpc_hint(struct rpc *rpc, uint16_t type);

/* Takes in one packet; KVC_E_DEADLINE when none has come until then. */
kvc_status rpc_pump(struct rpc *rpc, uint64_t deadline_us);

/* Sets what kvc_error says: "field: detail", or the detail alone. Returns status. */
kvc_status rpc_fail(struct rpc *rpc, kvc_status status, const char *field, const char *detail, ...)
    __attribute__((format(printf, 4, 5)));
/* KVC_E_INVALID for an array of none, KVC_E_LIMIT for one of more than `most`. */
kvc_status rpc_check_count(struct rpc *rpc, const char *field, const void *array, uint32_t n,
                           uint32_t most);
/* What rpc_fail() does, for what ends the connection. The first one stays. */
kvc_status rpc_break(struct rpc *rpc, kvc_status status, const char *field, const char *detail, ...)
    __attribute__((format(printf, 4, 5)));

/* An analyser of one file at a time does not see that they return what they are given. */
#ifdef KVC_LINT
#define rpc_fail(rpc, status, ...)  ((rpc_fail)(rpc, status, __VA_ARGS__), (status))
#define rpc_break(rpc, status, ...) ((rpc_break)(rpc, status, __VA_ARGS__), (status))
#endif

#endif
