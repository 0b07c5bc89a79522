/*
 * The store: what is where, and who may touch it. Plain C, one thread, no libuv, no protobuf, no
 * sockets; it may include tier/move.h, base/, kernels/ and proto/. This header is its door: the
 * api/ rooms call it, and the reference model in tests/lib does the same calls. figures.h is for
 * who only looks, walk.h for who goes through all that is stored, operate.h for flushes, pins and
 * quotas.
 *
 * Everything here runs on the loop thread and returns at once. A refusal changes nothing.
 * Completion is exactly once: what returns KVC_OK with something pending reports it later by an
 * event, never from inside the call.
 *
 * An *owner* is the store's side of a session: its completion page, what it has mapped, its saves,
 * leases and loads. It outlives its connection until every word it owes has arrived or it is
 * proved drained or gone.
 */
#ifndef KVC_STORE_STORE_H
#define KVC_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/slots.h"
#include "daemon/store/table.h"
#include "daemon/tier/move.h"
#include "proto/limits.h"
#include "proto/status.h"

struct store;
struct owner;

/* Numbers of kvcache.proto that the store acts on. */
enum store_role {
    STORE_ROLE_WORKER = 1,    /* saves and loads */
    STORE_ROLE_READER = 2,    /* does not save */
    STORE_ROLE_SCHEDULER = 3, /* looks up and leases; no page, maps nothing */
    STORE_ROLE_OPERATOR = 4,
};

enum store_rule { STORE_RULE_FULL = 0, STORE_RULE_WINDOW = 1, STORE_RULE_STATE = 2 };

enum store_key {
    /*
     * Nothing to copy: published, or assigned by an earlier entry of the same call, whose outcome
     * then covers it.
     */
    STORE_KEY_HIT = 0,
    STORE_KEY_ASSIGNED = 1,
    STORE_KEY_PENDING = 2, /* another save is filling it */
    STORE_KEY_SKIPPED = 3, /* no room */
};

/* Why a request was refused: the field in kvcache.proto's names, and a sentence. */
struct refusal {
    char field[48];
    char detail[112];
};

struct save_outcome {
    uint64_t save;
    kvc_status status; /* KVC_OK: everything assigned is published */
    uint32_t published, dropped;
};

/* What becomes of published blocks, for who follows it. */
enum store_event_kind {
    STORE_EVENT_STORED = 1, /* a tier has the block from now on */
    STORE_EVENT_REMOVED,    /* it has no longer, for lookups and new loads */
    STORE_EVENT_CLEARED,    /* every block of the part has left every tier; none is told alone */
    STORE_EVENT_FORGOTTEN,  /* the part's number may mean another one from now on */
};
struct store_event {
    enum store_event_kind kind;
    uint32_t part;
    enum tier_kind tier; /* this and key: of the first two */
    const uint8_t *key;
    const uint8_t *parent; /* STORED by a save: the key before it, where it came with it, or NULL */
};

/*
 * Called on the loop thread, from store_tick, store_nudge, store_look and moves' completions only,
 * so never for an object from inside the call that works on that object. What another call gives
 * rise to waits for store_tick, and store_next_wake says that it is due. Events may call the store.
 * A connection that has ended gets no save_done.
 */
struct store_events {
    void *ctx;
    /* A save with notify set, or one whose abort returned pending, has ended. */
    void (*save_done)(void *ctx, struct owner *owner, const struct save_outcome *outcome);
    /* Slots became free or clean while somebody is short of room. */
    void (*room)(void *ctx);
    /* The owner has ended and owes nothing: it is freed when this returns. */
    void (*owner_free)(void *ctx, struct owner *owner);
    /*
     * A worker or reader is to unmap these extents (tier << 31 | index), n of them, after
     * synchronising, and to say so: store_owner_unmapped. granted: there may be more to map.
     */
    void (*extents)(void *ctx, struct owner *owner, const uint32_t *withdrawn, uint32_t n,
                    bool granted);
    /*
     * A key of a part is found by lookups from now on, or no longer. NULL is fine. Unlike the
     * others it comes from inside calls, and must not call the store.
     */
    void (*block)(void *ctx, uint32_t part, const uint8_t *key, bool here);
    /* The same of each tier. The first block of a run comes first. */
    void (*event)(void *ctx, const struct store_event *event);
    /*
     * Nobody here uses this mapping and this descriptor, of a completion page, any more: to unmap
     * and close them is the receiver's. NULL: the store does. Must not call the store.
     */
    void (*page_free)(void *ctx, void *memory, size_t bytes, int fd);
};

