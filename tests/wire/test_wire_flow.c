// The sequences of PROTOCOL.md, packet by packet, without the library.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define WORKER KVCACHE__ROLE__ROLE_WORKER

static struct daemon *d;

static struct talk_worker worker(void)
{
    return talk_worker(daemon_socket(d), WORKER, 1);
}

// Waits for the notice that a save has ended.
static Kvcache__SaveDone *save_done(struct talk_worker *w)
{
    static uint8_t buf[KVC_WIRE_PACKET_MAX];
    struct wire_packet packet;
    enum wire_result result;
    const char *why;

    wait_for((result = wire_recv(w->sock, buf, &packet, &why)) != WIRE_AGAIN, TALK_MS);
    ck_assert_int_eq(result, WIRE_OK);
    ck_assert_uint_eq(packet.type, WIRE_SAVE_DONE);
    ck_assert_uint_eq(packet.seq, 0);
    Kvcache__SaveDone *done = kvcache__save_done__unpack(NULL, packet.body_len, packet.body);
    ck_assert_ptr_nonnull(done);
    return done;
}

static uint64_t quarantined(int sock)
{
    Kvcache__StatsReply *stats = talk_stats(sock);
    uint64_t n = stats->quarantined_slots;

    talk_free(stats);
    return n;
}

START_TEST(test_connect_register_map)
{
    Kvcache__HelloReply *reply;
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;
    int fds[KVC_WIRE_FDS_MAX], sock;
    struct talk_worker a, b;
    struct stat st;
    uint32_t n_fds;

    d = daemon_start(NULL);
    sock = talk_connect(daemon_socket(d));
    hello.version = 1;
    hello.role = WORKER;
    reply = talk_reply(sock, talk_send(sock, WIRE_HELLO, &hello.base), WIRE_HELLO,
                       &kvcache__hello_reply__descriptor, fds, &n_fds);
    ck_assert_str_eq(reply->device, "host");
    ck_assert_uint_ne(reply->boot_epoch, 0);
    ck_assert_uint_eq(reply->n_tiers, 2);
    ck_assert_uint_eq(reply->tiers[0]->bytes, 16 << 20);
    ck_assert_uint_eq(reply->tiers[1]->bytes, 32 << 20);
    for (int t = 0; t < 2; t++)
        ck_assert_uint_eq(reply->tiers[t]->extents * reply->tiers[t]->extent_bytes,
                          reply->tiers[t]->bytes);
    talk_free(reply);
    // The page: its size, its mode, its seals, and zeros in it.
    ck_assert_uint_eq(n_fds, 1);
    ck_assert_int_eq(fstat(fds[0], &st), 0);
    ck_assert_int_eq(st.st_size, KVC_PAGE_WORDS * KVC_PAGE_STRIDE);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    int seals = fcntl(fds[0], F_GET_SEALS);
    ck_assert_int_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                     F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    close(fds[0]);
    close(sock);

    a = worker();
    b = worker();
    ck_assert_uint_eq(a.part, b.part);
    ck_assert_uint_ne(a.session, b.session);
    ck_assert_mem_ne(a.secret, b.secret, KVC_SECRET_BYTES);
    ck_assert_uint_eq(a.n_extents, 8 + 16);
    talk_worker_close(&a);
    talk_worker_close(&b);
    daemon_stop(d);
}
END_TEST

