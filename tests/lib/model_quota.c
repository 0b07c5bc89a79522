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
    static bool leased[MODEL_PARTS][MODEL_KEYS];
    uint64_t n = 0;

    memset(leased, 0, sizeof(leased));
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        const struct model_lease *l = &m->leases[i];

        for (uint32_t p = 0; l->used && !l->ended && p < l->n_parts; p++)
            for (uint32_t k = 0; k < l->n_keys; k++)
                leased[l->parts[p]][l->keys[k]] |=
                    !l->gone[p][k] && model_needs(&m->parts[l->parts[p]], k, l->n_keys);
    }
    for (uint32_t p = 0; p < m->n_parts; p++)
        for (uint32_t k = 0;
             m->parts[p].tenant == tenant && m->parts[p].namespace_ == ns && k < MODEL_KEYS; k++)
            n += leased[p][k] && model_is_published(m, p, k);
    return n;
}

/* Sometimes small, sometimes none, and sometimes nonsense. */
void model_set_quota(struct model *m)
{
    uint32_t ns = model_below(m, MODEL_NAMESPACES), count = 0;
    const struct table_tier *tiers = table_header(m->table)->tiers;
    struct store_quota quota = {.leases = model_chance(m, 500) ? 1 + model_below(m, 40) : 0};
    bool clear = model_chance(m, 500), bad = false;
    uint8_t digest[KVC_NAMESPACE_BYTES];
    struct refusal why;
    kvc_status status;

    memset(digest, 0x40 + (int)ns, sizeof(digest));
    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        quota.bytes[t] = model_chance(m, 500) ? model_below(m, (uint32_t)tiers[t].bytes + 1) : 0;
        if (model_chance(m, 30))
            quota.bytes[t] = tiers[t].bytes + 1;
        bad |= quota.bytes[t] > tiers[t].bytes;
    }
    model_begin(m, "quota of namespace %u: %llu, %llu, %llu leases%s", ns,
                (unsigned long long)quota.bytes[0], (unsigned long long)quota.bytes[1],
                (unsigned long long)quota.leases, clear ? ", clear" : "");
    status = store_set_quota(m->store, digest, &quota, clear, &count, &why);
    model_expect(m, status == (bad ? KVC_E_LIMIT : KVC_OK), "a quota: %s", kvc_status_text(status));
    if (bad)
        return;
    model_expect(m, count == m->shape->tenants, "a quota of %u namespaces", count);
    if (clear)
        m->quotas[ns] = (struct store_quota){0};
    for (enum tier_kind t = 0; t < TIER_COUNT; t++)
        if (quota.bytes[t])
            m->quotas[ns].bytes[t] =
                (quota.bytes[t] + KVC_SLOT_BYTES_MIN - 1) / KVC_SLOT_BYTES_MIN * KVC_SLOT_BYTES_MIN;
    m->quotas[ns].leases = quota.leases ? quota.leases : m->quotas[ns].leases;
}

/* Every namespace uses what its slots are, and leases what the leases hold. */
void model_compare_usage(struct model *m)
{
    for (uint32_t i = 0; i < m->n_parts; i++) {
        uint32_t tenant = m->parts[i].tenant, ns = m->parts[i].namespace_;
        struct store_namespace_usage usage;

        store_namespace_usage(m->store, table_part(m->table, m->parts[i].id)->namespace_, &usage);
        for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
            uint64_t used = used_bytes(m, tenant, ns, t);

            model_expect(m, usage.used[t] == used,
                         "a namespace uses %llu bytes of tier %u, not %llu",
                         (unsigned long long)usage.used[t], t, (unsigned long long)used);
            model_expect(m, usage.quota.bytes[t] == m->quotas[ns].bytes[t], "another quota");
        }
        if (m->ticked)
            model_expect(m, usage.leased == model_leased_blocks(m, tenant, ns),
                         "%llu blocks of a namespace are leased", (unsigned long long)usage.leased);
    }
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
