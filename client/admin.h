/*
 * What tools and tests ask a daemon beyond kvcache.h: figures, lists, switches of debug builds. Not
 * exported by the library; kvcachectl is linked with it statically.
 */
#ifndef KVC_CLIENT_ADMIN_H
#define KVC_CLIENT_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcache.h"

/* A number that the daemon is too old to tell. */
#define ADMIN_UNKNOWN UINT64_MAX

#define ADMIN_TIERS   2u /* gpu, host */
#define ADMIN_WINDOWS 4u /* that a client of this version takes */

struct admin_tier {
    uint64_t bytes, used_bytes, slots, used_slots;
    uint64_t hits, evictions, bytes_saved, bytes_loaded, populated_bytes;
};

struct admin_window {
    uint32_t seconds;
    uint64_t gpu, host, peer, misses;
};

/* StatsReply of kvcache.proto, which says what the fields are. */
struct admin_stats {
    char version[32], device[16];
    uint64_t boot_epoch, uptime_us;
    struct admin_tier tiers[ADMIN_TIERS];
    uint64_t hits_peer;
    uint64_t blocks, sessions, leases, open_loads, filling_slots, quarantined_slots;
    uint64_t misses, evictions, demotions, failed_demotions, promotions;
    uint64_t oldest_op_us, quarantine_oldest_us, cpu_us, cpu_system_us;
    uint64_t saves, aborted_saves, published_blocks, skipped_blocks;
    uint64_t stale_completions, admitted_at_once, admitted_blocks;
    uint64_t checksum_failures, bad_packets, refused_requests;
    uint64_t pinned_blocks, limited_lookups;
    uint64_t driver_calls, driver_call_us, hanging_gpus, lost_gpus, copy_thread_blocks;
    uint64_t closing_fds, stuck_fds, left_open_fds;
    uint64_t resized_extents, moved_extents, kept_extents, lost_extents, waiting_extents;
    uint64_t moving_blocks;
    bool draining;
    uint32_t n_windows; /* the shortest first */
    struct admin_window windows[ADMIN_WINDOWS];
};
kvc_status admin_stats(kvc_client *client, struct admin_stats *stats);

/* A page of a list. Strings live until the next call on the client. */
struct admin_row {
    size_t n_values;
    char *const *values;
};
struct admin_list {
    size_t n_columns;
    char *const *columns;
    size_t n_rows;
    const struct admin_row *rows;
    uint64_t after; /* for the next page */
    bool more;
};
kvc_status admin_list(kvc_client *client, const char *what, uint64_t after, uint32_t limit,
                      struct admin_list *list);
/* The same with what only some lists take. A page may be empty and not the last. */
struct admin_list_query {
    const char *what;
    uint64_t after;
    uint32_t limit;
    const uint8_t *namespace_digest; /* or NULL */
    const char *key_prefix;          /* hex digits, or NULL */
};
kvc_status admin_list_query(kvc_client *client, const struct admin_list_query *query,
                            struct admin_list *list);

/*
 * Flushes and pins of an operator. digest: a namespace of every tenant; NULL: everything. keys
 * NULL: all of it. More than KVC_KEYS_MAX keys are split.
 */
kvc_status admin_flush(kvc_client *client, const uint8_t *digest, const uint8_t *keys,
                       uint32_t n_keys, uint64_t *blocks);
kvc_status admin_pin(kvc_client *client, const uint8_t digest[KVC_NAMESPACE_BYTES],
                     const uint8_t *keys, uint32_t n_keys, uint32_t seconds, uint32_t *count);
kvc_status admin_unpin(kvc_client *client, const uint8_t digest[KVC_NAMESPACE_BYTES],
                       const uint8_t *keys, uint32_t n_keys, uint32_t *count);

/* Quota of kvcache.proto; an operator's. *namespaces: of how many tenants it was set. */
struct admin_amount {
    bool given;
    int64_t value;
};
struct admin_quota {
    struct admin_amount gpu_bytes, host_bytes, leases;
    bool clear;
};
kvc_status admin_quota(kvc_client *client, const uint8_t digest[KVC_NAMESPACE_BYTES],
                       const struct admin_quota *quota, uint32_t *namespaces);

/* Changes a setting of the running daemon; kvc_error says what is wrong with it. */
kvc_status admin_config(kvc_client *client, const char *name, const char *value);

/* Watch of kvcache.proto, which says what the fields are. */
struct admin_watch {
    uint64_t after, boot_epoch;
    bool latest;
    uint32_t wait_ms, limit;
    const uint8_t *namespace_digest; /* or NULL */
};
/* All of a reply lives until the next call on the client. */
struct admin_watch_part {
    uint32_t part, block_tokens;
    const uint8_t *namespace_digest;
    const char *namespace_name, *tenant;
};
enum admin_event_type { ADMIN_STORED = 1, ADMIN_REMOVED = 2, ADMIN_CLEARED = 3 };
struct admin_event {
    uint64_t sequence;
    uint32_t type, tier;   /* a later daemon may have types that are none of these */
    const uint8_t *key;    /* NULL: of no key */
    const uint8_t *parent; /* NULL: not known */
    const struct admin_watch_part *part;
};
struct admin_watch_reply {
    uint64_t boot_epoch, after, lost;
    bool more;
    size_t n;
    const struct admin_event *events;
};
kvc_status admin_watch(kvc_client *client, const struct admin_watch *watch,
                       struct admin_watch_reply *reply);

/* What goes on for a while: how it stands, and before that, to begin or to end it. */
enum admin_action { ADMIN_LOOK, ADMIN_BEGIN, ADMIN_END };
struct admin_drain {
    bool draining, drained;
    uint64_t filling_slots, open_loads, leases, moving_blocks, sessions, quarantined_slots;
    uint64_t fetches; /* from peers */
};
kvc_status admin_drain(kvc_client *client, enum admin_action action, struct admin_drain *drain);
struct admin_verify {
    bool running;
    uint32_t permille; /* that it has looked at */
    uint64_t checked, bad, unchecked, failed, bytes, elapsed_us;
};
/* KVC_E_BUSY: one is under way. */
kvc_status admin_verify(kvc_client *client, enum admin_action action, uint64_t bytes_per_s,
                        struct admin_verify *verify);

/* Round trip with a payload that must come back. */
kvc_status admin_ping(kvc_client *client, const void *payload, size_t len);

/* Of debug builds of the daemon; others refuse it as KVC_E_UNSUPPORTED. */
struct admin_debug {
    const char *fault; /* or NULL */
    uint32_t skip, count;
    uint64_t advance_us;
    bool check;
};
struct admin_debug_reply {
    uint64_t passed, fired;
    char broken[128]; /* "": every invariant holds */
    uint64_t live_allocations, fds;
};
kvc_status admin_debug(kvc_client *client, const struct admin_debug *debug,
                       struct admin_debug_reply *reply);

#endif
