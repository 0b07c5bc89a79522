/*
 * Peers: other daemons, whose blocks are fetched into slots here when a lookup misses. This header
 * is the room's door, for api/ and server.c.
 *
 * May include store/, tier/, device/, base/, kernels/ and proto/; it is the only place that knows
 * UCX. How settings name peers is read in names.h, pure plans are in plan.h and view.h, messages in
 * message.h, control connections in link.h. A fetch (fetch.c) asks the peers that asker.c is linked
 * with and moves batches (batch.c) of blocks; who asks this daemon is a guest (guest.c), served in
 * serve.c. Each peer and guest is of one tenant, for which there is no other. All of it runs on the
 * loop; packing, unpacking and checksums on libuv's pool.
 *
 * A fetch is a save of the daemon's own: what comes is FILLING, verified, and published as any
 * save is. Slots and memory that a peer may still write to are not given back before its endpoint
 * is closed.
 */
#ifndef KVC_PEER_PEER_H
#define KVC_PEER_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/histogram.h"
#include "daemon/store/store.h"
#include "daemon/tier/tier.h"

struct peers;
struct fetch;

enum peers_transfer { PEERS_AUTO, PEERS_EXACT, PEERS_VIEWS };

struct peers_config {
    uv_loop_t *loop;
    struct store *store; /* it and the tiers stay until peers_destroy */
    struct tier *const *tiers;
    const struct device *device; /* what they stand on; stays too */
    uint64_t boot_epoch;
    /* As the settings have them; "none" where there is nothing. */
    const char *list, *listen, *secret_file, *tenant;
    const char *directory; /* host:port of a Redis or Valkey */
    uint32_t directory_ms; /* what this node has said there lasts so long without it */
    enum peers_transfer transfer;
    const char *ucx;                /* the library */
    uint32_t silence_ms;            /* a peer that says nothing for this long is dead */
    uint64_t bytes_each, bytes_all; /* in flight to this daemon */
};

/*
 * Listens and begins to connect. Or KVC_E_UNSUPPORTED, KVC_E_INVALID or another status, with a
 * sentence; *peers, if it was set all the same, is then stopped, and to be destroyed.
 */
kvc_status peers_create(const struct peers_config *config, char *why, size_t size,
                        struct peers **peers);
/* Ends all links and fetches: nothing begins any more. */
void peers_stop(struct peers *peers);
/* From now on, or no longer: peers find nothing here, and fetches that are under way end at the
 * next tick, but for the batches that move already. Links stay. */
void peers_drain(struct peers *peers, bool drain);
uint32_t peers_fetching(const struct peers *peers); /* fetches that have not ended */
/* Links, fetches and copies that have not ended; peers_destroy when there are none. */
uint32_t peers_count(const struct peers *peers);
/* Before the store is destroyed. NULL is fine. */
void peers_destroy(struct peers *peers);

/* Fetches. */

/* Keys behind a prefix that is here. What is fetched is what the longest boundary needs that every
 * part's rule allows, with what is here and what peers have. */
struct peers_want {
    uint32_t tenant;
    const struct store_lookup_part *parts; /* the same number of keys in each */
    uint32_t n_parts;
    uint32_t ms; /* until it is over, however far it has come */
    uint32_t
        gpu; /* of the daemon's, where they should lie if they come into one; or PEERS_ANY_GPU */
};
#define PEERS_ANY_GPU UINT32_MAX

/* It is over: a prefix of so many of the keys is here, as far as the rules of the parts need it. */
typedef void peers_fetched_cb(void *arg, uint32_t blocks);
/*
 * KVC_OK: *fetch is good until fetched was called, once and never from inside a call, or the fetch
 * is dropped. What was fetched is kept from eviction for a moment, so that it can be leased.
 * KVC_E_UNKNOWN: no peer can have them.
 */
kvc_status peers_fetch(struct peers *peers, const struct peers_want *want,
                       peers_fetched_cb *fetched, void *arg, struct fetch **fetch);
/* It is not wanted any more; what is on its way still becomes a block. */
void peers_drop(struct fetch *fetch);

/* A key of a part is here from now on, or no longer: for the directory, if there is one. */
void peers_note(struct peers *peers, uint32_t part, const uint8_t *key, bool here);

/* For people. */

struct peers_row {
    char address[64], way[8]; /* "asks": it asks us; "serves" */
    const char *tenant;       /* whose blocks are shared with it */
    char state[96], mode[16], lanes[96], reason[96];
    uint64_t epoch, batches, small, useful, wire, registrations,
        dropped; /* small: views, of them */
};
/* false: there is no i-th. */
bool peers_row(const struct peers *peers, uint32_t i, struct peers_row *row);

struct peers_figures {
    uint64_t fetches, fetched_blocks, missed_fetches;
    uint64_t wire_bytes, batches[2]; /* full views and exact; small views */
    uint64_t served_blocks;
    uint64_t registrations, stale, failed_links, slow_lanes;
    struct histogram durations; /* of fetches that somebody waited for, until they were over */
};
void peers_figures(const struct peers *peers, struct peers_figures *figures);

#endif
