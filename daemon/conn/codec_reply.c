#include "daemon/conn/codec.h"

#include "daemon/conn/codec_memory.h"
#include "proto/kvcache.pb-c.h"

/*
 * protobuf-c takes non-const pointers to what it only reads. A string field is never NULL here: the
 * generated initialisers put a constant there.
 */
#define STRING(text)   ((char *)((text) != NULL ? (text) : ""))
#define BINARY(at, n)  ((ProtobufCBinaryData){.data = (uint8_t *)(at), .len = (n)})
#define BODY(codec, m) pack((codec), &(m).base)

static struct bytes pack(struct codec *codec, const ProtobufCMessage *message)
{
    if (protobuf_c_message_get_packed_size(message) > KVC_WIRE_BODY_MAX)
        return (struct bytes){NULL, 0};
    return (struct bytes){codec->out, protobuf_c_message_pack(message, codec->out)};
}

struct bytes codec_empty(struct codec *codec)
{
    return (struct bytes){codec->out, 0};
}

struct bytes codec_error(struct codec *codec, const struct msg_error *reply)
{
    Kvcache__Error m = KVCACHE__ERROR__INIT;

    m.status = reply->status;
    m.field = STRING(reply->field);
    m.detail = STRING(reply->detail);
    return BODY(codec, m);
}

struct bytes codec_hello(struct codec *codec, const struct msg_hello_reply *reply)
{
    Kvcache__HelloReply m = KVCACHE__HELLO_REPLY__INIT;
    Kvcache__TierGeometry tiers[MSG_TIERS];
    Kvcache__TierGeometry *tier_pointers[MSG_TIERS];

    for (uint32_t i = 0; i < MSG_TIERS; i++) {
        kvcache__tier_geometry__init(&tiers[i]);
        tiers[i].tier = (Kvcache__Tier)i;
        tiers[i].bytes = reply->tiers[i].bytes;
        tiers[i].extent_bytes = reply->tiers[i].extent_bytes;
        tiers[i].extents = reply->tiers[i].extents;
        tier_pointers[i] = &tiers[i];
    }
    m.version = reply->version;
    m.session = reply->session;
    m.secret = BINARY(reply->secret, KVC_SECRET_BYTES);
    m.boot_epoch = reply->boot_epoch;
    m.features = reply->features;
    m.device = STRING(reply->device);
    m.tenant = STRING(reply->tenant);
    m.build = STRING(reply->build);
    m.n_tiers = MSG_TIERS;
    m.tiers = tier_pointers;
    m.page_words = reply->page ? KVC_PAGE_WORDS : 0;
    m.page_stride = reply->page ? KVC_PAGE_STRIDE : 0;
    m.keys_max = KVC_KEYS_MAX;
    m.lease_ms_max = reply->lease_ms_max;
    return BODY(codec, m);
}

struct bytes codec_register(struct codec *codec, const struct msg_register_reply *reply)
{
    Kvcache__RegisterReply m = KVCACHE__REGISTER_REPLY__INIT;

    m.part = reply->part;
    m.epoch = reply->epoch;
    m.fingerprint = BINARY(reply->fingerprint, KVC_FINGERPRINT_BYTES);
    m.slot_bytes = reply->slot_bytes;
    m.extents = reply->extents;
    return BODY(codec, m);
}

struct bytes codec_map(struct codec *codec, const struct msg_map_reply *reply)
{
    Kvcache__MapReply m = KVCACHE__MAP_REPLY__INIT;

    m.n_extents = reply->n;
    m.extents = (uint32_t *)reply->extents;
    m.kinds = BINARY(reply->kinds, reply->n);
    m.handles = BINARY(reply->handles.data, reply->handles.len);
    m.cursor = reply->cursor;
    m.more = reply->more;
    return BODY(codec, m);
}

struct bytes codec_extents(struct codec *codec, const struct msg_extents *extents)
{
    Kvcache__Extents m = KVCACHE__EXTENTS__INIT;

