/* What a lookup of the model is granted: the rules of PROTOCOL.md, word by word. */
#include "tests/lib/model.h"

bool model_needs(const struct model_part *part, uint32_t at, uint32_t end)
{
    return at < end && end - at <= part->needed;
}

/* Whether block `at` of the prefix is there for part p: found now, or held by the lease so far. */
static bool has(const struct model *m, const struct model_lookup *l, uint32_t p, uint32_t at)
{
    if (at < l->offset)
        return model_needs(&m->parts[l->parts[p]], at, l->append->n_keys);
    return model_is_published(m, l->parts[p], l->keys[at - l->offset]);
}

static bool rules_hold(const struct model *m, const struct model_lookup *l, uint32_t end)
{
    for (uint32_t p = 0; p < l->n_parts; p++)
        for (uint32_t at = 0; at < end; at++)
            if (model_needs(&m->parts[l->parts[p]], at, end) && !has(m, l, p, at))
                return false;
    return true;
}

/* Blocks of a namespace that would be held for it, and that no lease holds. */
static uint64_t count_new(const struct model *m, const struct model_lookup *l, uint32_t ns,
                          uint32_t end)
{
    uint64_t n = 0;

    for (uint32_t p = 0; p < l->n_parts; p++)
        for (uint32_t at = l->offset; m->parts[l->parts[p]].namespace_ == ns && at < end; at++)
            n += model_needs(&m->parts[l->parts[p]], at, end) &&
                 !model_is_leased(m, l->parts[p], l->keys[at - l->offset], true);
    return n;
}

static bool quotas_let(const struct model *m, const struct model_lookup *l,
                       const uint64_t room[MODEL_NAMESPACES], uint32_t end)
{
    for (uint32_t ns = 0; ns < MODEL_NAMESPACES; ns++)
        if (room[ns] != UINT64_MAX && count_new(m, l, ns, end) > room[ns])
            return false;
    return true;
}

uint32_t model_prefix(const struct model *m, const struct model_lookup *l)
{
    uint64_t room[MODEL_NAMESPACES];
    uint32_t tenant = m->parts[l->parts[0]].tenant;

    for (uint32_t ns = 0; ns < MODEL_NAMESPACES; ns++) {
        uint64_t quota = l->probe ? 0 : m->quotas[ns].leases;
        uint64_t leased = quota ? model_leased_blocks(m, tenant, ns) : 0;

        room[ns] = quota == 0 ? UINT64_MAX : leased < quota ? quota - leased : 0;
    }
    for (uint32_t end = l->offset + l->n_keys; end > l->offset; end--)
        if (rules_hold(m, l, end) && quotas_let(m, l, room, end))
            return end;
    if (!l->append)
        return 0;
    if (l->append->n_keys <= l->offset)
        return l->append->n_keys;
    return rules_hold(m, l, l->offset) ? l->offset : 0;
}
