#include "daemon/conn/codec.h"

#include "daemon/conn/codec_memory.h"
#include "proto/kvcache.pb-c.h"

#define BYTES(field)        ((struct bytes){(field).data, (field).len})
#define NUMBERS(m, field)   ((struct numbers){(m)->field, (m)->n_##field})
#define NUMBERS64(m, field) ((struct numbers64){(m)->field, (m)->n_##field})

/* Each returns false when the arena has no room for the arrays that it makes. */

static bool from_hello(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Hello *m = (const Kvcache__Hello *)base;

    (void)codec;
    request->hello = (struct msg_hello){
        .version = m->version,
        .role = (uint32_t)m->role,
        .pid = m->pid,
        .features = m->features,
        .device_uuids = BYTES(m->device_uuids),
        .name = m->name,
        .build = m->build,
    };
    return true;
}

static bool from_register(struct codec *codec, const ProtobufCMessage *base,
                          struct request *request)
{
    const Kvcache__Register *m = (const Kvcache__Register *)base;

    (void)codec;
    request->register_ = (struct msg_register){
        .namespace_digest = BYTES(m->namespace_digest),
        .block_tokens = m->block_tokens,
        .slice_bytes = NUMBERS(m, slice_bytes),
        .slice_dtypes = BYTES(m->slice_dtypes),
        .rule = (uint32_t)m->rule,
        .window = m->window,
        .family = BYTES(m->family),
        .name = m->name,
    };
    return true;
}

static bool from_unregister(struct codec *codec, const ProtobufCMessage *base,
                            struct request *request)
{
    (void)codec;
    request->unregister.part = ((const Kvcache__Unregister *)base)->part;
    return true;
}

static bool from_map(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Map *m = (const Kvcache__Map *)base;

    (void)codec;
    request->map = (struct msg_map){.cursor = m->cursor, .mapped = NUMBERS(m, mapped)};
    return true;
}

static bool from_unmap(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Unmap *m = (const Kvcache__Unmap *)base;

    (void)codec;
    request->unmap = (struct msg_unmap){.extents = NUMBERS(m, extents)};
    return true;
}

static bool from_region_begin(struct codec *codec, const ProtobufCMessage *base,
                              struct request *request)
{
    const Kvcache__RegionBegin *m = (const Kvcache__RegionBegin *)base;

    (void)codec;
    request->region_begin = (struct msg_region_begin){
        .part = m->part,
        .blocks = m->blocks,
        .generation = m->generation,
        .pieces = m->pieces,
        .slice_pieces = NUMBERS(m, slice_pieces),
        .slice_offsets = NUMBERS64(m, slice_offsets),
        .slice_strides = NUMBERS64(m, slice_strides),
    };
    return true;
}

static bool from_region_part(struct codec *codec, const ProtobufCMessage *base,
                             struct request *request)
{
    const Kvcache__RegionPart *m = (const Kvcache__RegionPart *)base;

    (void)codec;
    request->region_part = (struct msg_region_part){
        .region = m->region,
        .kinds = BYTES(m->kinds),
        .piece_bytes = NUMBERS64(m, piece_bytes),
        .piece_offsets = NUMBERS64(m, piece_offsets),
        .handles = BYTES(m->handles),
    };
    return true;
}

static bool from_region_end(struct codec *codec, const ProtobufCMessage *base,
                            struct request *request)
{
    (void)codec;
    request->region.region = ((const Kvcache__RegionEnd *)base)->region;
    return true;
}

static bool from_region_drop(struct codec *codec, const ProtobufCMessage *base,
                             struct request *request)
{
    (void)codec;
    request->region.region = ((const Kvcache__RegionDrop *)base)->region;
    return true;
}

static bool from_suspend(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    (void)codec;
    request->region.region = ((const Kvcache__Suspend *)base)->region;
    return true;
}

static bool from_resume(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    (void)codec;
    request->region.region = ((const Kvcache__Resume *)base)->region;
    return true;
}

static bool from_lookup(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Lookup *m = (const Kvcache__Lookup *)base;
    struct msg_lookup_part *parts = codec_memory_take(codec, m->n_parts * sizeof(*parts));

    if (parts == NULL)
        return false;
    for (size_t i = 0; i < m->n_parts; i++)
        parts[i] = (struct msg_lookup_part){
            .part = m->parts[i]->part,
            .epoch = m->parts[i]->epoch,
            .keys = BYTES(m->parts[i]->keys),
        };
    request->lookup = (struct msg_lookup){
        .request = m->request,
        .keys = BYTES(m->keys),
        .parts = parts,
        .n_parts = m->n_parts,
        .lease = m->lease,
        .offset = m->offset,
        .lease_ms = m->lease_ms,
        .probe = m->probe,
        .more = m->more,
        .remote_ms = m->remote_ms,
    };
    return true;
}

static bool from_remote(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Remote *m = (const Kvcache__Remote *)base;

    (void)codec;
    request->remote =
        (struct msg_remote){.fetch = m->fetch, .wait_ms = m->wait_ms, .decline = m->decline};
    return true;
}

