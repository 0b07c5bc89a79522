/* PING, STATS: what the daemon says of itself. */
#include "daemon/api/loss.h"
#include "daemon/api/session.h"

#include <sys/resource.h>

#include "daemon/base/clock.h"
#include "daemon/store/figures.h"

#define PAYLOAD_MAX (KVC_WIRE_BODY_MAX - 64u) /* the reply has some bytes more */

kvc_status inspect_ping(struct session *s, const struct request *request, struct refusal *why)
{
    struct msg_ping_reply reply = {
        .payload = request->ping.payload,
        .boot_epoch = s->api->config.boot_epoch,
    };

    if (reply.payload.len > PAYLOAD_MAX)
        return refuse(why, KVC_E_LIMIT, "larger than a reply may be", "payload");
    session_reply(s, WIRE_PING, request->seq, codec_ping(s->api->codec, &reply));
    return KVC_OK;
}

static uint64_t micros(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000u + (uint64_t)time.tv_usec;
}

static void fill_processor_time(struct msg_stats_reply *reply)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) < 0)
        return;
    reply->cpu_system_us = micros(usage.ru_stime);
    reply->cpu_us = micros(usage.ru_utime) + reply->cpu_system_us;
}

/* Operators only look; who watches the figures is not one of them. */
static uint64_t count_sessions(const struct api *api)
{
    const struct session *s;
    uint64_t n = 0;

    list_for_each(s, &api->sessions, link)
        n += s->state != SESSION_NEW && s->role != STORE_ROLE_OPERATOR;
    return n;
}

static struct msg_stats_tier tier_figures(const struct api *api, const struct store_stats *stats,
                                          enum tier_kind tier)
{
    return (struct msg_stats_tier){
        .bytes = stats->tier[tier].bytes,
        .used_bytes = stats->tier[tier].used_bytes,
        .slots = stats->tier[tier].slots,
        .used_slots = stats->tier[tier].used_slots,
        .hits = stats->hits[tier],
        .evictions = stats->tier_evictions[tier],
        .bytes_saved = stats->bytes_saved[tier],
        .bytes_loaded = stats->bytes_loaded[tier],
        .populated_bytes = api->tiers[tier] != NULL ? tier_populated(api->tiers[tier]) : 0,
    };
}

static void fill_driver_figures(const struct api *api, struct msg_stats_reply *reply)
{
    const struct device *device = api->config.device;

    for (uint32_t i = 0; i < DEVICE_GPUS_MAX; i++) {
        const struct errands *errands = api->errands[i];
        uint64_t us;

        if (errands == NULL)
            continue;
        us = errands_since_us(errands);
        reply->driver_calls += errands_count(errands);
        reply->hanging_gpus += errands_hang(errands);
        if (us > reply->driver_call_us)
            reply->driver_call_us = us;
    }
    reply->lost_gpus = loss_count(api->loss);
    if (device->lending != NULL)
        reply->copy_thread_blocks = device->lending->thread_blocks(device->state, 0);
}

static uint64_t fetched_blocks(const struct api *api)
{
    struct peers_figures peers = {0};

    if (api->peers != NULL)
        peers_figures(api->peers, &peers);
    return peers.fetched_blocks;
}

/* Counters of the window of hits. */
enum { HITS_GPU = TIER_GPU, HITS_HOST = TIER_HOST, HITS_NONE = TIER_COUNT, HITS_PEER };

void inspect_note_hits(struct api *api)
{
    uint64_t totals[WINDOW_COUNTERS];

    store_count_hits(api->store, totals);
    totals[HITS_PEER] = fetched_blocks(api);
    window_note(&api->hits, clock_now_us(), totals);
}

static void fill_windows(const struct api *api, struct msg_hit_window windows[MSG_WINDOWS])
{
    static const uint32_t seconds[MSG_WINDOWS] = {60, 900};

    for (uint32_t i = 0; i < MSG_WINDOWS; i++) {
        uint64_t sums[WINDOW_COUNTERS];

        window_sum(&api->hits, clock_now_us(), seconds[i], sums);
        windows[i] = (struct msg_hit_window){.seconds = seconds[i],
                                             .gpu = sums[HITS_GPU],
                                             .host = sums[HITS_HOST],
                                             .peer = sums[HITS_PEER],
                                             .misses = sums[HITS_NONE]};
    }
}

void api_figures(const struct api *api, struct msg_stats_reply *ret)
{
    struct closer_stats closing;
    struct store_stats stats;

    closer_figures(api->hub.closer, &closing);
    store_stats(api->store, &stats);
    *ret = (struct msg_stats_reply){
        .version = KVC_BUILD_VERSION,
        .device = api->config.device->name,
        .boot_epoch = api->config.boot_epoch,
        .uptime_us = clock_now_us() - api->started_us,
        .tiers = {tier_figures(api, &stats, TIER_GPU), tier_figures(api, &stats, TIER_HOST)},
        .blocks = stats.blocks,
        .sessions = count_sessions(api),
        .leases = stats.leases,
        .open_loads = stats.open_loads,
        .filling_slots = stats.filling_slots,
        .quarantined_slots = stats.quarantined_slots,
        .misses = stats.misses,
        .evictions = stats.evictions,
        .demotions = stats.demotions,
        .promotions = stats.promotions,
        .failed_demotions = stats.failed_demotions,
        .oldest_op_us = stats.oldest_op_us,
        .saves = stats.saves,
        .aborted_saves = stats.aborted_saves,
        .published_blocks = stats.published_blocks,
        .skipped_blocks = stats.skipped_blocks,
        .stale_completions = stats.stale_completions,
        .admitted_at_once = stats.admitted_at_once,
        .admitted_blocks = stats.admitted_blocks,
        .checksum_failures = stats.checksum_failures,
        .bad_packets = api->hub.bad_packets,
        .refused_requests = api->refused_requests,
        .quarantine_oldest_us = stats.quarantine_oldest_us,
        .pinned_blocks = stats.pinned_blocks,
        .limited_lookups = stats.limited_lookups,
        .closing_fds = closing.waiting,
        .stuck_fds = closing.stuck,
        .left_open_fds = closing.left_open,
        .resized_extents = stats.resized_extents,
        .moved_extents = stats.moved_extents,
        .kept_extents = stats.kept_extents,
        .lost_extents = stats.lost_extents,
        .waiting_extents = stats.waiting_extents,
        .moving_blocks = stats.moving_blocks,
        .draining = api->draining,
        .hits_peer = fetched_blocks(api),
    };
    fill_windows(api, ret->windows);
    fill_processor_time(ret);
    fill_driver_figures(api, ret);
}

kvc_status inspect_stats(struct session *s, const struct request *request, struct refusal *why)
{
    struct msg_stats_reply reply;

    (void)why;
    api_figures(s->api, &reply);
    session_reply(s, WIRE_STATS, request->seq, codec_stats(s->api->codec, &reply));
    return KVC_OK;
}
