// What main of a debug build does for the tests; nothing in a release build.
#ifndef KVC_DAEMON_BASE_DEBUG_H
#define KVC_DAEMON_BASE_DEBUG_H

#ifdef KVC_DEBUG

// First thing in main: takes the fault switches and the clock from the file that
// KVC_DEBUG_SWITCHES names, if it does.
void debug_start(void);

// Last thing in main, when all is freed and closed: logs
// "exit live_allocations=N live_bytes=N fds=N". The tests hold the daemon to it.
void debug_report_exit(void);

#else

static inline void debug_start(void)
{
}

static inline void debug_report_exit(void)
{
}

#endif
#endif