static bool from_save(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Save *m = (const Kvcache__Save *)base;
    struct msg_save_entry *entries = codec_memory_take(codec, m->n_entries * sizeof(*entries));

    if (entries == NULL)
        return false;
    for (size_t i = 0; i < m->n_entries; i++) {
        const Kvcache__SaveEntry *e = m->entries[i];

        entries[i] = (struct msg_save_entry){
            .part = e->part,
            .epoch = e->epoch,
            .keys = BYTES(e->keys),
            .blocks = NUMBERS(e, blocks),
            .first_slice = e->first_slice,
            .slices = e->slices,
            .region = e->region,
        };
    }
    request->save = (struct msg_save){
        .entries = entries,
        .n_entries = m->n_entries,
        .checksums = m->checksums,
        .notify = m->notify,
        .to_host = m->to_host,
        .no_wait = m->no_wait,
        .save = m->save,
        .region = m->region,
        .gate = {m->gate, m->gate_number, BYTES(m->event)},
    };
    return true;
}

static bool from_abort(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Abort *m = (const Kvcache__Abort *)base;

    (void)codec;
    request->abort = (struct msg_abort){
        .save = m->save,
        .request = m->request,
        .never = NUMBERS(m, never),
        .never_all = m->never_all,
    };
    return true;
}

static bool from_load(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Load *m = (const Kvcache__Load *)base;

    (void)codec;
    request->load = (struct msg_load){
        .lease = m->lease,
        .part = m->part,
        .epoch = m->epoch,
        .first = m->first,
        .count = m->count,
        .first_slice = m->first_slice,
        .slices = m->slices,
        .blocks = NUMBERS(m, blocks),
        .region = m->region,
        .sums = NUMBERS64(m, sums),
        .gate = {m->gate, m->gate_number, BYTES(m->event)},
        .release = m->release,
    };
    return true;
}

static bool from_extend(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Extend *m = (const Kvcache__Extend *)base;

    (void)codec;
    request->extend = (struct msg_extend){.lease = m->lease, .lease_ms = m->lease_ms};
    return true;
}

static bool from_release(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    (void)codec;
    request->release.lease = ((const Kvcache__Release *)base)->lease;
    return true;
}

static bool from_adopt(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Adopt *m = (const Kvcache__Adopt *)base;

    (void)codec;
    request->adopt = (struct msg_adopt){
        .token = BYTES(m->token),
        .part = m->part,
        .epoch = m->epoch,
        .lease_ms = m->lease_ms,
    };
    return true;
}

static bool from_drained(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Drained *m = (const Kvcache__Drained *)base;

    (void)codec;
    request->drained = (struct msg_drained){.session = m->session, .secret = BYTES(m->secret)};
    return true;
}

static bool from_report(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Report *m = (const Kvcache__Report *)base;

    (void)codec;
    request->report = (struct msg_report){
        .part = m->part,
        .key = BYTES(m->key),
        .generation = m->generation,
        .tier = (uint32_t)m->tier,
        .offset = m->offset,
    };
    return true;
}

static bool from_flush(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Flush *m = (const Kvcache__Flush *)base;

    (void)codec;
    request->flush = (struct msg_flush){
        .part = m->part,
        .namespace_digest = BYTES(m->namespace_digest),
        .all = m->all,
        .keys = BYTES(m->keys),
    };
    return true;
}

static bool from_pin(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Pin *m = (const Kvcache__Pin *)base;

    (void)codec;
    request->pin = (struct msg_pin){
        .part = m->part,
        .namespace_digest = BYTES(m->namespace_digest),
        .keys = BYTES(m->keys),
        .seconds = m->seconds,
        .unpin = m->unpin,
    };
    return true;
}

static struct msg_amount amount(size_t n, const int64_t *values)
{
    return (struct msg_amount){.n = (uint32_t)n, .value = n > 0 ? values[0] : 0};
}

static bool from_quota(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Quota *m = (const Kvcache__Quota *)base;

    (void)codec;
    request->quota = (struct msg_quota){
        .namespace_digest = BYTES(m->namespace_digest),
        .gpu_bytes = amount(m->n_gpu_bytes, m->gpu_bytes),
        .host_bytes = amount(m->n_host_bytes, m->host_bytes),
        .leases = amount(m->n_leases, m->leases),
        .clear = m->clear,
    };
    return true;
}

static bool from_list(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__List *m = (const Kvcache__List *)base;

    (void)codec;
    request->list = (struct msg_list){
        .what = m->what,
        .after = m->after,
        .limit = m->limit,
        .namespace_digest = BYTES(m->namespace_digest),
        .key_prefix = m->key_prefix,
    };
    return true;
}

static bool from_config(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Config *m = (const Kvcache__Config *)base;

    (void)codec;
    request->config = (struct msg_config){.name = m->name, .value = m->value};
    return true;
}

