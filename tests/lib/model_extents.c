/* The model's extents that change hands: sessions that unmap, late or never, and new memory. */
#include <string.h>

#include "tests/lib/model.h"

void model_on_extents(void *ctx, struct owner *owner, const uint32_t *withdrawn, uint32_t n,
                      bool granted)
{
    struct model *m = ctx;
    struct model_owner *o = NULL;

    for (uint32_t i = 0; i < MODEL_OWNERS; i++)
        if (m->owners[i].life == LIFE_OPEN && m->owners[i].owner == owner)
            o = &m->owners[i];
    model_expect(m, o != NULL, "extents of somebody who is not connected");
    for (uint32_t i = 0; i < n; i++) {
        enum tier_kind tier = withdrawn[i] >> 31 ? TIER_HOST : TIER_GPU;
        uint32_t extent = withdrawn[i] & INT32_MAX;

        model_expect(m, extent < MODEL_EXTENTS && o->mapped[tier][extent],
                     "owner %u is to unmap extent %u of tier %u, which it does not map",
                     model_owner_index(m, o), extent, tier);
        o->mapped[tier][extent] = false;
        o->asked[tier][extent] = true;
    }
    o->granted |= granted;
}

/* What a process of the extent's tenant could still reach must not be there any more. */
static kvc_status renew(void *renewer, enum tier_kind tier, uint32_t extent, move_done_cb *done,
                        void *arg)
{
    struct model *m = renewer;
    const struct table_tier *t = &table_header(m->table)->tiers[tier];
    uint32_t at = 0;

    for (uint32_t i = 0; i < MODEL_OWNERS; i++) {
        const struct model_owner *o = &m->owners[i];

        model_expect(m,
                     o->life == LIFE_NONE || o->life == LIFE_GONE ||
                         (!o->mapped[tier][extent] && !o->asked[tier][extent]),
                     "extent %u of tier %u is taken from owner %u, which maps it", extent, tier, i);
    }
    for (uint32_t i = 0; i < t->slots_per_extent; i++)
        model_expect(
            m, table_slot(m->table, tier, extent * t->slots_per_extent + i)->state == SLOT_FREE,
            "extent %u of tier %u is taken with slots in use", extent, tier);
    while (at < MODEL_RENEWS && m->renews[at].used)
        at++;
    if (at == MODEL_RENEWS || model_chance(m, 50))
        return KVC_E_NO_MEMORY;
    m->renews[at] = (struct model_renew){true, tier, extent, done, arg};
    memset(m->memory[tier] + extent * t->extent_bytes, 0x5a, t->extent_bytes);
    return KVC_OK;
}

const struct renew_ops model_renewer = {.renew = renew};

bool model_renew_step(struct model *m)
{
    struct model_renew ended = {0};
    uint64_t bytes;
    uint32_t at;

    for (at = 0; at < MODEL_RENEWS && !m->renews[at].used; at++)
        ;
    if (at == MODEL_RENEWS)
        return false;
    ended = m->renews[at];
    bytes = table_header(m->table)->tiers[ended.tier].extent_bytes;
    m->renews[at].used = false;
    model_begin(m, "extent %u of tier %u has new memory", ended.extent, ended.tier);
    memset(m->memory[ended.tier] + ended.extent * bytes, 0, bytes);
    ended.done(ended.arg, model_chance(m, 100) ? KVC_E_BUSY : KVC_OK);
    return true;
}

/* A session does what it was asked, sooner or later, or maps what it may. */
void model_extent_steps(struct model *m)
{
    struct model_owner *o = &m->owners[model_below(m, MODEL_OWNERS)];

    if (model_chance(m, 500) && model_renew_step(m))
        return;
    if (o->life != LIFE_OPEN || !o->page)
        return;
    model_begin(m, "owner %u unmaps and maps", model_owner_index(m, o));
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < MODEL_EXTENTS; i++) {
            if (!o->asked[tier][i] || model_chance(m, 200))
                continue;
            o->asked[tier][i] = false;
            model_expect(
                m, store_owner_unmapped(m->store, o->owner, (uint32_t)tier << 31 | i) == KVC_OK,
                "extent %u of tier %u cannot be unmapped", i, tier);
        }
    }
    if (o->granted || model_chance(m, 100))
        model_map_extents(m, o, true);
    o->granted = false;
}
