#include <stdio.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/debug.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/config_source.h"
#include "daemon/server.h"

int main(int argc, char **argv)
{
    const uint64_t started_us = clock_now_us();
    const struct config_source source = {argc, argv, environ};
    struct config config;
    char why[CONFIG_WHY_MAX];
    int rc;

    mem_start();
    debug_start();
    switch (config_load(&config, &source, why)) {
    case CONFIG_HELP:
        config_help(stdout);
        return 0;
    case CONFIG_VERSION:
        printf("kvcached %s\n", KVC_BUILD_VERSION);
        return 0;
    case CONFIG_CHECKED:
        puts("the configuration is right");
        return 0;
    case CONFIG_WRONG:
        fprintf(stderr, "the configuration is wrong: %s\n", why);
        return 1;
    case CONFIG_BAD:
        log_error("main", "cannot start: %s", why);
        return 1;
    case CONFIG_RUN:
        break;
    }
    log_set_level((enum log_level)config.log_level);
    rc = server_run(&config, &source, started_us);
    log_settle(true);
    debug_report_exit();
    return rc;
}
