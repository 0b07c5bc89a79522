#include "daemon/api/silence.h"

#include "daemon/api/session.h"
#include "daemon/base/clock.h"
#include "daemon/base/mem.h"

#define LOOK_MS 250

struct silence {
    uv_timer_t timer;
    struct api *api;
};

static void timer_cb(uv_timer_t *timer)
{
    struct silence *silence = container_of(timer, struct silence, timer);
    const uint64_t now = clock_now_us();
    bool silent = false;
    struct session *s;

    list_for_each(s, &silence->api->sessions, link) {
        if (s->state != SESSION_NEW)
            continue;
        silent = true;
        if (now - s->connected_us >= KVC_HELLO_MS * CLOCK_MS_US)
            connection_cut(s->connection, "no_hello");
    }
    if (!silent)
        uv_timer_stop(timer);
}

kvc_status silence_create(uv_loop_t *loop, struct api *api, struct silence **silence)
{
    struct silence *s = mem_zalloc(sizeof(*s));

    if (s == NULL)
        return KVC_E_NO_MEMORY;
    s->api = api;
    uv_timer_init(loop, &s->timer);
    *silence = s;
    return KVC_OK;
}

void silence_begins(struct silence *s)
{
    if (!uv_is_active((uv_handle_t *)&s->timer))
        uv_timer_start(&s->timer, timer_cb, LOOK_MS, LOOK_MS);
}

static void close_cb(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct silence, timer));
}

void silence_close(struct silence *s)
{
    if (s != NULL)
        uv_close((uv_handle_t *)&s->timer, close_cb);
}
