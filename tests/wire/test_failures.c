// Situations in which systems of this kind have failed, tried on ours over the wire. FAILURES.md
// lists all of them, and where each is tried.
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/wait.h"

#define N           16u
#define FIRST       1000u // keys that are not the neighbour's
#define SLOT_BYTES  8192u // of a talk_worker's blocks
#define SMALL       ((const char *const[]){"--gpu-bytes", "2M", "--host-bytes", "0", NULL})
#define SMALL_SLOTS 256u // of that

static Kvcache__LoadReply *load(struct talk_worker *w, uint64_t lease, uint32_t first, uint32_t n)
{
    Kvcache__Load message = KVCACHE__LOAD__INIT;

    message.lease = lease;
    message.part = w->part;
    message.epoch = w->epoch;
    message.first = first;
    message.count = n;
    return talk_ask(w->sock, WIRE_LOAD, &message.base, &kvcache__load_reply__descriptor);
}

static void close_load(struct talk_worker *w, Kvcache__LoadReply *reply)
{
    talk_write_word(w, reply->word, reply->number);
    talk_free(reply);
}

static kvc_status outcome(struct talk_worker *w, uint16_t type, const ProtobufCMessage *message)
{
    return talk_outcome(w->sock, talk_send(w->sock, type, message));
}

static void release(struct talk_worker *w, uint64_t lease)
{
    Kvcache__Release message = KVCACHE__RELEASE__INIT;

    message.lease = lease;
    ck_assert_int_eq(outcome(w, WIRE_RELEASE, &message.base), KVC_OK);
}

static uint64_t lease_of(struct talk_worker *w, uint32_t first, uint32_t n)
{
    Kvcache__LookupReply *reply = talk_lookup(w, first, n);
    uint64_t lease = reply->lease;

    ck_assert_uint_eq(reply->count, n);
    talk_free(reply);
    return lease;
}

// A location that was told before its slot was given to another key: the generation differs, and
// what is said about the old one changes nothing.
START_TEST(F12_a_reused_slot_has_another_generation)
{
    struct neighbour n;
    struct talk_worker *w = &n.worker;
    Kvcache__Report report = KVCACHE__REPORT__INIT;
    Kvcache__LoadReply *old, *new;
    uint64_t lease;

    neighbour_open(&n, SMALL);
    lease = lease_of(w, 0, 1);
    old = load(w, lease, 0, 1);
    release(w, lease);
    talk_write_word(w, old->word, old->number);
    // More than there is room for, so that every slot is another key's in the end.
    for (uint32_t i = 0; i < 2 * SMALL_SLOTS; i += 64)
        talk_publish(w, FIRST + i, 64);
    ck_assert_uint_eq(talk_probe(w, 0, 1), 0);
    for (uint32_t i = SMALL_SLOTS; i < 2 * SMALL_SLOTS; i++) {
        lease = lease_of(w, FIRST + i, 1);
        new = load(w, lease, 0, 1);
        ck_assert(new->offsets[0] != old->offsets[0] || new->generations[0] != old->generations[0]);
        close_load(w, new);
        release(w, lease);
    }
    report.part = w->part;
    report.generation = old->generations[0];
    report.offset = old->offsets[0];
    talk_send(w->sock, WIRE_REPORT, &report.base);
    for (uint32_t i = SMALL_SLOTS; i < 2 * SMALL_SLOTS; i += 64)
        ck_assert_uint_eq(talk_probe(w, FIRST + i, 64), 64);
    talk_free(old);
    talk_worker_close(w);
    daemon_stop(n.daemon);
}
END_TEST

