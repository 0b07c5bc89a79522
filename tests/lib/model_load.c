/* Loads, reports and flushes of the model. */
#include <string.h>

#include "tests/lib/model.h"

typedef unsigned long long ull;

void model_load_sweep(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_LOADS; i++) {
        struct model_load *l = &m->loads[i];

        if (!l->used || l->live || m->nudged != &m->owners[l->owner])
            continue;
        for (uint32_t k = 0; k < l->n; k++)
            m->expected.bytes_loaded[l->places[k].tier] +=
                m->parts[l->places[k].part].layout.block_bytes;
        l->used = false;
    }
}

static struct model_load *new_load(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        if (!m->loads[i].used)
            return &m->loads[i];
    return NULL;
}

/* Whether the owner can reach a copy of the block that lies in extents it has mapped. */
static bool is_mapped(const struct model *m, const struct model_owner *o, uint32_t part,
                      uint32_t key)
{
    for (uint32_t t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct model_seen *s = &m->seen[t][i];

            if (s->state == SLOT_READY && s->part == part && s->key == key &&
                model_maps_slot(m, o, t, i))
                return true;
        }
    return false;
}

static void take_locations(struct model *m, struct model_load *load,
                           const struct store_location *locations, const struct model_lease *l,
                           uint32_t part, uint32_t first)
{
    const struct model_owner *o = &m->owners[load->owner];

    for (uint32_t i = 0; i < load->n; i++) {
        struct model_place *place = &load->places[i];
        const struct table_slot *record;

        *place = model_place_of(m, &locations[i], part, l->keys[first + i]);
        record = table_slot(m->table, place->tier, place->slot);
        model_expect(m, record->state == SLOT_READY && record->generation == place->generation,
                     "key %u is loaded from a slot that is not ready", place->key);
        model_expect(m, load->by_daemon || model_maps_slot(m, o, place->tier, place->slot),
                     "key %u is loaded from where nothing is mapped", place->key);
        model_expect(m, model_is_exact(m, place), "key %u is loaded with wrong bytes", place->key);
        model_expect(m, locations[i].checked == m->summed[part][place->key],
                     "key %u has a checksum: %d", place->key, locations[i].checked);
        if (locations[i].checked)
            model_expect(m, locations[i].checksum == model_checksum(m, place),
                         "the checksum of key %u is another's", place->key);
    }
}

void model_load(struct model *m, struct model_owner *o, struct model_lease *l)
{
    uint32_t which = model_below(m, l->n_parts), part = l->parts[which];
    uint32_t first = model_below(m, l->n_keys), count = 1 + model_below(m, l->n_keys - first);
    struct store_load req = {.lease = l->id, .part = m->parts[part].id, .first = first};
    struct store_location locations[MODEL_CHAIN_KEYS];
    struct model_load *ld = new_load(m);
    bool theirs = l->owner == model_owner_index(m, o), broken = false, unmapped = false;
    bool behind = model_chance(m, 50), stale = model_chance(m, 30), unneeded = false;
    struct refusal why = {{0}, {0}};
    struct load *by_daemon = NULL;
    bool daemon = model_by_daemon(m);
    uint32_t word = 0;
    uint64_t number = 0;
    kvc_status status;

    if (!ld)
        return;
    /* Of parts with other rules mostly what is there. */
    if (m->parts[part].needed < l->n_keys && model_chance(m, 700)) {
        count = 1 + model_below(m, m->parts[part].needed);
        req.first = first = l->n_keys - count;
    }
    req.count = behind ? l->n_keys - first + 1 : count;
    req.epoch = m->parts[part].epoch - (stale ? 1 : 0);
    for (uint32_t i = 0; i < count; i++) {
        unneeded |= !model_needs(&m->parts[part], first + i, l->n_keys);
        broken |= l->gone[which][first + i];
        unmapped |= !is_mapped(m, o, part, l->keys[first + i]);
    }
    model_begin(m, "owner %u loads %u to %u of part %u of lease %llu of owner %u",
                model_owner_index(m, o), first, first + req.count - 1, part, (ull)l->id, l->owner);
    unmapped &= !daemon;
    status = daemon ? store_load_by_daemon(m->store, o->owner, &req, locations, &by_daemon, &why)
                    : store_load(m->store, o->owner, &req, locations, &word, &number, &why);
    if (model_is_fault(m, status))
        return;
    if (!o->page || !theirs || !model_lease_lives(l) || behind || stale || l->n_keys == 0) {
        model_expect(m, status != KVC_OK, "a load that may not be: %s", kvc_status_text(status));
        if (o->page && theirs && !model_lease_lives(l))
            model_expect(m, status == KVC_E_EXPIRED, "a load of an ended lease: %s",
                         kvc_status_text(status));
        l->ended |= o->page && theirs && !model_lease_lives(l);
        return;
    }
    if (unneeded) {
        model_expect(m,
                     status == KVC_E_INVALID || (broken && status == KVC_E_CHECKSUM) ||
                         (unmapped && status == KVC_E_BUSY),
                     "a load of blocks that no rule needs: %s", kvc_status_text(status));
        return;
    }
    if (broken || unmapped) {
        model_expect(m, (broken && status == KVC_E_CHECKSUM) || (unmapped && status == KVC_E_BUSY),
                     "a load of a broken or unmapped block: %s", kvc_status_text(status));
        return;
    }
    model_expect(m, status == KVC_OK, "load: %s: %s %s", kvc_status_text(status), why.field,
                 why.detail);
    if (!daemon) {
        model_expect(m, word < KVC_PAGE_WORDS && number > m->last_number, "word %u number %llu",
                     word, (ull)number);
        m->last_number = number;
        model_expect_free_word(m, model_owner_index(m, o), word);
    }
    *ld = (struct model_load){.used = true,
                              .live = true,
                              .by_daemon = by_daemon,
                              .owner = model_owner_index(m, o),
                              .word = word,
                              .number = number,
                              .n = count};
    take_locations(m, ld, locations, l, part, first);
}