/* What may change while the store works. */
struct store_tuning {
    uint32_t lease_ms; /* of a lease that asks for no time */
    uint32_t save_proof_ms;
    uint32_t promotion_ms;
    uint32_t clean_low, clean_high; /* per mille of a tier's slots that are kept free or clean */
    uint64_t moving_bytes_max;      /* demotions and promotions in flight */
};

/* Of a namespace: what it may have before others come first. 0: nothing is said. */
struct store_quota {
    uint64_t bytes[TIER_COUNT];
    uint64_t leases; /* blocks that its leases hold at once, each counted once */
};
/* What the configuration says of a namespace, of every tenant, or of all namespaces. */
struct store_quota_rule {
    bool all;
    uint8_t digest[KVC_NAMESPACE_BYTES]; /* unless all */
    struct store_quota quota;
};

/* What a tenant may own of each tier, at most: per mille of it, or bytes if that is 0. */
struct store_share {
    char tenant[KVC_NAME_MAX + 1]; /* "*": all that none before in the list is for */
    uint32_t permille[TIER_COUNT];
    uint64_t bytes[TIER_COUNT];
};

struct store_config {
    uint64_t budget[TIER_COUNT]; /* bytes; both zero is refused */
    uint64_t boot_epoch;
    uint32_t tenant_share;            /* extents a tenant may own per tier, UINT32_MAX: all */
    const struct store_share *shares; /* kept by the caller as long as the store */
    uint32_t n_shares;
    uint32_t lease_ms_max;
    struct store_tuning tuning;
    const struct mover_ops *mover_ops;
    void *mover;
    const struct renew_ops *renew_ops; /* NULL: extents stay with their tenants */
    void *renewer;
    struct store_events events;
};

kvc_status store_create(const struct store_config *config, struct store **store);
/* Nothing may be in flight in the mover. Owners, leases and saves end without events. */
void store_destroy(struct store *store);
void store_tune(struct store *store, const struct store_tuning *tuning);
const struct table *store_table(const struct store *store);
/* More than the table says of an extent. */
void store_look_at_extent(const struct store *store, enum tier_kind tier, uint32_t extent,
                          struct slots_extent *look);
/* The memory of an extent has failed: it is emptied, unmapped by all, and never used again. */
void store_lose_extent(struct store *store, enum tier_kind tier, uint32_t extent);
/*
 * The same for adjacent ones that nothing can be read from any more: no lookup finds what is only
 * there, loads of it are refused, and saves that were filling it fail.
 */
void store_fail_extents(struct store *store, enum tier_kind tier, uint32_t first, uint32_t n);

/* Owners. */

struct owner_identity {
    uint32_t tenant; /* index in the table, from store_tenant */
    uint32_t role;   /* enum store_role */
    int32_t pid;
    uint64_t start_time;
    uint32_t n_devices;
    uint8_t devices[8][KVC_UUID_BYTES];
};

kvc_status store_tenant(struct store *store, const char *name, uint32_t uid, uint32_t *tenant);

/*
 * Makes session id, secret and, for workers and readers, the completion page. user is the caller's.
 * KVC_E_LIMIT for more devices than the table holds and more sessions than a tenant may have,
 * KVC_E_NO_ROOM when all sessions are in use.
 */
kvc_status store_owner_open(struct store *store, const struct owner_identity *identity, void *user,
                            struct owner **owner);
uint64_t owner_id(const struct owner *owner);
const uint8_t *owner_secret(const struct owner *owner); /* KVC_SECRET_BYTES */
/*
 * Extents of the gpu tier that are near to it: what it saves goes there if there is room. Called
 * once, before it maps any. KVC_E_NO_MEMORY changes nothing.
 */
kvc_status store_owner_near(struct owner *owner, uint32_t first, uint32_t n);
/* What gate i of its completion page has, which it must have; acquires. */
uint64_t store_owner_gate(const struct owner *owner, uint32_t gate);
int owner_page_fd(const struct owner *owner); /* -1: none; stays the store's */
void *owner_user(const struct owner *owner);
uint32_t owner_tenant(const struct owner *owner);

/*
 * The connection has ended: looks at the page once more, aborts the unpublished rest, ends leases
 * without open loads. Words that arrive later free slots and publish nothing. Leads to owner_free
 * once nothing is owed, perhaps at once (after this call returned, from store_tick).
 */
