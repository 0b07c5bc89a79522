/*
 * Messages between daemons, as PROTOCOL.md's chapter on peers has them: a frame is a header of 16
 * bytes and a body of fixed fields, little endian, written and read here and nowhere else. Reading
 * checks every length and bound that does not depend on a state; what it accepts can be taken as it
 * is. Arrays of a message point into the frame that it was read from.
 */
#ifndef KVC_PEER_MESSAGE_H
#define KVC_PEER_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

#define MESSAGE_FRAMES       1u /* their version */
#define MESSAGE_VERSION      2u /* of what is said in them */
#define MESSAGE_HEADER_BYTES 16u
#define MESSAGE_BODY_MAX     (64u * 1024u)
#define MESSAGE_NONCE_BYTES  32u
#define MESSAGE_HELLO_BYTES  (16u + MESSAGE_NONCE_BYTES)
#define MESSAGE_MAC_BYTES    32u
#define MESSAGE_RKEY_MAX     2048u
#define MESSAGE_REGIONS_MAX  4u
#define MESSAGE_KEYS_MAX     64u /* of a message */

enum message_type {
    MESSAGE_HELLO = 1, /* both sides, first */
    MESSAGE_PROOF = 2, /* both sides, where there is a secret */
    MESSAGE_READY = 3, /* both sides */
    MESSAGE_QUERY = 4, /* which of these keys do you have? */
    MESSAGE_ANSWER = 5,
    MESSAGE_FETCH = 6, /* a batch of a lease's blocks */
    MESSAGE_RESULT = 7,
    MESSAGE_DONE = 8,    /* the batch is over here; or is not wanted any more */
    MESSAGE_RELEASE = 9, /* the lease is */
    MESSAGE_PING = 10,
    MESSAGE_PONG = 11,
    MESSAGE_BYE = 12,      /* why the sender closes */
    MESSAGE_ASK_KEYS = 13, /* how is memory of GPUs read? */
    MESSAGE_KEYS = 14,
    MESSAGE_TYPE_MAX = 14,
};

/* How a batch's bytes travel; bits 1 << mode in READY. */
enum message_mode {
    MESSAGE_VIEWS = 0, /* packed, one message a batch */
    MESSAGE_GET = 1,   /* the asker reads */
    MESSAGE_PUT = 2,   /* the source writes */
    MESSAGE_SEND = 3,  /* a message for each run of neighbours, from slots into slots */
    MESSAGE_GPU = 4,   /* the asker reads GPU memory, into that of its own */
    MESSAGE_MODES = 5,
};

struct message_hello {
    uint32_t version;
    uint64_t epoch; /* of this start of the daemon */
    bool secret;    /* it has one, and wants proof */
    const uint8_t *nonce;
};

struct message_region {
    uint32_t tier;
    uint64_t base, bytes; /* address in the sender's process */
    const uint8_t *rkey;
    uint32_t rkey_len;
};

struct message_ready {
    uint32_t modes;
    uint64_t view_bytes[2]; /* full, small; 0: none */
    uint64_t caller;        /* an asker's: the number by which its UCX says who calls */
    uint32_t port;          /* a source's: at which its UCX is to be called */
    uint32_t n_regions;
    struct message_region regions[MESSAGE_REGIONS_MAX];
};

struct message_query {
    uint64_t id;
    const uint8_t *namespace_digest, *fingerprint;
    uint32_t rule, window;
    uint32_t lease_ms; /* 0: only which of them it has */
    const uint8_t *keys;
    uint32_t n_keys;
};

struct message_answer {
    uint64_t id, lease;
    uint32_t status;       /* kvc_status; a refusal is a miss */
    uint32_t first, count; /* of the keys: the first run that it has */
    uint32_t part;         /* its number there */
    uint64_t load;         /* bytes that it is sending to everybody */
    /* (n_keys + 63) / 64 x 8: a bit for each key. Of a QUERY without a lease: that it has. Of one
     * with a lease, of which MESSAGE_GPU has some blocks, on_gpu, and not all: that it has; n_keys
     * is the count then, and else 0. */
    uint32_t n_keys;
    const uint8_t *has;
    uint32_t on_gpu;
};

/* Blocks of the lease by their place in it. Destinations: of MESSAGE_PUT, and of
 * MESSAGE_SEND, where they say no more than which are neighbours. */
struct message_fetch {
    uint64_t id, lease;
    uint32_t part, mode;
    uint64_t view_bytes; /* of MESSAGE_VIEWS */
    uint32_t n;
    const uint8_t *places;       /* n x 4 */
    const uint8_t *destinations; /* n x 8: offsets in a region, ... */
    const uint8_t *regions;      /* n x 1: ... of this tier */
};

/* What is sent, or where it lies; in the order of the FETCH. */
struct message_result {
    uint64_t id;
    uint32_t status;
    uint32_t n;               /* 0 unless status is KVC_OK */
    const uint8_t *checksums; /* n x 8 */
    const uint8_t *checked;   /* n x 1 */
    const uint8_t *offsets;   /* n x 8, of MESSAGE_GET */
    const uint8_t *regions;   /* n x 1 */
};

/* Of the source's GPU tier, extent by extent. */
struct message_key {
    uint64_t base; /* address in its process */
    const uint8_t *rkey;
    uint32_t rkey_len;
};
struct message_keys {
    uint64_t extent_bytes;
    uint32_t n_extents; /* of the tier: with the last of their keys MESSAGE_GPU may be asked for */
    uint32_t first, n;  /* that these are of */
    struct message_key keys[MESSAGE_KEYS_MAX];
};

struct message {
    uint16_t type; /* says which member holds */
    union {
        struct message_hello hello;
        const uint8_t *mac; /* PROOF */
        struct message_ready ready;
        struct message_query query;
        struct message_answer answer;
        struct message_fetch fetch;
        struct message_result result;
        struct message_keys keys;
        uint64_t id;     /* DONE: of the batch; RELEASE: the lease; PING, PONG: any number */
        uint32_t status; /* BYE */
    };
};

/* Header: "KVP", version, type u16, zero u16, zero u32, length of the body u32. NULL, or what is
 * wrong. */
const char *message_read_header(const uint8_t header[MESSAGE_HEADER_BYTES], uint16_t *type,
                                uint32_t *body_len);

/* NULL, or what is wrong. */
const char *message_read(uint16_t type, const uint8_t *body, size_t len, struct message *message);

/* The whole frame; out has room for MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX. 0: it does not fit. */
size_t message_write(const struct message *message, uint8_t *out);

/* Elements of a message's arrays. */
uint32_t message_u32(const uint8_t *array, uint32_t i);
uint64_t message_u64(const uint8_t *array, uint32_t i);
void message_set_u32(uint8_t *array, uint32_t i, uint32_t value);
void message_set_u64(uint8_t *array, uint32_t i, uint64_t value);

const char *message_name(uint16_t type);
const char *message_mode_name(uint32_t mode);
bool message_has_destinations(uint32_t mode); /* a FETCH */

#endif
