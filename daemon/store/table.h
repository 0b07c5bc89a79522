/*
 * The slot table: the only truth about what the slabs hold. A memfd that never leaves the daemon
 * and may outlive it; index, eviction order and leases are derived from it. PROTOCOL: none of this
 * is seen by a worker, but a later daemon must be able to read it, so a change of any struct below
 * is a change of TABLE_VERSION. All integers are the host's own (the table never leaves a host).
 *
 * Sections come in this order: header, tenants, namespaces, layouts, parts, sessions, extents,
 * slots. Each is an array of fixed records; room for slots is reserved for the smallest slot size
 * in every extent and stays sparse.
 *
 * Order of stores: a slot's state is one aligned 32-bit store. All other fields are written while
 * the state says FREE, FILLING or MOVING, and published by the store of the state (release), so a
 * record read after a crash at any instruction is right or visibly unfinished. A later daemon finds
 * the stores of one that was killed in program order, which the compiler must keep; nothing here
 * has to survive a loss of power.
 *
 * `check` words: the table may be read by a daemon that did not write it, so what would give the
 * wrong bytes if it changed is covered by a hash (a layout's is its fingerprint).
 */
#ifndef KVC_STORE_TABLE_H
#define KVC_STORE_TABLE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/tier/move.h"
#include "proto/limits.h"
#include "proto/status.h"

#define TABLE_MAGIC   "KVCTABLE"
#define TABLE_VERSION 1u

#define TABLE_TENANTS    64u
#define TABLE_NAMESPACES 4096u
#define TABLE_LAYOUTS    1024u
#define TABLE_PARTS      8192u
#define TABLE_SESSIONS   4096u

#define TABLE_NONE UINT32_MAX /* no such record */

enum table_section {
    SECTION_TENANTS,
    SECTION_NAMESPACES,
    SECTION_LAYOUTS,
    SECTION_PARTS,
    SECTION_SESSIONS,
    SECTION_EXTENTS,
    SECTION_SLOTS,
    SECTION_COUNT
};

struct table_tier {
    uint64_t bytes; /* whole extents */
    uint64_t extent_bytes;
    uint32_t extents;
    uint32_t first_extent;     /* in the section of extents */
    uint32_t slots_per_extent; /* records reserved: extent_bytes / KVC_SLOT_BYTES_MIN */
    uint32_t reserved;
};

/* next_*: what the next call of table_next_* gives; they start at 1, so 0 is never a name. */
struct table_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint64_t boot_epoch;   /* of the daemon that writes; each start takes another one */
    uint64_t next_number;  /* completion numbers, never used twice, across restarts too */
    uint64_t next_session; /* session ids, likewise */
    uint64_t next_id;      /* leases and saves, likewise */
    uint32_t clean;        /* 1: the writer stopped in order */
    uint32_t reserved0;
    struct table_tier tiers[TIER_COUNT];
    struct {
        uint64_t offset;
        uint32_t record_bytes;
        uint32_t reserved;
        uint64_t records;
    } sections[SECTION_COUNT];
};

/*
 * Records of sections with a `used` word, which is set last and cleared first. Tenants, namespaces,
 * layouts and parts fill their sections from the front: behind the first that was never used there
 * are no others. Sessions are used or not (0, 1), in any order.
 */
enum table_row {
    ROW_NEVER = 0,
    ROW_USED = 1,
    ROW_GIVEN_BACK = 2, /* its other fields mean nothing, and nothing names it */
};

struct table_tenant {
    uint32_t used;
    uint32_t uid; /* UINT32_MAX for a named tenant */
    char name[KVC_NAME_MAX + 1];
    uint64_t check; /* of uid and name */
    uint64_t reserved[6];
};

struct table_namespace {
    uint32_t used;
    uint32_t tenant;
    uint32_t epoch;        /* starts at 1, a flush adds 1 */
    uint32_t quota_leases; /* blocks; set at run time, 0: not */
    uint8_t digest[KVC_NAMESPACE_BYTES];
    char name[KVC_NAME_MAX + 1];
    uint64_t check;                   /* of tenant, digest and name */
    uint32_t quota_units[TIER_COUNT]; /* of KVC_SLOT_BYTES_MIN; likewise */
};

struct table_layout {
    uint32_t used;
    uint32_t block_tokens;
    uint32_t n_slices;
    uint32_t has_dtypes;
    uint8_t fingerprint[KVC_FINGERPRINT_BYTES];
    uint64_t block_bytes;
    uint64_t slot_bytes;
    uint64_t reserved[2];
    uint32_t slice_bytes[KVC_SLICES_MAX];
    uint8_t dtypes[KVC_SLICES_MAX];
};

