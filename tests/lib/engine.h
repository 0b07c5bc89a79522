// A small engine: a KV cache of its own and libkvcache, in the process that calls. What a block
// holds follows from its key, so that every loaded byte can be checked. Keys are numbers.
//
// Functions without a status fail the test when something is not as they say.
#ifndef KVC_TESTS_LIB_ENGINE_H
#define KVC_TESTS_LIB_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/admin.h"
#include "client/kvcache.h"

#define ENGINE_SLICES     3u
#define ENGINE_BLOCKS     512u   // of its KV cache, and the most keys of a call
#define ENGINE_SLOT_BYTES 13312u // 4096 + 1008 (1000 used) + 8192, to the next multiple of 512
#define ENGINE_MS         5000   // for whatever must happen, before the multiplier

struct engine {
    kvc_client *client;
    kvc_part part;
    uint8_t *memory; // on a GPU: what is, or was, there, as far as the test has asked
    uint8_t *device; // NULL: the memory itself is the KV cache
    int fd;          // of the memory, which is lent when the test runs for that way to copy; or -1
    kvc_lease lease; // of the latest lookup
    uint32_t leased; // its first key
    bool to_host;    // saves from now on are for the host tier
};

// Whether engines of this process lend their memory from now on; at first it is as
// check_copies_by_daemon() says.
void engine_lends(bool lends);

// For how long engines of this process that connect from now on wait for a load that the daemon
// copies, and again for its end: of tests in which it does not come.
void engine_load_ms(uint32_t ms);

// Connects and says HELLO, no more.
void engine_connect(struct engine *e, const char *socket, kvc_role role);

// Makes the KV cache and registers it; engines of one ns share a namespace.
void engine_register(struct engine *e, uint8_t ns);

// A worker in namespace 1, registered.
void engine_open(struct engine *e, const char *socket);
// The same where the daemon may refuse; whether it is registered. Calls wait at most ms.
bool engine_try_open(struct engine *e, const char *socket, uint32_t ms);
void engine_close(struct engine *e);

// As engine_open(); its lookups have peers asked for what is missing, for so long.
void engine_open_with_peers(struct engine *e, const char *socket, uint32_t remote_ms);
// Looks up, waits for what peers bring, and looks up again: the blocks that are leased then.
uint32_t engine_lookup_all(struct engine *e, uint32_t first, uint32_t n);
// The same, and every byte is loaded, compared and released: all n must come.
void engine_verify_all(struct engine *e, uint32_t first, uint32_t n);

// The bytes of keys first .. first + n - 1 into blocks 0 .. n - 1, or whether they are there.
void engine_fill(struct engine *e, uint32_t first, uint32_t n);
bool engine_holds(const struct engine *e, uint32_t first, uint32_t n);
void engine_poison(struct engine *e);
// Whether all blocks from one on are as engine_poison() left them.
bool engine_is_poisoned(struct engine *e, uint32_t first_block);

// The next copy from or to this block stops the process (SIGSTOP) in the middle of the block; when
// it goes on, so does the copy. For one engine of a process, and after engine_poison() and
// engine_fill().
void engine_trap(struct engine *e, uint32_t block);

// Fills and saves; *save as by kvc_save(), states (n) may be NULL.
kvc_status engine_try_save(struct engine *e, uint32_t first, uint32_t n, uint8_t *states,
                           uint64_t *save);
// Saves blocks as they are. The daemon's copies may still run when it returns.
kvc_status engine_save_filled(struct engine *e, uint32_t first, uint32_t n, uint8_t *states,
                              uint64_t *save);
// All keys are missing, and copied now.
uint64_t engine_save(struct engine *e, uint32_t first, uint32_t n);
// ... and published.
void engine_put(struct engine *e, uint32_t first, uint32_t n);
// How many of the keys a save copies now; the others are skipped or there.
uint32_t engine_put_some(struct engine *e, uint32_t first, uint32_t n);

// The length of the prefix that is there; leases nothing.
uint32_t engine_probe(struct engine *e, uint32_t first, uint32_t n);
// How many of the keys are there, each asked for by itself.
uint32_t engine_count(struct engine *e, uint32_t first, uint32_t n);

// Leases the prefix and returns its length.
uint32_t engine_lookup(struct engine *e, uint32_t first, uint32_t n);
kvc_status engine_try_lookup(struct engine *e, uint32_t first, uint32_t n);
// Loads all that is leased and checks every byte.
void engine_load(struct engine *e);
kvc_status engine_try_load(struct engine *e);
// Loads into blocks as they are, without a comparison.
kvc_status engine_load_over(struct engine *e);
void engine_release(struct engine *e);
// Lookup, load, comparison, release: all n keys must be there.
void engine_verify(struct engine *e, uint32_t first, uint32_t n);

struct admin_stats engine_stats(kvc_client *client);

#endif
