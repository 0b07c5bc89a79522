/* A go of a job on the pool: the copy itself, or putting it on a GPU's stream. */
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/tier/copier_internal.h"

#define LATE_US 1000u

static uint64_t bytes_of(const struct pack_job *job)
{
    uint64_t bytes = 0;

    for (uint32_t s = job->first_slice; s < job->first_slice + job->n_slices; s++)
        bytes += job->layout->slice_bytes[s];
    return bytes * job->n_blocks;
}

/* The slots of a run of blocks, ready to be touched. */
static kvc_status find_slots(const struct copier *c, const struct copier_block *blocks,
                             uint32_t n_blocks, struct pack_block *slots)
{
    const uint64_t bytes = region_layout(blocks[0].region)->slot_bytes;
    kvc_status status = KVC_OK;

    for (uint32_t i = 0; i < n_blocks && status == KVC_OK; i++) {
        struct tier *tier = c->tiers[blocks[i].tier];
        struct device_slab *slab = tier_slab(tier);

        status = slab->ops->slab_ready(slab, blocks[i].offset, bytes);
        slots[i] =
            (struct pack_block){.slot = tier_address(tier, blocks[i].offset), .id = blocks[i].id};
    }
    return status;
}

uint32_t copier_slices_of(const struct copier_block *block)
{
    return block->n_slices ? block->n_slices
                           : region_layout(block->region)->n_slices - block->first_slice;
}

static bool touches_host(const struct copier_block *blocks, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < n_blocks; i++)
        if (blocks[i].tier == TIER_HOST)
            return true;
    return false;
}

static kvc_status copy_here(const struct lane *lane, struct region *region,
                            const struct pack_job *pack)
{
    const struct copier_job *job = lane->job;
    const struct device_ops *ops = tier_slab(lane->copier->tiers[job->blocks[0].tier])->ops;
    kvc_status status, kept;

    region_enter(region);
    status = job->way == COPIER_GATHER ? ops->gather(pack) : ops->scatter(pack);
    kept = region_leave(region);
    return status != KVC_OK ? status : kept;
}

void copier_add_cells(struct copier_job *job, uint32_t first, const uint64_t *cells, uint32_t n)
{
    for (uint32_t i = 0; job->cells && i < n; i++)
        job->cells[first + i] = (job->slices_done > 0 ? job->cells[first + i] : 0) + cells[i];
}

/* Blocks of one region, and the same slices of each. On a GPU it is only launched. */
static kvc_status copy_run(struct lane *lane, uint32_t first, uint32_t n_blocks)
{
    struct copier_job *job = lane->job;
    const struct copier_block *blocks = job->blocks + first;
    struct region *region = blocks[0].region;
    struct pack_block slots[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    const struct pack_job pack = {
        .layout = region_layout(region),
        .slices = region_slices(region),
        .blocks = slots,
        .n_blocks = n_blocks,
        .first_slice = blocks[0].first_slice + job->slices_done,
        .n_slices = lane->n_slices ? lane->n_slices : copier_slices_of(blocks),
        .cells = job->cells ? cells : NULL,
    };
    kvc_status status = find_slots(lane->copier, blocks, n_blocks, slots);

    if (status != KVC_OK)
        return status;
    lane->bytes += bytes_of(&pack);
    if (lane->on_gpu != NULL) {
        status = lane->copier->device->lending->lane_job(lane->on_gpu, region_loan(region),
                                                         job->way == COPIER_GATHER, &pack, first,
                                                         touches_host(blocks, n_blocks));
        lane->pending = lane->pending || status == KVC_OK;
        return status;
    }
    status = copy_here(lane, region, &pack);
    copier_add_cells(job, first, cells, n_blocks);
    return status;
}

static bool is_same_run(const struct copier_block *a, const struct copier_block *b)
{
    return a->region == b->region && a->first_slice == b->first_slice && a->n_slices == b->n_slices;
}

/* After a failure nothing of the job may be under way any more, which is waited for here. */
static void flush(struct lane *lane)
{
    const struct device_lending *lending = lane->copier->device->lending;
    struct copier_job *job = lane->job;

    if (job->status == KVC_OK)
        job->status = lending->lane_flush(lane->on_gpu);
    if (job->status == KVC_OK)
        return;
    lending->lane_settle(lane->on_gpu);
    lane->pending = false;
}

void copier_copy(uv_work_t *work)
{
    struct lane *lane = work->data;
    struct copier_job *job = lane->job;
    uint32_t n_blocks = job->n_blocks;
    bool fails = fault_fires("copier.copy");

    while (fault_fires("copier.late"))
        usleep(LATE_US);
    if (fails)
        n_blocks /= 2;
    for (uint32_t i = 0, next; i < n_blocks && job->status == KVC_OK; i = next) {
        for (next = i + 1; next < n_blocks; next++)
            if (!is_same_run(&job->blocks[i], &job->blocks[next]))
                break;
        job->status = copy_run(lane, i, next - i);
    }
    if (fails)
        job->status = KVC_E_DEVICE;
    if (lane->pending)
        flush(lane);
}
