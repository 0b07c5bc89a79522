#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/config.h"
#include "daemon/server.h"

#ifdef KVC_DEBUG
/* A test steers the fault switches and the clock through this file. */
static void use_switches(void)
{
    const char *path = getenv("KVC_DEBUG_SWITCHES");
    struct fault_page *page;

    if (path != NULL && fault_page_map(path, &page) == 0)
        fault_page_use(page);
}

/* What the program leaves alive when it ends; tests read this line. */
static void print_exit(void)
{
    log_info("main", "exit live_allocations=%llu live_bytes=%llu fds=%d",
             (unsigned long long)mem_live_count(), (unsigned long long)mem_live_bytes(),
             fd_count_open());
}
#else
static void use_switches(void)
{
}

static void print_exit(void)
{
}
#endif

int main(int argc, char **argv)
{
    const uint64_t started_us = clock_now_us();
    struct config config;
    char why[CONFIG_WHY_MAX];
    int rc;

    use_switches();
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
    print_exit();
    return rc;
}
