/*
 * Stories of the store that the reference model follows, told once for every kind of failure before
 * every one of their steps, and on from there as far as they can go. After each step all counters
 * and every readable byte are compared with the model, and at the end everything must have come
 * back. A failure that never struck in all tellings fails the test, as does a story in which,
 * undisturbed, what it is about did not happen.
 */
#ifndef KVC_TESTS_LIB_STORY_H
#define KVC_TESTS_LIB_STORY_H

#include "tests/lib/model.h"

#define STORY_STEPS 24u

enum failure {
    NO_MEMORY, /* the next call, allocation 0 and up */
    NO_SLOT,
    NO_WORD,
    COPY_FAILS,   /* every copy between tiers from here on */
    COPY_REFUSED, /* it does not even begin */
    COPY_LATE,    /* none ends before all else has */
    CHUNK_FAILS,  /* every copy of the daemon for a save or a load from here on */
    WORKER_DIES,  /* and its device goes on writing for a while */
    WORKER_LOST,  /* its connection only; it says DRAINED later */
    READER_DIES,
    READER_LOST,
    EVENT_NEVER, /* words and ends of copies do not come; the deadline does */
    ABORTED,
    ABORTED_TWICE,
    DRAINED, /* by itself, in the middle */
    FLUSHED,
    KEYS_FLUSHED,
    BLOCK_REPORTED, /* as damaged */
    FAILURES        /* none of them */
};

struct play {
    struct model *m;
    struct model_shape shape;
    struct model_owner *saver, *reader;
    struct model_save *save;
    struct model_lease *lease, *adopted;
    bool silent, late; /* EVENT_NEVER; COPY_LATE */
    uint32_t struck;
};

typedef void story_step(struct play *p);

struct story {
    struct model_shape shape;
    uint32_t reader; /* its role */
    uint32_t never;  /* failures that cannot strike, a bit each */
    bool (*happened)(const struct store_stats *stats);
    story_step *steps[STORY_STEPS + 1];
};

/* Tiers of so many MiB, with 17 slots of 120 KiB an extent. */
#define STORY_SHAPE(what, gpu, host, n)                                                            \
    {                                                                                              \
        .name = (what), .budget = {(gpu) << 20ull, (host) << 20ull}, .tenants = 1,                 \
        .share = UINT32_MAX, .slices = {{60000, 60000}, {17, 64000}}, .keys = (n), .apart = true   \
    }

void story_tell(const struct story *story, enum failure failure);

/* Saves of the first chain of keys or another, of the part A; or of its state part; or for the host
 * tier. */
story_step story_save, story_save_other, story_save_state, story_save_to_host;
story_step story_more, story_seal, story_slices;
/* The copies and words of one chunk of three, or of all. */
story_step story_first, story_middle, story_last, story_all;
story_step story_nudge, story_done; /* the store looks for words: alone, after all */
/* The reader's: of the part A; and of its state part too. */
story_step story_look, story_look_both, story_load, story_release;
/* The saver takes the reader's lease over. */
story_step story_adopt, story_load_adopted, story_release_adopted;
/* All loads end; copies between tiers end; the time of leases is over. */
story_step story_loads_end, story_moves_end, story_lease_ends;
story_step story_tick, story_flush;

#endif
