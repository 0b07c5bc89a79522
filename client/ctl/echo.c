#include "client/ctl/echo.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/limits.h"

void echo_pin(pid_t pid, int core)
{
    cpu_set_t set;
    if (core < 0 || core >= (int)sysconf(_SC_NPROCESSORS_ONLN))
        return;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(pid, sizeof(set), &set);
}

static void serve(int socket)
{
    static uint8_t packet[KVC_WIRE_PACKET_MAX];
    uint32_t reply;
    for (;;) {
        ssize_t n = recv(socket, packet, sizeof(packet), 0);
        if (n < (ssize_t)sizeof(reply))
            _exit(0);
        memcpy(&reply, packet, sizeof(reply));
        if (reply > sizeof(packet) || send(socket, packet, reply, MSG_NOSIGNAL) < 0)
            _exit(0);
    }
}

bool echo_start(int core, struct echo *echo)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    echo->pid = fork();
    if (echo->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        echo_pin(0, core);
        serve(pair[1]);
    }
    close(pair[1]);
    if (echo->pid < 0) {
        close(pair[0]);
        return false;
    }
    echo->socket = pair[0];
    return true;
}

bool echo_exchange(const struct echo *echo, size_t request_bytes, size_t reply_bytes)
{
    static uint8_t packet[KVC_WIRE_PACKET_MAX];
    uint32_t reply = (uint32_t)reply_bytes;
    memcpy(packet, &reply, sizeof(reply));
    return send(echo->socket, packet, request_bytes, MSG_NOSIGNAL) == (ssize_t)request_bytes &&
           recv(echo->socket, packet, sizeof(packet), 0) == (ssize_t)reply_bytes;
}

void echo_stop(struct echo *echo)
{
    close(echo->socket);
    waitpid(echo->pid, NULL, 0);
}
