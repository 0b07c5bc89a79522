/*
 * Connections at a whole daemon (rig.h). The input is a list of actions of three clients: requests
 * built from what earlier replies said, or from the input's bytes, with descriptors or without;
 * replies read or left; ends in the middle; words and checksums written to completion pages; the
 * clock moved; allocations and system calls that fail; flushes; the daemon told to stop. All along
 * every invariant of the store holds, every reply is one that the library takes, and in the
 * end nothing is left.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "client/codec.h"
#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/rig.h"
#include "tests/lib/raw.h"

const char fuzz_name[] = "connection";

#define CLIENTS     3u
#define ACTIONS_MAX 400u
#define CHECK_EVERY 4u /* looking at everything takes most of the time */
#define WORDS_KEPT  64u
#define PAGE_BYTES  ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)

struct client {
    int sock; /* -1: not connected */
    uint8_t *page;
    uint64_t session;
    uint8_t secret[KVC_SECRET_BYTES];
    uint32_t part, epoch;
    uint32_t cursor, n_extents, extents[KVC_WIRE_FDS_MAX];
};

/* What replies said, to all clients together, so that they can meddle with each other's. */
struct names {
    uint64_t lease, save, session;
    uint8_t token[KVC_TOKEN_BYTES], secret[KVC_SECRET_BYTES];
    uint64_t numbers[WORDS_KEPT];
    uint32_t words[WORDS_KEPT], n_words;
    uint8_t tier;
    uint32_t generation;
    uint64_t offset;
};

struct play {
    struct rig rig;
    struct fuzz_input in;
    struct client clients[CLIENTS];
    struct client *me;
    struct names names;
    struct codec_scratch scratch;
    uint32_t seq;
    bool stopped;
};

static struct raw raw;
static uint8_t buffer[KVC_WIRE_PACKET_MAX], body[KVC_WIRE_BODY_MAX];

/* Sent as it is, with n copies of descriptor 0; what the socket does not take is lost. */
static void send_raw(struct play *p, uint16_t type, const uint8_t *bytes, size_t len, uint32_t fds)
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

/* len is read after packing has set it. */
static void send_put(struct play *p, uint16_t type, kvc_status packed, const size_t *len)
{
    if (packed == KVC_OK)
        send_raw(p, type, body, *len, 0);
}

/* A name that was given, or the input's. */
static uint64_t or_any(struct play *p, uint64_t known)
{
    uint32_t choice = fuzz_u8(&p->in);

    return choice < 240 ? known : choice < 250 ? known + (int8_t)fuzz_u8(&p->in) : fuzz_u64(&p->in);
}

static void drop_page(struct client *c)
{
    if (c->page != NULL)
        munmap(c->page, PAGE_BYTES);
    c->page = NULL;
}

/* Its page outlives its connection, as that of a worker that still copies. */
static void act_connect(struct play *p)
{
    if (p->me->sock >= 0)
        close(p->me->sock);
    p->me->sock = rig_connect(&p->rig);
    rig_turn(&p->rig, 1);
}

static void act_close(struct play *p)
{
    if (p->me->sock >= 0)
        close(p->me->sock);
    p->me->sock = -1;
}

static void act_half_close(struct play *p)
{
    if (p->me->sock >= 0)
        shutdown(p->me->sock, fuzz_u8(&p->in) & 1 ? SHUT_WR : SHUT_RD);
}

static void act_raw(struct play *p)
{
    uint32_t fds = fuzz_u8(&p->in) % (RAW_FDS_MAX + 1);
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&p->in, fuzz_u16(&p->in), &len);

    raw.len = len;
    raw.n_fds = fds;
    memcpy(raw.bytes, bytes, len);
    if (p->me->sock >= 0)
        (void)raw_send(p->me->sock, &raw);
}

static void act_body(struct play *p)
{
    uint16_t type = (uint16_t)fuzz_u8(&p->in);
    uint32_t fds = fuzz_u8(&p->in);
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&p->in, fuzz_u8(&p->in), &len);

    send_raw(p, type, bytes, len, fds < 250 ? 0 : fds - 249);
}

static void act_hello(struct play *p)
{
    struct codec_hello hello = {.role = fuzz_u8(&p->in) % 6, .pid = 1, .name = "fuzz"};
    size_t len;

    send_put(p, WIRE_HELLO, codec_put_hello(&hello, body, &len), &len);
}