/* Record 0 is never used, so that a part's index is its number in the protocol. */
struct table_part {
    uint32_t used;
    uint32_t tenant;
    uint32_t namespace_;
    uint32_t layout;
    uint32_t rule; /* Rule of kvcache.proto */
    uint32_t window;
    uint8_t family[16];
    uint64_t check; /* of all the above */
    uint64_t reserved[2];
};

struct table_session {
    uint32_t used;
    uint32_t tenant;
    uint64_t id;
    uint64_t secret_digest[2]; /* XXH3-128 of the secret */
    uint64_t start_time;       /* of the process, clock ticks since boot, /proc/PID/stat field 22 */
    int32_t pid;               /* as the daemon sees it */
    uint32_t role;
    uint32_t ended; /* its connection is gone; the page is kept until all words arrived */
    uint32_t n_devices;
    uint8_t devices[8][KVC_UUID_BYTES];
    uint64_t check; /* of all the above but `ended` */
    uint64_t reserved[5];
};

enum extent_state {
    EXTENT_FREE = 0,  /* nobody's: no session maps it, and it holds zeros */
    EXTENT_OWNED = 1, /* a tenant's; slot_bytes 0 until its first slot */
    EXTENT_TAIL = 2,  /* continues the block of a lower extent */
    EXTENT_LOST = 3,  /* its memory failed: never used again */
};

/*
 * Stores of a change are ordered so that it counts only with the last one: an extent gets its
 * tenant before it is OWNED; slot_bytes changes only while every slot of the extent is FREE; the
 * tails of a large block are TAIL before the head has its span and then its slot_bytes, and lose
 * that in the opposite order. A tail that its head does not cover is an unfinished change.
 *
 * An extent leaves its tenant by one store of its state, FREE or LOST, when it is empty and no
 * session maps it. Which extents are on their way to that, and who maps what, is not in the table:
 * a later daemon finds them with their tenant, and has to take it that every session of the tenant
 * that it finds, ended or not, may map all of them.
 */
struct table_extent {
    uint32_t state;
    uint32_t tenant;
    uint64_t slot_bytes;
    uint32_t span; /* extents of one block, at its head; 1 for ordinary ones */
    uint32_t head; /* for EXTENT_TAIL: the head's index in its tier */
    uint64_t reserved;
};

/*
 * A READY slot whose epoch is before its namespace's was flushed: it is nobody's block any more.
 *
 * FREE -> FILLING (a save) -> READY -> FREE
 * FREE -> MOVING (a copy by the daemon) -> READY or FREE
 * FILLING, READY -> QUARANTINE (somebody may still write or read) -> FREE
 * READY -> DOOMED (no longer a block, open loads still read it) -> FREE, QUARANTINE
 * FILLING -> FREE (nobody was ever told of it, or the proof came with the failure)
 */
enum slot_state {
    SLOT_FREE = 0,
    SLOT_FILLING = 1,
    SLOT_READY = 2,
    SLOT_QUARANTINE = 3,
    SLOT_MOVING = 4,
    SLOT_DOOMED = 5,
};

#define SLOT_CHECKED 1u /* flags: checksum is valid */

struct table_slot {
    uint8_t key[KVC_KEY_BYTES];
    uint64_t checksum;
    uint64_t last_use; /* clock_us of the last touch; no two touches have the same */
    uint64_t session;  /* who fills it, or for whom it is in quarantine */
    uint16_t part;     /* TABLE_PARTS fits */
    uint16_t check;    /* READY, DOOMED: of key, checksum, part, epoch, generation and flags */
    uint32_t epoch;    /* of its namespace when it was filled */
    uint32_t generation;
    uint32_t state;
    uint16_t loads; /* open loads */
    uint8_t flags;
    uint8_t reserved0;
    union {
        uint32_t hit_ms;    /* host tier: when it was last hit while only there, 0: it was not */
        uint32_t next_free; /* FREE: of slots.c while it runs; means nothing to a later daemon */
    };
};

struct table; /* a mapped table */

/* Bytes a tier's budget is rounded down to, and its extents. A budget below one: no extents. */
void table_tier_geometry(uint64_t budget, struct table_tier *tier);

/*
 * Makes a new table for two tiers (sealed memfd, mapped sparse). boot_epoch is the caller's.
 * KVC_E_SYSTEM, KVC_E_NO_FDS, KVC_E_NO_MEMORY, or KVC_E_LIMIT for budgets of more slots than 32
 * bits can number.
 */
