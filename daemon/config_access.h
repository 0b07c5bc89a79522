/*
 * The settings socket and allow: where the daemon listens, and who may do what. A list of entries
 * with "; " between:
 *
 *     socket  PATH [tenant=NAME] [namespaces=DIGEST,...] [roles=ROLE,...] [mode=MODE] [group=GROUP]
 *     allow   uid:N|user:NAME|gid:N|group:NAME|* [roles=ROLE,...] [tenant=NAME] [socket=PATH]
 *
 * A path may come again with namespaces= alone, which adds to those that it has: digests are long.
 */
#ifndef KVC_DAEMON_CONFIG_ACCESS_H
#define KVC_DAEMON_CONFIG_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/api/access.h"

#define CONFIG_LIST_TEXT_MAX    8192u
#define CONFIG_SOCKETS_TEXT_MAX 8192u
#define CONFIG_ALLOW_TEXT_MAX   6400u
#define CONFIG_PATH_MAX         256u

/* In place of a path: the socket that the service manager passes by this name. */
#define CONFIG_PASSED "fd:"

struct config_socket {
    char path[CONFIG_PATH_MAX];
    bool has_mode;
    mode_t mode;
    gid_t group; /* (gid_t)-1: the daemon's */
};

struct config_access {
    struct config_socket sockets[ACCESS_DOORS_MAX]; /* each with the door of the same number */
    struct access access;
};

/*
 * Reads both. false: why (CONFIG_WHY_MAX bytes) says in one line what is wrong, and *ret is not to
 * be used.
 */
bool config_access_parse(const char *sockets, const char *allow, struct config_access *ret,
                         char *why);

/* Only whether one of them can be read. */
bool config_sockets_check(const char *sockets, char *why);
bool config_allow_check(const char *allow, char *why);

#endif
