/*
 * Copies on GPUs: the driver tells their ends on a thread of its own, from which the loop is woken;
 * what stays untold is asked about.
 */
#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
#include "daemon/tier/copier_internal.h"

#define OVERDUE_MS 1000u /* then the driver is asked what has become of a copy */

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

        if (lane->launched && lane->pending && atomic_load(&lane->arrived))
            copier_end_go(lane);
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
        copier_start_lanes(lane->copier);
        return;
    }
    lane->job->status = lane->seen;
    copier_end_go(lane);
}

static bool is_overdue(const struct lane *lane)
{
    return lane->job != NULL && lane->launched && lane->pending &&
           clock_now_us() - lane->since_us >= OVERDUE_MS * CLOCK_MS_US;
}

static void overdue_cb(uv_timer_t *timer)
{
    struct copier *c = container_of(timer, struct copier, overdue);
    bool any = false;

    for (uint32_t i = 0; i < c->n_lanes; i++) {
        struct lane *lane = &c->lanes[i];

        any = any || lane->job != NULL;
        if (!is_overdue(lane) || lane->looking || atomic_load(&lane->arrived))
            continue;
        lane->looking = true;
        uv_queue_work(c->loop, &lane->look, look, looked);
    }
    if (!any)
        uv_timer_stop(timer);
}

kvc_status copier_gpu_open(struct copier *c)
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

void copier_gpu_watch(struct copier *c)
{
    if (!uv_is_active((uv_handle_t *)&c->overdue))
        uv_timer_start(&c->overdue, overdue_cb, OVERDUE_MS, OVERDUE_MS);
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

/* One that hangs may still call, so that it stays. */
void copier_gpu_close(struct copier *c)
{
    if (c->count > 0)
        c->handles++;
    for (uint32_t i = 0; i < c->n_lanes && c->count == 0; i++)
        c->device->lending->lane_close(c->lanes[i].on_gpu);
    uv_close((uv_handle_t *)&c->arrived, arrived_closed);
    uv_close((uv_handle_t *)&c->overdue, overdue_closed);
}
