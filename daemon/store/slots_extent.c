#include <assert.h>

#include "daemon/store/slots_internal.h"

/* Which of a list's ends an extent joins is said at each call; either costs the same. */
void slots_list_push(struct slots *slots, struct extent_list *list, uint32_t index, bool front)
{
    struct extent_use *use = &slots->uses[index];

    use->prev = front ? TABLE_NONE : list->tail;
    use->next = front ? list->head : TABLE_NONE;
    *(use->prev == TABLE_NONE ? &list->head : &slots->uses[use->prev].next) = index;
    *(use->next == TABLE_NONE ? &list->tail : &slots->uses[use->next].prev) = index;
    list->count++;
}

void slots_list_take(struct slots *slots, struct extent_list *list, uint32_t index)
{
    struct extent_use *use = &slots->uses[index];

    *(use->prev == TABLE_NONE ? &list->head : &slots->uses[use->prev].next) = use->next;
    *(use->next == TABLE_NONE ? &list->tail : &slots->uses[use->next].prev) = use->prev;
    list->count--;
}

uint32_t slots_find_class(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes)
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

void slots_set_size(struct slots *slots, uint32_t index, uint64_t slot_bytes)
{
    struct table_extent *extent = slots_table_extent(slots, index);
    struct extent_use *use = &slots->uses[index];
    uint32_t c = slots_find_class(slots, extent->tenant, slot_bytes);
    struct slot_class *class;

    if (c == TABLE_NONE)
        c = add_class(slots, extent->tenant, slot_bytes);
    class = &slots->classes[c];
    use->class = c;
    use->places = (uint32_t)(slots->extent_bytes / slot_bytes);
    use->used = use->fresh = 0;
    use->loose = 0;
    use->free = SLOT_NONE;
    class->extents++;
    class->free += use->places;
    slots_list_push(slots, &class->partial, index, false);
    slots->slots += use->places;
    extent->slot_bytes = slot_bytes;
}

void slots_clear_size(struct slots *slots, uint32_t index)
{
    struct table_extent *extent = slots_table_extent(slots, index);
    struct extent_use *use = &slots->uses[index];
    struct slot_class *class = &slots->classes[use->class];

    extent->slot_bytes = 0;
    slots->slots -= use->places;
    if (!use->closed) {
        slots_list_take(slots, &class->partial, index);
        class->free -= use->places;
    }
    if (--class->extents == 0)
        drop_class(slots, extent->tenant, use->class);
    use->class = TABLE_NONE;
    use->places = 0;
    if (!use->closed)
        slots_list_push(slots, &slots->holders[extent->tenant].empty, index, true);
}

void slots_empty_take(struct slots *slots, uint32_t index)
{
    struct holder *holder = &slots->holders[slots_table_extent(slots, index)->tenant];

    slots_list_take(slots, &holder->empty, index);
    holder->promised -= slots->uses[index].promised != 0;
    slots->uses[index].promised = 0;
}

/* The first of `span` adjacent empty extents of the tenant, or TABLE_NONE. */
static uint32_t find_run(const struct slots *slots, uint32_t tenant, uint64_t slot_bytes,
                         const uint64_t *mapped)
{
    uint64_t span = slots_span(slots, slot_bytes), run = 0;

    for (uint32_t i = 0; i < slots->extents; i++) {
        run = slots_is_empty(slots, i, tenant) && slots_is_for(slots, i, slot_bytes) &&
                      slots_bit(mapped, i)
                  ? run + 1
                  : 0;
        if (run == span)
            return (uint32_t)(i + 1 - span);
    }
    return TABLE_NONE;
}

/* The order of stores in the next two is what table.h says of extents. */
uint32_t slots_take_large(struct slots *slots, uint32_t tenant, uint64_t slot_bytes,
                          const uint64_t *mapped)
{
    uint32_t span = slots_span(slots, slot_bytes);
    uint32_t head = find_run(slots, tenant, slot_bytes, mapped);

    if (head == TABLE_NONE)
        return SLOT_NONE;
    for (uint32_t i = head; i < head + span; i++)
        slots_empty_take(slots, i);
    for (uint32_t i = head + 1; i < head + span; i++) {
        struct table_extent *tail = slots_table_extent(slots, i);

        tail->head = head;
        __atomic_store_n(&tail->state, (uint32_t)EXTENT_TAIL, __ATOMIC_RELEASE);
    }
    slots_table_extent(slots, head)->span = span;
    __atomic_store_n(&slots_table_extent(slots, head)->slot_bytes, slot_bytes, __ATOMIC_RELEASE);
    slots->uses[head].places = slots->uses[head].used = 1;
    slots->uses[head].loose = 0;
    slots->slots++;
    return head * slots->per_extent;
}

void slots_give_large(struct slots *slots, uint32_t head)
{
    struct table_extent *extent = slots_table_extent(slots, head);
    uint32_t span = extent->span;

    slots->slots--;
    slots->uses[head].places = slots->uses[head].used = 0;
    __atomic_store_n(&extent->slot_bytes, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&extent->span, 1u, __ATOMIC_RELEASE);
    for (uint32_t i = head + 1; i < head + span; i++) {
        struct table_extent *tail = slots_table_extent(slots, i);

        tail->span = 1;
        __atomic_store_n(&tail->state, (uint32_t)EXTENT_OWNED, __ATOMIC_RELEASE);
    }
    for (uint32_t i = head + span; i-- > head;) {
        slots->uses[i].touched = slots->uses[head].touched;
        if (!slots->uses[i].closed)
            slots_list_push(slots, &slots->holders[extent->tenant].empty, i, true);
    }
}
