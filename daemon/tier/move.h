/*
 * What the store asks of the tiers: copy these bytes, tell me once. The real mover (mover.h) does
 * it with the device and libuv's pool; tests put their own behind the same interface.
 */
#ifndef KVC_TIER_MOVE_H
#define KVC_TIER_MOVE_H

#include <stdint.h>

#include "proto/status.h"

enum tier_kind { TIER_GPU = 0, TIER_HOST = 1, TIER_COUNT = 2 };

struct move {
    enum tier_kind from, to;
    uint64_t from_offset, to_offset; /* bytes from the tiers' starts */
    uint64_t bytes;
};

typedef void move_done_cb(void *arg, kvc_status status);

/*
 * copy: KVC_OK means that done will be called exactly once, later and on the loop thread, never
 * from inside copy; anything else means that it will not be called. A move cannot be cancelled.
 * After an error nothing is known of the destination's bytes, but nothing writes there any more.
 */
struct mover_ops {
    kvc_status (*copy)(void *mover, const struct move *move, move_done_cb *done, void *arg);
};

/*
 * renew: gives an extent new memory, of zeros, to which nothing leads that was exported before.
 * Nobody uses the extent meanwhile. done as above. KVC_E_BUSY: nothing has changed. After another
 * error it has no memory to rely on.
 */
struct renew_ops {
    kvc_status (*renew)(void *renewer, enum tier_kind tier, uint32_t extent, move_done_cb *done,
                        void *arg);
};

#endif
