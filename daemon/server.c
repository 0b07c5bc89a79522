#include "daemon/server.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <uv.h>

#include "daemon/api/api.h"
#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/guard.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/config_shares.h"
#include "daemon/conn/watch.h"
#include "daemon/metrics/metrics.h"
#include "daemon/peer/peer.h"
#include "daemon/service.h"
#include "daemon/settings.h"
#include "daemon/setup.h"
#include "daemon/sockets.h"
#include "daemon/tier/copier.h"
#include "daemon/tier/mover.h"
#include "daemon/tier/populate.h"
#include "daemon/tier/renew.h"
#include "daemon/tune.h"

/* How often a daemon that stops looks whether it may. */
#define DRAIN_LOOK_MS 5

struct server {
    const struct config *config;
    struct settings settings;
    struct device device;
    uv_loop_t loop;
    uv_signal_t terminate, interrupt, hangup;
    uv_timer_t drain;
    uv_timer_t settle_log;
    uint64_t drain_until_us;
    bool draining;
    struct service *service;
    struct sockets sockets;
    struct tier *tiers[TIER_COUNT];
    struct mover *mover;
    struct copier *copier;
    struct renewer *renewer;
    struct store_share shares[CONFIG_SHARES_MAX];
    struct populate *populate; /* NULL when it is done */
    struct api *api;
    struct store *store;
    struct metrics *metrics; /* NULL: served nowhere */
    struct peers *peers;     /* NULL: no peer was named, and none may ask */
};

static int cannot(const char *what, kvc_status status)
{
    log_error("main", "cannot start: %s: %s", what, kvc_status_text(status));
    return -1;
}

/*
 * Without the option, a GPU that is there is used. The driver starts threads, which must not be the
 * ones to get a signal.
 */
static int choose_device(struct server *s)
{
    const struct device_cuda_choice choice = {
        .gpus = s->config->gpus,
        .memory = (int)s->config->gpu_memory,
    };
    char why[DEVICE_WHY_MAX];
    kvc_status status;

    s->device = device_all_host;
    if (s->config->device == CONFIG_DEVICE_HOST)
        return 0;
    setup_mask_signals(SIG_BLOCK);
    status = device_cuda_open(&s->device, &choice, why);
    setup_mask_signals(SIG_UNBLOCK);
    if (status == KVC_OK)
        return 0;
    if (s->config->device == CONFIG_DEVICE_CUDA) {
        log_error("main", "cannot start: device cuda: %s", why);
        return -1;
    }
    if (status == KVC_E_NO_DEVICE)
        log_info("main", "device host, since %s", why);
    else
        log_warn("main", "device host, since %s", why);
    return 0;
}

static int open_sockets(struct server *s)
{
    char why[CONFIG_WHY_MAX];
    kvc_status status = KVC_E_INVALID;

    if (config_access_parse(s->config->sockets, s->config->allow, &s->settings.access, why))
        status = sockets_open(&s->sockets, &s->settings.access, (mode_t)s->config->socket_mode,
                              s->service, why);
    if (status != KVC_OK)
        log_error("main", "cannot start: %s", why);
    return status == KVC_OK ? 0 : -1;
}

/* The host device stands for one GPU. */
static uint64_t gpu_budget(const struct server *s)
{
    const uint64_t n = s->device.n_gpus > 0 ? s->device.n_gpus : 1;
    uint64_t bytes;

    return __builtin_mul_overflow(s->config->gpu_bytes, n, &bytes) ? UINT64_MAX : bytes;
}

static int open_tiers(struct server *s, const uint64_t budget[TIER_COUNT])
{
    kvc_status status;

    for (int t = 0; t < TIER_COUNT; t++) {
        struct table_tier geometry = {0};

        table_tier_geometry(budget[t], &geometry);
        status = tier_create((enum tier_kind)t, &s->device, geometry.extent_bytes, geometry.extents,
                             &s->tiers[t]);
        if (status != KVC_OK)
            return cannot(t == TIER_GPU ? "memory of the gpu tier" : "memory of the host tier",
                          status);
    }
    status = mover_create(&s->loop, s->tiers, &s->mover);
    if (status != KVC_OK)
        return cannot("the mover", status);
    status = copier_create(&s->loop, s->tiers, &s->device, &s->copier);
    if (status != KVC_OK)
        return cannot("the copier", status);
    status = renewer_create(&s->loop, s->tiers, &s->renewer);
    return status == KVC_OK ? 0 : cannot("memory of extents", status);
}

