/*
 * Who may do what. A door is a listening socket; it may carry a tenant, the namespaces that may be
 * registered through it, and the roles that it allows. A rule says the same of users and groups.
 * The server makes both from the configuration; dispatch.c is the gate that keeps to them.
 */
#ifndef KVC_API_ACCESS_H
#define KVC_API_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/conn/process.h"
#include "daemon/store/store.h"
#include "proto/limits.h"

#define ACCESS_DOORS_MAX      16u
#define ACCESS_RULES_MAX      64u
#define ACCESS_NAMESPACES_MAX 64u /* of a door */

/* Sets of roles. A worker may also be what may do less. */
#define ACCESS_ROLE(role) (1u << (role))
#define ACCESS_READER     ACCESS_ROLE(STORE_ROLE_READER)
#define ACCESS_SCHEDULER  ACCESS_ROLE(STORE_ROLE_SCHEDULER)
#define ACCESS_WORKER     (ACCESS_ROLE(STORE_ROLE_WORKER) | ACCESS_READER | ACCESS_SCHEDULER)
#define ACCESS_OPERATOR   ACCESS_ROLE(STORE_ROLE_OPERATOR)
#define ACCESS_UNSAID     UINT32_MAX /* what is usual */

struct access_door {
    char tenant[KVC_NAME_MAX + 1]; /* "": of the user or the rule */
    uint32_t roles;                /* at most these */
    uint32_t n_namespaces;         /* 0: all */
    uint8_t namespaces[ACCESS_NAMESPACES_MAX][KVC_NAMESPACE_BYTES];
};

enum access_who { ACCESS_ANYBODY, ACCESS_UID, ACCESS_GID };

struct access_rule {
    enum access_who who;
    uint32_t id;
    uint32_t door;                 /* ACCESS_DOORS_MAX: any */
    char tenant[KVC_NAME_MAX + 1]; /* "": of the user */
    uint32_t roles;
};

struct access {
    struct access_door doors[ACCESS_DOORS_MAX];
    uint32_t n_doors;
    struct access_rule rules[ACCESS_RULES_MAX]; /* the first that fits counts */
    uint32_t n_rules;
};

struct access_grant {
    char tenant[KVC_NAME_MAX + 1];
    bool is_named; /* else it is the uid's */
    uint32_t roles;
};

/*
 * What a process that came through a door may be. false: nothing, since there are rules and none
 * fits; root and the daemon's own user need none. Without a word about roles everybody may be a
 * worker; root and the daemon's own user are operators too, except at a door with a tenant: there
 * they may be anybody's container.
 */
bool access_judge(const struct access *access, uint32_t door, const struct process *process,
                  struct access_grant *grant);

/* Whether a namespace may be named by who came through a door. */
bool access_has_namespace(const struct access_door *door,
                          const uint8_t digest[KVC_NAMESPACE_BYTES]);

#endif
