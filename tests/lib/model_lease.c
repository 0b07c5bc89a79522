/* Lookups and leases of the model. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/model.h"

typedef unsigned long long ull;

bool model_lease_lives(const struct model_lease *l)
{
    return l->used && !l->ended && clock_now_us() < l->expires;
}

void model_lease_sweep(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        struct model_lease *l = &m->leases[i];

        if (l->used && (l->ended || (m->ticked && !model_lease_lives(l))))
            l->ended = true;
        if (l->used && l->ended && m->owners[l->owner].life == LIFE_NONE)
            l->used = false;
    }
}

/* A free entry, or one of a lease that has ended. */
static struct model_lease *new_lease(struct model *m)
{
    struct model_lease *found = NULL;

    for (uint32_t i = 0; i < MODEL_LEASES; i++)
        if (!m->leases[i].used || (m->leases[i].ended && !found))
            found = &m->leases[i];
    if (found)
        memset(found, 0, sizeof(*found));
    return found;
}

/* Of the owner (NULL: of anyone); ended ones too. */
static struct model_lease *pick_lease(struct model *m, const struct model_owner *o)
{
    uint32_t at = model_below(m, MODEL_LEASES);

    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        struct model_lease *l = &m->leases[(at + i) % MODEL_LEASES];

        if (l->used && (!o || l->owner == model_owner_index(m, o)))
            return l;
    }
    return NULL;
}

static struct model_lease *find_request(struct model *m, uint32_t owner, uint64_t request)
{
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        struct model_lease *l = &m->leases[i];

        if (request && model_lease_lives(l) && l->owner == owner && l->request == request)
            return l;
    }
    return NULL;
}

static uint32_t pick_ms(struct model *m)
{
    return model_chance(m, 500) ? 0
                                : 1 + model_below(m, model_chance(m, 100) ? 2 * KVC_LEASE_MS_MAX
                                                                          : KVC_LEASE_MS_DEFAULT);
}

static uint32_t granted(uint32_t ms)
{
    return ms == 0 ? KVC_LEASE_MS_DEFAULT : ms < KVC_LEASE_MS_MAX ? ms : KVC_LEASE_MS_MAX;
}

/* ------------------------------------------------------------ lookups */

/* Some, each once, in any order. */
static void pick_parts(struct model *m, const struct model_owner *o, struct model_lookup *p)
{
    uint32_t n = 1 + model_below(m, MODEL_LEASE_PARTS), at = model_below(m, MODEL_TENANT_PARTS);
    uint32_t step = 1 + model_below(m, MODEL_TENANT_PARTS - 1); /* any does: 5 is prime */

    p->n_parts = n;
    for (uint32_t i = 0; i < n; i++)
        p->parts[i] = o->tenant * MODEL_TENANT_PARTS + (at + i * step) % MODEL_TENANT_PARTS;
}

static void plan_lookup(struct model *m, struct model_owner *o, struct model_lookup *p)
{
    uint32_t chain = model_below(m, MODEL_CHAINS);

    *p = (struct model_lookup){.owner = o, .probe = model_chance(m, 150), .ms = pick_ms(m)};
    pick_parts(m, o, p);
    p->n_keys = 1 + model_below(m, m->shape->keys);
    if (model_chance(m, 300))
        p->request = 1 + model_below(m, 4);
    p->append = model_chance(m, 200) ? pick_lease(m, o) : NULL;
    if (p->append && !p->probe) {
        p->request = 0;
        p->offset = model_below(m, p->append->n_keys + 1);
        p->n_parts = p->append->n_parts;
        memcpy(p->parts, p->append->parts, sizeof(p->parts));
        if (p->n_keys > MODEL_CHAIN_KEYS - p->offset)
            p->n_keys = MODEL_CHAIN_KEYS - p->offset;
    } else {
        p->append = NULL;
    }
    for (uint32_t i = 0; i < p->n_keys; i++)
        p->keys[i] = m->chains[chain][i % m->n_chain_keys];
}

/* Keys of the call that are in a prefix that ends at `count`. */
static uint32_t in_call(const struct model_lookup *p, uint32_t count)
{
    return count > p->offset ? count - p->offset : 0;
}

