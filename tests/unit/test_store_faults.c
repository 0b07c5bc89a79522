/*
 * The lines of saving.md that name a failure, as stories that the reference model follows: each is
 * told once for every kind of failure at every step at which it can come, and goes on after it as
 * far as it can. After each step all counters and every readable byte are compared with the model,
 * and at the end everything must have come back.
 */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/model.h"

#define KEYS   150u /* three chunks */
#define ALLOCS 6u   /* of a call, each fails once */
#define STEPS  16u

enum failure {
    NO_MEMORY, /* the next call, allocation 0 and up */
    NO_SLOT,
    NO_WORD,
    COPY_FAILS,   /* every copy between tiers from here on */
    COPY_REFUSED, /* it does not even begin */
    COPY_LATE,    /* none ends before all else has */
    WORKER_DIES,  /* and its device goes on writing for a while */
    WORKER_LOST,  /* its connection only; it says DRAINED later */
    EVENT_NEVER,  /* words and ends of copies do not come; the deadline does */
    ABORTED,
    ABORTED_TWICE,
    DRAINED, /* by itself, in the middle */
    FLUSHED,
    KEYS_FLUSHED,
    BLOCK_REPORTED, /* as damaged */
    FAILURES
};

struct play {
    struct model *m;
    struct model_shape shape;
    struct model_owner *saver, *reader;
    struct model_save *save;
    struct model_lease *lease;
    bool silent, late; /* EVENT_NEVER; COPY_LATE */
};

static bool works(const struct model_owner *o)
{
    return o->life == LIFE_OPEN;
}

/* ------------------------------------------------------------ steps */

static void open_save_of(struct play *p, uint32_t chain)
{
    const struct model_run run = {.part = 0, .chain = chain, .n = p->shape.keys};

    if (works(p->saver))
        p->save = model_save_open(p->m, p->saver, &run, 1);
}

static void save_open(struct play *p)
{
    open_save_of(p, 0);
}

static void save_open_other(struct play *p)
{
    open_save_of(p, 1);
}

static bool lives(const struct play *p, bool sealed)
{
    return p->save && p->save->used && p->save->sealed == sealed;
}

static void save_more(struct play *p)
{
    if (lives(p, false))
        store_save_more(p->m->store, p->save->handle);
}

static void save_seal(struct play *p)
{
    if (lives(p, false))
        model_save_seal(p->m, p->save);
}

static void save_slices(struct play *p)
{
    for (int i = 0; i < 6; i++)
        if (lives(p, true) && p->save->by_slices && works(p->saver))
            model_slices_more(p->m, p->save);
}

static void finish(struct play *p, uint32_t chunk)
{
    for (uint32_t c = chunk; lives(p, true) && !p->silent && c < p->save->n_chunks;
         c += p->save->call_chunks)
        if (p->save->chunks[c].live)
            model_chunk_finish(p->m, p->save, &p->save->chunks[c], works(p->saver));
}

static void finish_first(struct play *p)
{
    finish(p, 0);
}

static void finish_last(struct play *p)
{
    finish(p, 2);
}

static void finish_middle(struct play *p)
{
    finish(p, 1);
}

static void finish_all(struct play *p)
{
    for (uint32_t c = 0; c < 3; c++)
        finish(p, c);
}

static void nudge(struct play *p)
{
    if (!works(p->saver))
        return;
    p->m->nudged = p->saver;
    store_nudge(p->m->store, p->saver->owner);
}

static void tick(struct play *p)
{
    model_pass_time(p->m, CLOCK_MS_US);
}

static void look(struct play *p)
{
    if (works(p->reader))
        p->lease = model_look(p->m, p->reader, 0, 0, p->shape.keys);
}

static void load(struct play *p)
{
    if (works(p->reader) && p->lease)
        model_load(p->m, p->reader, p->lease);
}

static void finish_loads(struct play *p)
{
    for (uint32_t i = 0; i < MODEL_LOADS && !p->silent; i++)
        if (p->m->loads[i].live)
            model_load_finish(p->m, &p->m->loads[i]);
}

