/*
 * The processes of the model: they write slots and words in any order, some after their save has
 * failed or they were killed, and read under loads.
 */
#include "daemon/base/clock.h"
#include "tests/lib/model.h"

static uint64_t *entry_of(const struct model_owner *o, uint32_t word)
{
    return (uint64_t *)(o->page + (size_t)word * KVC_PAGE_STRIDE);
}

static void write_word(struct model *m, struct model_owner *o, uint32_t word, uint64_t number)
{
    (void)m;
    __atomic_store_n(entry_of(o, word) + KVC_PAGE_WORD_OFFSET / 8, number, __ATOMIC_RELEASE);
    o->last_word = clock_now_us();
}

static void write_block(struct model *m, const struct model_chunk *c,
                        const struct model_place *place, bool exact)
{
    if (exact)
        model_write_slices(m, place, c->first_slice, c->n_slices);
    else
        model_spoil_slices(m, place, c->first_slice, c->n_slices);
}

/* A copy of the daemon that succeeded, or failed half way. */
static void end_daemon_copy(struct model *m, struct model_save *s, struct model_chunk *c,
                            bool exact)
{
    uint64_t cells[KVC_CHUNK_BLOCKS];

    exact = exact && !m->copies_fail;
    for (uint32_t i = 0; i < c->blocks; i++) {
        const struct model_place *place = &s->assigned[c->first + i];

        write_block(m, c, place, exact);
        cells[i] = model_sum_slices(m, place, c->first_slice, c->n_slices);
    }
    c->live = false;
    c->written = exact;
    s->aborting |= !exact;
    store_chunk_copied(m->store, s->handle, (uint32_t)(c - s->chunks), s->checksums ? cells : NULL,
                       exact ? KVC_OK : KVC_E_DEVICE);
}

void model_chunk_finish(struct model *m, struct model_save *s, struct model_chunk *c, bool exact)
{
    struct model_owner *o = &m->owners[s->owner];

    if (s->by_daemon) {
        end_daemon_copy(m, s, c, exact);
        return;
    }
    for (uint32_t i = 0; i < c->blocks; i++) {
        const struct model_place *place = &s->assigned[c->first + i];

        write_block(m, c, place, exact);
        entry_of(o, c->word)[i] =
            exact && s->checksums ? model_sum_slices(m, place, c->first_slice, c->n_slices) : 0xbad;
    }
    write_word(m, o, c->word, c->number);
    c->live = false;
    c->written = true;
}

void model_load_finish(struct model *m, struct model_load *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        model_expect(m, model_is_exact(m, &l->places[i]), "key %u changed while it was loaded",
                     l->places[i].key);
    if (l->by_daemon) {
        bool copied = !m->copies_fail && model_chance(m, 900);

        for (uint32_t i = 0; i < l->n && copied; i++)
            m->expected.bytes_loaded[l->places[i].tier] +=
                m->parts[l->places[i].part].layout.block_bytes;
        l->used = l->live = false;
        store_load_copied(m->store, l->by_daemon, copied);
        return;
    }
    write_word(m, &m->owners[l->owner], l->word, l->number);
    l->live = false;
}

void model_waive(struct model *m, uint32_t owner)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++)
            if (m->saves[i].owner == owner && !m->saves[i].by_daemon)
                m->saves[i].chunks[c].live = false;
    for (uint32_t i = 0; i < MODEL_LOADS; i++) {
        struct model_load *l = &m->loads[i];

        if (!l->used || l->owner != owner || l->by_daemon)
            continue;
        /* Whether a word that was not looked at counted is not known any more. */
        for (uint32_t k = 0; k < l->n && !l->live; k++)
            m->maybe_loaded[l->places[k].tier] += m->parts[l->places[k].part].layout.block_bytes;
        l->used = l->live = false;
    }
}

static struct model_chunk *pick_chunk(struct model *m, struct model_save **save)
{
    uint32_t at = model_below(m, MODEL_SAVES);

    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[(at + i) % MODEL_SAVES];
        uint32_t first = model_below(m, s->n_chunks);

        for (uint32_t c = 0; s->used && s->sealed && c < s->n_chunks; c++) {
            struct model_chunk *chunk = &s->chunks[(first + c) % s->n_chunks];

            if (!chunk->live)
                continue;
            *save = s;
            return chunk;
        }
    }
    return NULL;
}

static void write_step(struct model *m)
{
    struct model_save *s;
    struct model_chunk *c = pick_chunk(m, &s);
    uint32_t what = model_below(m, 100), number;
    bool dead;

    if (!c)
        return;
    dead = m->owners[s->owner].life == LIFE_DEAD && !s->by_daemon;
    number = (uint32_t)(c - s->chunks);
    if (what < 30) {
        model_begin(m, "owner %u writes in chunk %u of save %llu", s->owner, number,
                    (unsigned long long)s->id);
        model_spoil_slices(m, &s->assigned[c->first + model_below(m, c->blocks)], c->first_slice,
                           c->n_slices);
    } else if (what < 38 && !s->by_daemon) {
        model_begin(m, "owner %u writes a wrong number for chunk %u of save %llu", s->owner, number,
                    (unsigned long long)s->id);
        write_word(m, &m->owners[s->owner], c->word,
                   what & 1 ? c->number - 1 - model_below(m, 3) : UINT64_MAX);
    } else if (!dead || what < 60) {
        model_begin(m, "owner %u ends chunk %u of save %llu", s->owner, number,
                    (unsigned long long)s->id);
        model_chunk_finish(m, s, c, s->by_daemon ? what < 93 : !dead && !(s->aborted && what < 60));
    }
}

static void read_step(struct model *m)
{
    uint32_t at = model_below(m, MODEL_LOADS);

    for (uint32_t i = 0; i < MODEL_LOADS; i++) {
        struct model_load *l = &m->loads[(at + i) % MODEL_LOADS];

        if (!l->live)
            continue;
        model_begin(m, "owner %u ends load of word %u", l->owner, l->word);
        model_load_finish(m, l);
        return;
    }
}

static void nudge(struct model *m)
{
    struct model_owner *o = model_pick_owner(m, 0);

    if (!o)
        return;
    model_begin(m, "owner %u nudges", model_owner_index(m, o));
    m->nudged = o;
    store_nudge(m->store, o->owner);
}

void model_worker_step(struct model *m)
{
    uint32_t what = model_below(m, 100);

    if (what < 65)
        write_step(m);
    else if (what < 80)
        read_step(m);
    else
        nudge(m);
}
