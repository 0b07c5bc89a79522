/*
 * New memory for extents that change their tenant, on libuv's pool, for the store: the old pages go
 * and the new ones come in pieces of at most TIER_PIECE_BYTES. One extent at a time.
 */
#ifndef KVC_TIER_RENEW_H
#define KVC_TIER_RENEW_H

#include <uv.h>

#include "daemon/tier/tier.h"

struct renewer;

/* What move.h asks for; its `renewer` is a struct renewer. */
extern const struct renew_ops renew_ops;

/* The tiers (either may be NULL) stay until renewer_destroy(). */
kvc_status renewer_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                          struct renewer **renewer);

/* Refuses from now on; what was begun ends, and every callback still comes. */
void renewer_stop(struct renewer *renewer);
uint32_t renewer_count(const struct renewer *renewer); /* whose callback is owed */
/* When that is 0. NULL is fine. */
void renewer_destroy(struct renewer *renewer);

#endif
