// A worker's KV cache for tests: memory for some blocks of some slices, filled with content that
// follows from a seed, so that whoever loads a block knows what it must hold.
//
//     struct kv kv;
//     kv_init(&kv, (const uint32_t[]){2048, 100, 36}, 3, 64);
//     kvc_register(client, &kv.desc, &part);
//     kv_fill(&kv, 5, seed);     ... save block 5, load it into block 9 ...
//     ck_assert(kv_holds(&kv, 9, seed));
//     kv_free(&kv);
#ifndef KVC_TESTS_LIB_KV_H
#define KVC_TESTS_LIB_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "client/kvcache.h"

#define KV_SLICES_MAX 64u

struct kv {
    kvc_part_desc desc;
    kvc_slice slices[KV_SLICES_MAX];
    uint8_t *memory; // on a GPU: what is, or was, there, as far as the test has asked
    uint8_t *device; // NULL: the memory itself is the KV cache
    uint64_t bytes;
    kvc_memory lent; // base NULL: it is not
};

// Blocks of a slice lie some odd bytes apart, filled with a pattern that kv_holds looks at, too.
void kv_init(struct kv *kv, const uint32_t *slice_bytes, uint32_t n_slices, uint32_t n_blocks);
void kv_free(struct kv *kv);

// Moves the memory, with what it holds, into a memfd for the daemon to copy from and to, as kv_init
// does by itself in a test that runs for the second time. Memory of a GPU stays, and is lent.
void kv_lend(struct kv *kv);

// The bytes of a slice of a block, as they are.
const uint8_t *kv_at(const struct kv *kv, uint32_t slice, uint32_t block);

void kv_fill(struct kv *kv, uint32_t block, uint64_t seed);
void kv_clear(struct kv *kv, uint32_t block);
bool kv_holds(const struct kv *kv, uint32_t block, uint64_t seed);
bool kv_cleared(const struct kv *kv, uint32_t block);

// Keys number first to first + n - 1 of a prompt, one behind the other.
void kv_keys(uint64_t prompt, uint32_t first, uint32_t n, uint8_t *keys);
// Block ids first, first + 1, ...
void kv_ids(uint32_t first, uint32_t n, uint32_t *ids);

#endif
