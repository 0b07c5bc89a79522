/*
 * What a service manager and the daemon tell each other: states and pings to the socket that
 * NOTIFY_SOCKET names, and a listening socket from it. sd_notify(3) and sd_listen_fds(3) document
 * both as protocols that need no library; libsystemd would bring compressors and libgcrypt into the
 * process for a few datagrams. Without a manager nothing here does anything.
 */
#ifndef KVC_DAEMON_SERVICE_H
#define KVC_DAEMON_SERVICE_H

#include <stdbool.h>
#include <uv.h>

#include "proto/status.h"

#define SERVICE_WHY_MAX    160u
#define SERVICE_STATUS_MAX 512u
#define SERVICE_NAME_MAX   256u

struct service;

/* From the environment, out of which it takes what is meant for this process alone. */
kvc_status service_open(struct service **service);

/* How many descriptors of the manager's are still to be taken. */
uint32_t service_passed(const struct service *service);
/*
 * The next of them, a SOCK_SEQPACKET socket and the caller's from then on, with the name that the
 * manager has for it ("": none). false, and why (SERVICE_WHY_MAX bytes): it is something else.
 */
bool service_take_socket(struct service *service, int *sock, char name[SERVICE_NAME_MAX],
                         char *why);

/* States. status is a line for people. */
void service_ready(struct service *service, const char *status);
void service_reloading(struct service *service);
void service_stopping(struct service *service);

/*
 * From now on the loop pings as often as the manager's watchdog wants it, as long as it makes
 * progress: what `stuck` names (NULL: nothing) keeps the next ping back, and is told and logged
 * once.
 */
typedef const char *service_stuck_fn(void *arg);
void service_watch(struct service *service, uv_loop_t *loop, service_stuck_fn *stuck, void *arg);

/* Ends the watch: its timer is closed by the loop's next turn. */
void service_unwatch(struct service *service);

/* When the loop has closed the timer. NULL is fine. */
void service_close(struct service *service);

#endif
