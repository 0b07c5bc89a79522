#include "tests/lib/redis.h"

#include <arpa/inet.h>
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/wait.h"

#define PROGRAM  "/usr/bin/redis-server"
#define START_MS 8000

static pid_t server;

static bool answers(const char *address, int port)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = inet_addr(address)};
    char reply[8] = "";
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = connect(sock, (const struct sockaddr *)&to, sizeof(to)) == 0 &&
               send(sock, "PING\r\n", 6, MSG_NOSIGNAL) == 6 &&
               recv(sock, reply, 7, MSG_WAITALL) == 7 && strcmp(reply, "+PONG\r\n") == 0;

    close(sock);
    return yes;
}

bool redis_start(int port)
{
    return redis_start_at("127.0.0.1", port);
}

bool redis_start_at(const char *address, int port)
{
    char text[16];

    if (access(PROGRAM, X_OK) < 0)
        return false;
    snprintf(text, sizeof(text), "%d", port);
    server = fork();
    ck_assert_int_ge(server, 0);
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (freopen("/dev/null", "w", stdout) == NULL)
            _exit(126);
        execl(PROGRAM, "redis-server", "--port", text, "--bind", address, "--protected-mode", "no",
              "--save", "", "--appendonly", "no", NULL);
        _exit(127);
    }
    wait_for(answers(address, port), START_MS);
    return true;
}

void redis_freeze(void)
{
    ck_assert_int_eq(kill(server, SIGSTOP), 0);
}

void redis_thaw(void)
{
    ck_assert_int_eq(kill(server, SIGCONT), 0);
}

void redis_kill(void)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = 0;
}
