#include "daemon/base/debug.h"

#ifdef KVC_DEBUG

#include <stdlib.h>
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

void debug_start(void)
{
    const char *path = getenv("KVC_DEBUG_SWITCHES");
    struct fault_page *page;
    int error;

    if (!path)
        return;
    error = fault_page_map(path, &page);
    if (error < 0) {
        log_error("main", "cannot map the fault switches path=%s why=%s", path, strerror(-error));
        exit(1);
    }
    fault_page_use(page);
}

void debug_report_exit(void)
{
    log_info("main", "exit live_allocations=%llu live_bytes=%llu fds=%d",
             (unsigned long long)mem_live_count(), (unsigned long long)mem_live_bytes(),
             fd_count_open());
}

#else

typedef int debug_is_off_in_release_builds;

#endif
