/*
 * Connections at a whole daemon (rig.h), played from an input: clients, what they know from
 * replies, and the actions that take their arguments from the input's bytes.
 */
#ifndef KVC_TESTS_FUZZ_PLAY_H
#define KVC_TESTS_FUZZ_PLAY_H

#include "client/codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rig.h"

#define PLAY_CLIENTS    3u
#define PLAY_WORDS      64u
#define PLAY_PAGE_BYTES ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)

struct play_client {
    int sock; /* -1: not connected */
    uint8_t *page;
    uint64_t session;
    uint8_t secret[KVC_SECRET_BYTES];
    uint32_t part, epoch;
    uint32_t slice_bytes[2], n_slices; /* as it last asked to register */
    uint32_t cursor, n_extents, extents[KVC_WIRE_FDS_MAX];
};

/* What replies said, to all clients together, so that they can meddle with each other's. */
struct play_names {
    uint64_t lease, save, session;
    uint8_t token[KVC_TOKEN_BYTES], secret[KVC_SECRET_BYTES];
    uint64_t numbers[PLAY_WORDS];
    uint32_t words[PLAY_WORDS], n_words;
    uint8_t tier;
    uint32_t generation;
    uint64_t offset;
    uint64_t region;
};

struct play {
    struct rig rig;
    struct fuzz_input in;
    struct play_client clients[PLAY_CLIENTS];
    struct play_client *me;
    struct play_names names;
    struct codec_scratch scratch;
    uint32_t seq;
    bool stopped;
};

/* What p->me does. */
typedef void play_action(struct play *p);

/* Requests: play_requests.c. */
play_action play_hello, play_register, play_map, play_lookup, play_save, play_abort, play_load;
play_action play_lease, play_drained, play_report, play_small, play_list, play_job;
/* Those of copies by the daemon, and saves and loads by slices, whoever copies: play_lend.c. */
extern play_action *const play_lend_actions[];
extern const uint32_t play_n_lend_actions;
/* Makes what is kept from one input to the next, and frees it. */
void play_lend_begin(void);
void play_lend_end(void);

/* A packet that came for p->me; fails on what the library would not take: play_replies.c. */
void play_take(struct play *p, const struct wire_packet *packet);
/* Reads up to n of them. */
void play_read(struct play *p, uint32_t n);
void play_drop_page(struct play_client *c);

/* Where a request's body is packed. */
extern uint8_t play_body[KVC_WIRE_BODY_MAX];
/* Sent as it is, with n copies of descriptor 0; what the socket does not take is lost. */
void play_send_raw(struct play *p, uint16_t type, const uint8_t *bytes, size_t len, uint32_t fds);
/* play_body, if packing it went well; len is read after packing has set it. */
void play_send(struct play *p, uint16_t type, kvc_status packed, const size_t *len);
/* A name that was given, or the input's. */
uint64_t play_or_any(struct play *p, uint64_t known);
/* Up to `most` keys, of few that there are; returns how many. */
uint32_t play_keys(struct play *p, uint8_t *keys, uint32_t most);

#endif
