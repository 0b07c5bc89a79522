#include "daemon/peer/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool peer_explain(char *why, size_t size, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return false;
}

bool peer_name_split(const char *text, char host[PEER_NAME_MAX], char port[8])
{
    const char *colon = strrchr(text, ':'), *end = colon;
    long number;

    if (colon == NULL || colon == text || strlen(colon + 1) > 5)
        return false;
    number = strtol(colon + 1, NULL, 10);
    if (number < 1 || number > 65535 || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return false;
    if (text[0] == '[') {
        if (colon[-1] != ']')
            return false;
        text++;
        end--;
    }
    if (end - text < 1 || end - text >= (int)PEER_NAME_MAX)
        return false;
    snprintf(host, PEER_NAME_MAX, "%.*s", (int)(end - text), text);
    snprintf(port, 8, "%s", colon + 1);
    return true;
}

/* A tenant's name may be any text, but for what separates entries. */
bool peer_tenant_check(const char *text, char *why, size_t size)
{
    const char *digits = text + 4;

    if (strlen(text) > KVC_NAME_MAX)
        return peer_explain(why, size, "peer-tenant: longer than %u bytes", KVC_NAME_MAX);
    if (strncmp(text, "uid:", 4) != 0)
        return true;
    if (strlen(digits) < 1 || strlen(digits) > 10 ||
        strspn(digits, "0123456789") != strlen(digits) || strtoull(digits, NULL, 10) >= UINT32_MAX)
        return peer_explain(why, size, "peer-tenant: \"%.64s\" is not uid:N", text);
    return true;
}

static bool add(const char *word, struct peer_name names[PEERS_MAX], uint32_t *n, char *why,
                size_t size)
{
    struct peer_name *name = &names[*n];
    char text[160];

    if (strncmp(word, "tenant=", 7) != 0) {
        if (*n == PEERS_MAX)
            return peer_explain(why, size, "peers: more than %u", PEERS_MAX);
        *name = (struct peer_name){0};
        if (!peer_name_split(word, name->host, name->port))
            return peer_explain(why, size, "peers: \"%.80s\" is not host:port", word);
        ++*n;
        return true;
    }
    if (*n == 0 || name[-1].tenant[0] != '\0' || word[7] == '\0')
        return peer_explain(why, size, "peers: \"%.80s\" stands behind no peer", word);
    if (!peer_tenant_check(word + 7, text, sizeof(text)))
        return peer_explain(why, size, "peers: %s", text + strlen("peer-tenant: "));
    snprintf(name[-1].tenant, sizeof(name->tenant), "%s", word + 7);
    return true;
}

/* Who asks is known by the host that he comes from. */
static bool check_hosts(const struct peer_name *names, uint32_t n, char *why, size_t size)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(names[i].host, names[j].host) == 0 &&
                strcmp(names[i].tenant, names[j].tenant) != 0)
                return peer_explain(why, size, "peers: %s is of two tenants", names[i].host);
    return true;
}

bool peer_names_read(const char *text, struct peer_name names[PEERS_MAX], uint32_t *ret, char *why,
                     size_t size)
{
    char copy[PEER_NAMES_TEXT_MAX], *rest = copy, *word;
    uint32_t n = 0;

    if (strcmp(text, "none") == 0) {
        *ret = 0;
        return true;
    }
    if (strlen(text) >= sizeof(copy))
        return peer_explain(why, size, "peers: longer than %zu bytes", sizeof(copy) - 1);
    strcpy(copy, text);
    while ((word = strsep(&rest, ",; \t")) != NULL)
        if (word[0] != '\0' && !add(word, names, &n, why, size))
            return false;
    if (!check_hosts(names, n, why, size))
        return false;
    *ret = n;
    return true;
}
