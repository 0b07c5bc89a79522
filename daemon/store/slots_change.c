/* Extents that change what they are used for. */
#include <assert.h>

#include "daemon/store/slots_internal.h"

void slots_look(const struct slots *slots, uint32_t index, struct slots_extent *look)
{
    const struct table_extent *extent = slots_table_extent(slots, index);
    const struct extent_use *use = &slots->uses[index];
    const bool owned = extent->state == EXTENT_OWNED;

    *look = (struct slots_extent){
        .state = (enum extent_state)extent->state,
        .tenant = extent->tenant,
        .span = owned ? extent->span : 1,
        .slot_bytes = owned ? extent->slot_bytes : 0,
        .promised = use->promised,
        .touched = use->touched,
        .places = use->places,
        .used = use->used,
        .loose = use->loose,
        .siblings = use->class == TABLE_NONE ? 1 : slots->classes[use->class].extents,
        .closed = use->closed,
        .leaving = use->leaving,
    };
}

uint32_t slots_extents(const struct slots *slots)
{
    return slots->extents;
}

bool slots_is_closed(const struct slots *slots, uint32_t number)
{
    return slots->uses[slots_index(slots, number)].closed;
}

uint32_t slots_number(const struct slots *slots, uint32_t index, uint32_t place)
{
    return index * slots->per_extent + place;
}

uint32_t slots_owned(const struct slots *slots, uint32_t tenant)
{
    return slots->holders[tenant].owned;
}

void slots_touch(struct slots *slots, uint32_t number, uint64_t last_use)
{
    struct extent_use *use = &slots->uses[slots_index(slots, number)];

    if (last_use > use->touched)
        use->touched = last_use;
    if (last_use > slots->latest)
        slots->latest = last_use;
}

void slots_set_loose(struct slots *slots, uint32_t number, bool loose)
{
    struct extent_use *use = &slots->uses[slots_index(slots, number)];

    assert(loose ? use->loose < use->used : use->loose > 0);
    use->loose += loose ? 1 : -1u;
}

/* Whether it lies in a list and its free places are its class's, unless it is closed. */
static void set_listed(struct slots *slots, uint32_t index, bool listed)
{
    const struct table_extent *extent = slots_table_extent(slots, index);
    struct extent_use *use = &slots->uses[index];
    struct slot_class *class;

    if (extent->state == EXTENT_OWNED && !extent->slot_bytes) {
        if (listed)
            slots_list_push(slots, &slots->holders[extent->tenant].empty, index, true);
        else
            slots_empty_take(slots, index);
    }
    if (use->class == TABLE_NONE || use->used == use->places)
        return;
    class = &slots->classes[use->class];
    if (listed)
        slots_list_push(slots, &class->partial, index, false);
    else
        slots_list_take(slots, &class->partial, index);
    class->free += (uint64_t)(use->places - use->used) * (listed ? 1 : -1ull);
}

void slots_close(struct slots *slots, uint32_t index, bool leaving)
{
    struct extent_use *use = &slots->uses[index];

    assert(!use->closed);
    set_listed(slots, index, false);
    use->closed = true;
    use->leaving = leaving;
}

void slots_reopen(struct slots *slots, uint32_t index)
{
    struct extent_use *use = &slots->uses[index];

    assert(use->closed);
    use->closed = use->leaving = false;
    set_listed(slots, index, true);
}

void slots_promise(struct slots *slots, uint32_t index, uint64_t slot_bytes)
{
    struct holder *holder = &slots->holders[slots_table_extent(slots, index)->tenant];
    struct extent_use *use = &slots->uses[index];

    assert(slots_table_extent(slots, index)->state == EXTENT_OWNED);
    assert(!slots_table_extent(slots, index)->slot_bytes);
    if (use->closed)
        slots_reopen(slots, index);
    holder->promised += (slot_bytes != 0) - (use->promised != 0);
    use->promised = slot_bytes;
}

/* The store of the state alone ends what the table says of its tenant. */
static void leave(struct slots *slots, uint32_t index, enum extent_state state)
{
    struct table_extent *extent = slots_table_extent(slots, index);
    struct extent_use *use = &slots->uses[index];

    if (extent->state == EXTENT_OWNED) {
        assert(use->closed && !extent->slot_bytes && extent->span == 1);
        slots->holders[extent->tenant].owned--;
    } else {
        assert(extent->state == EXTENT_FREE && !use->closed);
    }
    __atomic_store_n(&extent->state, (uint32_t)state, __ATOMIC_RELEASE);
    use->closed = use->leaving = false;
}

void slots_free_extent(struct slots *slots, uint32_t index)
{
    leave(slots, index, EXTENT_FREE);
    if (index < slots->first_free)
        slots->first_free = index;
}

void slots_lose_extent(struct slots *slots, uint32_t index)
{
    leave(slots, index, EXTENT_LOST);
}

void slots_own(struct slots *slots, uint32_t index, uint32_t tenant)
{
    struct table_extent *extent = slots_table_extent(slots, index);

    assert(extent->state == EXTENT_FREE);
    extent->tenant = tenant;
    extent->slot_bytes = 0;
    extent->span = 1;
    extent->head = 0;
    __atomic_store_n(&extent->state, (uint32_t)EXTENT_OWNED, __ATOMIC_RELEASE);
    slots->uses[index].touched = slots->latest;
    slots->holders[tenant].owned++;
}

void slots_grant_closed(struct slots *slots, uint32_t index, uint32_t tenant)
{
    slots_own(slots, index, tenant);
    slots->uses[index].closed = true;
}
