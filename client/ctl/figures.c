#include "client/ctl/figures.h"

#define FIELD(path, type, member, help)                                                            \
    {                                                                                              \
        path, type, offsetof(struct admin_stats, member), help                                     \
    }
#define COUNT(member, help) FIELD(#member, FIELD_UINT64, member, help)
#define TIER(name, i)                                                                              \
    FIELD("tiers." name ".bytes", FIELD_UINT64, tiers[i].bytes, "of the tier"),                    \
        FIELD("tiers." name ".used_bytes", FIELD_UINT64, tiers[i].used_bytes, "of used slots"),    \
        FIELD("tiers." name ".slots", FIELD_UINT64, tiers[i].slots,                                \
              "of extents that have a slot size"),                                                 \
        FIELD("tiers." name ".used_slots", FIELD_UINT64, tiers[i].used_slots, "of those"),         \
        FIELD("tiers." name ".evictions", FIELD_UINT64, tiers[i].evictions,                        \
              "slots that were taken for other blocks"),                                           \
        FIELD("tiers." name ".bytes_saved", FIELD_UINT64, tiers[i].bytes_saved,                    \
              "by saves into it"),                                                                 \
        FIELD("tiers." name ".bytes_loaded", FIELD_UINT64, tiers[i].bytes_loaded,                  \
              "by loads from it"),                                                                 \
        FIELD("tiers." name ".populated_bytes", FIELD_UINT64, tiers[i].populated_bytes,            \
              "whose memory has been found")

static const struct field fields[] = {
    FIELD("version", FIELD_TEXT, version, "of the daemon"),
    COUNT(boot_epoch, "another one at each start, and larger"),
    FIELD("uptime_s", FIELD_SECONDS, uptime_us, "since its start"),
    FIELD("device", FIELD_TEXT, device, "host or cuda"),
    FIELD("draining", FIELD_BOOL, draining, "whether kvcachectl drain is in force"),
    TIER("gpu", 0),
    TIER("host", 1),
    COUNT(blocks, "published"),
    COUNT(sessions, "connected, without operators"),
    COUNT(leases, "held"),
    COUNT(open_loads, "under way"),
    COUNT(filling_slots, "of saves under way"),
    COUNT(moving_blocks, "being copied between tiers"),
    COUNT(quarantined_slots, "that wait for proof that nobody writes to them"),
    COUNT(pinned_blocks, "kept by kvcachectl pin"),
    COUNT(driver_calls, "of GPUs' drivers, under way or waiting"),
    COUNT(driver_call_us, "age of the oldest of them"),
    COUNT(hanging_gpus, "whose driver does not come back"),
    COUNT(lost_gpus, "that have failed, out of use until kvcached starts again"),
    COUNT(copy_thread_blocks, "of a copy by the daemon at most"),
    FIELD("hits.gpu", FIELD_UINT64, tiers[0].hits, "blocks that lookups found there"),
    FIELD("hits.host", FIELD_UINT64, tiers[1].hits, "blocks that lookups found there"),
    FIELD("hits.peer", FIELD_UINT64, hits_peer, "blocks that came from peers"),
    COUNT(misses, "blocks that lookups did not find"),
    {"windows[].seconds", FIELD_UINT32, FIELD_APART, "the length of a window: 60 and 900"},
    {"windows[].gpu", FIELD_UINT64, FIELD_APART, "hits.gpu within it"},
    {"windows[].host", FIELD_UINT64, FIELD_APART, "hits.host within it"},
    {"windows[].peer", FIELD_UINT64, FIELD_APART, "hits.peer within it"},
    {"windows[].misses", FIELD_UINT64, FIELD_APART, "misses within it"},
    COUNT(evictions, "blocks that were dropped for others"),
    COUNT(demotions, "blocks copied to the host tier"),
    COUNT(failed_demotions, "copies to it that failed"),
    COUNT(promotions, "blocks copied to the gpu tier"),
    FIELD("oldest_op_ms", FIELD_MS, oldest_op_us, "age of the oldest save or load under way"),
    FIELD("quarantine_oldest_ms", FIELD_MS, quarantine_oldest_us, "age of the oldest in it"),
    COUNT(resized_extents, "that changed their slot size"),
    COUNT(moved_extents, "that changed their tenant"),
    COUNT(kept_extents, "that were to change and had to stay"),
    COUNT(lost_extents, "without memory"),
    COUNT(waiting_extents, "that sessions have yet to unmap"),
    COUNT(limited_lookups, "that a quota of leases has cut"),
    COUNT(saves, "requests"),
    COUNT(aborted_saves, "that failed"),
    COUNT(published_blocks, "of saves"),
    COUNT(admitted_blocks, "that got a slot"),
    COUNT(admitted_at_once, "of them without waiting"),
    COUNT(skipped_blocks, "that got none"),
    COUNT(checksum_failures, "blocks that did not match and were dropped"),
    COUNT(stale_completions, "proofs and releases that changed nothing"),
    COUNT(bad_packets, "each of which ended a connection"),
    COUNT(refused_requests, "with an error"),
    COUNT(closing_fds, "of clients, waiting to be closed"),
    COUNT(stuck_fds, "whose close does not end"),
    COUNT(left_open_fds, "because too many waited"),
    FIELD("cpu_s", FIELD_SECONDS, cpu_us, "processor time of the daemon"),
    {"quarantine", FIELD_ROWS, FIELD_APART, "quarantine"},
    {"namespaces", FIELD_ROWS, FIELD_APART, "namespaces"},
    {"extents", FIELD_ROWS, FIELD_APART, "extents"},
    {"peers", FIELD_ROWS, FIELD_APART, "peers"},
};

const struct shape figures_shape = {"an object", SHAPE_FIELDS(fields)};

void figures_put(json_t *root, const struct admin_stats *stats)
{
    json_t *windows = json_array();

    field_put(root, &figures_shape, stats);
    for (uint32_t i = 0; i < stats->n_windows; i++) {
        const struct admin_window *w = &stats->windows[i];

        json_array_append_new(
            windows, json_pack("{s:I, s:I, s:I, s:I, s:I}", "seconds", (json_int_t)w->seconds,
                               "gpu", (json_int_t)w->gpu, "host", (json_int_t)w->host, "peer",
                               (json_int_t)w->peer, "misses", (json_int_t)w->misses));
    }
    json_object_set_new(root, "windows", windows);
}
