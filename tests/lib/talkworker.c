#include "tests/lib/talkworker.h"

#include <check.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/wait.h"

#define PAGE_BYTES (KVC_PAGE_WORDS * KVC_PAGE_STRIDE)

static void hello(struct talkworker *w, const char *socket)
{
    Kvcache__Hello m = KVCACHE__HELLO__INIT;
    Kvcache__HelloReply *reply;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    m.version = 1;
    m.role = KVCACHE__ROLE__ROLE_WORKER;
    m.name = "talkworker";
    w->sock = talk_connect(socket);
    reply = talk_reply(w->sock, talk_send(w->sock, WIRE_HELLO, &m.base), WIRE_HELLO,
                       &kvcache__hello_reply__descriptor, fds, &n_fds);
    ck_assert_uint_eq(n_fds, 1);
    w->page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    ck_assert_ptr_ne(w->page, MAP_FAILED);
    close(fds[0]);
    w->session = reply->session;
    memcpy(w->secret, reply->secret.data, KVC_SECRET_BYTES);
    talk_free(reply);
}

static void register_part(struct talkworker *w, uint32_t slot_bytes)
{
    static uint8_t digest[KVC_NAMESPACE_BYTES] = "talkworker";
    Kvcache__Register m = KVCACHE__REGISTER__INIT;
    Kvcache__RegisterReply *reply;

    m.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    m.block_tokens = 16;
    m.n_slice_bytes = 1;
    m.slice_bytes = &slot_bytes;
    reply = talk_ask(w->sock, WIRE_REGISTER, &m.base, &kvcache__register_reply__descriptor);
    ck_assert_uint_eq(reply->slot_bytes, slot_bytes);
    w->part = reply->part;
    w->epoch = reply->epoch;
    talk_free(reply);
}

// Acknowledges what it is given until there is no more.
static void map_all(struct talkworker *w)
{
    uint32_t mapped[KVC_WIRE_FDS_MAX];
    Kvcache__Map m = KVCACHE__MAP__INIT;
    Kvcache__MapReply *reply;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    m.mapped = mapped;
    do {
        reply = talk_reply(w->sock, talk_send(w->sock, WIRE_MAP, &m.base), WIRE_MAP,
                           &kvcache__map_reply__descriptor, fds, &n_fds);
        ck_assert_uint_eq(reply->n_extents, n_fds);
        for (uint32_t i = 0; i < n_fds; i++)
            close(fds[i]);
        m.cursor = reply->cursor;
        m.n_mapped = reply->n_extents;
        for (uint32_t i = 0; i < n_fds; i++)
            mapped[i] = reply->extents[i];
        talk_free(reply);
    } while (m.n_mapped > 0);
}

void talkworker_open(struct talkworker *w, const char *socket, uint32_t slot_bytes)
{
    hello(w, socket);
    register_part(w, slot_bytes);
    map_all(w);
}

void talkworker_close(struct talkworker *w)
{
    munmap(w->page, PAGE_BYTES);
    close(w->sock);
}

static void make_keys(uint32_t first, uint32_t n, uint8_t *keys)
{
    memset(keys, 0, n * KVC_KEY_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = first + i;

        memcpy(keys + i * KVC_KEY_BYTES, &number, sizeof(number));
    }
}

uint32_t talkworker_send_save(struct talkworker *w, uint32_t first, uint32_t n, bool notify)
{
    static uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    Kvcache__SaveEntry entry = KVCACHE__SAVE_ENTRY__INIT, *entries = &entry;
    Kvcache__Save m = KVCACHE__SAVE__INIT;

    make_keys(first, n, keys);
    entry.part = w->part;
    entry.epoch = w->epoch;
    entry.keys = (ProtobufCBinaryData){n * KVC_KEY_BYTES, keys};
    m.n_entries = 1;
    m.entries = &entries;
    m.notify = notify;
    return talk_send(w->sock, WIRE_SAVE, &m.base);
}

Kvcache__SaveReply *talkworker_save_reply(struct talkworker *w, uint32_t seq)
{
    return talk_reply(w->sock, seq, WIRE_SAVE, &kvcache__save_reply__descriptor, NULL, NULL);
}

Kvcache__SaveReply *talkworker_save(struct talkworker *w, uint32_t first, uint32_t n, bool notify)
{
    return talkworker_save_reply(w, talkworker_send_save(w, first, n, notify));
}

void talkworker_prove(struct talkworker *w, uint32_t word, uint64_t number)
{
    _Atomic uint64_t *at =
        (_Atomic uint64_t *)(void *)(w->page + word * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET);

    ck_assert_uint_lt(word, KVC_PAGE_WORDS);
    atomic_store_explicit(at, number, memory_order_release);
}

void talkworker_prove_save(struct talkworker *w, const Kvcache__SaveReply *reply)
{
    for (size_t i = 0; i < reply->n_chunk_words; i++)
        talkworker_prove(w, reply->chunk_words[i], reply->chunk_numbers[i]);
}

uint32_t talkworker_hits(struct talkworker *w, uint32_t first, uint32_t n)
{
    static uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    Kvcache__LookupPart part = KVCACHE__LOOKUP_PART__INIT, *parts = &part;
    Kvcache__Lookup m = KVCACHE__LOOKUP__INIT;
    Kvcache__LookupReply *reply;
    uint32_t count;

    make_keys(first, n, keys);
    part.part = w->part;
    part.epoch = w->epoch;
    m.keys = (ProtobufCBinaryData){n * KVC_KEY_BYTES, keys};
    m.n_parts = 1;
    m.parts = &parts;
    m.probe = true;
    reply = talk_ask(w->sock, WIRE_LOOKUP, &m.base, &kvcache__lookup_reply__descriptor);
    count = reply->count;
    talk_free(reply);
    return count;
}

Kvcache__SaveDone *talkworker_done(struct talkworker *w)
{
    static uint8_t in[KVC_WIRE_PACKET_MAX];
    struct wire_packet packet;
    const char *why = "";
    enum wire_result result = WIRE_AGAIN;
    Kvcache__SaveDone *done;

    ck_assert_msg(
        wait_until((result = wire_recv(w->sock, in, &packet, &why)) != WIRE_AGAIN, TALK_MS),
        "no SAVE_DONE comes");
    ck_assert_int_eq(result, WIRE_OK);
    ck_assert_uint_eq(packet.type, WIRE_SAVE_DONE);
    done = kvcache__save_done__unpack(NULL, packet.body_len, packet.body);
    ck_assert_ptr_nonnull(done);
    return done;
}

Kvcache__StatsReply *talkworker_stats(struct talkworker *w)
{
    return talk_ask(w->sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
}
