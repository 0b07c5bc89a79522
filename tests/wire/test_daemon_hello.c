// HELLO at a live daemon: what each role gets, what is refused, and what ends the connection.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"

static Kvcache__Hello make_hello(Kvcache__Role role)
{
    Kvcache__Hello hello = talk_a_hello(role);

    hello.name = "test";
    hello.build = "1.2.3";
    return hello;
}

static Kvcache__HelloReply *say_hello(int sock, const Kvcache__Hello *hello, int *page)
{
    int fds[KVC_WIRE_FDS_MAX];
    uint32_t n = 0;
    uint32_t seq = talk_send(sock, WIRE_HELLO, &hello->base);
    Kvcache__HelloReply *reply =
        talk_reply(sock, seq, WIRE_HELLO, &kvcache__hello_reply__descriptor, fds, &n);

    ck_assert_uint_le(n, 1);
    *page = n == 1 ? fds[0] : -1;
    return reply;
}

static void expect_geometry(const Kvcache__HelloReply *reply)
{
    ck_assert_uint_eq(reply->n_tiers, 2);
    ck_assert_int_eq(reply->tiers[0]->tier, KVCACHE__TIER__TIER_GPU);
    ck_assert_uint_eq(reply->tiers[0]->bytes, 16u << 20);
    ck_assert_uint_eq(reply->tiers[1]->bytes, 32u << 20);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(reply->tiers[i]->extents * reply->tiers[i]->extent_bytes,
                          reply->tiers[i]->bytes);
}

START_TEST(test_each_role)
{
    const Kvcache__Role role = (Kvcache__Role)_i;
    const bool copies = role <= KVCACHE__ROLE__ROLE_READER;
    struct daemon *d = daemon_start(NULL);
    int sock = talk_connect(daemon_socket(d)), page;
    Kvcache__Hello hello = make_hello(role);
    Kvcache__HelloReply *reply = say_hello(sock, &hello, &page);
    char tenant[32];

    ck_assert_uint_eq(reply->version, 1);
    ck_assert_uint_ne(reply->session, 0);
    ck_assert_uint_eq(reply->secret.len, KVC_SECRET_BYTES);
    ck_assert_uint_ne(reply->boot_epoch, 0);
    ck_assert_str_eq(reply->device, "host");
    snprintf(tenant, sizeof(tenant), "uid:%u", getuid());
    ck_assert_str_eq(reply->tenant, tenant);
    ck_assert_str_eq(reply->build, KVC_BUILD_VERSION);
    ck_assert_uint_eq(reply->keys_max, KVC_KEYS_MAX);
    ck_assert_uint_eq(reply->lease_ms_max, KVC_LEASE_MS_MAX);
    ck_assert_uint_eq(reply->page_words, copies ? KVC_PAGE_WORDS : 0);
    ck_assert_uint_eq(reply->page_stride, copies ? KVC_PAGE_STRIDE : 0);
    expect_geometry(reply);
    ck_assert_int_eq(page >= 0, copies);
    talk_free(reply);
    close(page);
    talk_ping(sock);
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(test_page_is_sealed)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_connect(daemon_socket(d)), page;
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_WORKER);
    struct stat st;

    talk_free(say_hello(sock, &hello, &page));
    ck_assert_int_eq(fstat(page, &st), 0);
    ck_assert_int_eq(st.st_size, KVC_PAGE_WORDS * KVC_PAGE_STRIDE);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(ftruncate(page, 4096), -1);
    ck_assert_int_eq(fcntl(page, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    close(page);
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(test_sessions_differ)
{
    struct daemon *d = daemon_start(NULL);
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_SCHEDULER);
    int a = talk_connect(daemon_socket(d)), b = talk_connect(daemon_socket(d)), page;
    Kvcache__HelloReply *ra = say_hello(a, &hello, &page), *rb = say_hello(b, &hello, &page);

    ck_assert_uint_ne(ra->session, rb->session);
    ck_assert_mem_ne(ra->secret.data, rb->secret.data, KVC_SECRET_BYTES);
    ck_assert_uint_eq(ra->boot_epoch, rb->boot_epoch);
    talk_free(ra);
    talk_free(rb);
    close(a);
    close(b);
    daemon_stop(d);
}
END_TEST

START_TEST(test_boot_epoch_grows)
{
    struct daemon *d = daemon_start(NULL);
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_OPERATOR);
    int a = talk_connect(daemon_socket(d)), b, page;
    Kvcache__HelloReply *ra = say_hello(a, &hello, &page), *rb;

    close(a);
    daemon_restart_killed(d);
    b = talk_connect(daemon_socket(d));
    rb = say_hello(b, &hello, &page);
    ck_assert_uint_gt(rb->boot_epoch, ra->boot_epoch);
    talk_free(ra);
    talk_free(rb);
    close(b);
    daemon_stop(d);
}
END_TEST

