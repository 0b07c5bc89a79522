/*
 * Memory for the largest reply, taken once: what a request says of its keys or blocks, as the store
 * gives it and as the codec wants it. Nothing in it outlives the handler that fills it.
 */
#ifndef KVC_API_SCRATCH_H
#define KVC_API_SCRATCH_H

#include "daemon/store/store.h"

struct save_scratch {
    struct store_location locations[KVC_KEYS_MAX];
    struct store_chunk chunks[KVC_KEYS_MAX];
    uint8_t states[KVC_KEYS_MAX];
    uint8_t tiers[KVC_KEYS_MAX];
    uint8_t checked[KVC_KEYS_MAX];
    uint32_t generations[KVC_KEYS_MAX];
    uint64_t offsets[KVC_KEYS_MAX];
    uint64_t checksums[KVC_KEYS_MAX];
    uint32_t chunk_blocks[KVC_KEYS_MAX];
    uint32_t chunk_words[KVC_KEYS_MAX];
    uint64_t chunk_numbers[KVC_KEYS_MAX];
};

#endif
