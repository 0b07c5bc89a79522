#include "daemon/peer/view.h"

#include <sys/mman.h>

#include <stddef.h>

#include "daemon/base/fault.h"

uint64_t view_slab_bytes(uint64_t largest_slice, uint64_t block_bytes)
{
    uint64_t bytes = VIEW_SLAB_BYTES;

    if (block_bytes < VIEW_SLAB_BYTES / KVC_CHUNK_BLOCKS)
        bytes = block_bytes * KVC_CHUNK_BLOCKS;
    return bytes > largest_slice ? bytes : largest_slice;
}

void view_slab_init(uint8_t *base, uint64_t bytes, struct view_slab *slab)
{
    *slab = (struct view_slab){.base = base, .bytes[VIEW_FULL] = bytes};
    if (bytes > VIEW_SMALL_BYTES)
        slab->bytes[VIEW_SMALL] = VIEW_SMALL_BYTES;
}

kvc_status view_slab_create(uint64_t bytes, struct view_slab *slab)
{
    void *base = MAP_FAILED;

    if (!fault_fires("peer.slab"))
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return KVC_E_NO_MEMORY;
    view_slab_init(base, bytes, slab);
    return KVC_OK;
}

void view_slab_destroy(struct view_slab *slab)
{
    if (slab->base)
        munmap(slab->base, slab->bytes[VIEW_FULL]);
    *slab = (struct view_slab){0};
}

kvc_status view_choose(const struct view_slab *slab, struct view_streak *streak, uint64_t bytes,
                       enum view *view)
{
    if (bytes > slab->bytes[VIEW_FULL])
        return KVC_E_LIMIT;
    *view = VIEW_FULL;
    if (bytes > slab->bytes[VIEW_SMALL]) {
        streak->small = 0;
        return KVC_OK;
    }
    if (streak->small > 0)
        *view = VIEW_SMALL;
    else
        streak->small++;
    return KVC_OK;
}

enum view view_by_length(const struct view_slab *slab, uint64_t bytes)
{
    for (enum view view = 0; view < VIEW_COUNT; view++)
        if (bytes > 0 && slab->bytes[view] == bytes)
            return view;
    return VIEW_COUNT;
}
