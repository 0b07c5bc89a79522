/* After each step: the slot table, the claims of workers and mover, the figures and the bytes. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/model.h"

#define WORDS_LOOKED_AT_US (300 * CLOCK_MS_US) /* by then a tick has looked at every word */

typedef unsigned long long ull;

static const char *const state_names[] = {"free",       "filling", "ready",
                                          "quarantine", "moving",  "doomed"};

static struct model_seen look(struct model *m, enum tier_kind tier, uint32_t slot)
{
    const struct table_slot *record = table_slot(m->table, tier, slot);
    struct model_seen seen = {.state = record->state, .generation = record->generation};

    seen.part = record->state == SLOT_FREE ? UINT32_MAX : model_part_of(m, record->part);
    memcpy(&seen.key, record->key, sizeof(seen.key));
    return seen;
}

static uint64_t slot_offset(struct model *m, enum tier_kind tier, uint32_t slot)
{
    const struct table_tier *t = &table_header(m->table)->tiers[tier];
    uint32_t extent = slot / t->slots_per_extent;

    return extent * t->extent_bytes +
           slot % t->slots_per_extent * table_extent(m->table, tier, extent)->slot_bytes;
}

static bool is_place(const struct model_place *p, enum tier_kind tier, uint32_t slot,
                     uint32_t generation)
{
    return p->tier == tier && p->slot == slot && p->generation == generation;
}

/*
 * Blocks that a flush finds may have been evicted by it before, for those that the end of leases
 * brought up: then they are counted as such.
 */
static void count_excused(struct model *m, enum tier_kind tier)
{
    m->maybe_evicted += m->flushed || m->n_flushed;
    m->maybe_evicted_from[tier] += m->flushed || m->n_flushed;
}

static bool is_excused(const struct model *m, uint32_t part, uint32_t key)
{
    if (m->reported && m->reported_part == part && m->reported_key == key)
        return true;
    return (m->flushed && model_is_flushed(m, part)) || model_is_flushed_key(m, part, key);
}

/* ------------------------------------------------------------ what a slot may become */

static void judge_publication(struct model *m, struct model_save *s, uint32_t i)
{
    uint32_t chunk = 0;

    model_expect(m, !s->aborted, "save %llu is aborted, and its key %u is published", (ull)s->id,
                 s->assigned[i].key);
    while (i >= s->chunks[chunk].first + s->chunks[chunk].blocks)
        chunk++;
    for (uint32_t c = 0; c <= chunk; c++)
        model_expect(m, model_chunk_proved(m, s, c),
                     "key %u is published with chunk %u of save %llu, before the proof of chunk %u",
                     s->assigned[i].key, chunk, (ull)s->id, c);
    model_expect(m, !s->published[i], "key %u is published twice", s->assigned[i].key);
    s->published[i] = true;
    s->n_published++;
    m->summed[s->assigned[i].part][s->assigned[i].key] = s->checksums;
    m->expected.published_blocks++;
    m->expected.bytes_saved[s->assigned[i].tier] +=
        m->parts[s->assigned[i].part].layout.block_bytes;
}

static void became_ready(struct model *m, enum tier_kind tier, uint32_t slot,
                         const struct model_seen *now)
{
    struct model_place place = {.tier = tier,
                                .slot = slot,
                                .generation = now->generation,
                                .offset = slot_offset(m, tier, slot),
                                .part = now->part,
                                .key = now->key};

    model_expect(m, model_is_exact(m, &place), "key %u became ready with wrong bytes", now->key);
    for (uint32_t i = 0; i < m->n_slots[tier]; i++) {
        struct model_seen other = look(m, tier, i);

        model_expect(m,
                     i == slot || other.state != SLOT_READY || other.part != now->part ||
                         other.key != now->key,
                     "key %u is ready twice in a tier", now->key);
    }
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        for (uint32_t k = 0; s->used && s->sealed && k < s->n_assigned; k++) {
            if (!is_place(&s->assigned[k], tier, slot, now->generation))
                continue;
            judge_publication(m, s, k);
            return;
        }
    }
    for (uint32_t i = 0; i < MODEL_MOVES; i++) {
        struct model_move *move = &m->moves[i];

        if (!move->ended || !is_place(&move->to, tier, slot, now->generation))
            continue;
        model_expect(m, move->status == KVC_OK, "key %u is ready by a copy that failed", now->key);
        model_expect(m, move->to.key == now->key && move->to.part == now->part,
                     "key %u is ready by a copy of another", now->key);
        return;
    }
    model_fail(m, "key %u is ready in slot %u, and nobody wrote it", now->key, slot);
}

