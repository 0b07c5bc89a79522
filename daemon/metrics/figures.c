#include "daemon/metrics/figures.h"

#include <stdio.h>

#include "daemon/conn/message.h"
#include "daemon/store/figures.h"

#define LABELS_MAX 512u

static const char *const tier_labels[TIER_COUNT] = {"tier=\"gpu\"", "tier=\"host\""};

static void write_tier(struct text *t, const char *name, const char *type, const char *help,
                       const uint64_t value[TIER_COUNT])
{
    text_metric(t, name, type, help);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        text_count(t, name, tier_labels[tier], value[tier]);
}

static void write_tiers(const struct msg_stats_reply *stats, struct text *t)
{
    const struct msg_stats_tier *gpu = &stats->tiers[TIER_GPU], *host = &stats->tiers[TIER_HOST];

    write_tier(t, "kvcached_tier_bytes", "gauge", "Memory of a tier.",
               (uint64_t[]){gpu->bytes, host->bytes});
    write_tier(t, "kvcached_tier_populated_bytes", "gauge", "Of it, whose pages have been found.",
               (uint64_t[]){gpu->populated_bytes, host->populated_bytes});
    write_tier(t, "kvcached_tier_used_bytes", "gauge", "Of it, in slots that are in use.",
               (uint64_t[]){gpu->used_bytes, host->used_bytes});
    write_tier(t, "kvcached_tier_slots", "gauge", "Slots of a tier.",
               (uint64_t[]){gpu->slots, host->slots});
    write_tier(t, "kvcached_tier_used_slots", "gauge", "Of them, in use.",
               (uint64_t[]){gpu->used_slots, host->used_slots});
}

static void write_lookups(const struct msg_stats_reply *stats, struct text *t)
{
    write_tier(t, "kvcached_hits_total", "counter",
               "Blocks that lookups found, by the tier that they were in.",
               (uint64_t[]){stats->tiers[TIER_GPU].hits, stats->tiers[TIER_HOST].hits});
    text_count(t, "kvcached_hits_total", "tier=\"peer\"", stats->hits_peer);
    text_counter(t, "kvcached_misses_total", stats->misses, "Blocks that lookups did not find.");
    text_counter(t, "kvcached_limited_lookups_total", stats->limited_lookups,
                 "Lookups that a quota of leases has cut.");
}

static void label_namespace(const struct table *table, uint32_t index, char *ret, size_t size)
{
    const struct table_namespace *ns = table_namespace(table, index);
    char digest[2 * KVC_NAMESPACE_BYTES + 1], tenant[2 * KVC_NAME_MAX + 3];
    char name[2 * KVC_NAME_MAX + 3];

    for (size_t i = 0; i < KVC_NAMESPACE_BYTES; i++)
        snprintf(digest + 2 * i, 3, "%02x", ns->digest[i]);
    snprintf(ret, size, "tenant=\"%s\",namespace=\"%s\",name=\"%s\"",
             text_label(table_tenant(table, ns->tenant)->name, tenant, sizeof(tenant)), digest,
             text_label(ns->name, name, sizeof(name)));
}

enum of_namespace { NAMESPACE_HITS, NAMESPACE_USED };

static void write_namespace(struct text *t, const char *name, const char *labels,
                            const uint64_t values[TIER_COUNT])
{
    char all[LABELS_MAX + 32];

    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        snprintf(all, sizeof(all), "%s,%s", labels, tier_labels[tier]);
        text_count(t, name, all, values[tier]);
    }
}

/*
 * The number of samples is bounded, whatever workers register. A namespace keeps its row, so that
 * it never comes to the others or from them, and what they count only grows.
 */
static void write_namespaces(const struct store *store, enum of_namespace what, const char *name,
                             const uint64_t gone[TIER_COUNT], struct text *t)
{
    const struct table *table = store_table(store);
    uint64_t others[TIER_COUNT] = {gone[TIER_GPU], gone[TIER_HOST]};
    uint32_t i;

    for (i = 0; i < TABLE_NAMESPACES && table_namespace(table, i)->used != ROW_NEVER; i++) {
        struct store_namespace_usage usage;
        const uint64_t *values = what == NAMESPACE_HITS ? usage.hits : usage.used;
        char labels[LABELS_MAX];

        if (table_namespace(table, i)->used != ROW_USED)
            continue;
        store_namespace_usage(store, i, &usage);
        if (i >= STORE_NAMED_NAMESPACES) {
            for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
                others[tier] += values[tier];
            continue;
        }
        label_namespace(table, i, labels, sizeof(labels));
        write_namespace(t, name, labels, values);
    }
    if (i > STORE_NAMED_NAMESPACES)
        write_namespace(t, name, "tenant=\"\",namespace=\"other\",name=\"\"", others);
}

