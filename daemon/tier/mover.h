/*
 * The mover: copies between tiers on libuv's pool, for the store. A move is cut into pieces of at
 * most TIER_PIECE_BYTES, and small ones are gathered into batches of no more than that. Only a few
 * batches are in flight at once, so that threads of the pool stay free for others. Moves start in
 * the order they were asked for.
 *
 * Fault sites: "mover.copy" fails a piece half way; "mover.late" holds a piece back for a
 * millisecond each time that it fires, so armed for ever it holds all copies until it is off.
 */
#ifndef KVC_TIER_MOVER_H
#define KVC_TIER_MOVER_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/tier/tier.h"

#define MOVER_BATCHES 2u   /* in flight: half of libuv's usual four threads */
#define MOVER_BATCH   256u /* pieces of a batch */
#define MOVER_LATE_MS 10000u

struct mover;

/* What move.h asks for; its `mover` is a struct mover. */
extern const struct mover_ops mover_ops;

/* The tiers (either may be NULL) stay until mover_destroy(). */
kvc_status mover_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                        struct mover **mover);

/*
 * From now on copies are refused with KVC_E_STOPPING; what is queued is cancelled and what is in
 * flight ends. Every callback still comes, on the loop, with KVC_E_CANCELLED or what became of it.
 */
void mover_stop(struct mover *mover);

uint32_t mover_count(const struct mover *mover); /* moves whose callback is owed */
bool mover_hangs(const struct mover *mover);     /* a batch takes more than MOVER_LATE_MS */
/* For how long the oldest batch of copies under way has been; 0: there is none. */
uint64_t mover_oldest_us(const struct mover *mover);

/*
 * When mover_count() is 0, which it is not inside a callback; it goes in the loop's next turn. NULL
 * is fine.
 */
void mover_destroy(struct mover *mover);

#endif
