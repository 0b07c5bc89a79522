/*
 * The daemon itself: makes the parts, puts them together, runs the loop, and takes them apart again
 * in the opposite order. The only file that sees all rooms.
 */
#ifndef KVC_DAEMON_SERVER_H
#define KVC_DAEMON_SERVER_H

#include <stdint.h>

#include "daemon/config_source.h"

/*
 * Serves until SIGTERM or SIGINT. SIGHUP loads the configuration from source again. The exit
 * status: 0, or 1 when it cannot start (and says why).
 */
int server_run(struct config *config, const struct config_source *source, uint64_t started_us);

#endif
