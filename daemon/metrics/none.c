/* The door of a build without libmicrohttpd: it says so. */
#ifndef KVC_METRICS

#include <string.h>

#include "daemon/base/log.h"
#include "daemon/metrics/metrics.h"

struct metrics *metrics_open(const struct metrics_config *config)
{
    if (strcmp(config->address, "off") != 0)
        log_info("metrics", "not served: the headers of libmicrohttpd were absent from the build");
    return NULL;
}

void metrics_close(struct metrics *metrics)
{
    (void)metrics;
}

#endif
