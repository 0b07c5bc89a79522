// Packets through wire_recv() and wire_send() over a pair of sockets.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/fd.h"
#include "proto/wire.h"
#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/raw.h"

static uint8_t buf[KVC_WIRE_PACKET_MAX];
static uint8_t body[KVC_WIRE_BODY_MAX];
static struct raw raw;

static struct wire_packet ping(uint32_t seq, uint32_t body_len, uint32_t n_fds)
{
    struct wire_packet packet = {
        .type = WIRE_PING, .seq = seq, .body = body, .body_len = body_len, .n_fds = n_fds};

    for (uint32_t i = 0; i < n_fds; i++)
        packet.fds[i] = STDIN_FILENO;
    return packet;
}

static void expect(int sock, enum wire_result result, const char *why)
{
    struct wire_packet packet;
    const char *got = NULL;

    ck_assert_int_eq(wire_recv(sock, buf, &packet, &got), result);
    ck_assert_str_eq(got, why);
}

static void expect_bad(int sock, const char *why)
{
    expect(sock, WIRE_BAD, why);
}

START_TEST(test_header_bytes)
{
    static const uint8_t expected[16] = {'K',  'V',  'C',  1,    0x0a, 0x80, 0x02, 0x00,
                                         0x44, 0x33, 0x22, 0x11, 0x00, 0x00, 0x01, 0x00};
    struct wire_packet packet = {.type = WIRE_LOOKUP | WIRE_REPLY,
                                 .seq = 0x11223344,
                                 .body_len = KVC_WIRE_BODY_MAX,
                                 .n_fds = 2};
    uint8_t header[KVC_WIRE_HEADER_BYTES];

    wire_put_header(header, &packet);
    ck_assert_mem_eq(header, expected, sizeof(expected));
}
END_TEST

START_TEST(test_parse_refuses_without_touching_the_packet)
{
    struct wire_packet packet, before;

    memset(&before, 0x5a, sizeof(before));
    for (size_t i = 0; i < raw_bad_count(); i++) {
        struct raw_bad bad = raw_bad_get(i, &raw);
        memcpy(&packet, &before, sizeof(packet));
        const char *why = wire_parse_header(raw.bytes, raw.len, &packet);
        if (why != NULL) // else only the descriptors are wrong
            ck_assert_msg(memcmp(&packet, &before, sizeof(packet)) == 0, "%s", bad.name);
    }
}
END_TEST

START_TEST(test_round_trip)
{
    static const uint32_t bodies[] = {0, 1, 4096, KVC_WIRE_BODY_MAX};
    static const uint32_t fds[] = {0, 1, 2, KVC_WIRE_FDS_MAX};
    const uint32_t body_len = bodies[_i % 4], n_fds = fds[_i / 4];
    struct wire_packet sent = ping(7, body_len, n_fds), got;
    const char *why;
    int ends[2];

    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = (uint8_t)(i * 7 + 1);
    raw_pair(ends);
    int before = fd_count_open();
    ck_assert_int_eq(wire_send(ends[0], &sent), WIRE_OK);
    ck_assert_int_eq(wire_recv(ends[1], buf, &got, &why), WIRE_OK);
    ck_assert_uint_eq(got.type, WIRE_PING);
    ck_assert_uint_eq(got.seq, 7);
    ck_assert_uint_eq(got.body_len, body_len);
    ck_assert_mem_eq(got.body, body, body_len);
    ck_assert_uint_eq(got.n_fds, n_fds);
    for (uint32_t i = 0; i < n_fds; i++)
        ck_assert_int_eq(fcntl(got.fds[i], F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(fd_count_open(), before + (int)n_fds);
    wire_close_fds(&got);
    ck_assert_uint_eq(got.n_fds, 0);
    ck_assert_int_eq(fd_count_open(), before);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_bad_packet_leaves_no_descriptor)
{
    struct raw_bad bad = raw_bad_get((size_t)_i, &raw);
    struct wire_packet packet;
    const char *why = "";
    int ends[2];

    raw_pair(ends);
    int before = fd_count_open();
    ck_assert_msg(raw_send(ends[0], &raw), "%s: %s", bad.name, strerror(errno));
    enum wire_result result = wire_recv(ends[1], buf, &packet, &why);
    ck_assert_msg(result == WIRE_BAD, "%s: result %d", bad.name, result);
    ck_assert_msg(strcmp(why, bad.why) == 0, "%s: %s", bad.name, why);
    ck_assert_msg(fd_count_open() == before, "%s: descriptors left", bad.name);
    // What was wrong with one packet says nothing about the next one.
    raw_make(&raw, WIRE_PING, 2, 5, 1);
    ck_assert(raw_send(ends[0], &raw));
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_OK);
    ck_assert_uint_eq(packet.seq, 2);
    wire_close_fds(&packet);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_foreign_control_message)
{
    int ends[2], on = 1;

    raw_pair(ends);
    int before = fd_count_open();
    // Now the kernel adds SCM_CREDENTIALS to what comes.
    ck_assert_int_eq(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
    for (uint32_t n_fds = 0; n_fds < 3; n_fds++) {
        raw_make(&raw, WIRE_PING, 1, 8, n_fds);
        ck_assert(raw_send(ends[0], &raw));
        expect_bad(ends[1], "unexpected control message");
        ck_assert_int_eq(fd_count_open(), before);
    }
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_out_of_descriptors)
{
    struct rlimit limit, saved;
    int ends[2];

    raw_pair(ends);
    int before = fd_count_open();
    int room = _i; // of the five that come
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &saved), 0);
    // The next descriptor is the lowest free one; nothing below it is free.
    int next = dup(0);
    close(next);
    limit = saved;
    limit.rlim_cur = (rlim_t)(next + room);
    raw_make(&raw, WIRE_PING, 1, 8, 5);
    ck_assert(raw_send(ends[0], &raw));
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    expect(ends[1], WIRE_LOST, "descriptors were lost");
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &saved), 0);
    ck_assert_int_eq(fd_count_open(), before);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_nothing_there_is_again)
{
    struct wire_packet packet;
    const char *why;
    int ends[2];

    raw_pair(ends);
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_AGAIN);
    close(ends[0]);
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_EOF);
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_EOF);
    close(ends[1]);
}
END_TEST

