#include "daemon/api/gone.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/tier/errands.h"

#define UNSEEN_WAIT_MS     20u
#define UNSEEN_WAIT_MAX_MS 5000u
#define ENDING_WAIT_MS     10u
#define ENDING_WAIT_MAX_MS 200u

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
    struct list asking; /* processes that questions are to be asked about */
    uv_timer_t timer;
    struct errands *errands;
    struct errand errand;           /* the question */
    bool asked;                     /* it is the errand's */
    struct gone_process *in_flight; /* NULL: nobody, or it was forgotten meanwhile */
    struct question question;
};

static void question_cb(struct errand *errand)
{
    struct gone *gone = container_of(errand, struct gone, errand);
    struct question *question = &gone->question;

    question->status = gone->device->lists_process(
        gone->device->state, (const uint8_t(*)[KVC_UUID_BYTES])question->uuids, question->n_uuids,
        question->pid, &question->listed);
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

static void ask(struct gone *gone, struct gone_process *process)
{
    gone->question = (struct question){.pid = process->pid, .n_uuids = process->n_uuids};
    memcpy(gone->question.uuids, process->uuids, sizeof(process->uuids));
    gone->in_flight = process;
    gone->asked = true;
    errands_run(gone->errands, &gone->errand);
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
    if (next->due_us > now_us)
        uv_timer_start(&gone->timer, timer_cb, (next->due_us - now_us) / CLOCK_MS_US + 1, 0);
    else if (!gone->asked)
        ask(gone, next);
}

static void timer_cb(uv_timer_t *timer)
{
    go_on(container_of(timer, struct gone, timer));
}

/* Asks again later, at growing distances. */
static void put_off(struct gone_process *process)
{
    uint32_t most = process->state == GONE_ENDING ? ENDING_WAIT_MAX_MS : UNSEEN_WAIT_MAX_MS;

    process->due_us = clock_now_us() + process->wait_ms * CLOCK_MS_US;
    process->wait_ms = process->wait_ms * 2 < most ? process->wait_ms * 2 : most;
}

static void take_answer(struct gone *gone, struct gone_process *process)
{
    const bool known = gone->question.status == KVC_OK, listed = gone->question.listed;

    if (process->state == GONE_UNSEEN && known && listed) {
        set_state(process, GONE_SEEN);
        list_remove(&process->link);
    } else if (process->state == GONE_ENDING && known && !listed) {
        set_state(process, GONE_GONE);
        list_remove(&process->link);
        log_info("api", "listed no more pid=%d", (int)process->pid);
        gone->cb(process);
    } else if (is_asked_about(process)) {
        put_off(process);
    }
}

static void answered_cb(struct errand *errand)
{
    struct gone *gone = container_of(errand, struct gone, errand);
    struct gone_process *process = gone->in_flight;

    gone->asked = false;
    gone->in_flight = NULL;
    if (process != NULL)
        take_answer(gone, process);
    go_on(gone);
}

kvc_status gone_create(uv_loop_t *loop, const struct device *device, gone_cb *cb, struct gone **ret)
{
    struct gone *gone = mem_zalloc(sizeof(*gone));
    kvc_status status;

    if (gone == NULL)
        return KVC_E_NO_MEMORY;
    gone->device = device;
    gone->cb = cb;
    gone->errand = (struct errand){.work = question_cb, .done = answered_cb};
    list_init(&gone->asking);
    status = errands_create(loop, "gone", &gone->errands);
    if (status != KVC_OK) {
        mem_free(gone);
        return status;
    }
    uv_timer_init(loop, &gone->timer);
    *ret = gone;
    return KVC_OK;
}

static void closed_cb(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct gone, timer));
}

void gone_destroy(struct gone *gone)
{
    if (gone == NULL)
        return;
    uv_close((uv_handle_t *)&gone->timer, errands_destroy(gone->errands) ? closed_cb : NULL);
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
