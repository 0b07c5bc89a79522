#include "daemon/api/access.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool fits(const struct access_rule *rule, uint32_t door, const struct process *process)
{
    if (rule->door != ACCESS_DOORS_MAX && rule->door != door)
        return false;
    switch (rule->who) {
    case ACCESS_ANYBODY:
        return true;
    case ACCESS_UID:
        return process_uid(process) == rule->id;
    case ACCESS_GID:
        return process_has_group(process, rule->id);
    }
    return false;
}

static const struct access_rule *find_rule(const struct access *access, uint32_t door,
                                           const struct process *process)
{
    for (uint32_t i = 0; i < access->n_rules; i++)
        if (fits(&access->rules[i], door, process))
            return &access->rules[i];
    return NULL;
}

static uint32_t grant_roles(const struct access_door *door, const struct access_rule *rule,
                            bool is_trusted)
{
    if (rule != NULL && rule->roles != ACCESS_UNSAID)
        return rule->roles & door->roles; /* all, if the door says nothing */
    if (door->roles != ACCESS_UNSAID)
        return door->roles;
    return ACCESS_WORKER | (is_trusted && door->tenant[0] == '\0' ? ACCESS_OPERATOR : 0);
}

bool access_judge(const struct access *access, uint32_t at, const struct process *process,
                  struct access_grant *grant)
{
    const struct access_door *door = &access->doors[at];
    const struct access_rule *rule = find_rule(access, at, process);
    const uid_t uid = process_uid(process);
    const bool is_trusted = uid == 0 || uid == geteuid();
    struct access_grant given = {0};

    if (rule == NULL && access->n_rules > 0 && !is_trusted)
        return false;
    given.roles = grant_roles(door, rule, is_trusted);
    if (given.roles == 0)
        return false;
    given.is_named = true;
    if (door->tenant[0] != '\0') {
        strcpy(given.tenant, door->tenant);
    } else if (rule != NULL && rule->tenant[0] != '\0') {
        strcpy(given.tenant, rule->tenant);
    } else {
        snprintf(given.tenant, sizeof(given.tenant), "uid:%u", uid);
        given.is_named = false;
    }
    *grant = given;
    return true;
}

bool access_has_namespace(const struct access_door *door, const uint8_t digest[KVC_NAMESPACE_BYTES])
{
    for (uint32_t i = 0; i < door->n_namespaces; i++)
        if (memcmp(door->namespaces[i], digest, KVC_NAMESPACE_BYTES) == 0)
            return true;
    return door->n_namespaces == 0;
}