void store_owner_end(struct store *store, struct owner *owner);
/* Proof that the process can no longer write: it is gone. After store_owner_end only. */
void store_owner_gone(struct store *store, struct owner *owner);
/*
 * Proof that everything enqueued has finished. session 0: the caller's own; its saves that are not
 * proved are aborted and its open loads closed. Another: an ended session of the same tenant, named
 * with its secret. KVC_E_UNKNOWN, KVC_E_DENIED, KVC_E_BUSY (that session is still connected; or the
 * daemon still copies for it, and what its own words owed is settled all the same).
 */
kvc_status store_drained(struct store *store, struct owner *owner, uint64_t session,
                         const uint8_t *secret, uint32_t secret_len, struct refusal *why);

/* Parts. */

struct store_part {
    const uint8_t *namespace_digest;
    const uint32_t *slice_bytes;
    uint32_t n_slices;
    const uint8_t *dtypes; /* n_slices or NULL */
    uint32_t block_tokens;
    uint32_t rule, window; /* enum store_rule */
    const uint8_t *family; /* 16 bytes or NULL */
    const char *name;      /* or NULL */
};
struct store_part_info {
    uint32_t part; /* 1 and up; 0 is never a part */
    uint32_t epoch;
    uint64_t slot_bytes;
    uint32_t extents; /* of the tenant, both tiers */
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
};
/* Idempotent. Grants extents up to the tenant's share. */
kvc_status store_register(struct store *store, struct owner *owner, const struct store_part *part,
                          struct store_part_info *info, struct refusal *why);
kvc_status store_unregister(struct store *store, struct owner *owner, uint32_t part,
                            struct refusal *why);

/* The layout of a part that the owner has registered, or NULL. */
const struct table_layout *store_owner_layout(const struct store *store, const struct owner *owner,
                                              uint32_t part);

/* Extents (tier << 31 | index) that the owner may map, after `cursor`; returns how many, <= max. */
uint32_t store_owner_extents(const struct store *store, const struct owner *owner, uint32_t cursor,
                             uint32_t *extents, uint32_t max, uint32_t *next_cursor, bool *more);
/* Whether there is such an extent for it; whether it is one of those. */
bool store_owner_has_extent(const struct owner *owner, uint32_t extent);
bool store_owner_may_map(const struct owner *owner, uint32_t extent);
/* A descriptor of one of those goes to it, which it may map from now on. */
void store_owner_offer(struct store *store, struct owner *owner, uint32_t extent);
/* Whether it may have mapped one: it has been offered, and it has not said that it is unmapped. */
bool store_owner_holds(const struct owner *owner, uint32_t extent);
/* It has mapped one. KVC_E_DENIED for one that is not its tenant's. */
kvc_status store_owner_mapped(struct store *store, struct owner *owner, uint32_t extent);
/* It has unmapped one, with nothing in flight in it. KVC_E_INVALID: there is no such extent. */
kvc_status store_owner_unmapped(struct store *store, struct owner *owner, uint32_t extent);
#define STORE_WITHDRAWN_MAX 64u /* extents of one event */

/* Lookups, leases. */

struct store_lookup_part {
    uint32_t part, epoch;
    const uint8_t *keys;
    uint32_t n_keys;
};
struct store_lookup {
    uint64_t request;
    uint64_t lease; /* append to it */
    uint32_t offset;
    uint32_t lease_ms; /* 0: default */
    bool probe;
    bool more;  /* keys will be appended: holds what every full part has, also behind the prefix */
    bool quiet; /* the daemon's own: counts as no hit and no miss */
    const struct store_lookup_part *parts; /* the same number of keys in each */
    uint32_t n_parts;
};
struct store_lookup_result {
    uint32_t count;
    uint32_t reach; /* >= count: where keys can be appended */
    uint64_t lease;
    uint8_t token[KVC_TOKEN_BYTES];
    uint32_t lease_ms;
    uint32_t in_tier[TIER_COUNT]; /* of the first part's blocks that this call granted */
    uint32_t pending;             /* keys behind the prefix that saves are filling */
};
/*
 * Where a namespace has a quota of leases, blocks that no lease holds are granted up to it: the
 * prefix is shorter then, or empty, and that is no refusal.
 *
 * A repeated lookup under the same request (not 0) evaluates its keys anew and keeps lease and
 * token. Appending at an offset below the lease's count replaces what was behind it. An empty
 * prefix is KVC_OK with lease 0, and ends the request's earlier lease, if it had one.
 */
