/*
 * One packet over an AF_UNIX SOCK_SEQPACKET socket: a 16-byte header, a body, and the file
 * descriptors that travel with it. No event loop and no protobuf in here; the daemon, the library
 * and raw test clients all use it.
 *
 * Header, little endian: 0 "KVC", 3 version (1), 4 type u16, 6 number of fds u16, 8 sequence u32,
 * 12 body length u32, which equals the packet's length less 16.
 */
#ifndef KVC_WIRE_H
#define KVC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

#define WIRE_VERSION 1u

/* Types. A reply has its request's type with WIRE_REPLY; numbers are never reused. */
enum wire_type {
    WIRE_HELLO = 1,
    WIRE_REGISTER = 2,
    WIRE_UNREGISTER = 3,
    WIRE_MAP = 4,
    WIRE_UNMAP = 5,
    WIRE_REGION_BEGIN = 6,
    WIRE_REGION_PART = 7,
    WIRE_REGION_END = 8,
    WIRE_REGION_DROP = 9,
    WIRE_LOOKUP = 10,
    WIRE_SAVE = 11,
    WIRE_ABORT = 12,
    WIRE_LOAD = 13,
    WIRE_EXTEND = 14,
    WIRE_RELEASE = 15,
    WIRE_ADOPT = 16,
    WIRE_DRAINED = 17,
    WIRE_SUSPEND = 18,
    WIRE_RESUME = 19,
    WIRE_NUDGE = 20, /* no reply */
    WIRE_HINT = 21,
    WIRE_PIN = 22,
    WIRE_FLUSH = 23,
    WIRE_STATS = 24,
    WIRE_LIST = 25,
    WIRE_CONFIG = 26,
    WIRE_WATCH = 27,
    WIRE_PING = 28,
    WIRE_REPORT = 29, /* no reply */
    WIRE_QUOTA = 30,
    WIRE_REMOTE = 31,
    WIRE_DRAIN = 32,
    WIRE_VERIFY = 33,
    WIRE_TYPE_MAX = 33,

    WIRE_DEBUG = 0x3f00, /* debug builds only: faults, clock, invariants */

    WIRE_NOTICE = 0x4000, /* from the daemon, unasked; sequence 0 */
    WIRE_SAVE_DONE = WIRE_NOTICE | 1,
    WIRE_EXTENTS = WIRE_NOTICE | 2,
    WIRE_STOPPING = WIRE_NOTICE | 3,

    WIRE_REPLY = 0x8000,
    WIRE_ERROR = 0xffff, /* the reply that refuses a request */
};

/* A received or outgoing packet. body points into the caller's buffer. */
struct wire_packet {
    uint16_t type;
    uint32_t seq;
    const uint8_t *body;
    uint32_t body_len;
    uint32_t n_fds;
    int fds[KVC_WIRE_FDS_MAX];
};

enum wire_result {
    WIRE_OK,
    WIRE_AGAIN, /* would block: wait until the socket is ready */
    WIRE_EOF,   /* the other side closed */
    WIRE_BAD,   /* a malformed packet: the connection must end; its fds are closed already */
    WIRE_LOST,  /* so it must because this process has no number left for the packet's fds */
    WIRE_FAIL,  /* errno has the system's reason */
};

/*
 * Receives one packet without blocking into buf (KVC_WIRE_PACKET_MAX bytes). On WIRE_OK the caller
 * owns packet->fds (all CLOEXEC). On anything else no fd is left open, and *why, if WIRE_BAD or
 * WIRE_LOST, is a constant text: what was wrong. Truncated data, a wrong magic, version, length or
 * number of fds, and control messages other than SCM_RIGHTS are all WIRE_BAD. An empty packet
 * cannot be told from the end and is WIRE_EOF.
 */
enum wire_result wire_recv(int sock, void *buf, struct wire_packet *packet, const char **why);

/*
 * The same for who must not wait for a descriptor to close: those of a malformed packet go to
 * close, whose they are then.
 */
typedef void wire_close_cb(void *arg, int fd);
enum wire_result wire_recv_close(int sock, void *buf, struct wire_packet *packet, const char **why,
                                 wire_close_cb *close, void *arg);

/*
 * Sends one packet without blocking. Takes header fields and fds from packet; the fds stay the
 * caller's. Never raises SIGPIPE. WIRE_EOF when the other side is gone: what it sent before may
 * still wait to be received. WIRE_FAIL sends nothing and leaves the connection usable. Two of its
 * errnos pass by themselves, but not when the socket is ready, so that only a clock may retry:
 * ETOOMANYREFS (too many descriptors of this user wait in sockets) and ENOBUFS (kernel memory).
 */
enum wire_result wire_send(int sock, const struct wire_packet *packet);

/* Closes and forgets the fds of a packet: the one place where refused descriptors end. */
void wire_close_fds(struct wire_packet *packet);

/* Writes or reads the 16 header bytes; wire_parse_header gives a text on a bad header, else NULL.
 */
void wire_put_header(uint8_t header[KVC_WIRE_HEADER_BYTES], const struct wire_packet *packet);
const char *wire_parse_header(const uint8_t *bytes, size_t len, struct wire_packet *packet);

/*
 * Connects to path without blocking on a listener that does not accept. The socket is CLOEXEC and
 * non-blocking. KVC_E_DISCONNECTED when nobody listens, KVC_E_BUSY when the backlog is full,
 * KVC_E_DENIED without permission, KVC_E_INVALID when the path is too long for a socket; errno says
 * more.
 */
kvc_status wire_connect(const char *path, int *sock);

/* The name of a type for logs; "unknown" for others. */
const char *wire_type_name(uint16_t type);

#endif