static void write_evictions(const struct store_stats *stats, struct text *t)
{
    const char *const name = "kvcached_evictions_total";
    char labels[64];

    text_metric(t, name, "counter",
                "Slots taken from blocks: to make room, of copies that another tier has too, "
                "or with a block that they depend on.");
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        const uint64_t clean = stats->clean_evictions[tier];
        const uint64_t dependent = stats->dependent_evictions[tier];
        const struct {
            const char *reason;
            uint64_t n;
        } rows[] = {{"room", stats->tier_evictions[tier] - clean - dependent},
                    {"copied", clean},
                    {"dependent", dependent}};

        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            snprintf(labels, sizeof(labels), "%s,reason=\"%s\"", tier_labels[tier], rows[i].reason);
            text_count(t, name, labels, rows[i].n);
        }
    }
    text_counter(t, "kvcached_evicted_blocks_total", stats->evictions,
                 "Blocks that left the cache to make room.");
}

/* Each tier has a row to and from each of the others. */
static void write_paths(const struct store_stats *stats, struct text *t)
{
    const char *const name = "kvcached_path_bytes_total";
    const struct {
        const char *path;
        uint64_t bytes;
    } rows[] = {
        {"worker_to_gpu", stats->bytes_saved[TIER_GPU] - stats->own_bytes_saved[TIER_GPU]},
        {"worker_to_host", stats->bytes_saved[TIER_HOST] - stats->own_bytes_saved[TIER_HOST]},
        {"gpu_to_worker", stats->bytes_loaded[TIER_GPU] - stats->own_bytes_loaded[TIER_GPU]},
        {"host_to_worker", stats->bytes_loaded[TIER_HOST] - stats->own_bytes_loaded[TIER_HOST]},
        {"gpu_to_host", stats->bytes_moved[TIER_HOST]},
        {"host_to_gpu", stats->bytes_moved[TIER_GPU]},
        {"peer_to_gpu", stats->own_bytes_saved[TIER_GPU]},
        {"peer_to_host", stats->own_bytes_saved[TIER_HOST]},
        {"gpu_to_peer", stats->own_bytes_loaded[TIER_GPU]},
        {"host_to_peer", stats->own_bytes_loaded[TIER_HOST]},
    };
    char labels[32];

    text_metric(t, name, "counter", "Bytes of blocks that were copied, without padding, by path.");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(labels, sizeof(labels), "path=\"%s\"", rows[i].path);
        text_count(t, name, labels, rows[i].bytes);
    }
}

static void write_copies(const struct msg_stats_reply *stats, struct text *t)
{
    text_counter(t, "kvcached_saves_total", stats->saves, "Saves that had something to copy.");
    text_counter(t, "kvcached_aborted_saves_total", stats->aborted_saves,
                 "Saves that ended before they were proved.");
    text_counter(t, "kvcached_published_blocks_total", stats->published_blocks,
                 "Blocks that saves have made visible.");
    text_counter(t, "kvcached_skipped_blocks_total", stats->skipped_blocks,
                 "Blocks for which a save had no room, whatever became of them in another.");
    text_counter(t, "kvcached_admitted_blocks_total", stats->admitted_blocks,
                 "Blocks of saves that got a slot.");
    text_counter(t, "kvcached_admitted_at_once_blocks_total", stats->admitted_at_once,
                 "Of those, without waiting for a copy to the host tier.");
    text_counter(t, "kvcached_demotions_total", stats->demotions,
                 "Blocks copied from the GPU tier to the host tier.");
    text_counter(t, "kvcached_failed_demotions_total", stats->failed_demotions,
                 "Such copies that failed.");
    text_counter(t, "kvcached_promotions_total", stats->promotions,
                 "Blocks copied from the host tier to the GPU tier.");
    text_counter(t, "kvcached_checksum_failures_total", stats->checksum_failures,
                 "Blocks found damaged and dropped.");
    text_counter(t, "kvcached_stale_completions_total", stats->stale_completions,
                 "Proofs and reports of what had ended.");
}

