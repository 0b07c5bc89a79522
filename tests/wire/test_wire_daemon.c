// Packets that nobody should send, against a running daemon: each ends its own connection within a
// second, with one line in the log, no descriptor left, and everybody else served.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

#define MALFORMED "malformed packet"

static struct raw raw;

static uint64_t bad_packets(int sock)
{
    Kvcache__StatsReply *reply =
        talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t n = reply->bad_packets;

    talk_free(reply);
    return n;
}

// Sends raw as it is over a connection of its own, which must end; `other` must not care. What the
// daemon had open before may have been more than it needs, never less.
static void expect_end(struct daemon *d, int other, const char *what, bool hello)
{
    const int fds = daemon_fds(d);
    const uint64_t bad = bad_packets(other);
    int sock = hello ? talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL)
                     : talk_connect(daemon_socket(d));

    ck_assert_msg(raw_send(sock, &raw), "%s: %s", what, strerror(errno));
    ck_assert_msg(talk_ended(sock), "%s: the connection lives", what);
    talk_ping(other);
    ck_assert_msg(bad_packets(other) == bad + 1, "%s: not counted once", what);
    close(sock);
    ck_assert_msg(wait_until(daemon_fds(d) <= fds, 1000), "%s: %d descriptors, before %d", what,
                  daemon_fds(d), fds);
}

static void every_bad_packet(bool hello)
{
    struct daemon *d = daemon_start(NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);

    daemon_log_expect(d, MALFORMED);
    for (size_t i = 0; i < raw_bad_count(); i++) {
        struct raw_bad bad = raw_bad_get(i, &raw);
        expect_end(d, other, bad.name, hello);
    }
    close(other);
    daemon_stop(d);
}

START_TEST(test_bad_packets_before_hello)
{
    every_bad_packet(false);
}
END_TEST

START_TEST(test_bad_packets_after_hello)
{
    every_bad_packet(true);
}
END_TEST

// An empty packet cannot be told from the end: no line, but the end.
START_TEST(test_empty_packet)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);

    raw.len = 0;
    raw.n_fds = 0;
    ck_assert(raw_send(sock, &raw));
    ck_assert(talk_ended(sock));
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(test_hello_comes_first)
{
    static const uint16_t types[] = {WIRE_PING,  WIRE_SAVE,      WIRE_NUDGE, WIRE_REPORT,
                                     WIRE_STATS, WIRE_DEBUG + 1, 0,          WIRE_TYPE_MAX + 1};
    struct daemon *d = daemon_start(NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    daemon_log_expect(d, MALFORMED);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        raw_make(&raw, types[i], 1, 0, 0);
        expect_end(d, other, wire_type_name(types[i]), false);
    }
    close(other);
    daemon_stop(d);
}
END_TEST

START_TEST(test_what_only_a_daemon_sends)
{
    static const uint16_t types[] = {
        WIRE_SAVE_DONE, WIRE_EXTENTS, WIRE_STOPPING,          WIRE_NOTICE,
        WIRE_ERROR,     WIRE_REPLY,   WIRE_HELLO | WIRE_REPLY};
    struct daemon *d = daemon_start(NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    daemon_log_expect(d, MALFORMED);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        raw_make(&raw, types[i], 1, 0, 0);
        expect_end(d, other, wire_type_name(types[i]), true);
    }
    close(other);
    daemon_stop(d);
}
END_TEST

// Bodies of every request that is done here, which do not parse.
START_TEST(test_bodies_that_do_not_parse)
{
    static const uint16_t types[] = {
        WIRE_HELLO, WIRE_REGISTER, WIRE_UNREGISTER, WIRE_MAP,    WIRE_LOOKUP,
        WIRE_SAVE,  WIRE_ABORT,    WIRE_LOAD,       WIRE_EXTEND, WIRE_RELEASE,
        WIRE_ADOPT, WIRE_DRAINED,  WIRE_LIST,       WIRE_PING,   WIRE_REPORT,
    };
    static const struct {
        const char *name;
        uint8_t bytes[12];
        size_t len;
    } bodies[] = {
        {"varint without an end", {0x08, 0xff, 0xff}, 3},
        {"length behind the end", {0x0a, 0x7f, 'x'}, 3},
        {"tag of number 0", {0x00, 0x01}, 2},
        {"group", {0x0b, 0x0c}, 2},
        {"tag alone", {0x09}, 1},
        {"huge length", {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f}, 6},
    };
    struct daemon *d = daemon_start(NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    daemon_log_expect(d, MALFORMED);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        size_t b = t % (sizeof(bodies) / sizeof(bodies[0]));
        raw_make(&raw, types[t], 1, (uint32_t)bodies[b].len, 0);
        memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES, bodies[b].bytes, bodies[b].len);
        expect_end(d, other, bodies[b].name, types[t] != WIRE_HELLO);
    }
    for (size_t b = 0; b < sizeof(bodies) / sizeof(bodies[0]); b++) {
        raw_make(&raw, WIRE_SAVE, 1, (uint32_t)bodies[b].len, 0);
        memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES, bodies[b].bytes, bodies[b].len);
        expect_end(d, other, bodies[b].name, true);
    }
    close(other);
    daemon_stop(d);
}
END_TEST

