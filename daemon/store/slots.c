#include "daemon/store/slots.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/store/slots_internal.h"

/* Which of a list's ends an extent joins is said at each call; either costs the same. */
static void list_push(struct slots *slots, struct extent_list *list, uint32_t index, bool front)
{
    struct extent_use *use = &slots->uses[index];

    use->prev = front ? TABLE_NONE : list->tail;
    use->next = front ? list->head : TABLE_NONE;
    *(use->prev == TABLE_NONE ? &list->head : &slots->uses[use->prev].next) = index;
    *(use->next == TABLE_NONE ? &list->tail : &slots->uses[use->next].prev) = index;
    list->count++;
}

static void list_take(struct slots *slots, struct extent_list *list, uint32_t index)
{
    struct extent_use *use = &slots->uses[index];

    *(use->prev == TABLE_NONE ? &list->head : &slots->uses[use->prev].next) = use->next;
    *(use->next == TABLE_NONE ? &list->tail : &slots->uses[use->next].prev) = use->prev;
    list->count--;
}

static struct table_extent *extent_of(const struct slots *slots, uint32_t index)
{
    return table_extent(slots->table, slots->tier, index);
}

static bool is_set(const uint64_t *bits, uint32_t index)
{
    return !bits || (bits[index / 64] >> index % 64 & 1);
}

static uint32_t first_mapped(const struct slots *slots, const struct extent_list *list,
                             const uint64_t *mapped)
{
    uint32_t index = list->head;

    while (index != TABLE_NONE && !is_set(mapped, index))
        index = slots->uses[index].next;
    return index;
}

static uint32_t find_class(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes)
{
    uint32_t c = slots->holders[tenant].classes;

    while (c != TABLE_NONE && slots->classes[c].slot_bytes != slot_bytes)
        c = slots->classes[c].next;
    return c;
}

/* There is always one: a class has an extent of its own, and there are as many as extents. */
static uint32_t add_class(struct slots *slots, uint32_t tenant, uint64_t slot_bytes)
{
    struct holder *holder = &slots->holders[tenant];
    uint32_t c = slots->free_classes;
    struct slot_class *class = &slots->classes[c];

    assert(c != TABLE_NONE);
    slots->free_classes = class->next;
    class->slot_bytes = slot_bytes;
    class->extents = 0;
    class->free = 0;
    class->partial = EXTENT_LIST_EMPTY;
    class->next = holder->classes;
    holder->classes = c;
    return c;
}

static void drop_class(struct slots *slots, uint32_t tenant, uint32_t c)
{
    uint32_t *link = &slots->holders[tenant].classes;

    while (*link != c)
        link = &slots->classes[*link].next;
    *link = slots->classes[c].next;
    slots->classes[c].next = slots->free_classes;
    slots->free_classes = c;
}

/* Gives an empty extent, which is in no list now, its slot size; it joins its class's list. */
static void set_size(struct slots *slots, uint32_t index, uint64_t slot_bytes)
{
    struct table_extent *extent = extent_of(slots, index);
    struct extent_use *use = &slots->uses[index];
    uint32_t c = find_class(slots, extent->tenant, slot_bytes);
    struct slot_class *class;

    if (c == TABLE_NONE)
        c = add_class(slots, extent->tenant, slot_bytes);
    class = &slots->classes[c];
    use->class = c;
    use->places = (uint32_t)(slots->extent_bytes / slot_bytes);
    use->used = use->fresh = 0;
    use->free = SLOT_NONE;
    class->extents++;
    class->free += use->places;
    list_push(slots, &class->partial, index, false);
    slots->slots += use->places;
    extent->slot_bytes = slot_bytes;
}

/* The opposite, for an extent whose last slot is free; it joins its tenant's empty ones. */
static void clear_size(struct slots *slots, uint32_t index)
{
    struct table_extent *extent = extent_of(slots, index);
    struct extent_use *use = &slots->uses[index];
    struct slot_class *class = &slots->classes[use->class];

    extent->slot_bytes = 0;
    slots->slots -= use->places;
    list_take(slots, &class->partial, index);
    class->free -= use->places;
    if (--class->extents == 0)
        drop_class(slots, extent->tenant, use->class);
    use->class = TABLE_NONE;
    use->places = 0;
    list_push(slots, &slots->holders[extent->tenant].empty, index, true);
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
        list_take(slots, &class->partial, index);
    return number;
}