static void refused(int sock, const Kvcache__Hello *hello, kvc_status status, const char *field)
{
    talk_expect_error(sock, talk_send(sock, WIRE_HELLO, &hello->base), status, field);
}

// A refused HELLO leaves the connection as it was: the next may be right.
START_TEST(test_refused_then_right)
{
    struct daemon *d = daemon_start(NULL);
    static uint8_t uuids[9 * KVC_UUID_BYTES];
    char name[KVC_NAME_MAX + 2];
    int sock = talk_connect(daemon_socket(d)), page;
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_NONE);

    refused(sock, &hello, KVC_E_INVALID, "role");
    hello.role = (Kvcache__Role)5;
    refused(sock, &hello, KVC_E_INVALID, "role");
    hello = make_hello(KVCACHE__ROLE__ROLE_WORKER);
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    hello.name = name;
    refused(sock, &hello, KVC_E_LIMIT, "name");
    hello = make_hello(KVCACHE__ROLE__ROLE_WORKER);
    hello.build = name;
    refused(sock, &hello, KVC_E_LIMIT, "build");
    hello = make_hello(KVCACHE__ROLE__ROLE_WORKER);
    hello.device_uuids = (ProtobufCBinaryData){15, uuids};
    refused(sock, &hello, KVC_E_INVALID, "device_uuids");
    hello.device_uuids = (ProtobufCBinaryData){sizeof(uuids), uuids};
    refused(sock, &hello, KVC_E_LIMIT, "device_uuids");

    // Devices mean nothing to a daemon without any.
    hello.device_uuids.len = 8 * KVC_UUID_BYTES;
    talk_free(say_hello(sock, &hello, &page));
    ck_assert_int_eq(daemon_log_count(d, "devices ignored"), 1);
    close(page);
    refused(sock, &hello, KVC_E_INVALID, "");
    talk_ping(sock);
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(test_version_0_is_refused_and_closed)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_connect(daemon_socket(d));
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_WORKER);

    hello.version = 0;
    refused(sock, &hello, KVC_E_VERSION, "version");
    ck_assert(talk_ended(sock));
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(F41_a_later_version_gets_ours)
{
    struct daemon *d = daemon_start(NULL);
    int sock = talk_connect(daemon_socket(d)), page;
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_READER);
    Kvcache__HelloReply *reply;

    hello.version = 7;
    hello.features = UINT64_MAX;
    reply = say_hello(sock, &hello, &page);
    ck_assert_uint_eq(reply->version, 1);
    ck_assert_uint_eq(reply->features, 0);
    talk_free(reply);
    close(page);
    close(sock);
    daemon_stop(d);
}
END_TEST

// Names go to people's terminals and into JSON.
START_TEST(test_names_are_text)
{
    static char *const bad[] = {
        "\n",       "a\tb",
        "\x1b[2J",  "\x7f",
        "\xff",     "\xc3",
        "\xc0\xaf", "\xed\xa0\x80", // a surrogate
        "\xe2\x82", "\xf4\x90\x80\x80",
        "\xc2\x85", "ok\x80ok",
    };
    static char *const good[] = {"", "worker 1", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x90\x99", "~!@\"\\"};
    struct daemon *d = daemon_start(NULL);
    int sock = talk_connect(daemon_socket(d)), page;
    Kvcache__Hello hello = make_hello(KVCACHE__ROLE__ROLE_SCHEDULER);

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        hello.name = bad[i];
        refused(sock, &hello, KVC_E_INVALID, "name");
    }
    close(sock);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        sock = talk_connect(daemon_socket(d));
        hello.name = good[i];
        talk_free(say_hello(sock, &hello, &page));
        close(sock);
    }
    daemon_stop(d);
}
END_TEST

// Where the kernel cannot give a pidfd of the peer, one is opened by number.
START_TEST(test_kernel_without_peer_pidfd)
{
    struct daemon *d = daemon_start(NULL);
    int sock;

    daemon_fault_arm(d, "process.peerpidfd", 0, 1000);
    sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    talk_ping(sock);
    ck_assert_uint_ge(daemon_fault_fired(d, "process.peerpidfd"), 1);
    close(sock);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("daemon/hello", CHECK_LIFE_S, {test_each_role, 1, 4}, {test_page_is_sealed, 0, 0},
                 {test_sessions_differ, 0, 0}, {test_boot_epoch_grows, 0, 0},
                 {test_refused_then_right, 0, 0}, {test_version_0_is_refused_and_closed, 0, 0},
                 {F41_a_later_version_gets_ours, 0, 0}, {test_names_are_text, 0, 0},
                 {test_kernel_without_peer_pidfd, 0, 0})
