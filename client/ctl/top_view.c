#include "client/ctl/top.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/human.h"

#define COLUMNS_MAX 8
#define CELL_MAX    64

enum cell { CELL_TEXT, CELL_NUMBER, CELL_BYTES, CELL_AGE, CELL_RATE };

struct view_column {
    const char *head;
    enum cell type;
    const char *field, *also; /* also: a second one that is added; NULL: none */
    int width;
};

struct top_view {
    const char *list, *id, *id_too;          /* what tells rows apart */
    uint32_t sort;                           /* at first */
    struct view_column columns[COLUMNS_MAX]; /* ends with one without a head */
};

/* 79 columns with the gaps. */
const struct top_view top_namespaces = {
    .list = "namespaces",
    .id = "namespace",
    .id_too = "tenant",
    .sort = 3,
    .columns = {{"NAMESPACE", CELL_TEXT, "namespace", NULL, 12},
                {"NAME", CELL_TEXT, "name", NULL, 15},
                {"TENANT", CELL_TEXT, "tenant", NULL, 12},
                {"GPU", CELL_BYTES, "gpu_bytes", NULL, 10},
                {"HOST", CELL_BYTES, "host_bytes", NULL, 10},
                {"LEASED", CELL_NUMBER, "leased", NULL, 7},
                {"HITS/S", CELL_RATE, "gpu_hits", "host_hits", 7}},
};

const struct top_view top_clients = {
    .list = "clients",
    .id = "session",
    .id_too = "tenant",
    .sort = 5,
    .columns = {{"PID", CELL_NUMBER, "pid", NULL, 8},
                {"NAME", CELL_TEXT, "name", NULL, 16},
                {"TENANT", CELL_TEXT, "tenant", NULL, 12},
                {"ROLE", CELL_TEXT, "role", NULL, 9},
                {"SINCE", CELL_AGE, "connected_ms", NULL, 9},
                {"REQUESTS/S", CELL_RATE, "requests", NULL, 11},
                {"UNREAD", CELL_BYTES, "queued_bytes", NULL, 8}},
};

void top_line_begin(struct top_line *line, FILE *to, int columns)
{
    *line = (struct top_line){to, columns};
}

void top_line_put(struct top_line *line, enum paint paint, const char *format, ...)
{
    char text[256];
    int n;
    va_list args;

    va_start(args, format);
    n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    n = n >= (int)sizeof(text) ? (int)sizeof(text) - 1 : n;
    n = n > line->room ? line->room : n;
    if (n <= 0)
        return;
    if (paint == PAINT_NONE)
        fprintf(line->to, "%.*s", n, text);
    else
        fprintf(line->to, "%s%.*s%s", terminal_paint(paint), n, text, terminal_paint(PAINT_NONE));
    line->room -= n;
}

void top_line_end(struct top_line *line)
{
    fputc('\n', line->to);
}

const char *top_table_list(const struct top_table *table)
{
    return table->view->list;
}

void top_table_choose(struct top_table *table, const struct top_view *view)
{
    top_table_free(table);
    *table = (struct top_table){.view = view, .sort = view->sort};
}

void top_table_sort(struct top_table *table, int step)
{
    uint32_t n = 1;

    while (n < COLUMNS_MAX && table->view->columns[n].head)
        n++;
    table->sort = (table->sort + n + (uint32_t)step) % n;
}

void top_table_take(struct top_table *table, json_t *rows, double seconds)
{
    json_decref(table->rows_before);
    table->rows_before = table->rows;
    table->rows = rows;
    table->seconds = seconds;
}

void top_table_free(struct top_table *table)
{
    json_decref(table->rows_before);
    json_decref(table->rows);
    table->rows = table->rows_before = NULL;
}

static const char *text_of(const json_t *row, const char *field)
{
    const char *text = json_string_value(json_object_get(row, field));

    return text ? text : "";
}

static double number_of(const json_t *row, const struct view_column *column)
{
    double value = json_number_value(json_object_get(row, column->field));

    return column->also ? value + json_number_value(json_object_get(row, column->also)) : value;
}

/* The row that was this one a second ago, or NULL. */
static const json_t *find_before(const struct top_table *table, const json_t *row)
{
    const json_t *other;

    for (size_t i = 0; (other = json_array_get(table->rows_before, i)); i++)
        if (strcmp(text_of(other, table->view->id), text_of(row, table->view->id)) == 0 &&
            strcmp(text_of(other, table->view->id_too), text_of(row, table->view->id_too)) == 0)
            return other;
    return NULL;
}

