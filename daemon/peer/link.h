/*
 * Links: control connections between two daemons, TCP on the loop. The daemon that connects is the
 * asker of a link, the other its source; what one wants of the other in the opposite direction goes
 * over a link of its own. A link greets by itself (HELLO, proofs, READY) and is open when both
 * sides have said READY; after that its owner gets every message. Whatever is wrong ends it, once.
 *
 * Control does not go over UCX: what strangers send is read by code that was made for it, and the
 * death of a peer is told by the kernel. UCX sees only who has passed.
 */
#ifndef KVC_PEER_LINK_H
#define KVC_PEER_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/list.h"
#include "daemon/peer/message.h"
#include "daemon/peer/secret.h"
#include "proto/status.h"

#define LINK_OUT_MAX  (1024u * 1024u) /* memory of unsent messages, at which it is cut */
#define LINK_NAME_MAX 64u

enum link_state {
    LINK_CONNECTING, /* asker: TCP */
    LINK_GREETING,   /* HELLO was sent, or (source) is waited for */
    LINK_PROVING,    /* a PROOF is waited for */
    LINK_READYING,   /* READY is waited for */
    LINK_OPEN,
    LINK_CLOSING, /* ended() is due, or was called */
};

struct link;

struct link_events {
    /* READY is to be sent: fills it in. Nothing of it is kept. false: the link is refused. */
    bool (*ready)(void *arg, struct link *link, struct message_ready *ready);
    /* The other side's READY: the link is open when this returns KVC_OK. */
    kvc_status (*open)(void *arg, struct link *link, const struct message_ready *ready);
    void (*message)(void *arg, struct link *link, const struct message *message);
    /* Called once; the link is freed when it returns. why is for people. */
    void (*ended)(void *arg, struct link *link, const char *why);
};

struct link_config {
    uv_loop_t *loop;
    uint64_t epoch;
    const struct secret *secret; /* stays */
    uint32_t greet_ms;           /* a link that is not open by then ends */
    const struct link_events *events;
    struct sockaddr_storage from; /* links are made from there; family 0: from anywhere */
};

struct link {
    struct list link; /* its owner's */
    void *arg;        /* of the events */
    const struct link_config *config;
    enum link_state state;
    enum secret_side side;    /* this daemon's */
    char name[LINK_NAME_MAX]; /* address of the other side */
    uint64_t epoch;           /* of the other side's start */
    uint64_t heard_us;        /* clock_us of the last message */
    uint64_t began_us;

    /* Its own. */
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_connect_t connecting;
    uint32_t handles;
    const char *why;
    char why_text[96];
    uint8_t hello_out[MESSAGE_HELLO_BYTES], hello_in[MESSAGE_HELLO_BYTES];
    size_t in_len;
    uint8_t in[MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX];
    size_t unsent;                                        /* memory of messages being sent */
    uint8_t out[MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX]; /* while a message is written */
};

/* Connects to an address. */
kvc_status link_connect(const struct link_config *config, const struct sockaddr *address,
                        const char *name, void *arg, struct link **link);
/* Takes a connection that waits at a listener; out of memory it waits there on, and with it all
 * that come later. */
kvc_status link_accept(const struct link_config *config, uv_stream_t *listener, void *arg,
                       struct link **link);
bool link_is_loopback(const struct sockaddr_storage *address);
/* The addresses of the other side and of this one; false: there is none. */
bool link_peer(const struct link *link, struct sockaddr_storage *address);
bool link_self(const struct link *link, struct sockaddr_storage *address);

void link_send(struct link *link, const struct message *message);

/* Ends it: ended() comes from the loop. why must stay. Again is harmless. */
void link_end(struct link *link, const char *why);

#endif