kvc_status store_lookup(struct store *store, struct owner *owner, const struct store_lookup *req,
                        struct store_lookup_result *result, struct refusal *why);
/* Which keys of a part are here, or being filled: a bit a key, (n + 63) / 64 words of each. */
void store_find(const struct store *store, uint32_t part, const uint8_t *keys, uint32_t n,
                uint64_t *ready, uint64_t *coming);
/* Which of them are in a tier where loads take them from: the same. */
void store_find_in(const struct store *store, enum tier_kind tier, uint32_t part,
                   const uint8_t *keys, uint32_t n, uint64_t *in);
/* How many blocks in front of a boundary the rule of a part needs; UINT32_MAX: all. */
uint32_t store_needed(const struct store *store, uint32_t part);
kvc_status store_extend(struct store *store, struct owner *owner, uint64_t lease, uint32_t ms,
                        uint32_t *granted_ms, struct refusal *why);
/* Idempotent: an unknown or ended lease is KVC_OK, another session's is KVC_E_DENIED. */
kvc_status store_release(struct store *store, struct owner *owner, uint64_t lease,
                         struct refusal *why);
kvc_status store_adopt(struct store *store, struct owner *owner, const uint8_t *token,
                       uint32_t token_len, uint32_t part, uint32_t epoch, uint32_t ms,
                       struct store_lookup_result *result, struct refusal *why);

/* Loads. */

struct store_location {
    uint8_t tier;
    bool checked;
    uint32_t generation;
    uint64_t offset;
    uint64_t checksum;
};
struct store_load {
    uint64_t lease;
    uint32_t part, epoch;
    uint32_t first, count;
    uint32_t first_slice, n_slices;
    bool release; /* the lease ends when the load is open, which keeps its blocks */
};
/*
 * Opens a load: locations has room for count. The word's arrival closes it. Refused before any
 * location is told: KVC_E_EXPIRED (the lease has ended), KVC_E_DENIED (another session's),
 * KVC_E_INVALID (blocks outside it), KVC_E_STALE (epoch), KVC_E_CHECKSUM (a leased block was found
 * damaged and dropped), KVC_E_DEVICE (its memory has failed), KVC_E_BUSY with field "lease": a
 * block lies only in extents that the owner has not mapped; with field "word": no completion word
 * is free.
 */
kvc_status store_load(struct store *store, struct owner *owner, const struct store_load *req,
                      struct store_location *locations, uint32_t *word, uint64_t *number,
                      struct refusal *why);
struct load;

/*
 * A load whose bytes the daemon copies itself: from wherever they are, without a word, and *load,
 * which store_load_copied closes, once, when the last copy has ended. copied: all blocks were read.
 */
kvc_status store_load_by_daemon(struct store *store, struct owner *owner,
                                const struct store_load *req, struct store_location *locations,
                                struct load **load, struct refusal *why);
void store_load_copied(struct store *store, struct load *load, bool copied);

/* A worker read bytes that did not match: the block goes, if generation and key still do. */
void store_report(struct store *store, struct owner *owner, uint32_t part, const uint8_t *key,
                  enum tier_kind tier, uint32_t generation);

/* Saves. */

struct store_save_entry {
    uint32_t part, epoch;
    const uint8_t *keys;
    uint32_t n_keys;
    /* n_slices 0: all from the first. In saves by slices an entry may have none in a call: from the
     * layout's end on. */
    uint32_t first_slice, n_slices;
};
/* Where new blocks go. */
enum store_place {
    STORE_PLACE_GPU_FIRST = 0,
    STORE_PLACE_HOST_ONLY,   /* nobody waits for room there */
    STORE_PLACE_HOST_FIRST,  /* this and the next only by_daemon */
    STORE_PLACE_GPU_OR_HOST, /* the gpu tier as for what comes up: nobody waits for room there */
};
struct store_save {
    const struct store_save_entry *entries;
    uint32_t n_entries;
    bool checksums, notify;
    uint64_t save;    /* more slices of this one; 0: a new save */
    uint32_t request; /* the packet's sequence number, for aborts that name it */
    bool by_daemon;   /* the daemon copies: into any slot, and store_chunk_copied is the proof */
    enum store_place place;
    /* Of STORE_PLACE_GPU_OR_HOST, a bit a key over all entries: only these go to the gpu tier.
     * NULL: all may. Stays until the save is sealed. */
    const uint64_t *to_gpu;
    /*
     * What is assigned at once need not be found by lookups and other saves before the caller calls
     * store_save_list, which it does before it calls anything else of the store but
     * store_save_seal: the worker can be told first.
     */
    bool list_later;
};
struct store_chunk {
    uint32_t blocks;
    uint32_t word; /* this and number: 0 when the daemon copies */
    uint64_t number;
};
/* The caller's arrays: one element a key over all entries, in order; chunks: as many as keys. */
struct store_save_result {
    uint64_t save;   /* 0 when nothing is to be copied; then no save_done follows */
    uint8_t *states; /* enum store_key */
    struct store_location *locations; /* of assigned keys only, at the key's place */
    struct store_chunk *chunks;
    uint32_t n_chunks;
    uint32_t
        first_chunk; /* where they are counted from: store_save_slices' behind earlier calls' */
};