static void act_register(struct play *p)
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
    part.slice_dtypes = choice & 128 ? dtypes : NULL;
    send_put(p, WIRE_REGISTER, codec_put_register(&part, body, &len), &len);
}

static void act_map(struct play *p)
{
    struct client *c = p->me;
    uint32_t forget = fuzz_u8(&p->in), n = c->n_extents;
    size_t len;

    if (forget < 16 && n > forget)
        c->extents[forget] ^= 1u << forget;
    send_put(p, WIRE_MAP, codec_put_map(c->cursor, c->extents, n, body, &len), &len);
    c->n_extents = 0;
}

static uint32_t put_keys(struct play *p, uint8_t *keys, uint32_t most)
{
    uint32_t first = fuzz_u8(&p->in), n = fuzz_u8(&p->in) % (most + 1);

    memset(keys, 0, (size_t)n * KVC_KEY_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        keys[i * KVC_KEY_BYTES] = (uint8_t)(first + i);
        keys[i * KVC_KEY_BYTES + 15] = (uint8_t)(first + i);
    }
    return n;
}

static void act_lookup(struct play *p)
{
    uint8_t keys[64 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in);
    struct codec_lookup lookup = {.keys = keys, .probe = how & 1, .request = how >> 1 & 3};
    size_t len;

    lookup.n_keys = put_keys(p, keys, 64);
    if (how & 8) {
        lookup.lease = or_any(p, p->names.lease);
        lookup.offset = fuzz_u8(&p->in);
    }
    lookup.lease_ms = how & 16 ? fuzz_u16(&p->in) : 0;
    lookup.n_parts = 1 + (how >> 5) % 3;
    for (uint32_t i = 0; i < lookup.n_parts; i++) {
        lookup.parts[i] = i == 0 ? (uint32_t)or_any(p, p->me->part) : 1 + fuzz_u8(&p->in) % 4;
        lookup.epochs[i] = i == 0 ? p->me->epoch : 1;
    }
    send_put(p, WIRE_LOOKUP, codec_put_lookup(&lookup, body, &len), &len);
}

static void act_save(struct play *p)
{
    static uint8_t keys[4][64 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in), n = 1 + (how >> 2) % 4;
    struct codec_save_entry entries[4];
    size_t len;

    for (uint32_t i = 0; i < n; i++)
        entries[i] = (struct codec_save_entry){
            .part = i == 0 ? (uint32_t)or_any(p, p->me->part) : 1 + fuzz_u8(&p->in) % 4,
            .epoch = i == 0 ? p->me->epoch : 1,
            .keys = keys[i],
            .n_keys = put_keys(p, keys[i], 64),
        };
    send_put(p, WIRE_SAVE, codec_put_save(entries, n, 0, how & 1, how & 2, body, &len), &len);
}

static void act_abort(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in), never[2] = {fuzz_u8(&p->in), 1};
    struct codec_abort abort = {.never = never, .n_never = how & 3, .never_all = how & 4};
    size_t len;

    if (abort.n_never > 2)
        abort.n_never = 0;
    if (how & 8)
        abort.request = p->seq - (how >> 4);
    else
        abort.save = or_any(p, p->names.save);
    send_put(p, WIRE_ABORT, codec_put_abort(&abort, body, &len), &len);
}

static void act_load(struct play *p)
{
    struct codec_load load = {.epoch = p->me->epoch};
    size_t len;

    load.lease = or_any(p, p->names.lease);
    load.part = (uint32_t)or_any(p, p->me->part);
    load.first = fuzz_u8(&p->in);
    load.count = fuzz_u8(&p->in);
    send_put(p, WIRE_LOAD, codec_put_load(&load, body, &len), &len);
}

static void act_lease(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in);
    uint64_t lease = or_any(p, p->names.lease);
    size_t len;

    switch (how % 3) {
    case 0:
        send_put(p, WIRE_RELEASE, codec_put_release(lease, body, &len), &len);
        break;
    case 1:
        send_put(p, WIRE_EXTEND, codec_put_extend(lease, fuzz_u16(&p->in), body, &len), &len);
        break;
    default:
        send_put(p, WIRE_ADOPT,
                 codec_put_adopt(p->names.token, p->me->part, p->me->epoch, how >> 2, body, &len),
                 &len);
        break;
    }
}

