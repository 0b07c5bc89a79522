// WATCH without the library: when it is answered, and what is refused.
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define SHORT_MS 50
#define LONG_MS  60000

static struct daemon *d;
static struct talk_worker worker;
static int sock; // an operator's

static void begin(void)
{
    d = daemon_start(NULL);
    worker = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);
    sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
}

static void end(void)
{
    close(sock);
    talk_worker_close(&worker);
    daemon_stop(d);
}

static uint32_t ask(uint64_t after, uint32_t wait_ms)
{
    Kvcache__Watch m = KVCACHE__WATCH__INIT;

    m.after = after;
    m.wait_ms = wait_ms;
    return talk_send(sock, WIRE_WATCH, &m.base);
}

static Kvcache__WatchReply *answer(uint32_t seq)
{
    return talk_reply(sock, seq, WIRE_WATCH, &kvcache__watch_reply__descriptor, NULL, NULL);
}

START_TEST(what_has_happened_is_answered_at_once)
{
    Kvcache__WatchReply *reply;

    begin();
    talk_publish(&worker, 1, 3);
    reply = answer(ask(0, LONG_MS));
    ck_assert_uint_eq(reply->n_sequences, 3);
    ck_assert_uint_eq(reply->after, 3);
    ck_assert_uint_eq(reply->lost, 0);
    ck_assert(!reply->more);
    ck_assert_uint_ne(reply->boot_epoch, 0);
    // In the order of the prompt, and each behind the one before.
    ck_assert_int_eq(memcmp(reply->keys.data, talk_keys(1, 3).data, (size_t)3 * KVC_KEY_BYTES), 0);
    ck_assert_int_eq(memcmp(reply->parents.data + KVC_KEY_BYTES, talk_keys(1, 2).data,
                            (size_t)2 * KVC_KEY_BYTES),
                     0);
    ck_assert_uint_eq(reply->n_named, 1);
    ck_assert_uint_eq(reply->named[0]->part, worker.part);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(reply->sequences[i], i + 1);
        ck_assert_uint_eq(reply->types.data[i], KVCACHE__EVENT_TYPE__EVENT_BLOCK_STORED);
        ck_assert_uint_eq(reply->tiers.data[i], KVCACHE__TIER__TIER_GPU);
        ck_assert_uint_eq(reply->parts[i], worker.part);
    }
    talk_free(reply);
    end();
}
END_TEST

START_TEST(who_waits_is_told_when_something_happens)
{
    Kvcache__WatchReply *reply;
    uint32_t seq;

    begin();
    seq = ask(0, LONG_MS);
    talk_ping(sock); // which the daemon answers meanwhile
    talk_publish(&worker, 1, 2);
    reply = answer(seq);
    ck_assert_uint_eq(reply->n_sequences, 2);
    talk_free(reply);
    end();
}
END_TEST

START_TEST(nothing_is_an_answer_when_the_time_is_over)
{
    Kvcache__WatchReply *reply;

    begin();
    talk_publish(&worker, 1, 2);
    for (uint32_t ms = 0; ms <= SHORT_MS; ms += SHORT_MS) {
        reply = answer(ask(2, ms));
        ck_assert_uint_eq(reply->n_sequences, 0);
        ck_assert_uint_eq(reply->after, 2);
        ck_assert_uint_eq(reply->lost, 0);
        talk_free(reply);
    }
    end();
}
END_TEST

START_TEST(only_what_happens_from_now_on)
{
    Kvcache__Watch m = KVCACHE__WATCH__INIT;
    Kvcache__WatchReply *reply;

    begin();
    talk_publish(&worker, 1, 2);
    m.latest = true;
    reply = talk_ask(sock, WIRE_WATCH, &m.base, &kvcache__watch_reply__descriptor);
    ck_assert_uint_eq(reply->n_sequences, 0);
    ck_assert_uint_eq(reply->after, 2);
    talk_free(reply);
    end();
}
END_TEST

