// Malformed packets at a live daemon: each ends its own connection within a second, with one line
// in the log, and nobody else notices.
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

struct scene {
    struct daemon *daemon;
    int neighbour;
    int fds; // that the daemon has open without the offender; at first perhaps some more
};

// Log lines of one place are muted when there are many, which moving the clock undoes.
static const uint64_t log_window_us = 6000000;

static struct scene begin(void)
{
    struct scene s = {.daemon = daemon_start(NULL)};

    daemon_log_allow(s.daemon, "malformed packet");
    s.neighbour = talk_hello(daemon_socket(s.daemon), KVCACHE__ROLE__ROLE_WORKER, NULL);
    s.fds = talk_settled_fds(s.neighbour, s.daemon);
    return s;
}

static void end(struct scene *s)
{
    talk_ping(s->neighbour);
    close(s->neighbour);
    daemon_stop(s->daemon);
}

// An offender that has said HELLO, or not yet.
static int offender(struct scene *s, bool hello)
{
    return hello ? talk_hello(daemon_socket(s->daemon), KVCACHE__ROLE__ROLE_WORKER, NULL)
                 : talk_connect(daemon_socket(s->daemon));
}

static void expect_end(struct scene *s, int sock, const char *name, const char *why)
{
    static int lines;
    const int before = lines;

    ck_assert_msg(talk_ended(sock), "%s: the connection lives on", name);
    close(sock);
    talk_ping(s->neighbour);
    wait_for(daemon_fds(s->daemon) <= s->fds, 2000);
    lines = daemon_log_count(s->daemon, "malformed packet");
    ck_assert_msg(lines == before + 1, "%s: %d lines in the log", name, lines - before);
    ck_assert_msg(daemon_log_count(s->daemon, why) > 0, "%s: no line says \"%s\"", name, why);
    daemon_clock_advance(s->daemon, log_window_us);
}

START_TEST(test_bad_packets)
{
    static struct raw raw;
    struct scene s = begin();

    for (size_t i = 0; i < raw_bad_count(); i++) {
        struct raw_bad bad = raw_bad_get(i, &raw);
        int sock = offender(&s, _i == 1);

        // What the socket does not take cannot hurt.
        if (!raw_send(sock, &raw)) {
            close(sock);
            continue;
        }
        expect_end(&s, sock, bad.name, bad.why);
    }
    wait_for(daemon_fds(s.daemon) <= s.fds, 2000);
    end(&s);
}
END_TEST

struct sent {
    const char *name;
    bool hello;
    uint16_t type;
    uint32_t n_fds;
    const char *why;
};

static const struct sent sequence[] = {
    {"PING first", false, WIRE_PING, 0, "before HELLO"},
    {"SAVE first", false, WIRE_SAVE, 0, "before HELLO"},
    {"NUDGE first", false, WIRE_NUDGE, 0, "before HELLO"},
    {"STATS first", false, WIRE_STATS, 0, "before HELLO"},
    {"DEBUG first", false, WIRE_DEBUG, 0, "before HELLO"},
    {"an unknown type first", false, 0x1234, 0, "before HELLO"},
    {"type 0", true, 0, 0, "type 0"},
    {"a reply", true, WIRE_PING | WIRE_REPLY, 0, "reply or notice"},
    {"a reply to HELLO, first", false, WIRE_HELLO | WIRE_REPLY, 0, "reply or notice"},
    {"an error", true, WIRE_ERROR, 0, "reply or notice"},
    {"SAVE_DONE", true, WIRE_SAVE_DONE, 0, "reply or notice"},
    {"STOPPING", true, WIRE_STOPPING, 0, "reply or notice"},
    {"an unknown notice", true, WIRE_NOTICE | 77, 0, "reply or notice"},
    {"HELLO with a descriptor", false, WIRE_HELLO, 1, "takes none"},
    {"PING with a descriptor", true, WIRE_PING, 1, "takes none"},
    {"NUDGE with 64 descriptors", true, WIRE_NUDGE, 64, "takes none"},
    {"MAP with descriptors", true, WIRE_MAP, 2, "takes none"},
    {"STATS with a descriptor", true, WIRE_STATS, 1, "takes none"},
};

START_TEST(test_wrong_sequence)
{
    static struct raw raw;
    struct scene s = begin();

    for (size_t i = 0; i < sizeof(sequence) / sizeof(sequence[0]); i++) {
        const struct sent *sent = &sequence[i];
        int sock = offender(&s, sent->hello);

        raw_make(&raw, sent->type, 1, 0, sent->n_fds);
        ck_assert(raw_send(sock, &raw));
        expect_end(&s, sock, sent->name, sent->why);
    }
    end(&s);
}
END_TEST

