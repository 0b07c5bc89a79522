/* What a save must have been able to get, by what was free or clean before the call. */
#include "tests/lib/model.h"

/* Whether nothing keeps a published block from being dropped from a tier. */
static bool is_evictable(struct model *m, const struct model_save *s, enum tier_kind tier,
                         uint32_t slot)
{
    const struct model_seen *seen = &m->seen[tier][slot];

    if (seen->state != SLOT_READY || model_is_leased(m, seen->part, seen->key, true) ||
        m->pinned[seen->part][seen->key])
        return false;
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        for (uint32_t k = 0; m->loads[i].used && k < m->loads[i].n; k++)
            if (m->loads[i].places[k].part == seen->part && m->loads[i].places[k].key == seen->key)
                return false;
    for (uint32_t i = 0; i < MODEL_MOVES; i++)
        if (m->moves[i].used && m->moves[i].from.part == seen->part &&
            m->moves[i].from.key == seen->key)
            return false;
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        const struct model_save *other = &m->saves[i];

        for (uint32_t k = 0; other->used && (!other->sealed || other == s) && k < other->n_keys;
             k++)
            if (other->part[k] == seen->part && other->key[k] == seen->key)
                return false;
    }
    return true;
}

/* closed: its extent, so that it makes no room; but who has dirty blocks there is waited for. */
static void count_slot(struct model *m, const struct model_save *s, uint32_t slot, bool closed,
                       struct model_room *r)
{
    const struct model_seen *seen = &m->seen[r->tier][slot];
    uint32_t ns;

    r->free += seen->state == SLOT_FREE && !closed;
    if (seen->state != SLOT_READY)
        return;
    ns = m->parts[seen->part].namespace_;
    if (r->tier == TIER_HOST)
        r->clean[ns] += !closed && ns == r->taker &&
                        !model_is_ready(m, seen->part, seen->key, TIER_GPU) &&
                        is_evictable(m, s, r->tier, slot);
    else if (!model_is_ready(m, seen->part, seen->key, TIER_HOST))
        r->dirty[ns]++;
    else
        r->clean[ns] += !closed && is_evictable(m, s, r->tier, slot);
}

/*
 * Of so many slots of the tier, those that a save of one entry must have been able to get: free
 * ones, and in the gpu tier those of clean blocks that its namespace may take, in the host tier
 * those of its own blocks that are nowhere else, whoever gives. Counted from before the call.
 */
static uint32_t room_before(struct model *m, const struct model_save *s, uint32_t missing)
{
    const enum tier_kind tier = s->to_host ? TIER_HOST : TIER_GPU;
    const struct table_tier *t = &table_header(m->table)->tiers[tier];
    const struct model_part *part = &m->parts[s->part[0]];
    struct model_room r;
    uint32_t room = 0;

    model_room_begin(m, s->part[0], tier, &r);
    for (uint32_t e = 0; e < t->extents; e++) {
        const struct table_extent *extent = table_extent(m->table, tier, e);
        uint32_t first = e * t->slots_per_extent;
        struct slots_extent look;

        store_look_at_extent(m->store, tier, e, &look);
        if (extent->slot_bytes != part->layout.slot_bytes ||
            extent->tenant != m->tenants[part->tenant])
            continue;
        if (!s->by_daemon && !look.closed && !model_maps_slot(m, &m->owners[s->owner], tier, first))
            return 0;
        for (uint32_t i = 0; i == 0 || (i + 1) * extent->slot_bytes <= t->extent_bytes; i++)
            count_slot(m, s, first + i, look.closed, &r);
    }
    while (room < missing && model_room_take(m, &r))
        room++;
    return room;
}

/* A save of one entry that was answered at once leaves nothing out for which there was room. */
void model_expect_admission(struct model *m, const struct model_save *s)
{
    uint32_t missing = 0, room;

    if (s->n_entries != 1 || s->n_keys == 0 || s->opened != m->step || s->aborted || m->fault)
        return;
    for (uint32_t k = 0; k < s->n_keys; k++)
        missing += !s->was_ready[k] && !s->was_filling[k];
    room = room_before(m, s, missing);
    model_expect(m, s->n_assigned >= room,
                 "%u keys are assigned; %u were missing, and there was room for %u", s->n_assigned,
                 missing, room);
}
