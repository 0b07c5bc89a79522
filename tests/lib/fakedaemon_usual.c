// The usual answers of the scripted daemon.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/pack.h"
#include "tests/lib/fakedaemon.h"

void fake_make_hello(struct fake *fake, Kvcache__HelloReply *reply)
{
    static uint8_t secret[KVC_SECRET_BYTES] = "sixteen secrets";
    static Kvcache__TierGeometry tiers[2], *pointers[2] = {&tiers[0], &tiers[1]};

    *reply = (Kvcache__HelloReply)KVCACHE__HELLO_REPLY__INIT;
    reply->version = 1;
    reply->session = ++fake->next_session;
    reply->secret = (ProtobufCBinaryData){sizeof(secret), secret};
    reply->boot_epoch = fake->shared->boot_epoch;
    reply->device = "host";
    reply->tenant = "uid:0";
    reply->build = "fake";
    for (int t = 0; t < 2; t++) {
        tiers[t] = (Kvcache__TierGeometry)KVCACHE__TIER_GEOMETRY__INIT;
        tiers[t].tier = (Kvcache__Tier)t;
        tiers[t].bytes = FAKE_TIER_BYTES;
        tiers[t].extent_bytes = FAKE_EXTENT_BYTES;
        tiers[t].extents = FAKE_EXTENTS;
    }
    reply->n_tiers = 2;
    reply->tiers = pointers;
    reply->page_words = KVC_PAGE_WORDS;
    reply->page_stride = KVC_PAGE_STRIDE;
    reply->keys_max = KVC_KEYS_MAX;
    reply->lease_ms_max = KVC_LEASE_MS_MAX;
}

static void usual_hello(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Hello *hello = fake_body(request, &kvcache__hello__descriptor);
    Kvcache__HelloReply reply;
    bool copies =
        hello->role == KVCACHE__ROLE__ROLE_WORKER || hello->role == KVCACHE__ROLE__ROLE_READER;

    fake_make_hello(fake, &reply);
    fake_send(fake, WIRE_HELLO | WIRE_REPLY, request->seq, &reply.base, &fake->page_fd, copies);
}

static void usual_register(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Register *part = fake_body(request, &kvcache__register__descriptor);
    Kvcache__RegisterReply reply = KVCACHE__REGISTER_REPLY__INIT;
    uint64_t offsets[KVC_SLICES_MAX];
    struct pack_layout layout = {.slice_offsets = offsets};
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];

    if (pack_layout_init(&layout, part->slice_bytes, (uint32_t)part->n_slice_bytes) != KVC_OK)
        _exit(1);
    pack_layout_fingerprint(&layout, part->block_tokens,
                            part->slice_dtypes.len ? part->slice_dtypes.data : NULL, fingerprint);
    fake->slot_bytes = layout.slot_bytes;
    fake->block_bytes = layout.block_bytes;
    reply.part = ++fake->parts;
    reply.epoch = fake->shared->part_epoch;
    reply.fingerprint = (ProtobufCBinaryData){sizeof(fingerprint), fingerprint};
    reply.slot_bytes = layout.slot_bytes;
    reply.extents = 2 * FAKE_EXTENTS;
    fake_reply(fake, request, &reply.base);
}

// Five extents a packet, so that there are two.
static void usual_map(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Map *map = fake_body(request, &kvcache__map__descriptor);
    Kvcache__MapReply reply = KVCACHE__MAP_REPLY__INIT;
    uint32_t extents[5], n = 0, at = map->cursor;
    uint8_t kinds[5] = {1, 1, 1, 1, 1};
    int fds[5];

    fake->shared->mapped += (uint32_t)map->n_mapped;
    for (; n < 5 && at < 2 * FAKE_EXTENTS; at++, n++) {
        extents[n] = at / FAKE_EXTENTS << 31 | at % FAKE_EXTENTS;
        fds[n] = fake->extents[at / FAKE_EXTENTS][at % FAKE_EXTENTS];
    }
    reply.n_extents = n;
    reply.extents = extents;
    reply.kinds = (ProtobufCBinaryData){n, kinds};
    reply.cursor = at;
    reply.more = at < 2 * FAKE_EXTENTS;
    fake_send(fake, WIRE_MAP | WIRE_REPLY, request->seq, &reply.base, fds, n);
}