bool model_is_ready_now(struct model *m, uint32_t part, uint32_t key)
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            struct model_seen now = look(m, t, i);

            if (now.state == SLOT_READY && now.part == part && now.key == key)
                return true;
        }
    return false;
}

static void was_dropped(struct model *m, enum tier_kind tier, uint32_t slot,
                        const struct model_seen *before)
{
    if (is_excused(m, before->part, before->key)) {
        count_excused(m, tier);
        return;
    }
    model_expect(m, !model_is_leased(m, before->part, before->key, false),
                 "leased key %u is dropped from tier %u", before->key, tier);
    model_expect(m, m->pinned[before->part][before->key] <= clock_now_us(),
                 "pinned key %u is dropped from tier %u", before->key, tier);
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        for (uint32_t k = 0; m->loads[i].live && k < m->loads[i].n; k++)
            model_expect(m, !is_place(&m->loads[i].places[k], tier, slot, before->generation),
                         "key %u is dropped while it is loaded", before->key);
    for (uint32_t i = 0; i < MODEL_MOVES; i++)
        model_expect(
            m, !m->moves[i].used || !is_place(&m->moves[i].from, tier, slot, before->generation),
            "key %u is dropped while it is moved", before->key);
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        const struct model_save *s = &m->saves[i];

        for (uint32_t k = 0; s->used && !s->sealed && !s->aborted && k < s->n_keys; k++)
            model_expect(m,
                         !s->was_ready[k] || s->lost_hits || s->key[k] != before->key ||
                             s->part[k] != before->part,
                         "key %u is a hit of a save that is being admitted, and dropped",
                         before->key);
    }
    m->expected.tier_evictions[tier]++;
    /* A block that lost both copies in this step was evicted once. */
    if (!model_is_ready_now(m, before->part, before->key) &&
        (tier == TIER_GPU || !model_is_ready(m, before->part, before->key, TIER_GPU)))
        m->expected.evictions++;
}

/* Nobody sees it, but it counts: proved, published, and evicted for others in one step. */
static void was_brief(struct model *m, struct model_save *s, uint32_t i)
{
    const struct model_place *place = &s->assigned[i];

    judge_publication(m, s, i);
    if (is_excused(m, place->part, place->key)) {
        count_excused(m, place->tier);
        return;
    }
    m->expected.tier_evictions[place->tier]++;
    m->expected.evictions += !model_is_ready_now(m, place->part, place->key);
}

static void find_brief(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        for (uint32_t k = 0; s->used && s->sealed && k < s->n_assigned; k++) {
            const struct model_place *p = &s->assigned[k];
            const struct table_slot *record = table_slot(m->table, p->tier, p->slot);

            if (!s->published[k] && m->brief[p->tier][p->part][p->key] == m->step &&
                m->seen[p->tier][p->slot].generation == p->generation &&
                (record->generation != p->generation || record->state == SLOT_FREE))
                was_brief(m, s, k);
        }
    }
}

static const struct model_save *filler(struct model *m, enum tier_kind tier, uint32_t slot,
                                       uint32_t generation, bool *unsealed)
{
    *unsealed = false;
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        const struct model_save *s = &m->saves[i];

        if (!s->used)
            continue;
        *unsealed |= !s->sealed;
        for (uint32_t k = 0; s->sealed && k < s->n_assigned; k++)
            if (is_place(&s->assigned[k], tier, slot, generation))
                return s;
    }
    return NULL;
}

