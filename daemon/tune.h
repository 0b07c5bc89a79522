/*
 * What settings mean to the parts of the daemon: the configuration in the form that the store, the
 * device and the peers take.
 */
#ifndef KVC_DAEMON_TUNE_H
#define KVC_DAEMON_TUNE_H

#include "daemon/config.h"
#include "daemon/device/device.h"
#include "daemon/peer/peer.h"
#include "daemon/store/store.h"

struct store_tuning tune_store(const struct config *config);

/* Gives the store the quotas of the configuration in place of those that it had from it before. */
kvc_status tune_quotas(const struct config *config, struct store *store);

/* How much of a GPU the daemon's copies may take. */
void tune_copies(const struct config *config, const struct device *device);

/* What concerns peers; what the daemon itself has is the caller's to add. */
struct peers_config tune_peers(const struct config *config);
/* Whether there are to be any. */
bool tune_has_peers(const struct config *config);

#endif
