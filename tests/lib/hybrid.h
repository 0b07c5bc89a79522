// The processes of an inference engine, without the engine: a scheduler that has no device and two
// workers, the ranks of a hybrid model with a full, a sliding window and a state group. Each makes
// the calls that vLLM's V1 scheduler and workers make, in their order; the test is the engine's own
// channel between them and carries tokens of leases, counts, and nothing else.
//
// Scheduler: looks a request up, perhaps several times, before it is admitted; releases its lease
// when the workers have theirs. Worker: adopts, loads layer by layer before each layer runs, saves
// layer by layer behind it, in as many steps as the prefill has chunks.
//
// Functions fail the test when something is not as they say.
#ifndef KVC_TESTS_LIB_HYBRID_H
#define KVC_TESTS_LIB_HYBRID_H

#include <stdbool.h>
#include <stdint.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "tests/lib/crew.h"
#include "tests/lib/daemon.h"

#define HYBRID_RANKS  2u
#define HYBRID_LAYERS 4u
#define HYBRID_PROMPT 24u // blocks
#define HYBRID_WINDOW 2u  // blocks that the window asks for
#define HYBRID_MS     5000

enum { HYBRID_FULL, HYBRID_SLIDING, HYBRID_STATE, HYBRID_GROUPS };

struct hybrid {
    struct daemon *daemon;
    struct member *scheduler, *ranks[HYBRID_RANKS];
    kvc_client *figures; // an operator's, of the test itself
};

// args as for daemon_start().
void hybrid_open(struct hybrid *h, const char *const args[]);
// Every invariant of the store holds, all processes end in order, and the daemon with them.
void hybrid_close(struct hybrid *h);
struct admin_stats hybrid_figures(const struct hybrid *h);
// A worker dies; hybrid_hire_rank() puts a new one in its place.
void hybrid_kill_rank(struct hybrid *h, uint32_t rank);
void hybrid_hire_rank(struct hybrid *h, uint32_t rank);

// get_num_new_matched_tokens: blocks that need not be computed.
uint32_t hybrid_lookup(struct hybrid *h, uint64_t request, kvc_lease *lease);
// request_finished, or the workers have leases of their own.
kvc_status hybrid_release(struct hybrid *h, uint64_t lease);
kvc_status hybrid_extend(struct hybrid *h, uint64_t lease);
// reset_prefix_cache; how many blocks went.
uint64_t hybrid_reset(struct hybrid *h);
// Pins the first blocks of the prompt; how many were there, of the parts of all ranks.
uint32_t hybrid_pin(struct hybrid *h, uint32_t n);

// One step of a chunked prefill on one rank: saves of the first `layers` layers of blocks first ..
// first + n - 1. Those of a step before that were not waited for go on.
struct step {
    uint32_t first, n, layers;
    uint32_t skipped;            // keys that found no room
    bool nothing[HYBRID_GROUPS]; // there was nothing to copy
};
void hybrid_begin_step(struct hybrid *h, uint32_t rank, struct step *step);
// Another layer of the step that was begun; the first error of the groups.
kvc_status hybrid_next_layer(struct hybrid *h, uint32_t rank, const struct step *step);
// Waits for the saves of the latest step, or cancels them; how each ended.
void hybrid_end_step(struct hybrid *h, uint32_t rank, bool cancel,
                     kvc_outcome outcomes[HYBRID_GROUPS]);
// A step of all layers, to its end, which is a good one; on all ranks at once.
void hybrid_prefill(struct hybrid *h, uint32_t first, uint32_t n);
void hybrid_prefill_rank(struct hybrid *h, uint32_t rank, uint32_t first, uint32_t n);

// The rank takes leases of its own, of each group.
kvc_status hybrid_adopt(struct hybrid *h, uint32_t rank, const kvc_lease *lease);
void hybrid_let_go(struct hybrid *h, uint32_t rank);
// start_load_kv and wait_for_layer_load: all groups, layer by layer, and compares every byte.
// spoil: a block of the full group whose bytes arrive wrong (none: HYBRID_PROMPT). Returns the
// blocks of the full group that are not valid, a bit each.
uint32_t hybrid_load(struct hybrid *h, uint32_t rank, const kvc_lease *lease, uint32_t spoil);
// With the leases that the rank has: the first layers only.
void hybrid_load_some(struct hybrid *h, uint32_t rank, uint32_t layers);
// The engine's blocks are given to somebody else.
void hybrid_overwrite(struct hybrid *h);
// The rank loses one block of its full group.
void hybrid_lose(struct hybrid *h, uint32_t rank, uint32_t block);
// After a reset: parts are registered again, by all workers.
void hybrid_register_again(struct hybrid *h);

#endif
