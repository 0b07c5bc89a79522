#include "tests/lib/crew.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/proc.h"

#define FINISH_MS 20000

// Both processes are one program, forked: a function has the same address in both.
struct order {
    crew_fn *fn;
    size_t size;
    _Alignas(max_align_t) unsigned char arg[CREW_ARG_MAX];
};

struct member {
    const char *name;
    pid_t pid;
    int sock;
    void *arg; // of what was started, or NULL
    size_t size;
};

static void live(int sock)
{
    struct order *order = malloc(sizeof(*order));

    ck_assert_ptr_nonnull(order);
    for (;;) {
        ssize_t n = recv(sock, order, sizeof(*order), 0);

        if (n <= 0 || order->fn == NULL)
            _exit(n < 0);
        order->fn(order->arg);
        ck_assert_int_eq(send(sock, order, sizeof(*order), MSG_NOSIGNAL), (ssize_t)sizeof(*order));
    }
}

struct member *crew_hire(const char *name)
{
    struct member *m = calloc(1, sizeof(*m));
    int pair[2];

    ck_assert_ptr_nonnull(m);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    m->name = name;
    m->pid = proc_fork();
    if (m->pid == 0) {
        close(pair[0]);
        live(pair[1]);
    }
    close(pair[1]);
    m->sock = pair[0];
    return m;
}

static void tell(const struct member *m, struct order *order)
{
    ck_assert_msg(send(m->sock, order, sizeof(*order), MSG_NOSIGNAL) == (ssize_t)sizeof(*order),
                  "%s is gone", m->name);
}

void crew_start_sized(struct member *m, crew_fn *fn, void *arg, size_t size)
{
    struct order *order = calloc(1, sizeof(*order));

    ck_assert(order && size <= sizeof(order->arg) && !m->arg);
    order->fn = fn;
    order->size = size;
    memcpy(order->arg, arg, size);
    tell(m, order);
    free(order);
    m->arg = arg;
    m->size = size;
}

void crew_finish(struct member *m)
{
    struct order *order = malloc(sizeof(*order));
    const struct timeval limit = {.tv_sec = FINISH_MS / 1000};

    ck_assert(order && m->arg);
    ck_assert_int_eq(setsockopt(m->sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    ck_assert_msg(recv(m->sock, order, sizeof(*order), 0) == (ssize_t)sizeof(*order),
                  "%s did not come to an end", m->name);
    memcpy(m->arg, order->arg, m->size);
    m->arg = NULL;
    free(order);
}

void crew_dismiss(struct member *m)
{
    struct order *order = calloc(1, sizeof(*order));

    ck_assert_ptr_nonnull(order);
    tell(m, order);
    free(order);
    proc_wait_ok(m->pid, FINISH_MS);
    close(m->sock);
    free(m);
}

void crew_kill(struct member *m)
{
    proc_kill(m->pid);
    close(m->sock);
    free(m);
}
