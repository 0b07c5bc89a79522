// What one client's worst costs the others: lookups of a neighbour are timed alone and while
// hostile clients do what they can, in turns, and compared by the median of the rounds.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/proc.h"
#include "tests/lib/raw.h"

#define ROUNDS  5
#define LOOKUPS 300
// The figures are printed, and belong to a quiet machine; on any other they say something about it.
// What must not come back is a neighbour who waits for seconds.
#define BOUND_US 250000u

static struct raw raw;

// Without the checks of talk.h: the daemon may have no time, or no descriptor, for it.
static int connected(const char *socket, bool hello)
{
    static const uint8_t body[] = {0x08, 1, 0x10, 1};
    struct wire_packet packet = {.type = WIRE_HELLO, .seq = 1, .body = body};
    int sock;

    if (wire_connect(socket, &sock) != KVC_OK)
        return -1;
    packet.body_len = sizeof(body);
    if (hello)
        (void)wire_send(sock, &packet);
    return sock;
}

static void wait_for_end(int sock)
{
    static uint8_t in[KVC_WIRE_PACKET_MAX];

    while (recv(sock, in, sizeof(in), MSG_DONTWAIT) != 0)
        usleep(50);
}

static void garbage(const char *socket)
{
    static size_t i;
    int sock = connected(socket, i % 2 == 0);

    raw_bad_get(i++ % raw_bad_count(), &raw);
    if (sock >= 0 && raw_send(sock, &raw))
        wait_for_end(sock);
    close(sock);
}

// 64 KiB of empty sub-messages, of a message that takes them: as much work as a body can ask for.
static void bombs(const char *socket)
{
    int sock = connected(socket, true);

    raw_make(&raw, WIRE_LOOKUP, 2, KVC_WIRE_BODY_MAX, 0);
    for (uint32_t at = 0; at < KVC_WIRE_BODY_MAX; at += 2)
        memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES + at, "\x1a\x00", 2);
    if (sock >= 0 && raw_send(sock, &raw))
        wait_for_end(sock);
    close(sock);
}

static void descriptors(const char *socket)
{
    static int sock = -1;

    if (sock < 0)
        sock = connected(socket, true);
    raw_make(&raw, 0x1234, 2, 0, KVC_WIRE_FDS_MAX);
    if (sock >= 0 && !raw_send(sock, &raw)) {
        close(sock);
        sock = -1;
    }
}

// Requests that are right, as fast as they go, no reply read.
static void never_reads(const char *socket)
{
    static int sock = -1;
    struct wire_packet packet = {.type = WIRE_STATS, .seq = 2};

    if (sock < 0)
        sock = connected(socket, true);
    if (sock >= 0 && wire_send(sock, &packet) != WIRE_OK)
        usleep(100);
}

static void storm(const char *socket)
{
    int sock = connected(socket, false);

    if (sock >= 0)
        close(sock);
}

static void (*const attacks[])(const char *) = {garbage, bombs, descriptors, never_reads, storm};
static const char *const names[] = {"garbage", "bombs", "descriptors", "never_reads", "storm"};

static pid_t attacker(const char *socket, int which)
{
    pid_t pid = proc_fork();

    if (pid != 0)
        return pid;
    signal(SIGPIPE, SIG_IGN);
    for (;;)
        attacks[which](socket);
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static uint32_t median(uint32_t *values)
{
    qsort(values, ROUNDS, sizeof(*values), compare);
    return values[ROUNDS / 2];
}

START_TEST(F39_a_neighbour_is_served)
{
    const int lookups = check_long() ? 10 * LOOKUPS : LOOKUPS;
    uint32_t us[10 * LOOKUPS], p50[2][ROUNDS], p99[2][ROUNDS], alone, attacked;
    struct neighbour n;
    pid_t pid;

    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "malformed packet");
    daemon_log_allow(n.daemon, "connection cut");
    daemon_log_allow(n.daemon, "accept paused");
    pid = attacker(n.socket, _i);
    for (int round = 0; round < ROUNDS; round++)
        for (int attack = 0; attack < 2; attack++) {
            kill(pid, attack ? SIGCONT : SIGSTOP);
            usleep(2000);
            neighbour_time(&n, us, lookups);
            p50[attack][round] = us[lookups / 2];
            p99[attack][round] = us[lookups * 99 / 100];
        }
    proc_kill(pid);
    alone = median(p99[0]);
    attacked = median(p99[1]);
    printf("%-12s p50 %u us alone, %u us beside it; p99 %u us alone, %u us beside it\n", names[_i],
           median(p50[0]), median(p50[1]), alone, attacked);
    ck_assert_msg(attacked <= BOUND_US * check_time_multiplier() || attacked <= 2 * alone,
                  "%s: p99 %u us, alone %u us", names[_i], attacked, alone);
    neighbour_close(&n);
}
END_TEST

CHECK_MAIN_LOOPS("wire/hostile_neighbour", CHECK_LIFE_S, {F39_a_neighbour_is_served, 0, 4})
