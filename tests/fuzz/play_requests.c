/* Requests, built from what earlier replies said or from the input's bytes. */
#include "client/admin.h"
#include "tests/fuzz/play.h"
#include "tests/lib/raw.h"

uint8_t play_body[KVC_WIRE_BODY_MAX];

static struct raw raw;

void play_send_raw(struct play *p, uint16_t type, const uint8_t *bytes, size_t len, uint32_t fds)
{
    struct wire_packet packet = {.type = type, .seq = ++p->seq, .n_fds = fds};

    packet.body_len = (uint32_t)len;
    wire_put_header(raw.bytes, &packet);
    memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES, bytes, len);
    raw.len = KVC_WIRE_HEADER_BYTES + len;
    raw.n_fds = fds;
    if (p->me->sock >= 0)
        (void)raw_send(p->me->sock, &raw);
}

void play_send(struct play *p, uint16_t type, kvc_status packed, const size_t *len)
{
    if (packed == KVC_OK)
        play_send_raw(p, type, play_body, *len, 0);
}

uint64_t play_or_any(struct play *p, uint64_t known)
{
    uint32_t choice = fuzz_u8(&p->in);

    return choice < 240 ? known : choice < 250 ? known + (int8_t)fuzz_u8(&p->in) : fuzz_u64(&p->in);
}

void play_hello(struct play *p)
{
    struct codec_hello hello = {.role = fuzz_u8(&p->in) % 6, .pid = 1, .name = "fuzz"};
    size_t len;

    play_send(p, WIRE_HELLO, codec_put_hello(&hello, play_body, &len), &len);
}

void play_register(struct play *p)
{
    static const uint32_t sizes[][2] = {{4096, 4096}, {1, 65536},    {131072, 131072},
                                        {16, 7},      {1 << 20, 64}, {3 << 20, 5}};
    uint32_t choice = fuzz_u8(&p->in);
    uint8_t digest[KVC_NAMESPACE_BYTES], dtypes[2] = {1, 2};
    struct codec_register part = {.namespace_digest = digest, .block_tokens = 16};
    size_t len;

    memset(digest, choice / 6 % 3, sizeof(digest));
    part.slice_bytes = sizes[choice % 6];
    part.n_slices = choice & 64 ? 1 : 2;
    memcpy(p->me->slice_bytes, part.slice_bytes, sizeof(p->me->slice_bytes));
    p->me->n_slices = part.n_slices;
    part.slice_dtypes = choice & 128 ? dtypes : NULL;
    play_send(p, WIRE_REGISTER, codec_put_register(&part, play_body, &len), &len);
}

void play_map(struct play *p)
{
    struct play_client *c = p->me;
    uint32_t forget = fuzz_u8(&p->in), n = c->n_extents;
    size_t len;

    if (forget < 16 && n > forget)
        c->extents[forget] ^= 1u << forget;
    play_send(p, WIRE_MAP, codec_put_map(c->cursor, c->extents, n, play_body, &len), &len);
    c->n_extents = 0;
}

uint32_t play_keys(struct play *p, uint8_t *keys, uint32_t most)
{
    uint32_t first = fuzz_u8(&p->in), n = fuzz_u8(&p->in) % (most + 1);

    memset(keys, 0, (size_t)n * KVC_KEY_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        keys[i * KVC_KEY_BYTES] = (uint8_t)(first + i);
        keys[i * KVC_KEY_BYTES + 15] = (uint8_t)(first + i);
    }
    return n;
}

void play_lookup(struct play *p)
{
    uint8_t keys[64 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in);
    struct codec_lookup lookup = {.keys = keys, .probe = how & 1, .request = how >> 1 & 3};
    size_t len;

    lookup.n_keys = play_keys(p, keys, 64);
    if (how & 8) {
        lookup.lease = play_or_any(p, p->names.lease);
        lookup.offset = fuzz_u8(&p->in);
    }
    lookup.lease_ms = how & 16 ? fuzz_u16(&p->in) : 0;
    lookup.n_parts = 1 + (how >> 5) % 3;
    for (uint32_t i = 0; i < lookup.n_parts; i++) {
        lookup.parts[i] = i == 0 ? (uint32_t)play_or_any(p, p->me->part) : 1 + fuzz_u8(&p->in) % 4;
        lookup.epochs[i] = i == 0 ? p->me->epoch : 1;
    }
    play_send(p, WIRE_LOOKUP, codec_put_lookup(&lookup, play_body, &len), &len);
}

