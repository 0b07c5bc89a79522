/*
 * What operators' tools ask over HTTP: /metrics, figures in the text format of Prometheus (0.0.4),
 * and /healthz, whether the daemon makes progress. This header is the door, for server.c and the
 * configuration; http.c serves, figures.c, self.c and text.c write, health.c judges.
 *
 * May include everything but server, config and main; libmicrohttpd is known to http.c only. All of
 * it runs on the loop's thread, in steps with pauses between them, so that workers come first
 * whatever HTTP clients do. Without libmicrohttpd a build serves nothing and says so.
 */
#ifndef KVC_METRICS_METRICS_H
#define KVC_METRICS_METRICS_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/api/api.h"
#include "daemon/base/histogram.h"
#include "daemon/peer/peer.h"
#include "daemon/store/store.h"
#include "daemon/tier/copier.h"
#include "daemon/tier/mover.h"

struct metrics;

/* All of it stays until metrics_close. */
struct metrics_config {
    uv_loop_t *loop;
    const char *address; /* "off", or for which metrics_is_address is true */
    const struct api *api;
    const struct store *store;
    const struct copier *copier;
    const struct mover *mover;
    const struct peers *peers; /* NULL: there are none */
};

/* ADDRESS:PORT of numbers (IPv6 in brackets; port 0: any that is free), or off. */
bool metrics_is_address(const char *text);

/* NULL: it is off, or cannot be served, and the log says why. */
struct metrics *metrics_open(const struct metrics_config *config);
/* The rest when the loop runs next. NULL is fine. */
void metrics_close(struct metrics *metrics);

#endif
