/*
 * The daemon itself: makes the parts, puts them together, runs the loop, and takes them apart again
 * in the opposite order. The only file that sees all rooms.
 */
#ifndef KVC_DAEMON_SERVER_H
#define KVC_DAEMON_SERVER_H

#include <stdint.h>

#include "daemon/config.h"

/* Serves until SIGTERM or SIGINT. The exit status: 0, or 1 when it cannot start (and says why). */
int server_run(const struct config *config, uint64_t started_us);

#endif
