// Descriptors that come with packets: of every kind, in every number, by the thousand, and when the
// daemon has no number left for them. They are all closed, whatever becomes of the packet.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/raw.h"
#include "tests/lib/wait.h"

#define UNKNOWN_TYPE 0x1234u // descriptors may come with what the daemon does not know

static int open_kind(int kind, int sock)
{
    int pair[2];

    switch (kind) {
    case 0:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 1:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case 2:
        return open("/", O_PATH | O_CLOEXEC);
    case 3:
        return memfd_create("hostile", MFD_CLOEXEC);
    case 4:
        return eventfd(0, EFD_CLOEXEC);
    case 5:
        return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    case 6:
        return epoll_create1(EPOLL_CLOEXEC);
    case 7:
        return (int)syscall(SYS_pidfd_open, getpid(), 0);
    case 8:
        if (pipe2(pair, O_CLOEXEC) < 0)
            return -1;
        close(pair[0]);
        return pair[1];
    case 9:
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
            return -1;
        close(pair[0]);
        return pair[1];
    case 10:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    default: // the very connection that it travels on
        return fcntl(sock, F_DUPFD_CLOEXEC, 3);
    }
}
#define KINDS 12

static void send_fds(int sock, uint16_t type, int fd, uint32_t n)
{
    struct wire_packet packet = {.type = type, .seq = 5, .n_fds = n};

    for (uint32_t i = 0; i < n; i++)
        packet.fds[i] = fd;
    ck_assert_int_eq(wire_send(sock, &packet), WIRE_OK);
}

START_TEST(F39_descriptors_of_every_kind)
{
    static const uint32_t numbers[] = {1, 2, KVC_WIRE_FDS_MAX};
    static const uint16_t types[] = {UNKNOWN_TYPE, WIRE_REGION_PART, WIRE_REGION_BEGIN, WIRE_HINT,
                                     WIRE_PING};
    struct neighbour n;

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "malformed packet"); // a PING takes none
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
            for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
                int sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
                int fd = open_kind(kind, sock);

                ck_assert_msg(fd >= 0, "kind %d: %s", kind, strerror(errno));
                send_fds(sock, types[t], fd, numbers[i]);
                close(fd);
                ck_assert_int_ne(talk_outcome(sock, 5), KVC_OK);
                close(sock);
            }
    neighbour_close(&n);
}
END_TEST

// As many as the kernel takes, none of the replies read. The daemon closes what it gets, and ends
// the connection after a thousand, which cost it much and the client nothing.
START_TEST(F39_flood_of_descriptors)
{
    const int packets = check_long() ? 20000 : 2000;
    int sock, fd = open("/dev/null", O_RDONLY | O_CLOEXEC), sent = 0;
    struct wire_packet packet = {.type = UNKNOWN_TYPE, .seq = 5, .n_fds = KVC_WIRE_FDS_MAX};
    struct neighbour n;

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "too many descriptors with refused requests");
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    for (uint32_t i = 0; i < KVC_WIRE_FDS_MAX; i++)
        packet.fds[i] = fd;
    for (int i = 0; i < packets; i++) {
        sent += wire_send(sock, &packet) == WIRE_OK;
        if (i % 100 == 0)
            neighbour_works(&n);
    }
    ck_assert_int_ge(sent, (int)(KVC_SESSION_REFUSED_FDS_MAX / KVC_WIRE_FDS_MAX));
    ck_assert(talk_ended(sock));
    wait_for(daemon_fds(n.daemon) < n.fds + 2 * (int)KVC_WIRE_FDS_MAX, 5000);
    close(sock);
    close(fd);
    neighbour_close(&n);
}
END_TEST

// Some of the numbers are there and some are not: what came through is closed, too.
START_TEST(F39_no_number_left_for_descriptors)
{
    static struct raw raw;
    struct neighbour n;

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "descriptors were lost");
    daemon_log_allow(n.daemon, "accept paused");
    // Four for the connection, its process, its page and the page's duplicate; then fewer than
    // come.
    daemon_limit_fds(n.daemon, 4 + _i);
    int sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    raw_make(&raw, UNKNOWN_TYPE, 5, 0, 32);
    ck_assert(raw_send(sock, &raw));
    ck_assert(talk_ended(sock));
    close(sock);
    neighbour_close(&n);
}
END_TEST

// Packets that hold their own connection, and nobody receives them: the kernel finds the circle.
START_TEST(F39_connections_inside_themselves)
{
    struct neighbour n;

    neighbour_open(&n, NULL);
    for (int i = 0; i < 20; i++) {
        int a = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
        int b = talk_hello(n.socket, KVCACHE__ROLE__ROLE_READER, NULL);

        daemon_freeze(n.daemon);
        send_fds(a, UNKNOWN_TYPE, b, 8);
        send_fds(b, UNKNOWN_TYPE, a, 8);
        close(a);
        close(b);
        daemon_thaw(n.daemon);
    }
    neighbour_close(&n);
}
END_TEST

#define LINGER_S 20

static uint64_t stuck(const struct neighbour *n)
{
    Kvcache__Stats ask = KVCACHE__STATS__INIT;
    Kvcache__StatsReply *reply =
        talk_ask(n->worker.sock, WIRE_STATS, &ask.base, &kvcache__stats_reply__descriptor);
    const uint64_t fds = reply->stuck_fds;

    talk_free(reply);
    return fds;
}