static void tell_ready(struct server *s)
{
    char gpu[VALUE_TEXT_MAX], host[VALUE_TEXT_MAX], status[SERVICE_STATUS_MAX];

    snprintf(status, sizeof(status), "serving device=%s gpu_bytes=%s host_bytes=%s", s->device.name,
             value_format(VALUE_SIZE, tier_bytes(s->tiers[TIER_GPU]), NULL, gpu),
             value_format(VALUE_SIZE, tier_bytes(s->tiers[TIER_HOST]), NULL, host));
    service_ready(s->service, status);
}

static void reload_cb(uv_signal_t *handle, int number)
{
    struct server *s = handle->data;

    (void)number;
    if (s->draining)
        return;
    service_reloading(s->service);
    settings_reload(&s->settings);
    tell_ready(s);
}

/* Only a daemon that is to have peers loads what they need. */
static int open_peers(struct server *s, uint64_t boot_epoch)
{
    struct peers_config config = tune_peers(s->config);
    char why[CONFIG_WHY_MAX];
    kvc_status status;

    if (!tune_has_peers(s->config))
        return 0;
    config.loop = &s->loop;
    config.store = s->store;
    config.tiers = s->tiers;
    config.device = &s->device;
    config.boot_epoch = boot_epoch;
    /* UCX starts threads, which must not be the ones to get a signal. */
    setup_mask_signals(SIG_BLOCK);
    status = peers_create(&config, why, sizeof(why), &s->peers);
    setup_mask_signals(SIG_UNBLOCK);
    if (status == KVC_OK) {
        api_set_peers(s->api, s->peers);
        return 0;
    }
    log_error("main", "cannot start: %s", why);
    return -1;
}

static int open_store(struct server *s)
{
    char why[CONFIG_WHY_MAX];
    const uint64_t boot_epoch = setup_boot_epoch();
    struct api_config api_config = {
        .loop = &s->loop,
        .boot_epoch = boot_epoch,
        .device = &s->device,
        .lease_ms_max = KVC_LEASE_MS_MAX,
        .settings = settings_of(&s->settings),
    };
    struct store_config config = {
        .budget = {gpu_budget(s), s->config->host_bytes},
        .boot_epoch = boot_epoch,
        .tenant_share = UINT32_MAX,
        .shares = s->shares,
        .lease_ms_max = KVC_LEASE_MS_MAX,
        .tuning = tune_store(s->config),
        .mover_ops = &mover_ops,
        .renew_ops = &renew_ops,
    };
    kvc_status status;

    if (!config_shares(s->config->tenant_shares, s->shares, &config.n_shares, why))
        return cannot(why, KVC_E_INVALID);
    if (open_tiers(s, config.budget) < 0)
        return -1;
    tune_copies(s->config, &s->device);
    config.mover = s->mover;
    config.renewer = s->renewer;
    api_config.copier = s->copier;
    status = api_create(&api_config, &s->api);
    if (status != KVC_OK)
        return cannot("requests", status);
    s->settings.api = s->api;
    config.events = api_store_events(s->api);
    status = store_create(&config, &s->store);
    s->settings.store = s->store;
    if (status == KVC_OK)
        status = tune_quotas(s->config, s->store);
    return status == KVC_OK ? open_peers(s, boot_epoch) : cannot("the store", status);
}

/* A worker that touches memory which is not there would die of it. */
static void lose_unpopulated(struct server *s, kvc_status status)
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        uint32_t n = tier_extents(s->tiers[t]), first = n;

        if (n > 0)
            first = (uint32_t)(tier_populated(s->tiers[t]) / tier_extent_bytes(s->tiers[t]));
        if (first < n)
            log_warn("main",
                     "no memory for a part of a tier tier=%s extents=%u of=%u reason=\"%s\"",
                     tier_name(t), n - first, n, kvc_status_text(status));
        for (uint32_t i = first; i < n; i++)
            store_lose_extent(s->store, t, i);
    }
}

