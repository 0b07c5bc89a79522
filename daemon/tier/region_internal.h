/* The inside of a region, for the files region*.c only. */
#ifndef KVC_TIER_REGION_INTERNAL_H
#define KVC_TIER_REGION_INTERNAL_H

#include "daemon/base/guard.h"
#include "daemon/tier/region.h"
#include "daemon/tier/region_check.h"

struct region {
    uint32_t blocks, n_pieces, n_mapped;
    struct pack_layout layout; /* its arrays are this struct's memory, like all that follow */
    struct region_slice *places;
    struct pack_slice *slices;
    struct region_piece *pieces;
    struct guard_range *ranges; /* of the pieces */

    /* While it is being unmapped. */
    uv_work_t work;
    region_unmapped_cb *done;
    void *arg;

    /* Of memory of a GPU. */
    struct device_loan *loan; /* NULL: host memory */
    const struct device_lending *lending;
    struct errands *errands;
    struct errand end;
};

/* Fills *why and returns the status. */
kvc_status region_refuse(struct region_refusal *why, kvc_status status, const char *field,
                         int64_t index, const char *detail);

/* Whether all places lie in their pieces, the first n of them, and nowhere twice. */
kvc_status region_check_places(const struct region *region, uint32_t n_pieces,
                               struct region_refusal *why);

void region_lend_end(struct region *region);
/* What is left of one that is unmapped; calls done. */
void region_free(struct region *region);

#endif
