/*
 * A store with everything around it that a test needs to play a worker: memory behind the slabs, a
 * mover that copies it when it is told to (or fails), completion pages that are written as a worker
 * writes them, and blocks whose bytes follow from their key.
 *
 * Keys are numbers. All helpers fail the test on what they do not expect, and check every invariant
 * of the store.
 */
#ifndef KVC_TESTS_LIB_STOREKIT_H
#define KVC_TESTS_LIB_STOREKIT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/figures.h"
#include "daemon/store/operate.h"

#define KIT_OWNERS  16u
#define KIT_KEYS    KVC_KEYS_MAX
#define KIT_MOVES   1024u
#define KIT_EVENTS  64u
#define KIT_CHUNKED 150u
#define KIT_COPIES  (KVC_SESSION_SAVES_MAX + 8u)

/* 256 KiB slots: eight in the smallest extent, so that tiers of a few slots can be had. */
#define KIT_SLOT_BYTES (256u << 10)
#define KIT_TOKENS     16u

struct kit_config {
    uint32_t gpu_slots, host_slots; /* multiples of the slots of 2 MiB */
    uint32_t slot_bytes;            /* 0: KIT_SLOT_BYTES */
    uint32_t clean_low, clean_high; /* per mille; 0: only when a save needs it */
    const struct store_share *shares;
    uint32_t n_shares;
};

struct kit_owner {
    struct owner *owner;
    uint8_t *page;
    bool freed;                                 /* owner_free was called */
    uint32_t withdrawn[KIT_MOVES], n_withdrawn; /* what it was asked to unmap */
    uint32_t n_granted;
    uint32_t tenant, part, epoch; /* of kit_worker_of */
};

/* An extent that gets new memory. */
struct kit_renew {
    enum tier_kind tier;
    uint32_t extent;
    move_done_cb *done;
    void *arg;
};

/* A call of a save, or a load, that the daemon copies and that has not ended. */
struct kit_copy {
    struct save *save;
    struct load *load;
    uint32_t first_chunk, n_chunks, n_told;
    bool told[KIT_KEYS]; /* chunks whose end was told */
};

struct kit_move {
    struct move move;
    move_done_cb *done;
    void *arg;
};

struct kit {
    struct store *store;
    uint32_t slot_bytes;
    uint32_t tenant;
    uint32_t part, epoch; /* registered by every worker, reader and scheduler */
    uint8_t *memory[TIER_COUNT];
    struct kit_owner owners[KIT_OWNERS];
    uint32_t n_owners;
    struct kit_copy copies[KIT_COPIES];
    struct kit_move moves[KIT_MOVES]; /* started and not done */
    uint32_t n_moves;
    uint64_t moves_started, moved_bytes;
    struct kit_renew renews[KIT_MOVES]; /* started and not done */
    uint32_t n_renews;
    kvc_status copy_status; /* what copy() returns */
    enum store_place place; /* of saves that are opened from now on */
    struct save_outcome done[KIT_EVENTS];
    uint32_t n_done, n_room, n_freed;
    uint32_t n_warnings; /* logged; kit_close wants none */
    const char *listen;  /* lines of the log that have it are counted */
    uint32_t n_heard;
    char heard[256];                              /* the latest */
    struct refusal why;                           /* of the latest refusal */
    uint8_t scope_keys[KIT_KEYS * KVC_KEY_BYTES]; /* of the latest kit_scope */
};

struct kit_entry {
    uint32_t part, epoch;
    uint32_t first, n; /* keys first .. first + n - 1 */
};

struct kit_save {
    struct kit_owner *owner;
    struct save *open;     /* until it is sealed */
    struct kit_copy *copy; /* NULL: the worker copies */
    uint32_t short_of;
    uint32_t n_keys, keys[KIT_KEYS];
    uint8_t states[KIT_KEYS];
    struct store_location locations[KIT_KEYS];
    struct store_chunk chunks[KIT_KEYS];
    struct store_save_result result;
    uint32_t order[KIT_KEYS]; /* keys that are assigned, in order */
    uint32_t n_assigned;
};

struct kit_load {
    struct kit_owner *owner;
    uint32_t first, count, word; /* keys first .. */
    uint64_t number;
    struct kit_copy *copy; /* NULL: the worker copies */
    struct store_location locations[KIT_KEYS];
};

/*
 * Who copies in saves and loads that are opened from now on: the worker, which proves it by a word,
 * or the daemon itself, as check_copies_by_daemon() says. All helpers do what it takes.
 */
bool kit_daemon_copies(void);
/* A copy of the daemon has ended: well, or not. */
void kit_tell(struct kit *kit, const struct kit_save *save, uint32_t chunk, kvc_status status);
/* The same for tests that make their own calls. */
struct kit_copy *kit_copy(struct kit *kit, struct save *save,
                          const struct store_save_result *result);
struct kit_copy *kit_take_copy(struct kit *kit);
void kit_tell_copy(struct kit *kit, struct kit_copy *copy, uint32_t chunk, const uint64_t *cells,
                   kvc_status status);

void kit_open(struct kit *kit, const struct kit_config *config);
/* Ends everything and checks that all slots came back and nothing alarming was logged. */
void kit_close(struct kit *kit);

/* A connected session that has registered the part and mapped all extents. */
struct kit_owner *kit_owner(struct kit *kit, uint32_t role);
void kit_register(struct kit *kit, struct kit_owner *owner, uint8_t namespace_, uint32_t slot_bytes,
                  struct store_part_info *info);
/* The same with another rule, and a family; of the kit's slots. */
void kit_register_rule(struct kit *kit, struct kit_owner *owner, uint8_t namespace_, uint32_t rule,
                       uint32_t window, uint8_t family, struct store_part_info *info);
