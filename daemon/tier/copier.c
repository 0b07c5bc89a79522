#include "daemon/tier/copier.h"

#include <assert.h>
#include <stdatomic.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define LATE_US    1000u
#define OVERDUE_MS 1000u  /* then the driver is asked what has become of a copy */
#define HANGS_MS   10000u /* then nobody waits for it at the end */

/*
 * A job in flight. Written by the loop while it is idle, by the pool's thread while it runs. On a
 * GPU a go has two ends, in any order: that it was launched, and that the driver said that it has
 * ended.
 */
struct lane {
    uv_work_t work;
    struct copier *copier;
    struct copier_job *job; /* NULL: idle */
    uint32_t n_slices;      /* that this go copies; 0: all of the job */
    uint64_t bytes;         /* that it has copied */

    struct device_lane *on_gpu; /* NULL: the pool copies */
    uint32_t gpu;
    bool pending;        /* the driver will say, or has said, that it has ended */
    bool launched;       /* the pool is done with it */
    atomic_bool arrived; /* the driver has said it */
    uint64_t since_us;
    bool looking; /* the pool asks the driver what has become of it */
    uv_work_t look;
    kvc_status seen;
};

struct copier {
    uv_loop_t *loop;
    const struct device *device; /* NULL: no GPUs */
    struct tier *tiers[TIER_COUNT];
    uint32_t n_lanes;
    struct lane lanes[COPIER_LANES * DEVICE_GPUS_MAX];
    struct list turns; /* queues that have jobs, in the order of their turns */
    uint32_t count;
    uint64_t bytes;

    /* With GPUs. */
    uv_async_t arrived;
    uv_timer_t overdue;
    uint32_t handles;
};

void copier_queue_init(struct copier_queue *queue)
{
    list_init(&queue->turn);
    list_init(&queue->jobs[COPIER_GATHER]);
    list_init(&queue->jobs[COPIER_SCATTER]);
    queue->gpu = 0;
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

/* Sums of earlier goes of the same block are there already. */
static void add_cells(struct copier_job *job, uint32_t first, const uint64_t *cells, uint32_t n)
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
        .n_slices = lane->n_slices ? lane->n_slices : slices_of(blocks),
        .cells = job->cells ? cells : NULL,
    };
    kvc_status status = find_slots(lane->copier, blocks, n_blocks, slots);

    if (status != KVC_OK)
        return status;
    lane->bytes += bytes_of(&pack);
    if (lane->on_gpu != NULL) {
        status = lane->copier->device->lending->lane_job(
            lane->on_gpu, region_loan(region), job->way == COPIER_GATHER, &pack, first,
            touches_host(blocks, n_blocks));
        lane->pending = lane->pending || status == KVC_OK;
        return status;
    }
    status = copy_here(lane, region, &pack);
    add_cells(job, first, cells, n_blocks);
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
    if (lane->pending)
        flush(lane);
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

static void overdue_cb(uv_timer_t *timer);

static void start_lane(struct lane *lane)
{
    struct copier *c = lane->copier;
    int error;

    lane->n_slices = count_slices(lane->job);
    lane->bytes = 0;
    lane->pending = lane->launched = false;
    atomic_store(&lane->arrived, false);
    lane->since_us = clock_now_us();
    if (lane->on_gpu != NULL && !uv_is_active((uv_handle_t *)&c->overdue))
        uv_timer_start(&c->overdue, overdue_cb, OVERDUE_MS, OVERDUE_MS);
    error = uv_queue_work(c->loop, &lane->work, copy, copied);
    assert(error == 0); /* it only refuses a NULL function */
    (void)error;
}

static void start_lanes(struct copier *c)
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

static void end_go(struct lane *lane)
{
    struct copier *c = lane->copier;
    struct copier_job *job = lane->job;

    if (lane->on_gpu != NULL && job->status == KVC_OK)
        add_cells(job, 0, c->device->lending->lane_cells(lane->on_gpu), job->n_blocks);
    lane->job = NULL;
    lane->pending = false;
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

static void copied(uv_work_t *work, int cancelled)
{
    struct lane *lane = work->data;

    (void)cancelled; /* nobody cancels it */
    lane->launched = true;
    if (!lane->pending || atomic_load(&lane->arrived))
        end_go(lane);
}

/* On a thread of the driver's. */
static void gpu_done(void *arg)
{
    struct lane *lane = arg;

    atomic_store(&lane->arrived, true);
    uv_async_send(&lane->copier->arrived);
}

static void arrived_cb(uv_async_t *async)
{
    struct copier *c = container_of(async, struct copier, arrived);

    for (uint32_t i = 0; i < c->n_lanes; i++) {
        struct lane *lane = &c->lanes[i];

        if (lane->pending && lane->launched && atomic_load(&lane->arrived))
            end_go(lane);
    }
}

/* What has ended without a word, as after an error of the context, is found by asking. */
static void look(uv_work_t *work)
{
    struct lane *lane = container_of(work, struct lane, look);

    lane->seen = lane->copier->device->lending->lane_look(lane->on_gpu);
}

static void looked(uv_work_t *work, int cancelled)
{
    struct lane *lane = container_of(work, struct lane, look);

    (void)cancelled;
    lane->looking = false;
    if (lane->seen == KVC_E_BUSY || lane->job == NULL) {
        start_lanes(lane->copier);
        return;
    }
    lane->job->status = lane->seen;
    end_go(lane);
}

static bool is_overdue(const struct lane *lane, uint64_t ms)
{
    return lane->job != NULL && lane->pending && lane->launched &&
           clock_now_us() - lane->since_us >= ms * CLOCK_MS_US;
}

static void overdue_cb(uv_timer_t *timer)
{
    struct copier *c = container_of(timer, struct copier, overdue);
    bool any = false;

    for (uint32_t i = 0; i < c->n_lanes; i++) {
        struct lane *lane = &c->lanes[i];

        any = any || lane->job != NULL;
        if (!is_overdue(lane, OVERDUE_MS) || lane->looking || atomic_load(&lane->arrived))
            continue;
        lane->looking = true;
        uv_queue_work(c->loop, &lane->look, look, looked);
    }
    if (!any)
        uv_timer_stop(timer);
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

static kvc_status open_gpu_lanes(struct copier *c)
{
    const struct device *device = c->device;
    kvc_status status = KVC_OK;

    uv_async_init(c->loop, &c->arrived, arrived_cb);
    uv_timer_init(c->loop, &c->overdue);
    c->handles = 2;
    for (uint32_t i = 0; i < c->n_lanes && status == KVC_OK; i++)
        status = device->lending->lane_open(device->state, c->lanes[i].gpu, gpu_done, &c->lanes[i],
                                            &c->lanes[i].on_gpu);
    return status;
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
        status = open_gpu_lanes(c);
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

static void handle_closed(struct copier *c)
{
    if (--c->handles == 0)
        mem_free(c);
}

static void arrived_closed(uv_handle_t *handle)
{
    handle_closed(container_of((uv_async_t *)handle, struct copier, arrived));
}

static void overdue_closed(uv_handle_t *handle)
{
    handle_closed(container_of((uv_timer_t *)handle, struct copier, overdue));
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
    if (c->count > 0) /* somebody may still call */
        c->handles++;
    for (uint32_t i = 0; i < c->n_lanes && c->count == 0; i++)
        c->device->lending->lane_close(c->lanes[i].on_gpu);
    uv_close((uv_handle_t *)&c->arrived, arrived_closed);
    uv_close((uv_handle_t *)&c->overdue, overdue_closed);
}
