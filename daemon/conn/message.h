/*
 * Requests and replies as plain structs: what the codec makes of protobuf bodies, and the only form
 * in which the rooms above see them. Fields have kvcache.proto's names and are unchecked: whatever
 * a body may hold can stand in them. Pointers of a request are good until the next one is decoded.
 */
#ifndef KVC_CONN_MESSAGE_H
#define KVC_CONN_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/wire.h"

struct bytes {
    const uint8_t *data;
    size_t len;
};

struct numbers {
    const uint32_t *values;
    size_t n;
};

struct numbers64 {
    const uint64_t *values;
    size_t n;
};

/* Requests. Strings are never NULL. */

struct msg_hello {
    uint32_t version;
    uint32_t role;
    uint32_t pid;
    uint64_t features;
    struct bytes device_uuids;
    const char *name, *build;
};

struct msg_register {
    struct bytes namespace_digest;
    uint32_t block_tokens;
    struct numbers slice_bytes;
    struct bytes slice_dtypes;
    uint32_t rule, window;
    struct bytes family;
    const char *name;
};

struct msg_unregister {
    uint32_t part;
};

struct msg_map {
    uint32_t cursor;
    struct numbers mapped;
};

struct msg_unmap {
    struct numbers extents;
};

struct msg_region_begin {
    uint32_t part, blocks;
    uint64_t generation;
    uint32_t pieces;
    struct numbers slice_pieces;
    struct numbers64 slice_offsets, slice_strides;
};

struct msg_region_part {
    uint64_t region;
    struct bytes kinds;
    struct numbers64 piece_bytes, piece_offsets;
    struct bytes handles;
};

struct msg_region { /* RegionEnd, RegionDrop, Suspend, Resume */
    uint64_t region;
};

struct msg_lookup_part {
    uint32_t part, epoch;
    struct bytes keys;
};

struct msg_lookup {
    uint64_t request;
    struct bytes keys;
    const struct msg_lookup_part *parts;
    size_t n_parts;
    uint64_t lease;
    uint32_t offset;
    uint32_t lease_ms;
    bool probe, more;
    uint32_t remote_ms;
};

struct msg_remote {
    uint64_t fetch;
    uint32_t wait_ms;
    bool decline;
};

struct msg_save_entry {
    uint32_t part, epoch;
    struct bytes keys;
    struct numbers blocks;
    uint32_t first_slice, slices;
    uint64_t region;
};

/* What copies by the daemon wait for. */
struct msg_gate {
    uint32_t index;
    uint64_t number;    /* 0: nothing */
    struct bytes event; /* what nobody waits for any more */
};

struct msg_save {
    const struct msg_save_entry *entries;
    size_t n_entries;
    bool checksums, notify, to_host, no_wait;
    uint64_t save;
    uint64_t region;
    struct msg_gate gate;
};

struct msg_abort {
    uint64_t save;
    uint32_t request;
    struct numbers never;
    bool never_all;
};

struct msg_load {
    uint64_t lease;
    uint32_t part, epoch;
    uint32_t first, count;
    uint32_t first_slice, slices;
    struct numbers blocks;
    uint64_t region;
    struct numbers64 sums;
    struct msg_gate gate;
    bool release;
};

struct msg_extend {
    uint64_t lease;
    uint32_t lease_ms;
};

struct msg_release {
    uint64_t lease;
};

struct msg_adopt {
    struct bytes token;
    uint32_t part, epoch;
    uint32_t lease_ms;
};

struct msg_drained {
    uint64_t session;
    struct bytes secret;
};

struct msg_report {
    uint32_t part;
    struct bytes key;
    uint32_t generation;
    uint32_t tier;
    uint64_t offset;
};

struct msg_flush {
    uint32_t part;
    struct bytes namespace_digest;
    bool all;
    struct bytes keys;
};

struct msg_pin {
    uint32_t part;
    struct bytes namespace_digest;
    struct bytes keys;
    uint32_t seconds;
    bool unpin;
};

struct msg_amount {
    uint32_t n; /* how many were given: 0 or 1, else it is nonsense */
    int64_t value;
};
struct msg_quota {
    struct bytes namespace_digest;
    struct msg_amount gpu_bytes, host_bytes, leases;
    bool clear;
};

