/* Bodies of statistics, lists and debugging. */
#include <stdio.h>
#include <string.h>

#include "client/admin.h"
#include "client/codec_bits.h"

/* The last fields that every daemon knows. */
#define FIRST_TIER_STATS 9u
#define FIRST_STATS      29u

static void get_tier(Kvcache__TierStats *message, struct admin_stats *stats)
{
    if (message->tier == KVCACHE__TIER__TIER_PEER)
        stats->hits_peer = message->hits;
    if ((unsigned)message->tier >= ADMIN_TIERS)
        return;
    codec_mark_unknown(&message->base, message->known, FIRST_TIER_STATS);
    stats->tiers[message->tier] = (struct admin_tier){
        .bytes = message->bytes,
        .used_bytes = message->used_bytes,
        .slots = message->slots,
        .used_slots = message->used_slots,
        .hits = message->hits,
        .evictions = message->evictions,
        .bytes_saved = message->bytes_saved,
        .bytes_loaded = message->bytes_loaded,
        .populated_bytes = message->populated_bytes,
    };
}

static void get_windows(const Kvcache__StatsReply *message, struct admin_stats *stats)
{
    for (size_t i = 0; i < message->n_windows && i < ADMIN_WINDOWS; i++) {
        const Kvcache__HitWindow *from = message->windows[i];

        stats->windows[stats->n_windows++] = (struct admin_window){
            .seconds = from->seconds,
            .gpu = from->gpu,
            .host = from->host,
            .peer = from->peer,
            .misses = from->misses,
        };
    }
}

static void get_figures(const Kvcache__StatsReply *message, struct admin_stats *stats)
{
    stats->boot_epoch = message->boot_epoch;
    stats->uptime_us = message->uptime_us;
    stats->blocks = message->blocks;
    stats->sessions = message->sessions;
    stats->leases = message->leases;
    stats->open_loads = message->open_loads;
    stats->filling_slots = message->filling_slots;
    stats->quarantined_slots = message->quarantined_slots;
    stats->misses = message->misses;
    stats->evictions = message->evictions;
    stats->demotions = message->demotions;
    stats->failed_demotions = message->failed_demotions;
    stats->promotions = message->promotions;
    stats->oldest_op_us = message->oldest_op_us;
    stats->quarantine_oldest_us = message->quarantine_oldest_us;
    stats->cpu_us = message->cpu_us;
    stats->cpu_system_us = message->cpu_system_us;
    stats->saves = message->saves;
    stats->aborted_saves = message->aborted_saves;
    stats->published_blocks = message->published_blocks;
    stats->skipped_blocks = message->skipped_blocks;
    stats->stale_completions = message->stale_completions;
    stats->admitted_at_once = message->admitted_at_once;
    stats->admitted_blocks = message->admitted_blocks;
    stats->checksum_failures = message->checksum_failures;
    stats->bad_packets = message->bad_packets;
    stats->refused_requests = message->refused_requests;
    stats->pinned_blocks = message->pinned_blocks;
    stats->driver_calls = message->driver_calls;
    stats->driver_call_us = message->driver_call_us;
    stats->hanging_gpus = message->hanging_gpus;
    stats->lost_gpus = message->lost_gpus;
    stats->copy_thread_blocks = message->copy_thread_blocks;
    stats->limited_lookups = message->limited_lookups;
    stats->closing_fds = message->closing_fds;
    stats->stuck_fds = message->stuck_fds;
    stats->left_open_fds = message->left_open_fds;
    stats->resized_extents = message->resized_extents;
    stats->moved_extents = message->moved_extents;
    stats->kept_extents = message->kept_extents;
    stats->lost_extents = message->lost_extents;
    stats->waiting_extents = message->waiting_extents;
    stats->moving_blocks = message->moving_blocks;
    stats->draining = message->draining;
}

bool codec_get_stats_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_stats *stats)
{
    Kvcache__StatsReply *message;

    message = codec_unpack_body(scratch, &kvcache__stats_reply__descriptor, packet);
    if (message == NULL)
        return false;
    memset(stats, 0, sizeof(*stats));
    snprintf(stats->version, sizeof(stats->version), "%s", message->version);
    snprintf(stats->device, sizeof(stats->device), "%s", message->device);
    for (size_t i = 0; i < message->n_tiers; i++)
        get_tier(message->tiers[i], stats);
    codec_mark_unknown(&message->base, message->known, FIRST_STATS);
    get_figures(message, stats);
    get_windows(message, stats);
    return true;
}

static ProtobufCBinaryData digest_of(const struct codec_scope *scope)
{
    return codec_bytes(scope->namespace_digest, KVC_NAMESPACE_BYTES);
}

static ProtobufCBinaryData keys_of(const struct codec_scope *scope)
{
    return codec_bytes(scope->keys, (size_t)scope->n_keys * KVC_KEY_BYTES);
}

