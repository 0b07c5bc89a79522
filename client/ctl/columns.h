/*
 * The lists of the daemon: what each column is, in JSON and in a table. The daemon sends text; this
 * table says what it means. A column that is not in it, of a later daemon, is text.
 */
#ifndef KVC_CTL_COLUMNS_H
#define KVC_CTL_COLUMNS_H

#include <stddef.h>

enum column_type {
    COLUMN_TEXT,
    COLUMN_DIGEST, /* hex digits, of which a table shows the first */
    COLUMN_NUMBER, /* in JSON an integer, or null where the daemon says "-" */
    COLUMN_BYTES,  /* likewise */
    COLUMN_MS,     /* likewise */
    COLUMN_YES,    /* "yes" or "no": in JSON true or false */
};

struct column {
    const char *name;
    enum column_type type;
    const char *head; /* in a table; NULL: only in JSON */
    const char *help;
};

struct columns {
    const char *list;
    const struct column *columns;
    size_t n;
};

/* NULL: no such list. */
const struct columns *columns_of(const char *list);
const struct column *columns_find(const struct columns *columns, const char *name);
/* "string", "integer", "boolean"; or, where it may be null, "integer or null". */
const char *columns_json_type(const struct column *column);

#endif
