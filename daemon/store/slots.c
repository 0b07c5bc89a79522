#include "daemon/store/slots.h"

#include <assert.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/store/slots_internal.h"

static uint32_t first_mapped(const struct slots *slots, const struct extent_list *list,
                             const uint64_t *mapped)
{
    uint32_t index = list->head;

    while (index != TABLE_NONE && !slots_bit(mapped, index))
        index = slots->uses[index].next;
    return index;
}

static uint32_t first_empty(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes,
                            const uint64_t *mapped)
{
    uint32_t index = slots->holders[tenant].empty.head;

    while (index != TABLE_NONE &&
           !(slots_bit(mapped, index) && slots_is_for(slots, index, slot_bytes)))
        index = slots->uses[index].next;
    return index;
}

/* Takes a slot of an extent that has a free one. */
static uint32_t take_place(struct slots *slots, uint32_t index)
{
    struct extent_use *use = &slots->uses[index];
    struct slot_class *class = &slots->classes[use->class];
    uint32_t number = index * slots->per_extent;

    if (use->free != SLOT_NONE) {
        number += use->free;
        use->free = slots_record(slots, number)->next_free;
    } else {
        number += use->fresh++;
    }
    class->free--;
    if (++use->used == use->places)
        slots_list_take(slots, &class->partial, index);
    return number;
}

bool slots_take(struct slots *slots, uint32_t tenant, uint64_t slot_bytes, const uint64_t *mapped,
                uint32_t *number)
{
    uint32_t class, index = TABLE_NONE, taken;

    assert(tenant < TABLE_TENANTS);
    assert(slot_bytes >= KVC_SLOT_BYTES_MIN && slot_bytes % KVC_SLOT_ALIGN == 0);
    if (fault_fires("slots.take"))
        return false;
    if (slot_bytes > slots->extent_bytes) {
        taken = slots_take_large(slots, tenant, slot_bytes, mapped);
        if (taken == SLOT_NONE)
            return false;
    } else {
        class = slots_find_class(slots, tenant, slot_bytes);
        if (class != TABLE_NONE)
            index = first_mapped(slots, &slots->classes[class].partial, mapped);
        if (index == TABLE_NONE) {
            index = first_empty(slots, tenant, slot_bytes, mapped);
            if (index == TABLE_NONE)
                return false;
            slots_empty_take(slots, index);
            slots_set_size(slots, index, slot_bytes);
        }
        taken = take_place(slots, index);
    }
    slots->used_slots++;
    slots->used_bytes += slot_bytes;
    slots_retake(slots_record(slots, taken));
    *number = taken;
    return true;
}

void slots_give(struct slots *slots, uint32_t number)
{
    uint32_t index = slots_index(slots, number);
    struct extent_use *use = &slots->uses[index];
    struct table_slot *record = slots_record(slots, number);
    struct slot_class *class;

    assert(record->state == SLOT_FREE);
    assert(use->used && number % slots->per_extent < use->places);
    slots->used_slots--;
    slots->used_bytes -= slots_bytes(slots, number);
    if (use->class == TABLE_NONE) {
        slots_give_large(slots, index);
        return;
    }
    class = &slots->classes[use->class];
    if (use->used-- == use->places && !use->closed)
        slots_list_push(slots, &class->partial, index, false);
    class->free += !use->closed;
    if (use->used == 0) {
        slots_clear_size(slots, index);
        return;
    }
    record->next_free = use->free;
    use->free = number % slots->per_extent;
}

uint32_t slots_grant(struct slots *slots, uint32_t tenant, uint32_t share)
{
    struct holder *holder = &slots->holders[tenant];

    for (uint32_t i = slots->first_free; i < slots->extents && holder->owned < share; i++) {
        slots->first_free = i + 1;
        if (slots_table_extent(slots, i)->state != EXTENT_FREE)
            continue;
        slots_own(slots, i, tenant);
        slots_list_push(slots, &holder->empty, i, false);
    }
    return holder->owned;
}

uint64_t slots_owned_bytes(const struct slots *slots, uint32_t tenant)
{
    return slots->holders[tenant].owned * slots->extent_bytes;
}

uint64_t slots_offset(const struct slots *slots, uint32_t number)
{
    uint32_t index = slots_index(slots, number);

    return index * slots->extent_bytes +
           (number - index * slots->per_extent) * slots_table_extent(slots, index)->slot_bytes;
}

uint32_t slots_extent(const struct slots *slots, uint32_t number)
{
    return slots_index(slots, number);
}

struct table_slot *slots_record(const struct slots *slots, uint32_t number)
{
    return table_slot(slots->table, slots->tier, number);
}

static bool is_mapped(const struct slots *slots, uint32_t index, const uint64_t *mapped)
{
    const uint32_t end = index + slots_table_extent(slots, index)->span;

    while (index < end && slots_bit(mapped, index))
        index++;
    return index == end;
}

bool slots_is_mapped(const struct slots *slots, uint32_t number, const uint64_t *mapped)
{
    return is_mapped(slots, slots_index(slots, number), mapped);
}

bool slots_may_pass_on(const struct slots *slots, uint32_t number, const uint64_t *mapped)
{
    const uint32_t index = slots_index(slots, number);

    return !slots->uses[index].closed && is_mapped(slots, index, mapped);
}

uint64_t slots_bytes(const struct slots *slots, uint32_t number)
{
    return slots_table_extent(slots, slots_extent(slots, number))->slot_bytes;
}