// Every type that has a body: bytes that are no protobuf.
START_TEST(test_garbage_bodies)
{
    static const uint8_t garbage[][8] = {
        {0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f},             // a length that goes far beyond the end
        {0x07},                                           // a wire type that is none
        {0x08},                                           // a number that does not come
        {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}, // a tag without an end
    };
    static const uint16_t types[] = {
        WIRE_HELLO, WIRE_REGISTER, WIRE_UNREGISTER, WIRE_MAP,     WIRE_LOOKUP, WIRE_SAVE,
        WIRE_ABORT, WIRE_LOAD,     WIRE_EXTEND,     WIRE_RELEASE, WIRE_ADOPT,  WIRE_DRAINED,
        WIRE_NUDGE, WIRE_REPORT,   WIRE_STATS,      WIRE_LIST,    WIRE_PING,   WIRE_DEBUG,
        WIRE_PIN,   WIRE_QUOTA,    WIRE_DRAIN,      WIRE_VERIFY,
    };
    static struct raw raw;
    struct scene s = begin();
    char name[64];

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t g = 0; g < sizeof(garbage) / sizeof(garbage[0]); g++) {
            int sock = offender(&s, types[t] != WIRE_HELLO);

            raw_make(&raw, types[t], 1, sizeof(garbage[g]), 0);
            memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES, garbage[g], sizeof(garbage[g]));
            ck_assert(raw_send(sock, &raw));
            snprintf(name, sizeof(name), "%s, garbage %zu", wire_type_name(types[t]), g);
            expect_end(&s, sock, name, "no protobuf");
        }
    end(&s);
}
END_TEST

// Small on the wire, large in memory, and long to parse.
START_TEST(test_bodies_of_many_fields)
{
    static struct raw raw;
    struct scene s = begin();
    // An empty sub-message, the packed array's first byte, an unknown field.
    static const struct {
        uint16_t type;
        uint8_t unit[2];
    } bombs[] = {
        {WIRE_LOOKUP, {0x1a, 0x00}},
        {WIRE_SAVE, {0x0a, 0x00}},
        {WIRE_PING, {0x78, 0x01}},
        {WIRE_RELEASE, {0x78, 0x01}},
    };

    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
        int sock = offender(&s, true);

        raw_make(&raw, bombs[i].type, 1, KVC_WIRE_BODY_MAX, 0);
        for (uint32_t at = 0; at < KVC_WIRE_BODY_MAX; at += 2)
            memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES + at, bombs[i].unit, 2);
        ck_assert(raw_send(sock, &raw));
        expect_end(&s, sock, wire_type_name(bombs[i].type), "more fields");
    }
    end(&s);
}
END_TEST

// n unknown fields of two bytes, from `at` on.
static void put_unknown(struct raw *raw, uint32_t at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy(raw->bytes + KVC_WIRE_HEADER_BYTES + at + 2 * i, "\x78\x01", 2);
}

// Fields of the body, and those of one part in it, of which the part itself is one and eight more.
START_TEST(test_fields_at_the_limit)
{
    static struct raw raw;
    struct scene s = begin();

    for (uint32_t in_part = 0; in_part < 2; in_part++)
        for (uint32_t over = 0; over < 2; over++) {
            const uint32_t n = KVC_WIRE_FIELDS_MAX - in_part * 9 + over, head = in_part * 3;
            int sock = offender(&s, true);

            raw_make(&raw, in_part ? WIRE_LOOKUP : WIRE_PING, 1, head + 2 * n, 0);
            if (in_part) {
                raw.bytes[KVC_WIRE_HEADER_BYTES] = 0x1a;
                raw.bytes[KVC_WIRE_HEADER_BYTES + 1] = (uint8_t)(2 * n | 0x80);
                raw.bytes[KVC_WIRE_HEADER_BYTES + 2] = (uint8_t)(2 * n >> 7);
            }
            put_unknown(&raw, head, n);
            ck_assert(raw_send(sock, &raw));
            if (over) {
                expect_end(&s, sock, in_part ? "in a part" : "in the body", "more fields");
                continue;
            }
            ck_assert_int_eq(talk_outcome(sock, 1), in_part ? KVC_E_UNKNOWN : KVC_OK);
            close(sock);
            wait_for(daemon_fds(s.daemon) <= s.fds, 2000);
        }
    end(&s);
}
END_TEST

// It cannot be told from the end of the connection, and is none that deserves a warning.
START_TEST(test_empty_packet_ends)
{
    struct scene s = begin();
    int sock = offender(&s, true);

    ck_assert_int_eq(send(sock, "", 0, MSG_NOSIGNAL), 0);
    ck_assert(talk_ended(sock));
    close(sock);
    ck_assert_int_eq(daemon_log_count(s.daemon, "malformed"), 0);
    end(&s);
}
END_TEST

CHECK_MAIN_LOOPS("daemon/malformed", CHECK_LONG_S, {test_bad_packets, 0, 1},
                 {test_wrong_sequence, 0, 0}, {test_garbage_bodies, 0, 0},
                 {test_bodies_of_many_fields, 0, 0}, {test_fields_at_the_limit, 0, 0},
                 {test_empty_packet_ends, 0, 0})
