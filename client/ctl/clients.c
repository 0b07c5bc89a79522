/*
 * kvcachectl clients: who is connected.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"

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

static kvc_status each_page(kvc_client *client, json_t *rows)
{
    struct admin_list list = {.more = true};
    bool first = true;
    while (list.more) {
        kvc_status status = admin_list(client, "clients", list.after, PAGE_ROWS, &list);
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

int clients_command(struct ctl *ctl, int argc, char **argv)
{
    int exit_status;
    if (!ctl_parse(ctl, argc, argv, "Lists connected sessions.", &exit_status))
        return exit_status;
    kvc_client *client = ctl_connect(ctl);
    if (!client)
        return CTL_FAILED;
    json_t *rows = ctl->json ? json_array() : NULL;
    kvc_status status = each_page(client, rows);
    int result = status == KVC_OK ? CTL_OK : ctl_fail(ctl, client, "clients", status);
    if (rows && result == CTL_OK) {
        json_dumpf(rows, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        putchar('\n');
    }
    json_decref(rows);
    kvc_close(client);
    return result;
}
