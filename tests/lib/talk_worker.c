#include "tests/lib/talk_worker.h"

#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/wait.h"

#define PAGE_BYTES (KVC_PAGE_WORDS * KVC_PAGE_STRIDE)

static uint8_t key_bytes[2 * KVC_KEYS_MAX * KVC_KEY_BYTES];

static void say_hello(struct talk_worker *w, Kvcache__Role role)
{
    const Kvcache__Hello hello = talk_a_hello(role);
    Kvcache__HelloReply *reply;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    reply = talk_reply(w->sock, talk_send(w->sock, WIRE_HELLO, &hello.base), WIRE_HELLO,
                       &kvcache__hello_reply__descriptor, fds, &n_fds);
    w->session = reply->session;
    ck_assert_uint_eq(reply->secret.len, sizeof(w->secret));
    memcpy(w->secret, reply->secret.data, sizeof(w->secret));
    talk_free(reply);
    if (n_fds == 0)
        return;
    w->page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    ck_assert_ptr_ne(w->page, MAP_FAILED);
    close(fds[0]);
}

static void register_part(struct talk_worker *w, uint8_t ns, uint32_t *slices, size_t n_slices)
{
    Kvcache__Register message = KVCACHE__REGISTER__INIT;
    Kvcache__RegisterReply *reply;
    uint8_t digest[KVC_NAMESPACE_BYTES];

    memset(digest, ns, sizeof(digest));
    message.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    message.block_tokens = 16;
    message.slice_bytes = slices;
    message.n_slice_bytes = n_slices;
    reply = talk_ask(w->sock, WIRE_REGISTER, &message.base, &kvcache__register_reply__descriptor);
    w->part = reply->part;
    w->epoch = reply->epoch;
    talk_free(reply);
}

// Each call acknowledges what the one before told.
static void map_extents(struct talk_worker *w)
{
    uint32_t known[KVC_WIRE_FDS_MAX];
    Kvcache__Map message = KVCACHE__MAP__INIT;
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds;

    message.mapped = known;
    do {
        Kvcache__MapReply *reply =
            talk_reply(w->sock, talk_send(w->sock, WIRE_MAP, &message.base), WIRE_MAP,
                       &kvcache__map_reply__descriptor, fds, &n_fds);
        ck_assert_uint_eq(n_fds, reply->n_extents);
        ck_assert_uint_eq(reply->kinds.len, reply->n_extents);
        for (uint32_t i = 0; i < n_fds; i++) {
            ck_assert_uint_eq(reply->kinds.data[i], KVCACHE__MEMORY_KIND__MEMORY_MEMFD);
            known[i] = reply->extents[i];
            close(fds[i]);
        }
        message.n_mapped = n_fds;
        message.cursor = reply->cursor;
        w->n_extents += n_fds;
        talk_free(reply);
    } while (message.n_mapped > 0);
}

struct talk_worker talk_worker_unmapped(const char *socket, Kvcache__Role role, uint8_t ns)
{
    uint32_t slices[TALK_SLICES] = {TALK_SLICE_BYTES, TALK_SLICE_BYTES};
    struct talk_worker w = {.sock = talk_connect(socket)};

    say_hello(&w, role);
    register_part(&w, ns, slices, TALK_SLICES);
    return w;
}

struct talk_worker talk_worker_with_slots(const char *socket, uint32_t slot_bytes)
{
    struct talk_worker w = {.sock = talk_connect(socket)};

    say_hello(&w, KVCACHE__ROLE__ROLE_WORKER);
    register_part(&w, 1, &slot_bytes, 1);
    map_extents(&w);
    return w;
}

struct talk_worker talk_worker(const char *socket, Kvcache__Role role, uint8_t ns)
{
    struct talk_worker w = talk_worker_unmapped(socket, role, ns);

    if (role != KVCACHE__ROLE__ROLE_SCHEDULER)
        map_extents(&w);
    return w;
}

void talk_worker_close(struct talk_worker *w)
{
    if (w->sock >= 0)
        close(w->sock);
    if (w->page != NULL)
        munmap(w->page, PAGE_BYTES);
    w->sock = -1;
    w->page = NULL;
}

