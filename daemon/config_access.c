#include "daemon/config_access.h"

#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"

#define ENTRY_MAX 1024u

/* One entry while it is read. */
struct entry {
    const char *setting;
    struct config_access *all;
    const char *at;       /* the rest of the list */
    char text[ENTRY_MAX]; /* which strtok_r takes apart */
    char *words;
    uint32_t seen; /* of its keys */
};

enum next { NEXT_ONE, NEXT_END, NEXT_WRONG };

static enum next wrong(bool is_false)
{
    (void)is_false;
    return NEXT_WRONG;
}

/* The next entry of a list, and its first word. */
static enum next next_entry(struct entry *e, char **first, char *why)
{
    const char *end = strchrnul(e->at, ';');
    const size_t len = (size_t)(end - e->at);

    if (*e->at == '\0')
        return NEXT_END;
    if (len >= sizeof(e->text))
        return wrong(config_explain(why, "%s: \"%.80s...\" is too long", e->setting, e->at));
    memcpy(e->text, e->at, len);
    e->text[len] = '\0';
    e->at = *end == ';' ? end + 1 : end;
    e->seen = 0;
    *first = strtok_r(e->text, " \t", &e->words);
    if (*first == NULL)
        return wrong(config_explain(why, "%s: an entry is empty", e->setting));
    return NEXT_ONE;
}

/* The next KEY=VALUE of the entry, whose key is one of keys. */
static enum next next_word(struct entry *e, const char *const keys[], uint32_t *key, char **value,
                           char *why)
{
    char *word = strtok_r(NULL, " \t", &e->words), *equals;

    if (word == NULL)
        return NEXT_END;
    equals = strchr(word, '=');
    if (equals == NULL || equals[1] == '\0')
        return wrong(config_explain(why, "%s: \"%.64s\" is not KEY=VALUE", e->setting, word));
    *equals = '\0';
    for (uint32_t i = 0; keys[i] != NULL; i++) {
        if (strcmp(word, keys[i]) != 0)
            continue;
        if (e->seen & 1u << i)
            return wrong(config_explain(why, "%s: %s= is set twice", e->setting, word));
        e->seen |= 1u << i;
        *key = i;
        *value = equals + 1;
        return NEXT_ONE;
    }
    return wrong(config_explain(why, "%s: there is no \"%.64s=\"", e->setting, word));
}

static bool read_roles(const struct entry *e, char *value, uint32_t *roles, char *why)
{
    static const struct {
        const char *name;
        uint32_t roles;
    } names[] = {{"worker", ACCESS_WORKER},
                 {"reader", ACCESS_READER},
                 {"scheduler", ACCESS_SCHEDULER},
                 {"operator", ACCESS_OPERATOR},
                 {"none", 0}};
    const size_t n = sizeof(names) / sizeof(names[0]);
    char *rest = NULL;

    *roles = 0;
    for (char *name = strtok_r(value, ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        size_t i = 0;

        while (i < n && strcmp(name, names[i].name) != 0)
            i++;
        if (i == n)
            return config_explain(
                why, "%s: \"%.64s\" is none of worker, reader, scheduler, operator, none",
                e->setting, name);
        *roles |= names[i].roles;
    }
    return true;
}

/* Users have names of their own, and other settings give some characters a meaning. */
static bool read_tenant(const struct entry *e, const char *value, char *tenant, char *why)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._:@/+-";
    const size_t len = strlen(value);

    if (strspn(value, letters) != len || len > KVC_NAME_MAX || strncmp(value, "uid:", 4) == 0)
        return config_explain(why,
                              "%s: \"%.80s\" is no name for a tenant: at most %u letters, digits "
                              "and ._:@/+-, not beginning with uid:",
                              e->setting, value, KVC_NAME_MAX);
    memcpy(tenant, value, len + 1);
    return true;
}

