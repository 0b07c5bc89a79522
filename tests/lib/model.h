/*
 * A reference model of the store: slow and plain, arrays and linear scans. It makes the calls of
 * daemon/store/store.h at random, plays the workers (which write, read, die and write after their
 * death) and the mover, keeps what must follow from all that, and after each step compares it with
 * the slot table, the figures and every readable byte.
 *
 * Which block is evicted is the store's choice, so the model reads it from the slot table and
 * judges whether it was allowed. Nothing else is taken from the store.
 *
 *     struct model *m = model_create(&model_shapes[0], seed);
 *     model_run(m, 2000);
 *     model_destroy(m); // brings everything to its end first, and checks that all came back
 *
 * What is wrong fails the test with the seed, the step and the latest calls.
 */
#ifndef KVC_TESTS_LIB_MODEL_H
#define KVC_TESTS_LIB_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/figures.h"
#include "daemon/store/operate.h"
#include "kernels/pack.h"

#define MODEL_TENANTS 2u
/*
 * A and B, and E with the rule of a state, of one namespace; C, and D with that of a window, of
 * another. A, C and D have one layout, B and E the other.
 */
#define MODEL_TENANT_PARTS 5u
#define MODEL_PARTS        (MODEL_TENANTS * MODEL_TENANT_PARTS)
#define MODEL_NAMESPACES   2u  /* of each tenant */
#define MODEL_TOKENS       16u /* of a block */
#define MODEL_WINDOW       3u  /* blocks that the window asks for */
#define MODEL_SLICES       4u
#define MODEL_OWNERS       7u
#define MODEL_CHAINS       12u
#define MODEL_CHAIN_KEYS   160u
#define MODEL_KEYS         (MODEL_CHAINS * MODEL_CHAIN_KEYS)
#define MODEL_SAVES        64u
#define MODEL_SAVE_KEYS    480u /* three runs of the longest shape */
#define MODEL_LEASES       48u
#define MODEL_LEASE_PARTS  3u
#define MODEL_LOADS        48u
#define MODEL_MOVES        64u
#define MODEL_EVENTS       128u
#define MODEL_RENEWS       16u
#define MODEL_TRACE        60u
#define MODEL_EXTENTS      16u

struct model_shape {
    const char *name;
    uint64_t budget[TIER_COUNT];
    uint32_t tenants;
    uint32_t share;                    /* extents a tenant may own in a tier */
    bool moves;                        /* extents go from one tenant to another */
    uint32_t slices[2][MODEL_SLICES];  /* bytes, of the parts A and B; 0: no more */
    uint32_t keys;                     /* longest run of a request */
    bool apart;                        /* no two chains share keys */
    uint32_t copy_fails, copy_refused; /* per mille of moves */
};
extern const struct model_shape model_shapes[];
extern const uint32_t model_n_shapes;

struct model_part {
    uint32_t tenant, namespace_, id, epoch; /* id: the store's; epoch: as the store has it now */
    uint32_t rule, window, needed;          /* needed: blocks in front of a boundary */
    uint8_t digest[KVC_NAMESPACE_BYTES];
    struct pack_layout layout;
    uint32_t slice_bytes[MODEL_SLICES];
    uint64_t slice_offsets[MODEL_SLICES];
};

/* Somewhere bytes of a block are, or are to be written. Parts and keys are the model's numbers. */
struct model_place {
    enum tier_kind tier;
    uint32_t slot, generation;
    uint64_t offset;
    uint32_t part, key;
};

enum model_life {
    LIFE_NONE, /* the entry is free */
    LIFE_OPEN, /* connected */
    LIFE_LOST, /* no longer connected, but the process is well */
    LIFE_DEAD, /* killed, but not known to be gone: its device may still run what was enqueued */
    LIFE_GONE,
};

struct model_owner {
    enum model_life life;
    struct owner *owner;
    uint64_t id;
    uint8_t secret[KVC_SECRET_BYTES];
    uint32_t tenant, role;
    uint8_t *page;
    bool mapped[TIER_COUNT][MODEL_EXTENTS]; /* and it may use it */
    bool asked[TIER_COUNT][MODEL_EXTENTS];  /* mapped, and to be unmapped */
    bool granted;
    uint64_t last_word; /* clock of the latest word, or of what else may free it */
};

struct model_chunk {
    bool live;                      /* the worker may still write */
    bool written;                   /* its word has been */
    uint32_t first, blocks;         /* of model_save::assigned */
    uint32_t first_slice, n_slices; /* n_slices 0: all of each block */
    uint32_t word;
    uint64_t number;
};

