#include "proto/key.h"

#include <string.h>

/* Inlined, so that libkvcache needs no other library. */
#define XXH_INLINE_ALL
#include <xxhash.h>

/* Tags of a namespace's fields in the bytes that are hashed; numbers are never reused. */
enum {
    TAG_MODEL = 1,
    TAG_WEIGHTS = 2,
    TAG_DTYPE = 3,
    TAG_KV_DTYPE = 4,
    TAG_QUANTIZATION = 5,
    TAG_ROPE = 6,
    TAG_HASH = 7,
    TAG_BLOCK_TOKENS = 8,
    TAG_FIRST_LAYER = 9,
    TAG_LAST_LAYER = 10,
    TAG_TENSOR_RANK = 11,
    TAG_TENSOR_SIZE = 12,
    TAG_PIPELINE_RANK = 13,
    TAG_PIPELINE_SIZE = 14,
    TAG_CONTEXT_RANK = 15,
    TAG_CONTEXT_SIZE = 16,
};

void key_fold(const void *hash, size_t len, uint8_t key[KVC_KEY_BYTES])
{
    XXH128_canonical_t canonical;

    if (len >= KVC_KEY_BYTES) {
        memcpy(key, hash, KVC_KEY_BYTES);
        return;
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(hash, len));
    memcpy(key, canonical.digest, KVC_KEY_BYTES);
}

static void add_u32(XXH3_state_t *state, uint32_t value)
{
    const uint8_t bytes[4] = {(uint8_t)value, (uint8_t)(value >> 8), (uint8_t)(value >> 16),
                              (uint8_t)(value >> 24)};

    XXH3_128bits_update(state, bytes, sizeof(bytes));
}

static void add_tag(XXH3_state_t *state, uint8_t tag, uint32_t len)
{
    XXH3_128bits_update(state, &tag, 1);
    add_u32(state, len);
}

/* An absent string has no record, an empty one has a record of length 0. */
static void add_string(XXH3_state_t *state, uint8_t tag, const char *text)
{
    if (text == NULL)
        return;
    add_tag(state, tag, (uint32_t)strlen(text));
    XXH3_128bits_update(state, text, strlen(text));
}

static void add_number(XXH3_state_t *state, uint8_t tag, uint32_t value)
{
    add_tag(state, tag, 4);
    add_u32(state, value);
}

static void add_fields(XXH3_state_t *state, const struct key_namespace *fields)
{
    add_string(state, TAG_MODEL, fields->model);
    add_string(state, TAG_WEIGHTS, fields->weights);
    add_string(state, TAG_DTYPE, fields->dtype);
    add_string(state, TAG_KV_DTYPE, fields->kv_dtype);
    add_string(state, TAG_QUANTIZATION, fields->quantization);
    add_string(state, TAG_ROPE, fields->rope);
    add_string(state, TAG_HASH, fields->hash);
    add_number(state, TAG_BLOCK_TOKENS, fields->block_tokens);
    add_number(state, TAG_FIRST_LAYER, fields->first_layer);
    add_number(state, TAG_LAST_LAYER, fields->last_layer);
    add_number(state, TAG_TENSOR_RANK, fields->tensor_rank);
    add_number(state, TAG_TENSOR_SIZE, fields->tensor_size);
    add_number(state, TAG_PIPELINE_RANK, fields->pipeline_rank);
    add_number(state, TAG_PIPELINE_SIZE, fields->pipeline_size);
    add_number(state, TAG_CONTEXT_RANK, fields->context_rank);
    add_number(state, TAG_CONTEXT_SIZE, fields->context_size);
}

void key_namespace_digest(const struct key_namespace *fields, uint8_t digest[KVC_NAMESPACE_BYTES])
{
    XXH128_canonical_t canonical;
    XXH3_state_t state;

    for (unsigned seed = 0; seed < 2; seed++) {
        /* reset reads the seed of a state that was never reset */
        XXH3_INITSTATE(&state);
        XXH3_128bits_reset_withSeed(&state, seed);
        add_fields(&state, fields);
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
        memcpy(digest + seed * sizeof(canonical.digest), canonical.digest,
               sizeof(canonical.digest));
    }
}