static void usual_lookup(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Lookup *lookup = fake_body(request, &kvcache__lookup__descriptor);
    Kvcache__LookupReply reply = KVCACHE__LOOKUP_REPLY__INIT;
    static uint8_t token[KVC_TOKEN_BYTES] = "a lease's token";

    fake->shared->lookup_lease = lookup->lease;
    fake->shared->lookup_request = lookup->request;
    fake->shared->lookup_offset = lookup->offset;
    fake->shared->lookup_keys = (uint32_t)(lookup->keys.len / KVC_KEY_BYTES);
    reply.count = lookup->offset + fake->shared->lookup_keys;
    if (!lookup->probe) {
        reply.lease = 77;
        reply.token = (ProtobufCBinaryData){sizeof(token), token};
        reply.lease_ms = 30000;
        reply.gpu = reply.count;
    }
    fake_reply(fake, request, &reply.base);
}

// The place of slot number n: first all of the gpu tier, then the host tier.
static uint64_t slot_offset(const struct fake *fake, uint64_t n, uint8_t *tier)
{
    const uint64_t in_extent = FAKE_EXTENT_BYTES / fake->slot_bytes;
    uint64_t extent = n / in_extent;

    *tier = (uint8_t)(extent / FAKE_EXTENTS % 2);
    return extent % FAKE_EXTENTS * FAKE_EXTENT_BYTES + n % in_extent * fake->slot_bytes;
}

static void *keep(const void *data, size_t size)
{
    void *copy = malloc(size ? size : 1);

    memcpy(copy, data, size);
    return copy;
}

static void cut_chunks(struct fake *fake, uint32_t n, Kvcache__SaveReply *reply)
{
    uint32_t blocks[KVC_KEYS_MAX], words[KVC_KEYS_MAX];
    uint64_t numbers[KVC_KEYS_MAX];
    struct pack_cut cut = {0};
    size_t chunks = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (pack_cut_next(&cut, fake->block_bytes)) {
            blocks[chunks] = 0;
            words[chunks] = fake->next_word++ % KVC_PAGE_WORDS;
            numbers[chunks] = 1000 + fake->next_number++;
            chunks++;
        }
        blocks[chunks - 1]++;
    }
    reply->n_chunk_blocks = reply->n_chunk_words = reply->n_chunk_numbers = chunks;
    reply->chunk_blocks = keep(blocks, chunks * sizeof(*blocks));
    reply->chunk_words = keep(words, chunks * sizeof(*words));
    reply->chunk_numbers = keep(numbers, chunks * sizeof(*numbers));
}

void fake_make_save(struct fake *fake, const Kvcache__Save *request, Kvcache__SaveReply *reply)
{
    uint32_t total = 0;

    *reply = (Kvcache__SaveReply)KVCACHE__SAVE_REPLY__INIT;
    reply->n_entries = request->n_entries;
    reply->entries = calloc(request->n_entries + 1, sizeof(*reply->entries));
    for (size_t e = 0; e < request->n_entries; e++) {
        uint32_t n = (uint32_t)(request->entries[e]->keys.len / KVC_KEY_BYTES);
        Kvcache__SaveEntryReply *entry = malloc(sizeof(*entry));
        uint8_t states[KVC_KEYS_MAX], tiers[KVC_KEYS_MAX];
        uint32_t generations[KVC_KEYS_MAX] = {0};
        uint64_t offsets[KVC_KEYS_MAX];

        memset(states, KVCACHE__KEY_STATE__KEY_ASSIGNED, n);
        for (uint32_t k = 0; k < n; k++)
            offsets[k] = slot_offset(fake, fake->next_slot[0]++, &tiers[k]);
        *entry = (Kvcache__SaveEntryReply)KVCACHE__SAVE_ENTRY_REPLY__INIT;
        entry->states = (ProtobufCBinaryData){n, keep(states, n)};
        entry->tiers = (ProtobufCBinaryData){n, keep(tiers, n)};
        entry->n_offsets = entry->n_generations = n;
        entry->offsets = keep(offsets, n * sizeof(*offsets));
        entry->generations = keep(generations, n * sizeof(*generations));
        reply->entries[e] = entry;
        total += n;
    }
    reply->save = ++fake->next_save;
    cut_chunks(fake, total, reply);
    fake->shared->save_notify = request->notify;
    fake->shared->save_checksums = request->checksums;
}

static void usual_save(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__SaveReply reply;

    fake_make_save(fake, fake_body(request, &kvcache__save__descriptor), &reply);
    fake_reply(fake, request, &reply.base);
}

