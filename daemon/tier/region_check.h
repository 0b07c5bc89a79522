/* What the slices and pieces of a region must be to one another: plain arithmetic. */
#ifndef KVC_TIER_REGION_CHECK_H
#define KVC_TIER_REGION_CHECK_H

#include <stdbool.h>
#include <stdint.h>

/* Where a slice's blocks lie: block b at offset + b * stride of its piece. Without padding, so that
 * arrays of them can be compared. */
struct region_slice {
    uint64_t offset, stride;
    uint32_t piece, bytes;
};

struct region_piece {
    uint64_t device, inode; /* of the memfd */
    uint64_t offset, bytes;
};

enum region_overlap {
    REGION_APART,
    REGION_SLICES_OVERLAP,
    REGION_PIECES_OVERLAP,
    REGION_NO_MEMORY, /* for the check */
};

/* Whether all of its blocks end inside the piece. */
bool region_slice_fits(const struct region_slice *slice, uint32_t blocks, uint64_t piece_bytes);

/*
 * Whether every byte belongs to at most one slice of one block. All slices fit. Slices that
 * interleave are taken for apart only if they have one stride and lie apart in it, which is what
 * engines do; whatever is less regular is taken for an overlap.
 */
enum region_overlap region_check_overlap(const struct region_slice *slices, uint32_t n_slices,
                                         uint32_t blocks, const struct region_piece *pieces,
                                         uint32_t n_pieces);

#endif
