/*
 * Walks over all leases, parts and blocks, some of them at a time: for lists, and for whoever looks
 * at everything without holding up the loop.
 *
 * A cursor is 0 at first, and then what the call before has made of it. What changes between two
 * calls may be met twice or not at all; what stays where it is, is met once.
 */
#ifndef KVC_STORE_WALK_H
#define KVC_STORE_WALK_H

#include "daemon/store/store.h"

enum store_walk {
    STORE_WALK_FOUND,
    STORE_WALK_PAUSE, /* the steps are used up: call again */
    STORE_WALK_END,
};

struct store_lease {
    const struct owner *owner;
    uint64_t lease;
    uint32_t part; /* its first */
    uint32_t parts, blocks, reach;
    uint64_t ends_us; /* from now */
};
/* The next lease. Each look at a place takes a step of *steps. */
enum store_walk store_walk_leases(const struct store *store, uint64_t *cursor, uint32_t *steps,
                                  struct store_lease *lease);

struct store_block {
    uint32_t part;
    const uint8_t *key; /* until the store changes */
    bool published;     /* else it is being filled */
    bool in[TIER_COUNT];
    bool checked, pinned, moving;
    uint64_t slot_bytes; /* in each tier where it is */
    uint32_t leases, loads;
    uint64_t idle_us; /* since it was last used */
};
/* The next block. */
enum store_walk store_walk_blocks(const struct store *store, uint64_t *cursor, uint32_t *steps,
                                  struct store_block *block);

/*
 * A copy of a published block in a tier, to be read by the daemon itself. It stays where it is
 * until it is given back, whatever becomes of the block.
 */
struct store_copy {
    uint32_t block;
    enum tier_kind tier;
    uint64_t offset; /* bytes from the tier's start */
    const struct table_layout *layout;
    uint64_t checksum;           /* that was saved with it */
    uint32_t beside[TIER_COUNT]; /* its place in the eviction orders */
};
/*
 * The next copy that has a checksum; *unchecked grows by the copies passed over that have none. A
 * copy that is being moved or has as many loads as it may is passed over too.
 */
enum store_walk store_walk_copies(struct store *store, uint64_t *cursor, uint32_t *steps,
                                  uint64_t *unchecked, struct store_copy *copy);
/* Those that were taken last are given back first. bad: it does not match its checksum, and the
 * block is dropped, if it still is one. */
void store_give_copy(struct store *store, const struct store_copy *copy, bool bad);
/* Where a cursor of theirs ends. */
uint64_t store_walk_copies_end(const struct store *store);

#endif
