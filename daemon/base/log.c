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
    const char *room;
    enum log_level level;
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

const char *const log_level_names[] = {
    [LOG_LEVEL_ERROR] = "error", [LOG_LEVEL_WARNING] = "warning", [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_DEBUG] = "debug", [LOG_LEVEL_DEBUG + 1] = NULL,
};

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

// systemd says which socket is the journal's: whoever else stderr leads to reads no priorities.
static bool is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(fd, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

static bool write_stderr(enum log_level level, const char *line, size_t length)
{
    char out[LOG_LINE_MAX + 64];
    size_t n;

    if (is_journal(STDERR_FILENO)) {
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

// How much of a format names the event: up to its first pair, or what is filled in.
static size_t name_length(const char *format)
{
    size_t n = strcspn(format, "=%");

    if (format[n] == '\0')
        return n;
    while (n > 0 && format[n] != ' ')
        n--;
    return n;
}

static void tell_muted(struct log_place *p)
{
    char line[LOG_LINE_MAX];
    size_t n;

    if (p->muted == 0)
        return;
    n = clip(snprintf(line, sizeof(line), "%s %s: lines like these suppressed=%u event=\"%.*s\"",
                      log_level_names[p->level], p->room, p->muted, (int)name_length(p->format),
                      p->format),
             sizeof(line));
    p->muted = 0;
    if (p->level <= logger.max)
        emit(p->level, line, n);
}

static void tell_all_muted(uint64_t now, bool of_open_windows)
{
    for (size_t i = 0; i < LOG_PLACES; i++)
        if (of_open_windows || now - logger.places[i].window_start_us >= LOG_WINDOW_US)
            tell_muted(&logger.places[i]);
}

static struct log_place *place_of(enum log_level level, const char *room, const char *format)
{
    struct log_place *oldest = &logger.places[0];

    for (size_t i = 0; i < LOG_PLACES; i++) {
        struct log_place *p = &logger.places[i];

        if (p->format == format)
            return p;
        if (p->window_start_us < oldest->window_start_us)
            oldest = p;
    }
    tell_muted(oldest);
    *oldest = (struct log_place){.format = format, .room = room, .level = level};
    return oldest;
}

// Whether the line may be written.
static bool admit(struct log_place *p, uint64_t now)
{
    if (p->lines == 0 || now - p->window_start_us >= LOG_WINDOW_US) {
        p->window_start_us = now;
        p->lines = 0;
    }
    if (p->lines >= LOG_BURST) {
        p->muted++;
        return false;
    }
    p->lines++;
    return true;
}

void log_settle(bool all)
{
    int saved = errno;

    pthread_mutex_lock(&logger.lock);
    tell_all_muted(clock_now_us(), all);
    pthread_mutex_unlock(&logger.lock);
    errno = saved;
}

void log_line(enum log_level level, const char *room, const char *format, ...)
{
    int saved = errno;
    char line[LOG_LINE_MAX];
    uint64_t now;
    size_t n;
    va_list args;

    pthread_mutex_lock(&logger.lock);
    if (level > logger.max)
        goto unlock;
    now = clock_now_us();
    tell_all_muted(now, false);
    if (!admit(place_of(level, room, format), now))
        goto unlock;
    n = clip(snprintf(line, sizeof(line), "%s %s: ", log_level_names[level], room), sizeof(line));
    errno = saved; // for %m
    va_start(args, format);
    n += clip(vsnprintf(line + n, sizeof(line) - n, format, args), sizeof(line) - n);
    va_end(args);
    if (logger.lost > 0)
        n += clip(snprintf(line + n, sizeof(line) - n, " lost_before=%llu",
                           (unsigned long long)logger.lost),
                  sizeof(line) - n);
    blank_controls(line, n);
    emit(level, line, n);
unlock:
    pthread_mutex_unlock(&logger.lock);
    errno = saved;
}
