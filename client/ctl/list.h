/*
 * Lists of the daemon as tables or JSON.
 */
#ifndef KVC_CTL_LIST_H
#define KVC_CTL_LIST_H

#include "client/ctl/ctl.h"

/* Fetches every page of `what` and prints it; the exit status. */
int list_print(const struct ctl *ctl, kvc_client *client, const char *what);

#endif
