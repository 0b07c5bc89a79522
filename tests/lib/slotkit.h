/*
 * The slots of a host tier of a few extents, without a store around them.
 */
#ifndef KVC_TESTS_LIB_SLOTKIT_H
#define KVC_TESTS_LIB_SLOTKIT_H

#include "daemon/store/slots.h"

#define SLOTKIT_MIB    (1ull << 20)
#define SLOTKIT_EXTENT (2 * SLOTKIT_MIB)

struct slotkit {
    struct table *table;
    struct slots *slots;
};

void slotkit_open(struct slotkit *w, uint32_t extents);
void slotkit_close(struct slotkit *w);
void slotkit_check(const struct slotkit *w);
struct slots_count slotkit_count(const struct slotkit *w);
/* One that is being filled; SLOT_NONE when there is none. */
uint32_t slotkit_take(struct slotkit *w, uint32_t tenant, uint64_t bytes);
void slotkit_give(struct slotkit *w, uint32_t number);

#endif
