#include "daemon/tier/errands.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define NAME_MAX_BYTES 16u
#define JOIN_S         2

struct errands {
    char name[NAME_MAX_BYTES];
    uint32_t count;
    bool told; /* that the one under way hangs */
    uv_async_t ended;
    uv_timer_t timer; /* runs while there are any */
    uint32_t handles;

    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    struct list waiting, finished;
    uint64_t since_us;
    bool stop;
};

static void *run_forever(void *arg)
{
    struct errands *e = arg;

    pthread_mutex_lock(&e->lock);
    for (;;) {
        struct errand *errand;

        while (list_empty(&e->waiting) && !e->stop)
            pthread_cond_wait(&e->wake, &e->lock);
        if (e->stop)
            break;
        errand = list_first(&e->waiting, struct errand, link);
        assert(errand != NULL);
        list_remove(&errand->link);
        e->since_us = clock_now_us();
        pthread_mutex_unlock(&e->lock);
        errand->work(errand);
        pthread_mutex_lock(&e->lock);
        e->since_us = 0;
        list_push_back(&e->finished, &errand->link);
        if (!e->stop)
            uv_async_send(&e->ended);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

uint64_t errands_since_us(const struct errands *errands)
{
    struct errands *e = (struct errands *)errands; /* only the lock changes */
    uint64_t since_us, now_us = clock_now_us();

    pthread_mutex_lock(&e->lock);
    since_us = e->since_us;
    pthread_mutex_unlock(&e->lock);
    return since_us > 0 && now_us > since_us ? now_us - since_us : 0;
}

bool errands_hang(const struct errands *e)
{
    return errands_since_us(e) >= ERRANDS_LATE_MS * CLOCK_MS_US;
}

static void timer_cb(uv_timer_t *timer)
{
    struct errands *e = container_of(timer, struct errands, timer);
    const bool hangs = errands_hang(e);

    if (hangs && !e->told)
        log_warn("tier", "a call hangs thread=%s waiting=%u", e->name, e->count - 1);
    else if (!hangs && e->told)
        log_info("tier", "a call hangs no more thread=%s", e->name);
    e->told = hangs;
    if (e->count == 0)
        uv_timer_stop(timer);
}

static void ended_cb(uv_async_t *async)
{
    struct errands *e = container_of(async, struct errands, ended);
    struct list finished;

    list_init(&finished);
    pthread_mutex_lock(&e->lock);
    list_splice_back(&finished, &e->finished);
    pthread_mutex_unlock(&e->lock);
    while (!list_empty(&finished)) {
        struct errand *errand = list_first(&finished, struct errand, link);

        list_remove(&errand->link);
        if (--e->count == 0)
            uv_unref((uv_handle_t *)&e->ended);
        errand->done(errand);
    }
}

kvc_status errands_create(uv_loop_t *loop, const char *name, struct errands **ret)
{
    struct errands *e = mem_zalloc(sizeof(*e));

    if (e == NULL)
        return KVC_E_NO_MEMORY;
    snprintf(e->name, sizeof(e->name), "%s", name);
    list_init(&e->waiting);
    list_init(&e->finished);
    if (uv_async_init(loop, &e->ended, ended_cb) < 0) {
        mem_free(e);
        return KVC_E_NO_MEMORY;
    }
    uv_timer_init(loop, &e->timer);
    uv_unref((uv_handle_t *)&e->ended);
    uv_unref((uv_handle_t *)&e->timer);
    e->handles = 2;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    if (pthread_create(&e->thread, NULL, run_forever, e) != 0) {
        e->thread = pthread_self();
        errands_destroy(e);
        return KVC_E_NO_MEMORY;
    }
    *ret = e;
    return KVC_OK;
}

void errands_run(struct errands *e, struct errand *errand)
{
    if (e->count++ == 0) {
        uv_ref((uv_handle_t *)&e->ended);
        uv_timer_start(&e->timer, timer_cb, ERRANDS_LATE_MS, ERRANDS_LATE_MS);
    }
    list_init(&errand->link);
    pthread_mutex_lock(&e->lock);
    list_push_back(&e->waiting, &errand->link);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

uint32_t errands_count(const struct errands *e)
{
    return e->count;
}

static void handle_closed(struct errands *e)
{
    if (--e->handles > 0)
        return;
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

static void ended_closed(uv_handle_t *handle)
{
    handle_closed(container_of((uv_async_t *)handle, struct errands, ended));
}

static void timer_closed(uv_handle_t *handle)
{
    handle_closed(container_of((uv_timer_t *)handle, struct errands, timer));
}

/* False when it hangs: what it uses then stays. */
static bool join(struct errands *e)
{
    struct timespec until;

    if (pthread_equal(e->thread, pthread_self()))
        return true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += JOIN_S;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return pthread_timedjoin_np(e->thread, NULL, &until) == 0;
}

bool errands_destroy(struct errands *e)
{
    bool ended;

    if (e == NULL)
        return true;
    ended = join(e);
    if (!ended) {
        log_warn("tier", "a call hangs for good thread=%s", e->name);
        e->handles++;
    }
    uv_close((uv_handle_t *)&e->ended, ended_closed);
    uv_close((uv_handle_t *)&e->timer, timer_closed);
    return ended;
}