/* The first of `span` adjacent empty extents of the tenant, or TABLE_NONE. */
static uint32_t find_run(const struct slots *slots, uint32_t tenant, uint64_t span,
                         const uint64_t *mapped)
{
    uint64_t run = 0;

    for (uint32_t i = 0; i < slots->extents; i++) {
        run = slots_is_empty(slots, i, tenant) && is_set(mapped, i) ? run + 1 : 0;
        if (run == span)
            return (uint32_t)(i + 1 - span);
    }
    return TABLE_NONE;
}

static uint32_t span_of(const struct slots *slots, uint64_t slot_bytes)
{
    uint64_t span = (slot_bytes + slots->extent_bytes - 1) / slots->extent_bytes;

    return span < UINT32_MAX ? (uint32_t)span : UINT32_MAX;
}

/* A block larger than an extent: the order of stores is what table.h says of extents. */
static uint32_t take_large(struct slots *slots, uint32_t tenant, uint64_t slot_bytes,
                           const uint64_t *mapped)
{
    uint32_t span = span_of(slots, slot_bytes);
    uint32_t head = find_run(slots, tenant, span, mapped);

    if (head == TABLE_NONE)
        return SLOT_NONE;
    for (uint32_t i = head; i < head + span; i++)
        list_take(slots, &slots->holders[tenant].empty, i);
    for (uint32_t i = head + 1; i < head + span; i++) {
        struct table_extent *tail = extent_of(slots, i);

        tail->head = head;
        __atomic_store_n(&tail->state, (uint32_t)EXTENT_TAIL, __ATOMIC_RELEASE);
    }
    extent_of(slots, head)->span = span;
    __atomic_store_n(&extent_of(slots, head)->slot_bytes, slot_bytes, __ATOMIC_RELEASE);
    slots->uses[head].places = slots->uses[head].used = 1;
    slots->slots++;
    return head * slots->per_extent;
}

static void give_large(struct slots *slots, uint32_t head)
{
    struct table_extent *extent = extent_of(slots, head);
    uint32_t span = extent->span;

    slots->slots--;
    slots->uses[head].places = slots->uses[head].used = 0;
    __atomic_store_n(&extent->slot_bytes, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&extent->span, 1u, __ATOMIC_RELEASE);
    for (uint32_t i = head + 1; i < head + span; i++) {
        struct table_extent *tail = extent_of(slots, i);

        tail->span = 1;
        __atomic_store_n(&tail->state, (uint32_t)EXTENT_OWNED, __ATOMIC_RELEASE);
    }
    for (uint32_t i = head + span; i-- > head;)
        list_push(slots, &slots->holders[extent->tenant].empty, i, true);
}

bool slots_take(struct slots *slots, uint32_t tenant, uint64_t slot_bytes, const uint64_t *mapped,
                uint32_t *number)
{
    uint32_t class, index = TABLE_NONE, taken;
    struct table_slot *record;

    assert(tenant < TABLE_TENANTS);
    assert(slot_bytes >= KVC_SLOT_BYTES_MIN && slot_bytes % KVC_SLOT_ALIGN == 0);
    if (fault_fires("slots.take"))
        return false;
    if (slot_bytes > slots->extent_bytes) {
        taken = take_large(slots, tenant, slot_bytes, mapped);
        if (taken == SLOT_NONE)
            return false;
    } else {
        class = find_class(slots, tenant, slot_bytes);
        if (class != TABLE_NONE)
            index = first_mapped(slots, &slots->classes[class].partial, mapped);
        if (index == TABLE_NONE) {
            index = first_mapped(slots, &slots->holders[tenant].empty, mapped);
            if (index == TABLE_NONE)
                return false;
            list_take(slots, &slots->holders[tenant].empty, index);
            set_size(slots, index, slot_bytes);
        }
        taken = take_place(slots, index);
    }
    slots->used_slots++;
    slots->used_bytes += slot_bytes;
    record = slots_record(slots, taken);
    assert(record->state == SLOT_FREE);
    record->next_free = 0;
    if (++record->generation == 0) /* 0 is never handed out */
        record->generation = 1;
    *number = taken;
    return true;
}

