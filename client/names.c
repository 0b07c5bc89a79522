/* Keys and namespaces under the names that the library exports. */
#include "client/kvcache.h"
#include "proto/key.h"

void kvc_key(const void *hash, size_t len, uint8_t key[KVC_KEY_BYTES])
{
    key_fold(hash, len, key);
}

void kvc_namespace_digest(const kvc_namespace *fields, uint8_t digest[KVC_NAMESPACE_BYTES])
{
    const struct key_namespace named = {
        .model = fields->model,
        .weights = fields->weights,
        .dtype = fields->dtype,
        .kv_dtype = fields->kv_dtype,
        .quantization = fields->quantization,
        .rope = fields->rope,
        .hash = fields->hash,
        .block_tokens = fields->block_tokens,
        .first_layer = fields->first_layer,
        .last_layer = fields->last_layer,
        .tensor_rank = fields->tensor_rank,
        .tensor_size = fields->tensor_size,
        .pipeline_rank = fields->pipeline_rank,
        .pipeline_size = fields->pipeline_size,
        .context_rank = fields->context_rank,
        .context_size = fields->context_size,
    };

    key_namespace_digest(&named, digest);
}