/* ------------------------------------------------------------ reports and flushes */

static void break_leases(struct model *m, uint32_t part, uint32_t key)
{
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        struct model_lease *l = &m->leases[i];

        for (uint32_t p = 0; l->used && p < l->n_parts; p++)
            for (uint32_t k = 0; k < l->n_keys && l->parts[p] == part; k++)
                l->gone[p][k] |= l->keys[k] == key;
    }
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t k = 0; m->saves[i].used && k < m->saves[i].n_keys; k++)
            m->saves[i].lost_hits |= m->saves[i].part[k] == part && m->saves[i].key[k] == key;
}

void model_report(struct model *m, struct model_owner *o)
{
    uint32_t tier = model_below(m, TIER_COUNT), slot = model_below(m, m->n_slots[tier]);
    const struct model_seen *seen = m->n_slots[tier] ? &m->seen[tier][slot] : NULL;
    uint8_t key[KVC_KEY_BYTES];
    bool stale = model_chance(m, 300);

    while (seen && seen->state != SLOT_READY && ++slot < m->n_slots[tier])
        seen = &m->seen[tier][slot];
    if (!seen || slot == m->n_slots[tier] || m->parts[seen->part].tenant != o->tenant)
        return;
    model_begin(m, "owner %u reports key %u of part %u in tier %u%s", model_owner_index(m, o),
                seen->key, seen->part, tier, stale ? ", stale" : "");
    if (!stale) {
        m->reported = true;
        m->reported_part = seen->part;
        m->reported_key = seen->key;
        m->pinned[seen->part][seen->key] = 0;
        break_leases(m, seen->part, seen->key);
    }
    model_key(seen->key, key);
    store_report(m->store, o->owner, m->parts[seen->part].id, key, tier,
                 seen->generation - (stale ? 1 : 0));
    model_expect(m, stale == model_is_ready_now(m, seen->part, seen->key),
                 "key %u was reported: stale %d, still ready %d", seen->key, stale, !stale);
}

bool model_is_flushed(const struct model *m, uint32_t part)
{
    return m->parts[part].tenant == m->flushed_tenant &&
           m->parts[part].namespace_ == m->flushed_namespace;
}

static bool has_stale(const struct model *m)
{
    for (uint32_t t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct table_slot *record = table_slot(m->table, t, i);
            const uint32_t ns = table_part(m->table, record->part)->namespace_;

            if (record->state == SLOT_READY &&
                record->epoch != table_namespace(m->table, ns)->epoch)
                return true;
        }
    return false;
}

void model_flush(struct model *m)
{
    uint32_t part = model_below(m, m->n_parts);
    uint64_t blocks = 0, dropped = 0;
    struct refusal why;
    kvc_status status;

    m->flushed = true;
    m->flushed_tenant = m->parts[part].tenant;
    m->flushed_namespace = m->parts[part].namespace_;
    for (uint32_t t = 0; t < TIER_COUNT; t++)
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct model_seen *s = &m->seen[t][i];

            dropped += s->state == SLOT_READY && model_is_flushed(m, s->part) &&
                       (t == TIER_GPU || !model_is_ready(m, s->part, s->key, TIER_GPU));
        }
    model_begin(m, "flush of part %u", part);
    model_save_flushed(m);
    for (uint32_t i = 0; i < MODEL_LEASES; i++)
        for (uint32_t p = 0; m->leases[i].used && p < m->leases[i].n_parts; p++)
            m->leases[i].ended |= model_is_flushed(m, m->leases[i].parts[p]);
    status = store_flush(m->store, &(struct store_scope){.part = m->parts[part].id}, &blocks, &why);
    model_expect(m, status == KVC_OK, "flush: %s", kvc_status_text(status));
    model_expect(m, blocks == dropped, "a flush drops %llu blocks, not %llu", (ull)blocks,
                 (ull)dropped);
    for (uint32_t i = 0; i < m->n_parts; i++)
        if (model_is_flushed(m, i))
            memset(m->pinned[i], 0, sizeof(m->pinned[i]));
    for (uint32_t i = 0; i < m->n_parts; i++)
        m->parts[i].epoch += model_is_flushed(m, i);
    /* Slots of many blocks come back by turns; until then they are no blocks
     * (unit/test_store_sweep). */
    while (has_stale(m)) {
        m->ticked = true;
        store_tick(m->store);
    }
}