static void expect_tiers(struct model *m, const struct model_lookup *p, uint32_t count,
                         const struct store_lookup_result *result)
{
    uint32_t in_tier[TIER_COUNT] = {0};

    for (uint32_t i = 0; i < in_call(p, count); i++)
        if (model_needs(&m->parts[p->parts[0]], p->offset + i, count))
            in_tier[model_is_ready(m, p->parts[0], p->keys[i], TIER_GPU) ? TIER_GPU : TIER_HOST]++;
    for (uint32_t t = 0; t < TIER_COUNT; t++)
        model_expect(m, result->in_tier[t] == in_tier[t], "%u hits in tier %u, not %u",
                     result->in_tier[t], t, in_tier[t]);
    model_expect(m, result->pending <= p->n_keys - in_call(p, count), "%u pending",
                 result->pending);
}

/* What the lease holds from its offset on is now what was found. */
static void write_lease(struct model_lease *l, const struct model_lookup *p, uint32_t count)
{
    for (uint32_t i = 0; i < in_call(p, count); i++) {
        l->keys[p->offset + i] = p->keys[i];
        for (uint32_t k = 0; k < MODEL_LEASE_PARTS; k++)
            l->gone[k][p->offset + i] = false;
    }
    l->n_keys = count;
}

static struct model_lease *granted_lookup(struct model *m, const struct model_lookup *p,
                                          struct model_lease *l, uint32_t count,
                                          const struct store_lookup_result *result)
{
    bool again = l && !p->append;

    if (!l)
        l = new_lease(m);
    if (!l->used)
        *l = (struct model_lease){.used = true,
                                  .owner = model_owner_index(m, p->owner),
                                  .id = result->lease,
                                  .request = p->request,
                                  .n_parts = p->n_parts};
    model_expect(m, result->lease == l->id && l->id != 0, "lease %llu, not %llu",
                 (ull)result->lease, (ull)l->id);
    for (uint32_t k = 0; k < p->n_parts; k++)
        l->parts[k] = p->parts[k];
    memcpy(l->token, result->token, sizeof(l->token));
    write_lease(l, p, count);
    l->expires = clock_now_us() + granted(p->ms) * CLOCK_MS_US;
    model_expect(m, result->lease_ms == granted(p->ms), "a lease of %u ms", result->lease_ms);
    model_expect(m, result->count == l->n_keys, "a lease of %u blocks, not %u", result->count,
                 l->n_keys);
    if (again)
        return l;
    m->expected.hits[TIER_GPU] += result->in_tier[TIER_GPU];
    m->expected.hits[TIER_HOST] += result->in_tier[TIER_HOST];
    m->expected.misses += p->n_keys - in_call(p, count);
    return l;
}

static bool room_for_lease(const struct model *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_LEASES; i++)
        n += m->leases[i].used && !m->leases[i].ended;
    return n < MODEL_LEASES - 4;
}

/* The lease that a lookup goes on with, or takes the place of; one whose time is over ends first.
 */
static struct model_lease *find_target(struct model *m, const struct model_owner *o,
                                       const struct model_lookup *p)
{
    struct model_lease *l;

    if (p->append)
        return (struct model_lease *)p->append;
    for (uint32_t i = 0; i < MODEL_LEASES && p->request && !p->probe; i++) {
        l = &m->leases[i];
        if (l->used && !l->ended && !model_lease_lives(l) && l->request == p->request &&
            l->owner == model_owner_index(m, o))
            l->ended = true;
    }
    return p->probe ? NULL : find_request(m, model_owner_index(m, o), p->request);
}

static kvc_status ask(struct model *m, const struct model_lookup *p,
                      struct store_lookup_result *result, struct refusal *why)
{
    struct store_lookup_part parts[MODEL_LEASE_PARTS];
    uint8_t keys[MODEL_CHAIN_KEYS][KVC_KEY_BYTES];
    const struct store_lookup request = {.request = p->request,
                                         .lease = p->append ? p->append->id : 0,
                                         .offset = p->offset,
                                         .lease_ms = p->ms,
                                         .probe = p->probe,
                                         .parts = parts,
                                         .n_parts = p->n_parts};