kvc_status table_create(const uint64_t budget[TIER_COUNT], uint64_t boot_epoch,
                        struct table **table);

/*
 * Maps an existing table (fd stays the caller's) after checking every offset, size, index and
 * state in it against the sizes it should have. KVC_E_INVALID and a reason when it cannot be
 * trusted: the caller then starts cold, and the table is as it was. Else unfinished changes of
 * extents are undone and boot_epoch becomes the larger of the caller's and the old one + 1; slots,
 * sessions and `clean` are left for the caller to judge.
 */
kvc_status table_attach(int fd, const uint64_t budget[TIER_COUNT], uint64_t boot_epoch,
                        struct table **table, const char **why);
void table_destroy(struct table *table); /* unmaps and closes; NULL is fine */

int table_fd(const struct table *table);
struct table_header *table_header(const struct table *table);
struct table_tenant *table_tenant(const struct table *table, uint32_t index);
struct table_namespace *table_namespace(const struct table *table, uint32_t index);
struct table_layout *table_layout(const struct table *table, uint32_t index);
struct table_part *table_part(const struct table *table, uint32_t index);
struct table_session *table_session(const struct table *table, uint32_t index);
/* Extents and slots are per tier. A slot's number is extent * slots_per_extent + its place. */
struct table_extent *table_extent(const struct table *table, enum tier_kind tier, uint32_t index);
struct table_slot *table_slot(const struct table *table, enum tier_kind tier, uint32_t number);

/* What `check` of a READY slot must be. */
uint16_t table_slot_check(const struct table_slot *slot);

/* Bit `to` of byte `from`: a slot may go from one state to the other. */
extern const uint8_t table_slot_moves[SLOT_DOOMED + 1];

/*
 * The only writer of a slot's state; asserts the legal moves above. READY writes `check`: what that
 * covers does not change until the slot is FREE again.
 */
static inline void table_slot_set_state(struct table_slot *slot, enum slot_state state)
{
    assert(slot->state <= SLOT_DOOMED && state <= SLOT_DOOMED);
    assert(table_slot_moves[slot->state] >> state & 1);
    if (state == SLOT_READY)
        slot->check = table_slot_check(slot);
    __atomic_store_n(&slot->state, (uint32_t)state, __ATOMIC_RELEASE);
    /* What the caller writes next must not come before: after a crash it would look published. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/*
 * Find or add; *index set only on success, KVC_E_NO_ROOM when the section is full, KVC_E_INVALID
 * for a name that does not fit (namespaces may have none: NULL). A part is the same if all but its
 * family is; it keeps the first one. Sessions are always added, never found. `used` and `check` of
 * the records passed in are ignored.
 */
kvc_status table_add_tenant(struct table *table, const char *name, uint32_t uid, uint32_t *index);
kvc_status table_add_namespace(struct table *table, uint32_t tenant,
                               const uint8_t digest[KVC_NAMESPACE_BYTES], const char *name,
                               uint32_t *index);
kvc_status table_add_layout(struct table *table, uint32_t block_tokens, const uint32_t *slice_bytes,
                            uint32_t n_slices, const uint8_t *dtypes, uint32_t *index);
kvc_status table_add_part(struct table *table, const struct table_part *part, uint32_t *index);
/*
 * Gives a record back. Nothing may name it: no slot a part, no part a namespace or layout, no
 * namespace, extent or session a tenant.
 */
void table_remove_tenant(struct table *table, uint32_t index);
void table_remove_namespace(struct table *table, uint32_t index);
void table_remove_layout(struct table *table, uint32_t index);
void table_remove_part(struct table *table, uint32_t index);
/* What table_add_namespace, _layout and _part would find; TABLE_NONE: they would add one. */
uint32_t table_find_namespace(const struct table *table, uint32_t tenant,
                              const uint8_t digest[KVC_NAMESPACE_BYTES]);
uint32_t table_find_layout(const struct table *table,
                           const uint8_t fingerprint[KVC_FINGERPRINT_BYTES]);
uint32_t table_find_part(const struct table *table, const struct table_part *part);
/* Whether nothing can be added to a section (of these, and tenants). */
bool table_is_full(const struct table *table, enum table_section section);
kvc_status table_add_session(struct table *table, const struct table_session *session,
                             uint32_t *index);
void table_remove_session(struct table *table, uint32_t index);

/* Numbers that are never used twice. */
uint64_t table_next_number(struct table *table);
uint64_t table_next_session(struct table *table);
uint64_t table_next_id(struct table *table);

#endif
