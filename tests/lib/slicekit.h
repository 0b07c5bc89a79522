/*
 * A storekit whose worker saves blocks of four slices, of 512, 512, 1024 and 2048 bytes, by several
 * calls, each of some of the slices.
 */
#ifndef KVC_TESTS_LIB_SLICEKIT_H
#define KVC_TESTS_LIB_SLICEKIT_H

#include "tests/lib/storekit.h"

#define SLICEKIT_SLICES 4u
#define SLICEKIT_KEYS   100u /* two chunks */

struct slicekit_call {
    kvc_status status;
    struct kit_copy *copy; /* NULL: the worker copies */
    uint8_t states[KIT_KEYS];
    struct store_location locations[KIT_KEYS];
    struct store_chunk chunks[KIT_KEYS];
    struct store_save_result result;
};

struct slicekit {
    struct kit kit;
    struct kit_owner *worker;
    struct store_part_info part;
    uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];
    struct slicekit_call calls[SLICEKIT_SLICES + 1];
};

/* A gpu tier only, of so many slots of the kit's. */
void slicekit_open(struct slicekit *s, uint32_t gpu_slots);
/* Registers the part. */
void slicekit_add_part(struct slicekit *s, struct kit_owner *owner);

/* The first n keys, and a range of slices. */
struct store_save_entry slicekit_entry(const struct slicekit *s, uint32_t n, uint32_t first,
                                       uint32_t slices);
/* A call of a save, with its answer in calls[i]; save 0 begins one. */
struct slicekit_call *slicekit_ask(struct slicekit *s, struct kit_owner *owner,
                                   const struct store_save *req, uint32_t i);
struct slicekit_call *slicekit_call(struct slicekit *s, struct kit_owner *owner, uint64_t id,
                                    uint32_t i, uint32_t n, uint32_t first, uint32_t slices);
/* calls[0]: begins a save of SLICEKIT_KEYS keys with slice 0; its number. */
uint64_t slicekit_first(struct slicekit *s);

/* Chunk k of the worker's call has been copied, with cells that say `sum` for every block. */
void slicekit_prove(struct slicekit *s, const struct slicekit_call *call, uint32_t k, uint64_t sum);
/* How many of keys first .. first + n - 1 a lookup would find. */
uint32_t slicekit_found(struct slicekit *s, uint32_t first, uint32_t n);
void slicekit_check_places(const struct store_location *a, const struct store_location *b,
                           uint32_t n);

#endif
