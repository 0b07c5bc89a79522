/*
 * The place in the file system where a daemon listens: a lock that keeps a second daemon away, and
 * a socket file. The lock is PATH.lock; it is held as long as the endpoint.
 */
#ifndef KVC_CONN_ENDPOINT_H
#define KVC_CONN_ENDPOINT_H

#include <sys/types.h>

#include "proto/status.h"

#define ENDPOINT_WHY_MAX 256u

struct endpoint;

/*
 * Takes the lock, removes a socket file that nobody listens at, and binds a SOCK_SEQPACKET socket
 * of that mode and group ((gid_t)-1: its own); it does not listen yet. On an error why
 * (ENDPOINT_WHY_MAX bytes) has one line for people, and everything is as it was.
 */
kvc_status endpoint_open(const char *path, mode_t mode, gid_t group, struct endpoint **endpoint,
                         char *why);

/*
 * The same for a SOCK_SEQPACKET socket that a service manager has bound, and that is the endpoint's
 * from then on, also after an error. Its file, and who else may listen there, are the manager's:
 * no lock is taken and nothing is removed.
 */
kvc_status endpoint_adopt(int sock, struct endpoint **endpoint, char *why);

/* The socket. It stays the endpoint's. */
int endpoint_socket(const struct endpoint *endpoint);

/* Removes the socket file, if it is still this endpoint's: who connects now is told that nobody is
 * there. The lock is kept. At an adopted one who connects waits for the next daemon. */
void endpoint_hide(struct endpoint *endpoint);

/* Hides, closes the socket, gives the lock up and removes its file. NULL is fine. */
void endpoint_close(struct endpoint *endpoint);

#endif
