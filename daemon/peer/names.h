/*
 * Peers as people write them: "HOST:PORT [tenant=TENANT], ..." with commas, semicolons or blanks
 * between. TENANT is whose blocks are shared with the one in front of it: "own" (of the daemon's
 * uid), uid:N, or a name. Pure, and in builds without UCX too: settings are checked with it.
 */
#ifndef KVC_PEER_NAMES_H
#define KVC_PEER_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define PEERS_MAX           16u /* that are asked, and as many again that ask */
#define PEER_NAME_MAX       64u
#define PEER_NAMES_TEXT_MAX 2560u

struct peer_name {
    char host[PEER_NAME_MAX], port[8];
    char tenant[KVC_NAME_MAX + 1]; /* empty: the one of all that name none */
};

/* "host:port" or "[v6]:port". */
bool peer_name_split(const char *text, char host[PEER_NAME_MAX], char port[8]);

/* false: why says in one line what is wrong. "none" is a list of none. */
bool peer_names_read(const char *text, struct peer_name names[PEERS_MAX], uint32_t *n, char *why,
                     size_t size);
bool peer_tenant_check(const char *text, char *why, size_t size);

/* Says in why what is wrong; false. */
bool peer_explain(char *why, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
