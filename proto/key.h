/*
 * Names of blocks: keys and namespaces from their fields. The C library, the daemon's tools and
 * every binding call these, so that all of them derive equal names; PROTOCOL.md has the vectors.
 */
#ifndef KVC_KEY_H
#define KVC_KEY_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

/*
 * Folds an engine's block hash of len bytes into a key: 16 bytes or more give their first 16,
 * fewer give the XXH3-128 of the bytes in canonical (big-endian) form. len 0 is a valid, fixed key.
 */
void key_fold(const void *hash, size_t len, uint8_t key[KVC_KEY_BYTES]);

/* What makes KV data interchangeable. Strings may be NULL, which is not the empty string. */
struct key_namespace {
    const char *model;        /* name as the operator knows it */
    const char *weights;      /* revision or digest of the weights */
    const char *dtype;        /* "bfloat16" */
    const char *kv_dtype;     /* "fp8_e4m3" */
    const char *quantization; /* method and scales' digest */
    const char *rope;         /* scaling parameters */
    const char *hash;         /* algorithm of the block hashes */
    uint32_t block_tokens;
    uint32_t first_layer, last_layer; /* inclusive */
    /* The shard. Replicated KV heads and MLA pass rank 0 of size 1, and so share one namespace. */
    uint32_t tensor_rank, tensor_size;
    uint32_t pipeline_rank, pipeline_size;
    uint32_t context_rank, context_size;
};

/*
 * The 32-byte digest of the fields: each is serialised as tag, length and bytes, and hashed twice
 * with XXH3-128 under two seeds. Not a cryptographic promise: namespaces only meet inside a tenant.
 */
void key_namespace_digest(const struct key_namespace *fields, uint8_t digest[KVC_NAMESPACE_BYTES]);

#endif
