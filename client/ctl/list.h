/*
 * Lists of the daemon as tables or JSON.
 */
#ifndef KVC_CTL_LIST_H
#define KVC_CTL_LIST_H

#include <jansson.h>

#include "client/ctl/ctl.h"

/* Fetches every page of `what` and adds its rows to an array; NULL: prints a table. */
kvc_status list_fetch(kvc_client *client, const char *what, json_t *rows);

/* Fetches every page of `what` and prints it; the exit status. */
int list_print(const struct ctl *ctl, kvc_client *client, const char *what);

#endif