/* Whether somebody is known for whom a slot is in this state. */
static void judge_state(struct model *m, enum tier_kind tier, uint32_t slot,
                        const struct model_seen *now)
{
    const struct model_save *s;
    bool unsealed, known = false;

    switch (now->state) {
    case SLOT_FREE:
    case SLOT_READY:
        return;
    case SLOT_FILLING:
        s = filler(m, tier, slot, now->generation, &unsealed);
        known = s ? !s->aborted : unsealed;
        break;
    case SLOT_QUARANTINE:
        s = filler(m, tier, slot, now->generation, &unsealed);
        known = s && (s->aborted || s->aborting);
        break;
    case SLOT_MOVING:
        for (uint32_t i = 0; i < MODEL_MOVES; i++)
            known |= m->moves[i].used && is_place(&m->moves[i].to, tier, slot, now->generation);
        break;
    case SLOT_DOOMED:
        for (uint32_t i = 0; i < MODEL_LOADS; i++)
            for (uint32_t k = 0; m->loads[i].used && k < m->loads[i].n; k++)
                known |= is_place(&m->loads[i].places[k], tier, slot, now->generation);
        for (uint32_t i = 0; i < MODEL_MOVES; i++)
            known |= m->moves[i].used && is_place(&m->moves[i].from, tier, slot, now->generation);
        break;
    }
    model_expect(m, known, "slot %u of tier %u is %s for nobody", slot, tier,
                 now->state <= SLOT_DOOMED ? state_names[now->state] : "in no state");
}

/* A copy counts if its block was one until then, also when it makes room for another at once. */
static void count_move(struct model *m, const struct model_move *move)
{
    const struct model_place *to = &move->to;
    struct model_seen now = look(m, to->tier, to->slot);

    if (move->status != KVC_OK) {
        m->expected.failed_demotions += to->tier == TIER_HOST;
        return;
    }
    if (m->seen[move->from.tier][move->from.slot].state != SLOT_READY)
        return;
    m->expected.bytes_moved[to->tier] += m->parts[to->part].layout.block_bytes;
    if (to->tier == TIER_HOST)
        m->expected.demotions++;
    else
        m->expected.promotions++;
    if (now.state != SLOT_READY || now.generation != to->generation)
        m->expected.tier_evictions[to->tier]++;
}

static void compare_slots(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_MOVES; i++)
        if (m->moves[i].ended)
            count_move(m, &m->moves[i]);
    find_brief(m);
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            struct model_seen before = m->seen[t][i], now = look(m, t, i);
            bool same = now.generation == before.generation;

            if (!same || now.state != before.state)
                model_begin(m, "       tier %u slot %u: %s part %d key %u -> %s part %d key %u", t,
                            i, state_names[before.state], (int)before.part, before.key,
                            state_names[now.state], (int)now.part, now.key);
            if (before.state == SLOT_READY && (now.state != SLOT_READY || !same))
                was_dropped(m, t, i, &before);
            if (now.state == SLOT_READY && (before.state != SLOT_READY || !same))
                became_ready(m, t, i, &now);
            if (before.state != SLOT_FREE && now.state != SLOT_FREE && same)
                model_expect(m, before.part == now.part && before.key == now.key,
                             "slot %u of tier %u changed its key from %u to %u", i, t, before.key,
                             now.key);
            judge_state(m, t, i, &now);
        }
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++)
            m->seen[t][i] = look(m, t, i);
}

bool model_is_ready_or_gone(struct model *m, const struct model_place *place)
{
    struct model_seen now = look(m, place->tier, place->slot);

    return now.generation != place->generation || now.state != SLOT_FILLING;
}

/* ------------------------------------------------------------ claims */

void model_expect_free_word(struct model *m, uint32_t owner, uint32_t word)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++)
            model_expect(m,
                         m->saves[i].owner != owner || m->saves[i].by_daemon ||
                             m->saves[i].chunks[c].word != word || !m->saves[i].chunks[c].live,
                         "word %u of owner %u is somebody's", word, owner);
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        model_expect(m,
                     !m->loads[i].live || m->loads[i].owner != owner || m->loads[i].by_daemon ||
                         m->loads[i].word != word,
                     "word %u of owner %u is somebody's", word, owner);
}

static void judge_claim(struct model *m, const struct model_place *p, uint32_t states,
                        const char *who)
{
    const struct model_seen *now = &m->seen[p->tier][p->slot];

    model_expect(m, now->generation == p->generation && (states >> now->state & 1),
                 "slot %u of tier %u (key %u) is %s in generation %u while %s it in %u", p->slot,
                 p->tier, p->key, state_names[now->state], now->generation, who, p->generation);
}

