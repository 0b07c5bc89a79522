// Metrics and health over HTTP: a text that keeps the rules of its format, figures that are those
// of kvcachectl, and clients that are slow or hostile and delay nobody.
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/exposition.h"
#include "tests/lib/http.h"
#include "tests/lib/wait.h"

#define CLIENTS     1000
#define START_S     60                   // no daemon of a test is older
#define BLOCK_BYTES (4096 + 1000 + 8192) // of an engine, without padding

static struct http answer;

// Connects, at once or never: who is not accepted yet waits in the kernel.
static int dial(in_port_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    ck_assert_int_ge(sock, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)connect(sock, (struct sockaddr *)&at, sizeof(at));
    return sock;
}

static void get(in_port_t port, const char *path)
{
    http_get(port, path, &answer);
}

static double value(const char *sample)
{
    return http_value(&answer, sample);
}

static double sum_of(const char *start)
{
    double sum = 0;

    for (const char *at = strstr(answer.body, start); at != NULL; at = strstr(at + 1, start))
        sum += strtod(strchr(at, ' ') + 1, NULL);
    return sum;
}

static void expect(const char *sample, uint64_t figure)
{
    ck_assert_msg(value(sample) == (double)figure, "%s: %.6f, not %llu", sample, value(sample),
                  (unsigned long long)figure);
}

// The worker of the test, in its user's tenant.
static void expect_session_of(uid_t uid)
{
    char name[96];

    snprintf(name, sizeof(name), "kvcached_tenant_sessions{tenant=\"uid:%u\",role=\"worker\"}",
             uid);
    expect(name, 1);
}

START_TEST(the_text_keeps_the_rules_and_agrees_with_status)
{
    struct engine worker, other;
    struct admin_stats stats;
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);

    engine_open(&worker, daemon_socket(d));
    engine_put(&worker, 1, 10);
    engine_verify(&worker, 1, 10);
    engine_connect(&other, daemon_socket(d), KVC_ROLE_SCHEDULER);
    engine_register(&other, 2);
    ck_assert_uint_eq(engine_lookup(&other, 500, 3), 0);
    get(port, "/metrics");
    ck_assert_int_eq(answer.code, 200);
    ck_assert_ptr_nonnull(strstr(answer.page, "Content-Type: text/plain; version=0.0.4"));
    ck_assert_uint_gt(exposition_check(answer.body), 40);
    stats = engine_stats(other.client);
    ck_assert_uint_eq(stats.blocks, 10);
    ck_assert_uint_eq(stats.tiers[0].hits, 10);
    expect("kvcached_blocks", stats.blocks);
    expect("kvcached_sessions", stats.sessions);
    expect_session_of(geteuid());
    expect("kvcached_saves_total", stats.saves);
    expect("kvcached_published_blocks_total", stats.published_blocks);
    expect("kvcached_misses_total", stats.misses);
    expect("kvcached_hits_total{tier=\"gpu\"}", stats.tiers[0].hits);
    expect("kvcached_tier_used_bytes{tier=\"gpu\"}", stats.tiers[0].used_bytes);
    expect("kvcached_tier_used_slots{tier=\"gpu\"}", stats.tiers[0].used_slots);
    expect("kvcached_tier_bytes{tier=\"host\"}", stats.tiers[1].bytes);
    expect("kvcached_path_bytes_total{path=\"worker_to_gpu\"}", stats.tiers[0].bytes_saved);
    expect("kvcached_path_bytes_total{path=\"gpu_to_worker\"}", stats.tiers[0].bytes_loaded);
    expect("kvcached_quarantined_slots", 0);
    ck_assert(sum_of("\nkvcached_namespace_hits_total{") == 10);
    ck_assert(sum_of("\nkvcached_namespace_used_bytes{") == (double)stats.tiers[0].used_bytes);
    ck_assert(value("kvcached_lookup_duration_seconds_count") >= 2);
    ck_assert(value("kvcached_lookup_duration_seconds_bucket{le=\"+Inf\"}") ==
              value("kvcached_lookup_duration_seconds_count"));
    ck_assert(value("kvcached_save_duration_seconds_count") == 1);
    ck_assert(value("kvcached_save_request_duration_seconds_count") == 1);
    ck_assert(value("kvcached_load_duration_seconds_count") == 1);
    ck_assert(value("kvcached_load_duration_seconds_sum") > 0);
    engine_close(&worker);
    engine_close(&other);
    daemon_stop(d);
}
END_TEST