struct msg_list {
    const char *what;
    uint64_t after;
    uint32_t limit;
    struct bytes namespace_digest;
    const char *key_prefix;
};

struct msg_config {
    const char *name, *value;
};

/* Numbers of kvcache.proto's Action. */
enum msg_action { MSG_ACTION_LOOK = 0, MSG_ACTION_BEGIN = 1, MSG_ACTION_END = 2 };
struct msg_job { /* Drain, Verify */
    uint32_t action;
    uint64_t bytes_per_s;
};

struct msg_watch {
    uint64_t after, boot_epoch;
    bool latest;
    uint32_t wait_ms, limit;
    struct bytes namespace_digest;
};

struct msg_ping {
    struct bytes payload;
};

struct msg_debug {
    const char *fault;
    uint32_t skip, count;
    uint64_t advance_us;
    bool check;
};

struct request {
    uint16_t type; /* enum wire_type; says which member holds */
    uint32_t seq;
    int *fds; /* who keeps one sets it to -1 */
    uint32_t n_fds;
    union {
        struct msg_hello hello;
        struct msg_register register_;
        struct msg_unregister unregister;
        struct msg_map map;
        struct msg_unmap unmap;
        struct msg_region_begin region_begin;
        struct msg_region_part region_part;
        struct msg_region region;
        struct msg_lookup lookup;
        struct msg_remote remote;
        struct msg_save save;
        struct msg_abort abort;
        struct msg_load load;
        struct msg_extend extend;
        struct msg_release release;
        struct msg_adopt adopt;
        struct msg_drained drained;
        struct msg_report report;
        struct msg_flush flush;
        struct msg_pin pin;
        struct msg_quota quota;
        struct msg_list list;
        struct msg_config config;
        struct msg_watch watch;
        struct msg_ping ping;
        struct msg_job job;
        struct msg_debug debug;
    };
};

/* Replies and notices. */

#define MSG_TIERS 2u

struct msg_error {
    uint32_t status;
    const char *field, *detail;
};

struct msg_hello_reply {
    uint32_t version;
    uint64_t session;
    const uint8_t *secret; /* KVC_SECRET_BYTES */
    uint64_t boot_epoch;
    uint64_t features;
    const char *device, *tenant, *build;
    struct {
        uint64_t bytes, extent_bytes;
        uint32_t extents;
    } tiers[MSG_TIERS];
    bool page; /* page_words and page_stride are given */
    uint32_t lease_ms_max;
};

struct msg_register_reply {
    uint32_t part, epoch;
    const uint8_t *fingerprint; /* KVC_FINGERPRINT_BYTES */
    uint64_t slot_bytes;
    uint32_t extents;
};

struct msg_extents {
    const uint32_t *withdrawn;
    uint32_t n_withdrawn;
    bool granted;
};

struct msg_map_reply {
    const uint32_t *extents;
    const uint8_t *kinds;
    uint32_t n;
    struct bytes handles; /* of those that have no descriptor */
    uint32_t cursor;
    bool more;
};

struct msg_lookup_reply {
    uint32_t count;
    uint64_t lease;
    const uint8_t *token; /* KVC_TOKEN_BYTES, or NULL */
    uint32_t lease_ms;
    uint32_t gpu, host, pending, reach;
    uint32_t remote;
    uint64_t fetch;
};

struct msg_remote_reply {
    bool done;
    uint32_t blocks;
};

/* Of the assigned keys of an entry, in order. */
struct msg_save_entry_reply {
    const uint8_t *states;
    uint32_t n_states;
    const uint8_t *tiers;
    const uint64_t *offsets;
    const uint32_t *generations;
    uint32_t n_assigned;
};

struct msg_save_reply {
    uint64_t save;
    const struct msg_save_entry_reply *entries;
    uint32_t n_entries;
    const uint32_t *chunk_blocks;
    const uint32_t *chunk_words;
    const uint64_t *chunk_numbers;
    uint32_t n_chunks;
};

struct msg_outcome { /* SaveDone, AbortReply */
    uint64_t save;
    uint32_t status;
    uint32_t published, dropped;
};

