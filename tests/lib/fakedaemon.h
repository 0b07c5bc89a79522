// A daemon that says what a test tells it to: for replies that the real one never gives, or not in
// time. It is a process of its own, answers one connection at a time, and knows one slab a tier.
//
//     static bool hook(struct fake *fake, const struct wire_packet *request) {
//         if (request->type != WIRE_LOOKUP)
//             return false;                       // the usual answer
//         fake_error(fake, request, KVC_E_BUSY, "keys", "not now");
//         return true;
//     }
//     struct fake *fake = fake_start(hook);
//     kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
//     fake_stop(fake);
//
// Usual answers: parts get numbers from 1; SAVE assigns one slot after the other from the start of
// the gpu tier and then of the host tier, chunks cut as the real one does; LOOKUP finds every key,
// LOAD tells the slot of block i as if all had been saved in order; nothing is ever published.
#ifndef KVC_TESTS_LIB_FAKEDAEMON_H
#define KVC_TESTS_LIB_FAKEDAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/kvcache.h"
#include "proto/kvcache.pb-c.h"
#include "proto/status.h"
#include "proto/wire.h"

#define FAKE_EXTENT_BYTES (2u << 20)
#define FAKE_EXTENTS      4u // of each tier
#define FAKE_TIER_BYTES   ((uint64_t)FAKE_EXTENTS * FAKE_EXTENT_BYTES)
#define FAKE_MODES        8

struct fake;

// Runs in the daemon's process; whether it dealt with the request. The packet has no descriptors.
typedef bool fake_hook(struct fake *fake, const struct wire_packet *request);

// Memory of both processes.
struct fake_shared {
    int mode[FAKE_MODES]; // for hooks
    uint64_t spoil;       // not 0: a seed; some bits of all that is sent are wrong
    uint32_t count[128];  // requests so far, by type
    uint32_t connections;
    uint64_t boot_epoch;
    uint32_t part_epoch;
    // What the last requests said.
    uint64_t drained_session;
    uint32_t abort_request, abort_never;
    uint64_t abort_save;
    bool abort_never_all;
    uint64_t released, lookup_lease, lookup_request;
    uint32_t lookup_offset, lookup_keys;
    uint32_t load_first, load_count;
    bool load_release;
    bool save_notify, save_checksums;
    Kvcache__Tier report_tier;
    uint64_t report_offset;
    uint32_t report_generation;
    uint32_t mapped, unmapped; // extents acknowledged
};

struct fake {
    const char *socket;
    pid_t pid;
    struct fake_shared *shared;
    uint8_t *slab[2]; // FAKE_EXTENTS * FAKE_EXTENT_BYTES each
    uint8_t *page;
    // Of the daemon's process.
    int extents[2][FAKE_EXTENTS], page_fd;
    int listener, sock;
    fake_hook *hook;
    uint64_t next_session, next_number, next_save;
    uint64_t slot_bytes, block_bytes;
    uint64_t next_slot[2];
    uint32_t next_word, parts;
    uint32_t late_seq; // for hooks
};

struct fake *fake_start(fake_hook *hook); // NULL: only usual answers
void fake_stop(struct fake *fake);
// A client of it; nothing is waited for longer than 5 s.
kvc_client *fake_connect(const struct fake *fake, kvc_role role);
uint32_t fake_count(const struct fake *fake, uint16_t type);
void fake_freeze(struct fake *fake);
void fake_thaw(struct fake *fake);

// For hooks. A NULL message is an empty body.
void fake_send(struct fake *fake, uint16_t type, uint32_t seq, const ProtobufCMessage *message,
               const int *fds, uint32_t n_fds);
void fake_reply(struct fake *fake, const struct wire_packet *request,
                const ProtobufCMessage *message);
void fake_error(struct fake *fake, const struct wire_packet *request, kvc_status status,
                const char *field, const char *detail);
void fake_usual(struct fake *fake, const struct wire_packet *request);
// Writes down in shared memory what the request says. Not for hooks: it is done before them.
void fake_note(struct fake *fake, const struct wire_packet *request);
// Unpacks; ends the process if it cannot. Never freed: the process is short-lived.
void *fake_body(const struct wire_packet *request, const ProtobufCMessageDescriptor *descriptor);

// The usual replies, for hooks to spoil.
void fake_make_hello(struct fake *fake, Kvcache__HelloReply *reply);
void fake_make_save(struct fake *fake, const Kvcache__Save *request, Kvcache__SaveReply *reply);
void fake_make_load(struct fake *fake, const Kvcache__Load *request, Kvcache__LoadReply *reply);

#endif
