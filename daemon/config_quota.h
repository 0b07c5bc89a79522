/*
 * Quotas as people write them: "DIGEST gpu=4G host=16G leases=1000", where DIGEST is that of a
 * namespace, 64 hex digits, or "default", for all that have none of their own. Any of the three may
 * be left out. Several stand with a semicolon between them.
 */
#ifndef KVC_DAEMON_CONFIG_QUOTA_H
#define KVC_DAEMON_CONFIG_QUOTA_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

#define CONFIG_QUOTAS_MAX      64u
#define CONFIG_QUOTA_TEXT_MAX  6400u
#define CONFIG_QUOTA_ENTRY_MAX 160u

struct config_quota {
    bool all;
    uint8_t digest[KVC_NAMESPACE_BYTES]; /* unless all */
    uint64_t gpu_bytes, host_bytes;      /* 0: not said */
    uint64_t leases;
};

/*
 * Reads a list of at most CONFIG_QUOTAS_MAX quotas; *n: how many. false: why (CONFIG_WHY_MAX bytes)
 * says in one line what is wrong with which.
 */
bool config_quotas_parse(const char *text, struct config_quota *quotas, uint32_t *n, char *why);
/* Only whether it can be read. */
bool config_quotas_check(const char *text, char *why);

#endif
