#include "daemon/tier/copier_internal.h"

#include <assert.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define HANGS_MS 10000u /* then nobody waits for it at the end */

void copier_queue_init(struct copier_queue *queue)
{
    list_init(&queue->turn);
    list_init(&queue->jobs[COPIER_GATHER]);
    list_init(&queue->jobs[COPIER_SCATTER]);
    queue->gpu = 0;
}

static struct copier_queue *next_queue(const struct copier *c, uint32_t gpu)
{
    struct copier_queue *queue;

    list_for_each(queue, &c->turns, turn)
        if (queue->gpu == gpu)
            return queue;
    return NULL;
}

static struct copier_job *next_job(struct copier *c, uint32_t gpu)
{
    struct copier_queue *queue = next_queue(c, gpu);
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
    const uint32_t end = block->first_slice + copier_slices_of(block);
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

static void start_lane(struct lane *lane)
{
    struct copier *c = lane->copier;
    int error;

    lane->n_slices = count_slices(lane->job);
    lane->bytes = 0;
    lane->pending = lane->launched = false;
    atomic_store(&lane->arrived, false);
    lane->since_us = clock_now_us();
    if (lane->on_gpu != NULL)
        copier_gpu_watch(c);
    error = uv_queue_work(c->loop, &lane->work, copier_copy, copied);
    assert(error == 0); /* it only refuses a NULL function */
    (void)error;
}

void copier_start_lanes(struct copier *c)
{
    for (uint32_t i = 0; i < c->n_lanes; i++) {
        struct lane *lane = &c->lanes[i];

        if (lane->job != NULL || lane->looking)
            continue;
        lane->job = next_job(c, lane->gpu);
        if (lane->job != NULL)
            start_lane(lane);
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

void copier_end_go(struct lane *lane)
{
    struct copier *c = lane->copier;
    struct copier_job *job = lane->job;

    if (lane->on_gpu != NULL && job->status == KVC_OK)
        copier_add_cells(job, 0, c->device->lending->lane_cells(lane->on_gpu), job->n_blocks);
    lane->job = NULL;
    lane->pending = false;
    c->bytes += lane->bytes;
    job->slices_done += lane->n_slices;
    if (job->status == KVC_OK && lane->n_slices > 0 &&
        job->slices_done < copier_slices_of(&job->blocks[0])) {
        enqueue(c, job, true);
        copier_start_lanes(c);
        return;
    }
    copier_start_lanes(c);
    if (job->status != KVC_OK)
        log_warn("copier", "copy failed way=%s blocks=%u reason=\"%s\"",
                 job->way == COPIER_GATHER ? "save" : "load", job->n_blocks,
                 kvc_status_text(job->status));
    c->count--;
    job->done(job, job->status);
}

static void copied(uv_work_t *work, int cancelled)
{
    struct lane *lane = work->data;

    (void)cancelled; /* nobody cancels it */
    lane->launched = true;
    if (!lane->pending || atomic_load(&lane->arrived))
        copier_end_go(lane);
}

uint64_t copier_oldest_us(const struct copier *c)
{
    const uint64_t now = clock_now_us();
    uint64_t oldest = 0;

    for (uint32_t i = 0; i < c->n_lanes; i++)
        if (c->lanes[i].job != NULL && now - c->lanes[i].since_us > oldest)
            oldest = now - c->lanes[i].since_us;
    return oldest;
}

bool copier_hangs(const struct copier *c)
{
    for (uint32_t i = 0; i < c->n_lanes; i++)
        if (c->lanes[i].on_gpu != NULL && c->lanes[i].job != NULL &&
            clock_now_us() - c->lanes[i].since_us >= HANGS_MS * CLOCK_MS_US)
            return true;
    return false;
}

static void init_lane(struct copier *c, uint32_t gpu)
{
    struct lane *lane = &c->lanes[c->n_lanes++];

    lane->copier = c;
    lane->gpu = gpu;
    lane->work.data = lane;
}

kvc_status copier_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                         const struct device *device, struct copier **copier)
{
    struct copier *c = mem_zalloc(sizeof(*c));
    kvc_status status = KVC_OK;

    if (c == NULL)
        return KVC_E_NO_MEMORY;
    c->loop = loop;
    c->device = device != NULL && device->lending != NULL ? device : NULL;
    list_init(&c->turns);
    for (uint32_t i = 0; i < TIER_COUNT; i++)
        c->tiers[i] = tiers[i];
    for (uint32_t gpu = 0; gpu == 0 || (c->device != NULL && gpu < c->device->n_gpus); gpu++)
        for (uint32_t i = 0; i < COPIER_LANES; i++)
            init_lane(c, gpu);
    if (c->device != NULL)
        status = copier_gpu_open(c);
    if (status != KVC_OK) {
        copier_destroy(c);
        return status;
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
    copier_start_lanes(c);
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
    if (c->handles == 0) {
        assert(c->count == 0);
        mem_free(c);
        return;
    }
    copier_gpu_close(c);
}
