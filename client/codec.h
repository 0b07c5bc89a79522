/*
 * Packet bodies to plain structs and back, as the library needs them. Protobuf stops here.
 *
 * codec_put_* packs into body, which has room for KVC_WIRE_BODY_MAX; KVC_E_LIMIT when it does not
 * fit, KVC_OK and *len otherwise. codec_get_* returns false when the body is malformed: it does not
 * unpack within its budget, or a field has a length that cannot be; values are the caller's to
 * judge. Arrays and strings of what was got point into the scratch, until its next use.
 */
#ifndef KVC_CLIENT_CODEC_H
#define KVC_CLIENT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"
#include "proto/wire.h"

/* Memory for one unpacked body; KVC_WIRE_UNPACK_BUDGET bytes, made at the first use. */
struct codec_scratch {
    uint8_t *memory;
    size_t used;
};
void codec_scratch_free(struct codec_scratch *scratch);

struct codec_error {
    kvc_status status; /* never KVC_OK */
    char field[64], detail[128];
};
bool codec_get_error(const struct wire_packet *packet, struct codec_error *error);

/* The session: codec_session.c. */

struct codec_hello {
    uint32_t role;
    uint32_t pid;
    const char *name;
    const uint8_t *device_uuids; /* n_devices x KVC_UUID_BYTES */
    uint32_t n_devices;
};
kvc_status codec_put_hello(const struct codec_hello *hello, uint8_t *body, size_t *len);

#define CODEC_TIERS 2u /* gpu and host; peers' tiers are not mapped */
struct codec_tier {
    uint64_t bytes, extent_bytes;
    uint32_t extents;
};
struct codec_hello_reply {
    uint32_t version;
    uint64_t session, boot_epoch;
    uint8_t secret[KVC_SECRET_BYTES];
    char device[16];
    struct codec_tier tiers[CODEC_TIERS];
    uint32_t page_words, page_stride;
    uint32_t keys_max;
};
bool codec_get_hello_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct codec_hello_reply *reply);

#define CODEC_FAMILY_BYTES 16u
struct codec_register {
    const uint8_t *namespace_digest;
    const uint8_t *family; /* CODEC_FAMILY_BYTES or NULL */
    const char *name;
    uint32_t block_tokens, rule, window, n_slices;
    const uint32_t *slice_bytes;
    const uint8_t *slice_dtypes; /* or NULL */
};
kvc_status codec_put_register(const struct codec_register *part, uint8_t *body, size_t *len);
struct codec_register_reply {
    uint32_t part, epoch, extents;
    uint64_t slot_bytes;
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
};
bool codec_get_register_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                              struct codec_register_reply *reply);
kvc_status codec_put_unregister(uint32_t part, uint8_t *body, size_t *len);

kvc_status codec_put_map(uint32_t cursor, const uint32_t *mapped, uint32_t n_mapped, uint8_t *body,
                         size_t *len);
struct codec_map_reply {
    uint32_t n_extents;
    const uint32_t *extents; /* tier << 31 | index */
    const uint8_t *kinds;
    uint32_t cursor;
    bool more;
    uint32_t n_handles;
    const uint8_t *handles; /* CODEC_HANDLE_BYTES each, of the extents that have one */
};
bool codec_get_map_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                         struct codec_map_reply *reply);
kvc_status codec_put_unmap(const uint32_t *extents, uint32_t n, uint8_t *body, size_t *len);

struct codec_extents {
    uint32_t n_withdrawn;
    const uint32_t *withdrawn;
    bool granted;
};
bool codec_get_extents(struct codec_scratch *scratch, const struct wire_packet *packet,
                       struct codec_extents *extents);

/* secret NULL: the session itself. */
kvc_status codec_put_drained(uint64_t session, const uint8_t *secret, uint8_t *body, size_t *len);

/* Leases: codec_lease.c. */