void kit_map_all(struct kit *kit, struct kit_owner *owner);
struct kit_owner *kit_worker(struct kit *kit);

void kit_key(uint32_t n, uint8_t key[KVC_KEY_BYTES]);
void kit_keys(uint32_t first, uint32_t n, uint8_t *keys);

/* One save of keys first .. first + n - 1, sealed at once. */
void kit_save(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
              struct kit_save *save);
/* The same in steps, also for several entries; notify is set. */
kvc_status kit_save_open(struct kit *kit, struct kit_owner *owner, const struct kit_entry *entries,
                         uint32_t n_entries, struct kit_save *save);
void kit_save_seal(struct kit *kit, struct kit_save *save);
/* Of one entry: copies end and more is asked for as long as that helps; how many got a slot. */
uint32_t kit_save_slowly(struct kit *kit, struct kit_owner *owner, struct kit_entry entry,
                         struct kit_save *save);
struct kit_entry kit_entry(const struct kit *kit, uint32_t first, uint32_t n);
/* A save of KIT_CHUNKED keys, from 0 on, in three chunks: of 64, 64 and 22 blocks, 4 KiB each. */
struct kit_owner *kit_open_chunks(struct kit *kit, uint32_t gpu_slots, struct kit_save *save);
/* The blocks of its first n chunks. */
uint32_t kit_after_chunks(uint32_t n);
/* Aborts it; how many blocks it had published, or -1: save_done is to come. */
int kit_abort(struct kit *kit, struct kit_save *save, bool never_all);

/* How many keys of a save are in a state. */
uint32_t kit_count(const struct kit_save *save, enum store_key state);

/* What the daemon's copier does when all sessions have ended. */
void kit_end_copies(struct kit *kit);

/* What a block of this key holds. */
void kit_fill(const struct kit *kit, uint32_t key, uint8_t *slot);
uint64_t kit_checksum(const struct kit *kit, const uint8_t *slot);

/* The worker's copies of a chunk, and its word. */
void kit_write(struct kit *kit, const struct kit_save *save, uint32_t chunk);
void kit_word(struct kit *kit, const struct kit_owner *owner, uint32_t word, uint64_t number);
/* The word alone, or what stands for it when the daemon copies. */
void kit_end_copy(struct kit *kit, const struct kit_save *save, uint32_t chunk);
/* All copies and words, and the store has seen them. */
void kit_prove(struct kit *kit, const struct kit_save *save);
/* Saves keys and publishes them; all must be assigned. */
void kit_put(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n);
/* The same into a full store, whatever it takes. */
void kit_put_slowly(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n);

/* A lookup of keys first .. first + n - 1; returns the blocks that were granted. */
uint32_t kit_lookup(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
                    uint64_t *lease);
/* How many blocks a lookup would find, without a trace. */
uint32_t kit_probe(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n);
/* Whether a key is a hit, and where. */
bool kit_has(struct kit *kit, uint32_t key);
bool kit_in_tier(struct kit *kit, uint32_t key, enum tier_kind tier);
void kit_release(struct kit *kit, struct kit_owner *owner, uint64_t lease);
/* A store whose worker has published keys 0 .. blocks - 1. */
struct kit_owner *kit_open_with(struct kit *kit, uint32_t gpu_slots, uint32_t host_slots,
                                uint32_t blocks);
/* A lookup whose lease is given back at once. */
void kit_hit(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n);

/* Opens a load of a lease's blocks, which are keys first .. first + count - 1 of the lease. */
void kit_load(struct kit *kit, struct kit_owner *owner, uint64_t lease, uint32_t from,
              uint32_t first_key, uint32_t count, struct kit_load *load);
/* Any load, that may be refused; first is both the lease's block and the key. */
kvc_status kit_try_load(struct kit *kit, struct kit_owner *owner, const struct store_load *request,
                        struct kit_load *load);
/* Blocks of the part, of any lease; a refusal tells no location. */
kvc_status kit_try_load_part(struct kit *kit, struct kit_owner *owner, uint64_t lease,
                             uint32_t first, uint32_t count, struct kit_load *load);
/* Compares every byte and checksum. */
void kit_verify(struct kit *kit, const struct kit_load *load);
void kit_close_load(struct kit *kit, const struct kit_load *load);

/* Lets copies in flight end, oldest first; returns how many did. */
uint32_t kit_moves(struct kit *kit, uint32_t n, kvc_status status);

/* The same for extents that get new memory, which it zeroes. */
uint32_t kit_renews(struct kit *kit, kvc_status status);

/* Keys first .. first + n - 1 of the part: an owner's, or (NULL) everybody's. */
struct store_scope kit_scope(struct kit *kit, const struct kit_owner *owner, uint32_t first,
                             uint32_t n);
/* How many blocks it was. */
uint64_t kit_flush(struct kit *kit, struct store_scope scope);
uint32_t kit_pin(struct kit *kit, struct store_scope scope, uint32_t seconds);
uint32_t kit_unpin(struct kit *kit, struct store_scope scope);

/* A worker of another tenant; the kit's own tenant stays. */
struct kit_owner *kit_worker_of(struct kit *kit, const char *tenant);
/* It unmaps all that it was asked to, and says so. */
void kit_unmap(struct kit *kit, struct kit_owner *owner);

/* How many extents of the GPU tier are lost. */
uint32_t kit_lost_extents(struct kit *kit);

void kit_tick(struct kit *kit);
void kit_check(struct kit *kit);
struct store_stats kit_stats(struct kit *kit);

#endif
