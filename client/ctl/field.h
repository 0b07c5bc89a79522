/*
 * What a command prints with --json: one table of its fields, by which they are put together, and
 * which --help --json and the manual print. Fields are added, and never change or go; one that is
 * ADMIN_UNKNOWN becomes null.
 */
#ifndef KVC_CTL_FIELD_H
#define KVC_CTL_FIELD_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum field_type {
    FIELD_TEXT,     /* char[] */
    FIELD_NULLABLE, /* text or null; always apart */
    FIELD_BOOL,     /* bool */
    FIELD_UINT32,
    FIELD_UINT64,
    FIELD_SECONDS, /* uint64_t of microseconds, as a number of seconds */
    FIELD_MS,      /* likewise, of milliseconds */
    FIELD_REAL,    /* double */
    FIELD_ROWS,    /* objects, as rows of a list: what help says is its name */
};

struct field {
    const char *path; /* "tiers.gpu.bytes"; "windows[].misses" is in objects of an array */
    enum field_type type;
    size_t offset;    /* in the command's values; FIELD_APART: the command itself puts it */
    const char *help; /* of one that does not always come it begins with "only" */
};
#define FIELD_APART SIZE_MAX

struct shape {
    const char *what; /* "an object", "an array of objects" */
    const struct field *fields;
    size_t n;
};
#define SHAPE_FIELDS(table) .fields = (table), .n = sizeof(table) / sizeof((table)[0])

/* Puts the fields that are in values into an object, and objects inside it. */
void field_put(json_t *root, const struct shape *shape, const void *values);

void field_print_help(const char *command, const struct shape *shape);

#endif