struct save; /* a save that is being admitted, or copied by the daemon */

/*
 * Checks everything, then takes hits, marks pending keys and assigns slots to what is missing as
 * far as there is room now. *short_of is the number of keys that lack room while room is being
 * made; if it is not 0 the caller may call store_save_more again when events.room says so, for at
 * most KVC_SAVE_ROOM_MS; then it must call store_save_seal, which skips the rest, cuts chunks,
 * gives words and fills the result. Between the calls the owner's end is safe: the save is dropped
 * with it and *save is invalid.
 */
kvc_status store_save_open(struct store *store, struct owner *owner, const struct store_save *req,
                           struct save **save, uint32_t *short_of, struct refusal *why);
uint32_t store_save_more(struct store *store, struct save *save);
void store_save_seal(struct store *store, struct save *save, struct store_save_result *result);
/* The rest of a save with list_later; without memory for it the save fails. */
void store_save_list(struct store *store);

/*
 * More slices of a save whose first call named some of them: the same entries, with slices that no
 * call has named. The same keys are assigned, to the same slots, in the same chunks, with words of
 * their own, or copied by the daemon like those of the first call. KVC_E_UNKNOWN: it has ended.
 * KVC_E_DUPLICATE: slices twice. KVC_E_BUSY, field "word": no words are free. A call gives the save
 * its whole time anew.
 */
kvc_status store_save_slices(struct store *store, struct owner *owner, const struct store_save *req,
                             struct save **save, struct store_save_result *result,
                             struct refusal *why);

/*
 * A chunk of a save by the daemon, sealed with something to copy: called once for each, when its
 * copy has ended or will not begin. KVC_OK: the bytes are there, and cells[] has a checksum a block
 * (NULL: none). Anything else ends the save, if it has not ended. The save stays until the last of
 * the chunks that were cut was told, whatever becomes of it or its owner; they are counted through
 * all calls of a save by slices.
 */
void store_chunk_copied(struct store *store, struct save *save, uint32_t chunk,
                        const uint64_t *cells, kvc_status status);
/* Whether a chunk that has not begun is still worth copying. */
bool store_save_goes_on(const struct save *save);

/*
 * Ends a save: its unpublished keys go. Chunks that the daemon copies are proved by nobody else, so
 * never[] and drained or gone owners mean nothing for them. never[] are chunks whose copies were
 * never enqueued (never_all: all of them). *pending: words are still owed, save_done follows and
 * *outcome names the save as it is so far; else *outcome is how it ended, and no save_done follows.
 * By save id, or by the sequence number of its request when id is 0. KVC_E_UNKNOWN when it ended.
 */
kvc_status store_abort(struct store *store, struct owner *owner, uint64_t save, uint32_t request,
                       const uint32_t *never, uint32_t n_never, bool never_all, bool *pending,
                       struct save_outcome *outcome, struct refusal *why);

/* Time and proof. */

/* Looks at the completion page of one owner (a nudge). */
void store_nudge(struct store *store, struct owner *owner);
/*
 * Looks at the words of the owner and at the oldest of all others: what is complete counts in the
 * owner's next call. Not from inside an event.
 */
void store_look(struct store *store, struct owner *owner);
/* Looks at every outstanding word that is due, ends leases and saves whose time is over. */
void store_tick(struct store *store);
/* Microseconds (clock) until store_tick has something to do; UINT64_MAX: nothing. */
uint64_t store_next_wake(const struct store *store);

/* Checks every invariant; a text, or NULL. For tests. */
const char *store_check(const struct store *store);

#endif
