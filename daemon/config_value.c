#include "daemon/config_value.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit sizes[] = {{"", 1},         {"K", 1u << 10},   {"M", 1u << 20},
                                    {"G", 1u << 30}, {"T", 1ull << 40}, {NULL, 0}};
static const struct unit times[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {NULL, 0}};

const char *value_form(enum value_kind kind)
{
    switch (kind) {
    case VALUE_TEXT:
    case VALUE_LIST:
        return "a text";
    case VALUE_COUNT:
        return "digits";
    case VALUE_SIZE:
        return "digits and at most one of K, M, G, T";
    case VALUE_TIME:
        return "digits and one of ms, s, m, h";
    case VALUE_SHARE:
        return "a number with at most one decimal, and %";
    case VALUE_MODE:
        return "octal digits";
    case VALUE_CHOICE:
        return "one of its names";
    }
    return "";
}

/* The digits at *at, which moves behind them; false without any, or too many. */
static bool read_digits(const char **at, uint64_t base, uint64_t *value)
{
    const char *start = *at;

    for (*value = 0; isdigit((unsigned char)**at) && (uint64_t)(**at - '0') < base; ++*at)
        if (__builtin_mul_overflow(*value, base, value) ||
            __builtin_add_overflow(*value, (uint64_t)(**at - '0'), value))
            return false;
    return *at != start;
}

static bool parse_units(const char *text, const struct unit *units, uint64_t *value)
{
    uint64_t number;

    if (!read_digits(&text, 10, &number))
        return false;
    for (; units->name; units++)
        if (strcasecmp(text, units->name) == 0)
            return !__builtin_mul_overflow(number, units->factor, value);
    return false;
}

static bool parse_share(const char *text, uint64_t *value)
{
    uint64_t whole, tenth = 0;

    if (!read_digits(&text, 10, &whole))
        return false;
    if (text[0] == '.' && isdigit((unsigned char)text[1])) {
        tenth = (uint64_t)(text[1] - '0');
        text += 2;
    }
    if (strcmp(text, "%") != 0 || whole > UINT64_MAX / 10 - 1)
        return false;
    *value = whole * 10 + tenth;
    return true;
}

static bool parse_choice(const char *text, const char *const *choices, uint64_t *value)
{
    for (uint64_t i = 0; choices != NULL && choices[i] != NULL; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *value = i;
            return true;
        }
    }
    return false;
}

bool value_parse(enum value_kind kind, const char *text, const char *const *choices,
                 uint64_t *value)
{
    uint64_t number = 0;
    bool ok = false;

    switch (kind) {
    case VALUE_TEXT:
    case VALUE_LIST:
        return false;
    case VALUE_COUNT:
        ok = read_digits(&text, 10, &number) && *text == '\0';
        break;
    case VALUE_SIZE:
        ok = parse_units(text, sizes, &number);
        break;
    case VALUE_TIME:
        ok = parse_units(text, times, &number);
        break;
    case VALUE_SHARE:
        ok = parse_share(text, &number);
        break;
    case VALUE_MODE:
        ok = read_digits(&text, 8, &number) && *text == '\0';
        break;
    case VALUE_CHOICE:
        ok = parse_choice(text, choices, &number);
        break;
    }
    if (ok)
        *value = number;
    return ok;
}

static int hex(char c)
{
    if (isdigit((unsigned char)c))
        return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool value_parse_digest(const char *text, uint8_t digest[KVC_NAMESPACE_BYTES])
{
    if (strlen(text) != 2 * (size_t)KVC_NAMESPACE_BYTES)
        return false;
    for (size_t i = 0; i < KVC_NAMESPACE_BYTES; i++) {
        const int high = hex(text[2 * i]), low = hex(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        digest[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* In the largest unit that leaves no rest. */
static void format_units(uint64_t value, const struct unit *units, char *buffer)
{
    const struct unit *unit = units;

    for (const struct unit *u = units; u->name; u++)
        if (value > 0 && value % u->factor == 0)
            unit = u;
    snprintf(buffer, VALUE_TEXT_MAX, "%" PRIu64 "%s", value / unit->factor, unit->name);
}

const char *value_format(enum value_kind kind, uint64_t value, const char *const *choices,
                         char buffer[VALUE_TEXT_MAX])
{
    switch (kind) {
    case VALUE_TEXT:
    case VALUE_LIST:
        buffer[0] = '\0';
        break;
    case VALUE_COUNT:
        snprintf(buffer, VALUE_TEXT_MAX, "%" PRIu64, value);
        break;
    case VALUE_SIZE:
        format_units(value, sizes, buffer);
        break;
    case VALUE_TIME:
        format_units(value, times, buffer);
        break;
    case VALUE_SHARE:
        if (value % 10)
            snprintf(buffer, VALUE_TEXT_MAX, "%" PRIu64 ".%" PRIu64 "%%", value / 10, value % 10);
        else
            snprintf(buffer, VALUE_TEXT_MAX, "%" PRIu64 "%%", value / 10);
        break;
    case VALUE_MODE:
        snprintf(buffer, VALUE_TEXT_MAX, "%04" PRIo64, value);
        break;
    case VALUE_CHOICE:
        return choices[value];
    }
    return buffer;
}