struct msg_load_reply {
    uint32_t word;
    uint64_t number;
    const uint8_t *tiers;
    const uint64_t *offsets;
    const uint32_t *generations;
    const uint64_t *checksums;
    const uint8_t *checked;
    uint32_t n;
    /* Copied by the daemon: then n is 0. */
    const uint8_t *valid;
    uint32_t n_valid;
    const uint64_t *sums;
    uint32_t n_sums; /* 0: none were asked for */
    uint32_t status;
};

struct msg_adopt_reply {
    uint64_t lease;
    uint32_t count;
    uint32_t lease_ms;
};

struct msg_stats_tier {
    uint64_t bytes, used_bytes, slots, used_slots;
    uint64_t hits, evictions, bytes_saved, bytes_loaded, populated_bytes;
};

#define MSG_WINDOWS 2u
struct msg_hit_window {
    uint32_t seconds;
    uint64_t gpu, host, peer, misses;
};

struct msg_stats_reply {
    const char *version, *device;
    uint64_t boot_epoch, uptime_us;
    struct msg_stats_tier tiers[MSG_TIERS];
    uint64_t hits_peer; /* blocks that came from peers */
    uint64_t blocks, sessions, leases, open_loads, filling_slots, quarantined_slots;
    uint64_t misses, evictions, demotions, promotions, failed_demotions, oldest_op_us;
    uint64_t saves, aborted_saves, published_blocks, skipped_blocks;
    uint64_t stale_completions, admitted_at_once, admitted_blocks, checksum_failures;
    uint64_t bad_packets, refused_requests;
    uint64_t cpu_us, cpu_system_us, quarantine_oldest_us, pinned_blocks, limited_lookups;
    uint64_t driver_calls, driver_call_us, hanging_gpus, lost_gpus, copy_thread_blocks;
    uint64_t closing_fds, stuck_fds, left_open_fds;
    uint64_t resized_extents, moved_extents, kept_extents, lost_extents, waiting_extents;
    struct msg_hit_window windows[MSG_WINDOWS];
    bool draining;
    uint64_t moving_blocks;
};

#define MSG_LIST_COLUMNS 16u

struct msg_list_row {
    const char *values[MSG_LIST_COLUMNS];
};

struct msg_list_reply {
    const char *const *columns;
    uint32_t n_columns; /* at most MSG_LIST_COLUMNS, also of each row */
    const struct msg_list_row *rows;
    uint32_t n_rows;
    uint64_t after;
    bool more;
};

struct msg_config_reply {
    const char *name, *value; /* the setting as it is now */
};

/* Columns of n events; as many rows as a reply may have. */
#define MSG_WATCH_PARTS 64u
struct msg_watch_part {
    uint32_t part, block_tokens;
    const uint8_t *namespace_digest; /* KVC_NAMESPACE_BYTES */
    const char *namespace_name, *tenant;
};
struct msg_watch_reply {
    uint64_t boot_epoch, after, lost;
    bool more;
    uint32_t n, n_parts;
    uint64_t sequences[KVC_EVENTS_MAX];
    uint32_t parts[KVC_EVENTS_MAX];
    uint8_t types[KVC_EVENTS_MAX], tiers[KVC_EVENTS_MAX];
    uint8_t keys[KVC_EVENTS_MAX * KVC_KEY_BYTES], parents[KVC_EVENTS_MAX * KVC_KEY_BYTES];
    struct msg_watch_part named[MSG_WATCH_PARTS];
};

struct msg_drain_reply {
    bool draining, drained;
    uint64_t filling_slots, open_loads, leases, moving_blocks, sessions, quarantined_slots;
    uint64_t fetches; /* from peers */
};

struct msg_verify_reply {
    bool running;
    uint32_t permille;
    uint64_t checked, bad, unchecked, failed, bytes, elapsed_us;
};

struct msg_ping_reply {
    struct bytes payload;
    uint64_t boot_epoch;
};

struct msg_debug_reply {
    uint64_t passed, fired;
    const char *broken; /* NULL: nothing */
    uint64_t live_allocations, fds;
};

#endif
