// Metrics and health over HTTP: a text that keeps the rules of its format, figures that are those
// of kvcachectl, clients that are slow or hostile and delay nobody, and a health that tells of what
// does not come back.
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
#include "tests/lib/log_file.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define TEXT_MAX    (256u << 10)
#define METRICS_MAX 256u
#define SAMPLES_MAX 4096u
#define CLIENTS     1000
#define PATIENCE_S  20

static char page[TEXT_MAX];
static char *body;
static int code;

// Of the first daemon of the test, which chose a port itself.
static in_port_t port_of(void)
{
    static char log[16384];
    struct log_file file;
    char *at;

    log_file_init(&file, tmpdir_file("kvcached1.log"));
    log_file_read(&file, log, sizeof(log));
    at = strstr(log, "url=http://127.0.0.1:");
    ck_assert_ptr_nonnull(at);
    return (in_port_t)strtoul(at + strlen("url=http://127.0.0.1:"), NULL, 10);
}

static struct daemon *start(in_port_t *port)
{
    struct daemon *d = daemon_start((const char *[]){"--metrics", "127.0.0.1:0", NULL});

    wait_for(daemon_log_count(d, "url=http://") == 1, ENGINE_MS);
    *port = port_of();
    return d;
}

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

static bool ask(in_port_t port, const char *request)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = 0;
    ssize_t got;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(sock, (struct sockaddr *)&at, sizeof(at)) < 0 ||
        send(sock, request, strlen(request), MSG_NOSIGNAL) < 0) {
        close(sock);
        return false;
    }
    while (n < sizeof(page) - 1 && (got = recv(sock, page + n, sizeof(page) - 1 - n, 0)) > 0)
        n += (size_t)got;
    close(sock);
    page[n] = '\0';
    body = strstr(page, "\r\n\r\n");
    if (body == NULL || sscanf(page, "HTTP/1.1 %d", &code) != 1)
        return false;
    body += 4;
    return true;
}