static void populate_done(void *arg, kvc_status status)
{
    struct server *s = arg;

    s->populate = NULL;
    if (status == KVC_OK)
        log_info("main", "memory is populated");
    else if (status != KVC_E_CANCELLED)
        lose_unpopulated(s, status);
}

static void drain_cb(uv_timer_t *timer)
{
    struct server *s = container_of(timer, struct server, drain);

    if (!api_busy(s->api) || clock_now_us() >= s->drain_until_us)
        uv_stop(&s->loop);
}

static void signal_cb(uv_signal_t *handle, int number)
{
    struct server *s = handle->data;

    if (s->draining) {
        uv_stop(&s->loop);
        return;
    }
    log_info("main", "stopping signal=%d", number);
    s->draining = true;
    service_stopping(s->service);
    s->drain_until_us = clock_now_us() + s->config->drain_ms * CLOCK_MS_US;
    api_stop(s->api);
    sockets_hide(&s->sockets);
    uv_timer_start(&s->drain, drain_cb, 0, DRAIN_LOOK_MS);
}

static void settle_log_cb(uv_timer_t *timer)
{
    (void)timer;
    log_settle(false);
}

static int open_loop(struct server *s)
{
    if (fault_fires("server.loop") || uv_loop_init(&s->loop) < 0)
        return cannot("the event loop", KVC_E_SYSTEM);
    uv_timer_init(&s->loop, &s->drain);
    uv_timer_init(&s->loop, &s->settle_log);
    uv_signal_init(&s->loop, &s->terminate);
    uv_signal_init(&s->loop, &s->interrupt);
    uv_signal_init(&s->loop, &s->hangup);
    s->terminate.data = s->interrupt.data = s->hangup.data = s;
    return 0;
}

static kvc_status serve_doors(struct server *s)
{
    int socks[ACCESS_DOORS_MAX];

    for (uint32_t i = 0; i < s->sockets.n; i++)
        socks[i] = endpoint_socket(s->sockets.endpoints[i]);
    api_set_access(s->api, &s->settings.access.access);
    return api_serve(s->api, s->store, s->tiers, socks);
}

static int serve(struct server *s)
{
    kvc_status status;

    if (uv_signal_start(&s->terminate, signal_cb, SIGTERM) < 0 ||
        uv_signal_start(&s->interrupt, signal_cb, SIGINT) < 0 ||
        uv_signal_start(&s->hangup, reload_cb, SIGHUP) < 0)
        return cannot("signals", KVC_E_SYSTEM);
    uv_timer_start(&s->settle_log, settle_log_cb, LOG_WINDOW_US / CLOCK_MS_US,
                   LOG_WINDOW_US / CLOCK_MS_US);
    if (watch_loop(&s->loop) != KVC_OK)
        return cannot("the event loop's own descriptors", KVC_E_NO_MEMORY);
    /* The first work starts the pool's threads, which must not be the ones to get a signal. */
    setup_mask_signals(SIG_BLOCK);
    status = populate_start(&s->loop, s->tiers, TIER_COUNT, populate_done, s, &s->populate);
    if (status != KVC_OK) {
        cannot("populating memory", status);
        goto unblock;
    }
    /* The last that can fail: who is let in is served. */
    status = serve_doors(s);
    if (status != KVC_OK)
        cannot("listening", status);
unblock:
    setup_mask_signals(SIG_UNBLOCK);
    return status == KVC_OK ? 0 : -1;
}

/* What does not come back, for the watchdog: the driver's calls, or copies. */
static const char *stuck(void *arg)
{
    const struct server *s = arg;

    if (api_hangs(s->api))
        return "calls of the driver";
    if (copier_hangs(s->copier))
        return "copies for workers";
    return mover_hangs(s->mover) ? "copies between tiers" : NULL;
}

/* Nobody is served worse without it. */
static void open_metrics(struct server *s)
{
    const struct metrics_config config = {
        .loop = &s->loop,
        .address = s->config->metrics,
        .api = s->api,
        .store = s->store,
        .copier = s->copier,
        .mover = s->mover,
        .peers = s->peers,
    };

    s->metrics = metrics_open(&config);
}

