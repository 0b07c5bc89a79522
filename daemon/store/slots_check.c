#include <stddef.h>

#include "daemon/store/slots_internal.h"

/* The places on an extent's stack, or UINT32_MAX when something is wrong with it. */
static uint32_t count_stack(const struct slots *slots, uint32_t index)
{
    const struct extent_use *use = &slots->uses[index];
    uint32_t n = 0;

    for (uint32_t place = use->free; place != SLOT_NONE; n++) {
        const struct table_slot *record;

        if (place >= use->fresh || n >= use->fresh)
            return UINT32_MAX;
        record = slots_record(slots, index * slots->per_extent + place);
        if (record->state != SLOT_FREE)
            return UINT32_MAX;
        place = record->next_free;
    }
    return n;
}

/* Adds what an extent with a slot size holds to the sums. */
static const char *check_sized(const struct slots *slots, uint32_t index, struct slots_count *sum)
{
    const struct table_extent *extent = table_extent(slots->table, slots->tier, index);
    const struct extent_use *use = &slots->uses[index];
    bool large = extent->slot_bytes > slots->extent_bytes;
    uint32_t places = large ? 1 : (uint32_t)(slots->extent_bytes / extent->slot_bytes);
    uint32_t used = 0;

    if (use->places != places)
        return "an extent's number of slots is not what its slot size gives";
    for (uint32_t place = 0; place < places; place++) {
        const struct table_slot *record = slots_record(slots, index * slots->per_extent + place);
        bool is_used = record->state != SLOT_FREE;

        used += is_used;
        if (!large && is_used && place >= use->fresh)
            return "a slot is in use that was never taken";
        if ((record->state == SLOT_READY || record->state == SLOT_DOOMED) &&
            record->check != table_slot_check(record))
            return "a slot changed after it was published";
    }
    if (used != use->used)
        return "an extent's slots in use are not those of the table";
    if (!used)
        return "an empty extent kept its slot size";
    if (!large && count_stack(slots, index) != use->fresh - used)
        return "an extent's free slots are not all on its stack";
    if (!large && (use->class >= slots->extents ||
                   slots->classes[use->class].slot_bytes != extent->slot_bytes))
        return "an extent is in a class of another slot size";
    sum->slots += places;
    sum->used_slots += used;
    sum->used_bytes += used * extent->slot_bytes;
    return NULL;
}

static const char *check_extents(const struct slots *slots)
{
    struct slots_count sum = {0};

    for (uint32_t i = 0; i < slots->extents; i++) {
        const struct table_extent *extent = table_extent(slots->table, slots->tier, i);
        const char *why = NULL;

        if (extent->state == EXTENT_FREE && i < slots->first_free)
            return "a free extent that a grant does not see";
        if (extent->state == EXTENT_FREE && slots->uses[i].closed)
            return "a free extent is closed";
        if (slots->uses[i].promised && !slots_is_empty(slots, i, extent->tenant))
            return "an extent that is not empty is promised";
        if (extent->state == EXTENT_OWNED && extent->slot_bytes)
            why = check_sized(slots, i, &sum);
        else if (slots->uses[i].places)
            why = "an extent without a slot size has slots";
        if (why)
            return why;
    }
    if (sum.slots != slots->slots)
        return "the number of slots is not that of the table";
    if (sum.used_slots != slots->used_slots)
        return "the number of slots in use is not that of the table";
    if (sum.used_bytes != slots->used_bytes)
        return "the bytes in use are not those of the table";
    return NULL;
}

static const char *check_class(const struct slots *slots, uint32_t tenant, uint32_t c)
{
    const struct slot_class *class = &slots->classes[c];
    uint64_t free = 0;
    uint32_t extents = 0, partial = 0, listed = 0;

    for (uint32_t i = 0; i < slots->extents; i++) {
        const struct extent_use *use = &slots->uses[i];

        if (use->class != c)
            continue;
        if (table_extent(slots->table, slots->tier, i)->tenant != tenant)
            return "an extent is in another tenant's class";
        extents++;
        if (use->closed)
            continue;
        free += use->places - use->used;
        partial += use->used < use->places;
    }
    for (uint32_t i = class->partial.head; i != TABLE_NONE; i = slots->uses[i].next) {
        if (slots->uses[i].class != c || slots->uses[i].used == slots->uses[i].places)
            return "an extent that is not there is in the list of partly filled ones";
        if (++listed > partial)
            return "the list of partly filled extents is a circle";
    }
    if (!extents || extents != class->extents || free != class->free)
        return "a class does not have the extents or free slots that it counts";
    if (listed != partial || listed != class->partial.count)
        return "a partly filled extent is in no list";
    return NULL;
}

static const char *check_tenant(const struct slots *slots, uint32_t tenant)
{
    const struct holder *holder = &slots->holders[tenant];
    uint32_t owned = 0, empty = 0, listed = 0, sized = 0, in_classes = 0, promised = 0;

    for (uint32_t i = 0; i < slots->extents; i++) {
        const struct table_extent *extent = table_extent(slots->table, slots->tier, i);
        bool its = extent->tenant == tenant &&
                   (extent->state == EXTENT_OWNED || extent->state == EXTENT_TAIL);

        owned += its;
        empty += slots_is_empty(slots, i, tenant);
        sized += its && slots->uses[i].class != TABLE_NONE;
    }
    for (uint32_t i = holder->empty.head; i != TABLE_NONE; i = slots->uses[i].next) {
        if (!slots_is_empty(slots, i, tenant) || ++listed > empty)
            return "the list of empty extents holds what is not empty";
        promised += slots->uses[i].promised != 0;
    }
    if (promised != holder->promised)
        return "promised extents are miscounted";
    for (uint32_t c = holder->classes; c != TABLE_NONE; c = slots->classes[c].next) {
        const char *why = check_class(slots, tenant, c);

        if (why)
            return why;
        in_classes += slots->classes[c].extents;
    }
    if (owned != holder->owned)
        return "a tenant does not own the extents that it counts";
    if (listed != empty || listed != holder->empty.count)
        return "an empty extent is in no list";
    if (in_classes != sized)
        return "an extent's class is not its tenant's";
    return NULL;
}

const char *slots_check(const struct slots *slots)
{
    const char *why = check_extents(slots);

    for (uint32_t tenant = 0; !why && tenant < TABLE_TENANTS; tenant++)
        why = check_tenant(slots, tenant);
    return why;
}
