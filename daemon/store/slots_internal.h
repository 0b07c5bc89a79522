/* What slots.c derives from the table, for slots_check.c; nobody else includes it. */
#ifndef KVC_STORE_SLOTS_INTERNAL_H
#define KVC_STORE_SLOTS_INTERNAL_H

#include "daemon/store/slots.h"

/*
 * Extents by index, linked through their extent_use. One is in at most one list: its tenant's empty
 * ones, or its class's partial ones.
 */
struct extent_list {
    uint32_t head, tail; /* TABLE_NONE: none */
    uint32_t count;
};

#define EXTENT_LIST_EMPTY                                                                          \
    (struct extent_list)                                                                           \
    {                                                                                              \
        TABLE_NONE, TABLE_NONE, 0                                                                  \
    }

/*
 * Free places of an extent are those on its stack, which is linked through their records, and all
 * from `fresh` on. So an extent changes its slot size without touching a record.
 */
struct extent_use {
    uint32_t class;  /* TABLE_NONE: no slot size, or one large block */
    uint32_t places; /* slots it has; 0 without a slot size */
    uint32_t used;
    uint32_t fresh; /* no place from here on was taken since the extent got its size */
    uint32_t free;  /* top of the stack, SLOT_NONE: empty */
    uint32_t prev, next;
    uint32_t loose;
    uint64_t touched;
    uint64_t promised; /* a slot size, while it is in its tenant's list of empty ones; 0: none */
    bool closed;       /* in no list, and its free places are not its class's */
    bool leaving;
};

/* The extents of one tenant and slot size; large blocks have none. */
struct slot_class {
    uint64_t slot_bytes;
    uint64_t free; /* places */
    uint32_t extents;
    uint32_t next;              /* of the same tenant, or unused */
    struct extent_list partial; /* extents with a free place */
};

struct holder { /* a tenant */
    uint32_t owned;
    uint32_t classes;
    struct extent_list empty; /* without a slot size */
    uint32_t promised;        /* of them */
};

struct slots {
    struct table *table;
    enum tier_kind tier;
    uint32_t extents;
    uint32_t per_extent;                /* records an extent has, the stride of slot numbers */
    struct table_extent *table_extents; /* the tier's in the table; NULL: it has none */
    uint64_t inverse; /* 2^64 / per_extent, rounded up: a product is quicker than a quotient */
    uint64_t extent_bytes;
    uint64_t used_bytes, slots, used_slots;
    uint64_t latest;     /* use of any block */
    uint32_t first_free; /* no extent below is EXTENT_FREE */
    uint32_t free_classes;
    struct extent_use *uses;    /* one an extent */
    struct slot_class *classes; /* as many */
    struct holder holders[TABLE_TENANTS];
};

/* Exact for all numbers of 32 bits. The inverse of 1 is 2^64, which does not fit. */
static inline uint32_t slots_index(const struct slots *slots, uint32_t number)
{
    if (slots->inverse == 0)
        return number;
    return (uint32_t)((unsigned __int128)slots->inverse * number >> 64);
}

static inline struct table_extent *slots_table_extent(const struct slots *slots, uint32_t index)
{
    assert(index < slots->extents);
    return &slots->table_extents[index];
}

static inline bool slots_is_empty(const struct slots *slots, uint32_t index, uint32_t tenant)
{
    const struct table_extent *extent = slots_table_extent(slots, index);

    return extent->state == EXTENT_OWNED && extent->tenant == tenant && !extent->slot_bytes &&
           !slots->uses[index].closed;
}

/* Whether an empty extent may get this slot size. */
static inline bool slots_is_for(const struct slots *slots, uint32_t index, uint64_t slot_bytes)
{
    return !slots->uses[index].promised || slots->uses[index].promised == slot_bytes;
}

/* A bit of a set of extents; no set is all of them. */
static inline bool slots_bit(const uint64_t *bits, uint32_t index)
{
    return !bits || (bits[index / 64] >> index % 64 & 1);
}

/* Extents that a block of this size takes. */
static inline uint32_t slots_span(const struct slots *slots, uint64_t slot_bytes)
{
    uint64_t span = (slot_bytes + slots->extent_bytes - 1) / slots->extent_bytes;

    return span < UINT32_MAX ? (uint32_t)span : UINT32_MAX;
}

/* slots_change.c: a free extent gets its tenant; it joins no list. */
void slots_own(struct slots *slots, uint32_t index, uint32_t tenant);

/* slots_extent.c: what an extent is used for. */

void slots_list_push(struct slots *slots, struct extent_list *list, uint32_t index, bool front);
void slots_list_take(struct slots *slots, struct extent_list *list, uint32_t index);

uint32_t slots_find_class(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes);

/* Gives an empty extent, which is in no list now, its slot size; it joins its class's list. */
void slots_set_size(struct slots *slots, uint32_t index, uint64_t slot_bytes);
/* The opposite, for an extent whose last slot is free; it joins its tenant's empty ones. */
void slots_clear_size(struct slots *slots, uint32_t index);

/* Takes an empty extent out of its tenant's list; it is promised to nobody any more. */
void slots_empty_take(struct slots *slots, uint32_t index);

/* A block larger than an extent. SLOT_NONE: there are not enough adjacent empty extents. */
uint32_t slots_take_large(struct slots *slots, uint32_t tenant, uint64_t slot_bytes,
                          const uint64_t *mapped);
void slots_give_large(struct slots *slots, uint32_t head);

#endif
