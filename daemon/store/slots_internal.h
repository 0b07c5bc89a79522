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
};

struct slots {
    struct table *table;
    enum tier_kind tier;
    uint32_t extents;
    uint32_t per_extent; /* records an extent has, the stride of slot numbers */
    uint64_t extent_bytes;
    uint64_t used_bytes, slots, used_slots;
    uint32_t first_free; /* no extent below is EXTENT_FREE */
    uint32_t free_classes;
    struct extent_use *uses;    /* one an extent */
    struct slot_class *classes; /* as many */
    struct holder holders[TABLE_TENANTS];
};

static inline bool slots_is_empty(const struct slots *slots, uint32_t index, uint32_t tenant)
{
    const struct table_extent *extent = table_extent(slots->table, slots->tier, index);

    return extent->state == EXTENT_OWNED && extent->tenant == tenant && !extent->slot_bytes;
}

#endif