kvc_status codec_put_flush(const struct codec_scope *scope, uint8_t *body, size_t *len)
{
    Kvcache__Flush message = KVCACHE__FLUSH__INIT;

    message.part = scope->part;
    message.namespace_digest = digest_of(scope);
    message.all = scope->all;
    message.keys = keys_of(scope);
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_flush_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           uint64_t *blocks)
{
    Kvcache__FlushReply *message;

    message = codec_unpack_body(scratch, &kvcache__flush_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *blocks = message->blocks;
    return true;
}

kvc_status codec_put_pin(const struct codec_scope *scope, uint32_t seconds, bool unpin,
                         uint8_t *body, size_t *len)
{
    Kvcache__Pin message = KVCACHE__PIN__INIT;

    message.part = scope->part;
    message.namespace_digest = digest_of(scope);
    message.keys = keys_of(scope);
    message.seconds = seconds;
    message.unpin = unpin;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_pin_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                         uint32_t *count)
{
    Kvcache__PinReply *message;

    message = codec_unpack_body(scratch, &kvcache__pin_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *count = message->count;
    return true;
}

static void put_amount(const struct admin_amount *amount, size_t *n, int64_t **values,
                       int64_t *room)
{
    *room = amount->value;
    *values = room;
    *n = amount->given;
}

kvc_status codec_put_quota(const uint8_t *digest, const struct admin_quota *quota, uint8_t *body,
                           size_t *len)
{
    Kvcache__Quota message = KVCACHE__QUOTA__INIT;
    int64_t room[3];

    message.namespace_digest = codec_bytes(digest, KVC_NAMESPACE_BYTES);
    put_amount(&quota->gpu_bytes, &message.n_gpu_bytes, &message.gpu_bytes, &room[0]);
    put_amount(&quota->host_bytes, &message.n_host_bytes, &message.host_bytes, &room[1]);
    put_amount(&quota->leases, &message.n_leases, &message.leases, &room[2]);
    message.clear = quota->clear;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_quota_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           uint32_t *namespaces)
{
    Kvcache__QuotaReply *message;

    message = codec_unpack_body(scratch, &kvcache__quota_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *namespaces = message->namespaces;
    return true;
}

kvc_status codec_put_config(const char *name, const char *value, uint8_t *body, size_t *len)
{
    Kvcache__Config message = KVCACHE__CONFIG__INIT;

    message.name = (char *)name;
    message.value = (char *)value;
    return codec_pack_body(&message.base, body, len);
}

kvc_status codec_put_list(const struct admin_list_query *query, uint8_t *body, size_t *len)
{
    Kvcache__List message = KVCACHE__LIST__INIT;

    message.what = (char *)query->what;
    message.after = query->after;
    message.limit = query->limit;
    message.namespace_digest =
        codec_bytes(query->namespace_digest, query->namespace_digest ? KVC_NAMESPACE_BYTES : 0);
    message.key_prefix = (char *)(query->key_prefix ? query->key_prefix : "");
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_list_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          struct admin_list *list)
{
    Kvcache__ListReply *message;
    struct admin_row *rows;

    message = codec_unpack_body(scratch, &kvcache__list_reply__descriptor, packet);
    if (message == NULL)
        return false;
    rows = codec_scratch_more(scratch, message->n_rows * sizeof(*rows));
    if (rows == NULL)
        return false;
    for (size_t i = 0; i < message->n_rows; i++)
        rows[i] = (struct admin_row){message->rows[i]->n_values, message->rows[i]->values};
    list->n_columns = message->n_columns;
    list->columns = message->columns;
    list->n_rows = message->n_rows;
    list->rows = rows;
    list->after = message->after;
    list->more = message->more;
    return true;
}

kvc_status codec_put_ping(const void *payload, size_t payload_len, uint8_t *body, size_t *len)
{
    Kvcache__Ping message = KVCACHE__PING__INIT;

    message.payload = codec_bytes(payload, payload_len);
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_ping_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          const uint8_t **payload, size_t *len)
{
    Kvcache__PingReply *message;

    message = codec_unpack_body(scratch, &kvcache__ping_reply__descriptor, packet);
    if (message == NULL)
        return false;
    *payload = message->payload.data;
    *len = message->payload.len;
    return true;
}

kvc_status codec_put_debug(const struct admin_debug *debug, uint8_t *body, size_t *len)
{
    Kvcache__Debug message = KVCACHE__DEBUG__INIT;

    message.fault = (char *)(debug->fault != NULL ? debug->fault : "");
    message.skip = debug->skip;
    message.count = debug->count;
    message.advance_us = debug->advance_us;
    message.check = debug->check;
    return codec_pack_body(&message.base, body, len);
}

bool codec_get_debug_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_debug_reply *reply)
{
    Kvcache__DebugReply *message;

    message = codec_unpack_body(scratch, &kvcache__debug_reply__descriptor, packet);
    if (message == NULL)
        return false;
    reply->passed = message->passed;
    reply->fired = message->fired;
    snprintf(reply->broken, sizeof(reply->broken), "%s", message->broken);
    reply->live_allocations = message->live_allocations;
    reply->fds = message->fds;
    return true;
}