START_TEST(test_empty_packet_is_the_end)
{
    struct wire_packet packet;
    const char *why;
    int ends[2];

    raw_pair(ends);
    raw.len = 0;
    raw.n_fds = 0;
    ck_assert(raw_send(ends[0], &raw));
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_EOF);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_failures_have_an_errno)
{
    struct wire_packet packet = ping(1, KVC_WIRE_BODY_MAX, 0);
    const char *why;
    int ends[2], file;

    ck_assert_int_eq(wire_recv(-1, buf, &packet, &why), WIRE_FAIL);
    ck_assert_int_eq(errno, EBADF);
    ck_assert_int_eq(wire_send(-1, &packet), WIRE_FAIL);
    ck_assert_int_eq(errno, EBADF);
    file = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(wire_recv(file, buf, &packet, &why), WIRE_FAIL);
    ck_assert_int_eq(errno, ENOTSOCK);
    close(file);

    raw_pair(ends);
    packet.body_len = KVC_WIRE_BODY_MAX + 1;
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_FAIL);
    ck_assert_int_eq(errno, EMSGSIZE);
    packet = ping(1, 0, KVC_WIRE_FDS_MAX);
    packet.n_fds++;
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_FAIL);
    ck_assert_int_eq(errno, EMSGSIZE);
    packet = ping(1, 0, 3);
    packet.fds[2] = 9999;
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_FAIL);
    ck_assert_int_eq(errno, EBADF);
    // Nothing of those arrived, and the connection still works.
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_AGAIN);
    packet = ping(2, 3, 1);
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_OK);
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_OK);
    wire_close_fds(&packet);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

// A default action of SIGPIPE would end this process.
START_TEST(test_send_to_a_closed_end)
{
    struct wire_packet packet = ping(1, 8, 1);
    int ends[2];

    raw_pair(ends);
    close(ends[1]);
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_EOF);
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_EOF);
    close(ends[0]);
}
END_TEST

// A peer that ends with unread packets in its queue leaves ECONNRESET in front of its own last
// ones.
START_TEST(test_last_packets_of_a_peer_that_did_not_read)
{
    struct wire_packet packet;
    const char *why;
    int ends[2];

    raw_pair(ends);
    packet = ping(9, 8, 0);
    ck_assert_int_eq(wire_send(ends[1], &packet), WIRE_OK); // never read
    for (uint32_t seq = 1; seq <= 3; seq++) {
        packet = ping(seq, 8, seq - 1);
        ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_OK);
    }
    close(ends[0]);
    for (uint32_t seq = 1; seq <= 3; seq++) {
        ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_OK);
        ck_assert_uint_eq(packet.seq, seq);
        wire_close_fds(&packet);
    }
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_EOF);
    close(ends[1]);
}
END_TEST

// The same when a failed send has already taken the error.
START_TEST(test_last_packets_after_a_failed_send)
{
    struct wire_packet packet = ping(1, 8, 0);
    const char *why;
    int ends[2];

    raw_pair(ends);
    ck_assert_int_eq(wire_send(ends[1], &packet), WIRE_OK);
    ck_assert_int_eq(wire_send(ends[0], &packet), WIRE_OK);
    close(ends[0]);
    ck_assert_int_eq(wire_send(ends[1], &packet), WIRE_EOF);
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_OK);
    ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_EOF);
    close(ends[1]);
}
END_TEST

static uint32_t fill(int sock, uint32_t body_len)
{
    uint32_t sent = 0;
    enum wire_result result;
    struct wire_packet packet;

    for (;;) {
        packet = ping(sent, body_len, 0);
        result = wire_send(sock, &packet);
        if (result != WIRE_OK)
            break;
        sent++;
        ck_assert_uint_lt(sent, 100000);
    }
    ck_assert_int_eq(result, WIRE_AGAIN);
    return sent;
}

