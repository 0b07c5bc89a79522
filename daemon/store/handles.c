#include "daemon/store/handles.h"

#include <assert.h>

#include "daemon/base/mem.h"

#define HANDLES_SIZE_MIN 16u

/* Ids count up, or are chosen by a client: spread them before they are cut to a place. */
static uint32_t home(const struct handles *handles, uint64_t id)
{
    id ^= id >> 32;
    id *= 0x9E3779B97F4A7C15ull;
    return (uint32_t)(id >> 32) & (handles->size - 1);
}

static uint32_t find(const struct handles *handles, uint64_t id)
{
    uint32_t place = home(handles, id);

    while (handles->places[place].id != 0 && handles->places[place].id != id)
        place = (place + 1) & (handles->size - 1);
    return place;
}

kvc_status handles_reserve(struct handles *handles)
{
    struct handles bigger;

    if (4 * ((uint64_t)handles->count + 1) <= 3 * (uint64_t)handles->size)
        return KVC_OK;
    bigger.size = handles->size ? 2 * handles->size : HANDLES_SIZE_MIN;
    bigger.count = 0;
    bigger.places = mem_array(bigger.size, sizeof(*bigger.places));
    if (!bigger.places)
        return KVC_E_NO_MEMORY;
    for (uint32_t i = 0; i < handles->size; i++)
        if (handles->places[i].id != 0)
            handles_put(&bigger, handles->places[i].id, handles->places[i].object);
    mem_free(handles->places);
    *handles = bigger;
    return KVC_OK;
}

void handles_put(struct handles *handles, uint64_t id, void *object)
{
    uint32_t place;

    assert(id != 0 && handles->count < handles->size);
    place = find(handles, id);
    assert(handles->places[place].id == 0);
    handles->places[place] = (struct handle){id, object};
    handles->count++;
}

void *handles_get(const struct handles *handles, uint64_t id)
{
    if (id == 0 || handles->size == 0)
        return NULL;
    return handles->places[find(handles, id)].object;
}

void handles_remove(struct handles *handles, uint64_t id)
{
    uint32_t mask = handles->size - 1, hole, next;

    assert(id != 0 && handles->size != 0);
    hole = find(handles, id);
    assert(handles->places[hole].id == id);
    /* Closes the gap, so that no search stops early: an element moves up if its home allows it. */
    for (next = (hole + 1) & mask; handles->places[next].id != 0; next = (next + 1) & mask) {
        uint32_t from_home = (next - home(handles, handles->places[next].id)) & mask;

        if (from_home >= ((next - hole) & mask)) {
            handles->places[hole] = handles->places[next];
            hole = next;
        }
    }
    handles->places[hole] = (struct handle){0, NULL};
    handles->count--;
}

void handles_free(struct handles *handles)
{
    mem_free(handles->places);
    *handles = (struct handles){0};
}
