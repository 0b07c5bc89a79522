/*
 * Requests: from decoded packets to the store and back. One file per family, which dispatch.c has
 * the table of, what becomes of those that the daemon copies (transfer) and what they wait for
 * (gate), and the sessions that they belong to. This header is the door, for server.c: it makes an
 * api, gives it the store and sockets to listen on, and stops it. access.h, which the configuration
 * reads, says who may do what.
 *
 * May include everything but server, config and main. All of it runs on the loop's thread.
 */
#ifndef KVC_API_API_H
#define KVC_API_API_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/api/access.h"
#include "daemon/base/histogram.h"
#include "daemon/peer/peer.h"
#include "daemon/store/store.h"
#include "daemon/tier/copier.h"
#include "daemon/tier/tier.h"

struct api;
struct msg_stats_reply;

/* The daemon's settings, which only the server knows. */
struct api_setting {
    const char *name, *origin;
    bool runtime; /* can change without a restart */
    bool tells;   /* of tenants, hence for operators only */
    char value[256];
};
struct api_settings {
    void *ctx;
    size_t (*count)(void *ctx);
    void (*get)(void *ctx, size_t i, struct api_setting *setting);
    /* false: why says in one line what is wrong, and nothing changed. */
    bool (*set)(void *ctx, const char *name, const char *value, char *why, size_t size);
};

struct api_config {
    uv_loop_t *loop;
    uint64_t boot_epoch;
    const struct device *device; /* stays until api_destroy */
    uint32_t lease_ms_max;
    struct api_settings settings;
    struct copier *copier; /* stays until api_destroy */
};

kvc_status api_create(const struct api_config *config, struct api **api);
/* Whom to ask for what is not here; stays until api_destroy. */
void api_set_peers(struct api *api, struct peers *peers);
/* For store_create. Nothing comes before api_serve. */
struct store_events api_store_events(struct api *api);

/*
 * Begins to accept on bound sockets, which stay the caller's: one for each door of the access that
 * was set. Store and tiers (NULL where there is none) stay until api_destroy.
 */
kvc_status api_serve(struct api *api, struct store *store, struct tier *const tiers[TIER_COUNT],
                     const int *socks);

/*
 * Who may do what from now on. Doors do not change after api_serve. A session that the rules would
 * not let in as it is, in its tenant and its role, is cut.
 */
void api_set_access(struct api *api, const struct access *access);

/* Accepts no more, tells every session, and refuses requests that begin something. */
void api_stop(struct api *api);
/* Whether saves or loads of connected sessions are still under way. */
bool api_busy(const struct api *api);
/* Ends every connection. api_connections() tells when the last one is over. */
void api_end_connections(struct api *api);
uint32_t api_connections(const struct api *api);
/* Pieces of workers' memory that are mapped, or are being unmapped. */
uint32_t api_pieces(const struct api *api);
/* Calls of the GPUs' drivers that have not come back, or wait for others. */
uint32_t api_errands(const struct api *api);
/* Whether blocks are being read to verify them. */
bool api_verifies(const struct api *api);
/* Whether a GPU's driver does not come back, so that pieces may stay for ever. */
bool api_hangs(const struct api *api);

/* What STATS replies. Its texts live as long as the api. */
void api_figures(const struct api *api, struct msg_stats_reply *figures);
/* Connected sessions of a tenant in a role; 0 for a number that is no role. */
uint32_t api_count_sessions(const struct api *api, const char *tenant, uint32_t role);
const char *api_role_name(uint32_t role); /* NULL: there is none of that number */
/* How long it took to handle requests that were accepted, without what was answered later. */
enum api_latency { API_LATENCY_LOOKUP, API_LATENCY_SAVE, API_LATENCY_LOAD, API_LATENCIES };
const struct histogram *api_latency(const struct api *api, enum api_latency of);

/*
 * Ends what is left of sessions, when there are no connections, and no pieces or it hangs. The
 * store calls nothing any more. NULL is fine.
 */
void api_destroy(struct api *api);

#endif
