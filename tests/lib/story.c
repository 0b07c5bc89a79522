#include "tests/lib/story.h"

#include <check.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "tests/lib/check_main.h"

#define CHUNKS      3u
#define ALLOCS      64u /* of a step, at most; each fails once */
#define SOME_ALLOCS 6u  /* in a short run */
#define STATE_PART  4u
#define SEEDS       10u
#define REPORTS     20u

static bool works(const struct model_owner *o)
{
    return o->life == LIFE_OPEN;
}

/* ------------------------------------------------------------ steps */

static void save(struct play *p, uint32_t part, uint32_t chain)
{
    const struct model_run run = {.part = part, .chain = chain, .n = p->shape.keys};

    if (works(p->saver))
        p->save = model_save_open(p->m, p->saver, &run, 1);
}

void story_save(struct play *p)
{
    save(p, 0, 0);
}

void story_save_other(struct play *p)
{
    save(p, 0, 1);
}

void story_save_state(struct play *p)
{
    save(p, STATE_PART, 0);
}

void story_save_to_host(struct play *p)
{
    p->m->to_host = true;
    save(p, 0, 0);
    p->m->to_host = false;
}

static bool lives(const struct play *p, bool sealed)
{
    return p->save && p->save->used && p->save->sealed == sealed;
}

void story_more(struct play *p)
{
    if (lives(p, false))
        store_save_more(p->m->store, p->save->handle);
}

void story_seal(struct play *p)
{
    if (lives(p, false))
        model_save_seal(p->m, p->save);
}

void story_slices(struct play *p)
{
    for (int i = 0; i < 6; i++)
        if (lives(p, true) && p->save->by_slices && works(p->saver))
            model_slices_more(p->m, p->save);
}

static void finish(struct play *p, uint32_t chunk)
{
    for (uint32_t c = chunk; lives(p, true) && !p->silent && c < p->save->n_chunks;
         c += p->save->call_chunks) {
        if (!p->save->chunks[c].live)
            continue;
        p->struck += p->m->copies_fail && p->save->by_daemon;
        model_chunk_finish(p->m, p->save, &p->save->chunks[c], works(p->saver));
    }
}

void story_first(struct play *p)
{
    finish(p, 0);
}

void story_middle(struct play *p)
{
    finish(p, 1);
}

void story_last(struct play *p)
{
    finish(p, 2);
}

void story_all(struct play *p)
{
    for (uint32_t c = 0; c < CHUNKS; c++)
        finish(p, c);
}

void story_nudge(struct play *p)
{
    if (!works(p->saver))
        return;
    p->m->nudged = p->saver;
    store_nudge(p->m->store, p->saver->owner);
}

void story_done(struct play *p)
{
    story_all(p);
    story_nudge(p);
}

void story_tick(struct play *p)
{
    model_pass_time(p->m, CLOCK_MS_US);
}

void story_look(struct play *p)
{
    if (works(p->reader))
        p->lease = model_look(p->m, p->reader, (const uint32_t[]){0}, 1, 0, p->shape.keys);
}

void story_look_both(struct play *p)
{
    const uint32_t parts[] = {0, STATE_PART};

    if (works(p->reader))
        p->lease = model_look(p->m, p->reader, parts, 2, 0, p->shape.keys);
}

void story_load(struct play *p)
{
    if (works(p->reader) && p->lease)
        model_load(p->m, p->reader, p->lease);
}

void story_release(struct play *p)
{
    if (works(p->reader) && p->lease)
        model_release(p->m, p->reader, p->lease);
}

void story_adopt(struct play *p)
{
    if (works(p->saver) && p->lease)
        p->adopted = model_adopt(p->m, p->saver, p->lease);
}

void story_load_adopted(struct play *p)
{
    if (works(p->saver) && p->adopted)
        model_load(p->m, p->saver, p->adopted);
}

void story_release_adopted(struct play *p)
{
    if (works(p->saver) && p->adopted)
        model_release(p->m, p->saver, p->adopted);
}