static bool read_namespaces(const struct entry *e, char *value, struct access_door *door, char *why)
{
    char *rest = NULL;

    for (char *word = strtok_r(value, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (door->n_namespaces == ACCESS_NAMESPACES_MAX)
            return config_explain(why, "%s: more than %u namespaces of a socket", e->setting,
                                  ACCESS_NAMESPACES_MAX);
        if (!value_parse_digest(word, door->namespaces[door->n_namespaces++]))
            return config_explain(why, "%s: \"%.80s\" is not a digest of 64 hex digits", e->setting,
                                  word);
    }
    return true;
}

static bool read_group(const struct entry *e, const char *name, gid_t *gid, char *why)
{
    const struct group *group = getgrnam(name);

    if (group == NULL)
        return config_explain(why, "%s: there is no group \"%.64s\"", e->setting, name);
    *gid = group->gr_gid;
    return true;
}

static bool read_number(const struct entry *e, const char *text, uint32_t *id, char *why)
{
    uint64_t value;

    if (!value_parse(VALUE_COUNT, text, NULL, &value) || value >= UINT32_MAX)
        return config_explain(why, "%s: \"%.64s\" is no number of a user or group", e->setting,
                              text);
    *id = (uint32_t)value;
    return true;
}

static uint32_t find_socket(const struct config_access *all, const char *path)
{
    uint32_t i = 0;

    while (i < all->access.n_doors && strcmp(all->sockets[i].path, path) != 0)
        i++;
    return i;
}

enum { TENANT, NAMESPACES, ROLES, MODE, GROUP };

static bool read_socket_word(struct entry *e, uint32_t at, uint32_t key, char *value, char *why)
{
    struct config_socket *socket = &e->all->sockets[at];
    struct access_door *door = &e->all->access.doors[at];
    uint64_t mode;

    switch (key) {
    case TENANT:
        return read_tenant(e, value, door->tenant, why);
    case NAMESPACES:
        return read_namespaces(e, value, door, why);
    case ROLES:
        return read_roles(e, value, &door->roles, why);
    case GROUP:
        return read_group(e, value, &socket->group, why);
    default:
        socket->has_mode = value_parse(VALUE_MODE, value, NULL, &mode) && mode <= 0777;
        if (!socket->has_mode)
            return config_explain(why, "%s: \"%.64s\" is no mode", e->setting, value);
        socket->mode = (mode_t)mode;
        return true;
    }
}

static bool read_socket(struct entry *e, const char *path, char *why)
{
    static const char *const keys[] = {"tenant", "namespaces", "roles", "mode", "group", NULL};
    struct access *access = &e->all->access;
    const uint32_t at = find_socket(e->all, path);
    const bool is_new = at == access->n_doors;
    enum next next;
    uint32_t key;
    char *value;

    if (at == ACCESS_DOORS_MAX)
        return config_explain(why, "%s: more than %u sockets", e->setting, ACCESS_DOORS_MAX);
    if (strlen(path) >= CONFIG_PATH_MAX)
        return config_explain(why, "%s: the path is longer than %u bytes", e->setting,
                              CONFIG_PATH_MAX - 1);
    if (is_new) {
        e->all->sockets[at] = (struct config_socket){.group = (gid_t)-1};
        strcpy(e->all->sockets[at].path, path);
        access->doors[at] = (struct access_door){.roles = ACCESS_UNSAID};
        access->n_doors++;
    }
    while ((next = next_word(e, keys, &key, &value, why)) == NEXT_ONE)
        if (!read_socket_word(e, at, key, value, why))
            return false;
    if (next == NEXT_WRONG)
        return false;
    if (!is_new && e->seen != 1u << NAMESPACES)
        return config_explain(why, "%s: %.128s is named twice", e->setting, path);
    return true;
}

static bool read_sockets(const char *text, struct config_access *all, char *why)
{
    struct entry e = {.setting = "socket", .all = all, .at = text};
    enum next next;
    char *path;

    all->access.n_doors = 0;
    while ((next = next_entry(&e, &path, why)) == NEXT_ONE)
        if (!read_socket(&e, path, why))
            return false;
    if (next == NEXT_WRONG)
        return false;
    if (all->access.n_doors == 0)
        return config_explain(why, "socket: must not be empty");
    for (uint32_t i = 0; i < all->access.n_doors; i++)
        if (all->access.doors[i].n_namespaces > 0 && all->access.doors[i].tenant[0] == '\0')
            return config_explain(why,
                                  "socket: %.128s has namespaces and no tenant; what one tenant "
                                  "has lies in the same memory",
                                  all->sockets[i].path);
    return true;
}

static bool read_who(const struct entry *e, const char *who, struct access_rule *rule, char *why)
{
    rule->who = ACCESS_ANYBODY;
    if (strcmp(who, "*") == 0)
        return true;
    rule->who = ACCESS_UID;
    if (strncmp(who, "uid:", 4) == 0)
        return read_number(e, who + 4, &rule->id, why);
    if (strncmp(who, "user:", 5) == 0) {
        const struct passwd *user = getpwnam(who + 5);

        if (user == NULL)
            return config_explain(why, "%s: there is no user \"%.64s\"", e->setting, who + 5);
        rule->id = user->pw_uid;
        return true;
    }
    rule->who = ACCESS_GID;
    if (strncmp(who, "gid:", 4) == 0)
        return read_number(e, who + 4, &rule->id, why);
    if (strncmp(who, "group:", 6) == 0)
        return read_group(e, who + 6, &rule->id, why);
    return config_explain(why, "%s: \"%.64s\" is none of uid:N, user:NAME, gid:N, group:NAME, *",
                          e->setting, who);
}

static bool read_rule(struct entry *e, const char *who, struct access_rule *rule, char *why)
{
    static const char *const keys[] = {"roles", "tenant", "socket", NULL};
    enum next next;
    uint32_t key;
    char *value;

    *rule = (struct access_rule){.door = ACCESS_DOORS_MAX, .roles = ACCESS_UNSAID};
    if (!read_who(e, who, rule, why))
        return false;
    while ((next = next_word(e, keys, &key, &value, why)) == NEXT_ONE) {
        if (key == 0 && !read_roles(e, value, &rule->roles, why))
            return false;
        if (key == 1 && !read_tenant(e, value, rule->tenant, why))
            return false;
        if (key != 2 || e->all->access.n_doors == 0)
            continue;
        rule->door = find_socket(e->all, value);
        if (rule->door == e->all->access.n_doors)
            return config_explain(why, "%s: there is no socket %.128s", e->setting, value);
    }
    return next == NEXT_END;
}

/* Without sockets, socket= is not looked at. */
static bool read_rules(const char *text, struct config_access *all, char *why)
{
    struct entry e = {.setting = "allow", .all = all, .at = text};
    enum next next;
    char *who;

    all->access.n_rules = 0;
    while ((next = next_entry(&e, &who, why)) == NEXT_ONE) {
        if (all->access.n_rules == ACCESS_RULES_MAX)
            return config_explain(why, "allow: more than %u rules", ACCESS_RULES_MAX);
        if (!read_rule(&e, who, &all->access.rules[all->access.n_rules++], why))
            return false;
    }
    return next == NEXT_END;
}

bool config_access_parse(const char *sockets, const char *allow, struct config_access *ret,
                         char *why)
{
    return read_sockets(sockets, ret, why) && read_rules(allow, ret, why);
}

bool config_sockets_check(const char *sockets, char *why)
{
    struct config_access all;

    return read_sockets(sockets, &all, why);
}

bool config_allow_check(const char *allow, char *why)
{
    struct config_access all;

    all.access.n_doors = 0;
    return read_rules(allow, &all, why);
}
