#include "client/ctl/human.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/admin.h"

/* In the largest unit of which it is one or more. */
static const char *scale(double value, double step, const char *gap, const char *const *units,
                         int n_units, char *text)
{
    int unit = 0;

    /* What would be rounded up to a step is one. */
    while (value >= step - 0.05 && unit < n_units - 1) {
        value /= step;
        unit++;
    }
    snprintf(text, HUMAN_MAX, "%.*f%s%s", unit > 0 ? 1 : 0, value, *units[unit] ? gap : "",
             units[unit]);
    return text;
}

const char *human_bytes(double bytes, char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

    return scale(bytes, 1024, " ", units, 6, text);
}

const char *human_size(double bytes, char *text)
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P"};

    return scale(bytes, 1024, "", units, 6, text);
}

const char *human_number(uint64_t n, char *text)
{
    if (n == ADMIN_UNKNOWN)
        snprintf(text, HUMAN_MAX, "unknown");
    else
        snprintf(text, HUMAN_MAX, "%llu", (unsigned long long)n);
    return text;
}

const char *human_count(double n, char *text)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};

    return scale(n, 1000, " ", units, 5, text);
}

const char *human_age(uint64_t us, char *text)
{
    const uint64_t s = us / 1000000;

    if (us < 1000)
        snprintf(text, HUMAN_MAX, "%llu us", (unsigned long long)us);
    else if (us < 1000000)
        snprintf(text, HUMAN_MAX, "%llu ms", (unsigned long long)us / 1000);
    else if (s < 60)
        snprintf(text, HUMAN_MAX, "%llu.%llu s", (unsigned long long)s,
                 (unsigned long long)us / 100000 % 10);
    else if (s < 3600)
        snprintf(text, HUMAN_MAX, "%llu m %llu s", (unsigned long long)s / 60,
                 (unsigned long long)s % 60);
    else if (s < 86400)
        snprintf(text, HUMAN_MAX, "%llu h %llu m", (unsigned long long)s / 3600,
                 (unsigned long long)s / 60 % 60);
    else
        snprintf(text, HUMAN_MAX, "%llu d %llu h", (unsigned long long)s / 86400,
                 (unsigned long long)s / 3600 % 24);
    return text;
}

const char *human_share(uint64_t part, uint64_t whole, char *text)
{
    if (whole == 0)
        snprintf(text, HUMAN_MAX, "-");
    else
        snprintf(text, HUMAN_MAX, "%.1f %%", 100.0 * (double)part / (double)whole);
    return text;
}

const char *human_bar(uint64_t part, uint64_t whole, int cells, char *text)
{
    int filled = whole ? (int)((double)cells * (double)part / (double)whole + 0.5) : 0;

    if (part > 0 && filled == 0)
        filled = 1;
    if (filled > cells)
        filled = cells;
    memset(text, '#', (size_t)filled);
    memset(text + filled, '.', (size_t)(cells - filled));
    text[cells] = '\0';
    return text;
}

bool human_parse_size(const char *text, int64_t *value)
{
    static const char units[] = "KMGT";
    const char *unit;
    char *end;
    long long number;
    int64_t factor = 1;

    errno = 0;
    number = strtoll(text, &end, 10);
    if (errno || end == text)
        return false;
    unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        factor = 1ll << 10 * (unit - units + 1);
        end++;
    }
    return *end == '\0' && !__builtin_mul_overflow(number, factor, value);
}
