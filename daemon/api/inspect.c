/* PING, STATS, LIST: what the daemon says of itself. */
#include "daemon/api/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"

#define PAYLOAD_MAX (KVC_WIRE_BODY_MAX - 64u) /* the reply has some bytes more */
#define ROWS_MAX    64u
#define VALUE_BYTES (KVC_NAME_MAX + 1u)

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

static uint64_t cpu_us(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) < 0)
        return 0;
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
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

static struct msg_stats_tier tier_figures(const struct store_stats *stats, enum tier_kind tier)
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
    };
}

kvc_status inspect_stats(struct session *s, const struct request *request, struct refusal *why)
{
    const struct api *api = s->api;
    struct store_stats stats;
    struct msg_stats_reply reply;

    (void)why;
    store_stats(api->store, &stats);
    reply = (struct msg_stats_reply){
        .version = KVC_BUILD_VERSION,
        .device = api->config.device,
        .boot_epoch = api->config.boot_epoch,
        .uptime_us = clock_now_us() - api->started_us,
        .tiers = {tier_figures(&stats, TIER_GPU), tier_figures(&stats, TIER_HOST)},
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
        .cpu_us = cpu_us(),
        .quarantine_oldest_us = stats.quarantine_oldest_us,
    };
    session_reply(s, WIRE_STATS, request->seq, codec_stats(api->codec, &reply));
    return KVC_OK;
}

/* LIST "clients". */

enum column {
    SESSION,
    PID,
    UID,
    TENANT,
    ROLE,
    NAME,
    STATE,
    CONNECTED_MS,
    REQUESTS,
    QUEUED,
    COLUMNS
};

static const char *const column_names[COLUMNS] = {
    "session", "pid",   "uid",          "tenant",   "role",
    "name",    "state", "connected_ms", "requests", "queued_bytes",
};

static const char *const role_names[] = {"none", "worker", "reader", "scheduler", "operator"};

struct client_row {
    char text[COLUMNS][VALUE_BYTES];
};

static void fill_row(const struct session *s, struct client_row *row, struct msg_list_row *values)
{
    const uint64_t queued = s->connection != NULL ? connection_queued_bytes(s->connection) : 0;
    char(*t)[VALUE_BYTES] = row->text;

    snprintf(t[SESSION], VALUE_BYTES, "%" PRIu64, owner_id(s->owner));
    snprintf(t[PID], VALUE_BYTES, "%d", (int)process_pid(s->process));
    snprintf(t[UID], VALUE_BYTES, "%u", process_uid(s->process));
    snprintf(t[TENANT], VALUE_BYTES, "%s", s->tenant);
    snprintf(t[ROLE], VALUE_BYTES, "%s", role_names[s->role]);
    snprintf(t[NAME], VALUE_BYTES, "%s", s->name);
    snprintf(t[STATE], VALUE_BYTES, "%s", s->state == SESSION_OPEN ? "connected" : "ended");
    snprintf(t[CONNECTED_MS], VALUE_BYTES, "%" PRIu64, (clock_now_us() - s->connected_us) / 1000);
    snprintf(t[REQUESTS], VALUE_BYTES, "%" PRIu64, s->requests);
    snprintf(t[QUEUED], VALUE_BYTES, "%" PRIu64, queued);
    for (int i = 0; i < COLUMNS; i++)
        values->values[i] = t[i];
}

/* Root and the daemon's own user see everybody, others only who shares their tenant. */
static bool may_see(const struct session *asks, const struct session *other)
{
    return session_is_trusted(asks) || strcmp(asks->tenant, other->tenant) == 0;
}

/* The session that may be seen with the lowest id above `after`, or NULL. */
static const struct session *next_client(const struct session *asks, uint64_t after)
{
    const struct session *s, *best = NULL;

    list_for_each(s, &asks->api->sessions, link)
        if (s->state != SESSION_NEW && owner_id(s->owner) > after && may_see(asks, s) &&
            (best == NULL || owner_id(s->owner) < owner_id(best->owner)))
            best = s;
    return best;
}

kvc_status inspect_list(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_list *list = &request->list;
    uint32_t limit = list->limit == 0 || list->limit > ROWS_MAX ? ROWS_MAX : list->limit;
    struct msg_list_reply reply = {
        .columns = column_names, .n_columns = COLUMNS, .after = list->after};
    struct msg_list_row values[ROWS_MAX];
    struct client_row *rows;
    const struct session *next;

    if (strcmp(list->what, "config") == 0)
        return settings_list(s, request, why);
    if (strcmp(list->what, "clients") != 0)
        return refuse(why, KVC_E_UNSUPPORTED, "only \"clients\" and \"config\" can be listed",
                      "what");
    rows = mem_array(limit, sizeof(*rows));
    if (rows == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    while ((next = next_client(s, reply.after)) != NULL && reply.n_rows < limit) {
        fill_row(next, &rows[reply.n_rows], &values[reply.n_rows]);
        reply.n_rows++;
        reply.after = owner_id(next->owner);
    }
    reply.rows = values;
    reply.more = next != NULL;
    session_reply(s, WIRE_LIST, request->seq, codec_list(s->api->codec, &reply));
    mem_free(rows);
    return KVC_OK;
}
