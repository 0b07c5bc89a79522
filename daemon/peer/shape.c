#ifdef KVC_UCX

#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

/* Layouts of the table stay for its life, and so do these. */
const struct shape *shape_of(struct peers *peers, uint32_t index)
{
    const struct table_layout *layout = table_layout(store_table(peers->config.store), index);
    const uint32_t n = layout->n_slices;
    struct shape *shape;

    list_for_each(shape, &peers->shapes, link)
        if (shape->layout == index)
            return shape;
    shape = mem_zalloc(sizeof(*shape) + n * (sizeof(uint64_t) + sizeof(uint32_t)));
    if (shape == NULL)
        return NULL;
    shape->layout = index;
    shape->slice_bytes = (uint32_t *)(shape->offsets + n);
    memcpy(shape->slice_bytes, layout->slice_bytes, n * sizeof(uint32_t));
    shape->pack.slice_offsets = shape->offsets;
    if (pack_layout_init(&shape->pack, shape->slice_bytes, n) != KVC_OK) {
        mem_free(shape);
        return NULL;
    }
    shape->span = shape->offsets[n - 1] + shape->slice_bytes[n - 1];
    for (uint32_t i = 0; i < n; i++)
        if (shape->slice_bytes[i] > shape->largest)
            shape->largest = shape->slice_bytes[i];
    list_push_back(&peers->shapes, &shape->link);
    return shape;
}

void shapes_free(struct peers *peers)
{
    struct shape *shape;

    while ((shape = list_first(&peers->shapes, struct shape, link)) != NULL) {
        list_remove(&shape->link);
        mem_free(shape);
    }
}

#endif