/* Empty extents that may get this slot size; promises are few and short. */
static uint64_t count_empty(const struct slots *slots, const struct holder *holder,
                            uint64_t slot_bytes)
{
    uint64_t n = holder->empty.count;
    uint32_t left = holder->promised;

    for (uint32_t i = holder->empty.head; left > 0; i = slots->uses[i].next) {
        left -= slots->uses[i].promised != 0;
        n -= !slots_is_for(slots, i, slot_bytes);
    }
    return n;
}

uint64_t slots_free_count(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes)
{
    const struct holder *holder = &slots->holders[tenant];
    uint64_t count = 0, run = 0;
    uint32_t class, span;

    if (slot_bytes <= slots->extent_bytes) {
        class = slots_find_class(slots, tenant, slot_bytes);
        if (class != TABLE_NONE)
            count = slots->classes[class].free;
        return count + count_empty(slots, holder, slot_bytes) * (slots->extent_bytes / slot_bytes);
    }
    span = slots_span(slots, slot_bytes);
    for (uint32_t i = 0; i < slots->extents; i++) {
        run = slots_is_empty(slots, i, tenant) && slots_is_for(slots, i, slot_bytes) ? run + 1 : 0;
        if (run == span) {
            count++;
            run = 0;
        }
    }
    return count;
}

void slots_count(const struct slots *slots, struct slots_count *count)
{
    count->bytes = slots->extents * slots->extent_bytes;
    count->used_bytes = slots->used_bytes;
    count->slots = slots->slots;
    count->used_slots = slots->used_slots;
}

/* Takes over an ordinary extent that has a slot size: which of its slots are free. */
static void adopt_sized(struct slots *slots, uint32_t index)
{
    struct table_extent *extent = slots_table_extent(slots, index);
    struct extent_use *use = &slots->uses[index];
    uint32_t first = index * slots->per_extent;

    slots_set_size(slots, index, extent->slot_bytes);
    for (uint32_t place = 0; place < use->places; place++) {
        if (slots_record(slots, first + place)->state == SLOT_FREE)
            continue;
        /* The gap before it becomes free places, the lowest on top. */
        for (uint32_t gap = place; gap-- > use->fresh;) {
            slots_record(slots, first + gap)->next_free = use->free;
            use->free = gap;
        }
        use->fresh = place + 1;
        use->used++;
    }
    slots->classes[use->class].free -= use->used;
    slots->used_slots += use->used;
    slots->used_bytes += use->used * extent->slot_bytes;
    if (use->used == use->places)
        slots_list_take(slots, &slots->classes[use->class].partial, index);
    else if (use->used == 0)
        slots_clear_size(slots, index);
}

static void adopt_large(struct slots *slots, uint32_t head)
{
    slots->slots++;
    slots->uses[head].places = slots->uses[head].used = 1;
    if (slots_record(slots, head * slots->per_extent)->state == SLOT_FREE) {
        slots_give_large(slots, head);
        return;
    }
    slots->used_slots++;
    slots->used_bytes += slots_table_extent(slots, head)->slot_bytes;
}

static void adopt(struct slots *slots)
{
    slots->first_free = slots->extents;
    for (uint32_t i = slots->extents; i-- > 0;) {
        const struct table_extent *extent = slots_table_extent(slots, i);

        if (extent->state == EXTENT_FREE)
            slots->first_free = i;
        if (extent->state == EXTENT_OWNED || extent->state == EXTENT_TAIL)
            slots->holders[extent->tenant].owned++;
        if (extent->state == EXTENT_OWNED && !extent->slot_bytes)
            slots_list_push(slots, &slots->holders[extent->tenant].empty, i, true);
    }
    /* Giving up a large block turns its tails, which come later, into what the loop above counted.
     */
    for (uint32_t i = 0; i < slots->extents; i++) {
        const struct table_extent *extent = slots_table_extent(slots, i);

        if (extent->state != EXTENT_OWNED || !extent->slot_bytes)
            continue;
        if (extent->slot_bytes > slots->extent_bytes)
            adopt_large(slots, i);
        else
            adopt_sized(slots, i);
    }
}

kvc_status slots_create(struct table *table, enum tier_kind tier, struct slots **slots)
{
    const struct table_tier *t = &table_header(table)->tiers[tier];
    struct slots *made = mem_zalloc(sizeof(*made));

    if (!made)
        return KVC_E_NO_MEMORY;
    made->table = table;
    made->tier = tier;
    made->extents = t->extents;
    made->per_extent = t->slots_per_extent;
    if (t->extents > 0)
        made->table_extents = table_extent(table, tier, 0);
    made->inverse = t->slots_per_extent ? UINT64_MAX / t->slots_per_extent + 1 : 0;
    made->extent_bytes = t->extent_bytes;
    made->uses = mem_array(t->extents + 1, sizeof(*made->uses));
    made->classes = mem_array(t->extents + 1, sizeof(*made->classes));
    if (!made->uses || !made->classes) {
        slots_destroy(made);
        return KVC_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < t->extents; i++) {
        made->uses[i].class = TABLE_NONE;
        made->uses[i].free = SLOT_NONE;
        made->classes[i].next = i + 1 < t->extents ? i + 1 : TABLE_NONE;
    }
    made->free_classes = t->extents ? 0 : TABLE_NONE;
    for (uint32_t i = 0; i < TABLE_TENANTS; i++) {
        made->holders[i].classes = TABLE_NONE;
        made->holders[i].empty = EXTENT_LIST_EMPTY;
    }
    adopt(made);
    *slots = made;
    return KVC_OK;
}

void slots_destroy(struct slots *slots)
{
    if (!slots)
        return;
    mem_free(slots->classes);
    mem_free(slots->uses);
    mem_free(slots);
}