static void usual_abort(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Abort *abort = fake_body(request, &kvcache__abort__descriptor);
    Kvcache__AbortReply reply = KVCACHE__ABORT_REPLY__INIT;

    fake->shared->abort_request = abort->request;
    fake->shared->abort_save = abort->save;
    fake->shared->abort_never = (uint32_t)abort->n_never;
    fake->shared->abort_never_all = abort->never_all;
    reply.status = KVC_E_CANCELLED;
    reply.dropped = 1;
    fake_reply(fake, request, &reply.base);
}

// Locations without checksums: `checked` is 0.
void fake_make_load(struct fake *fake, const Kvcache__Load *request, Kvcache__LoadReply *reply)
{
    static uint8_t tiers[KVC_KEYS_MAX], checked[KVC_KEYS_MAX];
    static uint64_t offsets[KVC_KEYS_MAX], checksums[KVC_KEYS_MAX];
    static uint32_t generations[KVC_KEYS_MAX];

    *reply = (Kvcache__LoadReply)KVCACHE__LOAD_REPLY__INIT;
    fake->shared->load_first = request->first;
    fake->shared->load_count = request->count;
    fake->shared->load_release = request->release;
    for (uint32_t i = 0; i < request->count; i++) {
        offsets[i] = slot_offset(fake, request->first + i, &tiers[i]);
        generations[i] = 5 + i;
    }
    reply->word = fake->next_word++ % KVC_PAGE_WORDS;
    reply->number = 1000 + fake->next_number++;
    reply->tiers = (ProtobufCBinaryData){request->count, tiers};
    reply->checked = (ProtobufCBinaryData){request->count, checked};
    reply->n_offsets = reply->n_generations = reply->n_checksums = request->count;
    reply->offsets = offsets;
    reply->generations = generations;
    reply->checksums = checksums;
}

static void usual_load(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__LoadReply reply;

    fake_make_load(fake, fake_body(request, &kvcache__load__descriptor), &reply);
    fake_reply(fake, request, &reply.base);
}

static void usual_adopt(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__AdoptReply reply = KVCACHE__ADOPT_REPLY__INIT;

    reply.lease = 78;
    reply.count = 4;
    reply.lease_ms = 30000;
    fake_reply(fake, request, &reply.base);
}

static void usual_extend(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Extend *extend = fake_body(request, &kvcache__extend__descriptor);
    Kvcache__ExtendReply reply = KVCACHE__EXTEND_REPLY__INIT;

    reply.lease_ms = extend->lease_ms / 2;
    fake_reply(fake, request, &reply.base);
}

static void usual_report(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Report *report = fake_body(request, &kvcache__report__descriptor);

    fake->shared->report_tier = report->tier;
    fake->shared->report_offset = report->offset;
    fake->shared->report_generation = report->generation;
}

static void usual_ping(struct fake *fake, const struct wire_packet *request)
{
    const Kvcache__Ping *ping = fake_body(request, &kvcache__ping__descriptor);
    Kvcache__PingReply reply = KVCACHE__PING_REPLY__INIT;

    reply.payload = ping->payload;
    fake_reply(fake, request, &reply.base);
}

void fake_note(struct fake *fake, const struct wire_packet *request)
{
    if (request->type == WIRE_DRAINED) {
        const Kvcache__Drained *drained = fake_body(request, &kvcache__drained__descriptor);

        fake->shared->drained_session = drained->session;
    } else if (request->type == WIRE_RELEASE) {
        const Kvcache__Release *release = fake_body(request, &kvcache__release__descriptor);

        fake->shared->released = release->lease;
    } else if (request->type == WIRE_UNMAP) {
        const Kvcache__Unmap *unmap = fake_body(request, &kvcache__unmap__descriptor);

        fake->shared->unmapped += (uint32_t)unmap->n_extents;
    }
}

void fake_usual(struct fake *fake, const struct wire_packet *request)
{
    static void (*const usual[])(struct fake *, const struct wire_packet *) = {
        [WIRE_HELLO] = usual_hello,   [WIRE_REGISTER] = usual_register,
        [WIRE_MAP] = usual_map,       [WIRE_LOOKUP] = usual_lookup,
        [WIRE_SAVE] = usual_save,     [WIRE_ABORT] = usual_abort,
        [WIRE_LOAD] = usual_load,     [WIRE_ADOPT] = usual_adopt,
        [WIRE_EXTEND] = usual_extend, [WIRE_PING] = usual_ping,
        [WIRE_REPORT] = usual_report,
    };

    if (request->type == WIRE_NUDGE)
        return;
    if (request->type < sizeof(usual) / sizeof(usual[0]) && usual[request->type])
        usual[request->type](fake, request);
    else
        fake_reply(fake, request, NULL);
}
