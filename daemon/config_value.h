/*
 * Values of settings as people write them: sizes, times, shares, modes, names. Each kind reads a
 * text into a number and writes the number back.
 */
#ifndef KVC_DAEMON_CONFIG_VALUE_H
#define KVC_DAEMON_CONFIG_VALUE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

enum value_kind {
    VALUE_TEXT,   /* kept as it is; no number */
    VALUE_LIST,   /* likewise; may be given several times, and is joined by "; " */
    VALUE_COUNT,  /* "64" */
    VALUE_SIZE,   /* bytes: "256M", K M G T are powers of 1024 */
    VALUE_TIME,   /* milliseconds: "500ms", "30s", "10m", "1h" */
    VALUE_SHARE,  /* per mille: "10%", "12.5%" */
    VALUE_MODE,   /* octal digits */
    VALUE_CHOICE, /* the place of a name in a list */
};

#define VALUE_TEXT_MAX 24u /* of a number written back, choices aside */

/* How a kind is written, for messages: "digits and at most one of K, M, G, T". */
const char *value_form(enum value_kind kind);

/* false: it is not of that kind. choices: NULL-terminated, for VALUE_CHOICE. */
bool value_parse(enum value_kind kind, const char *text, const char *const *choices,
                 uint64_t *value);

/* 64 hex digits; false: it is something else. */
bool value_parse_digest(const char *text, uint8_t digest[KVC_NAMESPACE_BYTES]);

/* The text that reads as this value, exact; points into buffer or the choices. */
const char *value_format(enum value_kind kind, uint64_t value, const char *const *choices,
                         char buffer[VALUE_TEXT_MAX]);

#endif
