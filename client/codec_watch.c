/* Bodies of events. */
#include <string.h>

#include "client/admin.h"
#include "client/codec_bits.h"

kvc_status codec_put_watch(const struct admin_watch *watch, uint8_t *body, size_t *len)
{
    Kvcache__Watch message = KVCACHE__WATCH__INIT;

    message.after = watch->after;
    message.boot_epoch = watch->boot_epoch;
    message.latest = watch->latest;
    message.wait_ms = watch->wait_ms;
    message.limit = watch->limit;
    message.namespace_digest = codec_bytes(watch->namespace_digest, KVC_NAMESPACE_BYTES);
    return codec_pack_body(&message.base, body, len);
}

static const struct admin_watch_part *part_of(const struct admin_watch_part *parts, size_t n,
                                              uint32_t part)
{
    for (size_t i = 0; i < n; i++)
        if (parts[i].part == part)
            return &parts[i];
    return NULL;
}

static bool get_parts(const Kvcache__WatchReply *message, struct admin_watch_part *parts)
{
    for (size_t i = 0; i < message->n_named; i++) {
        const Kvcache__WatchPart *part = message->named[i];

        if (part->namespace_digest.len != KVC_NAMESPACE_BYTES)
            return false;
        parts[i] = (struct admin_watch_part){
            .part = part->part,
            .block_tokens = part->block_tokens,
            .namespace_digest = part->namespace_digest.data,
            .namespace_name = part->namespace_name,
            .tenant = part->tenant,
        };
    }
    return true;
}

/* Zeros: not known. */
static const uint8_t *parent_at(const Kvcache__WatchReply *message, size_t i)
{
    static const uint8_t none[KVC_KEY_BYTES];
    const uint8_t *key = message->parents.data + i * KVC_KEY_BYTES;

    return memcmp(key, none, KVC_KEY_BYTES) == 0 ? NULL : key;
}

bool codec_get_watch_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_watch_reply *reply)
{
    Kvcache__WatchReply *m = codec_unpack_body(scratch, &kvcache__watch_reply__descriptor, packet);
    const size_t n = m != NULL ? m->n_sequences : 0;
    struct admin_watch_part *parts;
    struct admin_event *events;

    if (m == NULL || m->types.len != n || m->tiers.len != n || m->n_parts != n ||
        m->keys.len != n * KVC_KEY_BYTES || m->parents.len != n * KVC_KEY_BYTES)
        return false;
    parts = codec_scratch_more(scratch, (m->n_named + 1) * sizeof(*parts));
    events = codec_scratch_more(scratch, (n + 1) * sizeof(*events));
    if (parts == NULL || events == NULL || !get_parts(m, parts))
        return false;
    for (size_t i = 0; i < n; i++) {
        events[i] = (struct admin_event){
            .sequence = m->sequences[i],
            .type = m->types.data[i],
            .tier = m->tiers.data[i],
            .key = m->types.data[i] == ADMIN_CLEARED ? NULL : m->keys.data + i * KVC_KEY_BYTES,
            .parent = parent_at(m, i),
            .part = part_of(parts, m->n_named, m->parts[i]),
        };
        if (events[i].part == NULL)
            return false;
    }
    *reply = (struct admin_watch_reply){
        .boot_epoch = m->boot_epoch,
        .after = m->after,
        .lost = m->lost,
        .more = m->more,
        .n = n,
        .events = events,
    };
    return true;
}
