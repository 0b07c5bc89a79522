/*
 * The checksum of PROTOCOL.md, one unit at a time, for the host and for CUDA alike. Only the
 * sources of kernels/ include this; everyone else asks pack.h.
 */
#ifndef KVC_CHECKSUM_H
#define KVC_CHECKSUM_H

#include <stdint.h>

#ifdef __CUDACC__
#define CHECKSUM_FN static __host__ __device__ __forceinline__
#else
#define CHECKSUM_FN static inline
#endif

#define CHECKSUM_UNIT 16u                   /* bytes */
#define CHECKSUM_STEP 0x9E3779B97F4A7C15ull /* 2^64 over the golden ratio: keys of units */
#define CHECKSUM_HALF 0xBB67AE8584CAA73Bull /* fraction of sqrt(3): sets the halves' keys apart */

/* The key of a slice's first unit; each next unit's is CHECKSUM_STEP more. */
CHECKSUM_FN uint64_t checksum_key(uint32_t slice)
{
    uint64_t z = (uint64_t)slice + 1;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* The share of one unit, of which low and high are the little-endian halves. */
CHECKSUM_FN uint64_t checksum_share(uint64_t key, uint64_t low, uint64_t high)
{
    unsigned __int128 product = (unsigned __int128)(low ^ key) * (high ^ key ^ CHECKSUM_HALF);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
