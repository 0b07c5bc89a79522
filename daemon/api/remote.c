/* REMOTE: the part of a lookup that peers may have. */
#include "daemon/api/remote.h"

#include "daemon/base/mem.h"

struct remote {
    struct list link; /* session::remotes, oldest first */
    struct session *session;
    uint64_t id;
    struct fetch *fetch; /* NULL: it is over */
    uint32_t blocks;
    bool waits; /* the reply to `seq` is owed */
    uint32_t seq;
    uv_timer_t timer; /* of the wait */
};

static void closed_cb(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct remote, timer));
}

static void forget(struct remote *r)
{
    if (r->fetch != NULL)
        peers_drop(r->fetch);
    r->session->n_remotes--;
    list_remove(&r->link);
    uv_close((uv_handle_t *)&r->timer, closed_cb);
}

/* Answers who waits. What is over and was told is forgotten. */
static void reply(struct remote *r)
{
    const struct msg_remote_reply reply = {.done = r->fetch == NULL, .blocks = r->blocks};

    r->waits = false;
    uv_timer_stop(&r->timer);
    session_reply(r->session, WIRE_REMOTE, r->seq, codec_remote(r->session->api->codec, &reply));
    if (reply.done)
        forget(r);
}

static void fetched_cb(void *arg, uint32_t blocks)
{
    struct remote *r = arg;

    r->fetch = NULL;
    r->blocks = blocks;
    if (r->waits)
        reply(r);
}

static void waited_cb(uv_timer_t *timer)
{
    reply(container_of(timer, struct remote, timer));
}

/* Makes room for another: the oldest that is over goes. */
static bool make_room(struct session *s)
{
    struct remote *r, *after;

    if (s->n_remotes < KVC_SESSION_REMOTES_MAX)
        return true;
    list_for_each_safe(r, after, &s->remotes, link) {
        if (r->fetch != NULL)
            continue;
        forget(r);
        return true;
    }
    return false;
}

void remote_begin(struct session *s, uint32_t ms, const struct store_lookup *lookup,
                  const struct store_lookup_result *result, struct msg_lookup_reply *reply)
{
    struct store_lookup_part parts[KVC_PARTS_MAX];
    const uint32_t n_keys = lookup->parts[0].n_keys;
    uint32_t here = result->count > lookup->offset ? result->count - lookup->offset : 0;
    const struct peers_want want = {
        .tenant = owner_tenant(s->owner),
        .parts = parts,
        .n_parts = lookup->n_parts,
        .ms = ms < KVC_REMOTE_MS_MAX ? ms : KVC_REMOTE_MS_MAX,
        .gpu = s->has_gpu ? s->gpu : PEERS_ANY_GPU,
    };
    struct remote *r;

    if (ms == 0 || s->api->peers == NULL || s->api->stopping || lookup->probe || here >= n_keys ||
        result->count < lookup->offset || !make_room(s))
        return;
    for (uint32_t p = 0; p < lookup->n_parts; p++) {
        parts[p] = lookup->parts[p];
        parts[p].keys += (size_t)here * KVC_KEY_BYTES;
        parts[p].n_keys -= here;
    }
    r = mem_zalloc(sizeof(*r));
    if (r == NULL)
        return;
    r->session = s;
    if (peers_fetch(s->api->peers, &want, fetched_cb, r, &r->fetch) != KVC_OK) {
        mem_free(r);
        return;
    }
    r->id = ++s->api->last_fetch;
    uv_timer_init(s->api->config.loop, &r->timer);
    list_init(&r->link);
    list_push_back(&s->remotes, &r->link);
    s->n_remotes++;
    reply->remote = n_keys - here;
    reply->fetch = r->id;
}

static struct remote *find(struct session *s, uint64_t id)
{
    struct remote *r;

    list_for_each(r, &s->remotes, link)
        if (r->id == id)
            return r;
    return NULL;
}

kvc_status remote_remote(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_remote *remote = &request->remote;
    const struct msg_remote_reply declined = {.done = true};
    struct remote *r = find(s, remote->fetch);

    if (r == NULL)
        return refuse(why, KVC_E_UNKNOWN, "no such fetch, or it was told that it is over", "fetch");
    if (r->waits)
        return refuse(why, KVC_E_BUSY, "another request waits for it", "fetch");
    r->seq = request->seq;
    if (remote->decline) {
        forget(r);
        session_reply(s, WIRE_REMOTE, request->seq, codec_remote(s->api->codec, &declined));
    } else if (r->fetch == NULL || remote->wait_ms == 0) {
        reply(r);
    } else {
        r->waits = true;
        uv_timer_start(&r->timer, waited_cb,
                       remote->wait_ms < KVC_REMOTE_MS_MAX ? remote->wait_ms : KVC_REMOTE_MS_MAX,
                       0);
    }
    return KVC_OK;
}

void remote_forget_session(struct session *s)
{
    struct remote *r, *after;

    list_for_each_safe(r, after, &s->remotes, link)
        forget(r);
}
