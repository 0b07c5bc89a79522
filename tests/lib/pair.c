#include "tests/lib/pair.h"

#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/wait.h"

#define ARGS_MAX  24
#define LINKED_MS 5000

int pair_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    ck_assert_int_ge(sock, 0);
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ck_assert_int_eq(bind(sock, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(sock, (struct sockaddr *)&address, &len), 0);
    close(sock);
    return ntohs(address.sin_port);
}

static size_t add(const char **to, size_t n, const char *const *from)
{
    for (size_t i = 0; from != NULL && from[i] != NULL; i++) {
        ck_assert_uint_lt(n, ARGS_MAX - 1);
        to[n++] = from[i];
    }
    return n;
}

static struct daemon *start(const struct pair *p, uint32_t i, const char *const args[],
                            const char *const last_args[])
{
    char list[128] = "", listen[32];
    const char *all[ARGS_MAX] = {"--peers", list, "--peer-listen", listen};
    size_t n = 4;

    for (uint32_t j = 0; j < p->n; j++)
        if (j != i)
            snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s127.0.0.1:%d",
                     list[0] != '\0' ? "," : "", p->ports[j]);
    snprintf(listen, sizeof(listen), "127.0.0.1:%d", p->ports[i]);
    n = add(all, n, args);
    n = add(all, n, i + 1 == p->n ? last_args : NULL);
    all[n] = NULL;
    return daemon_start(all);
}

void pair_open_with(struct pair *p, uint32_t n, const char *const args[],
                    const char *const last_args[])
{
    *p = (struct pair){.n = n};
    for (uint32_t i = 0; i < n; i++)
        p->ports[i] = pair_port();
    for (uint32_t i = 0; i < n; i++)
        p->daemons[i] = start(p, i, args, last_args);
    for (uint32_t i = 0; i < n; i++)
        wait_for(daemon_log_count(p->daemons[i], "peer open") == (int)n - 1 &&
                     daemon_log_count(p->daemons[i], "peer asks name") == (int)n - 1,
                 LINKED_MS);
}

void pair_open(struct pair *p, uint32_t n, const char *const args[])
{
    pair_open_with(p, n, args, NULL);
}

void pair_close(struct pair *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->daemons[i] != NULL)
            daemon_stop(p->daemons[i]);
}
