/*
 * Text that grows, and lines of the exposition format in it. When memory is short the text is
 * incomplete, and short_of_memory is set.
 */
#ifndef KVC_METRICS_TEXT_H
#define KVC_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/histogram.h"

struct text {
    char *bytes;
    size_t n, size;
    bool short_of_memory;
};

void text_clear(struct text *text); /* keeps the memory */
void text_free(struct text *text);
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* HELP and TYPE of a metric, whose samples follow. */
void text_metric(struct text *text, const char *name, const char *type, const char *help);
/* labels: as between the braces, or "". */
void text_count(struct text *text, const char *name, const char *labels, uint64_t value);
void text_seconds(struct text *text, const char *name, const char *labels, uint64_t us);

/* A metric of one sample. */
void text_counter(struct text *text, const char *name, uint64_t value, const char *help);
void text_gauge(struct text *text, const char *name, uint64_t value, const char *help);
void text_age(struct text *text, const char *name, uint64_t us, const char *help);
void text_histogram(struct text *text, const char *name, const struct histogram *h,
                    const char *help);

/* A label's value with what must be escaped escaped, cut to fit. Returns ret. */
const char *text_label(const char *value, char *ret, size_t size);

#endif
