#include "client/ctl/list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/columns.h"
#include "client/ctl/human.h"
#include "client/ctl/terminal.h"
#include "proto/wrap.h"

#define PAGE_ROWS    100
#define COLUMNS_MAX  32
#define CELL_MAX     128
#define DIGEST_SHOWN 12
#define GAP          2
#define WIDTH_LEAST  6 /* of a column of text that is cut */

static json_t *value_of(const struct column *column, const char *text)
{
    switch (column ? column->type : COLUMN_TEXT) {
    case COLUMN_NUMBER:
    case COLUMN_BYTES:
    case COLUMN_MS:
        return strcmp(text, "-") == 0 ? json_null() : json_integer(strtoll(text, NULL, 10));
    case COLUMN_YES:
        return json_boolean(strcmp(text, "yes") == 0);
    default:
        return json_string(text);
    }
}

kvc_status list_fetch_page(kvc_client *client, const struct admin_list_query *query, json_t *rows,
                           struct admin_list *list)
{
    const struct columns *columns = columns_of(query->what);
    kvc_status status = admin_list_query(client, query, list);

    if (status != KVC_OK)
        return status;
    for (size_t r = 0; r < list->n_rows; r++) {
        const struct admin_row *row = &list->rows[r];
        json_t *object = json_object();

        for (size_t i = 0; i < row->n_values && i < list->n_columns; i++)
            json_object_set_new(object, list->columns[i],
                                value_of(columns_find(columns, list->columns[i]), row->values[i]));
        for (size_t i = 0; columns && i < columns->n; i++) /* an older daemon */
            if (!json_object_get(object, columns->columns[i].name))
                json_object_set_new(object, columns->columns[i].name, json_null());
        json_array_append_new(rows, object);
    }
    return KVC_OK;
}

kvc_status list_fetch(kvc_client *client, const char *what, json_t *rows)
{
    struct admin_list_query query = {.what = what, .limit = PAGE_ROWS};
    struct admin_list list = {.more = true};

    while (list.more) {
        kvc_status status = list_fetch_page(client, &query, rows, &list);

        if (status != KVC_OK)
            return status;
        query.after = list.after;
    }
    return KVC_OK;
}

/* Names are the daemon's to check; what a terminal would obey is not shown all the same. */
static void write_text(const char *from, char cell[CELL_MAX])
{
    size_t n = 0;

    for (; *from && n < CELL_MAX - 1; from++)
        cell[n++] = (unsigned char)*from < ' ' || *from == 127 ? '?' : *from;
    cell[n] = '\0';
}

static void write_cell(const struct column *column, const json_t *value, char cell[CELL_MAX])
{
    char text[HUMAN_MAX];

    if (json_is_string(value)) {
        write_text(*json_string_value(value) ? json_string_value(value) : "-", cell);
        if (column->type == COLUMN_DIGEST)
            cell[DIGEST_SHOWN] = '\0';
    } else if (json_is_boolean(value)) {
        snprintf(cell, CELL_MAX, "%s", json_is_true(value) ? "yes" : "no");
    } else if (!json_is_integer(value)) {
        snprintf(cell, CELL_MAX, "-");
    } else if (column->type == COLUMN_BYTES) {
        write_text(human_size((double)json_integer_value(value), text), cell);
    } else if (column->type == COLUMN_MS && json_integer_value(value) == 0) {
        write_text("0 ms", cell);
    } else if (column->type == COLUMN_MS) {
        write_text(human_age(1000 * (uint64_t)json_integer_value(value), text), cell);
    } else {
        snprintf(cell, CELL_MAX, "%lld", (long long)json_integer_value(value));
    }
}

static bool is_right(const struct column *column)
{
    return column->type == COLUMN_NUMBER || column->type == COLUMN_BYTES ||
           column->type == COLUMN_MS;
}

