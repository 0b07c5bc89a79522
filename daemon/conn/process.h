/*
 * The process at the other end of a socket: who it is, and when it is gone. A session belongs to
 * the process that connected, so a child that inherited the socket keeps nothing alive: what tells
 * of the end is a pidfd.
 */
#ifndef KVC_CONN_PROCESS_H
#define KVC_CONN_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/socket.h>
#include <uv.h>

#include "proto/status.h"

struct process;

/* Who connected; false when the system does not say. */
bool process_peer(int sock, struct ucred *peer);

/* Called once, when the process has ended (it need not be reaped yet). */
typedef void process_gone_cb(void *arg);

/*
 * Takes a pidfd of the peer of a connected socket and watches it. KVC_E_NO_FDS when there is no
 * descriptor for it, KVC_E_DISCONNECTED when the process cannot be named any more (it has ended, or
 * it lives in another pid namespace and the kernel is too old to say more), else KVC_E_NO_MEMORY or
 * KVC_E_SYSTEM. Fault site "process.peerpidfd": as if the kernel had no SO_PEERPIDFD (before 6.5).
 */
kvc_status process_open(uv_loop_t *loop, int sock, process_gone_cb *gone, void *arg,
                        struct process **process);

/* No call back follows. The memory goes when the loop has closed the handle. NULL is fine. */
void process_close(struct process *process);

pid_t process_pid(const struct process *process); /* 0: not visible from here */
uid_t process_uid(const struct process *process);
/* Its group when it connected, or one of its supplementary ones. */
bool process_has_group(const struct process *process, gid_t gid);
/*
 * Clock ticks since boot, field 22 of /proc/PID/stat; with the pid it names a process for ever.
 * Read when it is asked for; 0 when the process has ended.
 */
uint64_t process_start_time(const struct process *process);
bool process_is_gone(const struct process *process);

#endif
