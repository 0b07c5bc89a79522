/* The planner: where slices lie in a slot, and where a list of blocks is cut into chunks. */
#include <endian.h>
#include <string.h>

#include <xxhash.h>

#include "kernels/pack.h"

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

kvc_status pack_layout_init(struct pack_layout *layout, const uint32_t *slice_bytes,
                            uint32_t n_slices)
{
    if (n_slices == 0)
        return KVC_E_INVALID;
    if (n_slices > KVC_SLICES_MAX)
        return KVC_E_LIMIT;

    uint64_t block_bytes = 0;
    for (uint32_t i = 0; i < n_slices; i++) {
        if (slice_bytes[i] == 0)
            return KVC_E_INVALID;
        if (slice_bytes[i] > KVC_SLICE_BYTES_MAX)
            return KVC_E_LIMIT;
        block_bytes += slice_bytes[i];
    }
    if (block_bytes > KVC_BLOCK_BYTES_MAX)
        return KVC_E_LIMIT;

    uint64_t end = 0;
    for (uint32_t i = 0; i < n_slices; i++) {
        uint64_t offset = round_up(end, KVC_SLICE_ALIGN);
        layout->slice_offsets[i] = offset;
        end = offset + slice_bytes[i];
    }
    layout->n_slices = n_slices;
    layout->slice_bytes = slice_bytes;
    layout->block_bytes = block_bytes;
    layout->slot_bytes = round_up(end, KVC_SLOT_ALIGN);
    if (layout->slot_bytes < KVC_SLOT_BYTES_MIN)
        layout->slot_bytes = KVC_SLOT_BYTES_MIN;
    return KVC_OK;
}

static uint8_t *put_u32(uint8_t *to, uint32_t value)
{
    uint32_t little = htole32(value);
    memcpy(to, &little, sizeof little);
    return to + sizeof little;
}

void pack_layout_fingerprint(const struct pack_layout *layout, uint32_t block_tokens,
                             const uint8_t *slice_dtypes,
                             uint8_t fingerprint[KVC_FINGERPRINT_BYTES])
{
    uint8_t bytes[4 + 3 * 4 + KVC_SLICES_MAX * 4 + 1 + KVC_SLICES_MAX];
    uint8_t *end = memcpy(bytes, "KVCL", 4);

    end = put_u32(end + 4, PACK_FINGERPRINT_VERSION);
    end = put_u32(end, block_tokens);
    end = put_u32(end, layout->n_slices);
    for (uint32_t i = 0; i < layout->n_slices; i++)
        end = put_u32(end, layout->slice_bytes[i]);
    *end++ = slice_dtypes != NULL;
    if (slice_dtypes) {
        memcpy(end, slice_dtypes, layout->n_slices);
        end += layout->n_slices;
    }

    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, (size_t)(end - bytes)));
    memcpy(fingerprint, canonical.digest, KVC_FINGERPRINT_BYTES);
}

bool pack_cut_next(struct pack_cut *cut, uint64_t block_bytes)
{
    bool starts = cut->blocks == 0 || cut->blocks == KVC_CHUNK_BLOCKS ||
                  cut->bytes + block_bytes > KVC_CHUNK_BYTES;
    if (starts)
        *cut = (struct pack_cut){0};
    cut->blocks++;
    cut->bytes += block_bytes;
    return starts;
}
