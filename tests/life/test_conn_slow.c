// Clients that do not read what they are sent, or send more than their share: they hurt themselves.
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

#define REFUSALS 50
#define ROUNDS   20

static uint8_t payload[4096];

// Sends PINGs with large payloads until the daemon takes no more of them, however often it answers
// another; how many.
static int flood(int sock, int other)
{
    Kvcache__Ping ping = KVCACHE__PING__INIT;
    static uint8_t body[sizeof(payload) + 16];
    struct wire_packet packet = {.type = WIRE_PING, .seq = 1, .body = body};
    int sent = 0;

    ping.payload = (ProtobufCBinaryData){sizeof(payload), payload};
    packet.body_len = (uint32_t)kvcache__ping__pack(&ping, body);
    for (int refused = 0; refused < REFUSALS; refused++) {
        while (wire_send(sock, &packet) == WIRE_OK) {
            ck_assert_int_lt(++sent, 2000);
            refused = 0;
        }
        talk_ping(other);
    }
    return sent;
}

static Kvcache__ListRow *row_of_name(Kvcache__ListReply *reply, const char *name)
{
    for (size_t i = 0; i < reply->n_rows; i++)
        if (strcmp(reply->rows[i]->values[5], name) == 0)
            return reply->rows[i];
    return NULL;
}

static long queued_bytes(int sock, const char *name)
{
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__ListReply *reply;
    Kvcache__ListRow *row;
    long n = -1;

    list.what = "clients";
    reply = talk_ask(sock, WIRE_LIST, &list.base, &kvcache__list_reply__descriptor);
    ck_assert_str_eq(reply->columns[5], "name");
    ck_assert_str_eq(reply->columns[9], "queued_bytes");
    row = row_of_name(reply, name);
    if (row != NULL)
        n = strtol(row->values[9], NULL, 10);
    talk_free(reply);
    return n;
}

static int named(struct daemon *d, char *name)
{
    int sock = talk_connect(daemon_socket(d));
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;

    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_OPERATOR;
    hello.name = name;
    talk_free(talk_ask(sock, WIRE_HELLO, &hello.base, &kvcache__hello_reply__descriptor));
    return sock;
}

// It is not read from any more when 256 KiB wait for it, and cut when nothing moves for 5 s.
START_TEST(test_one_that_never_reads_is_cut)
{
    struct daemon *d = daemon_start(NULL);
    int slow = named(d, "slow"), other = named(d, "other");
    int before = talk_settled_fds(other, d);

    daemon_log_expect(d, "connection cut");
    flood(slow, other);
    wait_for(queued_bytes(other, "slow") >= (long)KVC_OUT_STOP_BYTES, 2000);
    ck_assert_int_lt(queued_bytes(other, "slow"), (long)KVC_OUT_STOP_BYTES + 8192);
    for (int i = 0; i < 50; i++)
        talk_ping(other);
    ck_assert_int_eq(daemon_log_count(d, "connection cut"), 0);
    daemon_clock_advance(d, KVC_OUT_CUT_MS * 1000ull);
    wait_for(daemon_log_count(d, "reason=not_reading") == 1, 2000);
    wait_for(daemon_fds(d) == before - 2, 2000);
    talk_ping(other);
    close(slow);
    close(other);
    daemon_stop(d);
}
END_TEST

// One that reads late gets everything.
START_TEST(test_one_that_reads_late_is_served)
{
    struct daemon *d = daemon_start(NULL);
    int slow = named(d, "slow"), other = named(d, "other");
    int sent = flood(slow, other);
    static uint8_t in[KVC_WIRE_PACKET_MAX];
    int got = 0;

    ck_assert_int_gt(sent, 20);
    while (got < sent) {
        struct wire_packet packet;
        const char *why = "";
        enum wire_result result = WIRE_AGAIN;

        ck_assert_msg(wait_until((result = wire_recv(slow, in, &packet, &why)) != WIRE_AGAIN, 2000),
                      "%d replies to %d requests", got, sent);
        ck_assert_int_eq(result, WIRE_OK);
        ck_assert_uint_eq(packet.type, WIRE_PING | WIRE_REPLY);
        got++;
    }
    talk_ping(slow);
    close(slow);
    close(other);
    daemon_stop(d);
}
END_TEST