static void compare_claims(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++) {
            const struct model_save *s = &m->saves[i];
            const struct model_chunk *chunk = &s->chunks[c];

            for (uint32_t k = chunk->first; chunk->live && k < chunk->first + chunk->blocks; k++)
                judge_claim(m, &s->assigned[k],
                            s->aborted ? 1u << SLOT_QUARANTINE
                                       : 1u << SLOT_FILLING | 1u << SLOT_QUARANTINE,
                            "a worker may write to");
            for (uint32_t k = chunk->first + 1; k < chunk->first + chunk->blocks; k++)
                model_expect(m, s->published[k] == s->published[k - 1],
                             "chunk %u of save %llu is published in parts", c, (ull)s->id);
        }
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        for (uint32_t k = 0; m->loads[i].live && k < m->loads[i].n; k++)
            judge_claim(m, &m->loads[i].places[k],
                        1u << SLOT_READY | 1u << SLOT_DOOMED | 1u << SLOT_QUARANTINE,
                        "a worker may read");
    for (uint32_t i = 0; i < MODEL_MOVES; i++) {
        if (!m->moves[i].used)
            continue;
        judge_claim(m, &m->moves[i].from, 1u << SLOT_READY | 1u << SLOT_DOOMED,
                    "the mover copies from");
        judge_claim(m, &m->moves[i].to, 1u << SLOT_MOVING, "the mover copies to");
    }
}

/* ------------------------------------------------------------ bytes */

static void compare_bytes(struct model *m)
{
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct model_seen *now = &m->seen[t][i];
            struct model_place place = {.tier = t, .slot = i, .part = now->part, .key = now->key};

            if (now->state != SLOT_READY)
                continue;
            place.offset = slot_offset(m, t, i);
            model_expect(m, model_is_exact(m, &place),
                         "published key %u has wrong bytes in tier %u", now->key, t);
        }
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        for (uint32_t k = 0; m->loads[i].live && k < m->loads[i].n; k++)
            model_expect(m, model_is_exact(m, &m->loads[i].places[k]),
                         "key %u changed while it is loaded", m->loads[i].places[k].key);
}

/* ------------------------------------------------------------ events and promises */

static void owner_freed(struct model *m, uint32_t index)
{
    struct model_owner *o = &m->owners[index];

    model_expect(m, o->life != LIFE_OPEN, "owner %u is freed while it is connected", index);
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++)
            model_expect(m, m->saves[i].owner != index || !m->saves[i].chunks[c].live,
                         "owner %u is freed while its worker may write", index);
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        model_expect(m, m->loads[i].owner != index || !m->loads[i].live,
                     "owner %u is freed while its worker may read", index);
    model_owner_release(m, o);
}

static void take_events(struct model *m)
{
    for (uint32_t i = 0; i < m->n_events; i++)
        if (!m->events[i].freed)
            model_save_done(m, &m->events[i]);
    for (uint32_t i = 0; i < m->n_events; i++)
        if (m->events[i].freed)
            owner_freed(m, m->events[i].owner);
    m->n_events = 0;
}

/* After a tick every ended owner that owes nothing has been freed. */
static void compare_ended(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_OWNERS; i++) {
        const struct model_owner *o = &m->owners[i];
        bool owes = false;

        if (o->life == LIFE_NONE || o->life == LIFE_OPEN ||
            clock_now_us() - o->last_word < WORDS_LOOKED_AT_US)
            continue;
        for (uint32_t k = 0; k < MODEL_SAVES; k++)
            for (uint32_t c = 0; m->saves[k].used && c < m->saves[k].n_chunks; c++)
                owes |= m->saves[k].owner == i && m->saves[k].chunks[c].live;
        for (uint32_t k = 0; k < MODEL_LOADS; k++)
            owes |= m->loads[k].live && m->loads[k].owner == i;
        model_expect(m, owes, "owner %u has ended and owes nothing, and is not freed", i);
    }
}

void model_compare(struct model *m, bool all_bytes)
{
    const char *broken = store_check(m->store);

    model_expect(m, !broken, "store_check: %s", broken);
    model_save_deadlines(m);
    compare_slots(m);
    model_compare_events(m);
    take_events(m);
    model_save_sweep(m);
    model_lease_sweep(m);
    model_load_sweep(m);
    model_pin_sweep(m);
    compare_claims(m);
    if (all_bytes)
        compare_bytes(m);
    if (m->ticked)
        compare_ended(m);
    model_compare_figures(m);
    model_compare_usage(m);
    for (uint32_t i = 0; i < MODEL_MOVES; i++)
        m->moves[i].ended = false;
    m->flushed = m->reported = m->ticked = false;
    m->n_flushed = 0;
    m->nudged = NULL;
}