// Every request that names a lease looks at its time, also when nothing else has yet.
START_TEST(F13_no_request_uses_a_lease_that_has_ended)
{
    struct neighbour n;
    struct talk_worker *w = &n.worker;
    Kvcache__LookupReply *reply;
    Kvcache__Load load_message = KVCACHE__LOAD__INIT;
    Kvcache__Extend extend = KVCACHE__EXTEND__INIT;
    Kvcache__Adopt adopt = KVCACHE__ADOPT__INIT;
    Kvcache__Lookup append = KVCACHE__LOOKUP__INIT;
    Kvcache__LookupPart part = KVCACHE__LOOKUP_PART__INIT, *parts = &part;
    kvc_status status = KVC_OK;

    neighbour_open(&n, NULL);
    reply = talk_lookup(w, 0, N);
    load_message.lease = extend.lease = append.lease = reply->lease;
    load_message.part = adopt.part = part.part = w->part;
    load_message.epoch = adopt.epoch = part.epoch = w->epoch;
    load_message.count = append.offset = N;
    append.keys = talk_keys(N, N);
    append.parts = &parts;
    append.n_parts = 1;
    adopt.token = reply->token;
    daemon_freeze(n.daemon);
    daemon_clock_advance(n.daemon, (reply->lease_ms + 1) * 1000ull);
    daemon_thaw(n.daemon);
    switch (_i) {
    case 0:
        status = outcome(w, WIRE_LOAD, &load_message.base);
        break;
    case 1:
        status = outcome(w, WIRE_EXTEND, &extend.base);
        break;
    case 2:
        status = outcome(w, WIRE_ADOPT, &adopt.base);
        break;
    default:
        status = outcome(w, WIRE_LOOKUP, &append.base);
        break;
    }
    ck_assert_msg(status == KVC_E_EXPIRED || status == KVC_E_UNKNOWN, "%s",
                  kvc_status_text(status));
    talk_free(reply);
    neighbour_close(&n);
}
END_TEST

// Blocks that are being loaded stay where they are while everything around them is evicted.
START_TEST(F16_evictions_while_a_load_is_open)
{
    struct neighbour n;
    struct talk_worker *w = &n.worker;
    Kvcache__LoadReply *first, *again;
    uint64_t lease;

    neighbour_open(&n, SMALL);
    lease = lease_of(w, 0, N);
    first = load(w, lease, 0, N);
    release(w, lease);
    for (uint32_t i = 0; i < 4 * SMALL_SLOTS; i += 64)
        talk_publish(w, FIRST + i, 64);
    lease = lease_of(w, 0, N);
    again = load(w, lease, 0, N);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(again->offsets[i], first->offsets[i]);
        ck_assert_uint_eq(again->generations[i], first->generations[i]);
    }
    close_load(w, first);
    close_load(w, again);
    release(w, lease);
    for (uint32_t i = 0; i < 2 * SMALL_SLOTS; i += 64)
        talk_publish(w, 2 * FIRST + i, 64);
    wait_for(talk_probe(w, 0, N) == 0, 2000);
    talk_worker_close(w);
    daemon_stop(n.daemon);
}
END_TEST

// A key without its bytes is no key: not before the word, not after its saver is gone, not in the
// daemon that comes after one that was killed.
START_TEST(F22_no_key_without_its_bytes)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker saver = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 7);
    struct talk_worker other = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 7);

    talk_free(talk_save(&saver, FIRST, N, false));
    ck_assert_uint_eq(talk_probe(&other, FIRST, N), 0);
    talk_worker_close(&saver);
    for (int i = 0; i < 50; i++)
        ck_assert_uint_eq(talk_probe(&other, FIRST, N), 0);
    talk_worker_close(&other);
    daemon_restart_killed(d);
    other = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 7);
    ck_assert_uint_eq(talk_probe(&other, FIRST, N), 0);
    talk_worker_close(&other);
    daemon_stop(d);
}
END_TEST