    m.n_withdrawn = extents->n_withdrawn;
    m.withdrawn = (uint32_t *)extents->withdrawn;
    m.granted = extents->granted;
    return BODY(codec, m);
}

struct bytes codec_region(struct codec *codec, uint64_t region)
{
    Kvcache__RegionReply m = KVCACHE__REGION_REPLY__INIT;

    m.region = region;
    return BODY(codec, m);
}

struct bytes codec_lookup(struct codec *codec, const struct msg_lookup_reply *reply)
{
    Kvcache__LookupReply m = KVCACHE__LOOKUP_REPLY__INIT;

    m.count = reply->count;
    m.lease = reply->lease;
    m.token = BINARY(reply->token, reply->token != NULL ? KVC_TOKEN_BYTES : 0);
    m.lease_ms = reply->lease_ms;
    m.gpu = reply->gpu;
    m.host = reply->host;
    m.pending = reply->pending;
    m.reach = reply->reach;
    m.remote = reply->remote;
    m.fetch = reply->fetch;
    return BODY(codec, m);
}

struct bytes codec_remote(struct codec *codec, const struct msg_remote_reply *reply)
{
    Kvcache__RemoteReply m = KVCACHE__REMOTE_REPLY__INIT;

    m.done = reply->done;
    m.blocks = reply->blocks;
    return BODY(codec, m);
}

struct bytes codec_save(struct codec *codec, const struct msg_save_reply *reply)
{
    Kvcache__SaveReply m = KVCACHE__SAVE_REPLY__INIT;
    Kvcache__SaveEntryReply entries[KVC_ENTRIES_MAX];
    Kvcache__SaveEntryReply *entry_pointers[KVC_ENTRIES_MAX];

    for (uint32_t i = 0; i < reply->n_entries; i++) {
        const struct msg_save_entry_reply *e = &reply->entries[i];

        kvcache__save_entry_reply__init(&entries[i]);
        entries[i].states = BINARY(e->states, e->n_states);
        entries[i].tiers = BINARY(e->tiers, e->n_assigned);
        entries[i].n_offsets = e->n_assigned;
        entries[i].offsets = (uint64_t *)e->offsets;
        entries[i].n_generations = e->n_assigned;
        entries[i].generations = (uint32_t *)e->generations;
        entry_pointers[i] = &entries[i];
    }
    m.save = reply->save;
    m.n_entries = reply->n_entries;
    m.entries = entry_pointers;
    m.n_chunk_blocks = reply->n_chunks;
    m.chunk_blocks = (uint32_t *)reply->chunk_blocks;
    m.n_chunk_words = reply->n_chunks;
    m.chunk_words = (uint32_t *)reply->chunk_words;
    m.n_chunk_numbers = reply->n_chunks;
    m.chunk_numbers = (uint64_t *)reply->chunk_numbers;
    return BODY(codec, m);
}

struct bytes codec_save_done(struct codec *codec, const struct msg_outcome *notice)
{
    Kvcache__SaveDone m = KVCACHE__SAVE_DONE__INIT;

    m.save = notice->save;
    m.status = notice->status;
    m.published = notice->published;
    m.dropped = notice->dropped;
    return BODY(codec, m);
}

struct bytes codec_abort(struct codec *codec, const struct msg_outcome *reply)
{
    Kvcache__AbortReply m = KVCACHE__ABORT_REPLY__INIT;

    m.status = reply->status;
    m.published = reply->published;
    m.dropped = reply->dropped;
    return BODY(codec, m);
}

struct bytes codec_load(struct codec *codec, const struct msg_load_reply *reply)
{
    Kvcache__LoadReply m = KVCACHE__LOAD_REPLY__INIT;