/* What the loop still has to bring, but for what a hanging driver never will. */
static bool is_owed(const struct server *s)
{
    if (s->populate != NULL || (s->mover != NULL && mover_count(s->mover) > 0) ||
        (s->renewer != NULL && renewer_count(s->renewer) > 0) ||
        (s->peers != NULL && peers_count(s->peers) > 0) ||
        (s->api != NULL && (api_connections(s->api) > 0 || api_verifies(s->api))))
        return true;
    if (s->api != NULL && (api_pieces(s->api) > 0 || api_errands(s->api) > 0) && !api_hangs(s->api))
        return true;
    return s->copier != NULL && copier_count(s->copier) > 0 && !copier_hangs(s->copier);
}

/* Whatever calls into the store ends before the store does; then the handles, then the loop. */
static void close_parts(struct server *s)
{
    bool hangs;

    /* What it asks about goes. */
    service_unwatch(s->service);
    metrics_close(s->metrics);
    if (s->api != NULL)
        api_end_connections(s->api);
    if (s->populate != NULL)
        populate_stop(s->populate);
    if (s->mover != NULL)
        mover_stop(s->mover);
    if (s->renewer != NULL)
        renewer_stop(s->renewer);
    if (s->peers != NULL)
        peers_stop(s->peers);
    while (is_owed(s))
        uv_run(&s->loop, UV_RUN_ONCE);
    peers_destroy(s->peers);
    hangs = (s->api != NULL && api_hangs(s->api)) || (s->copier != NULL && copier_hangs(s->copier));
    if (s->store != NULL)
        store_destroy(s->store);
    api_destroy(s->api);
    mover_destroy(s->mover);
    copier_destroy(s->copier);
    renewer_destroy(s->renewer);
    /* A second signal must not cut the last steps short, when the loop does not catch it. */
    setup_mask_signals(SIG_BLOCK);
    uv_close((uv_handle_t *)&s->terminate, NULL);
    uv_close((uv_handle_t *)&s->interrupt, NULL);
    uv_close((uv_handle_t *)&s->hangup, NULL);
    uv_close((uv_handle_t *)&s->drain, NULL);
    uv_close((uv_handle_t *)&s->settle_log, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    for (int t = 0; t < TIER_COUNT && !hangs; t++)
        tier_destroy(s->tiers[t]);
    if (!hangs) /* else the end of the process is the only thing that frees it */
        s->device.close(&s->device);
    sockets_close(&s->sockets);
    if (uv_loop_close(&s->loop) != 0)
        assert(!"a handle is left open");
    uv_library_shutdown();
}

int server_run(struct config *config, const struct config_source *source, uint64_t started_us)
{
    struct server s = {.config = config};
    char gpu[VALUE_TEXT_MAX], host[VALUE_TEXT_MAX];
    int rc = 1;

    s.settings = (struct settings){.config = config, .source = source, .device = &s.device};
    signal(SIGPIPE, SIG_IGN);
    if (guard_install() < 0)
        log_warn("main", "a worker can end this process: SIGBUS cannot be handled error=\"%m\"");
    setup_loop_slice();
    setup_pool();
    setup_descriptor_limit();
    if (service_open(&s.service) != KVC_OK) {
        cannot("the service manager", KVC_E_NO_MEMORY);
        return 1;
    }
    if (choose_device(&s) < 0)
        goto close_service;
    if (open_loop(&s) < 0) {
        s.device.close(&s.device);
        goto close_service;
    }
    if (open_sockets(&s) < 0 || open_store(&s) < 0 || serve(&s) < 0)
        goto close;
    open_metrics(&s);
    log_info("main",
             "ready version=%s socket=%s device=%s gpu_bytes=%s host_bytes=%s start_us=%llu",
             KVC_BUILD_VERSION, s.settings.access.sockets[0].path, s.device.name,
             value_format(VALUE_SIZE, tier_bytes(s.tiers[TIER_GPU]), NULL, gpu),
             value_format(VALUE_SIZE, tier_bytes(s.tiers[TIER_HOST]), NULL, host),
             (unsigned long long)(clock_now_us() - started_us));
    tell_ready(&s);
    service_watch(s.service, &s.loop, stuck, &s);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    log_info("main", "stopped");
    rc = 0;
close:
    close_parts(&s);
close_service:
    service_close(s.service);
    return rc;
}
