/*
 * The daemon's figures, fetched over a connection of their own.
 */
#ifndef KVC_CTL_STATS_H
#define KVC_CTL_STATS_H

#include <stdbool.h>

#include "client/admin.h"
#include "client/ctl/ctl.h"

/* Asks the daemon; says what went wrong on standard error and returns false. */
bool stats_fetch(const struct ctl *ctl, struct admin_stats *stats);

#endif