    m.word = reply->word;
    m.number = reply->number;
    m.tiers = BINARY(reply->tiers, reply->n);
    m.n_offsets = reply->n;
    m.offsets = (uint64_t *)reply->offsets;
    m.n_generations = reply->n;
    m.generations = (uint32_t *)reply->generations;
    m.n_checksums = reply->n;
    m.checksums = (uint64_t *)reply->checksums;
    m.checked = BINARY(reply->checked, reply->n);
    m.valid = BINARY(reply->valid, reply->n_valid);
    m.n_sums = reply->n_sums;
    m.sums = (uint64_t *)reply->sums;
    m.status = reply->status;
    return BODY(codec, m);
}

struct bytes codec_extend(struct codec *codec, uint32_t lease_ms)
{
    Kvcache__ExtendReply m = KVCACHE__EXTEND_REPLY__INIT;

    m.lease_ms = lease_ms;
    return BODY(codec, m);
}

struct bytes codec_adopt(struct codec *codec, const struct msg_adopt_reply *reply)
{
    Kvcache__AdoptReply m = KVCACHE__ADOPT_REPLY__INIT;

    m.lease = reply->lease;
    m.count = reply->count;
    m.lease_ms = reply->lease_ms;
    return BODY(codec, m);
}

/* Descriptors have their fields by number. */
static uint32_t last_field(const ProtobufCMessageDescriptor *d)
{
    return d->fields[d->n_fields - 1].id;
}

static void pack_stats_tier(const struct msg_stats_tier *tier, uint32_t kind, Kvcache__TierStats *m)
{
    kvcache__tier_stats__init(m);
    m->tier = (Kvcache__Tier)kind;
    m->bytes = tier->bytes;
    m->used_bytes = tier->used_bytes;
    m->slots = tier->slots;
    m->used_slots = tier->used_slots;
    m->hits = tier->hits;
    m->evictions = tier->evictions;
    m->bytes_saved = tier->bytes_saved;
    m->bytes_loaded = tier->bytes_loaded;
    m->populated_bytes = tier->populated_bytes;
    m->known = last_field(m->base.descriptor);
}

static void pack_window(const struct msg_hit_window *window, Kvcache__HitWindow *m)
{
    kvcache__hit_window__init(m);
    m->seconds = window->seconds;
    m->gpu = window->gpu;
    m->host = window->host;
    m->peer = window->peer;
    m->misses = window->misses;
}

struct bytes codec_stats(struct codec *codec, const struct msg_stats_reply *reply)
{
    Kvcache__StatsReply m = KVCACHE__STATS_REPLY__INIT;
    Kvcache__TierStats tiers[MSG_TIERS], peer = KVCACHE__TIER_STATS__INIT;
    Kvcache__TierStats *tier_pointers[MSG_TIERS + 1];
    Kvcache__HitWindow windows[MSG_WINDOWS];
    Kvcache__HitWindow *window_pointers[MSG_WINDOWS];

