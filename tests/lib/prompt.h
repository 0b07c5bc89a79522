// A client with a KV cache for one prompt of two chunks, which all of them save and load: for tests
// of several processes. What has a status needs no frame of a test around it, so that children can
// use it.
#ifndef KVC_TESTS_LIB_PROMPT_H
#define KVC_TESTS_LIB_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "proto/limits.h"
#include "tests/lib/kv.h"

#define PROMPT_BLOCKS 100u

struct prompt {
    kvc_client *client;
    struct kv kv;
    kvc_part part;
    uint8_t keys[PROMPT_BLOCKS * KVC_KEY_BYTES];
    uint32_t ids[PROMPT_BLOCKS];
};

// Connected and registered; calls wait 5 s at most.
bool prompt_open(struct prompt *p, const char *socket, kvc_role role);
void prompt_close(struct prompt *p);
kvc_status prompt_save(struct prompt *p, uint64_t *id);
// How many blocks are leased.
uint32_t prompt_lookup(struct prompt *p, kvc_lease *lease);
// Whether the first n blocks of a lease are loaded, with every byte as it was saved.
bool prompt_load(struct prompt *p, uint64_t lease, uint32_t n);
// The same for the whole prompt, with a lease of its own.
bool prompt_verify(struct prompt *p);
struct admin_stats prompt_figures(struct prompt *p);
// Whether the daemon waits for nobody's proof.
bool prompt_owes_nothing(struct prompt *p);

#endif
