/*
 * Lists of the daemon as tables or JSON; columns.h says what is in them.
 */
#ifndef KVC_CTL_LIST_H
#define KVC_CTL_LIST_H

#include <jansson.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"

/* Fetches every page of `what` and adds its rows, as objects, to an array. */
kvc_status list_fetch(kvc_client *client, const char *what, json_t *rows);
/* One page; list->after and list->more say where the next one begins. */
kvc_status list_fetch_page(kvc_client *client, const struct admin_list_query *query, json_t *rows,
                           struct admin_list *list);

/*
 * Prints a table of rows, each line behind `indent`; as wide as it is, or on a terminal no wider
 * than that.
 */
void list_table(const char *what, const json_t *rows, const char *indent);

/* Fetches every page of `what` and prints it; the exit status. */
int list_print(const struct ctl *ctl, kvc_client *client, const char *what);

/* Prints a value as the other commands do, and takes it. */
void list_dump(json_t *value);

#endif
