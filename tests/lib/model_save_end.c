/* How saves of the model end: what is published and told, and when nothing is held any more. */
#include "daemon/base/clock.h"
#include "tests/lib/model.h"

typedef unsigned long long ull;

static void expect_outcome(struct model *m, struct model_save *s, const struct save_outcome *o)
{
    model_expect(m,
                 o->published == s->n_published && o->published + o->dropped == s->n_assigned &&
                     (o->status == KVC_OK) == (o->dropped == 0),
                 "save %llu ends with %u published, %u dropped and \"%s\"; it has %u of %u",
                 (ull)s->id, o->published, o->dropped, kvc_status_text(o->status), s->n_published,
                 s->n_assigned);
    s->reported = true;
}

void model_save_done(struct model *m, const struct model_event *event)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        if (!s->used || !s->sealed || s->owner != event->owner || s->id != event->outcome.save)
            continue;
        model_expect(m, s->announced && !s->reported, "save %llu ends unasked, or twice",
                     (ull)s->id);
        expect_outcome(m, s, &event->outcome);
        return;
    }
    model_fail(m, "save %llu ends, which there is not", (ull)event->outcome.save);
}

/* Whether the store still holds something for the save. */
static bool is_held(const struct model *m, const struct model_save *s)
{
    for (uint32_t c = 0; c < s->n_chunks; c++)
        if (s->chunks[c].live)
            return true;
    for (uint32_t i = 0; i < s->n_assigned; i++) {
        const struct model_seen *seen = &m->seen[s->assigned[i].tier][s->assigned[i].slot];

        if (seen->generation == s->assigned[i].generation &&
            (seen->state == SLOT_FILLING || seen->state == SLOT_QUARANTINE))
            return true;
    }
    return false;
}

/* The store has looked at its owner's page: what is written is published or free, as far as the
 * rules go. */
static void expect_proof_taken(struct model *m, const struct model_save *s)
{
    bool all = true;

    for (uint32_t c = 0; c < s->call_chunks; c++) {
        bool arrived = model_chunk_arrived(s, c);

        all &= model_chunk_proved(m, s, c);
        for (uint32_t k = s->chunks[c].first; k < s->chunks[c].first + s->chunks[c].blocks; k++) {
            const struct model_seen *seen = &m->seen[s->assigned[k].tier][s->assigned[k].slot];
            bool same = seen->generation == s->assigned[k].generation;

            if (all && !s->aborted)
                model_expect(m, s->published[k], "key %u of save %llu is proved, not published",
                             s->assigned[k].key, (ull)s->id);
            if (arrived && (s->aborted || s->aborting))
                model_expect(m, !same || seen->state != SLOT_QUARANTINE,
                             "key %u of save %llu is proved, and still in quarantine",
                             s->assigned[k].key, (ull)s->id);
        }
    }
}

void model_save_deadlines(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        if (m->saves[i].used && m->saves[i].sealed && m->ticked &&
            clock_now_us() >= m->saves[i].deadline)
            m->saves[i].aborting = true;
}

/* A save that has a block of a flushed namespace to publish fails like any other. */
void model_save_flushed(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        for (uint32_t k = 0; s->used && !s->sealed && k < s->n_keys; k++) {
            s->aborted |= model_is_flushed(m, s->part[k]);
            s->lost_hits |= model_is_flushed(m, s->part[k]);
        }
        for (uint32_t k = 0; s->used && s->sealed && k < s->n_assigned; k++)
            s->aborting |= !s->published[k] && model_is_flushed(m, s->assigned[k].part);
    }
}

void model_save_sweep(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        if (!s->used || !s->sealed)
            continue;
        /* What was proved before the end of a save is kept, hence first. */
        if (m->nudged == &m->owners[s->owner])
            expect_proof_taken(m, s);
        if (s->aborting && s->n_published < s->n_assigned)
            s->aborted = true;
        s->aborting = false;
        if (s->answered)
            expect_outcome(m, s, &s->answer);
        s->answered = false;
        if (is_held(m, s))
            continue;
        model_expect(m, s->aborted || s->n_published == s->n_assigned,
                     "save %llu ended with %u of %u published", (ull)s->id, s->n_published,
                     s->n_assigned);
        if (s->announced && !s->reported) {
            model_expect(m, !m->ticked, "save %llu has ended, and nobody is told", (ull)s->id);
            continue;
        }
        s->used = false;
    }
}