/* Of tenants that have any: there are few, and roles too. */
static void write_sessions(const struct metrics_config *config, struct text *t)
{
    const char *const name = "kvcached_tenant_sessions";
    const struct table *table = store_table(config->store);

    text_metric(t, name, "gauge", "Connected sessions of a tenant, by what they said they are.");
    for (uint32_t i = 0; i < TABLE_TENANTS && table_tenant(table, i)->used != ROW_NEVER; i++) {
        const char *tenant = table_tenant(table, i)->name;
        char value[2 * KVC_NAME_MAX + 3], labels[LABELS_MAX];

        if (table_tenant(table, i)->used != ROW_USED)
            continue;
        for (uint32_t role = STORE_ROLE_WORKER; api_role_name(role) != NULL; role++) {
            const uint32_t n = api_count_sessions(config->api, tenant, role);

            if (n == 0)
                continue;
            snprintf(labels, sizeof(labels), "tenant=\"%s\",role=\"%s\"",
                     text_label(tenant, value, sizeof(value)), api_role_name(role));
            text_count(t, name, labels, n);
        }
    }
}

static void write_levels(const struct msg_stats_reply *stats, struct text *t)
{
    text_gauge(t, "kvcached_draining", stats->draining,
               "1 while an operator's drain is in force: nothing new begins.");
    text_gauge(t, "kvcached_blocks", stats->blocks, "Published blocks.");
    text_gauge(t, "kvcached_sessions", stats->sessions, "Connected workers.");
    text_gauge(t, "kvcached_leases", stats->leases, "Leases that are held.");
    text_gauge(t, "kvcached_open_loads", stats->open_loads, "Loads under way.");
    text_gauge(t, "kvcached_filling_slots", stats->filling_slots, "Slots that saves are filling.");
    text_gauge(t, "kvcached_pinned_blocks", stats->pinned_blocks, "Blocks that are pinned.");
    text_gauge(t, "kvcached_quarantined_slots", stats->quarantined_slots,
               "Slots of failed saves that wait for proof.");
    text_age(t, "kvcached_quarantine_oldest_seconds", stats->quarantine_oldest_us,
             "Age of the oldest of them.");
    text_gauge(t, "kvcached_lost_extents", stats->lost_extents, "Extents without memory.");
    text_gauge(t, "kvcached_waiting_extents", stats->waiting_extents,
               "Extents that workers are to unmap.");
    text_gauge(t, "kvcached_driver_calls", stats->driver_calls,
               "Calls of GPU drivers that have not come back, or wait for others.");
    text_age(t, "kvcached_driver_call_oldest_seconds", stats->driver_call_us,
             "For how long the oldest of them has been under way.");
    text_gauge(t, "kvcached_hanging_gpus", stats->hanging_gpus,
               "GPUs whose driver does not come back.");
    text_gauge(t, "kvcached_lost_gpus", stats->lost_gpus,
               "GPUs that have failed and are out of use until the daemon starts again.");
    text_gauge(t, "kvcached_closing_descriptors", stats->closing_fds,
               "Descriptors that wait to be closed.");
    text_gauge(t, "kvcached_stuck_descriptors", stats->stuck_fds,
               "Descriptors whose close does not come back.");
}

static void write_process(const struct msg_stats_reply *stats, struct text *t)
{
    char labels[LABELS_MAX], device[2 * KVC_NAME_MAX + 3];

    text_metric(t, "kvcached_build_info", "gauge", "Version and device; always 1.");
    snprintf(labels, sizeof(labels), "version=\"%s\",device=\"%s\"", stats->version,
             text_label(stats->device, device, sizeof(device)));
    text_count(t, "kvcached_build_info", labels, 1);
    text_age(t, "kvcached_uptime_seconds", stats->uptime_us, "Time since the start.");
    text_metric(t, "kvcached_cpu_seconds_total", "counter", "Processor time of the daemon.");
    text_seconds(t, "kvcached_cpu_seconds_total", "mode=\"user\"",
                 stats->cpu_us - stats->cpu_system_us);
    text_seconds(t, "kvcached_cpu_seconds_total", "mode=\"system\"", stats->cpu_system_us);
    text_counter(t, "kvcached_bad_packets_total", stats->bad_packets,
                 "Packets that have ended a connection.");
    text_counter(t, "kvcached_refused_requests_total", stats->refused_requests,
                 "Refused requests of kinds that get no reply.");
}