static void release(struct play *p)
{
    if (works(p->reader) && p->lease)
        model_release(p->m, p->reader, p->lease);
}

static void lease_ends(struct play *p)
{
    model_pass_time(p->m, (KVC_LEASE_MS_DEFAULT + 1) * CLOCK_MS_US);
}

static void moves_end(struct play *p)
{
    for (int i = 0; i < 4 && !p->late; i++)
        model_move_step(p->m, true);
}

static void flush(struct play *p)
{
    model_flush(p->m);
}

/* ------------------------------------------------------------ failures */

static void strike(struct play *p, enum failure failure, uint32_t skip)
{
    switch (failure) {
    case NO_MEMORY:
        model_arm(p->m, "mem.alloc", skip, 1);
        break;
    case NO_SLOT:
        model_arm(p->m, "store.slot", skip, UINT32_MAX);
        break;
    case NO_WORD:
        model_arm(p->m, "store.word", skip, 1);
        break;
    case COPY_FAILS:
        p->shape.copy_fails = 1000;
        break;
    case COPY_REFUSED:
        p->shape.copy_refused = 1000;
        break;
    case COPY_LATE:
        p->late = true;
        break;
    case WORKER_DIES:
    case WORKER_LOST:
        if (works(p->saver))
            model_owner_disconnect(p->m, p->saver, failure == WORKER_DIES ? LIFE_DEAD : LIFE_LOST);
        break;
    case EVENT_NEVER:
        p->silent = true;
        break;
    case ABORTED:
    case ABORTED_TWICE:
        for (uint32_t i = 0; i < 1u + (failure == ABORTED_TWICE); i++) {
            if (p->save && p->save->used && (p->save->sealed || !p->save->aborted))
                model_save_abort(p->m, p->save);
            model_end(p->m);
        }
        break;
    case DRAINED:
        if (works(p->saver))
            model_owner_drain(p->m, p->saver, p->saver);
        break;
    case FLUSHED:
        model_flush(p->m);
        break;
    case KEYS_FLUSHED:
        if (works(p->reader))
            model_flush_keys(p->m, p->reader);
        break;
    case BLOCK_REPORTED:
        if (works(p->reader))
            model_report(p->m, p->reader);
        break;
    case FAILURES:
        break;
    }
}

/* What follows from it in the end, whatever the story was. */
static void settle(struct play *p, enum failure failure)
{
    struct model *m = p->m;

    if (failure == EVENT_NEVER) {
        model_pass_time(m, (KVC_SAVE_PROOF_MS + 1) * CLOCK_MS_US);
        model_end(m);
    }
    p->silent = p->late = false;
    finish_all(p); /* late */
    model_end(m);
    finish_loads(p);
    model_end(m);
    if (p->saver->life == LIFE_LOST && works(p->reader))
        model_owner_drain(m, p->reader, p->saver);
    model_end(m);
}

/* ------------------------------------------------------------ stories */

typedef void step_fn(struct play *p);

struct story {
    const char *name;
    uint32_t part_keys;
    struct model_shape shape;
    step_fn *steps[STEPS + 1];
};

#define MIB (1ull << 20)

static const struct story save_story = {
    .shape = {.name = "a save",
              .budget = {2 * MIB, 2 * MIB},
              .tenants = 1,
              .share = UINT32_MAX,
              .slices = {{1000, 1000, 2000}, {5000, 100}},
              .keys = KEYS},
    .steps = {save_open, save_more, save_seal, save_slices, finish_first, nudge, finish_last, nudge,
              finish_middle, tick, look, load, finish_loads, release},
};

/* More blocks than the gpu tier has room for, so that the second save needs demotions. */
static const struct story tier_story = {
    .shape = {.name = "tiers",
              .budget = {6 * MIB, 6 * MIB},
              .tenants = 1,
              .share = UINT32_MAX,
              .slices = {{60000, 60000}, {17, 64000}},
              .keys = 20},
    .steps = {save_open, save_seal, finish_all, nudge, save_open_other, moves_end, save_more,
              moves_end, save_more, save_seal, finish_all, tick, moves_end, look, load,
              finish_loads},
};