void play_save(struct play *p)
{
    static uint8_t keys[4][64 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in), n = 1 + (how >> 2) % 4;
    const struct codec_save save = {
        .checksums = how & 1, .notify = how & 2, .to_host = how & 16, .no_wait = how & 32};
    struct codec_save_entry entries[4];
    size_t len;

    for (uint32_t i = 0; i < n; i++)
        entries[i] = (struct codec_save_entry){
            .part = i == 0 ? (uint32_t)play_or_any(p, p->me->part) : 1 + fuzz_u8(&p->in) % 4,
            .epoch = i == 0 ? p->me->epoch : 1,
            .keys = keys[i],
            .n_keys = play_keys(p, keys[i], 64),
        };
    play_send(p, WIRE_SAVE, codec_put_save(&save, entries, n, play_body, &len), &len);
}

void play_abort(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in), never[2] = {fuzz_u8(&p->in), 1};
    struct codec_abort abort = {.never = never, .n_never = how & 3, .never_all = how & 4};
    size_t len;

    if (abort.n_never > 2)
        abort.n_never = 0;
    if (how & 8)
        abort.request = p->seq - (how >> 4);
    else
        abort.save = play_or_any(p, p->names.save);
    play_send(p, WIRE_ABORT, codec_put_abort(&abort, play_body, &len), &len);
}

void play_load(struct play *p)
{
    struct codec_load load = {.epoch = p->me->epoch};
    size_t len;

    load.lease = play_or_any(p, p->names.lease);
    load.part = (uint32_t)play_or_any(p, p->me->part);
    load.first = fuzz_u8(&p->in);
    load.count = fuzz_u8(&p->in);
    play_send(p, WIRE_LOAD, codec_put_load(&load, play_body, &len), &len);
}

void play_lease(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in);
    uint64_t lease = play_or_any(p, p->names.lease);
    size_t len;

    switch (how % 3) {
    case 0:
        play_send(p, WIRE_RELEASE, codec_put_release(lease, play_body, &len), &len);
        break;
    case 1:
        play_send(p, WIRE_EXTEND, codec_put_extend(lease, fuzz_u16(&p->in), play_body, &len), &len);
        break;
    default:
        play_send(
            p, WIRE_ADOPT,
            codec_put_adopt(p->names.token, p->me->part, p->me->epoch, how >> 2, play_body, &len),
            &len);
        break;
    }
}

void play_drained(struct play *p)
{
    bool own = fuzz_u8(&p->in) & 1;
    uint64_t session = own ? 0 : play_or_any(p, p->names.session);
    size_t len;

    play_send(p, WIRE_DRAINED,
              codec_put_drained(session, own ? NULL : p->names.secret, play_body, &len), &len);
}

void play_report(struct play *p)
{
    struct codec_report report;
    size_t len;

    report.part = (uint32_t)play_or_any(p, p->me->part);
    report.generation = (uint32_t)play_or_any(p, p->names.generation);
    report.tier = (uint32_t)play_or_any(p, p->names.tier);
    report.offset = play_or_any(p, p->names.offset);
    play_send(p, WIRE_REPORT, codec_put_report(&report, play_body, &len), &len);
}

void play_small(struct play *p)
{
    static const uint16_t types[] = {WIRE_NUDGE, WIRE_STATS, WIRE_PING, WIRE_UNREGISTER,
                                     WIRE_WATCH};
    uint16_t type = types[fuzz_u8(&p->in) % 5];
    size_t len;

    if (type == WIRE_UNREGISTER) {
        play_send(p, type, codec_put_unregister(p->me->part, play_body, &len), &len);
    } else if (type == WIRE_WATCH) {
        uint32_t how = fuzz_u8(&p->in);
        const struct admin_watch watch = {
            .after = how & 3, .latest = how & 4, .wait_ms = how >> 3 & 7, .boot_epoch = how >> 6};

        play_send(p, type, codec_put_watch(&watch, play_body, &len), &len);
    } else {
        play_send_raw(p, type, play_body, 0, 0);
    }
}

/* Of an operator, if the session is one. */
void play_job(struct play *p)
{
    const uint32_t how = fuzz_u8(&p->in);
    size_t len;

    if (how & 128)
        play_send(p, WIRE_DRAIN, codec_put_drain(how & 3, play_body, &len), &len);
    else
        play_send(p, WIRE_VERIFY, codec_put_verify(how & 3, how & 64 ? 1000 : 0, play_body, &len),
                  &len);
}

void play_list(struct play *p)
{
    static const char *const lists[] = {"clients", "blocks",     "layouts",
                                        "leases",  "namespaces", "x"};
    static const uint8_t digest[KVC_NAMESPACE_BYTES];
    const uint32_t which = fuzz_u8(&p->in);
    struct admin_list_query query = {
        .what = lists[which < 200 ? 0 : which % 6],
        .after = fuzz_u8(&p->in) & 3,
        .limit = fuzz_u8(&p->in),
    };
    size_t len;

    /* The last two bits of a choice above those: what is left out. */
    query.namespace_digest = which >= 240 && (which & 1) ? digest : NULL;
    query.key_prefix = which >= 240 && (which & 2) ? "0a" : NULL;
    play_send(p, WIRE_LIST, codec_put_list(&query, play_body, &len), &len);
}
