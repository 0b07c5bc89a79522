#include "daemon/metrics/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/base/mem.h"

#define STEP 16384u

void text_clear(struct text *text)
{
    text->n = 0;
    text->short_of_memory = false;
}

void text_free(struct text *text)
{
    mem_free(text->bytes);
    *text = (struct text){0};
}

static bool grow(struct text *text, size_t needed)
{
    const size_t size = (text->n + needed + STEP) / STEP * STEP;
    char *bytes = mem_realloc(text->bytes, size);

    if (bytes == NULL) {
        text->short_of_memory = true;
        return false;
    }
    text->bytes = bytes;
    text->size = size;
    return true;
}

void text_add(struct text *text, const char *format, ...)
{
    va_list args;
    int n;

    if (text->short_of_memory)
        return;
    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || (text->n + (size_t)n >= text->size && !grow(text, (size_t)n + 1)))
        return;
    va_start(args, format);
    vsnprintf(text->bytes + text->n, text->size - text->n, format, args);
    va_end(args);
    text->n += (size_t)n;
}

void text_metric(struct text *text, const char *name, const char *type, const char *help)
{
    text_add(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void open_sample(struct text *text, const char *name, const char *labels)
{
    if (labels[0] != '\0')
        text_add(text, "%s{%s} ", name, labels);
    else
        text_add(text, "%s ", name);
}

void text_count(struct text *text, const char *name, const char *labels, uint64_t value)
{
    open_sample(text, name, labels);
    text_add(text, "%" PRIu64 "\n", value);
}

void text_seconds(struct text *text, const char *name, const char *labels, uint64_t us)
{
    open_sample(text, name, labels);
    text_add(text, "%" PRIu64 ".%06" PRIu64 "\n", us / 1000000u, us % 1000000u);
}

void text_counter(struct text *text, const char *name, uint64_t value, const char *help)
{
    text_metric(text, name, "counter", help);
    text_count(text, name, "", value);
}

void text_gauge(struct text *text, const char *name, uint64_t value, const char *help)
{
    text_metric(text, name, "gauge", help);
    text_count(text, name, "", value);
}

void text_age(struct text *text, const char *name, uint64_t us, const char *help)
{
    text_metric(text, name, "gauge", help);
    text_seconds(text, name, "", us);
}

void text_histogram(struct text *text, const char *name, const struct histogram *h,
                    const char *help)
{
    uint64_t below = 0;

    text_metric(text, name, "histogram", help);
    for (uint32_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        below += h->counts[i];
        text_add(text, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                 (double)histogram_bounds_us[i] / 1e6, below);
    }
    below += h->counts[HISTOGRAM_BOUNDS];
    text_add(text, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, below);
    text_add(text, "%s_sum %" PRIu64 ".%06" PRIu64 "\n%s_count %" PRIu64 "\n", name,
             h->sum_us / 1000000u, h->sum_us % 1000000u, name, below);
}

const char *text_label(const char *value, char *ret, size_t size)
{
    size_t n = 0;

    for (; *value != '\0' && n + 2 < size; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            ret[n++] = '\\';
        ret[n++] = (char)(*value == '\n' ? 'n' : *value);
    }
    ret[n] = '\0';
    return ret;
}