static void act_drained(struct play *p)
{
    bool own = fuzz_u8(&p->in) & 1;
    uint64_t session = own ? 0 : or_any(p, p->names.session);
    size_t len;

    send_put(p, WIRE_DRAINED, codec_put_drained(session, own ? NULL : p->names.secret, body, &len),
             &len);
}

static void act_report(struct play *p)
{
    struct codec_report report;
    size_t len;

    report.part = (uint32_t)or_any(p, p->me->part);
    report.generation = (uint32_t)or_any(p, p->names.generation);
    report.tier = (uint32_t)or_any(p, p->names.tier);
    report.offset = or_any(p, p->names.offset);
    send_put(p, WIRE_REPORT, codec_put_report(&report, body, &len), &len);
}

static void act_small(struct play *p)
{
    static const uint16_t types[] = {WIRE_NUDGE, WIRE_STATS, WIRE_PING, WIRE_UNREGISTER};
    uint16_t type = types[fuzz_u8(&p->in) % 4];
    size_t len;

    if (type == WIRE_UNREGISTER)
        send_put(p, type, codec_put_unregister(p->me->part, body, &len), &len);
    else
        send_raw(p, type, body, 0, 0);
}

static void act_list(struct play *p)
{
    size_t len;

    send_put(p, WIRE_LIST,
             codec_put_list(fuzz_u8(&p->in) < 200 ? "clients" : "x", fuzz_u8(&p->in) & 3,
                            fuzz_u8(&p->in), body, &len),
             &len);
}

/* A copy that has ended, or any value anywhere. */
static void act_page(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in), i = p->names.n_words - 1 - how % 16;
    uint32_t word = p->names.words[i % WORDS_KEPT];
    uint64_t number = p->names.numbers[i % WORDS_KEPT];
    uint64_t *at;

    if (how >= 224) {
        word = fuzz_u8(&p->in);
        number = or_any(p, number);
    }
    if (p->me->page == NULL)
        return;
    at = (uint64_t *)(p->me->page + (size_t)(word % KVC_PAGE_WORDS) * KVC_PAGE_STRIDE +
                      KVC_PAGE_WORD_OFFSET);
    if (how & 16)
        at[-(int)(KVC_PAGE_WORD_OFFSET / 8)] = fuzz_u64(&p->in);
    __atomic_store_n(at, number, __ATOMIC_RELEASE);
}

static void keep_word(struct play *p, uint32_t word, uint64_t number)
{
    uint32_t i = p->names.n_words++ % WORDS_KEPT;

    FUZZ_REQUIRE(word < KVC_PAGE_WORDS);
    p->names.words[i] = word;
    p->names.numbers[i] = number;
}

static void require_place(uint32_t tier, uint64_t offset)
{
    FUZZ_REQUIRE(tier < TIER_COUNT);
    FUZZ_REQUIRE(offset < (tier == TIER_GPU ? RIG_GPU_BYTES : RIG_HOST_BYTES));
}

static void take_hello(struct play *p, const struct wire_packet *packet)
{
    struct codec_hello_reply reply;
    void *page;

    FUZZ_REQUIRE(codec_get_hello_reply(&p->scratch, packet, &reply));
    p->names.session = p->me->session = reply.session;
    memcpy(p->names.secret, reply.secret, sizeof(p->names.secret));
    FUZZ_REQUIRE((reply.page_words > 0) == (packet->n_fds == 1));
    if (packet->n_fds == 0)
        return;
    page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, packet->fds[0], 0);
    FUZZ_REQUIRE(page != MAP_FAILED);
    drop_page(p->me);
    p->me->page = page;
}

static void take_map(struct play *p, const struct wire_packet *packet)
{
    struct codec_map_reply reply;

    FUZZ_REQUIRE(codec_get_map_reply(&p->scratch, packet, &reply));
    FUZZ_REQUIRE(reply.n_extents == packet->n_fds);
    p->me->cursor = reply.cursor;
    p->me->n_extents = reply.n_extents;
    for (uint32_t i = 0; i < reply.n_extents; i++)
        p->me->extents[i] = reply.extents[i];
}