struct codec_lookup {
    uint64_t request, lease;
    uint32_t offset, lease_ms, remote_ms;
    bool probe, more;
    const uint8_t *keys;
    uint32_t n_keys;
    uint32_t n_parts; /* at most KVC_PARTS_MAX */
    uint32_t parts[KVC_PARTS_MAX], epochs[KVC_PARTS_MAX];
};
kvc_status codec_put_lookup(const struct codec_lookup *lookup, uint8_t *body, size_t *len);
struct codec_lookup_reply {
    uint32_t count, reach, lease_ms, gpu, host, pending, remote;
    uint64_t lease, fetch;
    uint8_t token[KVC_TOKEN_BYTES]; /* zeros without a lease */
};
bool codec_get_lookup_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            struct codec_lookup_reply *reply);

kvc_status codec_put_remote(uint64_t fetch, uint32_t wait_ms, bool decline, uint8_t *body,
                            size_t *len);
bool codec_get_remote_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            bool *done, uint32_t *blocks);
kvc_status codec_put_extend(uint64_t lease, uint32_t ms, uint8_t *body, size_t *len);
bool codec_get_extend_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            uint32_t *ms);
kvc_status codec_put_release(uint64_t lease, uint8_t *body, size_t *len);
kvc_status codec_put_adopt(const uint8_t *token, uint32_t part, uint32_t epoch, uint32_t ms,
                           uint8_t *body, size_t *len);
bool codec_get_adopt_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct codec_lookup_reply *reply);

/* Copies: codec_copy.c. */

#define CODEC_HANDLE_BYTES 64u /* of memory of a GPU's driver */

struct codec_load {
    uint64_t lease;
    uint32_t part, epoch, first, count;
    uint32_t first_slice, n_slices; /* n_slices 0: all from the first */
    uint64_t region;                /* 0: the worker copies */
    const uint32_t *blocks;         /* count, for the daemon */
    const uint64_t *sums;           /* count, for the daemon, or NULL */
    uint32_t gate;                  /* what the daemon waits for */
    uint64_t gate_number;           /* 0: nothing */
    bool release;                   /* the lease ends with it */
};
kvc_status codec_put_load(const struct codec_load *load, uint8_t *body, size_t *len);
struct codec_load_reply {
    uint32_t word;
    uint64_t number;
    uint32_t count; /* of each array */
    const uint8_t *tiers, *checked;
    const uint64_t *offsets, *checksums;
    const uint32_t *generations;
    uint32_t n_valid; /* this and what follows: of a load by the daemon, whose count is 0 */
    const uint8_t *valid;
    uint32_t n_sums; /* n_valid when there were some in the request, else 0 */
    const uint64_t *sums;
    uint32_t status;
};
bool codec_get_load_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          struct codec_load_reply *reply);
struct codec_report {
    uint32_t part, generation, tier;
    uint64_t offset;
};
kvc_status codec_put_report(const struct codec_report *report, uint8_t *body, size_t *len);

struct codec_save_entry {
    uint32_t part, epoch;
    const uint8_t *keys;
    uint32_t n_keys;
    uint32_t first_slice, n_slices; /* n_slices 0: all from the first */
    uint64_t region;                /* 0: the worker copies */
    const uint32_t *blocks;         /* n_keys, for the daemon */
};
struct codec_save {
    uint64_t save; /* of which these are more slices; 0: a new one */
    bool checksums, notify, to_host, no_wait;
    uint32_t gate;        /* what the daemon waits for */
    uint64_t gate_number; /* 0: nothing */
};
kvc_status codec_put_save(const struct codec_save *save, const struct codec_save_entry *entries,
                          uint32_t n_entries, uint8_t *body, size_t *len);
struct codec_save_entry_reply {
    uint32_t n_states, n_assigned;
    const uint8_t *states;
    const uint8_t *tiers; /* this and offsets: of the assigned ones */
    const uint64_t *offsets;
};
struct codec_save_reply {
    uint64_t save;
    uint32_t n_entries;
    struct codec_save_entry_reply entries[KVC_ENTRIES_MAX];
    uint32_t n_chunks;
    const uint32_t *chunk_blocks, *chunk_words;
    const uint64_t *chunk_numbers;
};
bool codec_get_save_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          struct codec_save_reply *reply);

