#ifndef KVC_METRICS_ADDRESS_H
#define KVC_METRICS_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* ADDRESS:PORT of numbers, IPv6 in brackets. */
bool address_parse(const char *text, struct sockaddr_storage *address, socklen_t *len);

#endif
