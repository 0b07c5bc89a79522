// Flushes and pins as the library, kvcachectl and a client without the library ask for them.
#include <string.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/talk.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

static struct daemon *d;
static struct engine worker, other;
static uint8_t keys[ENGINE_BLOCKS * KVC_KEY_BYTES];

static void begin(void)
{
    d = daemon_start(NULL);
    engine_open(&worker, daemon_socket(d));
    engine_open(&other, daemon_socket(d));
}

static void end(void)
{
    engine_close(&other);
    engine_close(&worker);
    daemon_stop(d);
}

// As engine.c makes them.
static const uint8_t *keys_of(uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t number = first + i;

        kvc_key(&number, sizeof(number), keys + (size_t)i * KVC_KEY_BYTES);
    }
    return keys;
}

START_TEST(S42_a_worker_flushes_its_namespace)
{
    uint64_t blocks, save;
    kvc_lease lease;
    uint8_t states[2];

    begin();
    engine_put(&worker, 0, 20);
    ck_assert_uint_eq(engine_lookup(&other, 0, 20), 20);
    lease = other.lease;
    ck_assert_int_eq(kvc_flush(worker.client, worker.part, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 20);
    // Who flushed goes on at once, others register again.
    ck_assert_uint_eq(engine_probe(&worker, 0, 20), 0);
    engine_put(&worker, 0, 10);
    ck_assert_int_eq(engine_try_lookup(&other, 0, 10), KVC_E_STALE);
    ck_assert_int_eq(kvc_extend(other.client, lease.id, 0, NULL), KVC_E_EXPIRED);
    ck_assert_int_eq(engine_try_save(&other, 100, 2, states, &save), KVC_E_STALE);
    engine_close(&other);
    engine_open(&other, daemon_socket(d));
    ck_assert_uint_eq(engine_lookup(&other, 0, 20), 10);
    engine_load(&other);
    end();
}
END_TEST

START_TEST(S42_keys_are_flushed)
{
    uint64_t blocks;

    begin();
    engine_put(&worker, 0, 20);
    ck_assert_int_eq(kvc_flush_keys(worker.client, worker.part, NULL, 0, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    ck_assert_uint_eq(engine_count(&worker, 0, 20), 20);
    ck_assert_int_eq(kvc_flush_keys(worker.client, worker.part, keys_of(5, 3), 3, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 3);
    ck_assert_uint_eq(engine_count(&other, 0, 20), 17);
    ck_assert_int_eq(kvc_flush_keys(worker.client, worker.part, NULL, 1, &blocks), KVC_E_INVALID);
    ck_assert_int_eq(kvc_flush_keys(worker.client, 99, keys, 1, &blocks), KVC_E_UNKNOWN);
    end();
}
END_TEST

START_TEST(S28_blocks_are_pinned)
{
    uint32_t n;

    begin();
    engine_put(&worker, 0, 20);
    ck_assert_int_eq(kvc_pin(worker.client, worker.part, NULL, 0, 0, &n), KVC_OK);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(kvc_pin(worker.client, worker.part, keys_of(0, 40), 40, 60, &n), KVC_OK);
    ck_assert_uint_eq(n, 20);
    ck_assert_uint_eq(engine_stats(other.client).pinned_blocks, 20);
    ck_assert_int_eq(kvc_unpin(other.client, other.part, keys_of(10, 20), 20, &n), KVC_OK);
    ck_assert_uint_eq(n, 10);
    daemon_clock_advance(d, 61 * 1000000ull);
    ck_assert_int_eq(kvc_ping(worker.client), KVC_OK);
    wait_for(engine_stats(other.client).pinned_blocks == 0, 5000);
    ck_assert_int_eq(
        kvc_pin(worker.client, worker.part, keys_of(0, 1), 1, KVC_PIN_SECONDS_MAX + 1, &n),
        KVC_E_LIMIT);
    ck_assert_int_eq(strncmp(kvc_error(worker.client), "seconds", 7), 0);
    end();
}
END_TEST

static void refused(int sock, uint16_t type, const ProtobufCMessage *m, kvc_status status,
                    const char *field)
{
    talk_expect_error(sock, talk_send(sock, type, m), status, field);
}

static uint64_t flushed(int sock, const Kvcache__Flush *m)
{
    Kvcache__FlushReply *r =
        talk_ask(sock, WIRE_FLUSH, &m->base, &kvcache__flush_reply__descriptor);
    uint64_t blocks = r->blocks;

    talk_free(r);
    return blocks;
}

static uint32_t pinned(int sock, const Kvcache__Pin *m)
{
    Kvcache__PinReply *r = talk_ask(sock, WIRE_PIN, &m->base, &kvcache__pin_reply__descriptor);
    uint32_t count = r->count;

    talk_free(r);
    return count;
}

START_TEST(S42_on_the_wire)
{
    uint8_t digest[KVC_NAMESPACE_BYTES];
    Kvcache__Flush flush = KVCACHE__FLUSH__INIT;
    Kvcache__Pin pin = KVCACHE__PIN__INIT;
    struct talk_worker w;
    Kvcache__StatsReply *stats;
    int operator_, reader;

    d = daemon_start(NULL);
    w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 5);
    operator_ = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    reader = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_READER, NULL);
    talk_publish(&w, 0, 10);
    memset(digest, 5, sizeof(digest));

    refused(reader, WIRE_FLUSH, NULL, KVC_E_DENIED, "");
    refused(reader, WIRE_PIN, NULL, KVC_E_DENIED, "");
    refused(w.sock, WIRE_FLUSH, NULL, KVC_E_INVALID, "part");
    refused(w.sock, WIRE_PIN, NULL, KVC_E_INVALID, "part");
    flush.all = true;
    refused(w.sock, WIRE_FLUSH, &flush.base, KVC_E_DENIED, "all");
    flush.part = w.part;
    refused(operator_, WIRE_FLUSH, &flush.base, KVC_E_INVALID, "all");
    flush.all = false;
    flush.keys = talk_keys(0, 2);
    flush.keys.len--;
    refused(w.sock, WIRE_FLUSH, &flush.base, KVC_E_INVALID, "keys");
    flush.keys.len++;
    flush.part = 0;
    flush.namespace_digest = (ProtobufCBinaryData){31, digest};
    refused(operator_, WIRE_FLUSH, &flush.base, KVC_E_INVALID, "namespace_digest");
    pin.part = w.part;
    pin.seconds = KVC_PIN_SECONDS_MAX + 1;
    refused(w.sock, WIRE_PIN, &pin.base, KVC_E_LIMIT, "seconds");
    pin.unpin = true;
    pin.seconds = 1;
    refused(w.sock, WIRE_PIN, &pin.base, KVC_E_INVALID, "seconds");
    pin.unpin = false;
    pin.part = w.part + 100;
    refused(w.sock, WIRE_PIN, &pin.base, KVC_E_UNKNOWN, "part");

    pin = (Kvcache__Pin)KVCACHE__PIN__INIT;
    pin.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    pin.keys = talk_keys(0, 20);
    ck_assert_uint_eq(pinned(operator_, &pin), 10);
    stats = talk_stats(operator_);
    ck_assert_uint_eq(stats->pinned_blocks, 10);
    talk_free(stats);
    flush.namespace_digest.len = sizeof(digest);
    flush.keys = talk_keys(1, 2);
    ck_assert_uint_eq(flushed(operator_, &flush), 2);
    ck_assert_uint_eq(talk_probe(&w, 0, 10), 1);
    pin.keys.len = 0;
    pin.unpin = true;
    ck_assert_uint_eq(pinned(w.sock, &pin), 8);
    flush = (Kvcache__Flush)KVCACHE__FLUSH__INIT;
    flush.all = true;
    ck_assert_uint_eq(flushed(operator_, &flush), 8);
    close(operator_);
    close(reader);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Nothing that was in flight when a namespace was flushed is a hit afterwards.
START_TEST(S42_in_flight_on_the_wire)
{
    Kvcache__Flush flush = KVCACHE__FLUSH__INIT;
    Kvcache__SaveReply *save;
    struct talk_worker w, again;

    d = daemon_start(NULL);
    w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 5);
    save = talk_save(&w, 0, 100, false);
    flush.part = w.part;
    ck_assert_uint_eq(flushed(w.sock, &flush), 0);
    talk_prove(&w, save, 0);
    talk_prove(&w, save, 1);
    talk_free(save);
    again = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 5);
    ck_assert_uint_eq(again.part, w.part);
    ck_assert_uint_eq(again.epoch, w.epoch + 1);
    talk_send(w.sock, WIRE_NUDGE, NULL);
    talk_ping(w.sock);
    ck_assert_uint_eq(talk_probe(&again, 0, 100), 0);
    talk_publish(&again, 0, 100);
    talk_worker_close(&again);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("life/flush", CHECK_LIFE_S,
                 {S42_a_worker_flushes_its_namespace, 0, 0, CHECK_BOTH_WAYS},
                 {S42_keys_are_flushed, 0, 0, CHECK_BOTH_WAYS},
                 {S28_blocks_are_pinned, 0, 0, CHECK_BOTH_WAYS}, {S42_on_the_wire, 0, 0},
                 {S42_in_flight_on_the_wire, 0, 0})
