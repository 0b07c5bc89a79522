/* The model's sessions: how they come, lose their socket, die, are gone, or drain. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/clock.h"
#include "tests/lib/model.h"

#define PAGE_BYTES ((size_t)KVC_PAGE_WORDS * KVC_PAGE_STRIDE)

static const char *const lives[] = {"none", "open", "lost", "dead", "gone"};

uint32_t model_owner_index(const struct model *m, const struct model_owner *o)
{
    return (uint32_t)(o - m->owners);
}

struct model_owner *model_pick_owner(struct model *m, uint32_t role)
{
    uint32_t at = model_below(m, MODEL_OWNERS);

    for (uint32_t i = 0; i < MODEL_OWNERS; i++) {
        struct model_owner *o = &m->owners[(at + i) % MODEL_OWNERS];

        if (o->life == LIFE_OPEN && (role == 0 || o->role == role))
            return o;
    }
    return NULL;
}

/* A block that is larger than an extent lies in several. */
bool model_maps_slot(const struct model *m, const struct model_owner *o, enum tier_kind tier,
                     uint32_t slot)
{
    const struct table_tier *t = &table_header(m->table)->tiers[tier];
    uint32_t extent = slot / t->slots_per_extent;
    uint64_t bytes = table_extent(m->table, tier, extent)->slot_bytes;

    for (uint32_t i = 0; i == 0 || i * t->extent_bytes < bytes; i++)
        if (!o->mapped[tier][extent + i])
            return false;
    return true;
}

static void register_parts(struct model *m, struct model_owner *o)
{
    for (uint32_t i = 0; i < m->n_parts; i++) {
        struct model_part *p = &m->parts[i];
        struct store_part part = {.namespace_digest = p->digest,
                                  .slice_bytes = p->slice_bytes,
                                  .n_slices = p->layout.n_slices,
                                  .block_tokens = MODEL_TOKENS,
                                  .rule = p->rule,
                                  .window = p->window,
                                  .name = "model"};
        struct store_part_info info;
        struct refusal why;
        kvc_status status;

        if (p->tenant != o->tenant)
            continue;
        do
            status = store_register(m->store, o->owner, &part, &info, &why);
        while (model_is_fault(m, status));
        model_expect(m, status == KVC_OK, "a part is refused: %s %s", why.field, why.detail);
        if (p->id == 0) {
            p->id = info.part;
            p->epoch = info.epoch;
        }
        model_expect(m, info.part == p->id && info.epoch == p->epoch,
                     "part %u of epoch %u, before it was %u of %u", info.part, info.epoch, p->id,
                     p->epoch);
        model_expect(m, info.slot_bytes == p->layout.slot_bytes, "another slot size");
    }
}

void model_map_extents(struct model *m, struct model_owner *o, bool all)
{
    uint32_t extents[3], cursor = 0, n;
    bool more = true;

    while (more) {
        n = store_owner_extents(m->store, o->owner, cursor, extents, 3, &cursor, &more);
        model_expect(m, n > 0 || !more, "no extents, but more of them");
        for (uint32_t i = 0; i < n; i++) {
            enum tier_kind tier = extents[i] >> 31 ? TIER_HOST : TIER_GPU;
            uint32_t extent = extents[i] & INT32_MAX;

            model_expect(m,
                         extent < MODEL_EXTENTS &&
                             table_extent(m->table, tier, extent)->tenant == m->tenants[o->tenant],
                         "extent %u of tier %u is another tenant's", extent, tier);
            if (!all && model_chance(m, 300))
                continue;
            model_expect(m, store_owner_mapped(m->store, o->owner, extents[i]) == KVC_OK,
                         "extent %u of tier %u may not be mapped", extent, tier);
            o->mapped[tier][extent] = true;
        }
    }
}

struct model_owner *model_owner_open(struct model *m, uint32_t tenant, uint32_t role, bool map_all)
{
    struct model_owner *o = m->owners;
    struct owner_identity identity = {.tenant = m->tenants[tenant], .role = role, .pid = 1000};
    kvc_status status;

    while (o < m->owners + MODEL_OWNERS && o->life != LIFE_NONE)
        o++;
    if (o == m->owners + MODEL_OWNERS)
        return NULL;
    model_begin(m, "owner %u opens, tenant %u role %u%s", model_owner_index(m, o), tenant, role,
                map_all ? "" : ", maps some");
    memset(o, 0, sizeof(*o));
    o->tenant = tenant;
    o->role = role;
    status = store_owner_open(m->store, &identity, o, &o->owner);
    if (model_is_fault(m, status))
        return NULL;
    model_expect(m, status == KVC_OK, "a session is refused: %s", kvc_status_text(status));
    o->life = LIFE_OPEN;
    o->id = owner_id(o->owner);
    memcpy(o->secret, owner_secret(o->owner), sizeof(o->secret));
    model_expect(m, (owner_page_fd(o->owner) >= 0) == (role != STORE_ROLE_SCHEDULER),
                 "a page where none should be, or none");
    if (role != STORE_ROLE_SCHEDULER) {
        o->page =
            mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, owner_page_fd(o->owner), 0);
        ck_assert_ptr_ne(o->page, MAP_FAILED);
    }
    register_parts(m, o);
    model_map_extents(m, o, map_all);
    return o;
}

/* Its unpublished saves and its leases end with the connection. */
static void forget_promises(struct model *m, uint32_t index)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        if (!s->used || s->owner != index)
            continue;
        if (!s->sealed)
            s->used = false;
        s->aborting = true;
        s->announced = false;
    }
    for (uint32_t i = 0; i < MODEL_LEASES; i++)
        if (m->leases[i].used && m->leases[i].owner == index)
            m->leases[i].ended = true;
}

