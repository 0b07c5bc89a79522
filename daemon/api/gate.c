#include "daemon/api/gate.h"

#include "daemon/base/mem.h"

struct gates {
    struct list waiting; /* gate_wait::link */
    uv_timer_t timer;
};

bool gate_is_open(const struct gate_wait *wait)
{
    return wait->session == NULL ||
           store_owner_gate(wait->session->owner, wait->gate) >= wait->number;
}

static void timer_cb(uv_timer_t *timer)
{
    struct gates *g = container_of(timer, struct gates, timer);
    struct gate_wait *wait, *after;
    struct list passed;

    list_init(&passed);
    list_for_each_safe(wait, after, &g->waiting, link)
        if (gate_is_open(wait))
            list_move_back(&passed, &wait->link);
    while ((wait = list_first(&passed, struct gate_wait, link)) != NULL) {
        gate_forget(wait);
        wait->passed(wait);
    }
    if (list_empty(&g->waiting))
        uv_timer_stop(timer);
}

kvc_status gates_create(struct api *api, struct gates **gates)
{
    struct gates *g = mem_zalloc(sizeof(*g));

    if (g == NULL)
        return KVC_E_NO_MEMORY;
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

void gate_wait(struct gate_wait *wait)
{
    struct gates *g = wait->session->api->gates;

    list_push_back(&g->waiting, &wait->link);
    if (!uv_is_active((uv_handle_t *)&g->timer))
        uv_timer_start(&g->timer, timer_cb, KVC_POLL_MS, KVC_POLL_MS);
}

void gate_forget(struct gate_wait *wait)
{
    if (wait->session == NULL)
        return;
    list_remove(&wait->link);
    wait->session = NULL;
}