    for (uint32_t i = 0; i < MSG_WINDOWS; i++) {
        pack_window(&reply->windows[i], &windows[i]);
        window_pointers[i] = &windows[i];
    }
    for (uint32_t i = 0; i < MSG_TIERS; i++) {
        pack_stats_tier(&reply->tiers[i], i, &tiers[i]);
        tier_pointers[i] = &tiers[i];
    }
    m.version = STRING(reply->version);
    m.boot_epoch = reply->boot_epoch;
    m.uptime_us = reply->uptime_us;
    m.device = STRING(reply->device);
    m.n_tiers = MSG_TIERS;
    m.tiers = tier_pointers;
    if (reply->hits_peer > 0) {
        peer.tier = KVCACHE__TIER__TIER_PEER;
        peer.hits = reply->hits_peer;
        tier_pointers[m.n_tiers++] = &peer;
    }
    m.blocks = reply->blocks;
    m.sessions = reply->sessions;
    m.leases = reply->leases;
    m.open_loads = reply->open_loads;
    m.filling_slots = reply->filling_slots;
    m.quarantined_slots = reply->quarantined_slots;
    m.misses = reply->misses;
    m.evictions = reply->evictions;
    m.demotions = reply->demotions;
    m.promotions = reply->promotions;
    m.oldest_op_us = reply->oldest_op_us;
    m.saves = reply->saves;
    m.aborted_saves = reply->aborted_saves;
    m.published_blocks = reply->published_blocks;
    m.skipped_blocks = reply->skipped_blocks;
    m.stale_completions = reply->stale_completions;
    m.admitted_at_once = reply->admitted_at_once;
    m.admitted_blocks = reply->admitted_blocks;
    m.checksum_failures = reply->checksum_failures;
    m.bad_packets = reply->bad_packets;
    m.refused_requests = reply->refused_requests;
    m.failed_demotions = reply->failed_demotions;
    m.cpu_us = reply->cpu_us;
    m.cpu_system_us = reply->cpu_system_us;
    m.quarantine_oldest_us = reply->quarantine_oldest_us;
    m.pinned_blocks = reply->pinned_blocks;
    m.driver_calls = reply->driver_calls;
    m.driver_call_us = reply->driver_call_us;
    m.hanging_gpus = reply->hanging_gpus;
    m.lost_gpus = reply->lost_gpus;
    m.copy_thread_blocks = reply->copy_thread_blocks;
    m.limited_lookups = reply->limited_lookups;
    m.closing_fds = reply->closing_fds;
    m.stuck_fds = reply->stuck_fds;
    m.left_open_fds = reply->left_open_fds;
    m.resized_extents = reply->resized_extents;
    m.moved_extents = reply->moved_extents;
    m.kept_extents = reply->kept_extents;
    m.lost_extents = reply->lost_extents;
    m.waiting_extents = reply->waiting_extents;
    m.n_windows = MSG_WINDOWS;
    m.windows = window_pointers;
    m.draining = reply->draining;
    m.moving_blocks = reply->moving_blocks;
    m.known = last_field(m.base.descriptor);
    return BODY(codec, m);
}

/* Rows come from the arena, which holds nothing of the request that is still needed here. */
struct bytes codec_list(struct codec *codec, const struct msg_list_reply *reply)
{
    Kvcache__ListReply m = KVCACHE__LIST_REPLY__INIT;
    Kvcache__ListRow *rows;
    Kvcache__ListRow **row_pointers;

    rows = codec_memory_take(codec, reply->n_rows * sizeof(*rows));
    row_pointers = codec_memory_take(codec, reply->n_rows * sizeof(*row_pointers));
    if (rows == NULL || row_pointers == NULL)
        return (struct bytes){NULL, 0};
    for (uint32_t i = 0; i < reply->n_rows; i++) {
        kvcache__list_row__init(&rows[i]);
        rows[i].n_values = reply->n_columns;
        rows[i].values = (char **)reply->rows[i].values;
        row_pointers[i] = &rows[i];
    }
    m.n_columns = reply->n_columns;
    m.columns = (char **)reply->columns;
    m.n_rows = reply->n_rows;
    m.rows = row_pointers;
    m.after = reply->after;
    m.more = reply->more;
    return BODY(codec, m);
}

struct bytes codec_flush(struct codec *codec, uint64_t blocks)
{
    Kvcache__FlushReply m = KVCACHE__FLUSH_REPLY__INIT;

    m.blocks = blocks;
    return BODY(codec, m);
}

struct bytes codec_pin(struct codec *codec, uint32_t count)
{
    Kvcache__PinReply m = KVCACHE__PIN_REPLY__INIT;

    m.count = count;
    return BODY(codec, m);
}

struct bytes codec_quota(struct codec *codec, uint32_t namespaces)
{
    Kvcache__QuotaReply m = KVCACHE__QUOTA_REPLY__INIT;

    m.namespaces = namespaces;
    return BODY(codec, m);
}