static void take_save(struct play *p, const struct wire_packet *packet)
{
    static struct codec_save_reply reply;
    uint32_t assigned = 0, chunked = 0;

    FUZZ_REQUIRE(codec_get_save_reply(&p->scratch, packet, &reply));
    for (uint32_t e = 0; e < reply.n_entries; e++) {
        for (uint32_t i = 0; i < reply.entries[e].n_assigned; i++)
            require_place(reply.entries[e].tiers[i], reply.entries[e].offsets[i]);
        assigned += reply.entries[e].n_assigned;
    }
    for (uint32_t i = 0; i < reply.n_chunks; i++) {
        keep_word(p, reply.chunk_words[i], reply.chunk_numbers[i]);
        chunked += reply.chunk_blocks[i];
    }
    FUZZ_REQUIRE(assigned == chunked);
    FUZZ_REQUIRE((reply.save != 0) == (assigned > 0));
    if (reply.save != 0)
        p->names.save = reply.save;
}

static void take_load(struct play *p, const struct wire_packet *packet)
{
    struct codec_load_reply reply;

    FUZZ_REQUIRE(codec_get_load_reply(&p->scratch, packet, &reply));
    for (uint32_t i = 0; i < reply.count; i++)
        require_place(reply.tiers[i], reply.offsets[i]);
    keep_word(p, reply.word, reply.number);
    if (reply.count > 0) {
        p->names.tier = reply.tiers[0];
        p->names.generation = reply.generations[0];
        p->names.offset = reply.offsets[0];
    }
}

static void take_lease(struct play *p, const struct wire_packet *packet)
{
    struct codec_lookup_reply reply;

    if (packet->type == (WIRE_LOOKUP | WIRE_REPLY))
        FUZZ_REQUIRE(codec_get_lookup_reply(&p->scratch, packet, &reply));
    else
        FUZZ_REQUIRE(codec_get_adopt_reply(&p->scratch, packet, &reply));
    if (reply.lease == 0)
        return;
    p->names.lease = reply.lease;
    if (packet->type == (WIRE_LOOKUP | WIRE_REPLY))
        memcpy(p->names.token, reply.token, sizeof(p->names.token));
}

static void take(struct play *p, const struct wire_packet *packet)
{
    struct codec_register_reply part;
    struct codec_outcome outcome;
    struct codec_error error;

    switch (packet->type) {
    case WIRE_HELLO | WIRE_REPLY:
        take_hello(p, packet);
        return;
    case WIRE_MAP | WIRE_REPLY:
        take_map(p, packet);
        return;
    case WIRE_REGISTER | WIRE_REPLY:
        FUZZ_REQUIRE(codec_get_register_reply(&p->scratch, packet, &part));
        p->me->part = part.part;
        p->me->epoch = part.epoch;
        break;
    case WIRE_LOOKUP | WIRE_REPLY:
    case WIRE_ADOPT | WIRE_REPLY:
        take_lease(p, packet);
        break;
    case WIRE_SAVE | WIRE_REPLY:
        take_save(p, packet);
        break;
    case WIRE_LOAD | WIRE_REPLY:
        take_load(p, packet);
        break;
    case WIRE_SAVE_DONE:
        FUZZ_REQUIRE(codec_get_save_done(&p->scratch, packet, &outcome));
        break;
    case WIRE_ERROR:
        FUZZ_REQUIRE(codec_get_error(packet, &error));
        break;
    default:
        break;
    }
    FUZZ_REQUIRE(packet->n_fds == 0);
}

static void act_read(struct play *p)
{
    struct wire_packet packet;
    const char *why = NULL;

    for (uint32_t n = 1 + fuzz_u8(&p->in) % 16; n > 0 && p->me->sock >= 0; n--) {
        enum wire_result result = wire_recv(p->me->sock, buffer, &packet, &why);

        FUZZ_REQUIRE(result != WIRE_BAD, "the daemon sent a malformed packet: %s", why);
        if (result != WIRE_OK)
            return;
        take(p, &packet);
        wire_close_fds(&packet);
    }
}

static void act_turn(struct play *p)
{
    rig_turn(&p->rig, 1 + fuzz_u8(&p->in) % 4);
}

static void act_settle(struct play *p)
{
    rig_settle(&p->rig);
}

static void act_clock(struct play *p)
{
    static const uint64_t steps[] = {500, 2000, 150000, 1100000, 6000000, 31000000, 700000000};

    clock_advance(steps[fuzz_u8(&p->in) % 7]);
    rig_turn(&p->rig, 2);
}

