#include "tests/lib/http.h"

#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/log_file.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define ARGS_MAX 16
#define START_MS 5000
#define ANSWER_S 5

in_port_t http_port(unsigned n)
{
    static char log[16384];
    struct log_file file;
    char name[32], *at;

    snprintf(name, sizeof(name), "kvcached%u.log", n);
    log_file_init(&file, tmpdir_file(name));
    log_file_read(&file, log, sizeof(log));
    at = strstr(log, "url=http://127.0.0.1:");
    ck_assert_ptr_nonnull(at);
    return (in_port_t)strtoul(at + strlen("url=http://127.0.0.1:"), NULL, 10);
}

struct daemon *http_daemon(const char *const extra_args[], in_port_t *port)
{
    const char *args[ARGS_MAX] = {"--metrics", "127.0.0.1:0"};
    struct daemon *d;

    for (size_t i = 0; extra_args && extra_args[i]; i++) {
        ck_assert_uint_lt(i + 3, ARGS_MAX);
        args[i + 2] = extra_args[i];
    }
    d = daemon_start(args);
    wait_for(daemon_log_count(d, "url=http://") == 1, START_MS);
    *port = http_port(1);
    return d;
}

bool http_ask(in_port_t port, const char *request, struct http *answer)
{
    const struct timeval patience = {.tv_sec = wait_patient_ms(ANSWER_S * 1000) / 1000};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = 0;
    ssize_t got;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(sock, (struct sockaddr *)&at, sizeof(at)) < 0 ||
        send(sock, request, strlen(request), MSG_NOSIGNAL) < 0) {
        close(sock);
        return false;
    }
    while (n < sizeof(answer->page) - 1 &&
           (got = recv(sock, answer->page + n, sizeof(answer->page) - 1 - n, 0)) > 0)
        n += (size_t)got;
    close(sock);
    answer->page[n] = '\0';
    answer->body = strstr(answer->page, "\r\n\r\n");
    if (answer->body == NULL || sscanf(answer->page, "HTTP/1.1 %d", &answer->code) != 1)
        return false;
    answer->body += 4;
    return true;
}

void http_get(in_port_t port, const char *path, struct http *answer)
{
    char request[128];

    snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    ck_assert(http_ask(port, request, answer));
}

double http_value(const struct http *answer, const char *sample)
{
    char find[384];
    const char *at;

    snprintf(find, sizeof(find), "\n%s ", sample);
    at = strstr(answer->body, find);
    ck_assert_msg(at != NULL, "no sample %s", sample);
    return strtod(at + strlen(find), NULL);
}