static double value_of(const struct top_table *table, const json_t *row,
                       const struct view_column *column)
{
    const json_t *other;
    double value = number_of(row, column);

    if (column->type != CELL_RATE)
        return value;
    other = find_before(table, row);
    if (!other || table->seconds <= 0 || number_of(other, column) > value)
        return 0;
    return (value - number_of(other, column)) / table->seconds;
}

static void write_cell(const struct view_column *column, const json_t *row, double value,
                       char cell[CELL_MAX])
{
    char text[HUMAN_MAX];

    if (!json_is_string(json_object_get(row, column->field)) &&
        !json_is_number(json_object_get(row, column->field))) {
        snprintf(cell, CELL_MAX, "-"); /* an older daemon */
        return;
    }
    switch (column->type) {
    case CELL_TEXT:
        snprintf(cell, CELL_MAX, "%.*s", column->width, text_of(row, column->field));
        for (char *at = cell; *at; at++)
            if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
                *at = '?'; /* one column a byte, whatever they are */
        return;
    case CELL_BYTES:
        snprintf(cell, CELL_MAX, "%s", human_size(value, text));
        return;
    case CELL_AGE:
        snprintf(cell, CELL_MAX, "%s", human_age((uint64_t)(value * 1000), text));
        return;
    case CELL_RATE:
        snprintf(cell, CELL_MAX, "%s", human_count(value, text));
        return;
    default:
        snprintf(cell, CELL_MAX, "%.0f", value);
    }
}

static void put_cell(struct top_line *line, const struct view_column *column, enum paint paint,
                     const char *text, bool first)
{
    top_line_put(line, PAINT_NONE, "%s", first ? "" : " ");
    if (column->type == CELL_TEXT)
        top_line_put(line, paint, "%-*s", column->width, text);
    else
        top_line_put(line, paint, "%*s", column->width, text);
}

/* A row and what it is sorted by, so that rates are looked for once. */
struct sorted {
    const json_t *row;
    double value;
    const char *text;
};

/* Numbers from the largest down, texts from the first up. */
static int by_value(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;

    if (x->text && y->text)
        return strcmp(x->text, y->text);
    return (x->value < y->value) - (x->value > y->value);
}

static void write_row(const struct top_table *table, const json_t *row, FILE *to, int columns)
{
    const struct view_column *c = table->view->columns;
    struct top_line line;
    char cell[CELL_MAX];

    top_line_begin(&line, to, columns);
    for (uint32_t i = 0; i < COLUMNS_MAX && c[i].head; i++) {
        write_cell(&c[i], row, value_of(table, row, &c[i]), cell);
        put_cell(&line, &c[i], PAINT_NONE, cell, i == 0);
    }
    top_line_end(&line);
}

static void write_head(const struct top_table *table, FILE *to, int columns)
{
    const struct view_column *c = table->view->columns;
    struct top_line line;

    top_line_begin(&line, to, columns);
    for (uint32_t i = 0; i < COLUMNS_MAX && c[i].head; i++) {
        char head[CELL_MAX];

        /* Also where there are no colours it is seen what they are sorted by. */
        snprintf(head, sizeof(head), "%s%s", i == table->sort ? "*" : "", c[i].head);
        put_cell(&line, &c[i], i == table->sort ? PAINT_GOOD : PAINT_HEAD, head, i == 0);
    }
    top_line_end(&line);
}

void top_table_write(struct top_table *table, FILE *to, int n_lines, int columns)
{
    const struct view_column *column = &table->view->columns[table->sort];
    size_t n = json_array_size(table->rows);
    struct sorted *sorted = calloc(n + 1, sizeof(*sorted));

    write_head(table, to, columns);
    for (size_t i = 0; sorted && i < n; i++) {
        const json_t *row = json_array_get(table->rows, i);

        sorted[i] = (struct sorted){
            .row = row,
            .value = value_of(table, row, column),
            .text = column->type == CELL_TEXT ? text_of(row, column->field) : NULL,
        };
    }
    if (sorted)
        qsort(sorted, n, sizeof(*sorted), by_value);
    for (size_t i = 0; sorted && i < n && (int)i < n_lines - 1; i++)
        write_row(table, sorted[table->reverse ? n - 1 - i : i].row, to, columns);
    free(sorted);
}