static void act_fault(struct play *p)
{
    static const char *const sites[] = {"mem.alloc",       "fd.dup",           "fd.memfd",
                                        "fd.map",          "fd.reopen",        "fd.seal",
                                        "fd.truncate",     "mover.copy",       "connection.poll",
                                        "listener.accept", "process.peerpidfd"};
    const char *site = sites[fuzz_u8(&p->in) % (sizeof(sites) / sizeof(sites[0]))];
    uint32_t how = fuzz_u8(&p->in);

    fault_arm(site, how & 15, 1 + (how >> 4) % 4);
}

/* What an operator may ask for: flushes, pins, and their end. */
static void act_flush(struct play *p)
{
    uint8_t keys[8 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in);
    struct store_scope scope = {.part = 1 + how % 3, .keys = keys};
    struct refusal why = {0};
    uint64_t blocks;
    uint32_t count;

    if (how & 64)
        scope.n_keys = put_keys(p, keys, 8);
    if (how & 128)
        scope = (struct store_scope){.all = true};
    if (how >> 2 & 3)
        (void)store_flush(p->rig.store, &scope, &blocks, &why);
    else if (how & 16)
        (void)store_pin(p->rig.store, &scope, how & 32 ? 1 : 0, &count, &why);
    else
        (void)store_unpin(p->rig.store, &scope, &count, &why);
}

static void act_stop(struct play *p)
{
    if (fuzz_u8(&p->in) == 77)
        api_stop(p->rig.api);
}

typedef void action(struct play *p);

static action *const actions[] = {
    act_connect, act_close,  act_half_close, act_raw,   act_body, act_hello, act_register,
    act_map,     act_lookup, act_save,       act_abort, act_load, act_lease, act_drained,
    act_report,  act_small,  act_list,       act_page,  act_read, act_turn,  act_settle,
    act_clock,   act_fault,  act_flush,      act_stop,
};
#define N_ACTIONS (sizeof(actions) / sizeof(actions[0]))

/* The actions that lead on, in an order that works, so that few bytes reach far. */
static void ready(struct play *p)
{
    static const uint8_t steps[] = {1, 0, 1};
    struct fuzz_input rest = p->in;

    act_connect(p);
    p->in = (struct fuzz_input){steps, 1};
    act_hello(p);
    rig_turn(&p->rig, 2);
    p->in = (struct fuzz_input){steps + 2, 1};
    act_read(p);
    p->in = (struct fuzz_input){steps + 1, 1};
    act_register(p);
    rig_turn(&p->rig, 1);
    act_read(p);
    for (int i = 0; i < 2; i++) {
        p->in = (struct fuzz_input){(const uint8_t *)"\xff", 1};
        act_map(p);
        rig_turn(&p->rig, 1);
        act_read(p);
    }
    p->in = rest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct play play;
    struct play *p = &play;
    const char *broken;

    if (size < 1)
        return 0;
    memset(p, 0, sizeof(*p));
    p->in = (struct fuzz_input){data, size};
    rig_open(&p->rig);
    for (uint32_t i = 0; i < CLIENTS; i++)
        p->clients[i].sock = -1;
    for (uint32_t n = fuzz_u8(&p->in) % (CLIENTS + 1); n > 0; n--) {
        p->me = &p->clients[n - 1];
        ready(p);
    }
    for (uint32_t n = 0; p->in.left > 0 && n < ACTIONS_MAX; n++) {
        uint32_t code = fuzz_u8(&p->in);

        p->me = &p->clients[code / N_ACTIONS % CLIENTS];
        actions[code % N_ACTIONS](p);
        if (code >= CLIENTS * N_ACTIONS) {
            rig_turn(&p->rig, 2);
            act_read(p);
        }
        broken = n % CHECK_EVERY == 0 ? store_check(p->rig.store) : NULL;
        FUZZ_REQUIRE(broken == NULL, "action %u: %s", n, broken);
    }
    fault_off("*");
    for (uint32_t i = 0; i < CLIENTS; i++) {
        p->me = &p->clients[i];
        act_close(p);
    }
    rig_turn(&p->rig, 2);
    broken = store_check(p->rig.store);
    FUZZ_REQUIRE(broken == NULL, "at the end: %s", broken);
    rig_close(&p->rig);
    for (uint32_t i = 0; i < CLIENTS; i++)
        drop_page(&p->clients[i]);
    codec_scratch_free(&p->scratch);
    return 0;
}
