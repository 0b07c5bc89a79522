#include "daemon/api/watch.h"

#include <string.h>

#include "daemon/api/feed.h"
#include "daemon/base/mem.h"

/* Those who wait are looked after so long after something has happened: events come in crowds. */
#define PAUSE_MS 2u
/* Events that are looked at for them all in one turn of the loop. */
#define TURN_MAX (2u * FEED_READ_MAX)

/* A request that waits. */
struct watch {
    struct list link; /* watches::waiting, who was looked after last is last */
    struct session *session;
    uint32_t seq, limit;
    struct feed_reader reader;
    uv_timer_t timer; /* of the wait */
};

struct watches {
    struct api *api;
    struct feed *feed;
    struct list waiting;
    uv_timer_t pause; /* runs while something may have happened for those who wait */
    struct msg_watch_reply reply;
};

kvc_status watches_create(struct api *api, struct watches **ret)
{
    struct watches *watches = mem_zalloc(sizeof(*watches));
    kvc_status status = KVC_E_NO_MEMORY;

    if (watches != NULL)
        status = feed_create(&watches->feed);
    if (status != KVC_OK) {
        mem_free(watches);
        return status;
    }
    watches->api = api;
    list_init(&watches->waiting);
    uv_timer_init(api->config.loop, &watches->pause);
    *ret = watches;
    return KVC_OK;
}

static void pause_closed(uv_handle_t *handle)
{
    struct watches *watches = container_of((uv_timer_t *)handle, struct watches, pause);

    feed_destroy(watches->feed);
    mem_free(watches);
}

void watches_close(struct watches *watches)
{
    if (watches != NULL)
        uv_close((uv_handle_t *)&watches->pause, pause_closed);
}

static void watch_closed(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct watch, timer));
}

static void forget(struct watch *watch)
{
    watch->session->watch = NULL;
    list_remove(&watch->link);
    uv_close((uv_handle_t *)&watch->timer, watch_closed);
}

void watch_forget_session(struct session *s)
{
    if (s->watch != NULL)
        forget(s->watch);
}

static uint32_t read_events(struct watches *watches, struct feed_reader *reader, uint32_t limit)
{
    return feed_read(watches->feed, store_table(watches->api->store), reader, limit,
                     &watches->reply);
}

/* What was read last. */
static void reply(struct watches *watches, struct session *s, uint32_t seq)
{
    watches->reply.boot_epoch = watches->api->config.boot_epoch;
    session_reply(s, WIRE_WATCH, seq, codec_watch(watches->api->codec, &watches->reply));
}

static bool has_news(const struct watches *watches)
{
    return watches->reply.n > 0 || watches->reply.lost > 0;
}

static void pause_cb(uv_timer_t *timer)
{
    struct watches *watches = container_of(timer, struct watches, pause);
    uint32_t looked = 0;
    struct list due;

    list_init(&due);
    list_splice_back(&due, &watches->waiting);
    while (!list_empty(&due) && looked < TURN_MAX) {
        struct watch *watch = list_first(&due, struct watch, link);

        looked += 1 + read_events(watches, &watch->reader, watch->limit);
        list_move_back(&watches->waiting, &watch->link);
        if (watches->reply.more)
            uv_timer_start(&watches->pause, pause_cb, PAUSE_MS, 0);
        if (!has_news(watches))
            continue;
        reply(watches, watch->session, watch->seq);
        forget(watch);
    }
    if (list_empty(&due))
        return;
    /* They are the first next time. */
    list_splice_back(&due, &watches->waiting);
    list_splice_back(&watches->waiting, &due);
    uv_timer_start(&watches->pause, pause_cb, PAUSE_MS, 0);
}

static void look_soon(struct watches *watches)
{
    if (!list_empty(&watches->waiting) && !uv_is_active((uv_handle_t *)&watches->pause))
        uv_timer_start(&watches->pause, pause_cb, PAUSE_MS, 0);
}

void watches_note(struct watches *watches, const struct store_event *event)
{
    feed_note(watches->feed, event);
    look_soon(watches);
}

static void waited_cb(uv_timer_t *timer)
{
    struct watch *watch = container_of(timer, struct watch, timer);
    struct watches *watches = watch->session->api->watches;

    read_events(watches, &watch->reader, watch->limit);
    reply(watches, watch->session, watch->seq);
    forget(watch);
}

/* false: out of memory. */
static bool wait(struct watches *watches, struct session *s, const struct request *request,
                 const struct feed_reader *reader, uint32_t limit)
{
    const uint32_t ms = request->watch.wait_ms;
    struct watch *watch = mem_zalloc(sizeof(*watch));

    if (watch == NULL)
        return false;
    watch->session = s;
    watch->seq = request->seq;
    watch->limit = limit;
    watch->reader = *reader;
    uv_timer_init(watches->api->config.loop, &watch->timer);
    uv_timer_start(&watch->timer, waited_cb, ms < KVC_WATCH_MS_MAX ? ms : KVC_WATCH_MS_MAX, 0);
    list_init(&watch->link);
    list_push_back(&watches->waiting, &watch->link);
    s->watch = watch;
    if (watches->reply.more)
        look_soon(watches);
    return true;
}

/* Operators that may be that see everybody's, others those of their tenant. */
static kvc_status read_request(const struct session *s, const struct msg_watch *watch,
                               struct feed_reader *reader, bool *news, struct refusal *why)
{
    const struct api *api = s->api;
    const uint64_t last = feed_last(api->watches->feed);
    const bool all = s->role == STORE_ROLE_OPERATOR && session_is_operator(s);
    const bool other = watch->boot_epoch != 0 && watch->boot_epoch != api->config.boot_epoch;

    if (watch->namespace_digest.len != 0 && watch->namespace_digest.len != KVC_NAMESPACE_BYTES)
        return refuse(why, KVC_E_INVALID, "not 32 bytes", "namespace_digest");
    if (!watch->latest && !other && watch->after > last)
        return refuse(why, KVC_E_INVALID, "nothing of this number has happened yet", "after");
    if (s->watch != NULL)
        return refuse(why, KVC_E_BUSY, "this session has a WATCH that waits", "%s", "");
    *reader = (struct feed_reader){
        .after = watch->latest ? last
                 : other       ? 0
                               : watch->after,
        .tenant = all ? TABLE_NONE : owner_tenant(s->owner),
        .door = all ? NULL : session_door(s),
        .has_digest = watch->namespace_digest.len > 0,
    };
    if (reader->has_digest)
        memcpy(reader->digest, watch->namespace_digest.data, sizeof(reader->digest));
    *news = other;
    return KVC_OK;
}

kvc_status watch_watch(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_watch *watch = &request->watch;
    struct watches *watches = s->api->watches;
    const uint32_t limit =
        watch->limit == 0 || watch->limit > KVC_EVENTS_MAX ? KVC_EVENTS_MAX : watch->limit;
    struct feed_reader reader;
    bool news = false;
    kvc_status status = read_request(s, watch, &reader, &news, why);

    if (status != KVC_OK)
        return status;
    read_events(watches, &reader, limit);
    if (news || watch->wait_ms == 0 || has_news(watches))
        reply(watches, s, request->seq);
    else if (!wait(watches, s, request, &reader, limit))
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    return KVC_OK;
}