static void write_peers(const struct peers_figures *peers, struct text *t)
{
    text_counter(t, "kvcached_fetches_total", peers->fetches, "Lookups that peers were asked for.");
    text_counter(t, "kvcached_missed_fetches_total", peers->missed_fetches,
                 "Of them, those for which nothing came in time.");
    text_counter(t, "kvcached_fetched_blocks_total", peers->fetched_blocks,
                 "Blocks that came from peers.");
    text_counter(t, "kvcached_served_blocks_total", peers->served_blocks,
                 "Blocks that peers were given.");
    text_counter(t, "kvcached_fetched_wire_bytes_total", peers->wire_bytes,
                 "Bytes that peers have sent of blocks, with padding.");
    text_metric(
        t, "kvcached_fetched_batches_total", "counter",
        "Batches that have come from peers, by the view that they took: exact ones are full.");
    text_count(t, "kvcached_fetched_batches_total", "view=\"full\"", peers->batches[0]);
    text_count(t, "kvcached_fetched_batches_total", "view=\"small\"", peers->batches[1]);
    text_counter(t, "kvcached_peer_registrations_total", peers->registrations,
                 "Registrations of memory with the transport of peers.");
    text_counter(t, "kvcached_dropped_peer_messages_total", peers->stale,
                 "What came from peers too late, twice, or for nobody.");
    text_counter(t, "kvcached_slow_peer_lanes_total", peers->slow_lanes,
                 "Links to peers that were made again over slower transports than before.");
    text_counter(t, "kvcached_failed_peer_links_total", peers->failed_links,
                 "Links to peers that have ended by a failure.");
}

static void write_durations(const struct metrics_config *config, const struct peers_figures *peers,
                            const struct histogram *lag, struct text *t)
{
    const struct store_durations *whole = store_durations(config->store);

    text_histogram(t, "kvcached_lookup_duration_seconds",
                   api_latency(config->api, API_LATENCY_LOOKUP), "Time to handle a lookup.");
    text_histogram(t, "kvcached_save_duration_seconds", &whole->saves,
                   "From the request of a save until all of it is proved and published.");
    text_histogram(t, "kvcached_load_duration_seconds", &whole->loads,
                   "From the request of a load until it is proved, its copies included.");
    text_histogram(t, "kvcached_demote_duration_seconds", &whole->demotions,
                   "A block's copy from the GPU tier to the host tier, its wait included.");
    text_histogram(t, "kvcached_promote_duration_seconds", &whole->promotions,
                   "A block's copy from the host tier to the GPU tier, its wait included.");
    text_histogram(t, "kvcached_fetch_duration_seconds", &peers->durations,
                   "From a lookup that misses until what peers have of it is here, or is late.");
    text_histogram(t, "kvcached_save_request_duration_seconds",
                   api_latency(config->api, API_LATENCY_SAVE),
                   "Time to handle the request of a save, without its copies.");
    text_histogram(t, "kvcached_load_request_duration_seconds",
                   api_latency(config->api, API_LATENCY_LOAD),
                   "Time to handle the request of a load, without its copies.");
    text_histogram(t, "kvcached_event_loop_lag_seconds", lag,
                   "How late the event loop came to a timer, once a second.");
}

void figures_write(const struct metrics_config *config, const struct self *self,
                   const struct histogram *lag, struct text *t)
{
    struct msg_stats_reply stats;
    struct store_stats of_store;
    struct peers_figures peers = {0};

    if (config->peers != NULL)
        peers_figures(config->peers, &peers);
    api_figures(config->api, &stats);
    store_stats(config->store, &of_store);
    write_process(&stats, t);
    self_write(self, stats.cpu_us, t);
    write_tiers(&stats, t);
    write_lookups(&stats, t);
    text_metric(t, "kvcached_namespace_hits_total", "counter",
                "Blocks that lookups found, by namespace.");
    write_namespaces(config->store, NAMESPACE_HITS, "kvcached_namespace_hits_total",
                     of_store.forgotten_hits, t);
    text_metric(t, "kvcached_namespace_used_bytes", "gauge", "Slots in use, by namespace.");
    write_namespaces(config->store, NAMESPACE_USED, "kvcached_namespace_used_bytes",
                     (uint64_t[TIER_COUNT]){0}, t);
    write_evictions(&of_store, t);
    write_copies(&stats, t);
    write_paths(&of_store, t);
    write_peers(&peers, t);
    write_levels(&stats, t);
    write_sessions(config, t);
    text_age(t, "kvcached_oldest_operation_seconds", stats.oldest_op_us,
             "Age of the oldest copy by a worker that is not proved.");
    text_metric(t, "kvcached_oldest_copy_seconds", "gauge",
                "For how long the oldest copy by the daemon has been under way.");
    text_seconds(t, "kvcached_oldest_copy_seconds", "of=\"workers\"",
                 copier_oldest_us(config->copier));
    text_seconds(t, "kvcached_oldest_copy_seconds", "of=\"tiers\"", mover_oldest_us(config->mover));
    write_durations(config, &peers, lag, t);
}
