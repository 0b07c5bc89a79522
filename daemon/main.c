#include <stdio.h>

#include "daemon/base/clock.h"
#include "daemon/base/debug.h"
#include "daemon/base/log.h"
#include "daemon/config.h"
#include "daemon/server.h"

int main(int argc, char **argv)
{
    const uint64_t started_us = clock_now_us();
    struct config config;
    char why[CONFIG_WHY_MAX];
    int rc;

    debug_start();
    config_init(&config);
    switch (config_arguments(&config, argc, argv, why)) {
    case CONFIG_HELP:
        config_help(stdout);
        return 0;
    case CONFIG_VERSION:
        printf("kvcached %s\n", KVC_BUILD_VERSION);
        return 0;
    case CONFIG_BAD:
        log_error("main", "cannot start: %s", why);
        return 1;
    case CONFIG_RUN:
        break;
    }
    log_set_level((enum log_level)config.log_level);
    if (!config_check(&config, why)) {
        log_error("main", "cannot start: %s", why);
        return 1;
    }
    rc = server_run(&config, started_us);
    debug_report_exit();
    return rc;
}