void slots_give(struct slots *slots, uint32_t number)
{
    uint32_t index = slots_extent(slots, number);
    struct extent_use *use = &slots->uses[index];
    struct table_slot *record = slots_record(slots, number);
    struct slot_class *class;

    assert(record->state == SLOT_FREE);
    assert(use->used && number % slots->per_extent < use->places);
    slots->used_slots--;
    slots->used_bytes -= slots_bytes(slots, number);
    if (use->class == TABLE_NONE) {
        give_large(slots, index);
        return;
    }
    class = &slots->classes[use->class];
    if (use->used-- == use->places)
        list_push(slots, &class->partial, index, false);
    class->free++;
    if (use->used == 0) {
        clear_size(slots, index);
        return;
    }
    record->next_free = use->free;
    use->free = number % slots->per_extent;
}

uint32_t slots_grant(struct slots *slots, uint32_t tenant, uint32_t share)
{
    struct holder *holder = &slots->holders[tenant];

    for (uint32_t i = slots->first_free; i < slots->extents && holder->owned < share; i++) {
        struct table_extent *extent = extent_of(slots, i);

        slots->first_free = i + 1;
        if (extent->state != EXTENT_FREE)
            continue;
        extent->tenant = tenant;
        extent->slot_bytes = 0;
        extent->span = 1;
        extent->head = 0;
        __atomic_store_n(&extent->state, (uint32_t)EXTENT_OWNED, __ATOMIC_RELEASE);
        list_push(slots, &holder->empty, i, false);
        holder->owned++;
    }
    return holder->owned;
}

uint64_t slots_offset(const struct slots *slots, uint32_t number)
{
    uint32_t index = slots_extent(slots, number);

    return index * slots->extent_bytes +
           number % slots->per_extent * extent_of(slots, index)->slot_bytes;
}

uint32_t slots_extent(const struct slots *slots, uint32_t number)
{
    return number / slots->per_extent;
}

struct table_slot *slots_record(const struct slots *slots, uint32_t number)
{
    return table_slot(slots->table, slots->tier, number);
}

bool slots_is_mapped(const struct slots *slots, uint32_t number, const uint64_t *mapped)
{
    uint32_t index = slots_extent(slots, number);
    uint32_t end = index + extent_of(slots, index)->span;

    while (index < end && is_set(mapped, index))
        index++;
    return index == end;
}

uint64_t slots_bytes(const struct slots *slots, uint32_t number)
{
    return extent_of(slots, slots_extent(slots, number))->slot_bytes;
}

uint64_t slots_free_count(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes)
{
    const struct holder *holder = &slots->holders[tenant];
    uint64_t count = 0, run = 0;
    uint32_t class, span;

    if (slot_bytes <= slots->extent_bytes) {
        class = find_class(slots, tenant, slot_bytes);
        if (class != TABLE_NONE)
            count = slots->classes[class].free;
        return count + holder->empty.count * (slots->extent_bytes / slot_bytes);
    }
    span = span_of(slots, slot_bytes);
    for (uint32_t i = 0; i < slots->extents; i++) {
        run = slots_is_empty(slots, i, tenant) ? run + 1 : 0;
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
    struct table_extent *extent = extent_of(slots, index);
    struct extent_use *use = &slots->uses[index];
    uint32_t first = index * slots->per_extent;

    set_size(slots, index, extent->slot_bytes);
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
        list_take(slots, &slots->classes[use->class].partial, index);
    else if (use->used == 0)
        clear_size(slots, index);
}

static void adopt_large(struct slots *slots, uint32_t head)
{
    slots->slots++;
    slots->uses[head].places = slots->uses[head].used = 1;
    if (slots_record(slots, head * slots->per_extent)->state == SLOT_FREE) {
        give_large(slots, head);
        return;
    }
    slots->used_slots++;
    slots->used_bytes += extent_of(slots, head)->slot_bytes;
}

static void adopt(struct slots *slots)
{
    slots->first_free = slots->extents;
    for (uint32_t i = slots->extents; i-- > 0;) {
        const struct table_extent *extent = extent_of(slots, i);

        if (extent->state == EXTENT_FREE)
            slots->first_free = i;
        if (extent->state == EXTENT_OWNED || extent->state == EXTENT_TAIL)
            slots->holders[extent->tenant].owned++;
        if (extent->state == EXTENT_OWNED && !extent->slot_bytes)
            list_push(slots, &slots->holders[extent->tenant].empty, i, true);
    }
    /* Giving up a large block turns its tails, which come later, into what the loop above counted.
     */
    for (uint32_t i = 0; i < slots->extents; i++) {
        const struct table_extent *extent = extent_of(slots, i);

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