// A TCP socket with data that nobody takes: whoever closes it last waits for as long as it says.
static int open_lingering(int *listener, int *peer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
    static uint8_t data[65536];
    socklen_t len = sizeof(address);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(*listener, (struct sockaddr *)&address, len), 0);
    ck_assert_int_eq(listen(*listener, 1), 0);
    ck_assert_int_eq(getsockname(*listener, (struct sockaddr *)&address, &len), 0);
    ck_assert_int_eq(connect(sock, (struct sockaddr *)&address, len), 0);
    *peer = accept(*listener, NULL, NULL);
    ck_assert_int_ge(*peer, 0);
    while (send(sock, data, sizeof(data), MSG_DONTWAIT) > 0)
        ;
    ck_assert_int_eq(setsockopt(sock, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
    return sock;
}

// Not as many as the header says: closed where they are received.
static void send_miscounted(int sock, int fd)
{
    static struct raw raw;
    int saved = dup(0);

    ck_assert_int_eq(dup2(fd, 0), 0);
    raw_make(&raw, UNKNOWN_TYPE, 5, 0, 1);
    raw_put_u16(&raw, 6, 2);
    ck_assert(raw_send(sock, &raw));
    ck_assert_int_eq(dup2(saved, 0), 0);
    close(saved);
}

// Where a descriptor is closed: with a request that is refused, with one that is malformed where it
// is handled or where it is received, with a connection that is not read to its end.
enum closed { REFUSED, REFUSED_PIECE, UNWANTED, MISCOUNTED, UNREAD, CLOSED_WAYS };

static void send_to_be_closed(int sock, enum closed how, int fd)
{
    static const uint16_t types[] = {UNKNOWN_TYPE, WIRE_REGION_PART, WIRE_PING};
    struct wire_packet wrong = {.type = 0, .seq = 4};

    if (how == MISCOUNTED) {
        send_miscounted(sock, fd);
        return;
    }
    if (how == UNREAD)
        ck_assert_int_eq(wire_send(sock, &wrong), WIRE_OK);
    send_fds(sock, how == UNREAD ? UNKNOWN_TYPE : types[how], fd, 1);
}

// The daemon's close is the last one, and really waits: for a peer that does not read, as long as
// the sender has said. It is a thread that waits, and status says so.
START_TEST(F4_closing_what_came_makes_nobody_wait)
{
    struct neighbour n;
    int sock, fd, listener, peer;
    time_t began;

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "closing a descriptor takes long");
    if (_i >= UNWANTED)
        daemon_log_expect(n.daemon, "malformed packet");
    daemon_fault_arm(n.daemon, "closer.linger", 0, UINT32_MAX);
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    fd = open_lingering(&listener, &peer);
    daemon_freeze(n.daemon);
    send_to_be_closed(sock, _i, fd);
    close(fd);
    daemon_thaw(n.daemon);
    began = time(NULL);
    wait_for(stuck(&n) == 1, 1000 * LINGER_S / 2);
    for (int i = 0; i < 100; i++)
        neighbour_works(&n);
    ck_assert_int_lt(time(NULL) - began, LINGER_S / 2);
    close(sock);
    close(peer); // unread: that ends it
    close(listener);
    wait_for(stuck(&n) == 0, 5000);
    ck_assert_uint_gt(daemon_fault_fired(n.daemon, "closer.linger"), 0);
    neighbour_close(&n);
}
END_TEST

// A thousand that do not close, from one user: the neighbour, the same user's, works on.
START_TEST(F4_many_that_do_not_close)
{
    struct neighbour n;
    int sock, fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    neighbour_open(&n, NULL);
    daemon_log_expect(n.daemon, "closing a descriptor takes long");
    daemon_log_expect(n.daemon, "too many descriptors with refused requests");
    daemon_fault_arm(n.daemon, "closer.stuck", 0, UINT32_MAX);
    sock = talk_hello(n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    for (uint32_t i = 0; i <= KVC_SESSION_REFUSED_FDS_MAX; i += KVC_WIRE_FDS_MAX)
        send_fds(sock, UNKNOWN_TYPE, fd, KVC_WIRE_FDS_MAX);
    for (int i = 0; i < 100; i++)
        neighbour_works(&n);
    ck_assert(talk_ended(sock));
    wait_for(stuck(&n) > 1, 5000);
    neighbour_works(&n);
    daemon_fault_off(n.daemon, "closer.stuck");
    wait_for(stuck(&n) == 0, 5000);
    close(sock);
    close(fd);
    neighbour_close(&n);
}
END_TEST

CHECK_MAIN_LOOPS("wire/hostile_fds", CHECK_LIFE_S, {F39_descriptors_of_every_kind, 0, 0},
                 {F39_flood_of_descriptors, 0, 0}, {F39_no_number_left_for_descriptors, 0, 12},
                 {F39_connections_inside_themselves, 0, 0},
                 {F4_closing_what_came_makes_nobody_wait, 0, CLOSED_WAYS - 1},
                 {F4_many_that_do_not_close, 0, 0})
