#include "daemon/api/api.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "daemon/api/discard.h"
#include "daemon/api/gate.h"
#include "daemon/api/loss.h"
#include "daemon/api/session.h"
#include "daemon/api/silence.h"
#include "daemon/api/verify.h"
#include "daemon/api/wake.h"
#include "daemon/api/watch.h"
#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
#include "daemon/store/figures.h"

kvc_status api_create(const struct api_config *config, struct api **api)
{
    struct api *a = mem_zalloc(sizeof(*a));

    if (a == NULL)
        return KVC_E_NO_MEMORY;
    a->config = *config;
    a->started_us = clock_now_us();
    list_init(&a->sessions);
    list_init(&a->waiting);
    uv_timer_init(config->loop, &a->room_timer);
    if (connection_hub_init(&a->hub, config->loop) != KVC_OK || codec_create(&a->codec) != KVC_OK ||
        save_scratch_create(a) != KVC_OK ||
        silence_create(config->loop, a, &a->silence) != KVC_OK ||
        watches_create(a, &a->watches) != KVC_OK || verify_create(a, &a->verify) != KVC_OK) {
        api_destroy(a);
        return KVC_E_NO_MEMORY;
    }
    *api = a;
    return KVC_OK;
}

void api_set_peers(struct api *api, struct peers *peers)
{
    api->peers = peers;
}

static void on_save_done(void *ctx, struct owner *owner, const struct save_outcome *outcome)
{
    (void)ctx;
    save_done(owner_user(owner), outcome);
}

static void on_room(void *ctx)
{
    save_room(ctx);
}

static void on_owner_free(void *ctx, struct owner *owner)
{
    struct session *s = owner_user(owner);

    (void)ctx;
    if (s == NULL) /* the daemon's own, for peers */
        return;
    s->owner = NULL;
    session_free(s);
}

static void on_page_free(void *ctx, void *memory, size_t bytes, int fd)
{
    const struct api *api = ctx;

    discard(api->config.loop, memory, bytes, fd);
}

static void on_extents(void *ctx, struct owner *owner, const uint32_t *withdrawn, uint32_t n,
                       bool granted)
{
    (void)ctx;
    layout_extents(owner_user(owner), withdrawn, n, granted);
}

static void on_block(void *ctx, uint32_t part, const uint8_t *key, bool here)
{
    const struct api *api = ctx;

    if (api->peers != NULL)
        peers_note(api->peers, part, key, here);
}

static void on_event(void *ctx, const struct store_event *event)
{
    const struct api *api = ctx;

    watches_note(api->watches, event);
}

struct store_events api_store_events(struct api *api)
{
    return (struct store_events){
        .ctx = api,
        .save_done = on_save_done,
        .room = on_room,
        .owner_free = on_owner_free,
        .page_free = on_page_free,
        .block = on_block,
        .event = on_event,
        .extents = on_extents,
    };
}

static void calibrate(struct errand *errand)
{
    struct api *api = errand->arg;
    const struct device *device = api->config.device;

    device->lending->calibrate(device->state, (uint32_t)(errand - api->calibrate));
}

static void calibrated(struct errand *errand)
{
    (void)errand;
}

static kvc_status start_errands(struct api *api)
{
    const struct device *device = api->config.device;
    kvc_status status = KVC_OK;
    char name[16];

    for (uint32_t i = 0; device->lending != NULL && i < device->n_gpus && status == KVC_OK; i++) {
        snprintf(name, sizeof(name), "gpu%u", i);
        status = errands_create(api->config.loop, name, &api->errands[i]);
        if (status != KVC_OK)
            break;
        api->calibrate[i] = (struct errand){.work = calibrate, .done = calibrated, .arg = api};
        errands_run(api->errands[i], &api->calibrate[i]);
    }
    return status;
}

uint32_t api_errands(const struct api *api)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < DEVICE_GPUS_MAX; i++)
        n += api->errands[i] != NULL ? errands_count(api->errands[i]) : 0;
    return n;
}

bool api_hangs(const struct api *api)
{
    bool hangs = false;

    for (uint32_t i = 0; i < DEVICE_GPUS_MAX; i++)
        hangs = hangs || (api->errands[i] != NULL && errands_hang(api->errands[i]));
    return hangs;
}

void api_set_access(struct api *api, const struct access *access)
{
    struct session *s;

    api->access = *access;
    list_for_each(s, &api->sessions, link)
        session_judge(s);
}