START_TEST(another_daemons_number_begins_anew)
{
    Kvcache__Watch m = KVCACHE__WATCH__INIT;
    Kvcache__WatchReply *reply;

    begin();
    m.boot_epoch = 77;
    m.after = 123456;
    m.wait_ms = LONG_MS;
    // At once, though nothing has happened.
    reply = talk_ask(sock, WIRE_WATCH, &m.base, &kvcache__watch_reply__descriptor);
    ck_assert_uint_eq(reply->n_sequences, 0);
    ck_assert_uint_eq(reply->after, 0);
    ck_assert_uint_ne(reply->boot_epoch, 77);
    talk_free(reply);
    talk_publish(&worker, 1, 2);
    reply = talk_ask(sock, WIRE_WATCH, &m.base, &kvcache__watch_reply__descriptor);
    ck_assert_uint_eq(reply->n_sequences, 2);
    talk_free(reply);
    end();
}
END_TEST

START_TEST(what_is_wrong_is_refused_and_one_at_a_time_waits)
{
    Kvcache__Watch m = KVCACHE__WATCH__INIT;
    Kvcache__WatchReply *reply;
    uint8_t digest[KVC_NAMESPACE_BYTES] = {0};
    uint32_t seq;

    begin();
    talk_expect_error(sock, ask(1, 0), KVC_E_INVALID, "after");
    m.namespace_digest = (ProtobufCBinaryData){.len = 31, .data = digest};
    talk_expect_error(sock, talk_send(sock, WIRE_WATCH, &m.base), KVC_E_INVALID,
                      "namespace_digest");
    // One that nobody has: nothing happens there.
    m.namespace_digest.len = 32;
    talk_publish(&worker, 1, 2);
    reply = talk_ask(sock, WIRE_WATCH, &m.base, &kvcache__watch_reply__descriptor);
    ck_assert_uint_eq(reply->n_sequences, 0);
    ck_assert_uint_eq(reply->after, 2);
    talk_free(reply);
    seq = ask(2, LONG_MS);
    talk_expect_error(sock, ask(2, LONG_MS), KVC_E_BUSY, "");
    talk_publish(&worker, 3, 1);
    reply = answer(seq);
    ck_assert_uint_eq(reply->n_sequences, 1);
    talk_free(reply);
    end();
}
END_TEST

// A worker, which needs no other role for it.
START_TEST(a_worker_follows_its_tenant)
{
    Kvcache__Watch m = KVCACHE__WATCH__INIT;
    Kvcache__WatchReply *reply;

    begin();
    talk_publish(&worker, 1, 2);
    reply = talk_ask(worker.sock, WIRE_WATCH, &m.base, &kvcache__watch_reply__descriptor);
    ck_assert_uint_eq(reply->n_sequences, 2);
    talk_free(reply);
    end();
}
END_TEST

START_TEST(who_goes_while_it_waits_leaves_nothing)
{
    int fds;

    begin();
    fds = daemon_fds(d);
    for (int i = 0; i < 20; i++) {
        Kvcache__Watch m = KVCACHE__WATCH__INIT;
        int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

        m.wait_ms = LONG_MS;
        talk_send(other, WIRE_WATCH, &m.base);
        close(other);
    }
    talk_publish(&worker, 1, 2);
    wait_for(daemon_fds(d) == fds, TALK_MS);
    end();
}
END_TEST

// What was said when the daemon stops is owed nothing.
START_TEST(the_daemon_stops_while_somebody_waits)
{
    begin();
    ask(0, LONG_MS);
    talk_ping(sock);
    end();
}
END_TEST

CHECK_MAIN("wire/watch", CHECK_LIFE_S, what_has_happened_is_answered_at_once,
           who_waits_is_told_when_something_happens, nothing_is_an_answer_when_the_time_is_over,
           only_what_happens_from_now_on, another_daemons_number_begins_anew,
           what_is_wrong_is_refused_and_one_at_a_time_waits, a_worker_follows_its_tenant,
           who_goes_while_it_waits_leaves_nothing, the_daemon_stops_while_somebody_waits)
