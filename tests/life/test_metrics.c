// Metrics and health over HTTP: a text that keeps the rules of its format, figures that are those
// of kvcachectl, and clients that are slow or hostile and delay nobody.
#include <arpa/inet.h>
#include <ctype.h>
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
#include "tests/lib/http.h"
#include "tests/lib/wait.h"

#define METRICS_MAX 256u
#define SAMPLES_MAX 4096u
#define CLIENTS     1000
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

// What the format says, and what Prometheus's own checker asks for besides.

struct metric {
    char name[96];
    char type[16];
    bool has_samples;
};
static struct metric metrics[METRICS_MAX];
static uint32_t n_metrics;
static char samples[SAMPLES_MAX][384]; // names with labels
static uint32_t n_samples;

static bool ends_in(const char *text, const char *end)
{
    return strlen(text) > strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static size_t name_length(const char *at)
{
    size_t n = 0;

    while (islower(at[n]) || at[n] == '_' || (n > 0 && isdigit(at[n])))
        n++;
    return n;
}

static void check_help(const char *line)
{
    struct metric *m = &metrics[n_metrics];

    ck_assert_uint_lt(n_metrics, METRICS_MAX);
    ck_assert_int_eq(sscanf(line, "# HELP %95s", m->name), 1);
    ck_assert_uint_eq(name_length(m->name), strlen(m->name));
    ck_assert_int_eq(strncmp(m->name, "kvcached_", 9), 0);
    ck_assert_msg(strlen(line) > strlen("# HELP ") + strlen(m->name) + 1, "no help: %s", line);
    for (uint32_t i = 0; i < n_metrics; i++)
        ck_assert_str_ne(metrics[i].name, m->name);
    m->type[0] = '\0';
    m->has_samples = false;
    n_metrics++;
}

static void check_type(const char *line)
{
    struct metric *m = &metrics[n_metrics - 1];
    char name[96];

    ck_assert_uint_gt(n_metrics, 0);
    ck_assert_msg(!m->has_samples && m->type[0] == '\0', "not behind its HELP: %s", line);
    ck_assert_int_eq(sscanf(line, "# TYPE %95s %15s", name, m->type), 2);
    ck_assert_str_eq(name, m->name);
    if (strcmp(m->type, "counter") == 0)
        ck_assert_msg(ends_in(name, "_total"), "a counter without _total: %s", name);
    else
        ck_assert_msg(!ends_in(name, "_total"), "no counter, and _total: %s", name);
    if (strcmp(m->type, "histogram") == 0)
        ck_assert_msg(ends_in(name, "_seconds"), "no base unit: %s", name);
    else
        ck_assert(strcmp(m->type, "counter") == 0 || strcmp(m->type, "gauge") == 0);
}

// {a="b",c="d"} with escapes; returns what is behind it.
static const char *check_labels(const char *at)
{
    do {
        size_t n = name_length(++at);

        ck_assert_uint_gt(n, 0);
        at += n;
        ck_assert_msg(at[0] == '=' && at[1] == '"', "label: %s", at);
        for (at += 2; *at != '"'; at++) {
            ck_assert_int_ne(*at, '\0');
            if (*at == '\\') {
                at++;
                ck_assert_msg(*at == '\\' || *at == '"' || *at == 'n', "escape: %s", at);
            }
        }
        at++;
    } while (*at == ',');
    ck_assert_int_eq(*at, '}');
    return at + 1;
}

static bool belongs(const struct metric *m, const char *line, size_t n)
{
    static const char *const ends[] = {"_bucket", "_sum", "_count"};
    const size_t own = strlen(m->name);

    if (n < own || strncmp(line, m->name, own) != 0)
        return false;
    if (strcmp(m->type, "histogram") != 0)
        return n == own;
    for (size_t i = 0; i < 3; i++)
        if (n == own + strlen(ends[i]) && strncmp(line + own, ends[i], strlen(ends[i])) == 0)
            return true;
    return false;
}

static void check_sample(const char *line)
{
    const char *at = line + name_length(line);
    char *end;

    ck_assert_uint_gt(n_metrics, 0);
    ck_assert_msg(belongs(&metrics[n_metrics - 1], line, (size_t)(at - line)),
                  "not a sample of the metric before: %s", line);
    ck_assert_msg(metrics[n_metrics - 1].type[0] != '\0', "no TYPE: %s", line);
    metrics[n_metrics - 1].has_samples = true;
    if (*at == '{')
        at = check_labels(at);
    ck_assert_msg(*at == ' ', "no value: %s", line);
    ck_assert_uint_lt(n_samples, SAMPLES_MAX);
    ck_assert_uint_lt((size_t)(at - line), sizeof(samples[0]));
    snprintf(samples[n_samples], sizeof(samples[0]), "%.*s", (int)(at - line), line);
    for (uint32_t i = 0; i < n_samples; i++)
        ck_assert_str_ne(samples[i], samples[n_samples]);
    n_samples++;
    ck_assert_msg(strtod(at + 1, &end) >= 0 && *end == '\0' && end > at + 1, "value: %s", line);
}

// Buckets that only grow, up to the count.
static void check_histogram(const char *text, const char *name)
{
    char find[128];
    double last = 0;
    uint32_t n = 0;

    snprintf(find, sizeof(find), "\n%s_bucket{le=\"", name);
    for (const char *at = strstr(text, find); at; at = strstr(at + 1, find), n++) {
        const double here = strtod(strchr(at, ' ') + 1, NULL);

        ck_assert_msg(here >= last, "%s: a bucket has less than the one before", name);
        last = here;
    }
    ck_assert_uint_gt(n, 2);
    snprintf(find, sizeof(find), "\n%s_bucket{le=\"+Inf\"} ", name);
    ck_assert_ptr_nonnull(strstr(text, find));
    snprintf(find, sizeof(find), "\n%s_count ", name);
    ck_assert_ptr_nonnull(strstr(text, find));
    ck_assert(strtod(strstr(text, find) + strlen(find), NULL) == last);
    snprintf(find, sizeof(find), "\n%s_sum ", name);
    ck_assert_ptr_nonnull(strstr(text, find));
}

// Prometheus's own judge, where there is one.
static void check_with_promtool(const char *text)
{
    FILE *tool;

    if (system("command -v promtool >/dev/null 2>&1") != 0)
        return;
    tool = popen("promtool check metrics", "w");
    ck_assert_ptr_nonnull(tool);
    fputs(text, tool);
    ck_assert_int_eq(pclose(tool), 0);
}

static void check_text(const char *whole)
{
    static char line[1024];
    const char *text = whole;

    n_metrics = n_samples = 0;
    ck_assert_msg(ends_in(text, "\n"), "the last line has no end");
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");

        ck_assert_uint_gt(n, 0);
        ck_assert_uint_lt(n, sizeof(line));
        memcpy(line, text, n);
        line[n] = '\0';
        text += n + 1;
        if (strncmp(line, "# HELP ", 7) == 0)
            check_help(line);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            check_type(line);
        else
            check_sample(line);
    }
    for (uint32_t i = 0; i < n_metrics; i++)
        if (strcmp(metrics[i].type, "histogram") == 0)
            check_histogram(whole, metrics[i].name);
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
    check_text(answer.body);
    check_with_promtool(answer.body);
    ck_assert_uint_gt(n_metrics, 40);
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

START_TEST(evictions_have_reasons_that_sum_up)
{
    struct engine e;
    struct admin_stats stats;
    in_port_t port;
    struct daemon *d = http_daemon(NULL, &port);

    engine_open(&e, daemon_socket(d));
    for (uint32_t i = 0; i < 20; i++)
        engine_put_some(&e, 1 + i * 256, 256);
    stats = engine_stats(e.client);
    get(port, "/metrics");
    check_text(answer.body);
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
    check_text(answer.body);
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
    ck_assert_uint_lt(longest_lookup_us(&e, 500), (uint64_t)(500000 * check_time_multiplier()));
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
           evictions_have_reasons_that_sum_up, namespaces_have_a_bounded_number_of_samples,
           other_paths_and_methods_are_refused, slow_and_hostile_clients_delay_no_worker,
           a_port_that_is_taken_is_a_warning, what_is_no_address_is_refused)
