#include "daemon/api/wake.h"

#include "daemon/base/list.h"
#include "daemon/base/mem.h"

/*
 * A test can move the clock, which no timer of the kernel feels, so a debug build that waits for
 * something looks at the clock now and then.
 */
#ifdef KVC_DEBUG
#define SLEEP_MS_MAX 10u
#else
#define SLEEP_MS_MAX (3600u * 1000u)
#endif

struct wake {
    uv_prepare_t prepare; /* runs before the loop sleeps */
    uv_timer_t timer;
    struct store *store;
    int open_handles;
};

static void timer_cb(uv_timer_t *timer)
{
    store_tick(container_of(timer, struct wake, timer)->store);
}

static void prepare_cb(uv_prepare_t *prepare)
{
    struct wake *w = container_of(prepare, struct wake, prepare);
    uint64_t us = store_next_wake(w->store);
    uint64_t ms;

    if (us == UINT64_MAX) {
        uv_timer_stop(&w->timer);
        return;
    }
    ms = us / 1000 + (us % 1000 != 0);
    uv_update_time(w->timer.loop);
    uv_timer_start(&w->timer, timer_cb, ms < SLEEP_MS_MAX ? ms : SLEEP_MS_MAX, 0);
}

kvc_status wake_create(uv_loop_t *loop, struct store *store, struct wake **wake)
{
    struct wake *w = mem_zalloc(sizeof(*w));

    if (w == NULL)
        return KVC_E_NO_MEMORY;
    w->store = store;
    uv_timer_init(loop, &w->timer);
    uv_prepare_init(loop, &w->prepare);
    uv_prepare_start(&w->prepare, prepare_cb);
    /* It is no reason for the loop to go on. */
    uv_unref((uv_handle_t *)&w->prepare);
    w->open_handles = 2;
    *wake = w;
    return KVC_OK;
}

static void close_handle(struct wake *w)
{
    if (--w->open_handles == 0)
        mem_free(w);
}

static void prepare_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_prepare_t *)handle, struct wake, prepare));
}

static void timer_close_cb(uv_handle_t *handle)
{
    close_handle(container_of((uv_timer_t *)handle, struct wake, timer));
}

void wake_close(struct wake *w)
{
    if (w == NULL)
        return;
    uv_close((uv_handle_t *)&w->prepare, prepare_close_cb);
    uv_close((uv_handle_t *)&w->timer, timer_close_cb);
}