static void get(in_port_t port, const char *path)
{
    char request[128];

    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    ck_assert(ask(port, request));
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

static void check_text(const char *text)
{
    static char line[1024];

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
}

// The value of a sample, named with its labels.
static double value(const char *sample)
{
    char find[384];
    const char *at;

    snprintf(find, sizeof(find), "\n%s ", sample);
    at = strstr(body, find);
    ck_assert_msg(at != NULL, "no sample %s", sample);
    return strtod(at + strlen(find), NULL);
}

static double sum_of(const char *start)
{
    double sum = 0;

    for (const char *at = strstr(body, start); at != NULL; at = strstr(at + 1, start))
        sum += strtod(strchr(at, ' ') + 1, NULL);
    return sum;
}

static void expect(const char *sample, uint64_t figure)
{
    ck_assert_msg(value(sample) == (double)figure, "%s: %.6f, not %llu", sample, value(sample),
                  (unsigned long long)figure);
}

START_TEST(the_text_keeps_the_rules_and_agrees_with_status)
{
    struct engine worker, other;
    struct admin_stats stats;
    in_port_t port;
    struct daemon *d = start(&port);

    engine_open(&worker, daemon_socket(d));
    engine_put(&worker, 1, 10);
    engine_verify(&worker, 1, 10);
    engine_connect(&other, daemon_socket(d), KVC_ROLE_SCHEDULER);
    engine_register(&other, 2);
    ck_assert_uint_eq(engine_lookup(&other, 500, 3), 0);
    get(port, "/metrics");
    ck_assert_int_eq(code, 200);
    ck_assert_ptr_nonnull(strstr(page, "Content-Type: text/plain; version=0.0.4"));
    check_text(body);
    ck_assert_uint_gt(n_metrics, 40);
    stats = engine_stats(other.client);
    ck_assert_uint_eq(stats.blocks, 10);
    ck_assert_uint_eq(stats.tiers[0].hits, 10);
    expect("kvcached_blocks", stats.blocks);
    expect("kvcached_sessions", stats.sessions);
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
    struct daemon *d = start(&port);

    engine_open(&e, daemon_socket(d));
    for (uint32_t i = 0; i < 20; i++)
        engine_put_some(&e, 1 + i * 256, 256);
    stats = engine_stats(e.client);
    get(port, "/metrics");
    check_text(body);
    ck_assert_uint_gt(stats.tiers[0].evictions, 0);
    ck_assert(sum_of("\nkvcached_evictions_total{tier=\"gpu\"") >=
              (double)stats.tiers[0].evictions);
    ck_assert(value("kvcached_evictions_total{tier=\"gpu\",reason=\"copied\"}") +
                  value("kvcached_evictions_total{tier=\"gpu\",reason=\"room\"}") >
              0);
    expect("kvcached_evictions_total{tier=\"gpu\",reason=\"dependent\"}", 0);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(namespaces_have_a_bounded_number_of_samples)
{
    struct engine e;
    in_port_t port;
    struct daemon *d = start(&port);

    for (uint32_t i = 1; i <= 40; i++) {
        engine_connect(&e, daemon_socket(d), KVC_ROLE_WORKER);
        engine_register(&e, (uint8_t)i);
        engine_put(&e, 1, 1);
        engine_close(&e);
    }
    get(port, "/metrics");
    check_text(body);
    ck_assert_ptr_nonnull(strstr(body, "namespace=\"other\""));
    ck_assert(sum_of("\nkvcached_namespace_used_bytes{") ==
              value("kvcached_tier_used_bytes{tier=\"gpu\"}") +
                  value("kvcached_tier_used_bytes{tier=\"host\"}"));
    daemon_stop(d);
}
END_TEST

START_TEST(other_paths_and_methods_are_refused)
{
    in_port_t port;
    struct daemon *d = start(&port);

    get(port, "/");
    ck_assert_int_eq(code, 404);
    get(port, "/metrics/../healthz");
    ck_assert_int_eq(code, 404);
    ck_assert(ask(port, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"));
    ck_assert_int_eq(code, 405);
    ck_assert(ask(port, "HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n"));
    ck_assert_int_eq(code, 200);
    ck_assert_str_eq(body, "");
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
    struct daemon *d = start(&port);
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
    wait_for(ask(port, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n") && code == 200, ENGINE_MS);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

static bool health_is(in_port_t port, int wanted)
{
    get(port, "/healthz");
    return code == wanted;
}

START_TEST(health_tells_of_a_copy_that_hangs)
{
    struct engine e;
    in_port_t port;
    struct daemon *d = start(&port);
    uint64_t save;

    engine_lends(true);
    engine_open(&e, daemon_socket(d));
    ck_assert(health_is(port, 200));
    ck_assert_int_eq(strncmp(body, "ok\n", 3), 0);
    daemon_fault_arm(d, "copier.late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_save(&e, 1, 4, NULL, &save), KVC_OK);
    wait_for(daemon_fault_fired(d, "copier.late") > 0, ENGINE_MS);
    ck_assert(health_is(port, 200));
    daemon_clock_advance(d, 60 * 1000000ull);
    wait_for(health_is(port, 503), ENGINE_MS);
    ck_assert_ptr_nonnull(strstr(body, "wrong: a copy for a worker has not ended for 6"));
    ck_assert_ptr_nonnull(strstr(body, "not well\n"));
    get(port, "/metrics");
    ck_assert(value("kvcached_oldest_copy_seconds{of=\"workers\"}") >= 60);
    daemon_fault_off(d, "copier.late");
    wait_for(health_is(port, 200), ENGINE_MS);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_port_that_is_taken_is_a_warning)
{
    char address[32];
    in_port_t port;
    struct daemon *first = start(&port), *second;

    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    second = daemon_start((const char *[]){"--metrics", address, NULL});
    daemon_log_expect(second, "metrics: not served address=127.0.0.1:");
    wait_for(daemon_log_count(second, "not served") == 1, ENGINE_MS);
    daemon_stop(second);
    get(port, "/healthz");
    ck_assert_int_eq(code, 200);
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
           health_tells_of_a_copy_that_hangs, a_port_that_is_taken_is_a_warning,
           what_is_no_address_is_refused)