// What the figures say is what happened.
START_TEST(F26_figures_say_what_happened)
{
    struct neighbour n;
    struct talk_worker *w = &n.worker;
    Kvcache__StatsReply *before, *after;
    uint64_t lease;

    neighbour_open(&n, NULL);
    before = talk_stats(w->sock);
    talk_publish(w, FIRST, N);
    lease = lease_of(w, FIRST, N);
    close_load(w, load(w, lease, 0, N / 2));
    release(w, lease);
    ck_assert_uint_eq(talk_probe(w, 2 * FIRST, N), 0);
    talk_free(talk_lookup(w, 2 * FIRST, N));
    wait_for((after = talk_stats(w->sock), lease = after->open_loads, talk_free(after), lease == 0),
             2000);
    after = talk_stats(w->sock);
    ck_assert_uint_eq(after->published_blocks - before->published_blocks, N);
    ck_assert_uint_eq(after->blocks - before->blocks, N);
    ck_assert_uint_eq(after->tiers[0]->hits - before->tiers[0]->hits, N);
    ck_assert_uint_eq(after->tiers[0]->bytes_saved - before->tiers[0]->bytes_saved, N * SLOT_BYTES);
    ck_assert_uint_eq(after->tiers[0]->bytes_loaded - before->tiers[0]->bytes_loaded,
                      N / 2 * SLOT_BYTES);
    ck_assert_uint_gt(after->misses, before->misses);
    talk_free(before);
    talk_free(after);
    neighbour_close(&n);
}
END_TEST

// Released twice, extended after that, released by somebody else: no count goes below zero, and the
// blocks are as evictable as any.
START_TEST(F28_leases_are_released_once)
{
    struct neighbour n;
    struct talk_worker *w = &n.worker, other;
    Kvcache__Release message = KVCACHE__RELEASE__INIT;
    uint64_t lease, second;

    neighbour_open(&n, SMALL);
    other = talk_worker(n.socket, KVCACHE__ROLE__ROLE_READER, 7);
    lease = message.lease = lease_of(w, 0, N);
    second = lease_of(w, 0, N);
    ck_assert_int_eq(outcome(&other, WIRE_RELEASE, &message.base), KVC_E_DENIED);
    for (int i = 0; i < 3; i++)
        release(w, lease);
    // The other lease holds.
    for (uint32_t i = 0; i < 2 * SMALL_SLOTS; i += 64)
        talk_publish(w, FIRST + i, 64);
    ck_assert_uint_eq(talk_probe(w, 0, N), N);
    release(w, second);
    release(w, second);
    for (uint32_t i = 0; i < 2 * SMALL_SLOTS; i += 64)
        talk_publish(w, 2 * FIRST + i, 64);
    ck_assert_uint_eq(talk_probe(w, 0, N), 0);
    talk_worker_close(&other);
    talk_worker_close(w);
    daemon_stop(n.daemon);
}
END_TEST

// As many keys as a request may have, and one more; as many slices as a layout.
START_TEST(F33_requests_at_their_limits)
{
    struct neighbour n;
    struct talk_worker *w = &n.worker;
    static uint32_t slices[KVC_SLICES_MAX + 1];
    uint8_t digest[KVC_NAMESPACE_BYTES] = {9};
    Kvcache__Register part = KVCACHE__REGISTER__INIT;

    neighbour_open(&n, NULL);
    for (int i = 0; i < 5; i++) {
        talk_publish(w, FIRST, KVC_KEYS_MAX);
        release(w, lease_of(w, FIRST, KVC_KEYS_MAX));
    }
    ck_assert_int_eq(talk_outcome(w->sock, talk_send_lookup(w, FIRST, KVC_KEYS_MAX + 1)),
                     KVC_E_LIMIT);
    ck_assert_int_eq(talk_outcome(w->sock, talk_send_save(w, FIRST, KVC_KEYS_MAX + 1, false)),
                     KVC_E_LIMIT);
    for (uint32_t i = 0; i <= KVC_SLICES_MAX; i++)
        slices[i] = 16;
    part.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    part.block_tokens = 16;
    part.slice_bytes = slices;
    part.n_slice_bytes = KVC_SLICES_MAX + 1;
    ck_assert_int_eq(outcome(w, WIRE_REGISTER, &part.base), KVC_E_LIMIT);
    part.n_slice_bytes = KVC_SLICES_MAX;
    ck_assert_int_eq(outcome(w, WIRE_REGISTER, &part.base), KVC_OK);
    talk_worker_close(w);
    daemon_stop(n.daemon);
}
END_TEST

