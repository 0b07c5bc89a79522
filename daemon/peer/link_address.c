/* Addresses of links: of both sides, and whether one is of this machine. */
#ifdef KVC_UCX

#include "daemon/peer/link.h"

#include <string.h>

bool link_is_loopback(const struct sockaddr_storage *address)
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;

    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

bool link_peer(const struct link *link, struct sockaddr_storage *address)
{
    int len = sizeof(*address);

    memset(address, 0, sizeof(*address));
    return uv_tcp_getpeername(&link->tcp, (struct sockaddr *)address, &len) == 0;
}

bool link_self(const struct link *link, struct sockaddr_storage *address)
{
    int len = sizeof(*address);

    memset(address, 0, sizeof(*address));
    return uv_tcp_getsockname(&link->tcp, (struct sockaddr *)address, &len) == 0;
}

#endif
