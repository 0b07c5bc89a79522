/*
 * The bare reference of the benchmarks: a process that answers every packet on a SOCK_SEQPACKET
 * socket with one of a size that the packet names, and does nothing else.
 */
#ifndef KVC_CTL_ECHO_H
#define KVC_CTL_ECHO_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct echo {
    pid_t pid;
    int socket;
};

/* Starts it on processor `core` (-1: any). false: errno says why. */
bool echo_start(int core, struct echo *echo);
/* One exchange: request_bytes out (at least 4), reply_bytes back. false when it broke. */
bool echo_exchange(const struct echo *echo, size_t request_bytes, size_t reply_bytes);
void echo_stop(struct echo *echo);

/* Puts a process on one processor, if there are several; pid 0 is the caller. */
void echo_pin(pid_t pid, int core);

#endif