// What tools know of any process by these names.
static bool has_found_its_memory(kvc_client *client)
{
    const struct admin_stats stats = engine_stats(client);

    return stats.tiers[0].populated_bytes == stats.tiers[0].bytes &&
           stats.tiers[1].populated_bytes == stats.tiers[1].bytes;
}

START_TEST(the_memory_of_the_tiers_is_found_soon_after_the_start)
{
    struct engine e;
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);

    engine_connect(&e, daemon_socket(d), KVC_ROLE_SCHEDULER);
    wait_for(has_found_its_memory(e.client), ENGINE_MS);
    get(port, "/metrics");
    expect("kvcached_tier_populated_bytes{tier=\"gpu\"}", engine_stats(e.client).tiers[0].bytes);
    expect("kvcached_tier_populated_bytes{tier=\"host\"}", engine_stats(e.client).tiers[1].bytes);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(the_process_is_described_as_by_any_client_of_prometheus)
{
    struct engine e[20];
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);
    double fds, start, tiers;

    get(port, "/metrics");
    exposition_check(answer.body);
    fds = value("process_open_fds");
    start = value("process_start_time_seconds");
    tiers =
        value("kvcached_tier_bytes{tier=\"gpu\"}") + value("kvcached_tier_bytes{tier=\"host\"}");
    ck_assert(fabs(start - (double)time(NULL)) < START_S);
    wait_for((get(port, "/metrics"), value("process_cpu_seconds_total") > 0), ENGINE_MS);
    ck_assert(value("process_max_fds") >= fds);
    ck_assert(value("kvcached_private_memory_bytes") < value("process_resident_memory_bytes"));
    for (uint32_t i = 0; i < 20; i++)
        engine_connect(&e[i], daemon_socket(d), KVC_ROLE_WORKER);
    get(port, "/metrics");
    ck_assert(value("process_open_fds") >= fds + 20);
    fds = value("process_open_fds");
    ck_assert(value("process_start_time_seconds") == start);
    ck_assert(value("process_virtual_memory_bytes") >= tiers);
    for (uint32_t i = 0; i < 20; i++)
        engine_close(&e[i]);
    wait_for((get(port, "/metrics"), value("process_open_fds") <= fds - 20), ENGINE_MS);
    daemon_stop(d);
}
END_TEST

// Saves wait a moment for room, and what finds none is skipped: where nothing could be demoted
// meanwhile, they evict nothing either.
static bool goes_down(struct engine *e, uint32_t first)
{
    struct admin_stats stats;

    engine_put_some(e, first, 256);
    stats = engine_stats(e->client);
    return stats.demotions > 0 && stats.tiers[0].evictions > 0;
}

START_TEST(evictions_have_reasons_that_sum_up)
{
    struct engine e;
    struct admin_stats stats;
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);
    uint32_t first = 1;

    engine_open(&e, daemon_socket(d));
    for (; first < 20 * 256; first += 256)
        engine_put_some(&e, first, 256);
    wait_for(goes_down(&e, first += 256), ENGINE_MS);
    stats = engine_stats(e.client);
    get(port, "/metrics");
    exposition_check(answer.body);
    ck_assert_uint_gt(stats.tiers[0].evictions, 0);
    ck_assert(sum_of("\nkvcached_evictions_total{tier=\"gpu\"") >=
              (double)stats.tiers[0].evictions);
    ck_assert(value("kvcached_evictions_total{tier=\"gpu\",reason=\"copied\"}") +
                  value("kvcached_evictions_total{tier=\"gpu\",reason=\"room\"}") >
              0);
    expect("kvcached_evictions_total{tier=\"gpu\",reason=\"dependent\"}", 0);
    ck_assert_uint_gt(stats.demotions, 0);
    ck_assert(value("kvcached_demotions_total") >= (double)stats.demotions);
    ck_assert(value("kvcached_demote_duration_seconds_count") == value("kvcached_demotions_total"));
    ck_assert(value("kvcached_path_bytes_total{path=\"gpu_to_host\"}") ==
              value("kvcached_demotions_total") * BLOCK_BYTES);
    expect("kvcached_path_bytes_total{path=\"peer_to_host\"}", 0);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

