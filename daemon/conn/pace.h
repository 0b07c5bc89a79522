/*
 * Who breaks the rules waits: a malformed packet, descriptors that nobody asked for, and a
 * connection that ends before HELLO cost the process a while in which none of its connections is
 * read. What it may do at once is enough for every mistake that an honest program makes, and
 * without end it gets a small part of the loop's time.
 */
#ifndef KVC_CONN_PACE_H
#define KVC_CONN_PACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PACE_PACKET_US 10000u /* a malformed packet */
#define PACE_FD_US     100u   /* a descriptor with a request that was refused */
#define PACE_SILENT_US 1000u  /* a connection without HELLO */
#define PACE_FREE_US   30000u
#define PACE_MOST_US   1000000u /* nobody waits longer */
/* Connections that a process may have that has used up half of what is free. */
#define PACE_CONNECTIONS 16u

#define PACE_ROWS 64u

struct pace_row {
    pid_t pid;
    uid_t uid;
    uint64_t until_us; /* when all that it cost is over */
};

/* Zero is the resting state. */
struct pace {
    struct pace_row rows[PACE_ROWS];
    uint64_t last_us; /* nobody's until_us is later */
};

void pace_charge(struct pace *pace, pid_t pid, uid_t uid, uint64_t us);

/* Whether a process is on its way to having to wait. */
bool pace_is_suspect(const struct pace *pace, pid_t pid, uid_t uid);

/* For how long nothing of it is to be read. */
uint64_t pace_wait_us(const struct pace *pace, pid_t pid, uid_t uid);

#endif
