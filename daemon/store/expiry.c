#include "daemon/store/expiry.h"

#include <assert.h>
#include <stddef.h>

#include "daemon/base/mem.h"

#define EXPIRY_SIZE_MIN 16u

static void put(struct expiry *expiry, uint32_t place, struct expiry_item *item)
{
    expiry->heap[place] = item;
    item->place = place;
}

static void rise(struct expiry *expiry, struct expiry_item *item)
{
    uint32_t place = item->place;

    while (place > 0 && expiry->heap[(place - 1) / 2]->at > item->at) {
        put(expiry, place, expiry->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(expiry, place, item);
}

static void sink(struct expiry *expiry, struct expiry_item *item)
{
    uint32_t place = item->place, child;

    while ((child = 2 * place + 1) < expiry->count) {
        if (child + 1 < expiry->count && expiry->heap[child + 1]->at < expiry->heap[child]->at)
            child++;
        if (expiry->heap[child]->at >= item->at)
            break;
        put(expiry, place, expiry->heap[child]);
        place = child;
    }
    put(expiry, place, item);
}

kvc_status expiry_reserve(struct expiry *expiry)
{
    return expiry_reserve_for(expiry, expiry->count + 1);
}

kvc_status expiry_reserve_for(struct expiry *expiry, uint32_t n)
{
    uint32_t size = expiry->size ? expiry->size : EXPIRY_SIZE_MIN;
    struct expiry_item **heap;

    if (n <= expiry->size)
        return KVC_OK;
    while (size < n)
        size *= 2;
    heap = mem_realloc(expiry->heap, size * sizeof(struct expiry_item *));
    if (!heap)
        return KVC_E_NO_MEMORY;
    expiry->heap = heap;
    expiry->size = size;
    return KVC_OK;
}

void expiry_add(struct expiry *expiry, struct expiry_item *item, uint64_t at)
{
    assert(expiry->count < expiry->size);
    item->at = at;
    item->place = expiry->count++;
    rise(expiry, item);
}

void expiry_move(struct expiry *expiry, struct expiry_item *item, uint64_t at)
{
    assert(expiry->heap[item->place] == item);
    item->at = at;
    rise(expiry, item);
    sink(expiry, item);
}

void expiry_remove(struct expiry *expiry, struct expiry_item *item)
{
    struct expiry_item *last = expiry->heap[--expiry->count];

    assert(expiry->heap[item->place] == item);
    if (last == item)
        return;
    put(expiry, item->place, last);
    rise(expiry, last);
    sink(expiry, last);
}

struct expiry_item *expiry_first(const struct expiry *expiry)
{
    return expiry->count ? expiry->heap[0] : NULL;
}

void expiry_free(struct expiry *expiry)
{
    mem_free(expiry->heap);
    *expiry = (struct expiry){0};
}