    for (uint32_t i = 0; i < p->n_keys; i++)
        model_key(p->keys[i], keys[i]);
    for (uint32_t k = 0; k < p->n_parts; k++)
        parts[k] = (struct store_lookup_part){.part = m->parts[p->parts[k]].id,
                                              .epoch = m->parts[p->parts[k]].epoch,
                                              .keys = keys[0],
                                              .n_keys = p->n_keys};
    return store_lookup(m->store, p->owner->owner, &request, result, why);
}

/* Whether it was refused, as it had to be. */
static bool is_refused(struct model *m, const struct model_lookup *p, struct model_lease *l,
                       kvc_status status)
{
    if (model_is_fault(m, status))
        return true;
    if (p->append && !model_lease_lives(p->append)) {
        model_expect(m, status == KVC_E_EXPIRED, "a lookup on an ended lease: %s",
                     kvc_status_text(status));
        l->ended = true;
        return true;
    }
    if (l && !p->append &&
        (l->n_parts != p->n_parts ||
         memcmp(l->parts, p->parts, sizeof(l->parts[0]) * l->n_parts))) {
        model_expect(m, status == KVC_E_INVALID, "a request again with other parts: %s",
                     kvc_status_text(status));
        return true;
    }
    return false;
}

static struct model_lease *lookup(struct model *m, struct model_owner *o,
                                  const struct model_lookup *planned)
{
    struct model_lookup p = *planned;
    struct model_lease *l;
    struct store_lookup_result result;
    struct refusal why;
    kvc_status status;
    uint32_t count;

    l = find_target(m, o, &p);
    count = model_prefix(m, &p);
    model_begin(m,
                "owner %u looks up %u keys in %u parts (%u %u %u), request %llu lease %llu "
                "offset %u%s",
                model_owner_index(m, o), p.n_keys, p.n_parts, p.parts[0], p.parts[1], p.parts[2],
                (ull)p.request, p.append ? (ull)p.append->id : 0, p.offset,
                p.probe ? ", probe" : "");
    status = ask(m, &p, &result, &why);
    if (is_refused(m, &p, l, status))
        return NULL;
    model_expect(m, status == KVC_OK, "a lookup is refused: %s: %s %s", kvc_status_text(status),
                 why.field, why.detail);
    model_expect(m, result.count == count, "a prefix of %u blocks, not %u", result.count, count);
    expect_tiers(m, &p, count, &result);
    if (!p.probe && count > 0) {
        return granted_lookup(m, &p, l, count, &result);
    }
    model_expect(m, result.lease == 0, "lease %llu of nothing", (ull)result.lease);
    if (p.probe)
        return NULL;
    m->expected.misses += l && !p.append ? 0 : p.n_keys;
    if (l)
        l->ended = true;
    return NULL;
}

struct model_lease *model_look(struct model *m, struct model_owner *o, const uint32_t *parts,
                               uint32_t n_parts, uint32_t chain, uint32_t n)
{
    struct model_lookup p = {.owner = o, .n_parts = n_parts, .n_keys = n};

    memcpy(p.parts, parts, n_parts * sizeof(p.parts[0]));
    memcpy(p.keys, m->chains[chain], n * sizeof(p.keys[0]));
    return lookup(m, o, &p);
}

static void lookup_step(struct model *m, struct model_owner *o)
{
    struct model_lookup p;

    if (!room_for_lease(m))
        return;
    plan_lookup(m, o, &p);
    (void)lookup(m, o, &p);
}

/* ------------------------------------------------------------ leases */

static void extend(struct model *m, struct model_owner *o, struct model_lease *l)
{
    uint32_t ms = pick_ms(m), got = 0;
    struct refusal why;
    kvc_status status = store_extend(m->store, o->owner, l->id, ms, &got, &why);
    bool theirs = l->owner == model_owner_index(m, o);

    model_begin(m, "owner %u extends lease %llu of owner %u: %s", model_owner_index(m, o),
                (ull)l->id, l->owner, kvc_status_text(status));
    if (!model_lease_lives(l)) {
        model_expect(m, status == KVC_E_EXPIRED || (!theirs && status == KVC_E_DENIED),
                     "an ended lease is extended: %s", kvc_status_text(status));
        l->ended |= theirs;
        return;
    }
    model_expect(m, status == (theirs ? KVC_OK : KVC_E_DENIED), "extend: %s",
                 kvc_status_text(status));
    if (!theirs)
        return;
    model_expect(m, got == granted(ms), "extended by %u, not %u", got, granted(ms));
    l->expires = clock_now_us() + granted(ms) * CLOCK_MS_US;
}

