/*
 * Giving the tiers their pages in the background, while the daemon already serves: pieces of at
 * most TIER_PIECE_BYTES on libuv's pool, one at a time, in order. tier_populated() is the progress.
 */
#ifndef KVC_TIER_POPULATE_H
#define KVC_TIER_POPULATE_H

#include <uv.h>

#include "daemon/tier/tier.h"

struct populate;

/*
 * Called once, on the loop: KVC_OK when every page is there, KVC_E_CANCELLED after
 * populate_stop(), else why the rest has none (the host has not the memory that its budget
 * promises: bytes from tier_populated() on are not to be relied on). It is freed when this returns.
 */
typedef void populate_done_cb(void *arg, kvc_status status);

/* The tiers stay until done has been called. No tiers, or empty ones, are fine. */
kvc_status populate_start(uv_loop_t *loop, struct tier *const tiers[], uint32_t n_tiers,
                          populate_done_cb *done, void *arg, struct populate **populate);

/* Ends it after the piece in flight; done still comes, later. */
void populate_stop(struct populate *populate);

#endif
