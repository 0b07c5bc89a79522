#include "daemon/api/gone.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define UNSEEN_WAIT_MS     20u
#define UNSEEN_WAIT_MAX_MS 5000u
#define ENDING_WAIT_MS     10u
#define ENDING_WAIT_MAX_MS 200u
#define STUCK_MS           5000u /* an answer that takes longer is said to be late */
#define JOIN_S             2

/* What goes to the thread and back. Whose turn it is to touch the rest is in `turn`. */
enum turn { TURN_NOBODY, TURN_THREAD, TURN_LOOP };

struct question {
    int32_t pid;
    uint32_t n_uuids;
    uint8_t uuids[GONE_DEVICES_MAX][KVC_UUID_BYTES];
    bool listed;
    kvc_status status;
};

struct gone {
    const struct device *device;
    gone_cb *cb;
    struct list asking;             /* processes that questions are to be asked about */
    struct gone_process *in_flight; /* NULL: nobody, or it was forgotten meanwhile */
    uint64_t asked_us;
    bool late;
    uv_timer_t timer;
    uv_async_t answered;
    uint32_t handles;

    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    enum turn turn;
    bool stop;
    struct question question;
};

static void *ask_forever(void *arg)
{
    struct gone *gone = arg;
    struct question *question = &gone->question;

    pthread_mutex_lock(&gone->lock);
    for (;;) {
        while (gone->turn != TURN_THREAD && !gone->stop)
            pthread_cond_wait(&gone->wake, &gone->lock);
        if (gone->stop)
            break;
        pthread_mutex_unlock(&gone->lock);
        question->status = gone->device->lists_process(
            gone->device->state, (const uint8_t(*)[KVC_UUID_BYTES])question->uuids,
            question->n_uuids, question->pid, &question->listed);
        pthread_mutex_lock(&gone->lock);
        gone->turn = TURN_LOOP;
        if (!gone->stop)
            uv_async_send(&gone->answered);
    }
    pthread_mutex_unlock(&gone->lock);
    return NULL;
}

static bool is_asked_about(const struct gone_process *process)
{
    return process->state == GONE_UNSEEN || process->state == GONE_ENDING;
}

static void set_state(struct gone_process *process, enum gone_state state)
{
    static const uint8_t legal[] = {
        [GONE_UNWATCHED] = 1u << GONE_UNSEEN,
        [GONE_UNSEEN] = 1u << GONE_SEEN | 1u << GONE_HIDDEN,
        [GONE_SEEN] = 1u << GONE_ENDING,
        [GONE_ENDING] = 1u << GONE_GONE,
        [GONE_HIDDEN] = 0,
        [GONE_GONE] = 0,
    };

    assert(legal[process->state] & 1u << state);
    (void)legal;
    process->state = state;
    process->due_us = clock_now_us();
    process->wait_ms = state == GONE_ENDING ? ENDING_WAIT_MS : UNSEEN_WAIT_MS;
}

static bool ask(struct gone *gone, struct gone_process *process)
{
    bool asked;

    pthread_mutex_lock(&gone->lock);
    asked = gone->turn == TURN_NOBODY;
    if (asked) {
        gone->question = (struct question){.pid = process->pid, .n_uuids = process->n_uuids};
        memcpy(gone->question.uuids, process->uuids, sizeof(process->uuids));
        gone->turn = TURN_THREAD;
        pthread_cond_signal(&gone->wake);
    }
    pthread_mutex_unlock(&gone->lock);
    if (asked) {
        gone->in_flight = process;
        gone->asked_us = clock_now_us();
        gone->late = false;
    }
    return asked;
}

static void timer_cb(uv_timer_t *timer);

/* Asks the first question that is due, or sets the timer for the one that will be. */
static void go_on(struct gone *gone)
{
    struct gone_process *process, *next = NULL;
    uint64_t now_us = clock_now_us();

    list_for_each(process, &gone->asking, link)
        if (next == NULL || process->due_us < next->due_us)
            next = process;
    if (next == NULL) {
        uv_timer_stop(&gone->timer);
        return;
    }
    if (next->due_us <= now_us && ask(gone, next))
        uv_timer_start(&gone->timer, timer_cb, STUCK_MS, 0);
    else if (next->due_us > now_us)
        uv_timer_start(&gone->timer, timer_cb, (next->due_us - now_us) / CLOCK_MS_US + 1, 0);
}

static void timer_cb(uv_timer_t *timer)
{
    struct gone *gone = container_of(timer, struct gone, timer);

    if (gone->in_flight != NULL && !gone->late &&
        clock_now_us() - gone->asked_us >= STUCK_MS * CLOCK_MS_US) {
        gone->late = true;
        log_warn("api", "the driver does not say which processes it has pid=%d",
                 (int)gone->question.pid);
    }
    go_on(gone);
}