void model_release(struct model *m, struct model_owner *o, struct model_lease *l)
{
    struct refusal why;
    kvc_status status;
    bool theirs = l->owner == model_owner_index(m, o), lived = model_lease_lives(l);

    model_begin(m, "owner %u releases lease %llu of owner %u", model_owner_index(m, o), (ull)l->id,
                l->owner);
    if (theirs)
        l->ended = true;
    status = store_release(m->store, o->owner, l->id, &why);
    model_expect(m, status == (theirs ? KVC_OK : KVC_E_DENIED) || (!lived && status == KVC_OK),
                 "release: %s", kvc_status_text(status));
}

struct model_lease *model_adopt(struct model *m, struct model_owner *o,
                                const struct model_lease *from)
{
    uint32_t which = model_below(m, from->n_parts), ms = pick_ms(m);
    uint32_t part = from->parts[which];
    struct store_lookup_result result;
    struct model_lease *l;
    struct refusal why;
    kvc_status status;
    bool lives = model_lease_lives(from), allowed = m->parts[part].tenant == o->tenant;

    if (!room_for_lease(m))
        return NULL;
    model_begin(m, "owner %u adopts part %u of lease %llu", model_owner_index(m, o), part,
                (ull)from->id);
    status = store_adopt(m->store, o->owner, from->token, KVC_TOKEN_BYTES,
                         m->parts[allowed ? part : o->tenant * MODEL_TENANT_PARTS].id,
                         m->parts[allowed ? part : o->tenant * MODEL_TENANT_PARTS].epoch, ms,
                         &result, &why);
    if (model_is_fault(m, status))
        return NULL;
    if (!allowed || !lives) {
        model_expect(m, status == KVC_E_UNKNOWN || (allowed && status == KVC_E_EXPIRED),
                     "an adoption that may not be: %s", kvc_status_text(status));
        return NULL;
    }
    model_expect(m, status == KVC_OK, "adopt: %s: %s", kvc_status_text(status), why.detail);
    model_expect(m, result.count == from->n_keys && result.lease_ms == granted(ms),
                 "an adopted lease of %u blocks, not %u, for %u ms", result.count, from->n_keys,
                 result.lease_ms);
    l = new_lease(m);
    *l = *from;
    l->owner = model_owner_index(m, o);
    l->id = result.lease;
    l->request = 0;
    l->n_parts = 1;
    l->parts[0] = part;
    memcpy(l->gone[0], from->gone[which], sizeof(l->gone[0]));
    memcpy(l->token, result.token, sizeof(l->token));
    l->expires = clock_now_us() + granted(ms) * CLOCK_MS_US;
    return l;
}

void model_lease_steps(struct model *m)
{
    struct model_owner *o = model_pick_owner(m, 0);
    struct model_lease *l = o ? pick_lease(m, model_chance(m, 900) ? o : NULL) : NULL;
    uint32_t what = model_below(m, 1000);

    if (!o)
        return;
    if (what < 400)
        lookup_step(m, o);
    else if (what < 660 && l)
        model_load(m, o, l);
    else if (what < 740 && l)
        extend(m, o, l);
    else if (what < 880 && l)
        model_release(m, o, l);
    else if (what < 960 && (l = pick_lease(m, NULL)))
        (void)model_adopt(m, o, l);
    else if (what < 975)
        model_report(m, o);
    else if (what < 982)
        model_pin(m, o);
    else if (what < 987)
        model_unpin(m, o);
    else if (what < 993)
        model_flush_keys(m, o);
    else if (what >= 997)
        model_flush(m);
    else if (what >= 993)
        model_set_quota(m);
}
