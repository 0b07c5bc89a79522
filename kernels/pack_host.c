/* Gather, scatter and checksum on the host. */
#include <endian.h>
#include <string.h>

#include "kernels/checksum.h"
#include "kernels/pack.h"

static uint64_t load64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return le64toh(value);
}

static uint64_t sum(const uint8_t *from, uint64_t len, uint64_t key)
{
    uint64_t sum = 0;
    while (len >= CHECKSUM_UNIT) {
        sum += checksum_share(key, load64(from), load64(from + 8));
        key += CHECKSUM_STEP;
        from += CHECKSUM_UNIT;
        len -= CHECKSUM_UNIT;
    }
    if (len > 0) {
        uint8_t unit[CHECKSUM_UNIT] = {0};
        memcpy(unit, from, len);
        sum += checksum_share(key, load64(unit), load64(unit + 8));
    }
    return sum;
}

static void run(const struct pack_job *job, bool gather)
{
    const struct pack_layout *layout = job->layout;
    for (uint32_t b = 0; b < job->n_blocks; b++) {
        const struct pack_block *block = &job->blocks[b];
        uint64_t total = 0;
        for (uint32_t s = job->first_slice; s < job->first_slice + job->n_slices; s++) {
            uint8_t *paged = job->slices[s].base + block->id * job->slices[s].stride;
            uint8_t *packed = block->slot + layout->slice_offsets[s];
            memcpy(gather ? packed : paged, gather ? paged : packed, layout->slice_bytes[s]);
            if (job->cells)
                total += sum(packed, layout->slice_bytes[s], checksum_key(s));
        }
        if (job->cells)
            job->cells[b] = total;
    }
}

void pack_host_gather(const struct pack_job *job)
{
    run(job, true);
}

void pack_host_scatter(const struct pack_job *job)
{
    run(job, false);
}

uint64_t pack_checksum_slice(const void *bytes, uint64_t len, uint32_t slice)
{
    return sum(bytes, len, checksum_key(slice));
}

uint64_t pack_checksum_slot(const struct pack_layout *layout, const uint8_t *slot)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < layout->n_slices; s++)
        total += pack_checksum_slice(slot + layout->slice_offsets[s], layout->slice_bytes[s], s);
    return total;
}