/* The first is the last, so that who finds it open finds all. They are closed with the api. */
static kvc_status open_doors(struct api *api, const int *socks)
{
    kvc_status status = KVC_OK;

    for (uint32_t i = api->access.n_doors; i-- > 0 && status == KVC_OK;) {
        api->doors[i].api = api;
        status = listener_open(api->config.loop, socks[i], session_accept, &api->doors[i],
                               &api->doors[i].listener);
    }
    return status;
}

static void close_doors(struct api *api)
{
    for (uint32_t i = 0; i < api->access.n_doors; i++) {
        listener_close(api->doors[i].listener);
        api->doors[i].listener = NULL;
    }
}

kvc_status api_serve(struct api *api, struct store *store, struct tier *const tiers[TIER_COUNT],
                     const int *socks)
{
    kvc_status status = wake_create(api->config.loop, store, &api->wake);

    if (status != KVC_OK)
        return status;
    api->store = store;
    for (int t = 0; t < TIER_COUNT; t++)
        api->tiers[t] = tiers[t];
    if (api->config.device->lists_process != NULL)
        status = gone_create(api->config.loop, api->config.device, session_gone, &api->gone);
    if (status == KVC_OK)
        status = loss_create(api, &api->loss);
    if (status == KVC_OK)
        status = gates_create(api, &api->gates);
    if (status == KVC_OK)
        status = start_errands(api);
    if (status != KVC_OK)
        return status;
    return open_doors(api, socks);
}

void api_stop(struct api *api)
{
    struct session *s;

    if (api->stopping)
        return;
    api->stopping = true;
    verify_stop(api->verify);
    close_doors(api);
    list_for_each(s, &api->sessions, link)
        if (s->state == SESSION_OPEN)
            session_notice(s, WIRE_STOPPING, codec_empty(api->codec));
}

bool api_busy(const struct api *api)
{
    struct store_stats stats;

    store_stats(api->store, &stats);
    /* Nor while somebody is still to be told how it ended. */
    return !list_empty(&api->waiting) || stats.filling_slots > 0 || stats.open_loads > 0 ||
           store_next_wake(api->store) == 0;
}

bool api_verifies(const struct api *api)
{
    return verify_is_busy(api->verify);
}

void api_end_connections(struct api *api)
{
    struct session *s;

    verify_stop(api->verify);

    list_for_each(s, &api->sessions, link)
        if (s->connection != NULL)
            connection_end(s->connection);
}

const char *api_role_name(uint32_t role)
{
    static const char *const names[] = {[STORE_ROLE_WORKER] = "worker",
                                        [STORE_ROLE_READER] = "reader",
                                        [STORE_ROLE_SCHEDULER] = "scheduler",
                                        [STORE_ROLE_OPERATOR] = "operator"};

    return role < sizeof(names) / sizeof(names[0]) ? names[role] : NULL;
}

uint32_t api_count_sessions(const struct api *api, const char *tenant, uint32_t role)
{
    const struct session *s;
    uint32_t n = 0;

    list_for_each(s, &api->sessions, link)
        n += s->state == SESSION_OPEN && s->role == role && strcmp(s->grant.tenant, tenant) == 0;
    return n;
}

uint32_t api_connections(const struct api *api)
{
    return api->n_connections;
}

uint32_t api_pieces(const struct api *api)
{
    return api->n_pieces;
}

static void close_cb(uv_handle_t *handle)
{
    mem_free(container_of((uv_timer_t *)handle, struct api, room_timer));
}

void api_destroy(struct api *api)
{
    struct session *s;

    if (api == NULL)
        return;
    assert(api->n_connections == 0 && (api->n_pieces == 0 || api_hangs(api)));
    close_doors(api);
    wake_close(api->wake);
    silence_close(api->silence);
    verify_close(api->verify);
    watches_close(api->watches);
    while ((s = list_first(&api->sessions, struct session, link)) != NULL)
        session_free(s);
    gone_destroy(api->gone);
    loss_close(api->loss);
    gates_destroy(api->gates);
    for (uint32_t i = 0; i < DEVICE_GPUS_MAX; i++)
        errands_destroy(api->errands[i]);
    save_scratch_destroy(api);
    codec_destroy(api->codec);
    connection_hub_fini(&api->hub);
    uv_close((uv_handle_t *)&api->room_timer, close_cb);
}