// With a send buffer as the kernel comes with, which holds four of the longest packets.
START_TEST(test_full_queue)
{
    static const uint32_t bodies[] = {0, 1000, 16384, KVC_WIRE_BODY_MAX};
    struct wire_packet packet;
    struct pollfd writable;
    const char *why;
    int ends[2], size = 212992 / 2; // the kernel doubles it

    raw_pair(ends);
    ck_assert_int_eq(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
    writable = (struct pollfd){.fd = ends[0], .events = POLLOUT};
    for (int round = 0; round < 3; round++) {
        uint32_t sent = fill(ends[0], bodies[_i]);
        ck_assert_uint_ge(sent, 1);
        ck_assert_int_eq(poll(&writable, 1, 0), 0);
        for (uint32_t seq = 0; seq < sent; seq++) {
            ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_OK);
            ck_assert_uint_eq(packet.seq, seq);
            ck_assert_uint_eq(packet.body_len, bodies[_i]);
        }
        ck_assert_int_eq(wire_recv(ends[1], buf, &packet, &why), WIRE_AGAIN);
        ck_assert_int_eq(poll(&writable, 1, 0), 1);
    }
    close(ends[0]);
    close(ends[1]);
}
END_TEST

// The kernel bounds the descriptors of a user that wait in sockets: that passes, and harms nothing.
static int too_many_in_flight(const int ends[2])
{
    const struct rlimit few = {20, 20};
    struct wire_packet packet;
    enum wire_result result;
    const char *why;
    uint32_t sent = 0;

    if ((geteuid() == 0 && setuid(65534) != 0) || setrlimit(RLIMIT_NOFILE, &few) != 0)
        return 2;
    do {
        packet = ping(sent++, 8, 10);
        result = wire_send(ends[0], &packet);
    } while (result == WIRE_OK && sent < 1000);
    if (result != WIRE_FAIL || errno != ETOOMANYREFS)
        return 3;
    while (wire_recv(ends[1], buf, &packet, &why) == WIRE_OK) {
        if (packet.n_fds != 10)
            return 4;
        wire_close_fds(&packet);
    }
    packet = ping(1, 8, 10);
    return wire_send(ends[0], &packet) == WIRE_OK ? 0 : 5;
}

START_TEST(test_too_many_descriptors_in_flight)
{
    int ends[2];

    raw_pair(ends);
    pid_t child = proc_fork();
    if (child == 0)
        _exit(too_many_in_flight(ends));
    proc_wait_ok(child, 2000);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(test_close_fds_skips_taken_ones)
{
    struct wire_packet packet = {.n_fds = 3, .fds = {dup(0), -1, dup(0)}};

    wire_close_fds(&packet);
    ck_assert_int_eq(fcntl(packet.fds[0], F_GETFD), -1);
    ck_assert_int_eq(fcntl(packet.fds[2], F_GETFD), -1);
    wire_close_fds(&packet);
}
END_TEST

START_TEST(test_type_names)
{
    for (uint16_t type = 1; type <= WIRE_TYPE_MAX; type++) {
        char reply[64];
        ck_assert_str_ne(wire_type_name(type), "unknown");
        snprintf(reply, sizeof(reply), "%s reply", wire_type_name(type));
        ck_assert_str_eq(wire_type_name(type | WIRE_REPLY), reply);
    }
    ck_assert_str_eq(wire_type_name(WIRE_SAVE), "SAVE");
    ck_assert_str_eq(wire_type_name(WIRE_SAVE_DONE), "SAVE_DONE");
    ck_assert_str_eq(wire_type_name(WIRE_ERROR), "ERROR");
    ck_assert_str_eq(wire_type_name(WIRE_DEBUG | WIRE_REPLY), "DEBUG reply");
    static const uint16_t unknown[] = {0,     WIRE_TYPE_MAX + 1, 0x3eff, 0x4000, 0x4004, 0x8000,
                                       0xfffe};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        ck_assert_str_eq(wire_type_name(unknown[i]), "unknown");
}
END_TEST

// Loop bounds must be constants, so the table's length is checked here.
#define BAD_PACKETS 54
START_TEST(test_every_bad_packet_is_tried)
{
    ck_assert_uint_eq(raw_bad_count(), BAD_PACKETS);
}
END_TEST

CHECK_MAIN_LOOPS("proto/wire", CHECK_UNIT_S, {test_header_bytes, 0, 0},
                 {test_parse_refuses_without_touching_the_packet, 0, 0}, {test_round_trip, 0, 15},
                 {test_bad_packet_leaves_no_descriptor, 0, BAD_PACKETS - 1},
                 {test_every_bad_packet_is_tried, 0, 0}, {test_foreign_control_message, 0, 0},
                 {test_out_of_descriptors, 0, 4}, {test_nothing_there_is_again, 0, 0},
                 {test_empty_packet_is_the_end, 0, 0}, {test_failures_have_an_errno, 0, 0},
                 {test_send_to_a_closed_end, 0, 0},
                 {test_last_packets_of_a_peer_that_did_not_read, 0, 0},
                 {test_last_packets_after_a_failed_send, 0, 0}, {test_full_queue, 0, 3},
                 {test_too_many_descriptors_in_flight, 0, 0},
                 {test_close_fds_skips_taken_ones, 0, 0}, {test_type_names, 0, 0})
