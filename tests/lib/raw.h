// Packets by hand, right and wrong ones, below everything that proto/wire checks: for tests of
// wire_recv(), and for clients that a daemon must survive.
#ifndef KVC_TESTS_LIB_RAW_H
#define KVC_TESTS_LIB_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

// The most bytes that a raw packet has room for: more than any receiver takes.
#define RAW_BYTES_MAX (2u * KVC_WIRE_PACKET_MAX)
// The most descriptors that the kernel sends at once.
#define RAW_FDS_MAX 253u

struct raw {
    size_t len;
    uint32_t n_fds; // sent, whatever the header says
    uint8_t bytes[RAW_BYTES_MAX];
};

// A right packet with body_len bytes of body (a pattern) and n_fds descriptors.
void raw_make(struct raw *raw, uint16_t type, uint32_t seq, uint32_t body_len, uint32_t n_fds);

void raw_put_u16(struct raw *raw, size_t at, uint32_t value);
void raw_put_u32(struct raw *raw, size_t at, uint32_t value);

// Sends it without blocking, with copies of descriptor 0 where it has some; whether it went.
bool raw_send(int sock, const struct raw *raw);

// The table of malformed packets: each must end the connection that it came on, and no other.
struct raw_bad {
    const char *name;
    const char *why; // the text of wire_recv()
};
size_t raw_bad_count(void);
struct raw_bad raw_bad_get(size_t i, struct raw *raw);

// Both ends of a connection.
void raw_pair(int ends[2]);

#endif
