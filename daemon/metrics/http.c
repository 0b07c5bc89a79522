/*
 * The HTTP server: libmicrohttpd without threads, whose epoll descriptor the loop watches. It gets
 * one step, then a pause: however many clients there are and whatever they send, workers wait for
 * one step at most, and a listening socket that is ready while nothing can be accepted costs a step
 * a pause.
 */
#ifdef KVC_METRICS

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/conn/watch.h"
#include "daemon/metrics/address.h"
#include "daemon/metrics/figures.h"
#include "daemon/metrics/metrics.h"

#define CONNECTIONS_MAX   8u
#define SILENCE_S         5u /* a connection that is silent for this long is cut */
#define CONNECTION_MEMORY 8192u
#define PAUSE_MS          2u
#define RETRY_MS          1000u
#define LAG_MS            1000u
#define LAG_KEPT_NS       UINT64_C(10000000000) /* the worst of so long */
#define MS_NS             UINT64_C(1000000)
#define BACKLOG           16

struct metrics {
    struct metrics_config config;
    struct MHD_Daemon *http;
    uv_poll_t poll;
    uv_timer_t step; /* the next one */
    uv_timer_t look; /* at the lag */
    uint64_t look_due_ns;
    struct histogram lag;
    struct self self;
    uint64_t worst_lag_us, worst_ns; /* of late; when it was */
    struct text text;
    int handles; /* that are not closed */
};

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code, const char *type,
                             const char *body, size_t n)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(n, (void *)body, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result;

    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "Connection", "close");
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned code, const char *body)
{
    return reply(connection, code, "text/plain; charset=utf-8", body, strlen(body));
}

static enum MHD_Result answer(void *cls, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **seen)
{
    struct metrics *m = cls;
    bool well;

    (void)version, (void)upload;
    if (*seen == NULL) { /* only the headers are there yet */
        *seen = m;
        return MHD_YES;
    }
    if (*upload_size > 0) { /* read, and not kept */
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    text_clear(&m->text);
    if (strcmp(url, "/metrics") == 0) {
        figures_write(&m->config, &m->self, &m->lag, &m->text);
        if (m->text.short_of_memory)
            return MHD_NO;
        return reply(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                     m->text.bytes, m->text.n);
    }
    if (strcmp(url, "/healthz") == 0) {
        well = health_write(&m->config, m->worst_lag_us, &m->text);
        if (m->text.short_of_memory)
            return MHD_NO;
        return reply(connection, well ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                     "text/plain; charset=utf-8", m->text.bytes, m->text.n);
    }
    return say(connection, MHD_HTTP_NOT_FOUND, "there are /metrics and /healthz\n");
}

static void step_cb(uv_timer_t *timer);

static void poll_cb(uv_poll_t *poll, int status, int events)
{
    struct metrics *m = container_of(poll, struct metrics, poll);

    (void)status, (void)events;
    uv_poll_stop(poll);
    uv_timer_start(&m->step, step_cb, PAUSE_MS, 0);
}

static void step_cb(uv_timer_t *timer)
{
    struct metrics *m = container_of(timer, struct metrics, step);
    MHD_UNSIGNED_LONG_LONG due_ms;

    MHD_run(m->http);
    if (MHD_get_timeout(m->http, &due_ms) == MHD_YES)
        uv_timer_start(&m->step, step_cb, due_ms > PAUSE_MS ? due_ms : PAUSE_MS, 0);
    if (watch_start(&m->poll, UV_READABLE, poll_cb) != KVC_OK)
        uv_timer_start(&m->step, step_cb, RETRY_MS, 0);
}

static void look_cb(uv_timer_t *timer);

static void look_later(struct metrics *m)
{
    uv_update_time(m->config.loop);
    m->look_due_ns = uv_hrtime() + LAG_MS * MS_NS;
    uv_timer_start(&m->look, look_cb, LAG_MS, 0);
}

static void look_cb(uv_timer_t *timer)
{
    struct metrics *m = container_of(timer, struct metrics, look);
    const uint64_t now = uv_hrtime();
    const uint64_t late_us = now > m->look_due_ns ? (now - m->look_due_ns) / 1000u : 0;

    histogram_add(&m->lag, late_us);
    if (late_us >= m->worst_lag_us || now - m->worst_ns > LAG_KEPT_NS) {
        m->worst_lag_us = late_us;
        m->worst_ns = now;
    }
    look_later(m);
}

static int listen_at(const char *text, char *shown, size_t size)
{
    struct sockaddr_storage address;
    socklen_t len;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    const int on = 1;
    int sock;

    if (!address_parse(text, &address, &len)) {
        errno = EINVAL;
        return -1;
    }
    sock = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -1;
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(sock, (struct sockaddr *)&address, len) < 0 || listen(sock, BACKLOG) < 0 ||
        getsockname(sock, (struct sockaddr *)&address, &len) < 0 ||
        getnameinfo((struct sockaddr *)&address, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        const int error = errno;

        close(sock);
        errno = error;
        return -1;
    }
    snprintf(shown, size, address.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return sock;
}

static kvc_status start_http(struct metrics *m, int sock)
{
    const union MHD_DaemonInfo *info;

    m->http = MHD_start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, answer, m, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)sock,
        MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, SILENCE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
    if (m->http == NULL) /* the socket is its own by now; closing it twice would be worse */
        return KVC_E_SYSTEM;
    info = MHD_get_daemon_info(m->http, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == NULL || uv_poll_init(m->config.loop, &m->poll, info->epoll_fd) < 0) {
        MHD_stop_daemon(m->http);
        return KVC_E_SYSTEM;
    }
    return KVC_OK;
}

struct metrics *metrics_open(const struct metrics_config *config)
{
    struct metrics *m;
    char shown[NI_MAXHOST + NI_MAXSERV];
    int sock;

    if (strcmp(config->address, "off") == 0)
        return NULL;
    sock = listen_at(config->address, shown, sizeof(shown));
    if (sock < 0) {
        log_warn("metrics", "not served address=%s error=\"%m\"", config->address);
        return NULL;
    }
    m = mem_zalloc(sizeof(*m));
    if (m == NULL) {
        close(sock);
        log_warn("metrics", "not served: out of memory");
        return NULL;
    }
    m->config = *config;
    self_open(&m->self);
    if (start_http(m, sock) != KVC_OK) {
        mem_free(m);
        log_warn("metrics", "not served: the HTTP server cannot start");
        return NULL;
    }
    uv_timer_init(config->loop, &m->step);
    uv_timer_init(config->loop, &m->look);
    m->handles = 3;
    step_cb(&m->step);
    look_later(m);
    log_info("metrics", "served url=http://%s/metrics", shown);
    return m;
}

static void closed(struct metrics *m)
{
    if (--m->handles > 0)
        return;
    text_free(&m->text);
    mem_free(m);
}

static void poll_closed(uv_handle_t *handle)
{
    closed(container_of((uv_poll_t *)handle, struct metrics, poll));
}

static void step_closed(uv_handle_t *handle)
{
    closed(container_of((uv_timer_t *)handle, struct metrics, step));
}

static void look_closed(uv_handle_t *handle)
{
    closed(container_of((uv_timer_t *)handle, struct metrics, look));
}

void metrics_close(struct metrics *m)
{
    if (m == NULL)
        return;
    /* The loop lets go of the descriptor before it is closed. */
    uv_close((uv_handle_t *)&m->poll, poll_closed);
    uv_close((uv_handle_t *)&m->step, step_closed);
    uv_close((uv_handle_t *)&m->look, look_closed);
    MHD_stop_daemon(m->http);
}

#endif