static bool from_watch(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Watch *m = (const Kvcache__Watch *)base;

    (void)codec;
    request->watch = (struct msg_watch){
        .after = m->after,
        .boot_epoch = m->boot_epoch,
        .latest = m->latest,
        .wait_ms = m->wait_ms,
        .limit = m->limit,
        .namespace_digest = BYTES(m->namespace_digest),
    };
    return true;
}

static bool from_drain(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    (void)codec;
    request->job = (struct msg_job){.action = (uint32_t)((const Kvcache__Drain *)base)->action};
    return true;
}

static bool from_verify(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Verify *m = (const Kvcache__Verify *)base;

    (void)codec;
    request->job = (struct msg_job){.action = (uint32_t)m->action, .bytes_per_s = m->bytes_per_s};
    return true;
}

static bool from_ping(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    (void)codec;
    request->ping.payload = BYTES(((const Kvcache__Ping *)base)->payload);
    return true;
}

static bool from_debug(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    const Kvcache__Debug *m = (const Kvcache__Debug *)base;

    (void)codec;
    request->debug = (struct msg_debug){
        .fault = m->fault,
        .skip = m->skip,
        .count = m->count,
        .advance_us = m->advance_us,
        .check = m->check,
    };
    return true;
}

static bool from_nothing(struct codec *codec, const ProtobufCMessage *base, struct request *request)
{
    (void)codec;
    (void)base;
    (void)request;
    return true;
}

struct body {
    uint16_t type;
    const ProtobufCMessageDescriptor *descriptor;
    bool (*from)(struct codec *codec, const ProtobufCMessage *base, struct request *request);
};

static const struct body bodies[] = {
    {WIRE_HELLO, &kvcache__hello__descriptor, from_hello},
    {WIRE_REGISTER, &kvcache__register__descriptor, from_register},
    {WIRE_UNREGISTER, &kvcache__unregister__descriptor, from_unregister},
    {WIRE_MAP, &kvcache__map__descriptor, from_map},
    {WIRE_UNMAP, &kvcache__unmap__descriptor, from_unmap},
    {WIRE_REGION_BEGIN, &kvcache__region_begin__descriptor, from_region_begin},
    {WIRE_REGION_PART, &kvcache__region_part__descriptor, from_region_part},
    {WIRE_REGION_END, &kvcache__region_end__descriptor, from_region_end},
    {WIRE_REGION_DROP, &kvcache__region_drop__descriptor, from_region_drop},
    {WIRE_LOOKUP, &kvcache__lookup__descriptor, from_lookup},
    {WIRE_REMOTE, &kvcache__remote__descriptor, from_remote},
    {WIRE_SAVE, &kvcache__save__descriptor, from_save},
    {WIRE_ABORT, &kvcache__abort__descriptor, from_abort},
    {WIRE_LOAD, &kvcache__load__descriptor, from_load},
    {WIRE_EXTEND, &kvcache__extend__descriptor, from_extend},
    {WIRE_RELEASE, &kvcache__release__descriptor, from_release},
    {WIRE_ADOPT, &kvcache__adopt__descriptor, from_adopt},
    {WIRE_DRAINED, &kvcache__drained__descriptor, from_drained},
    {WIRE_SUSPEND, &kvcache__suspend__descriptor, from_suspend},
    {WIRE_RESUME, &kvcache__resume__descriptor, from_resume},
    {WIRE_NUDGE, &kvcache__empty__descriptor, from_nothing},
    {WIRE_REPORT, &kvcache__report__descriptor, from_report},
    {WIRE_STATS, &kvcache__stats__descriptor, from_nothing},
    {WIRE_FLUSH, &kvcache__flush__descriptor, from_flush},
    {WIRE_PIN, &kvcache__pin__descriptor, from_pin},
    {WIRE_QUOTA, &kvcache__quota__descriptor, from_quota},
    {WIRE_LIST, &kvcache__list__descriptor, from_list},
    {WIRE_CONFIG, &kvcache__config__descriptor, from_config},
    {WIRE_WATCH, &kvcache__watch__descriptor, from_watch},
    {WIRE_DRAIN, &kvcache__drain__descriptor, from_drain},
    {WIRE_VERIFY, &kvcache__verify__descriptor, from_verify},
    {WIRE_PING, &kvcache__ping__descriptor, from_ping},
    {WIRE_DEBUG, &kvcache__debug__descriptor, from_debug},
};

const char *codec_unpack(struct codec *codec, const struct wire_packet *packet,
                         struct request *request)
{
    const struct body *body = NULL;
    ProtobufCMessage *message;

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        if (bodies[i].type == packet->type)
            body = &bodies[i];
    if (body == NULL)
        return "no body of this type";
    if (!codec_scan(body->descriptor, packet->body, packet->body_len))
        return "more fields than a body may have";
    codec_memory_reset(codec);
    message = protobuf_c_message_unpack(body->descriptor, &codec->allocator, packet->body_len,
                                        packet->body);
    request->type = packet->type;
    request->seq = packet->seq;
    if (message == NULL || !body->from(codec, message, request))
        return codec->over ? "body unpacks to more than the budget" : "body is no protobuf message";
    return NULL;
}
