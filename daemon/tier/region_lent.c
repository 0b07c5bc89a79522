/* Regions whose memory is a GPU's, lent by another process. */
#include <assert.h>

#include "daemon/base/mem.h"
#include "daemon/tier/region_internal.h"

kvc_status region_lend(struct region *region, const struct device *device, struct errands *errands,
                       uint32_t gpu, const struct device_lender *lender)
{
    assert(region->n_mapped == 0 && region->loan == NULL);
    region->lending = device->lending;
    region->errands = errands;
    return device->lending->loan_open(device->state, gpu, lender, region->n_pieces, &region->loan);
}

const struct device_loan *region_loan(const struct region *region)
{
    return region->loan;
}

kvc_status region_lend_add(struct region *region, const struct device_piece *piece,
                           struct region_refusal *why)
{
    const uint32_t index = region->n_mapped;
    const char *detail = "";
    kvc_status status;

    if (index == region->n_pieces)
        return region_refuse(why, KVC_E_INVALID, "kinds", -1, "more pieces than the region has");
    status = region->lending->loan_add(region->loan, piece, &detail);
    if (status != KVC_OK)
        return region_refuse(why, status, piece->kind == DEVICE_MEMORY_CUDA_FD ? "fds" : "handles",
                             index, detail);
    /* Of a descriptor's piece the place is known when all are mapped. */
    region->pieces[index] = (struct region_piece){.device = piece->kind == DEVICE_MEMORY_CUDA_FD,
                                                  .bytes = piece->bytes};
    region->n_mapped++;
    return KVC_OK;
}

/*
 * Pieces that lie one behind the other become one, and slices move along. What is compared with
 * other pieces, and with other regions, are addresses: the same allocation has the same one.
 */
static kvc_status join_pieces(struct region *region, uint32_t *ret_joined,
                              struct region_refusal *why)
{
    uint32_t *joined = mem_array(region->n_pieces, sizeof(*joined)), n = 0;
    struct region_slice *place = region->places;

    if (joined == NULL)
        return region_refuse(why, KVC_E_NO_MEMORY, "", -1, "out of memory");
    for (uint32_t i = 0; i < region->n_pieces; i++) {
        struct region_piece piece = region->pieces[i];

        piece.offset = (uintptr_t)region->lending->loan_address(region->loan, i);
        if (piece.device && n > 0 && region->pieces[n - 1].device &&
            region->pieces[n - 1].offset + region->pieces[n - 1].bytes == piece.offset)
            region->pieces[n - 1].bytes += piece.bytes;
        else
            region->pieces[n++] = piece;
        joined[i] = n - 1;
        /* Of which piece i was: its place in the joined one. */
        region->ranges[i].start = (uint8_t *)(uintptr_t)piece.offset;
    }
    for (uint32_t s = 0; s < region->layout.n_slices; s++, place++) {
        const uint64_t start = (uintptr_t)region->ranges[place->piece].start;

        if (place->offset > UINT64_MAX - start) {
            mem_free(joined);
            return region_refuse(why, KVC_E_INVALID, "slice_offsets", s,
                                 "a block ends behind its piece");
        }
        place->piece = joined[place->piece];
        place->offset += start - region->pieces[place->piece].offset;
    }
    mem_free(joined);
    for (uint32_t i = 0; i < n; i++)
        region->pieces[i].device = 0;
    for (uint32_t i = n; i < region->n_pieces; i++)
        region->pieces[i] = (struct region_piece){0};
    *ret_joined = n;
    return KVC_OK;
}

kvc_status region_lend_finish(struct region *region, struct region_refusal *why)
{
    const char *detail = "";
    uint32_t n = 0;
    kvc_status status;

    if (region->n_mapped != region->n_pieces)
        return region_refuse(why, KVC_E_INVALID, "pieces", -1, "not all of them have come");
    status = region->lending->loan_map(region->loan, &detail);
    if (status != KVC_OK)
        return region_refuse(why, status, "piece_bytes", -1, detail);
    status = join_pieces(region, &n, why);
    if (status == KVC_OK)
        status = region_check_places(region, n, why);
    if (status != KVC_OK)
        return status;
    for (uint32_t s = 0; s < region->layout.n_slices; s++) {
        const struct region_slice *place = &region->places[s];

        region->slices[s] = (struct pack_slice){
            .base = (uint8_t *)(uintptr_t)(region->pieces[place->piece].offset + place->offset),
            .stride = place->stride};
    }
    status = region->lending->loan_bind(region->loan, &region->layout, region->slices);
    return status == KVC_OK
               ? KVC_OK
               : region_refuse(why, status, "", -1, "no memory for its table on the GPU");
}

static void close_loan(struct errand *errand)
{
    struct region *region = container_of(errand, struct region, end);

    region->lending->loan_close(region->loan);
}

static void loan_closed(struct errand *errand)
{
    region_free(container_of(errand, struct region, end));
}

void region_lend_end(struct region *region)
{
    region->end.work = close_loan;
    region->end.done = loan_closed;
    errands_run(region->errands, &region->end);
}
