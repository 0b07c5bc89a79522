/* What namespaces of the model use and may use, and whose blocks go first: the plain way. */
#include <string.h>

#include "tests/lib/model.h"

/* Of a namespace of a tenant: slots in any state but free. */
static uint64_t used_bytes(const struct model *m, uint32_t tenant, uint32_t ns, enum tier_kind tier)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < m->n_slots[tier]; i++) {
        const struct model_seen *seen = &m->seen[tier][i];

        if (seen->state != SLOT_FREE && m->parts[seen->part].tenant == tenant &&
            m->parts[seen->part].namespace_ == ns)
            bytes += m->parts[seen->part].layout.slot_bytes;
    }
    return bytes;
}

static uint64_t owned_bytes(const struct model *m, uint32_t tenant, enum tier_kind tier)
{
    const struct table_tier *t = &table_header(m->table)->tiers[tier];
    uint64_t bytes = 0;

    for (uint32_t e = 0; e < t->extents; e++) {
        const struct table_extent *extent = table_extent(m->table, tier, e);

        if (extent->state != EXTENT_FREE && extent->tenant == m->tenants[tenant])
            bytes += t->extent_bytes;
    }
    return bytes;
}

uint64_t model_leased_blocks(const struct model *m, uint32_t tenant, uint32_t ns)
{
    uint64_t n = 0;

    for (uint32_t p = 0; p < m->n_parts; p++)
        for (uint32_t k = 0;
             m->parts[p].tenant == tenant && m->parts[p].namespace_ == ns && k < MODEL_KEYS; k++)
            n += model_is_published(m, p, k) && model_is_leased(m, p, k, true);
    return n;
}

static uint64_t share(const struct model *m, const struct model_room *r, uint32_t ns)
{
    uint64_t rest = r->owned, others = 0;

    if (m->quotas[ns].bytes[r->tier] != 0)
        return m->quotas[ns].bytes[r->tier];
    for (uint32_t i = 0; i < MODEL_NAMESPACES; i++) {
        uint64_t quota = m->quotas[i].bytes[r->tier];

        rest = rest > quota ? rest - quota : 0;
        others += quota == 0 && (r->used[i] > 0 || i == ns);
    }
    return rest / others;
}

/* Whether a's use is more of its share than b's with so many bytes more. */
static bool is_more(const struct model *m, const struct model_room *r, uint32_t a, uint32_t b,
                    uint64_t more)
{
    unsigned __int128 left = (unsigned __int128)r->used[a] * share(m, r, b);
    unsigned __int128 right = (unsigned __int128)(r->used[b] + more) * share(m, r, a);

    return left > right;
}

static uint32_t giver(const struct model *m, const struct model_room *r,
                      const uint32_t blocks[MODEL_NAMESPACES])
{
    uint32_t most = UINT32_MAX;

    for (uint32_t i = 0; i < MODEL_NAMESPACES; i++)
        if (blocks[i] > 0 && (most == UINT32_MAX || is_more(m, r, i, most, 0)))
            most = i;
    if (most == UINT32_MAX || most == r->taker || is_more(m, r, most, r->taker, r->slot_bytes))
        return most;
    return blocks[r->taker] > 0 ? r->taker : UINT32_MAX;
}

void model_room_begin(const struct model *m, uint32_t part, enum tier_kind tier,
                      struct model_room *r)
{
    *r = (struct model_room){
        .tier = tier,
        .taker = m->parts[part].namespace_,
        .slot_bytes = m->parts[part].layout.slot_bytes,
        .owned = owned_bytes(m, m->parts[part].tenant, tier),
    };
    for (uint32_t i = 0; i < MODEL_NAMESPACES; i++)
        r->used[i] = used_bytes(m, m->parts[part].tenant, i, tier);
}

bool model_room_take(const struct model *m, struct model_room *r)
{
    uint32_t clean;

    if (r->free > 0) {
        r->free--;
        r->used[r->taker] += r->slot_bytes;
        return true;
    }
    clean = giver(m, r, r->clean);
    if (clean == UINT32_MAX)
        return false;
    /* Who is over its share by more is waited for, unless who has a clean one is over it too. */
    for (uint32_t i = 0; i < MODEL_NAMESPACES; i++)
        if (i != clean && r->dirty[i] > 0 && r->used[clean] <= share(m, r, clean) &&
            is_more(m, r, i, clean, 0))
            return false;
    r->clean[clean]--;
    r->used[clean] -= r->slot_bytes;
    r->used[r->taker] += r->slot_bytes;
    return true;
}
