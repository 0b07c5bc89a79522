/*
 * What the files of kvcachectl top share: top.c is the command and its loop, top_view.c the table
 * below the figures.
 */
#ifndef KVC_CTL_TOP_H
#define KVC_CTL_TOP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/ctl/terminal.h"

/* A line of the screen that is being written: what is beyond its room is left out. */
struct top_line {
    FILE *to;
    int room;
};
void top_line_begin(struct top_line *line, FILE *to, int columns);
void top_line_put(struct top_line *line, enum paint paint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void top_line_end(struct top_line *line);

/* A table of one of the daemon's lists, sorted by one of its columns. */
struct top_view;
extern const struct top_view top_namespaces, top_clients;

struct top_table {
    const struct top_view *view;
    uint32_t sort; /* which column */
    bool reverse;
    json_t *rows, *rows_before; /* NULL: there are none yet */
    double seconds;             /* between the two */
};
const char *top_table_list(const struct top_table *table);
void top_table_choose(struct top_table *table, const struct top_view *view);
/* The next column, or the one before. */
void top_table_sort(struct top_table *table, int step);
/* Takes rows that were read now. */
void top_table_take(struct top_table *table, json_t *rows, double seconds);
/* Head and at most n_lines - 1 rows. */
void top_table_write(struct top_table *table, FILE *to, int n_lines, int columns);
void top_table_free(struct top_table *table);

#endif