struct model_save {
    bool used, sealed;
    uint32_t owner, request;
    uint64_t id;
    struct save *handle; /* until it is sealed; of one by the daemon until its last copy */
    bool by_daemon;      /* the daemon copies, whatever becomes of the worker */
    bool checksums, notify, to_host;
    bool aborting, aborted; /* in this step, before it */
    bool reported;          /* save_done has come, or abort has answered */
    bool announced;         /* save_done is to come */
    bool answered;          /* abort has given `answer` in this step */
    bool lost_hits;         /* some were reported or flushed since */
    struct save_outcome answer;
    uint64_t opened; /* in which step */
    uint64_t deadline;
    uint32_t n_keys, n_entries;
    uint32_t part[MODEL_SAVE_KEYS], key[MODEL_SAVE_KEYS]; /* as they were asked for */
    uint32_t entry_keys[4];
    bool was_filling[MODEL_SAVE_KEYS];
    bool was_ready[MODEL_SAVE_KEYS]; /* when it was opened */
    /* By slices: the chunks of each call lie behind those of the calls before. */
    bool by_slices;
    uint32_t call_chunks, claimed; /* of a call; a bit a slice */
    uint32_t n_assigned, n_chunks, n_published;
    struct model_place assigned[MODEL_SAVE_KEYS];
    bool published[MODEL_SAVE_KEYS];
    struct model_chunk chunks[MODEL_SAVE_KEYS];
};

struct model_lease {
    bool used, ended;
    uint32_t owner;
    uint64_t id, request, expires;
    uint8_t token[KVC_TOKEN_BYTES];
    uint32_t n_parts, parts[MODEL_LEASE_PARTS], epochs[MODEL_LEASE_PARTS];
    uint32_t n_keys, keys[MODEL_CHAIN_KEYS];
    bool gone[MODEL_LEASE_PARTS][MODEL_CHAIN_KEYS]; /* reported as broken since */
};

struct model_lookup { /* a request as it was asked for */
    struct model_owner *owner;
    const struct model_lease *append;
    uint32_t n_parts, parts[MODEL_LEASE_PARTS];
    uint32_t n_keys, keys[MODEL_CHAIN_KEYS];
    uint32_t offset, ms;
    uint64_t request;
    bool probe;
};

struct model_load {
    bool used;
    struct load *by_daemon; /* who reads then is the daemon */
    bool live;              /* the worker may still read */
    uint32_t owner, word, n;
    uint64_t number;
    struct model_place places[MODEL_CHAIN_KEYS];
};

struct model_move {
    bool used, ended;
    struct move move;
    struct model_place from, to;
    kvc_status status;
    move_done_cb *done;
    void *arg;
};

struct model_renew {
    bool used;
    enum tier_kind tier;
    uint32_t extent;
    move_done_cb *done;
    void *arg;
};

/* What a slot was after the step before. */
struct model_seen {
    uint32_t state, generation, part, key;
};

struct model_event {
    bool freed; /* owner_free, else save_done */
    uint32_t owner;
    struct save_outcome outcome;
};

struct model {
    const struct model_shape *shape;
    uint64_t seed, random;
    uint64_t step;
    uint32_t n_parts;
    struct store *store;
    const struct table *table;
    struct model_part parts[MODEL_PARTS];
    uint32_t tenants[MODEL_TENANTS];
    uint32_t chains[MODEL_CHAINS][MODEL_CHAIN_KEYS];
    uint64_t pinned[MODEL_PARTS][MODEL_KEYS]; /* until; 0: not */
    bool summed[MODEL_PARTS][MODEL_KEYS];     /* published with a checksum */
    uint32_t n_chain_keys;
    struct store_quota quotas[MODEL_NAMESPACES]; /* of each tenant */
    uint8_t *memory[TIER_COUNT];
    uint32_t n_slots[TIER_COUNT];
    struct model_seen *seen[TIER_COUNT];

    struct model_owner owners[MODEL_OWNERS];
    struct model_save saves[MODEL_SAVES];
    struct model_lease leases[MODEL_LEASES];
    struct model_load loads[MODEL_LOADS];
    struct model_move moves[MODEL_MOVES];
    struct model_renew renews[MODEL_RENEWS];
    struct model_event events[MODEL_EVENTS];
    uint32_t n_events;
    uint32_t next_request;
    bool list_later; /* of the next save: the caller seals or lists it at once */
    bool to_host;    /* the next save is for the host tier */
    /* Of saves and loads that tests' stories make; a run has them at random. */
    enum model_way { WAY_ANY, WAY_WORKER, WAY_DAEMON, WAY_SLICES, WAY_SLICES_DAEMON } way;
    bool copies_fail;                 /* of the daemon, for saves and loads */
    uint32_t failed_promotions;       /* no figure has those */
    uint64_t last_number;             /* of any word, ever */
    const char *fault;                /* the site that is armed in this step */
    bool ticked;                      /* in this step, at its end */
    const struct model_owner *nudged; /* whose page was looked at in this step, at its end */
    uint64_t maybe_evicted, maybe_evicted_from[TIER_COUNT]; /* in this step */
    uint64_t maybe_loaded[TIER_COUNT]; /* bytes that a figure may or may not contain */

