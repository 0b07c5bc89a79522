/*
 * Packing: the slices of a block, scattered in an engine's KV cache, and one slot that holds them
 * all. Planner (layout of a slot, cutting into chunks), gather, scatter and checksum, for the host
 * (pack_host.c) and for CUDA (pack_cuda.cu), behind this one header.
 *
 * kernels/ may include limits and status of proto/ and nothing else; this header is its door. No
 * function allocates, logs, or keeps state. Offsets and sizes are bytes. PROTOCOL.md fixes the
 * packing and the checksum; both are part of what slots on disk, wire and other hosts mean.
 */
#ifndef KVC_PACK_H
#define KVC_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

/* Where a layout's slices lie in a slot. The arrays are the caller's and outlive the layout. */
struct pack_layout {
    uint32_t n_slices;
    const uint32_t *slice_bytes; /* n_slices */
    uint64_t *slice_offsets;     /* n_slices, filled by pack_layout_init */
    uint64_t block_bytes;        /* useful: the sum of slice_bytes */
    uint64_t slot_bytes;         /* with alignment and padding */
};

/*
 * Lays the slices out: slice 0 at 0, each next one at the next multiple of KVC_SLICE_ALIGN; the
 * slot is rounded up to KVC_SLOT_ALIGN and at least KVC_SLOT_BYTES_MIN. KVC_E_INVALID for no
 * slices or a slice of 0 bytes, KVC_E_LIMIT for more than the limits say. layout->slice_offsets
 * must have room for n_slices.
 */
kvc_status pack_layout_init(struct pack_layout *layout, const uint32_t *slice_bytes,
                            uint32_t n_slices);

/* The fingerprint of a layout: XXH3-128, canonical, of the fields as PROTOCOL.md writes them. */
#define PACK_FINGERPRINT_VERSION 1u
void pack_layout_fingerprint(const struct pack_layout *layout, uint32_t block_tokens,
                             const uint8_t *slice_dtypes /* n_slices, or NULL */,
                             uint8_t fingerprint[KVC_FINGERPRINT_BYTES]);

/*
 * Cuts blocks into chunks of at most KVC_CHUNK_BLOCKS blocks and KVC_CHUNK_BYTES useful bytes; a
 * block that is larger goes alone. Called once a block in order: returns true when this block
 * starts a new chunk. A zeroed pack_cut starts a plan.
 */
struct pack_cut {
    uint64_t bytes;
    uint32_t blocks;
};
bool pack_cut_next(struct pack_cut *cut, uint64_t block_bytes);

/* One slice of an engine's KV cache: block b starts at base + b * stride. */
struct pack_slice {
    uint8_t *base;
    uint64_t stride;
};

/* One block to copy: which of the engine's, and its slot. */
struct pack_block {
    uint8_t *slot;
    uint32_t id;
};

/*
 * One launch: at most a chunk's blocks, all of one layout. Slices first_slice to
 * first_slice + n_slices - 1 are copied. cells, if not NULL, has one 64-bit cell a block, to which
 * the checksums of those slices are *stored* (gather: of what was written; scatter: of what was
 * read).
 */
struct pack_job {
    const struct pack_layout *layout;
    const struct pack_slice *slices; /* layout->n_slices */
    const struct pack_block *blocks;
    uint32_t n_blocks;
    uint32_t first_slice, n_slices;
    uint64_t *cells;
};

/*
 * Engine to slots, and back. Padding in a slot is left as it is. Any thread; zero blocks or slices
 * are fine.
 */
void pack_host_gather(const struct pack_job *job);
void pack_host_scatter(const struct pack_job *job);

/*
 * Plain bytes to where nobody reads them soon, past the caches: what is copied between tiers would
 * only push out what the store itself needs. The ranges do not overlap.
 */
void pack_host_copy(uint8_t *to, const uint8_t *from, uint64_t bytes);

/*
 * The checksum of slice number `slice` of `len` bytes; a block's is the sum over its slices modulo
 * 2^64.
 *
 * The bytes are read as units of 16 bytes, the last one padded with zeros; unit u has the halves
 * low[u] and high[u], little-endian 64-bit words. With
 *
 *     key[u]     = mix64(slice + 1) + u * 0x9E3779B97F4A7C15                        mod 2^64
 *     product[u] = (low[u] ^ key[u]) * (high[u] ^ key[u] ^ 0xBB67AE8584CAA73B)      128 bits
 *     share[u]   = (product[u] mod 2^64) ^ (product[u] >> 64)
 *
 * the checksum is the sum of the shares modulo 2^64. mix64 is SplitMix64's finaliser:
 *
 *     z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
 *     z = (z ^ z >> 27) * 0x94D049BB133111EB
 *     z ^ z >> 31
 *
 * Shares are independent of each other, so any split of a slice into runs of whole units adds up
 * to the same value. Product and fold are over all 64 bits because keys are an arithmetic
 * progression: with any share whose change is linear in the key (a 32-bit product of a word's
 * halves, say) the changes of four units in a rectangle cancel, which two swapped units of sparse
 * data already are.
 */
uint64_t pack_checksum_slice(const void *bytes, uint64_t len, uint32_t slice);

/*
 * The share of a run of a slice: len bytes from unit number first_unit on, whole units unless they
 * are its last. The shares of runs that make up the slice add up to its checksum.
 */
uint64_t pack_checksum_run(const void *bytes, uint64_t len, uint32_t slice, uint64_t first_unit);

/* The checksum of a whole block as it lies in its slot. */
uint64_t pack_checksum_slot(const struct pack_layout *layout, const uint8_t *slot);

#endif