/* Characters, not bytes: names are UTF-8. */
static size_t length_of(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* The widest column of text, behind `from`, that can be cut further; n: none. */
static size_t find_widest(const struct column *const *shown, size_t n, const size_t *widths,
                          size_t from)
{
    size_t widest = n;

    for (size_t i = from; i < n; i++)
        if (!is_right(shown[i]) && widths[i] > WIDTH_LEAST &&
            (widest == n || widths[i] > widths[widest]))
            widest = i;
    return widest;
}

/* The widest gives way until the line fits; what a row is called by, but for the digits of a
 * digest, only when no other can. */
static void fit(const struct column *const *shown, size_t n, size_t *widths, size_t room)
{
    const size_t from = shown[0]->type == COLUMN_TEXT ? 1 : 0;

    for (;;) {
        size_t total = GAP * (n - 1), widest = find_widest(shown, n, widths, from);

        if (widest == n)
            widest = find_widest(shown, n, widths, 0);
        for (size_t i = 0; i < n; i++)
            total += widths[i];
        if (total <= room || widest == n)
            return;
        widths[widest]--;
    }
}

/* What does not fit ends in a ~. */
static void print_cell(const char *cell, size_t width, bool right, bool last)
{
    size_t length = length_of(cell), keep = length > width ? width - 1 : length;
    const char *end = cell;

    if (right)
        printf("%*s", (int)(width > length ? width - length : 0), "");
    while (keep > 0 && *end) {
        for (end++; ((unsigned char)*end & 0xc0) == 0x80; end++)
            ;
        keep--;
    }
    printf("%.*s%s", (int)(end - cell), cell, length > width ? "~" : "");
    if (!right && !last)
        printf("%*s", (int)(width > length ? width - length : 0), "");
    if (!last)
        printf("%*s", GAP, "");
}

void list_table(const char *what, const json_t *rows, const char *indent)
{
    const struct columns *columns = columns_of(what);
    const struct column *shown[COLUMNS_MAX];
    size_t n = 0, i, widths[COLUMNS_MAX];
    const json_t *row;
    char cell[CELL_MAX];

    for (i = 0; columns && i < columns->n && n < COLUMNS_MAX; i++)
        if (columns->columns[i].head)
            shown[n++] = &columns->columns[i];
    if (n == 0 || json_array_size(rows) == 0)
        return;
    for (i = 0; i < n; i++)
        widths[i] = strlen(shown[i]->head);
    for (size_t r = 0; (row = json_array_get(rows, r)); r++) {
        for (i = 0; i < n; i++) {
            write_cell(shown[i], json_object_get(row, shown[i]->name), cell);
            if (length_of(cell) > widths[i])
                widths[i] = length_of(cell);
        }
    }
    fit(shown, n, widths, (size_t)wrap_width(stdout) - strlen(indent));
    printf("%s%s", indent, terminal_paint(PAINT_HEAD));
    for (i = 0; i < n; i++)
        print_cell(shown[i]->head, widths[i], is_right(shown[i]), i + 1 == n);
    printf("%s\n", terminal_paint(PAINT_NONE));
    for (size_t r = 0; (row = json_array_get(rows, r)); r++) {
        fputs(indent, stdout);
        for (i = 0; i < n; i++) {
            write_cell(shown[i], json_object_get(row, shown[i]->name), cell);
            print_cell(cell, widths[i], is_right(shown[i]), i + 1 == n);
        }
        putchar('\n');
    }
}

void list_dump(json_t *value)
{
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(value);
}

int list_print(const struct ctl *ctl, kvc_client *client, const char *what)
{
    json_t *rows = json_array();
    kvc_status status = list_fetch(client, what, rows);

    if (status != KVC_OK) {
        json_decref(rows);
        return ctl_fail(ctl, client, what, status);
    }
    if (ctl->json) {
        list_dump(rows);
        return CTL_OK;
    }
    if (json_array_size(rows) == 0)
        printf("no %s\n", what);
    list_table(what, rows, "");
    json_decref(rows);
    return CTL_OK;
}
