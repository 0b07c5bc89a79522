/*
 * Saves: from the call that is admitted (admit.c) over copies that are proved chunk by chunk to
 * the end, with everything published or with exactly the unpublished keys gone.
 */
#ifndef KVC_STORE_SAVE_H
#define KVC_STORE_SAVE_H

#include "daemon/store/owner.h"

enum save_phase {
    SAVE_ADMITTING, /* between store_save_open and store_save_seal */
    SAVE_COPYING,   /* words are owed, keys will be published */
    SAVE_ABORTED,   /* words are owed, nothing will be published; slots are in quarantine */
    SAVE_OVER,      /* nothing is owed; save_done is due, or it is freed at once */
};

enum chunk_state {
    CHUNK_OWED,
    CHUNK_PROVED, /* what its word stands for is there */
    CHUNK_PUBLISHED,
    CHUNK_GONE, /* of an aborted save: its slots are free, or another word's to free */
};

/*
 * What one word proves: some slices of some blocks. A save of whole blocks has one of these for
 * each run of blocks; a save by slices one for each run and call, those of the first call being
 * `main`.
 */
struct chunk {
    struct save *save;
    struct chunk *main;     /* of the same blocks; published when no slice of them is missing */
    struct word *word;      /* CHUNK_OWED; NULL when the daemon copies */
    uint32_t first, blocks; /* of save::slots */
    uint32_t slices;        /* of all its blocks, that it proves; 1: a chunk of whole blocks */
    enum chunk_state state;
    uint32_t missing; /* main: slices, of all its blocks, that are not proved */
    uint32_t owed;    /* main: chunks of its blocks whose word, or copy, is waited for */
};

/* A later call for more slices of a save. */
struct slices {
    struct list link; /* save::more, oldest first */
    uint32_t request;
    struct chunk chunks[]; /* save::n_chunks */
};

struct save_slot {
    uint32_t block; /* BLOCK_NONE: its key was dropped */
    uint32_t slot;
    uint32_t generation;
    uint8_t tier;
    bool follows; /* its key is the next of the prompt behind that of the slot before it */
};

struct admission;

struct save {
    struct owner *owner;
    struct list link;  /* owner::saves */
    struct list queue; /* store::saves, ended or reports, by phase */
    uint64_t id;
    uint64_t began;  /* clock_us */
    uint64_t queued; /* clock_us: deadline in store::saves, since when in store::ended */
    uint32_t request;
    enum save_phase phase;
    kvc_status status; /* why it failed, if it did */
    bool checksums, notify;
    bool by_daemon;
    enum store_place place;
    const uint64_t *to_gpu; /* SAVE_ADMITTING: store_save's */
    bool by_slices;
    struct list more; /* by_slices: later calls */
    uint32_t n_slots, n_chunks;
    uint32_t owed;               /* chunks whose words, or copies, are waited for */
    uint32_t next;               /* the first chunk that is not published */
    uint32_t published, dropped; /* blocks */
    struct admission *admission; /* SAVE_ADMITTING, and by_slices */
    struct save_slot *slots;     /* in the order of keys */
    struct chunk *chunks;
};

void save_set_phase(struct save *save, enum save_phase phase);

/* The word of a chunk has arrived. */
void save_proved(struct store *store, struct chunk *chunk);
/* Nobody will write to a chunk's slots, but they are not known to be complete. */
void save_waived(struct store *store, struct chunk *chunk);

/* Aborts a save that is being admitted or copied. May free it, if nothing is owed. */
void save_fail(struct store *store, struct save *save, kvc_status status);

/* ... the one that fills a block. */
void save_fail_of(struct store *store, uint32_t block, kvc_status status);
/* Whether it may still publish something. */
bool save_is_open(const struct save *save);

/* Whether a key of it that is not published yet is of one of a set (scope.h). */
bool save_is_in(const struct save *save, const uint64_t *namespaces);

/* slices.c: how many a part's layout has; those of an entry, which it adds to a set. */
uint32_t slices_of(const struct store *store, uint32_t part);
/* Refuses entry i of a call for what are not slices, or none in a call that has no other entry. */
kvc_status slices_check(const struct store *store, const struct store_save *req, uint32_t i,
                        struct refusal *why);
uint32_t slices_claim(const struct store *store, const struct store_save_entry *entry,
                      uint64_t *claimed);
/* A chunk of any call, counted through all of them, those of the first call first; or NULL. */
struct chunk *slices_chunk_at(struct save *save, uint32_t i);

/* Frees the save's memory; it is in no list afterwards. */
void save_free(struct save *save);

/* From now on the save has the time that is set for its proof. */
void save_await_proof(struct store *store, struct save *save);

/* Blocks of saves that have ended without their owners' word, dropped in a turn. */
#define SAVE_DROPS 2048u

/* Aborts saves that are not proved in time, by turns if they are many. */
void save_tick(struct store *store, uint64_t now);
uint64_t save_next_wake(const struct store *store);

void save_outcome(const struct save *save, struct save_outcome *outcome);

/* seal.c, for answers: where a slot is, and the chunks of a call (save::n_chunks). */
struct store_location save_location(const struct store *store, const struct save_slot *slot);
void save_tell_chunks(const struct save *save, const struct chunk *chunks,
                      struct store_save_result *result);

/* Drops an unpublished block from the index; its slot stays as it is. */
void save_forget_block(struct store *store, struct save_slot *slot);

/* admit.c, for seal.c. Time is over for full parts that wait; others take what there is. */
void admit_rest(struct store *store, struct save *save);
/* Ends the wait for room and the hold on hits. */
void admit_let_go(struct store *store, struct save *save);
/* Gives back the slot of a key that the worker was never told of. */
void admit_take_back(struct store *store, struct save *save, uint32_t i);

/* admit.c: takes back what a save that is being admitted holds; the save stays. */
void admit_undo(struct store *store, struct save *save);
bool admit_is_in(const struct save *save, const uint64_t *namespaces);
/* For checks: adds its holds on blocks, counts its slots. */
void admit_count_holds(const struct save *save, uint32_t *holds);
uint32_t admit_count_slots(const struct save *save);

#endif