// The end of a client whose replies wait is seen, although it is not read from.
START_TEST(test_one_that_goes_with_replies_unread)
{
    struct daemon *d = daemon_start(NULL);
    int other = named(d, "other"), before = talk_settled_fds(other, d), slow = named(d, "slow");

    flood(slow, other);
    wait_for(queued_bytes(other, "slow") >= (long)KVC_OUT_STOP_BYTES, 2000);
    close(slow);
    wait_for(daemon_fds(d) == before, 2000);
    close(other);
    daemon_stop(d);
}
END_TEST

// Descriptors are not sent to who does not take them: they count against all of this user's.
START_TEST(test_descriptors_unread)
{
    struct daemon *d = daemon_start(NULL);
    int slow = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    int other = named(d, "other"), before = talk_settled_fds(other, d);
    static uint8_t digest[KVC_NAMESPACE_BYTES];
    uint32_t slice = 4096;
    Kvcache__Register m = KVCACHE__REGISTER__INIT;

    m.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    m.block_tokens = 16;
    m.n_slice_bytes = 1;
    m.slice_bytes = &slice;
    talk_free(talk_ask(slow, WIRE_REGISTER, &m.base, &kvcache__register_reply__descriptor));
    for (int i = 0; i < 200; i++)
        talk_send(slow, WIRE_MAP, NULL);
    talk_ping(other);
    wait_for(queued_bytes(other, "talk") >= (long)KVC_OUT_STOP_BYTES, 2000);
    // What it does not take is not made for it either.
    ck_assert_int_lt(daemon_fds(d) - before, 400);
    daemon_log_expect(d, "connection cut");
    daemon_clock_advance(d, KVC_OUT_CUT_MS * 1000ull);
    wait_for(daemon_fds(d) == before - 2 - 1, 2000);
    close(slow);
    close(other);
    daemon_stop(d);
}
END_TEST

static uint64_t now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

// A client that has hundreds of requests waiting delays others by its share of a wake only.
START_TEST(test_flooder_does_not_starve)
{
    struct daemon *d = daemon_start(NULL);
    int flooder = named(d, "flooder"), other = named(d, "other");
    uint64_t took[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        daemon_freeze(d);
        for (int n = 0; n < 200; n++) {
            struct wire_packet packet = {.type = WIRE_PING, .seq = 1};

            if (wire_send(flooder, &packet) != WIRE_OK)
                break;
        }
        daemon_thaw(d);
        uint64_t start = now_us();
        talk_ping(other);
        took[i] = now_us() - start;
        for (;;) { // take the replies, so that it may send again
            static uint8_t in[KVC_WIRE_PACKET_MAX];
            struct wire_packet packet;
            const char *why;

            if (!wait_until(wire_recv(flooder, in, &packet, &why) == WIRE_OK, 20))
                break;
        }
    }
    // Half of the rounds: in any one, the machine may have had something else to do.
    qsort(took, ROUNDS, sizeof(took[0]), compare);
    ck_assert_uint_lt(took[ROUNDS / 2], wait_patient_ms(100) * 1000u);
    close(flooder);
    close(other);
    daemon_stop(d);
}
END_TEST

// A turn is over when its time is, however few packets it had: here the first of them "takes" two
// milliseconds. Both clients' packets are there when the daemon wakes.
START_TEST(test_turns_end_by_time)
{
    struct daemon *d = daemon_start(NULL);
    int costly = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
    Kvcache__Debug slow = KVCACHE__DEBUG__INIT;
    Kvcache__StatsReply *stats;
    uint32_t seq;

    slow.advance_us = 2000;
    daemon_freeze(d);
    talk_send(costly, WIRE_DEBUG, &slow.base);
    for (int i = 0; i < 10; i++)
        talk_send(costly, 0x1234, NULL);
    seq = talk_send(other, WIRE_STATS, NULL);
    daemon_thaw(d);
    stats = talk_reply(other, seq, WIRE_STATS, &kvcache__stats_reply__descriptor, NULL, NULL);
    ck_assert_uint_eq(stats->refused_requests, 0);
    talk_free(stats);
    wait_for(({
                 stats = talk_ask(other, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
                 uint64_t n = stats->refused_requests;
                 talk_free(stats);
                 n == 10;
             }),
             2000);
    close(costly);
    close(other);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("conn/slow", CHECK_LIFE_S, test_one_that_never_reads_is_cut,
           test_one_that_reads_late_is_served, test_one_that_goes_with_replies_unread,
           test_descriptors_unread, test_flooder_does_not_starve, test_turns_end_by_time)
