/*
 * A slot table of a few extents and what a test wants in it: tenants, parts, slots in any state.
 */
#ifndef KVC_TESTS_LIB_TABLEKIT_H
#define KVC_TESTS_LIB_TABLEKIT_H

#include "daemon/store/slots.h"
#include "daemon/store/table.h"

#define TABLEKIT_MIB (1ull << 20)

/* The thread sanitizer makes a mapping a hundred times dearer, and there are no threads here. */
#ifdef __SANITIZE_THREAD__
#define TABLEKIT_EFFORT 16
#else
#define TABLEKIT_EFFORT 1
#endif

extern const uint64_t tablekit_small[TIER_COUNT];

struct table *tablekit_create(const uint64_t budget[TIER_COUNT]);
uint32_t tablekit_tenant(struct table *table, const char *name, uint32_t uid);
/* A tenant with a namespace and a layout; returns a part of them that is not added yet. */
struct table_part tablekit_part(struct table *table, uint32_t slice_bytes);
/* A record of a block that is being saved. */
void tablekit_fill(struct slots *slots, uint32_t number, uint32_t part, uint8_t key);

#endif