/* Asks again later, at growing distances. */
static void put_off(struct gone_process *process)
{
    uint32_t most = process->state == GONE_ENDING ? ENDING_WAIT_MAX_MS : UNSEEN_WAIT_MAX_MS;

    process->due_us = clock_now_us() + process->wait_ms * CLOCK_MS_US;
    process->wait_ms = process->wait_ms * 2 < most ? process->wait_ms * 2 : most;
}

static void take_answer(struct gone *gone, struct gone_process *process,
                        const struct question *answer)
{
    const bool known = answer->status == KVC_OK;

    if (process->state == GONE_UNSEEN && known && answer->listed) {
        set_state(process, GONE_SEEN);
        list_remove(&process->link);
    } else if (process->state == GONE_ENDING && known && !answer->listed) {
        set_state(process, GONE_GONE);
        list_remove(&process->link);
        log_info("api", "listed no more pid=%d", (int)process->pid);
        gone->cb(process);
    } else if (is_asked_about(process)) {
        put_off(process);
    }
}

static void answered_cb(uv_async_t *async)
{
    struct gone *gone = container_of(async, struct gone, answered);
    struct gone_process *process = gone->in_flight;
    struct question answer;

    pthread_mutex_lock(&gone->lock);
    if (gone->turn != TURN_LOOP) {
        pthread_mutex_unlock(&gone->lock);
        return;
    }
    answer = gone->question;
    gone->turn = TURN_NOBODY;
    pthread_mutex_unlock(&gone->lock);
    gone->in_flight = NULL;
    if (process != NULL)
        take_answer(gone, process, &answer);
    go_on(gone);
}

kvc_status gone_create(uv_loop_t *loop, const struct device *device, gone_cb *cb, struct gone **ret)
{
    struct gone *gone = mem_zalloc(sizeof(*gone));

    if (gone == NULL)
        return KVC_E_NO_MEMORY;
    gone->device = device;
    gone->cb = cb;
    list_init(&gone->asking);
    pthread_mutex_init(&gone->lock, NULL);
    pthread_cond_init(&gone->wake, NULL);
    if (uv_async_init(loop, &gone->answered, answered_cb) < 0)
        goto free_gone;
    uv_timer_init(loop, &gone->timer);
    gone->handles = 2;
    if (pthread_create(&gone->thread, NULL, ask_forever, gone) != 0) {
        gone->thread = pthread_self();
        gone_destroy(gone);
        return KVC_E_NO_MEMORY;
    }
    *ret = gone;
    return KVC_OK;

free_gone:
    mem_free(gone);
    return KVC_E_NO_MEMORY;
}

static void handle_closed(struct gone *gone)
{
    if (--gone->handles > 0)
        return;
    pthread_cond_destroy(&gone->wake);
    pthread_mutex_destroy(&gone->lock);
    mem_free(gone);
}

static void timer_closed(uv_handle_t *handle)
{
    handle_closed(container_of((uv_timer_t *)handle, struct gone, timer));
}

static void answered_closed(uv_handle_t *handle)
{
    handle_closed(container_of((uv_async_t *)handle, struct gone, answered));
}

/* False when the thread hangs in the driver: what it uses then stays. */
static bool join(struct gone *gone)
{
    struct timespec until;

    if (pthread_equal(gone->thread, pthread_self()))
        return true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += JOIN_S;
    pthread_mutex_lock(&gone->lock);
    gone->stop = true;
    pthread_cond_signal(&gone->wake);
    pthread_mutex_unlock(&gone->lock);
    return pthread_timedjoin_np(gone->thread, NULL, &until) == 0;
}

void gone_destroy(struct gone *gone)
{
    if (gone == NULL)
        return;
    if (!join(gone)) {
        log_warn("api", "the driver hangs");
        gone->handles++;
    }
    uv_close((uv_handle_t *)&gone->timer, timer_closed);
    uv_close((uv_handle_t *)&gone->answered, answered_closed);
}

void gone_watch(struct gone *gone, struct gone_process *process)
{
    set_state(process, GONE_UNSEEN);
    list_push_back(&gone->asking, &process->link);
    go_on(gone);
}

void gone_expect(struct gone *gone, struct gone_process *process)
{
    switch (process->state) {
    case GONE_UNSEEN:
        set_state(process, GONE_HIDDEN);
        list_remove(&process->link);
        log_info("api", "never listed by the driver, so its end proves nothing pid=%d",
                 (int)process->pid);
        break;
    case GONE_SEEN:
        set_state(process, GONE_ENDING);
        list_push_back(&gone->asking, &process->link);
        go_on(gone);
        break;
    default:
        break;
    }
}

void gone_forget(struct gone *gone, struct gone_process *process)
{
    if (process->state == GONE_UNWATCHED)
        return;
    list_remove(&process->link);
    if (gone->in_flight == process)
        gone->in_flight = NULL;
}