// 32768 empty entries: their structs take more memory than a message may.
START_TEST(test_body_over_the_budget)
{
    struct daemon *d = daemon_start(NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    daemon_log_expect(d, MALFORMED);
    raw_make(&raw, WIRE_SAVE, 1, KVC_WIRE_BODY_MAX, 0);
    for (size_t i = KVC_WIRE_HEADER_BYTES; i < raw.len; i += 2) {
        raw.bytes[i] = 0x0a;
        raw.bytes[i + 1] = 0;
    }
    expect_end(d, other, "32768 entries", true);
    close(other);
    daemon_stop(d);
}
END_TEST

START_TEST(test_unsupported_messages_are_refused)
{
    static const uint16_t types[] = {
        WIRE_REGION_BEGIN, WIRE_REGION_PART, WIRE_REGION_END,   WIRE_REGION_DROP, WIRE_UNMAP,
        WIRE_SUSPEND,      WIRE_RESUME,      WIRE_HINT,         WIRE_PIN,         WIRE_FLUSH,
        WIRE_CONFIG,       WIRE_WATCH,       WIRE_TYPE_MAX + 1, WIRE_DEBUG - 1,   WIRE_NOTICE - 1,
    };
    struct daemon *d = daemon_start(NULL);
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    const int fds = daemon_fds(d);

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        talk_expect_error(sock, talk_send(sock, types[i], NULL), KVC_E_UNSUPPORTED, NULL);
        // With descriptors, which must not stay.
        raw_make(&raw, types[i], 77000 + (uint32_t)i, 0, 5);
        ck_assert(raw_send(sock, &raw));
        talk_expect_error(sock, 77000 + (uint32_t)i, KVC_E_UNSUPPORTED, NULL);
        talk_ping(sock);
        ck_assert_int_le(daemon_fds(d), fds);
    }
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(test_descriptors_that_nobody_wants)
{
    static const uint16_t types[] = {WIRE_PING, WIRE_STATS, WIRE_MAP,    WIRE_LOOKUP,
                                     WIRE_SAVE, WIRE_NUDGE, WIRE_REPORT, WIRE_HELLO};
    struct daemon *d = daemon_start(NULL);
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    daemon_log_expect(d, MALFORMED);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        raw_make(&raw, types[i], 1, 0, i % 2 ? 1 : KVC_WIRE_FDS_MAX);
        expect_end(d, other, wire_type_name(types[i]), types[i] != WIRE_HELLO);
    }
    close(other);
    daemon_stop(d);
}
END_TEST

START_TEST(test_hello_is_checked)
{
    struct daemon *d = daemon_start(NULL);
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;
    uint8_t uuids[17] = {0};
    int sock = talk_connect(daemon_socket(d));

    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_NONE;
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello.base), KVC_E_INVALID, "role");
    hello.role = (Kvcache__Role)5;
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello.base), KVC_E_INVALID, "role");
    hello.role = KVCACHE__ROLE__ROLE_WORKER;
    hello.device_uuids = (ProtobufCBinaryData){17, uuids};
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello.base), KVC_E_INVALID,
                      "device_uuids");
    // Refusals left the connection as it was; versions that do not meet end it.
    hello.device_uuids = (ProtobufCBinaryData){0, NULL};
    hello.version = 0;
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello.base), KVC_E_VERSION, "version");
    ck_assert(talk_ended(sock));
    close(sock);

    // A later client speaks more than this daemon: they meet at 1, and no bit is in force.
    sock = talk_connect(daemon_socket(d));
    hello.version = 9;
    hello.features = UINT64_MAX;
    Kvcache__HelloReply *reply =
        talk_ask(sock, WIRE_HELLO, &hello.base, &kvcache__hello_reply__descriptor);
    ck_assert_uint_eq(reply->version, 1);
    ck_assert_uint_eq(reply->features, 0);
    ck_assert_uint_ne(reply->session, 0);
    ck_assert_uint_eq(reply->secret.len, KVC_SECRET_BYTES);
    ck_assert_uint_eq(reply->page_words, KVC_PAGE_WORDS);
    ck_assert_uint_eq(reply->page_stride, KVC_PAGE_STRIDE);
    ck_assert_uint_eq(reply->keys_max, KVC_KEYS_MAX);
    talk_free(reply);
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello.base), KVC_E_INVALID, NULL);
    talk_ping(sock);
    close(sock);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("wire/daemon", CHECK_LIFE_S, test_bad_packets_before_hello, test_bad_packets_after_hello,
           test_empty_packet, test_hello_comes_first, test_what_only_a_daemon_sends,
           test_bodies_that_do_not_parse, test_body_over_the_budget,
           test_unsupported_messages_are_refused, test_descriptors_that_nobody_wants,
           test_hello_is_checked)
