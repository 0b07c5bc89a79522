#include "tests/lib/exposition.h"

#include <check.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_MAX 256u
#define SAMPLES_MAX 4096u

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
    ck_assert(strncmp(m->name, "kvcached_", 9) == 0 || strncmp(m->name, "process_", 8) == 0);
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

// Buckets that only grow, up to the count; and from a microsecond to ten seconds a quantile is
// known to two and a half times.
static void check_histogram(const char *text, const char *name)
{
    char find[128];
    double last = 0, bound = 1e-6;
    uint32_t n = 0;

    snprintf(find, sizeof(find), "\n%s_bucket{le=\"", name);
    for (const char *at = strstr(text, find); at; at = strstr(at + 1, find), n++) {
        const double here = strtod(strchr(at, ' ') + 1, NULL);

        const double le = strtod(at + strlen(find), NULL);

        ck_assert_msg(here >= last, "%s: a bucket has less than the one before", name);
        ck_assert_msg(le <= bound * 2.51 || bound >= 10, "%s: %g is far above %g", name, le, bound);
        last = here;
        bound = le;
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

uint32_t exposition_check(const char *whole)
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
    check_with_promtool(whole);
    return n_metrics;
}
