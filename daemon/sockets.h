/*
 * The sockets that the daemon listens on: those of the setting socket, made here or passed by the
 * service manager.
 */
#ifndef KVC_DAEMON_SOCKETS_H
#define KVC_DAEMON_SOCKETS_H

#include "daemon/config_access.h"
#include "daemon/conn/endpoint.h"
#include "daemon/service.h"

struct sockets {
    struct endpoint *endpoints[ACCESS_DOORS_MAX];
    uint32_t n;
};

/*
 * One for each entry, in order. A socket that the manager passed is for the entry that has its name
 * (fd:NAME) or its path; one that is passed alone and fits none is for the first. mode is for those
 * without one of their own. On an error why (SOCKETS_WHY_MAX bytes) has one line; those that are
 * open are closed by sockets_close all the same.
 */
#define SOCKETS_WHY_MAX 512u
kvc_status sockets_open(struct sockets *sockets, const struct config_access *config, mode_t mode,
                        struct service *service, char *why);

/* As their endpoints: endpoint.h. */
void sockets_hide(struct sockets *sockets);
void sockets_close(struct sockets *sockets);

#endif