static void load_some(struct engine *e, uint32_t first)
{
    if (engine_lookup(e, first, 8) == 0)
        return;
    engine_load(e);
    engine_release(e);
}

static void load_many(struct engine *e)
{
    for (uint32_t turn = 0; turn < 60; turn++)
        load_some(e, 1 + (29 - turn % 15) * 64);
}

// Work of every kind, after which no figure of it is 0.
START_TEST(F26_no_metric_of_what_happened_stays_0)
{
    static const char *const moved[] = {"kvcached_hits_total{tier=\"gpu\"}",
                                        "kvcached_hits_total{tier=\"host\"}",
                                        "kvcached_misses_total",
                                        "kvcached_evictions_total{tier=\"gpu\",reason=\"copied\"}",
                                        "kvcached_evictions_total{tier=\"host\",reason=\"room\"}",
                                        "kvcached_evicted_blocks_total",
                                        "kvcached_path_bytes_total{path=\"worker_to_gpu\"}",
                                        "kvcached_path_bytes_total{path=\"gpu_to_worker\"}",
                                        "kvcached_path_bytes_total{path=\"host_to_worker\"}",
                                        "kvcached_path_bytes_total{path=\"gpu_to_host\"}",
                                        "kvcached_path_bytes_total{path=\"host_to_gpu\"}",
                                        "kvcached_saves_total",
                                        "kvcached_published_blocks_total",
                                        "kvcached_demotions_total",
                                        "kvcached_promotions_total",
                                        "kvcached_lookup_duration_seconds_count",
                                        "kvcached_save_duration_seconds_sum",
                                        "kvcached_load_duration_seconds_sum",
                                        "kvcached_demote_duration_seconds_sum",
                                        "kvcached_promote_duration_seconds_sum",
                                        "kvcached_save_request_duration_seconds_count",
                                        "kvcached_load_request_duration_seconds_count",
                                        "kvcached_blocks",
                                        "kvcached_uptime_seconds",
                                        "kvcached_cpu_seconds_total{mode=\"user\"}",
                                        "kvcached_tier_used_bytes{tier=\"host\"}",
                                        "kvcached_tier_used_slots{tier=\"gpu\"}"};
    const char *const small[] = {"--gpu-bytes", "4M", "--host-bytes", "8M", NULL};
    struct engine e;
    in_port_t port;
    struct daemon *d = http_daemon(small, &port);

    engine_open(&e, daemon_socket(d));
    ck_assert_uint_eq(engine_lookup(&e, 100000, 4), 0);
    for (uint32_t first = 1; first < 1 + 30 * 64; first += 64) {
        wait_for((engine_put_some(&e, first, 64), engine_probe(&e, first, 64) == 64), ENGINE_MS);
        load_some(&e, first);
    }
    // What left the GPU tier last is hit there where it is now, until it comes back. A kernel may
    // count a process's time by ticks, of which a short or an idle life may see none.
    wait_for((load_many(&e), get(port, "/metrics"),
              value("kvcached_promotions_total") > 0 &&
                  value("kvcached_cpu_seconds_total{mode=\"user\"}") > 0),
             ENGINE_MS);
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++)
        ck_assert_msg(value(moved[i]) > 0, "%s is 0", moved[i]);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(namespaces_have_a_bounded_number_of_samples)
{
    struct engine e;
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);

    for (uint32_t i = 1; i <= 40; i++) {
        engine_connect(&e, daemon_socket(d), KVC_ROLE_WORKER);
        engine_register(&e, (uint8_t)i);
        engine_put(&e, 1, 1);
        engine_close(&e);
    }
    get(port, "/metrics");
    exposition_check(answer.body);
    ck_assert_ptr_nonnull(strstr(answer.body, "namespace=\"other\""));
    ck_assert(sum_of("\nkvcached_namespace_used_bytes{") ==
              value("kvcached_tier_used_bytes{tier=\"gpu\"}") +
                  value("kvcached_tier_used_bytes{tier=\"host\"}"));
    daemon_stop(d);
}
END_TEST