struct bytes codec_config(struct codec *codec, const struct msg_config_reply *reply)
{
    Kvcache__ConfigReply m = KVCACHE__CONFIG_REPLY__INIT;
    char *names[] = {STRING(reply->name)}, *values[] = {STRING(reply->value)};

    m.n_names = m.n_values = 1;
    m.names = names;
    m.values = values;
    return BODY(codec, m);
}

struct bytes codec_watch(struct codec *codec, const struct msg_watch_reply *reply)
{
    Kvcache__WatchReply m = KVCACHE__WATCH_REPLY__INIT;
    Kvcache__WatchPart named[MSG_WATCH_PARTS], *pointers[MSG_WATCH_PARTS];

    for (uint32_t i = 0; i < reply->n_parts; i++) {
        const struct msg_watch_part *part = &reply->named[i];

        kvcache__watch_part__init(&named[i]);
        named[i].part = part->part;
        named[i].block_tokens = part->block_tokens;
        named[i].namespace_digest = BINARY(part->namespace_digest, KVC_NAMESPACE_BYTES);
        named[i].namespace_name = STRING(part->namespace_name);
        named[i].tenant = STRING(part->tenant);
        pointers[i] = &named[i];
    }
    m.boot_epoch = reply->boot_epoch;
    m.after = reply->after;
    m.lost = reply->lost;
    m.more = reply->more;
    m.n_sequences = m.n_parts = reply->n;
    m.sequences = (uint64_t *)reply->sequences;
    m.parts = (uint32_t *)reply->parts;
    m.types = BINARY(reply->types, reply->n);
    m.tiers = BINARY(reply->tiers, reply->n);
    m.keys = BINARY(reply->keys, (size_t)reply->n * KVC_KEY_BYTES);
    m.parents = BINARY(reply->parents, (size_t)reply->n * KVC_KEY_BYTES);
    m.n_named = reply->n_parts;
    m.named = pointers;
    return BODY(codec, m);
}

struct bytes codec_drain(struct codec *codec, const struct msg_drain_reply *reply)
{
    Kvcache__DrainReply m = KVCACHE__DRAIN_REPLY__INIT;

    m.draining = reply->draining;
    m.drained = reply->drained;
    m.filling_slots = reply->filling_slots;
    m.open_loads = reply->open_loads;
    m.leases = reply->leases;
    m.moving_blocks = reply->moving_blocks;
    m.sessions = reply->sessions;
    m.quarantined_slots = reply->quarantined_slots;
    m.fetches = reply->fetches;
    m.known = last_field(m.base.descriptor);
    return BODY(codec, m);
}

struct bytes codec_verify(struct codec *codec, const struct msg_verify_reply *reply)
{
    Kvcache__VerifyReply m = KVCACHE__VERIFY_REPLY__INIT;

    m.running = reply->running;
    m.permille = reply->permille;
    m.checked = reply->checked;
    m.bad = reply->bad;
    m.unchecked = reply->unchecked;
    m.failed = reply->failed;
    m.bytes = reply->bytes;
    m.elapsed_us = reply->elapsed_us;
    return BODY(codec, m);
}

struct bytes codec_ping(struct codec *codec, const struct msg_ping_reply *reply)
{
    Kvcache__PingReply m = KVCACHE__PING_REPLY__INIT;

    m.payload = BINARY(reply->payload.data, reply->payload.len);
    m.boot_epoch = reply->boot_epoch;
    return BODY(codec, m);
}

struct bytes codec_debug(struct codec *codec, const struct msg_debug_reply *reply)
{
    Kvcache__DebugReply m = KVCACHE__DEBUG_REPLY__INIT;

    m.passed = reply->passed;
    m.fired = reply->fired;
    m.broken = STRING(reply->broken);
    m.live_allocations = reply->live_allocations;
    m.fds = reply->fds;
    return BODY(codec, m);
}
