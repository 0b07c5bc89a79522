#include "daemon/tier/renew.h"

#include <assert.h>

#include "daemon/base/fault.h"
#include "daemon/base/list.h"
#include "daemon/base/mem.h"

enum stage { STAGE_DISCARD, STAGE_RENEW, STAGE_POPULATE };

struct job {
    struct list link; /* renewer::jobs, the first is at work */
    enum tier_kind tier;
    uint32_t extent;
    enum stage stage;
    uint64_t at; /* bytes that are behind it in this stage */
    move_done_cb *done;
    void *arg;
};

struct renewer {
    uv_work_t work;
    uv_loop_t *loop;
    struct tier *tiers[TIER_COUNT];
    struct list jobs;
    uint32_t count;
    bool working, stopping;

    /* The step in flight: written by the loop before it is queued, read by the pool. */
    struct device_slab *slab;
    uint32_t extent;
    enum stage stage;
    uint64_t offset, bytes;
    kvc_status status;
};

/* "renew.busy": the memory is mapped still; "renew.fail": no memory for the new pages. */
static void step(uv_work_t *work)
{
    struct renewer *r = work->data;
    const struct device_ops *ops = r->slab->ops;

    switch (r->stage) {
    case STAGE_DISCARD:
        r->status = ops->extent_discard(r->slab, r->extent, r->offset, r->bytes);
        break;
    case STAGE_RENEW:
        r->status = fault_fires("renew.busy") ? KVC_E_BUSY : ops->extent_renew(r->slab, r->extent);
        break;
    case STAGE_POPULATE:
        r->status = fault_fires("renew.fail")
                        ? KVC_E_NO_MEMORY
                        : ops->extent_populate(r->slab, r->extent, r->offset, r->bytes);
        break;
    }
}

static void step_done(uv_work_t *work, int cancelled);

static void start(struct renewer *r)
{
    struct job *job = list_first(&r->jobs, struct job, link);
    int error;

    if (job == NULL || r->working)
        return;
    r->slab = tier_slab(r->tiers[job->tier]);
    r->extent = job->extent;
    r->stage = job->stage;
    r->offset = job->at;
    r->bytes = r->slab->extent_bytes - job->at;
    if (r->bytes > TIER_PIECE_BYTES && job->stage != STAGE_RENEW)
        r->bytes = TIER_PIECE_BYTES;
    r->working = true;
    error = uv_queue_work(r->loop, &r->work, step, step_done);
    assert(error == 0);
    (void)error;
}

static void end(struct renewer *r, struct job *job, kvc_status status)
{
    move_done_cb *done = job->done;
    void *arg = job->arg;

    list_remove(&job->link);
    mem_free(job);
    done(arg, status);
    r->count--;
}

/* Pages that could not be given back go with the old memory. */
static void step_done(uv_work_t *work, int cancelled)
{
    struct renewer *r = work->data;
    struct job *job = list_first(&r->jobs, struct job, link);

    assert(job != NULL);
    (void)cancelled; /* it never is */
    r->working = false;
    job->at += r->bytes;
    if (r->status != KVC_OK && r->stage != STAGE_DISCARD) {
        end(r, job, r->status);
    } else if (job->at == r->slab->extent_bytes) {
        job->at = 0;
        if (job->stage == STAGE_POPULATE)
            end(r, job, KVC_OK);
        else
            job->stage++;
    }
    start(r);
}

static kvc_status renew(void *renewer, enum tier_kind tier, uint32_t extent, move_done_cb *done,
                        void *arg)
{
    struct renewer *r = renewer;
    struct job *job;

    if (r->stopping)
        return KVC_E_STOPPING;
    if (tier >= TIER_COUNT || r->tiers[tier] == NULL || extent >= tier_extents(r->tiers[tier]))
        return KVC_E_INVALID;
    job = mem_zalloc(sizeof(*job));
    if (job == NULL)
        return KVC_E_NO_MEMORY;
    job->tier = tier;
    job->extent = extent;
    job->done = done;
    job->arg = arg;
    list_init(&job->link);
    list_push_back(&r->jobs, &job->link);
    r->count++;
    tier_renewing(r->tiers[tier], extent);
    start(r);
    return KVC_OK;
}

const struct renew_ops renew_ops = {.renew = renew};

kvc_status renewer_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                          struct renewer **renewer)
{
    struct renewer *r = mem_zalloc(sizeof(*r));

    if (r == NULL)
        return KVC_E_NO_MEMORY;
    r->loop = loop;
    r->work.data = r;
    list_init(&r->jobs);
    for (uint32_t i = 0; i < TIER_COUNT; i++)
        r->tiers[i] = tiers[i];
    *renewer = r;
    return KVC_OK;
}

void renewer_stop(struct renewer *r)
{
    r->stopping = true;
}

uint32_t renewer_count(const struct renewer *r)
{
    return r->count;
}

void renewer_destroy(struct renewer *r)
{
    if (r == NULL)
        return;
    assert(r->count == 0);
    mem_free(r);
}
