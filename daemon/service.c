#include "daemon/service.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fd.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define FIRST_FD     3 /* of those that the manager passes */
#define PASSED_MAX   1024u
#define SEND_MAX_S   1 /* for a manager that does not read; a ping does not wait at all */
#define PING_PERIODS 2 /* within the time that the watchdog allows */

struct service {
    int notify; /* -1: nobody wants to know */
    struct sockaddr_un manager;
    socklen_t manager_len;
    int first_passed, n_passed; /* still its own */
    char *names;                /* of all that were passed, with colons between; or NULL */
    const char *next_name;

    uint64_t watchdog_us; /* 0: none */
    bool watching;
    uv_timer_t timer;
    service_stuck_fn *stuck;
    void *arg;
    bool told; /* that it is stuck */
    char status[SERVICE_STATUS_MAX];
};

/* A number from the environment that is meant for this process, by the pid beside it; else 0. */
static uint64_t take_number(const char *name, const char *pid_name)
{
    const char *text = getenv(name), *pid = getenv(pid_name);
    char *end = NULL;
    uint64_t value = 0;

    if (text != NULL && (pid == NULL || strtoll(pid, NULL, 10) == getpid())) {
        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno != 0 || end == text || *end != '\0')
            value = 0;
    }
    unsetenv(name);
    unsetenv(pid_name);
    return value;
}

/* A path, or @ and the name of an abstract socket. */
static bool set_address(struct service *s, const char *name)
{
    const size_t len = strlen(name);

    if ((name[0] != '/' && name[0] != '@') || len < 2 || len >= sizeof(s->manager.sun_path))
        return false;
    s->manager.sun_family = AF_UNIX;
    memcpy(s->manager.sun_path, name, len);
    if (name[0] == '@')
        s->manager.sun_path[0] = '\0';
    s->manager_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    return true;
}

static void open_notify(struct service *s, const char *name)
{
    const struct timeval limit = {.tv_sec = SEND_MAX_S};

    if (!set_address(s, name)) {
        log_warn("main", "cannot tell the service manager: NOTIFY_SOCKET is no unix socket");
        return;
    }
    s->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s->notify < 0)
        log_warn("main", "cannot tell the service manager error=\"%m\"");
    else
        setsockopt(s->notify, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

kvc_status service_open(struct service **ret)
{
    struct service *s = mem_zalloc(sizeof(*s));
    const char *name = getenv("NOTIFY_SOCKET"), *names;
    const bool any_fds = getenv("LISTEN_PID") != NULL;
    uint64_t passed;

    if (s == NULL)
        return KVC_E_NO_MEMORY;
    s->notify = -1;
    s->first_passed = FIRST_FD;
    if (name != NULL && name[0] != '\0')
        open_notify(s, name);
    unsetenv("NOTIFY_SOCKET");
    s->watchdog_us = take_number("WATCHDOG_USEC", "WATCHDOG_PID");
    passed = take_number("LISTEN_FDS", "LISTEN_PID");
    s->n_passed = any_fds && passed < PASSED_MAX ? (int)passed : 0;
    for (int i = 0; i < s->n_passed; i++)
        fcntl(FIRST_FD + i, F_SETFD, FD_CLOEXEC);
    names = getenv("LISTEN_FDNAMES");
    if (names != NULL && s->n_passed > 0) {
        s->next_name = s->names = mem_strdup(names);
        if (s->names == NULL) {
            service_close(s);
            return KVC_E_NO_MEMORY;
        }
    }
    unsetenv("LISTEN_FDNAMES");
    *ret = s;
    return KVC_OK;
}

static bool is_packet_socket(int fd)
{
    int domain = 0, type = 0;
    socklen_t len = sizeof(int);

    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_SEQPACKET;
}

uint32_t service_passed(const struct service *s)
{
    return (uint32_t)s->n_passed;
}

static void take_name(struct service *s, char name[SERVICE_NAME_MAX])
{
    const char *end;

    name[0] = '\0';
    if (s->next_name == NULL)
        return;
    end = strchrnul(s->next_name, ':');
    snprintf(name, SERVICE_NAME_MAX, "%.*s", (int)(end - s->next_name), s->next_name);
    s->next_name = *end == ':' ? end + 1 : NULL;
}

bool service_take_socket(struct service *s, int *sock, char name[SERVICE_NAME_MAX], char *why)
{
    if (!is_packet_socket(s->first_passed)) {
        snprintf(why, SERVICE_WHY_MAX,
                 "what the service manager passed is no unix socket for sequential packets");
        return false;
    }
    take_name(s, name);
    *sock = s->first_passed++;
    s->n_passed--;
    return true;
}

static void tell(struct service *s, int flags, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void tell(struct service *s, int flags, const char *format, ...)
{
    char text[SERVICE_STATUS_MAX + 128];
    va_list args;
    int len;

    if (s->notify < 0)
        return;
    va_start(args, format);
    len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (len >= (int)sizeof(text))
        len = (int)sizeof(text) - 1;
    if (sendto(s->notify, text, (size_t)len, flags | MSG_NOSIGNAL,
               (const struct sockaddr *)&s->manager, s->manager_len) < 0)
        log_warn("main", "cannot tell the service manager error=\"%m\"");
}

void service_ready(struct service *s, const char *status)
{
    snprintf(s->status, sizeof(s->status), "%s", status);
    tell(s, 0, "READY=1\nSTATUS=%s", s->status);
}

/* The manager compares the time with its own clock, which no test moves. */
void service_reloading(struct service *s)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    tell(s, 0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64 "\nSTATUS=loading the configuration",
         (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u);
}

void service_stopping(struct service *s)
{
    snprintf(s->status, sizeof(s->status), "stopping");
    tell(s, 0, "STOPPING=1\nSTATUS=%s", s->status);
}

static void ping(struct service *s)
{
    const char *stuck = s->stuck(s->arg);

    if (stuck == NULL) {
        if (s->told) {
            log_info("main", "the watchdog is fed again");
            tell(s, MSG_DONTWAIT, "STATUS=%s", s->status);
        }
        tell(s, MSG_DONTWAIT, "WATCHDOG=1");
    } else if (!s->told) {
        log_warn("main", "the watchdog is not fed: no progress of %s", stuck);
        tell(s, MSG_DONTWAIT, "STATUS=no progress of %s", stuck);
    }
    s->told = stuck != NULL;
}

static void timer_cb(uv_timer_t *timer)
{
    ping(container_of(timer, struct service, timer));
}

void service_watch(struct service *s, uv_loop_t *loop, service_stuck_fn *stuck, void *arg)
{
    uint64_t period_ms = s->watchdog_us / PING_PERIODS / CLOCK_MS_US;

    if (s->notify < 0 || s->watchdog_us == 0)
        return;
    if (period_ms == 0)
        period_ms = 1;
    s->stuck = stuck;
    s->arg = arg;
    s->watching = true;
    uv_timer_init(loop, &s->timer);
    uv_timer_start(&s->timer, timer_cb, 0, period_ms);
}

void service_unwatch(struct service *s)
{
    if (s->watching)
        uv_close((uv_handle_t *)&s->timer, NULL);
    s->watching = false;
}

void service_close(struct service *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < s->n_passed; i++) /* nobody took them */
        fd_close(s->first_passed + i);
    mem_free(s->names);
    fd_reset(&s->notify);
    mem_free(s);
}
