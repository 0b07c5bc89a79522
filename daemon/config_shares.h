/* The setting tenant-shares: how much of the tiers each tenant may own. */
#ifndef KVC_DAEMON_CONFIG_SHARES_H
#define KVC_DAEMON_CONFIG_SHARES_H

#include <stdbool.h>

#include "daemon/store/store.h"

#define CONFIG_SHARES_MAX 16u

/*
 * Reads "uid:1000=25%,uid:1001=4G/16G,*=50%": names of tenants, * for all others, and a share of
 * each tier (of the gpu tier / of the host tier): per cent or bytes. false: why (CONFIG_WHY_MAX
 * bytes) says in one line what is wrong.
 */
bool config_shares(const char *text, struct store_share shares[CONFIG_SHARES_MAX], uint32_t *n,
                   char *why);

#endif
