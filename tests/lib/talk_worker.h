// A worker without the library, as far as PROTOCOL.md goes: session, completion page, one part,
// mapped extents. Bytes of blocks are never copied: what is tested is who may do what when.
#ifndef KVC_TESTS_LIB_TALK_WORKER_H
#define KVC_TESTS_LIB_TALK_WORKER_H

#include <stdint.h>

#include "tests/lib/talk.h"

#define TALK_SLICES      2u
#define TALK_SLICE_BYTES 4096u

struct talk_worker {
    int sock;
    uint8_t *page; // NULL for roles without one
    uint64_t session;
    uint8_t secret[KVC_SECRET_BYTES];
    uint32_t part, epoch;
    uint32_t n_extents; // acknowledged
    bool no_wait;       // its saves wait for no room
};

// Connects, says HELLO, registers a part whose namespace is 32 times `ns`, and acknowledges every
// extent (workers and readers).
struct talk_worker talk_worker(const char *socket, Kvcache__Role role, uint8_t ns);

// A worker of its own part, whose slots are slot_bytes, one slice: for tests that count slots.
struct talk_worker talk_worker_with_slots(const char *socket, uint32_t slot_bytes);

// The first without a MAP.
struct talk_worker talk_worker_unmapped(const char *socket, Kvcache__Role role, uint8_t ns);

// Closes the socket, and the page too. Session and secret stay, for who comes back.
void talk_worker_close(struct talk_worker *w);

// n keys, the first being key number `first`, for a keys field; good until the next call.
ProtobufCBinaryData talk_keys(uint32_t first, uint32_t n);

// Asks for slots for n keys; frees nothing: talk_free() the reply.
Kvcache__SaveReply *talk_save(struct talk_worker *w, uint32_t first, uint32_t n, bool notify);

// Sends the request and does not wait; its sequence number.
uint32_t talk_send_save(struct talk_worker *w, uint32_t first, uint32_t n, bool notify);
Kvcache__SaveReply *talk_save_reply(struct talk_worker *w, uint32_t seq);
uint32_t talk_send_lookup(struct talk_worker *w, uint32_t first, uint32_t n);

// Writes the number of chunk i of the reply into its word, as proof.
void talk_prove(struct talk_worker *w, const Kvcache__SaveReply *reply, size_t i);
void talk_prove_all(struct talk_worker *w, const Kvcache__SaveReply *reply);
void talk_write_word(struct talk_worker *w, uint32_t word, uint64_t number);

// Waits for the notice SAVE_DONE; talk_free() it.
Kvcache__SaveDone *talk_save_done(struct talk_worker *w);

// How many of n keys a lookup finds; leases nothing.
uint32_t talk_probe(struct talk_worker *w, uint32_t first, uint32_t n);

// Saves n keys, proves all chunks, and waits until they are hits.
void talk_publish(struct talk_worker *w, uint32_t first, uint32_t n);

// Leases the prefix of n keys; talk_free() the reply.
Kvcache__LookupReply *talk_lookup(struct talk_worker *w, uint32_t first, uint32_t n);

Kvcache__StatsReply *talk_stats(int sock);

#endif
