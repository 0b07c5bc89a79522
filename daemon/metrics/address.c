#include "daemon/metrics/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/metrics/metrics.h"

static bool parse_port(const char *text, in_port_t *port)
{
    const size_t n = strlen(text);
    unsigned long value;

    if (n == 0 || n > 5 || strspn(text, "0123456789") != n)
        return false;
    value = strtoul(text, NULL, 10);
    *port = htons((in_port_t)value);
    return value <= UINT16_MAX;
}

bool address_parse(const char *text, struct sockaddr_storage *address, socklen_t *len)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    const char *colon = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN + 2];
    in_port_t port;
    size_t n;

    if (colon == NULL || !parse_port(colon + 1, &port))
        return false;
    n = (size_t)(colon - text);
    if (n < 2 || n >= sizeof(host))
        return false;
    memcpy(host, text, n);
    host[n] = '\0';
    memset(address, 0, sizeof(*address));
    if (host[0] == '[' && host[n - 1] == ']') {
        host[n - 1] = '\0';
        v6.sin6_port = port;
        memcpy(address, &v6, sizeof(v6));
        *len = sizeof(v6);
        return inet_pton(AF_INET6, host + 1, &((struct sockaddr_in6 *)address)->sin6_addr) == 1;
    }
    v4.sin_port = port;
    memcpy(address, &v4, sizeof(v4));
    *len = sizeof(v4);
    return inet_pton(AF_INET, host, &((struct sockaddr_in *)address)->sin_addr) == 1;
}

bool metrics_is_address(const char *text)
{
    struct sockaddr_storage address;
    socklen_t len;

    return strcmp(text, "off") == 0 || address_parse(text, &address, &len);
}