    /* Why a block may go in this step although it is leased or loaded. */
    bool flushed;
    uint32_t flushed_tenant, flushed_namespace;
    uint32_t flushed_part, n_flushed, flushed_keys[MODEL_CHAIN_KEYS];
    bool reported;
    uint32_t reported_part, reported_key;

    /* By the store's events alone: who has what, and how many. */
    bool told[TIER_COUNT][MODEL_PARTS][MODEL_KEYS];
    uint64_t told_in[TIER_COUNT][MODEL_PARTS][MODEL_KEYS]; /* in which step it came */
    uint64_t brief[TIER_COUNT][MODEL_PARTS][MODEL_KEYS];   /* ... and went again; 0: in none */
    uint32_t n_told, told_parents;

    struct store_stats expected; /* the counters that the model keeps */
    char trace[MODEL_TRACE][192];
    uint32_t n_trace;
};

struct model *model_create(const struct model_shape *shape, uint64_t seed);
void model_run(struct model *m, uint64_t steps);
void model_destroy(struct model *m);

/* model_run.c: the pieces of a run, also for tests that tell one story. */
void model_begin(struct model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
void model_end(struct model *m); /* of a step: compares everything */
void model_arm(struct model *m, const char *site, uint32_t skip, uint32_t count);
void model_disarm(struct model *m);
void model_pass_time(struct model *m, uint64_t us); /* with a tick */
void model_fail(struct model *m, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
#define model_expect(m, condition, ...)                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            model_fail(m, __VA_ARGS__);                                                            \
    } while (0)

/* Whether a status is what a fault of this step makes of a call that may be refused for it. */
bool model_is_fault(const struct model *m, kvc_status status);

uint64_t model_random(struct model *m);
uint32_t model_below(struct model *m, uint32_t n); /* 0 to n - 1; 0 for 0 */
bool model_chance(struct model *m, uint32_t per_mille);

/* model.c: what is true. */
void model_compare(struct model *m, bool all_bytes); /* model_compare.c */
void model_compare_figures(struct model *m);         /* model_figures.c */
bool model_is_ready(const struct model *m, uint32_t part, uint32_t key, enum tier_kind tier);
bool model_is_published(const struct model *m, uint32_t part, uint32_t key); /* in any tier */
bool model_is_ready_now(struct model *m, uint32_t part, uint32_t key); /* as the table says now */
bool model_is_ready_or_gone(struct model *m, const struct model_place *place); /* likewise */
/* Fails when a word that is handed out is still somebody's. */
void model_expect_free_word(struct model *m, uint32_t owner, uint32_t word);
/* over_too: also by leases whose time is over, which no tick has ended. */
bool model_is_leased(const struct model *m, uint32_t part, uint32_t key, bool over_too);
struct model_place model_place_of(struct model *m, const struct store_location *location,
                                  uint32_t part, uint32_t key);
void model_key(uint32_t key, uint8_t bytes[KVC_KEY_BYTES]);
uint32_t model_part_of(const struct model *m, uint32_t id); /* the model's number */

/* model_memory.c: bytes, and who copies them between tiers. */
void model_spoil(struct model *m, const struct model_place *place);
/* The same for a range of slices, and the sum of their checksums. */
void model_write_slices(struct model *m, const struct model_place *place, uint32_t first,
                        uint32_t n);
void model_spoil_slices(struct model *m, const struct model_place *place, uint32_t first,
                        uint32_t n);
uint64_t model_sum_slices(struct model *m, const struct model_place *place, uint32_t first,
                          uint32_t n);
bool model_is_exact(struct model *m, const struct model_place *place);
uint64_t model_checksum(struct model *m, const struct model_place *place);
extern const struct mover_ops model_mover;
void model_move_step(struct model *m, bool may_fail); /* ends one move, if there is one */
uint32_t model_n_moves(const struct model *m);

/* model_prefix.c */
/* Whether a part's rule asks for block `at` when the prefix ends at `end`. */
bool model_needs(const struct model_part *part, uint32_t at, uint32_t end);
/* How long the whole lease is to be. */
uint32_t model_prefix(const struct model *m, const struct model_lookup *lookup);

/* model_events.c */
void model_on_event(void *ctx, const struct store_event *event);
void model_compare_events(struct model *m);

/* model_quota.c */
struct model_room { /* what a part's namespace may get in a tier, and from whom */
    enum tier_kind tier;
    uint32_t taker;
    uint64_t slot_bytes, owned, used[MODEL_NAMESPACES];
    uint32_t free, clean[MODEL_NAMESPACES]; /* slots of its size that can be had */
    uint32_t dirty[MODEL_NAMESPACES];       /* ... that may be, when they are clean */
};
void model_room_begin(const struct model *m, uint32_t part, enum tier_kind tier,
                      struct model_room *r);
bool model_room_take(const struct model *m,
                     struct model_room *r); /* false: there is none at once */
uint64_t model_leased_blocks(const struct model *m, uint32_t tenant, uint32_t ns);
void model_set_quota(struct model *m);
void model_compare_usage(struct model *m);

/* model_owner.c */
struct model_owner *model_owner_open(struct model *m, uint32_t tenant, uint32_t role, bool map_all);
void model_owner_disconnect(struct model *m, struct model_owner *o, enum model_life life);
void model_owner_gone(struct model *m, struct model_owner *o);
void model_owner_drain(struct model *m, struct model_owner *by, struct model_owner *o);
void model_owner_release(struct model *m, struct model_owner *o);     /* after owner_free */
struct model_owner *model_pick_owner(struct model *m, uint32_t role); /* connected; 0: any role */
bool model_maps_slot(const struct model *m, const struct model_owner *o, enum tier_kind tier,
                     uint32_t slot);
uint32_t model_owner_index(const struct model *m, const struct model_owner *o);
void model_owner_steps(struct model *m); /* one random thing of this file */

/* model_worker.c: the processes. */
void model_chunk_finish(struct model *m, struct model_save *s, struct model_chunk *c, bool exact);
void model_load_finish(struct model *m, struct model_load *l);
void model_worker_step(struct model *m);
void model_waive(struct model *m, uint32_t owner); /* all that it enqueued has ended */

/* model_slices.c */
/* Whether all words of a chunk of the first call have been, of the calls so far; or of all slices.
 */
bool model_chunk_arrived(const struct model_save *s, uint32_t chunk);
bool model_chunk_proved(const struct model *m, const struct model_save *s, uint32_t chunk);
/* Names some slices of the part for a call that begins a save by slices. */
void model_slices_begin(struct model *m, struct model_save *s, struct store_save_entry *entry);
/* Another call of such a save. */
void model_slices_more(struct model *m, struct model_save *s);

/* model_save.c */
struct model_run { /* keys of a request: a piece of a chain, in a part */
    uint32_t part, chain, first, n;
};
bool model_by_daemon(struct model *m); /* who copies, of the next save or load */
struct model_save *model_save_open(struct model *m, struct model_owner *o,
                                   const struct model_run *runs, uint32_t n_runs);
void model_save_seal(struct model *m, struct model_save *s);
void model_save_take_chunks(struct model *m, struct model_save *s,
                            const struct store_save_result *result, uint32_t first_slice,
                            uint32_t n_slices);
void model_expect_admission(struct model *m, const struct model_save *s); /* model_admission.c */
void model_save_steps(struct model *m);
void model_save_abort(struct model *m, struct model_save *s);
void model_save_done(struct model *m, const struct model_event *event);
void model_save_deadlines(struct model *m);
void model_save_flushed(struct model *m);
void model_save_sweep(struct model *m); /* forgets what has ended */

/* model_lease.c */
void model_lease_steps(struct model *m);
/* A lookup of the first n keys of a chain in some parts; NULL: nothing was leased. */
struct model_lease *model_look(struct model *m, struct model_owner *o, const uint32_t *parts,
                               uint32_t n_parts, uint32_t chain, uint32_t n);
/* Takes one part of a lease over; NULL: it was refused. */
struct model_lease *model_adopt(struct model *m, struct model_owner *o,
                                const struct model_lease *from);
void model_release(struct model *m, struct model_owner *o, struct model_lease *l);
bool model_lease_lives(const struct model_lease *l);
void model_lease_sweep(struct model *m);

/* model_load.c */
void model_load(struct model *m, struct model_owner *o, struct model_lease *l);
void model_report(struct model *m, struct model_owner *o);
void model_flush(struct model *m);
void model_load_sweep(struct model *m);

/* model_extents.c */
extern const struct renew_ops model_renewer;
void model_on_extents(void *ctx, struct owner *owner, const uint32_t *withdrawn, uint32_t n,
                      bool granted);
void model_extent_steps(struct model *m);
bool model_renew_step(struct model *m); /* ends one; false: no extent gets new memory */
void model_map_extents(struct model *m, struct model_owner *o, bool all);

/* model_pin.c: pins, and flushes of keys. */
void model_pin(struct model *m, struct model_owner *o);
void model_unpin(struct model *m, struct model_owner *o);
void model_flush_keys(struct model *m, struct model_owner *o);
void model_pin_sweep(struct model *m);

/* model_load.c */
bool model_is_flushed(const struct model *m, uint32_t part); /* by the flush of this step */
bool model_is_flushed_key(const struct model *m, uint32_t part, uint32_t key); /* likewise */

#endif
