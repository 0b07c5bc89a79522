/*
 * A map from 64-bit ids (never 0) to objects, which it does not own. Constant time; memory grows
 * with the number of objects and comes back only with handles_free.
 */
#ifndef KVC_STORE_HANDLES_H
#define KVC_STORE_HANDLES_H

#include <stdint.h>

#include "proto/status.h"

struct handle {
    uint64_t id;
    void *object;
};

/* Zeroed: empty, and without memory. */
struct handles {
    struct handle *places;
    uint32_t size, count; /* size: 0 or a power of two */
};

/* Makes room for one more, so that the next handles_put cannot fail. */
kvc_status handles_reserve(struct handles *handles);
void handles_put(struct handles *handles, uint64_t id, void *object);
void *handles_get(const struct handles *handles, uint64_t id); /* NULL: not there */
void handles_remove(struct handles *handles, uint64_t id);
void handles_free(struct handles *handles);

#endif