struct codec_abort {
    uint64_t save;
    uint32_t request; /* instead of save */
    const uint32_t *never;
    uint32_t n_never;
    bool never_all;
};
kvc_status codec_put_abort(const struct codec_abort *abort, uint8_t *body, size_t *len);
struct codec_outcome { /* of AbortReply and SaveDone; save is 0 in the former */
    uint64_t save;
    uint32_t status, published, dropped;
};
bool codec_get_abort_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct codec_outcome *outcome);
bool codec_get_save_done(struct codec_scratch *scratch, const struct wire_packet *packet,
                         struct codec_outcome *outcome);

/* Memory for the daemon's copies: codec_region.c. */

struct codec_region {
    uint32_t part, blocks, pieces, n_slices;
    const uint32_t *slice_pieces;
    const uint64_t *slice_offsets, *slice_strides;
};
kvc_status codec_put_region_begin(const struct codec_region *region, uint8_t *body, size_t *len);
struct codec_pieces {
    uint32_t n, n_handles; /* n <= KVC_WIRE_FDS_MAX */
    const uint8_t *kinds;  /* MemoryKind */
    const uint64_t *bytes, *offsets;
    const uint8_t *handles; /* CODEC_HANDLE_BYTES each */
};
kvc_status codec_put_region_part(uint64_t region, const struct codec_pieces *pieces, uint8_t *body,
                                 size_t *len);
/* Of REGION_END, REGION_DROP, SUSPEND and RESUME. */
kvc_status codec_put_region(uint64_t region, uint8_t *body, size_t *len);
bool codec_get_region_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            uint64_t *region);

/* Administration: codec_admin.c; see admin.h for the structs. */

struct admin_stats;
struct admin_list;
struct admin_debug;
struct admin_debug_reply;
bool codec_get_stats_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_stats *stats);
/* What a flush or a pin is about; one of part, namespace_digest and all. */
struct codec_scope {
    uint32_t part;
    const uint8_t *namespace_digest; /* or NULL */
    bool all;
    const uint8_t *keys;
    uint32_t n_keys;
};
kvc_status codec_put_flush(const struct codec_scope *scope, uint8_t *body, size_t *len);
bool codec_get_flush_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           uint64_t *blocks);
kvc_status codec_put_pin(const struct codec_scope *scope, uint32_t seconds, bool unpin,
                         uint8_t *body, size_t *len);
bool codec_get_pin_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                         uint32_t *count);
struct admin_quota;
kvc_status codec_put_quota(const uint8_t *digest, const struct admin_quota *quota, uint8_t *body,
                           size_t *len);
bool codec_get_quota_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           uint32_t *namespaces);
kvc_status codec_put_config(const char *name, const char *value, uint8_t *body, size_t *len);
struct admin_drain;
kvc_status codec_put_drain(uint32_t action, uint8_t *body, size_t *len);
bool codec_get_drain_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_drain *drain);
struct admin_verify;
kvc_status codec_put_verify(uint32_t action, uint64_t bytes_per_s, uint8_t *body, size_t *len);
bool codec_get_verify_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                            struct admin_verify *verify);
struct admin_list_query;
kvc_status codec_put_list(const struct admin_list_query *query, uint8_t *body, size_t *len);
bool codec_get_list_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          struct admin_list *list);
/* Events: codec_watch.c. */
struct admin_watch;
struct admin_watch_reply;
kvc_status codec_put_watch(const struct admin_watch *watch, uint8_t *body, size_t *len);
bool codec_get_watch_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_watch_reply *reply);
kvc_status codec_put_ping(const void *payload, size_t payload_len, uint8_t *body, size_t *len);
bool codec_get_ping_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                          const uint8_t **payload, size_t *len);
kvc_status codec_put_debug(const struct admin_debug *debug, uint8_t *body, size_t *len);
bool codec_get_debug_reply(struct codec_scratch *scratch, const struct wire_packet *packet,
                           struct admin_debug_reply *reply);

#endif
