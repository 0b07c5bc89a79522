#include "client/ctl/list.h"

#include <stdio.h>

#include "client/admin.h"

#define PAGE_ROWS 100

static void add_json(json_t *rows, const struct admin_list *list, const struct admin_row *row)
{
    json_t *object = json_object();
    for (size_t i = 0; i < row->n_values && i < list->n_columns; i++)
        json_object_set_new(object, list->columns[i], json_string(row->values[i]));
    json_array_append_new(rows, object);
}

static void print_row(size_t n, char *const *values)
{
    for (size_t i = 0; i < n; i++)
        printf(i + 1 < n ? "%-18s " : "%s\n", values[i]);
}

kvc_status list_fetch(kvc_client *client, const char *what, json_t *rows)
{
    struct admin_list list = {.more = true};
    bool first = true;
    while (list.more) {
        kvc_status status = admin_list(client, what, list.after, PAGE_ROWS, &list);
        if (status != KVC_OK)
            return status;
        if (!rows && first)
            print_row(list.n_columns, list.columns);
        first = false;
        for (size_t i = 0; i < list.n_rows; i++) {
            if (rows)
                add_json(rows, &list, &list.rows[i]);
            else
                print_row(list.rows[i].n_values, list.rows[i].values);
        }
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