// A chunk has at most 64 blocks here; k is visible only when 0..k are proved, each as a whole.
START_TEST(test_save_and_publication)
{
    struct talk_worker w;
    Kvcache__SaveReply *reply;
    Kvcache__SaveDone *done;

    d = daemon_start(NULL);
    w = worker();
    reply = talk_save(&w, 0, 150, true);
    ck_assert_uint_ne(reply->save, 0);
    ck_assert_uint_eq(reply->entries[0]->states.len, 150);
    for (size_t i = 0; i < 150; i++)
        ck_assert_uint_eq(reply->entries[0]->states.data[i], KVCACHE__KEY_STATE__KEY_ASSIGNED);
    ck_assert_uint_eq(reply->n_chunk_blocks, 3);
    ck_assert_uint_eq(reply->chunk_blocks[0], 64);
    ck_assert_uint_eq(reply->chunk_blocks[1], 64);
    ck_assert_uint_eq(reply->chunk_blocks[2], 22);
    ck_assert_uint_eq(talk_probe(&w, 0, 150), 0);
    talk_prove(&w, reply, 1);
    // A nudge has been handled when a later PING comes back.
    talk_send(w.sock, WIRE_NUDGE, NULL);
    talk_ping(w.sock);
    ck_assert_uint_eq(talk_probe(&w, 0, 150), 0);
    talk_prove(&w, reply, 0);
    talk_send(w.sock, WIRE_NUDGE, NULL);
    talk_ping(w.sock);
    ck_assert_uint_eq(talk_probe(&w, 0, 150), 128);
    // Without a nudge, and without a packet.
    talk_prove(&w, reply, 2);
    done = save_done(&w);
    ck_assert_uint_eq(done->save, reply->save);
    ck_assert_uint_eq(done->status, KVC_OK);
    ck_assert_uint_eq(done->published, 150);
    ck_assert_uint_eq(done->dropped, 0);
    ck_assert_uint_eq(talk_probe(&w, 0, 150), 150);
    talk_free(done);
    talk_free(reply);
    // All hits: nothing to copy.
    reply = talk_save(&w, 0, 150, true);
    ck_assert_uint_eq(reply->save, 0);
    ck_assert_uint_eq(reply->n_chunk_blocks, 0);
    ck_assert_uint_eq(reply->entries[0]->n_offsets, 0);
    ck_assert_uint_eq(reply->entries[0]->states.data[149], KVCACHE__KEY_STATE__KEY_HIT);
    talk_free(reply);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(test_wrong_numbers_prove_nothing)
{
    struct talk_worker w;
    Kvcache__SaveReply *reply;

    d = daemon_start(NULL);
    w = worker();
    reply = talk_save(&w, 0, 3, false);
    const uint64_t right = reply->chunk_numbers[0];
    const uint64_t wrong[] = {0, right - 1, right + 1, right << 32, right | 1ull << 63, UINT64_MAX};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        talk_write_word(&w, reply->chunk_words[0], wrong[i]);
        // The right number, in words that nobody waits for.
        talk_write_word(&w, (reply->chunk_words[0] + 1 + (uint32_t)i) % KVC_PAGE_WORDS,
                        reply->chunk_numbers[0]);
        talk_send(w.sock, WIRE_NUDGE, NULL);
        talk_ping(w.sock);
        ck_assert_uint_eq(talk_probe(&w, 0, 3), 0);
    }
    talk_prove(&w, reply, 0);
    wait_for(talk_probe(&w, 0, 3) == 3, TALK_MS);
    talk_free(reply);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

static Kvcache__LoadReply *load(struct talk_worker *w, uint64_t lease, uint32_t count)
{
    Kvcache__Load message = KVCACHE__LOAD__INIT;

    message.lease = lease;
    message.part = w->part;
    message.epoch = w->epoch;
    message.count = count;
    return talk_ask(w->sock, WIRE_LOAD, &message.base, &kvcache__load_reply__descriptor);
}

static void release(struct talk_worker *w, uint64_t lease)
{
    Kvcache__Release message = KVCACHE__RELEASE__INIT;

    message.lease = lease;
    talk_free(talk_ask(w->sock, WIRE_RELEASE, &message.base, &kvcache__empty__descriptor));
}

static uint64_t open_loads(int sock)
{
    Kvcache__StatsReply *stats = talk_stats(sock);
    uint64_t n = stats->open_loads;

    talk_free(stats);
    return n;
}

START_TEST(test_lookup_lease_load)
{
    struct talk_worker w, other;
    Kvcache__LookupReply *lookup;
    Kvcache__LoadReply *reply;
    Kvcache__Load message = KVCACHE__LOAD__INIT;

    d = daemon_start(NULL);
    w = worker();
    other = worker();
    talk_publish(&w, 0, 3);
    lookup = talk_lookup(&other, 0, 4);
    ck_assert_uint_eq(lookup->count, 3);
    ck_assert_uint_ne(lookup->lease, 0);
    ck_assert_uint_eq(lookup->token.len, KVC_TOKEN_BYTES);
    ck_assert_uint_eq(lookup->lease_ms, KVC_LEASE_MS_DEFAULT);
    ck_assert_uint_eq(lookup->gpu + lookup->host, 3);
    reply = load(&other, lookup->lease, 3);
    ck_assert_uint_eq(reply->tiers.len, 3);
    ck_assert_uint_eq(reply->n_offsets, 3);
    ck_assert_uint_eq(reply->n_generations, 3);
    ck_assert_uint_eq(reply->checked.len, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(reply->offsets[i] % KVC_SLOT_ALIGN, 0);
        ck_assert_uint_eq(reply->checked.data[i], 0); // saved without checksums
    }
    ck_assert_uint_eq(open_loads(other.sock), 1);
    release(&other, lookup->lease);
    release(&other, lookup->lease);
    ck_assert_uint_eq(open_loads(other.sock), 1);
    // Somebody else's lease, and one that has ended: no location.
    message.lease = lookup->lease;
    message.part = w.part;
    message.epoch = w.epoch;
    message.count = 1;
    talk_expect_error(other.sock, talk_send(other.sock, WIRE_LOAD, &message.base), KVC_E_EXPIRED,
                      "lease");
    talk_write_word(&other, reply->word, reply->number);
    wait_for(open_loads(other.sock) == 0, TALK_MS);
    talk_free(reply);
    talk_free(lookup);
    talk_worker_close(&w);
    talk_worker_close(&other);
    daemon_stop(d);
}
END_TEST

START_TEST(test_lease_handed_over)
{
    struct talk_worker scheduler, w;
    Kvcache__LookupReply *lookup;
    Kvcache__AdoptReply *adopted;
    Kvcache__LoadReply *reply;
    Kvcache__Adopt message = KVCACHE__ADOPT__INIT;

    d = daemon_start(NULL);
    w = worker();
    talk_publish(&w, 0, 5);
    scheduler = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, 1);
    ck_assert_ptr_null(scheduler.page);
    lookup = talk_lookup(&scheduler, 0, 5);
    ck_assert_uint_eq(lookup->count, 5);
    message.token = lookup->token;
    message.part = w.part;
    message.epoch = w.epoch;
    adopted = talk_ask(w.sock, WIRE_ADOPT, &message.base, &kvcache__adopt_reply__descriptor);
    ck_assert_uint_eq(adopted->count, 5);
    ck_assert_uint_ne(adopted->lease, lookup->lease);
    release(&scheduler, lookup->lease);
    talk_worker_close(&scheduler);
    reply = load(&w, adopted->lease, 5);
    talk_write_word(&w, reply->word, reply->number);
    wait_for(open_loads(w.sock) == 0, TALK_MS);
    // The token went with its lease.
    uint32_t seq = talk_send(w.sock, WIRE_ADOPT, &message.base);
    talk_expect_error(w.sock, seq, KVC_E_UNKNOWN, "token");
    talk_free(reply);
    talk_free(adopted);
    talk_free(lookup);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(test_broken_connection_and_drained)
{
    struct talk_worker old, new;
    Kvcache__SaveReply *reply;
    Kvcache__Drained message = KVCACHE__DRAINED__INIT;

    d = daemon_start(NULL);
    old = worker();
    reply = talk_save(&old, 0, 70, false); // two chunks
    talk_prove(&old, reply, 0);
    close(old.sock);
    old.sock = -1;
    // The first chunk was proved before the end; of the second nobody knows.
    new = worker();
    wait_for(quarantined(new.sock) == 6, TALK_MS);
    ck_assert_uint_eq(talk_probe(&new, 0, 70), 64);
    message.session = old.session;
    message.secret = (ProtobufCBinaryData){KVC_SECRET_BYTES, new.secret};
    talk_expect_error(new.sock, talk_send(new.sock, WIRE_DRAINED, &message.base), KVC_E_DENIED,
                      "secret");
    ck_assert_uint_eq(quarantined(new.sock), 6);
    message.secret.data = old.secret;
    talk_free(talk_ask(new.sock, WIRE_DRAINED, &message.base, &kvcache__empty__descriptor));
    ck_assert_uint_eq(quarantined(new.sock), 0);
    ck_assert_uint_eq(talk_probe(&new, 0, 70), 64);
    talk_free(reply);
    talk_worker_close(&old);
    talk_worker_close(&new);
    daemon_stop(d);
}
END_TEST

// A word that comes after the end of its session frees slots and publishes nothing.
START_TEST(test_word_after_the_end)
{
    struct talk_worker old, new;
    Kvcache__SaveReply *reply;

    d = daemon_start(NULL);
    old = worker();
    new = worker();
    reply = talk_save(&old, 0, 5, false);
    close(old.sock);
    old.sock = -1;
    wait_for(quarantined(new.sock) == 5, TALK_MS);
    talk_prove(&old, reply, 0);
    wait_for(quarantined(new.sock) == 0, TALK_MS);
    ck_assert_uint_eq(talk_probe(&new, 0, 5), 0);
    talk_free(reply);
    talk_worker_close(&old);
    talk_worker_close(&new);
    daemon_stop(d);
}
END_TEST

START_TEST(test_abort_by_request)
{
    Kvcache__SaveEntry entry = KVCACHE__SAVE_ENTRY__INIT, *entries = &entry;
    Kvcache__Save save = KVCACHE__SAVE__INIT;
    Kvcache__Abort message = KVCACHE__ABORT__INIT;
    Kvcache__AbortReply *aborted;
    struct talk_worker w;

    d = daemon_start(NULL);
    w = worker();
    entry.part = w.part;
    entry.epoch = w.epoch;
    entry.keys = talk_keys(0, 5);
    save.entries = &entries;
    save.n_entries = 1;
    save.notify = true;
    // Both are sent before either reply is looked at.
    message.request = talk_send(w.sock, WIRE_SAVE, &save.base);
    message.never_all = true;
    uint32_t seq = talk_send(w.sock, WIRE_ABORT, &message.base);
    talk_free(talk_reply(w.sock, message.request, WIRE_SAVE, &kvcache__save_reply__descriptor, NULL,
                         NULL));
    aborted = talk_reply(w.sock, seq, WIRE_ABORT, &kvcache__abort_reply__descriptor, NULL, NULL);
    ck_assert_uint_eq(aborted->status, KVC_E_CANCELLED);
    ck_assert_uint_eq(aborted->published, 0);
    ck_assert_uint_eq(aborted->dropped, 5);
    talk_free(aborted);
    Kvcache__StatsReply *stats = talk_stats(w.sock);
    ck_assert_uint_eq(stats->filling_slots + stats->quarantined_slots, 0);
    ck_assert_uint_eq(stats->blocks, 0);
    talk_free(stats);
    // Told once; and it is not there any more.
    seq = talk_send(w.sock, WIRE_ABORT, &message.base);
    talk_expect_error(w.sock, seq, KVC_E_UNKNOWN, "request");
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Its reply comes when the copies that were enqueued have ended, and not before.
START_TEST(test_abort_waits_for_the_copies)
{
    Kvcache__Abort message = KVCACHE__ABORT__INIT;
    Kvcache__AbortReply *aborted;
    Kvcache__SaveReply *reply;
    struct talk_worker w;
    uint32_t never = 2;

    d = daemon_start(NULL);
    w = worker();
    reply = talk_save(&w, 0, 150, true);
    talk_prove(&w, reply, 0);
    message.save = reply->save;
    message.never = &never;
    message.n_never = 1;
    uint32_t seq = talk_send(w.sock, WIRE_ABORT, &message.base);
    talk_ping(w.sock); // which would meet an answer that came too early
    ck_assert_uint_eq(talk_probe(&w, 0, 150), 64);
    ck_assert_uint_eq(quarantined(w.sock), 64);
    talk_prove(&w, reply, 1);
    aborted = talk_reply(w.sock, seq, WIRE_ABORT, &kvcache__abort_reply__descriptor, NULL, NULL);
    ck_assert_uint_eq(aborted->status, KVC_E_CANCELLED);
    ck_assert_uint_eq(aborted->published, 64);
    ck_assert_uint_eq(aborted->dropped, 86);
    ck_assert_uint_eq(quarantined(w.sock), 0);
    ck_assert_uint_eq(talk_probe(&w, 0, 150), 64);
    talk_free(aborted);
    talk_free(reply);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("wire/flow", CHECK_LIFE_S, test_connect_register_map, test_save_and_publication,
           test_wrong_numbers_prove_nothing, test_lookup_lease_load, test_lease_handed_over,
           test_broken_connection_and_drained, test_word_after_the_end, test_abort_by_request,
           test_abort_waits_for_the_copies)
