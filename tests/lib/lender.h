// A client of the library whose blocks the daemon copies (or, where the tests run one way only, it
// copies itself): LENDER_BLOCKS keys of one prompt, and a block of its memory for each.
#ifndef KVC_TESTS_LIB_LENDER_H
#define KVC_TESTS_LIB_LENDER_H

#include <stdbool.h>
#include <stdint.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"

#define LENDER_BLOCKS 200u // chunks of 64, 64, 64 and 8
#define LENDER_CHUNKS 4u

struct lender {
    kvc_client *client;
    struct kv kv;
    kvc_part part;
    uint8_t keys[LENDER_BLOCKS * KVC_KEY_BYTES];
    uint32_t ids[LENDER_BLOCKS];
};

bool lender_open(struct lender *l, struct daemon *d, uint64_t prompt);
void lender_close(struct lender *l);

// Its first n blocks.
kvc_status lender_save(struct lender *l, uint32_t n, uint64_t *id);
// All, filled before.
kvc_status lender_save_all(struct lender *l, uint64_t *id);
// The same, until they can be found.
void lender_publish(struct lender *l);
kvc_status lender_load(struct lender *l, uint64_t lease, uint32_t n, uint8_t *valid);
void lender_clear(struct lender *l);
uint32_t lender_lookup(struct lender *l, kvc_lease *lease);
uint32_t lender_hits(struct lender *l);
// n blocks can be found, and hold the bytes of their keys.
void lender_verify(struct lender *l, uint32_t n);

struct admin_stats lender_figures(struct lender *l);
// The daemon waits for nobody's copies.
bool lender_none_owed(struct lender *l);

// The daemon's copies are told of later than they end, until they are let go.
void lender_hold_copies(struct daemon *d);
bool lender_copies_are_held(struct daemon *d);
void lender_let_copies_go(struct daemon *d);
// Opens one, and has it save all: what the daemon copies of that is held.
void lender_open_saving(struct lender *l, struct daemon *d, uint64_t *id);

#endif
