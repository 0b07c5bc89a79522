// A client of the library with a KV cache for one prompt: PROMPT_BLOCKS keys, and a block of its
// memory for each. The daemon copies its blocks, or, where the tests run one way only, it does so
// itself. What has a status or is true or false needs no frame of a test around it, so that
// children can use it.
#ifndef KVC_TESTS_LIB_PROMPT_H
#define KVC_TESTS_LIB_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"

#define PROMPT_BLOCKS 200u // chunks of 64, 64, 64 and 8
#define PROMPT_CHUNKS 4u

struct prompt {
    kvc_client *client;
    struct kv kv;
    kvc_part part;
    uint8_t keys[PROMPT_BLOCKS * KVC_KEY_BYTES];
    uint32_t ids[PROMPT_BLOCKS];
};

// Connected and registered, as a worker; calls wait 5 s at most. Prompts of other numbers have
// other keys.
bool prompt_open(struct prompt *p, const struct daemon *d, uint64_t number);
bool prompt_open_as(struct prompt *p, const struct daemon *d, uint64_t number, kvc_role role);
void prompt_close(struct prompt *p);

// Its first n blocks.
kvc_status prompt_save(struct prompt *p, uint32_t n, uint64_t *id);
// All, filled before.
kvc_status prompt_save_all(struct prompt *p, uint64_t *id);
// The same, until they can be found.
void prompt_publish(struct prompt *p);
kvc_status prompt_load(struct prompt *p, uint64_t lease, uint32_t n, uint8_t *valid);
void prompt_clear(struct prompt *p);
// How many blocks are leased.
uint32_t prompt_lookup(struct prompt *p, kvc_lease *lease);
uint32_t prompt_hits(struct prompt *p);
// Whether the first n blocks of a lease are loaded, with every byte as it was saved, and no others.
bool prompt_comes(struct prompt *p, uint64_t lease, uint32_t n);
// The same for all blocks, with a lease of its own.
bool prompt_is_whole(struct prompt *p);
// n blocks can be found, and hold the bytes of their keys.
void prompt_verify(struct prompt *p, uint32_t n);

struct admin_stats prompt_figures(struct prompt *p);
// Whether the daemon waits for nobody's proof or copies.
bool prompt_owes_nothing(struct prompt *p);

// The daemon's copies are told of later than they end, until they are let go.
void prompt_hold_copies(struct daemon *d);
bool prompt_copies_are_held(struct daemon *d);
void prompt_let_copies_go(struct daemon *d);
// Opens one, and has it save all: what the daemon copies of that is held.
void prompt_open_saving(struct prompt *p, struct daemon *d, uint64_t *id);

#endif