void story_loads_end(struct play *p)
{
    for (uint32_t i = 0; i < MODEL_LOADS && !p->silent; i++) {
        if (!p->m->loads[i].live)
            continue;
        p->struck += p->m->copies_fail && p->m->loads[i].by_daemon;
        model_load_finish(p->m, &p->m->loads[i]);
    }
}

void story_lease_ends(struct play *p)
{
    model_pass_time(p->m, (KVC_LEASE_MS_DEFAULT + 1) * CLOCK_MS_US);
}

void story_moves_end(struct play *p)
{
    for (uint32_t i = 0; i < MODEL_MOVES && !p->late; i++)
        model_move_step(p->m, true);
}

void story_flush(struct play *p)
{
    model_flush(p->m);
}

/* ------------------------------------------------------------ failures */

static void end_session(struct play *p, struct model_owner *o, enum model_life life)
{
    if (!works(o))
        return;
    model_owner_disconnect(p->m, o, life);
    p->struck++;
}

static void abort_save(struct play *p)
{
    if (p->save && p->save->used && (p->save->sealed || !p->save->aborted)) {
        model_save_abort(p->m, p->save);
        p->struck++;
    }
    model_end(p->m);
}

/* Which one is random, also whether it is the block's copy of now. */
static void report(struct play *p)
{
    bool reported = false;

    for (uint32_t i = 0; i < REPORTS && !reported && works(p->reader); i++) {
        model_report(p->m, p->reader);
        reported = p->m->reported;
        model_end(p->m);
    }
    p->struck += reported;
}

static void strike(struct play *p, enum failure failure, uint32_t skip)
{
    switch (failure) {
    case NO_MEMORY:
        model_arm(p->m, "mem.alloc", skip, 1);
        break;
    case NO_SLOT:
        model_arm(p->m, "slots.take", skip, UINT32_MAX);
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
    case CHUNK_FAILS:
        p->m->copies_fail = true;
        break;
    case WORKER_DIES:
    case WORKER_LOST:
        end_session(p, p->saver, failure == WORKER_DIES ? LIFE_DEAD : LIFE_LOST);
        break;
    case READER_DIES:
    case READER_LOST:
        end_session(p, p->reader, failure == READER_DIES ? LIFE_DEAD : LIFE_LOST);
        break;
    case EVENT_NEVER:
        p->silent = true;
        break;
    case ABORTED:
    case ABORTED_TWICE:
        abort_save(p);
        if (failure == ABORTED_TWICE)
            abort_save(p);
        break;
    case DRAINED:
        if (works(p->saver))
            model_owner_drain(p->m, p->saver, p->saver);
        p->struck += works(p->saver);
        break;
    case FLUSHED:
        model_flush(p->m);
        p->struck++;
        break;
    case KEYS_FLUSHED:
        if (works(p->reader))
            model_flush_keys(p->m, p->reader);
        p->struck += works(p->reader);
        break;
    case BLOCK_REPORTED:
        report(p);
        break;
    case FAILURES:
        break;
    }
}

/* Words that are still to come. */
static uint32_t owed(const struct play *p)
{
    uint32_t n = 0;

    for (uint32_t c = 0; lives(p, true) && c < p->save->n_chunks; c++)
        n += p->save->chunks[c].live;
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        n += p->m->loads[i].live;
    return n;
}

/* What follows from it in the end, whatever the story was. */
static void settle(struct play *p, enum failure failure)
{
    struct model *m = p->m;

    p->struck += p->silent ? owed(p) : 0;
    p->struck += p->late ? model_n_moves(m) : 0;
    if (failure == EVENT_NEVER) {
        model_pass_time(m, (KVC_SAVE_PROOF_MS + 1) * CLOCK_MS_US);
        model_end(m);
    }
    p->silent = p->late = false;
    story_all(p); /* late */
    model_end(m);
    story_loads_end(p);
    model_end(m);
    if (p->saver->life == LIFE_LOST && works(p->reader))
        model_owner_drain(m, p->reader, p->saver);
    if (p->reader->life == LIFE_LOST && works(p->saver))
        model_owner_drain(m, p->saver, p->reader);
    model_end(m);
}

