// daemon/base is what every room of the daemon stands on: log, list, clock, fault switches, memory,
// descriptors. Its files include proto/ and each other only; each header is a door of its own.
//
// The daemon's log. One line per event: `log_warn("conn", "malformed packet session=%u reason=%s",
// ...)`, a few words that name the event and then key=value pairs. Lines go to stderr, as
// "warning conn: ..." with a time in front, or, where stderr is the journal's socket, with its
// priority prefix.
//
// The first function that knows a cause logs it; callers pass the status on and say nothing.
// A place that logs more than LOG_BURST lines within LOG_WINDOW_US is muted for the rest of the
// window; how many lines that cost is said in a line of its own when the window is over, by
// whoever logs next or by log_settle(). Nobody waits for who reads stderr: a line that cannot be
// written at once is lost, and the next that can says how many there were.
//
// What is configured here is the one global state of the daemon outside main; any thread may log.
#ifndef KVC_DAEMON_BASE_LOG_H
#define KVC_DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

#define LOG_BURST     20
#define LOG_WINDOW_US (5 * 1000000ULL)
#define LOG_LINE_MAX  1024

// Gets each line, without time, prefix or newline: "warning conn: ...". Called under the log's
// lock: it must not log.
typedef void log_sink(void *arg, enum log_level level, const char *line, size_t length);

// Lines above `max` are dropped. Default: info.
void log_set_level(enum log_level max);

// NULL: stderr, which is the default.
void log_set_sink(log_sink *sink, void *arg);

// By level, and NULL behind the last.
extern const char *const log_level_names[];

// Says what was muted in windows that are over, or in all. To be called now and then, and at the
// end.
void log_settle(bool all);

// Keeps errno, so that it can stand between a failed call and the return of its errno.
void log_line(enum log_level level, const char *room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(room, ...) log_line(LOG_LEVEL_ERROR, room, __VA_ARGS__)
#define log_warn(room, ...)  log_line(LOG_LEVEL_WARNING, room, __VA_ARGS__)
#define log_info(room, ...)  log_line(LOG_LEVEL_INFO, room, __VA_ARGS__)

// A release build has no debug messages, but the compiler still checks their arguments.
#ifdef KVC_DEBUG
#define log_debug(room, ...) log_line(LOG_LEVEL_DEBUG, room, __VA_ARGS__)
#else
#define log_debug(room, ...)                                                                       \
    do {                                                                                           \
        if (0)                                                                                     \
            log_line(LOG_LEVEL_DEBUG, room, __VA_ARGS__);                                          \
    } while (0)
#endif

#endif