// One process, several sessions: each has its own page, leases and end.
START_TEST(F37_sessions_of_one_process)
{
    struct neighbour n;
    struct talk_worker other;
    uint64_t lease;

    neighbour_open(&n, NULL);
    lease = lease_of(&n.worker, 0, N);
    other = talk_worker(n.socket, KVCACHE__ROLE__ROLE_WORKER, 7);
    ck_assert_uint_ne(other.session, n.worker.session);
    talk_publish(&other, FIRST, N);
    talk_worker_close(&other);
    ck_assert_uint_eq(talk_probe(&n.worker, FIRST, N), N);
    close_load(&n.worker, load(&n.worker, lease, 0, N));
    release(&n.worker, lease);
    neighbour_close(&n);
}
END_TEST

#define CROWD 64

// All save, look up and load at once, and half of them go in the middle of it.
START_TEST(F40_many_workers_at_once)
{
    static struct talk_worker crowd[CROWD];
    uint32_t seqs[CROWD];
    struct neighbour n;

    // Room for all: none of them waits for another's block to be copied, or goes without.
    neighbour_open(&n, (const char *const[]){"--gpu-bytes", "64M", NULL});
    for (uint32_t i = 0; i < CROWD; i++)
        crowd[i] = talk_worker(n.socket, KVCACHE__ROLE__ROLE_WORKER, 7);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < CROWD; i++)
            talk_publish(&crowd[i], FIRST + (round * CROWD + i) * N, N);
        for (uint32_t i = 0; i < CROWD; i++)
            seqs[i] = talk_send_lookup(&crowd[i], FIRST + round * CROWD * N, N);
        for (uint32_t i = 0; i < CROWD; i++)
            ck_assert_int_eq(talk_outcome(crowd[i].sock, seqs[i]), KVC_OK);
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        if (i % 2 == 0)
            talk_send_lookup(&crowd[i], FIRST, N);
        talk_worker_close(&crowd[i]);
    }
    neighbour_works(&n);
    talk_worker_close(&n.worker);
    daemon_stop(n.daemon);
}
END_TEST

#define OUTSTANDING 512

// Sent before the first reply is read; each is answered.
START_TEST(F48_requests_outstanding)
{
    static uint32_t seqs[OUTSTANDING];
    struct neighbour n;
    uint32_t read = 0;

    neighbour_open(&n, NULL);
    for (uint32_t i = 0; i < OUTSTANDING; i++) {
        // Half of what is outstanding waits in the sockets, the rest in the daemon.
        if (i >= OUTSTANDING / 4)
            ck_assert_int_eq(talk_outcome(n.worker.sock, seqs[read++]), KVC_OK);
        seqs[i] = talk_send_lookup(&n.worker, 0, N);
    }
    while (read < OUTSTANDING)
        ck_assert_int_eq(talk_outcome(n.worker.sock, seqs[read++]), KVC_OK);
    talk_worker_close(&n.worker);
    daemon_stop(n.daemon);
}
END_TEST

CHECK_MAIN_LOOPS("wire/failures", CHECK_LIFE_S, {F12_a_reused_slot_has_another_generation, 0, 0},
                 {F13_no_request_uses_a_lease_that_has_ended, 0, 3},
                 {F16_evictions_while_a_load_is_open, 0, 0}, {F22_no_key_without_its_bytes, 0, 0},
                 {F26_figures_say_what_happened, 0, 0}, {F28_leases_are_released_once, 0, 0},
                 {F33_requests_at_their_limits, 0, 0}, {F37_sessions_of_one_process, 0, 0},
                 {F40_many_workers_at_once, 0, 0}, {F48_requests_outstanding, 0, 0})