START_TEST(other_paths_and_methods_are_refused)
{
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);

    get(port, "/");
    ck_assert_int_eq(answer.code, 404);
    get(port, "/metrics/../healthz");
    ck_assert_int_eq(answer.code, 404);
    ck_assert(http_ask(port, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
                       &answer));
    ck_assert_int_eq(answer.code, 405);
    ck_assert(http_ask(port, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", &answer));
    ck_assert_int_eq(answer.code, 200);
    ck_assert_str_eq(answer.body, "");
    daemon_stop(d);
}
END_TEST

// The longest of so many lookups, in microseconds.
static uint64_t longest_lookup_us(struct engine *e, int n)
{
    uint64_t longest = 0;

    for (int i = 0; i < n; i++) {
        struct timespec from, to;
        uint64_t us;

        clock_gettime(CLOCK_MONOTONIC, &from);
        ck_assert_uint_eq(engine_lookup(e, 1, 10), 10);
        clock_gettime(CLOCK_MONOTONIC, &to);
        engine_release(e);
        us = (uint64_t)(to.tv_sec - from.tv_sec) * 1000000u + (uint64_t)(to.tv_nsec / 1000) -
             (uint64_t)(from.tv_nsec / 1000);
        longest = us > longest ? us : longest;
    }
    return longest;
}

START_TEST(slow_and_hostile_clients_delay_no_worker)
{
    static const char *const say[] = {
        "GET /metrics HTTP/1.1\r\nHo",
        "\x16\x03\x01\x02\x01\xff\xfe",
        "",
        "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\nx",
        "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    static int socks[CLIENTS];
    struct engine e;
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);
    int fds;

    engine_open(&e, daemon_socket(d));
    engine_put(&e, 1, 10);
    fds = daemon_fds(d);
    for (int i = 0; i < CLIENTS; i++) {
        const char *text = say[i % 5];

        socks[i] = dial(port);
        (void)send(socks[i], text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    // What others do on the machine may cost as much; waiting for a client would take seconds.
    ck_assert_uint_lt(longest_lookup_us(&e, 500), wait_patient_ms(200) * 1000u);
    ck_assert_int_le(daemon_fds(d), fds + 8);
    for (int i = 0; i < CLIENTS; i++)
        close(socks[i]);
    wait_for(http_ask(port, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", &answer) &&
                 answer.code == 200,
             ENGINE_MS);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_port_that_is_taken_is_a_warning)
{
    char address[32];
    in_port_t port;
    struct daemon *first = http_daemon(NULL, &port), *second;

    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    second = daemon_start((const char *[]){"--metrics", address, NULL});
    daemon_log_expect(second, "metrics: not served address=127.0.0.1:");
    wait_for(daemon_log_count(second, "not served") == 1, ENGINE_MS);
    daemon_stop(second);
    get(port, "/healthz");
    ck_assert_int_eq(answer.code, 200);
    daemon_stop(first);
}
END_TEST

START_TEST(what_is_no_address_is_refused)
{
    static const char *const wrong[] = {
        "9000",  "localhost:1", "127.0.0.1:", "127.0.0.1:65536", ":1",
        "::1:1", "[::1]",       "[::1:1",     "127.0.0.1:x",     "on"};
    char output[4096];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        ck_assert_int_ne(
            daemon_run((const char *[]){"--metrics", wrong[i], NULL}, output, sizeof(output)), 0);
        ck_assert_msg(strstr(output, "is not ADDRESS:PORT") != NULL, "%s: %s", wrong[i], output);
    }
}
END_TEST

CHECK_MAIN("life/metrics", CHECK_LIFE_S, the_text_keeps_the_rules_and_agrees_with_status,
           the_memory_of_the_tiers_is_found_soon_after_the_start,
           the_process_is_described_as_by_any_client_of_prometheus,
           evictions_have_reasons_that_sum_up, F26_no_metric_of_what_happened_stays_0,
           namespaces_have_a_bounded_number_of_samples, other_paths_and_methods_are_refused,
           slow_and_hostile_clients_delay_no_worker, a_port_that_is_taken_is_a_warning,
           what_is_no_address_is_refused)
