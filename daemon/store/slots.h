/*
 * Slots of one tier: which extents belong to which tenant and slot size, and which slots are free.
 * Derived from the table except for who owns an extent, which it writes there. Every cost is
 * constant or grows with the number of a tenant's extents, never with the number of slots.
 */
#ifndef KVC_STORE_SLOTS_H
#define KVC_STORE_SLOTS_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/table.h"

#define SLOT_NONE UINT32_MAX

struct slots;

/* Reads the table's extents and slots; slots whose state is not FREE count as used. */
kvc_status slots_create(struct table *table, enum tier_kind tier, struct slots **slots);
void slots_destroy(struct slots *slots);

/*
 * Gives free extents to a tenant until it owns `share` of them (UINT32_MAX: all there are).
 * Returns how many it owns now.
 */
uint32_t slots_grant(struct slots *slots, uint32_t tenant, uint32_t share);

/*
 * Takes a free slot of slot_bytes for a tenant, from its extents of that slot size or an empty one
 * of its own (which changes size); only from extents whose bit in `mapped` is set (NULL: any). A
 * block larger than an extent takes adjacent whole empty extents. The slot's generation is bumped,
 * its key, part and state are the caller's to write (state is FREE). false: there is none.
 */
bool slots_take(struct slots *slots, uint32_t tenant, uint64_t slot_bytes, const uint64_t *mapped,
                uint32_t *number);

/* Gives a slot back; its record's state must be FREE already. */
void slots_give(struct slots *slots, uint32_t number);

/* To its record the same as giving a slot back and taking it again. */
static inline void slots_retake(struct table_slot *record)
{
    assert(record->state == SLOT_FREE);
    record->next_free = 0;
    if (++record->generation == 0) /* 0 is never handed out */
        record->generation = 1;
}

uint64_t slots_offset(const struct slots *slots, uint32_t number); /* bytes from the tier's start */
uint32_t slots_extent(const struct slots *slots, uint32_t number);
struct table_slot *slots_record(const struct slots *slots, uint32_t number);
bool slots_is_mapped(const struct slots *slots, uint32_t number, const uint64_t *mapped);
/* Whether those who mapped `mapped` may be given a slot that is in use: and its extent is open. */
bool slots_may_pass_on(const struct slots *slots, uint32_t number, const uint64_t *mapped);
uint64_t slots_bytes(const struct slots *slots, uint32_t number); /* size of this slot */

/*
 * Free slots that slots_take could give this tenant and size now, extents not yet typed included.
 */
uint64_t slots_free_count(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes);

/* Bytes of a tenant's extents. */
uint64_t slots_owned_bytes(const struct slots *slots, uint32_t tenant);
/*
 * Extents that change what they are used for: daemon/store/claim.h. One that is closed gives no
 * slots; those that it has go on until they are given back. What is said here of an extent is not
 * for tails of large blocks.
 */
struct slots_extent {
    enum extent_state state;
    uint32_t tenant, span;
    uint64_t slot_bytes; /* 0: it is empty */
    uint64_t promised;   /* only for slots of this size; 0: for any */
    uint64_t touched;    /* the latest use of a block in it */
    uint32_t places, used;
    uint32_t loose;    /* slots of blocks that nothing keeps: they are in an eviction order */
    uint32_t siblings; /* extents of its tenant and slot size, with it; large blocks: itself */
    bool closed;
    bool leaving; /* closed, and its tenant is to lose it: nobody may map it any more */
};
void slots_look(const struct slots *slots, uint32_t extent, struct slots_extent *look);
uint32_t slots_extents(const struct slots *slots);
bool slots_is_closed(const struct slots *slots, uint32_t number); /* the extent of a slot */
uint32_t slots_number(const struct slots *slots, uint32_t extent, uint32_t place);
uint32_t slots_owned(const struct slots *slots, uint32_t tenant); /* extents */

/* What keep.c knows of the block in a slot. */
void slots_touch(struct slots *slots, uint32_t number, uint64_t last_use);
void slots_set_loose(struct slots *slots, uint32_t number, bool loose);

void slots_close(struct slots *slots, uint32_t extent, bool leaving);
void slots_reopen(struct slots *slots, uint32_t extent);
/* A closed one that is empty opens for slots of one size only; 0 later lifts that. */
void slots_promise(struct slots *slots, uint32_t extent, uint64_t slot_bytes);
/*
 * A closed one that is empty is nobody's any more: free, or lost for ever. The caller sees to it
 * that nobody maps a free one and that it holds zeros. A lost one may have been free before.
 */
void slots_free_extent(struct slots *slots, uint32_t extent);
void slots_lose_extent(struct slots *slots, uint32_t extent);
/* A free one becomes a tenant's, and is closed. */
void slots_grant_closed(struct slots *slots, uint32_t extent, uint32_t tenant);

struct slots_count {
    uint64_t bytes;      /* of the tier */
    uint64_t used_bytes; /* used slots x their size */
    uint64_t slots;      /* of extents that have a slot size */
    uint64_t used_slots;
};
void slots_count(const struct slots *slots, struct slots_count *count);

/* Recounts everything from the table; a text naming the first difference, or NULL. For tests. */
const char *slots_check(const struct slots *slots);

#endif
