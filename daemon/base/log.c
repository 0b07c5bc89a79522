#include "daemon/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"

// A place in the code is known by its format string's address. The table is small and forgets the
// place that has been quiet for longest; what floods stays in it.
#define LOG_PLACES 32

struct log_place {
    const char *format;
    uint64_t window_start_us;
    uint32_t lines;
    uint32_t muted;
};

static struct {
    pthread_mutex_t lock;
    enum log_level max;
    log_sink *sink;
    void *sink_arg;
    struct log_place places[LOG_PLACES];
    uint64_t lost; // lines that could not be written, since the last that could
} logger = {.lock = PTHREAD_MUTEX_INITIALIZER, .max = LOG_LEVEL_INFO};

static const char *const level_names[] = {
    [LOG_LEVEL_ERROR] = "error",
    [LOG_LEVEL_WARNING] = "warning",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_DEBUG] = "debug",
};

#define LEVELS (sizeof(level_names) / sizeof(level_names[0]))

// syslog's priorities, which the journal reads from a line's start.
static const char *const journal_prefixes[] = {
    [LOG_LEVEL_ERROR] = "<3>",
    [LOG_LEVEL_WARNING] = "<4>",
    [LOG_LEVEL_INFO] = "<6>",
    [LOG_LEVEL_DEBUG] = "<7>",
};

void log_set_level(enum log_level max)
{
    pthread_mutex_lock(&logger.lock);
    logger.max = max;
    pthread_mutex_unlock(&logger.lock);
}

void log_set_sink(log_sink *sink, void *arg)
{
    pthread_mutex_lock(&logger.lock);
    logger.sink = sink;
    logger.sink_arg = arg;
    pthread_mutex_unlock(&logger.lock);
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

int log_level_parse(const char *name, enum log_level *ret)
{
    for (size_t i = 0; i < LEVELS; i++)
        if (strcmp(name, level_names[i]) == 0) {
            *ret = (enum log_level)i;
            return 0;
        }
    return -1;
}

static struct log_place *place_of(const char *format)
{
    struct log_place *oldest = &logger.places[0];

    for (size_t i = 0; i < LOG_PLACES; i++) {
        struct log_place *p = &logger.places[i];

        if (p->format == format)
            return p;
        if (p->window_start_us < oldest->window_start_us)
            oldest = p;
    }
    *oldest = (struct log_place){.format = format};
    return oldest;
}

// Whether the line may be written; *ret_muted is how many of its kind were not, before it.
static bool admit(const char *format, uint32_t *ret_muted)
{
    struct log_place *p = place_of(format);
    uint64_t now = clock_now_us();

    if (p->lines == 0 || now - p->window_start_us >= LOG_WINDOW_US) {
        *ret_muted = p->muted;
        p->window_start_us = now;
        p->lines = 1;
        p->muted = 0;
        return true;
    }
    if (p->lines >= LOG_BURST) {
        p->muted++;
        return false;
    }
    p->lines++;
    *ret_muted = 0;
    return true;
}

// An event is one line, whatever the strings in it came from.
static void blank_controls(char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            text[i] = '?';
}

static size_t clip(int wanted, size_t room)
{
    return wanted < 0 ? 0 : (size_t)wanted < room ? (size_t)wanted : room - 1;
}

// A pipe that nobody reads is full at some time. What is written must go at once: the pipe itself
// is the buffer, and a line that has no room in it is lost. O_NONBLOCK would be everybody's who has
// the same stderr. Where the kernel cannot be asked not to wait (Linux before 6.4, for pipes), poll
// says that there is room, which only another writer of the same pipe can take in between.
static bool write_at_once(int fd, const char *text, size_t length)
{
    struct iovec iov = {.iov_base = (void *)text, .iov_len = length};
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) < 0)
        return false;
    if (S_ISSOCK(st.st_mode))
        return send(fd, text, length, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length;
    if (S_ISFIFO(st.st_mode)) {
        n = pwritev2(fd, &iov, 1, -1, RWF_NOWAIT);
        if (n >= 0 || errno == EAGAIN || errno == EPIPE)
            return n == (ssize_t)length;
    }
    if (poll(&room, 1, 0) <= 0 || !(room.revents & POLLOUT))
        return false;
    do
        n = write(fd, text, length);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)length;
}

static bool write_stderr(enum log_level level, const char *line, size_t length)
{
    char out[LOG_LINE_MAX + 64];
    size_t n;

    if (getenv("JOURNAL_STREAM")) {
        n = clip(snprintf(out, sizeof(out), "%s%.*s\n", journal_prefixes[level], (int)length, line),
                 sizeof(out));
    } else {
        struct timespec ts;
        struct tm tm;

        clock_gettime(CLOCK_REALTIME, &ts);
        gmtime_r(&ts.tv_sec, &tm);
        n = strftime(out, sizeof(out), "%Y-%m-%dT%H:%M:%S", &tm);
        n += clip(snprintf(out + n, sizeof(out) - n, ".%03ldZ %.*s\n", ts.tv_nsec / 1000000,
                           (int)length, line),
                  sizeof(out) - n);
    }
    // One write, so that lines of several processes do not mix.
    return write_at_once(STDERR_FILENO, out, n);
}

static void emit(enum log_level level, const char *line, size_t length)
{
    if (logger.sink)
        logger.sink(logger.sink_arg, level, line, length);
    else if (!write_stderr(level, line, length))
        logger.lost++;
    else
        logger.lost = 0;
}

void log_line(enum log_level level, const char *room, const char *format, ...)
{
    int saved = errno;
    char line[LOG_LINE_MAX];
    uint32_t muted;
    size_t n;
    va_list args;

    pthread_mutex_lock(&logger.lock);
    if (level > logger.max || !admit(format, &muted))
        goto unlock;
    n = clip(snprintf(line, sizeof(line), "%s %s: ", level_names[level], room), sizeof(line));
    errno = saved; // for %m
    va_start(args, format);
    n += clip(vsnprintf(line + n, sizeof(line) - n, format, args), sizeof(line) - n);
    va_end(args);
    if (logger.lost > 0)
        n += clip(snprintf(line + n, sizeof(line) - n, " lost_before=%llu",
                           (unsigned long long)logger.lost),
                  sizeof(line) - n);
    if (muted > 0)
        n +=
            clip(snprintf(line + n, sizeof(line) - n, " muted_before=%u", muted), sizeof(line) - n);
    blank_controls(line, n);
    emit(level, line, n);
unlock:
    pthread_mutex_unlock(&logger.lock);
    errno = saved;
}
