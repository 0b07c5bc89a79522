#include "tests/lib/port.h"

#include <arpa/inet.h>
#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// A program has PORTS_EACH of them in a row, which are its own while it holds the socket of that
// name: also of one that is yet to be bound, or whose daemon is started again. All are below those
// that the kernel gives to connections. tests/python/support.py takes from the same.
#define PORTS_FIRST 10000
#define PORTS_END   32000
#define PORTS_EACH  100
#define ROWS        ((PORTS_END - PORTS_FIRST) / PORTS_EACH)
#define OWNER       "kvcached-test-ports-%d"

static int first; // 0: the program has none yet

static bool own(int row)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, OWNER, row);
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (sock >= 0 && bind(sock, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
        return true; // it stays open
    close(sock);
    return false;
}

void port_open(void)
{
    unsigned random = 0;

    (void)!getrandom(&random, sizeof(random), 0);
    for (unsigned i = 0; i < ROWS; i++) {
        const int row = (int)((random + i) % ROWS);

        if (own(row)) {
            first = PORTS_FIRST + row * PORTS_EACH;
            return;
        }
    }
    fprintf(stderr, "no ports are left for a test program\n");
    exit(1);
}

static bool is_free(int port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                        .sin_port = htons((uint16_t)port)};
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, rc;

    ck_assert_int_ge(sock, 0);
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    rc = bind(sock, (const struct sockaddr *)&address, sizeof(address));
    close(sock);
    return rc == 0;
}

int port_take(void)
{
    static int taken;
    int port;

    do {
        ck_assert_int_lt(taken, PORTS_EACH);
        port = first + taken++;
    } while (!is_free(port));
    return port;
}