static const struct story lease_story = {
    .shape = {.name = "a lease",
              .budget = {4 * MIB, 4 * MIB},
              .tenants = 1,
              .share = UINT32_MAX,
              .slices = {{60000, 60000}, {17, 64000}},
              .keys = 12},
    .steps = {save_open, save_seal, save_slices, finish_all, nudge, look, load, save_open_other,
              moves_end, save_seal, lease_ends, load, finish_loads, release, tick},
};

static const struct story flush_story = {
    .shape = {.name = "a flush",
              .budget = {4 * MIB, 4 * MIB},
              .tenants = 1,
              .share = UINT32_MAX,
              .slices = {{60000, 60000}, {17, 64000}},
              .keys = 12},
    .steps = {save_open, save_seal, finish_all, nudge, look, load, save_open_other, save_seal,
              flush, save_slices, finish_all, moves_end, tick, finish_loads, release, look},
};

/* The story with one failure before one of its steps (the last one: behind all). */
static void tell(const struct story *story, enum model_way way, enum failure failure, uint32_t at,
                 uint32_t skip)
{
    struct play p = {.shape = story->shape};
    uint32_t i = 0;

    p.m = model_create(&p.shape, 1 + at * 100 + skip);
    p.m->way = way;
    p.saver = &p.m->owners[0];
    p.reader = model_owner_open(p.m, 0, STORE_ROLE_READER, true);
    model_end(p.m);
    for (; story->steps[i]; i++) {
        if (i == at)
            strike(&p, failure, skip);
        model_end(p.m);
        story->steps[i](&p);
        model_disarm(p.m);
        model_compare(p.m, true);
        model_end(p.m);
    }
    if (i == at)
        strike(&p, failure, skip);
    model_disarm(p.m);
    model_end(p.m);
    settle(&p, failure);
    model_destroy(p.m);
}

/* A short run tells each with one way to copy, and some of the allocations. */
static void tell_all(const struct story *story, enum failure failure)
{
    static const enum model_way ways[] = {WAY_WORKER, WAY_DAEMON, WAY_SLICES};
    uint32_t n = 0, skips = failure == NO_MEMORY ? ALLOCS : failure <= NO_WORD ? 2 : 1;

    while (story->steps[n])
        n++;
    for (uint32_t at = 0; at <= n; at++)
        for (uint32_t w = 0; w < 3; w++)
            for (uint32_t skip = 0; skip < skips; skip++)
                if (check_long() ||
                    ((at + failure) % 3 == w && (skips < 3 || (at + skip) % 3 == 0)))
                    tell(story, ways[w], failure, at, skip);
}

/* _i: the kind of failure. */
START_TEST(S14_any_failure_at_any_step_of_a_save)
{
    tell_all(&save_story, (enum failure)_i);
}
END_TEST

START_TEST(S19_any_failure_at_any_step_of_a_demotion)
{
    tell_all(&tier_story, (enum failure)_i);
}
END_TEST

START_TEST(S29_any_failure_at_any_step_of_a_lease_and_its_loads)
{
    tell_all(&lease_story, (enum failure)_i);
}
END_TEST

START_TEST(S42_any_failure_at_any_step_around_a_flush)
{
    tell_all(&flush_story, (enum failure)_i);
}
END_TEST

CHECK_MAIN_LOOPS("store/faults", CHECK_LONG_S,
                 {S14_any_failure_at_any_step_of_a_save, 0, FAILURES - 1},
                 {S19_any_failure_at_any_step_of_a_demotion, 0, FAILURES - 1},
                 {S29_any_failure_at_any_step_of_a_lease_and_its_loads, 0, FAILURES - 1},
                 {S42_any_failure_at_any_step_around_a_flush, 0, FAILURES - 1})