ProtobufCBinaryData talk_keys(uint32_t first, uint32_t n)
{
    ck_assert_uint_le(n * KVC_KEY_BYTES, sizeof(key_bytes));
    memset(key_bytes, 0, n * KVC_KEY_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = first + i + 1;
        memcpy(key_bytes + i * KVC_KEY_BYTES, &number, sizeof(number));
        // Bits in the upper half too, as hashes have them.
        key_bytes[i * KVC_KEY_BYTES + 15] = (uint8_t)(number * 37);
    }
    return (ProtobufCBinaryData){n * KVC_KEY_BYTES, key_bytes};
}

uint32_t talk_send_save(struct talk_worker *w, uint32_t first, uint32_t n, bool notify)
{
    Kvcache__SaveEntry entry = KVCACHE__SAVE_ENTRY__INIT, *entries = &entry;
    Kvcache__Save message = KVCACHE__SAVE__INIT;

    entry.part = w->part;
    entry.epoch = w->epoch;
    entry.keys = talk_keys(first, n);
    message.entries = &entries;
    message.n_entries = 1;
    message.notify = notify;
    message.no_wait = w->no_wait;
    return talk_send(w->sock, WIRE_SAVE, &message.base);
}

Kvcache__SaveReply *talk_save_reply(struct talk_worker *w, uint32_t seq)
{
    return talk_reply(w->sock, seq, WIRE_SAVE, &kvcache__save_reply__descriptor, NULL, NULL);
}

Kvcache__SaveReply *talk_save(struct talk_worker *w, uint32_t first, uint32_t n, bool notify)
{
    return talk_save_reply(w, talk_send_save(w, first, n, notify));
}

void talk_write_word(struct talk_worker *w, uint32_t word, uint64_t number)
{
    uint64_t *at;

    ck_assert_uint_lt(word, KVC_PAGE_WORDS);
    at = (uint64_t *)(void *)(w->page + word * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET);
    __atomic_store_n(at, number, __ATOMIC_RELEASE);
}

void talk_prove(struct talk_worker *w, const Kvcache__SaveReply *reply, size_t i)
{
    ck_assert_uint_lt(i, reply->n_chunk_words);
    talk_write_word(w, reply->chunk_words[i], reply->chunk_numbers[i]);
}

void talk_prove_all(struct talk_worker *w, const Kvcache__SaveReply *reply)
{
    for (size_t i = 0; i < reply->n_chunk_words; i++)
        talk_prove(w, reply, i);
}

Kvcache__SaveDone *talk_save_done(struct talk_worker *w)
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

static uint32_t send_lookup(struct talk_worker *w, uint32_t first, uint32_t n, bool probe)
{
    Kvcache__LookupPart part = KVCACHE__LOOKUP_PART__INIT, *parts = &part;
    Kvcache__Lookup message = KVCACHE__LOOKUP__INIT;

    part.part = w->part;
    part.epoch = w->epoch;
    message.keys = talk_keys(first, n);
    message.parts = &parts;
    message.n_parts = 1;
    message.probe = probe;
    return talk_send(w->sock, WIRE_LOOKUP, &message.base);
}

static Kvcache__LookupReply *lookup(struct talk_worker *w, uint32_t first, uint32_t n, bool probe)
{
    return talk_reply(w->sock, send_lookup(w, first, n, probe), WIRE_LOOKUP,
                      &kvcache__lookup_reply__descriptor, NULL, NULL);
}

uint32_t talk_send_lookup(struct talk_worker *w, uint32_t first, uint32_t n)
{
    return send_lookup(w, first, n, false);
}

uint32_t talk_probe(struct talk_worker *w, uint32_t first, uint32_t n)
{
    Kvcache__LookupReply *reply = lookup(w, first, n, true);
    uint32_t count = reply->count;

    ck_assert_uint_eq(reply->lease, 0);
    talk_free(reply);
    return count;
}

Kvcache__LookupReply *talk_lookup(struct talk_worker *w, uint32_t first, uint32_t n)
{
    return lookup(w, first, n, false);
}

void talk_publish(struct talk_worker *w, uint32_t first, uint32_t n)
{
    Kvcache__SaveReply *reply = talk_save(w, first, n, false);

    talk_prove_all(w, reply);
    talk_free(reply);
    wait_for(talk_probe(w, first, n) == n, TALK_MS);
}

Kvcache__StatsReply *talk_stats(int sock)
{
    return talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
}