void model_owner_disconnect(struct model *m, struct model_owner *o, enum model_life life)
{
    model_begin(m, "owner %u ends: %s", model_owner_index(m, o), lives[life]);
    model_expect(m, life == LIFE_LOST || life == LIFE_DEAD, "not an end of a connection");
    forget_promises(m, model_owner_index(m, o));
    o->life = life;
    o->last_word = clock_now_us();
    m->nudged = o; /* its page is looked at once more */
    store_owner_end(m->store, o->owner);
}

void model_owner_gone(struct model *m, struct model_owner *o)
{
    model_begin(m, "owner %u is gone", model_owner_index(m, o));
    model_waive(m, model_owner_index(m, o));
    o->life = LIFE_GONE;
    o->last_word = clock_now_us() - CLOCK_S_US; /* nothing is owed as of now */
    store_owner_gone(m->store, o->owner);
}

/* Whether the daemon copies for it. */
static bool is_served(const struct model *m, const struct model_owner *o)
{
    uint32_t index = model_owner_index(m, o);
    bool served = false;

    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++)
            served |=
                m->saves[i].owner == index && m->saves[i].by_daemon && m->saves[i].chunks[c].live;
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        served |= m->loads[i].live && m->loads[i].owner == index && m->loads[i].by_daemon;
    return served;
}

void model_owner_drain(struct model *m, struct model_owner *by, struct model_owner *o)
{
    uint32_t index = model_owner_index(m, o);
    struct refusal why;
    kvc_status status;

    model_begin(m, "owner %u drains %u", model_owner_index(m, by), index);
    /* It synchronises: what it had enqueued has run, and launches that failed never will. */
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++)
            if (m->saves[i].owner == index && m->saves[i].chunks[c].live &&
                !m->saves[i].by_daemon && model_chance(m, 500))
                model_chunk_finish(m, &m->saves[i], &m->saves[i].chunks[c], true);
    model_waive(m, index);
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        if (m->saves[i].used && m->saves[i].sealed && m->saves[i].owner == index &&
            !m->saves[i].by_daemon)
            m->saves[i].aborting = true;
    if (o != by)
        o->last_word = clock_now_us() - CLOCK_S_US;
    else
        m->nudged = o;
    status = o == by ? store_drained(m->store, by->owner, 0, NULL, 0, &why)
                     : store_drained(m->store, by->owner, o->id, o->secret, KVC_SECRET_BYTES, &why);
    /* It may owe nothing, and be forgotten, already. */
    model_expect(m,
                 o == by           ? status == KVC_OK
                 : is_served(m, o) ? status == KVC_E_BUSY
                                   : status == KVC_OK || status == KVC_E_UNKNOWN,
                 "drained: %s", kvc_status_text(status));
}

/* Refusals that name another session. */
static void drain_badly(struct model *m, struct model_owner *by, const struct model_owner *o)
{
    uint8_t secret[KVC_SECRET_BYTES];
    struct refusal why;
    kvc_status status;

    model_begin(m, "owner %u drains %u, which it may not", model_owner_index(m, by),
                model_owner_index(m, o));
    memcpy(secret, o->secret, sizeof(secret));
    if (o == by || o->tenant != by->tenant || o->life != LIFE_OPEN)
        secret[3] ^= 4;
    if (o == by)
        return;
    status = store_drained(m->store, by->owner, o->id, secret, sizeof(secret), &why);
    model_expect(m,
                 o->tenant != by->tenant ? status == KVC_E_UNKNOWN
                 : o->life == LIFE_OPEN  ? status == KVC_E_BUSY
                                         : status == KVC_E_DENIED || status == KVC_E_UNKNOWN,
                 "a drain that may not be: %s", kvc_status_text(status));
}

void model_owner_release(struct model *m, struct model_owner *o)
{
    uint32_t index = model_owner_index(m, o);

    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        if (m->saves[i].owner == index)
            m->saves[i].used = false;
    model_waive(m, index);
    if (o->page)
        munmap(o->page, PAGE_BYTES);
    memset(o, 0, sizeof(*o));
}

void model_owner_steps(struct model *m)
{
    struct model_owner *o = &m->owners[model_below(m, MODEL_OWNERS)];
    struct model_owner *other = &m->owners[model_below(m, MODEL_OWNERS)];
    uint32_t what = model_below(m, 100);

    switch (o->life) {
    case LIFE_NONE:
        model_owner_open(m, model_below(m, m->shape->tenants),
                         what < 60   ? STORE_ROLE_WORKER
                         : what < 80 ? STORE_ROLE_READER
                                     : STORE_ROLE_SCHEDULER,
                         what % 4 != 0);
        break;
    case LIFE_OPEN:
        if (what < 35)
            model_owner_disconnect(m, o, what < 15 ? LIFE_LOST : LIFE_DEAD);
        else if (what < 60 && o->page)
            model_owner_drain(m, o, o);
        else if (other->life != LIFE_NONE && other->life != LIFE_GONE)
            drain_badly(m, o, other);
        break;
    case LIFE_LOST:
        if (other->life == LIFE_OPEN && other->tenant == o->tenant && what < 70)
            model_owner_drain(m, other, o);
        else if (what > 85)
            model_owner_gone(m, o);
        break;
    case LIFE_DEAD:
        if (what < 60)
            model_owner_gone(m, o);
        break;
    case LIFE_GONE:
        break;
    }
}
