#include "daemon/api/gate.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"

#define EVENTS_MAX 64u /* open, of a session */
#define ASKED_MAX  64u /* in one go */

struct gate_event {
    struct list link; /* session::events; in none once its session has ended */
    struct gates *gates;
    uint8_t handle[DEVICE_HANDLE_BYTES];
    uint32_t waits;
    bool asked;                 /* it is with the errand, or has been answered by it */
    bool orphan;                /* to be closed as soon as it is not */
    struct device_event *event; /* the errands' */
    kvc_status seen;
    struct errand closing;
};

struct gates {
    struct api *api;
    struct errands *errands;
    uint32_t gpu;
    struct list waiting; /* gate_wait::link */
    uv_timer_t timer;
    struct errand errand;
    bool asking;
    uint32_t n_asked;
    struct gate_event *asked[ASKED_MAX];
};

static void close_event(struct errand *errand)
{
    struct gate_event *event = container_of(errand, struct gate_event, closing);

    event->gates->api->config.device->lending->event_close(event->event);
}

static void event_closed(struct errand *errand)
{
    mem_free(container_of(errand, struct gate_event, closing));
}

static void discard(struct gate_event *event)
{
    list_remove(&event->link);
    event->orphan = true;
    if (event->asked || event->waits > 0)
        return;
    event->closing.work = close_event;
    event->closing.done = event_closed;
    errands_run(event->gates->errands, &event->closing);
}

static void ask_driver(struct errand *errand)
{
    struct gates *g = container_of(errand, struct gates, errand);
    const struct device *device = g->api->config.device;

    for (uint32_t i = 0; i < g->n_asked; i++) {
        struct gate_event *event = g->asked[i];

        event->seen = KVC_OK;
        if (event->event == NULL &&
            device->lending->event_open(device->state, g->gpu, event->handle, &event->event) !=
                KVC_OK)
            event->seen = KVC_E_MAP;
        if (event->seen == KVC_OK)
            event->seen = device->lending->event_look(event->event);
    }
}

static void ask_later(struct gates *g);

static void driver_said(struct errand *errand)
{
    struct gates *g = container_of(errand, struct gates, errand);
    struct gate_wait *wait, *after;
    struct list passed, busy;

    list_init(&passed);
    list_init(&busy);
    list_for_each_safe(wait, after, &g->waiting, link)
        if (wait->asked)
            list_move_back(wait->event->seen == KVC_E_BUSY ? &busy : &passed, &wait->link);
    list_splice_back(&g->waiting, &busy); /* others have their turn first */
    g->asking = false;
    while ((wait = list_first(&passed, struct gate_wait, link)) != NULL) {
        const kvc_status seen = wait->event->seen;

        gate_forget(wait);
        wait->passed(wait, seen);
    }
    for (uint32_t i = 0; i < g->n_asked; i++) {
        g->asked[i]->asked = false;
        if (g->asked[i]->orphan)
            discard(g->asked[i]);
    }
    ask_later(g);
}

/* Each event once, of those that wait now: a later answer counts for who comes later. */
static void ask(struct gates *g)
{
    struct gate_wait *wait;

    if (g->asking || list_empty(&g->waiting))
        return;
    g->n_asked = 0;
    list_for_each(wait, &g->waiting, link) {
        if (!wait->event->asked && g->n_asked < ASKED_MAX) {
            wait->event->asked = true;
            g->asked[g->n_asked++] = wait->event;
        }
        wait->asked = wait->event->asked;
    }
    g->asking = true;
    errands_run(g->errands, &g->errand);
}

static void timer_cb(uv_timer_t *timer)
{
    ask(container_of(timer, struct gates, timer));
}

static void ask_later(struct gates *g)
{
    if (list_empty(&g->waiting)) {
        uv_timer_stop(&g->timer);
        return;
    }
    if (!uv_is_active((uv_handle_t *)&g->timer))
        uv_timer_start(&g->timer, timer_cb, KVC_POLL_MS, KVC_POLL_MS);
}

kvc_status gates_create(struct api *api, uint32_t gpu, struct gates **gates)
{
    struct gates *g = mem_zalloc(sizeof(*g));

    if (g == NULL)
        return KVC_E_NO_MEMORY;
    g->api = api;
    g->gpu = gpu;
    g->errands = api->errands[gpu];
    g->errand.work = ask_driver;
    g->errand.done = driver_said;
    list_init(&g->waiting);
    uv_timer_init(api->config.loop, &g->timer);
    *gates = g;
    return KVC_OK;
}

static void timer_closed(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct gates, timer));
}

void gates_destroy(struct gates *g)
{
    if (g != NULL)
        uv_close((uv_handle_t *)&g->timer, timer_closed);
}

static struct gate_event *find(struct session *s, const uint8_t handle[DEVICE_HANDLE_BYTES])
{
    struct gate_event *event;

    list_for_each(event, &s->events, link)
        if (memcmp(event->handle, handle, DEVICE_HANDLE_BYTES) == 0)
            return event;
    return NULL;
}

/* Room for one more: the one that was made first, of those that nobody waits for. */
static bool make_room(struct session *s)
{
    struct gate_event *event;

    if (list_length(&s->events) < EVENTS_MAX)
        return true;
    list_for_each(event, &s->events, link)
        if (event->waits == 0) {
            discard(event);
            return true;
        }
    return false;
}

static kvc_status open_event(struct session *s, const uint8_t handle[DEVICE_HANDLE_BYTES],
                             struct gate_event **ret)
{
    struct gate_event *event;

    if (!make_room(s))
        return KVC_E_LIMIT;
    event = mem_zalloc(sizeof(*event));
    if (event == NULL)
        return KVC_E_NO_MEMORY;
    event->gates = s->api->gates[s->gpu];
    memcpy(event->handle, handle, DEVICE_HANDLE_BYTES);
    list_init(&event->link);
    list_push_back(&s->events, &event->link);
    *ret = event;
    return KVC_OK;
}

kvc_status gate_prepare(struct session *s, const uint8_t handle[DEVICE_HANDLE_BYTES],
                        struct gate_wait *wait)
{
    struct gate_event *event = find(s, handle);
    kvc_status status = event != NULL ? KVC_OK : open_event(s, handle, &event);

    if (status != KVC_OK)
        return status;
    event->waits++;
    wait->event = event;
    list_init(&wait->link);
    return KVC_OK;
}

void gate_wait(struct gate_wait *wait)
{
    struct gates *g = wait->event->gates;

    wait->asked = false;
    list_push_back(&g->waiting, &wait->link);
    if (g->asking)
        ask_later(g);
    else
        ask(g);
}

void gate_forget(struct gate_wait *wait)
{
    if (wait->event == NULL)
        return;
    list_remove(&wait->link);
    wait->event->waits--;
    wait->event = NULL;
}

void gate_forget_session(struct session *s)
{
    struct gate_event *event;

    while ((event = list_first(&s->events, struct gate_event, link)) != NULL) {
        assert(event->waits == 0);
        discard(event);
    }
}