/* ------------------------------------------------------------ telling */

/* One step, with the failure before it. */
static void take_step(struct play *p, story_step *step, enum failure failure, uint32_t skip)
{
    strike(p, failure, skip);
    model_end(p->m);
    if (step)
        step(p);
    p->struck += p->m->fault && fault_fired(p->m->fault) > 0;
    model_disarm(p->m);
    model_compare(p->m, true);
    model_end(p->m);
}

/* With one failure before one of its steps (the last one: behind all). Whether it struck. */
static bool tell(const struct story *story, enum model_way way, enum failure failure, uint32_t at,
                 uint32_t skip)
{
    struct play p = {.shape = story->shape};
    struct store_stats stats;
    uint32_t i;

    p.m = model_create(&p.shape, 1 + at * 100 + skip);
    p.m->way = way;
    p.saver = &p.m->owners[0];
    p.reader = model_owner_open(p.m, 0, story->reader, true);
    model_end(p.m);
    for (i = 0; story->steps[i]; i++)
        take_step(&p, story->steps[i], i == at ? failure : FAILURES, skip);
    if (i == at)
        take_step(&p, NULL, failure, skip);
    settle(&p, failure);
    store_stats(p.m->store, &stats);
    if (failure == COPY_FAILS || failure == COPY_REFUSED)
        p.struck += stats.failed_demotions > 0 || p.m->failed_promotions > 0;
    if (failure == FAILURES)
        p.struck = story->happened(&stats);
    model_destroy(p.m);
    return p.struck > 0;
}

static uint32_t count_skips(enum failure failure)
{
    if (failure == NO_MEMORY)
        return check_long() ? ALLOCS : SOME_ALLOCS;
    return failure <= NO_WORD ? 4 : 1;
}

/* What the step at `at` can fail with, in one way: all of it, or every other time. */
static uint32_t tell_at(const struct story *story, enum model_way way, enum failure failure,
                        uint32_t at, bool all)
{
    const uint32_t n = count_skips(failure);
    uint32_t struck = 0;
    bool strikes = true;

    for (uint32_t skip = 0; strikes && skip < n; skip++) {
        if (!all && n > 1 && (at / 2 + skip) % 2 != 0)
            continue;
        strikes = tell(story, way, failure, at, skip);
        struck += strikes;
    }
    ck_assert_msg(!strikes || n < ALLOCS, "%s: more than %u allocations in step %u",
                  story->shape.name, ALLOCS, at);
    return struck;
}

/* Undisturbed; what is random in it may stand in the way of some. */
static void expect_happens(const struct story *story, enum model_way way, uint32_t n)
{
    uint32_t seed = 0;

    while (seed < SEEDS && !tell(story, way, FAILURES, n + 1, seed))
        seed++;
    ck_assert_msg(seed < SEEDS, "%s, way %u: nothing of it happened", story->shape.name, way);
}

/*
 * A short run begins with each failure at every other step, each with one way to copy, and goes on
 * only if it did not strike.
 */
void story_tell(const struct story *story, enum failure failure)
{
    static const enum model_way ways[] = {WAY_WORKER, WAY_DAEMON, WAY_SLICES, WAY_SLICES_DAEMON};
    const uint32_t n_ways = sizeof(ways) / sizeof(ways[0]);
    uint32_t n = 0, struck = 0;

    while (story->steps[n])
        n++;
    for (uint32_t w = 0; w < n_ways; w++)
        expect_happens(story, ways[w], n);
    for (uint32_t at = failure % 2; at <= n && !check_long(); at += 2)
        struck += tell_at(story, ways[(at / 2 + failure) % n_ways], failure, at, false);
    for (uint32_t w = 0; w < n_ways && (struck == 0 || check_long()); w++)
        for (uint32_t at = 0; at <= n; at++)
            struck += tell_at(story, ways[w], failure, at, true);
    ck_assert_msg((struck > 0) != (story->never >> failure & 1), "%s: failure %u struck %u times",
                  story->shape.name, failure, struck);
}
