#include "daemon/api/verify.h"

#include "daemon/api/session.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/walk.h"
#include "daemon/tier/verifier.h"

/* Blocks that are looked at in one turn of the loop. */
#define STEPS_MAX KVC_KEYS_MAX
/* What is read in one go, unless one block is more: a piece, or what a tenth of a second allows. */
#define BATCH_BYTES   TIER_PIECE_BYTES
#define BATCHES_PER_S 10u

struct verify {
    uv_timer_t timer; /* until the next batch */
    struct api *api;
    struct verifier *verifier; /* NULL: none has begun yet */
    bool running;
    uint64_t cursor, bytes_per_s, since_us, elapsed_us;
    uint64_t batch_max; /* bytes */
    uint32_t permille;  /* that the last one has looked at */
    uint64_t checked, bad, unchecked, failed, bytes;
    uint32_t n; /* of the batch in flight */
    uint64_t batch_bytes;
    struct store_copy copies[VERIFIER_BATCH];
    struct verifier_slot slots[VERIFIER_BATCH];
};

static void step(struct verify *v);

static void timer_cb(uv_timer_t *timer)
{
    step(container_of(timer, struct verify, timer));
}

kvc_status verify_create(struct api *api, struct verify **verify)
{
    struct verify *v = mem_zalloc(sizeof(*v));

    if (v == NULL)
        return KVC_E_NO_MEMORY;
    v->api = api;
    uv_timer_init(api->config.loop, &v->timer);
    *verify = v;
    return KVC_OK;
}

static uint32_t permille(const struct verify *v)
{
    const uint64_t end = store_walk_copies_end(v->api->store);

    return v->cursor >= end ? 1000 : (uint32_t)(v->cursor * 1000 / end);
}

static void end(struct verify *v, const char *how)
{
    v->running = false;
    v->permille = permille(v);
    v->elapsed_us = clock_now_us() - v->since_us;
    uv_timer_stop(&v->timer);
    log_info("api", "verification %s checked=%llu bad=%llu unchecked=%llu failed=%llu bytes=%llu",
             how, (unsigned long long)v->checked, (unsigned long long)v->bad,
             (unsigned long long)v->unchecked, (unsigned long long)v->failed,
             (unsigned long long)v->bytes);
}

/* Milliseconds until as many bytes may have been read as were. */
static uint64_t pause_ms(const struct verify *v)
{
    const uint64_t elapsed_us = clock_now_us() - v->since_us;
    double due_us;

    if (v->bytes_per_s == 0)
        return 0;
    due_us = (double)v->bytes * 1e6 / (double)v->bytes_per_s - (double)elapsed_us;
    return due_us <= 0 ? 0 : (uint64_t)(due_us / 1e3) + 1;
}

static void batch_done(void *arg)
{
    struct verify *v = arg;

    for (uint32_t i = v->n; i-- > 0;) {
        const struct store_copy *copy = &v->copies[i];
        const kvc_status status = v->slots[i].status;
        const bool bad = status == KVC_E_CHECKSUM;

        v->checked += status == KVC_OK || bad;
        v->bad += bad;
        v->failed += status != KVC_OK && !bad;
        if (bad)
            log_warn("api",
                     "a block does not match its checksum, and is dropped tier=%s "
                     "offset=%llu",
                     tier_name(copy->tier), (unsigned long long)copy->offset);
        store_give_copy(v->api->store, copy, bad);
    }
    v->n = 0;
    v->bytes += v->batch_bytes;
    if (v->running)
        uv_timer_start(&v->timer, timer_cb, pause_ms(v), 0);
}

/* One batch, or as many steps; the rest in another turn of the loop. */
static void step(struct verify *v)
{
    uint32_t steps = STEPS_MAX;
    enum store_walk found = STORE_WALK_FOUND;

    v->batch_bytes = 0;
    while (v->n < VERIFIER_BATCH && v->batch_bytes < v->batch_max) {
        struct store_copy *copy = &v->copies[v->n];

        found = store_walk_copies(v->api->store, &v->cursor, &steps, &v->unchecked, copy);
        if (found != STORE_WALK_FOUND)
            break;
        v->slots[v->n++] = (struct verifier_slot){
            .tier = copy->tier,
            .offset = copy->offset,
            .slice_bytes = copy->layout->slice_bytes,
            .n_slices = copy->layout->n_slices,
            .checksum = copy->checksum,
        };
        v->batch_bytes += copy->layout->slot_bytes;
    }
    if (v->n > 0)
        verifier_start(v->verifier, v->slots, v->n, batch_done, v);
    else if (found == STORE_WALK_PAUSE)
        uv_timer_start(&v->timer, timer_cb, 0, 0);
    else
        end(v, "done");
}

static kvc_status begin(struct verify *v, uint64_t bytes_per_s)
{
    struct api *api = v->api;
    kvc_status status = KVC_OK;

    if (v->verifier == NULL)
        status = verifier_create(api->config.loop, api->tiers, api->config.device, &v->verifier);
    if (status != KVC_OK)
        return status;
    v->running = true;
    v->bytes_per_s = bytes_per_s;
    v->batch_max = BATCH_BYTES;
    if (bytes_per_s > 0 && bytes_per_s / BATCHES_PER_S < BATCH_BYTES)
        v->batch_max = bytes_per_s / BATCHES_PER_S + 1;
    v->since_us = clock_now_us();
    v->cursor = v->checked = v->bad = v->unchecked = v->failed = v->bytes = 0;
    /* What an earlier one still reads comes back first. */
    if (v->n == 0)
        uv_timer_start(&v->timer, timer_cb, 0, 0);
    return KVC_OK;
}

void verify_stop(struct verify *v)
{
    if (v != NULL && v->running)
        end(v, "stopped");
}

bool verify_is_busy(const struct verify *v)
{
    return v != NULL && v->n > 0;
}

static void close_cb(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct verify, timer));
}

void verify_close(struct verify *v)
{
    if (v == NULL)
        return;
    verifier_destroy(v->verifier);
    uv_close((uv_handle_t *)&v->timer, close_cb);
}

kvc_status verify_verify(struct session *s, const struct request *request, struct refusal *why)
{
    struct verify *v = s->api->verify;
    const struct msg_job *job = &request->job;
    struct msg_verify_reply reply;
    kvc_status status = KVC_OK;

    if (job->action > MSG_ACTION_END)
        return refuse(why, KVC_E_INVALID, "no such action", "action");
    if (job->action == MSG_ACTION_BEGIN && s->api->stopping)
        return refuse(why, KVC_E_STOPPING, "the daemon is shutting down", "%s", "");
    if (job->action == MSG_ACTION_BEGIN && v->running)
        return refuse(why, KVC_E_BUSY, "one is under way", "action");
    if (job->action == MSG_ACTION_BEGIN)
        status = begin(v, job->bytes_per_s);
    if (status != KVC_OK)
        return refuse(why, status, "", "%s", "");
    if (job->action == MSG_ACTION_END)
        verify_stop(v);
    reply = (struct msg_verify_reply){
        .running = v->running,
        .permille = v->running ? permille(v) : v->permille,
        .checked = v->checked,
        .bad = v->bad,
        .unchecked = v->unchecked,
        .failed = v->failed,
        .bytes = v->bytes,
        .elapsed_us = v->running ? clock_now_us() - v->since_us : v->elapsed_us,
    };
    session_reply(s, WIRE_VERIFY, request->seq, codec_verify(s->api->codec, &reply));
    return KVC_OK;
}
