// A client without the library: requests and replies one at a time, right or wrong, as a test
// wants them. Functions fail the test when something is not as it says.
#ifndef KVC_TESTS_LIB_TALK_H
#define KVC_TESTS_LIB_TALK_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/kvcache.pb-c.h"
#include "proto/status.h"
#include "proto/wire.h"
#include "tests/lib/daemon.h"

#define TALK_MS 2000 // for a reply, before the multiplier

// Connects, without a HELLO.
int talk_connect(const char *socket);

// What this process says, of version 1.
Kvcache__Hello talk_a_hello(Kvcache__Role role);

// Connects and says HELLO. The completion page's descriptor is in *page for roles that have one;
// NULL: it is closed.
int talk_hello(const char *socket, Kvcache__Role role, int *page);

// Sends a request; its sequence number. A NULL message is an empty body.
uint32_t talk_send(int sock, uint16_t type, const ProtobufCMessage *message);

// The same where the socket may be full or over: 0 when it did not go.
uint32_t talk_try_send(int sock, uint16_t type, const ProtobufCMessage *message);

// Waits for the reply to seq, skipping notices, and parses it; the caller frees it with
// talk_free(). fds: room for KVC_WIRE_FDS_MAX, or NULL where none are expected.
void *talk_reply(int sock, uint32_t seq, uint16_t type, const ProtobufCMessageDescriptor *body,
                 int *fds, uint32_t *n_fds);

// Both in one.
void *talk_ask(int sock, uint16_t type, const ProtobufCMessage *message,
               const ProtobufCMessageDescriptor *body);

void talk_free(void *message);

// The reply to seq is an error with this status, and with this field unless that is NULL.
void talk_expect_error(int sock, uint32_t seq, kvc_status status, const char *field);

// How the request was answered: KVC_OK, the status of an error, or KVC_E_DISCONNECTED if the
// connection ended instead. Descriptors of the reply are closed.
kvc_status talk_outcome(int sock, uint32_t seq);

// A PING comes back.
void talk_ping(int sock);

// The daemon's open descriptors once connections that ended before this call are closed; asks
// through sock, since closing takes the daemon some turns of its loop.
int talk_settled_fds(int sock, const struct daemon *d);

// The other side ends the connection within a second (times the multiplier), whatever it sends
// before.
bool talk_ended(int sock);

#endif
