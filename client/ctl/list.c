#include "client/ctl/list.h"

#include <stdio.h>
#include <string.h>

#include "client/admin.h"

#define PAGE_ROWS   100
#define COLUMNS_MAX 32

static void add_json(json_t *rows, const struct admin_list *list, const struct admin_row *row)
{
    json_t *object = json_object();
    for (size_t i = 0; i < row->n_values && i < list->n_columns; i++)
        json_object_set_new(object, list->columns[i], json_string(row->values[i]));
    json_array_append_new(rows, object);
}

static void widen(size_t *widths, size_t n, char *const *values)
{
    for (size_t i = 0; i < n && i < COLUMNS_MAX; i++) {
        size_t len = strlen(values[i]);
        widths[i] = len > widths[i] ? len : widths[i];
    }
}

static void print_row(const size_t *widths, size_t n, char *const *values)
{
    for (size_t i = 0; i < n && i < COLUMNS_MAX; i++)
        printf("%-*s%s", i + 1 < n ? (int)widths[i] : 0, values[i], i + 1 < n ? "  " : "\n");
}

/* Columns as wide as the widest value of the page. */
static void print_page(const struct admin_list *list, bool with_head)
{
    size_t widths[COLUMNS_MAX] = {0};
    widen(widths, list->n_columns, list->columns);
    for (size_t i = 0; i < list->n_rows; i++)
        widen(widths, list->rows[i].n_values, list->rows[i].values);
    if (with_head)
        print_row(widths, list->n_columns, list->columns);
    for (size_t i = 0; i < list->n_rows; i++)
        print_row(widths, list->rows[i].n_values, list->rows[i].values);
}

kvc_status list_fetch(kvc_client *client, const char *what, json_t *rows)
{
    struct admin_list list = {.more = true};
    bool first = true;
    while (list.more) {
        kvc_status status = admin_list(client, what, list.after, PAGE_ROWS, &list);
        if (status != KVC_OK)
            return status;
        if (!rows)
            print_page(&list, first);
        for (size_t i = 0; rows && i < list.n_rows; i++)
            add_json(rows, &list, &list.rows[i]);
        first = false;
    }
    return KVC_OK;
}

int list_print(const struct ctl *ctl, kvc_client *client, const char *what)
{
    json_t *rows = ctl->json ? json_array() : NULL;
    kvc_status status = list_fetch(client, what, rows);
    int result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, what, status);

    if (rows && result == CTL_OK) {
        json_dumpf(rows, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
    }
    json_decref(rows);
    return result;
}
