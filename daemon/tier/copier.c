#include "daemon/tier/copier.h"

#include <assert.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define LATE_US 1000u

/* A job in flight. Written by the loop while it is idle, by the pool's thread while it runs. */
struct lane {
    uv_work_t work;
    struct copier *copier;
    struct copier_job *job; /* NULL: idle */
    uint32_t n_slices;      /* that this go copies; 0: all of the job */
    uint64_t bytes;         /* that it has copied */
};

struct copier {
    uv_loop_t *loop;
    struct tier *tiers[TIER_COUNT];
    struct lane lanes[COPIER_LANES];
    struct list turns; /* queues that have jobs, in the order of their turns */
    uint32_t count;
    uint64_t bytes;
};

void copier_queue_init(struct copier_queue *queue)
{
    list_init(&queue->turn);
    list_init(&queue->jobs[COPIER_GATHER]);
    list_init(&queue->jobs[COPIER_SCATTER]);
}

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

/* How many slices of a block are copied. */
static uint32_t slices_of(const struct copier_block *block)
{
    return block->n_slices ? block->n_slices
                           : region_layout(block->region)->n_slices - block->first_slice;
}

/* Blocks of one region, and the same slices of each. */
static kvc_status copy_run(struct lane *lane, uint32_t first, uint32_t n_blocks)
{
    const struct copier_job *job = lane->job;
    const struct copier_block *blocks = job->blocks + first;
    const struct device_ops *ops = tier_slab(lane->copier->tiers[blocks[0].tier])->ops;
    struct region *region = blocks[0].region;
    struct pack_block slots[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    const struct pack_job pack = {
        .layout = region_layout(region),
        .slices = region_slices(region),
        .blocks = slots,
        .n_blocks = n_blocks,
        .first_slice = blocks[0].first_slice + job->slices_done,
        .n_slices = lane->n_slices ? lane->n_slices : slices_of(blocks),
        .cells = job->cells ? cells : NULL,
    };
    kvc_status status = find_slots(lane->copier, blocks, n_blocks, slots), kept;

    if (status != KVC_OK)
        return status;
    region_enter(region);
    status = job->way == COPIER_GATHER ? ops->gather(&pack) : ops->scatter(&pack);
    kept = region_leave(region);
    for (uint32_t i = 0; job->cells && i < n_blocks; i++)
        job->cells[first + i] = (job->slices_done > 0 ? job->cells[first + i] : 0) + cells[i];
    lane->bytes += bytes_of(&pack);
    return status != KVC_OK ? status : kept;
}

static bool is_same_run(const struct copier_block *a, const struct copier_block *b)
{
    return a->region == b->region && a->first_slice == b->first_slice && a->n_slices == b->n_slices;
}

static void copy(uv_work_t *work)
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
}

static struct copier_job *next_job(struct copier *c)
{
    struct copier_queue *queue = list_first(&c->turns, struct copier_queue, turn);
    struct copier_job *job;

    if (queue == NULL)
        return NULL;
    job = list_first(&queue->jobs[COPIER_SCATTER], struct copier_job, link);
    if (job == NULL)
        job = list_first(&queue->jobs[COPIER_GATHER], struct copier_job, link);
    assert(job != NULL); /* or it would have no turn */
    list_remove(&job->link);
    if (list_empty(&queue->jobs[COPIER_SCATTER]) && list_empty(&queue->jobs[COPIER_GATHER]))
        list_remove(&queue->turn);
    else
        list_move_back(&c->turns, &queue->turn);
    return job;
}

/* A block that is larger than a piece goes slice by slice, as many as fit. */
static uint32_t count_slices(const struct copier_job *job)
{
    const struct copier_block *block = &job->blocks[0];
    const struct pack_layout *layout = region_layout(block->region);
    const uint32_t end = block->first_slice + slices_of(block);
    uint64_t bytes = 0;
    uint32_t n = 0;

    if (job->n_blocks > 1 || layout->block_bytes <= TIER_PIECE_BYTES)
        return 0;
    for (uint32_t s = block->first_slice + job->slices_done; s < end; s++, n++) {
        bytes += layout->slice_bytes[s];
        if (n > 0 && bytes > TIER_PIECE_BYTES)
            break;
    }
    return n;
}

static void copied(uv_work_t *work, int cancelled);

static void start_lanes(struct copier *c)
{
    for (uint32_t i = 0; i < COPIER_LANES; i++) {
        struct lane *lane = &c->lanes[i];
        int error;

        if (lane->job != NULL)
            continue;
        lane->job = next_job(c);
        if (lane->job == NULL)
            return;
        lane->n_slices = count_slices(lane->job);
        lane->bytes = 0;
        error = uv_queue_work(c->loop, &lane->work, copy, copied);
        assert(error == 0); /* it only refuses a NULL function */
        (void)error;
    }
}

static void enqueue(struct copier *c, struct copier_job *job, bool first)
{
    struct list *jobs = &job->queue->jobs[job->way];

    if (first)
        list_push_front(jobs, &job->link);
    else
        list_push_back(jobs, &job->link);
    if (!list_linked(&job->queue->turn))
        list_push_back(&c->turns, &job->queue->turn);
}

static void copied(uv_work_t *work, int cancelled)
{
    struct lane *lane = work->data;
    struct copier *c = lane->copier;
    struct copier_job *job = lane->job;

    (void)cancelled; /* nobody cancels it */
    lane->job = NULL;
    c->bytes += lane->bytes;
    job->slices_done += lane->n_slices;
    if (job->status == KVC_OK && lane->n_slices > 0 &&
        job->slices_done < slices_of(&job->blocks[0])) {
        enqueue(c, job, true);
        start_lanes(c);
        return;
    }
    start_lanes(c);
    if (job->status != KVC_OK)
        log_warn("copier", "copy failed way=%s blocks=%u reason=\"%s\"",
                 job->way == COPIER_GATHER ? "save" : "load", job->n_blocks,
                 kvc_status_text(job->status));
    c->count--;
    job->done(job, job->status);
}

kvc_status copier_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                         struct copier **copier)
{
    struct copier *c = mem_zalloc(sizeof(*c));

    if (c == NULL)
        return KVC_E_NO_MEMORY;
    c->loop = loop;
    list_init(&c->turns);
    for (uint32_t i = 0; i < TIER_COUNT; i++)
        c->tiers[i] = tiers[i];
    for (uint32_t i = 0; i < COPIER_LANES; i++) {
        c->lanes[i].copier = c;
        c->lanes[i].work.data = &c->lanes[i];
    }
    *copier = c;
    return KVC_OK;
}

void copier_start(struct copier *c, struct copier_queue *queue, struct copier_job *job)
{
    assert(job->n_blocks > 0 && job->n_blocks <= KVC_CHUNK_BLOCKS);
    list_init(&job->link);
    job->queue = queue;
    job->slices_done = 0;
    job->status = KVC_OK;
    c->count++;
    enqueue(c, job, false);
    start_lanes(c);
}

bool copier_drop(struct copier *c, struct copier_job *job)
{
    struct copier_queue *queue = job->queue;

    if (!list_linked(&job->link))
        return false;
    list_remove(&job->link);
    if (list_empty(&queue->jobs[COPIER_SCATTER]) && list_empty(&queue->jobs[COPIER_GATHER]))
        list_remove(&queue->turn);
    c->count--;
    return true;
}

uint32_t copier_count(const struct copier *c)
{
    return c->count;
}

uint64_t copier_bytes(const struct copier *c)
{
    return c->bytes;
}

void copier_destroy(struct copier *c)
{
    if (c == NULL)
        return;
    assert(c->count == 0);
    mem_free(c);
}
