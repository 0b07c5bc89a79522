/* Pins, and flushes of keys, in the model. */
#include <string.h>

#include "daemon/base/clock.h"
#include "tests/lib/model.h"

typedef unsigned long long ull;

static void end_pins(struct model *m)
{
    for (uint32_t p = 0; p < m->n_parts; p++)
        for (uint32_t k = 0; k < MODEL_CHAINS * MODEL_CHAIN_KEYS; k++)
            if (m->pinned[p][k] <= clock_now_us())
                m->pinned[p][k] = 0;
}

void model_pin_sweep(struct model *m)
{
    if (m->ticked)
        end_pins(m);
}

/* A few keys of a chain, in a part of the owner's tenant. */
struct keys {
    uint32_t part, n, key[8];
    uint8_t bytes[8][KVC_KEY_BYTES];
};

static struct store_scope pick_keys(struct model *m, const struct model_owner *o, struct keys *keys)
{
    uint32_t chain = model_below(m, MODEL_CHAINS), first = model_below(m, m->n_chain_keys - 8);

    keys->part = o->tenant * MODEL_TENANT_PARTS + model_below(m, MODEL_TENANT_PARTS);
    keys->n = 1 + model_below(m, 8);
    for (uint32_t i = 0; i < keys->n; i++) {
        keys->key[i] = m->chains[chain][model_chance(m, 700) ? i : first + i];
        model_key(keys->key[i], keys->bytes[i]);
        for (uint32_t k = 0; k < i; k++) /* a scope that names a key twice says nothing new */
            if (keys->key[k] == keys->key[i])
                keys->n = i;
    }
    return (struct store_scope){.owner = o->owner,
                                .part = m->parts[keys->part].id,
                                .keys = keys->bytes[0],
                                .n_keys = keys->n};
}

static uint64_t pinned_bytes(const struct model *m)
{
    uint64_t bytes = 0;

    for (uint32_t p = 0; p < m->n_parts; p++)
        for (uint32_t k = 0; k < MODEL_CHAINS * MODEL_CHAIN_KEYS; k++)
            if (m->pinned[p][k])
                bytes += m->parts[p].layout.slot_bytes;
    return bytes;
}

void model_pin(struct model *m, struct model_owner *o)
{
    const struct table_tier *tiers = table_header(m->table)->tiers;
    struct keys keys;
    struct store_scope scope = pick_keys(m, o, &keys);
    uint32_t seconds = model_below(m, 60), count = 0, expected = 0;
    uint64_t bytes = pinned_bytes(m);
    struct refusal why;
    kvc_status status;

    for (uint32_t i = 0; i < keys.n; i++) {
        if (!model_is_published(m, keys.part, keys.key[i]))
            continue;
        expected++;
        if (!m->pinned[keys.part][keys.key[i]])
            bytes += m->parts[keys.part].layout.slot_bytes;
    }
    status = store_pin(m->store, &scope, seconds, &count, &why);
    model_begin(m, "owner %u pins %u keys of part %u for %u s: %s, %u", model_owner_index(m, o),
                keys.n, keys.part, seconds, kvc_status_text(status), count);
    if (model_is_fault(m, status))
        return;
    if (bytes > (tiers[TIER_GPU].bytes + tiers[TIER_HOST].bytes) / 2) {
        model_expect(m, status == KVC_E_NO_ROOM, "more than half may be pinned: %s",
                     kvc_status_text(status));
        return;
    }
    model_expect(m, status == KVC_OK && count == expected, "%u blocks are pinned, not %u: %s",
                 count, expected, kvc_status_text(status));
    for (uint32_t i = 0; i < keys.n; i++)
        if (model_is_published(m, keys.part, keys.key[i]))
            m->pinned[keys.part][keys.key[i]] =
                clock_now_us() + (seconds ? seconds : KVC_PIN_SECONDS_DEFAULT) * CLOCK_S_US;
}

void model_unpin(struct model *m, struct model_owner *o)
{
    struct keys keys;
    struct store_scope scope = pick_keys(m, o, &keys);
    uint32_t count = 0, expected = 0;
    struct refusal why;
    kvc_status status;

    if (model_chance(m, 500))
        scope.n_keys = 0;
    for (uint32_t k = 0; k < MODEL_CHAINS * MODEL_CHAIN_KEYS && scope.n_keys == 0; k++) {
        expected += m->pinned[keys.part][k] != 0;
        m->pinned[keys.part][k] = 0;
    }
    for (uint32_t i = 0; i < scope.n_keys; i++) {
        expected += m->pinned[keys.part][keys.key[i]] != 0;
        m->pinned[keys.part][keys.key[i]] = 0;
    }
    status = store_unpin(m->store, &scope, &count, &why);
    model_begin(m, "owner %u unpins %u keys of part %u: %u", model_owner_index(m, o), scope.n_keys,
                keys.part, count);
    model_expect(m, status == KVC_OK && count == expected, "%u blocks are unpinned, not %u: %s",
                 count, expected, kvc_status_text(status));
    if (scope.n_keys == 0) /* it takes a turn at all whose time is over */
        end_pins(m);
}

bool model_is_flushed_key(const struct model *m, uint32_t part, uint32_t key)
{
    for (uint32_t i = 0; i < m->n_flushed; i++)
        if (m->flushed_part == part && m->flushed_keys[i] == key)
            return true;
    return false;
}

/* A lease that loses a block ends; so does a save that was filling one. */
static void end_what_has_them(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        struct model_lease *l = &m->leases[i];

        for (uint32_t p = 0; l->used && p < l->n_parts; p++)
            for (uint32_t k = 0; k < l->n_keys; k++)
                l->ended |= !l->gone[p][k] && model_needs(&m->parts[l->parts[p]], k, l->n_keys) &&
                            model_is_flushed_key(m, l->parts[p], l->keys[k]);
    }
    for (uint32_t i = 0; i < MODEL_SAVES; i++) {
        struct model_save *s = &m->saves[i];

        for (uint32_t k = 0; s->used && k < s->n_keys; k++)
            s->lost_hits |= model_is_flushed_key(m, s->part[k], s->key[k]);
        for (uint32_t k = 0; s->used && s->sealed && k < s->n_assigned; k++)
            s->aborting |= !s->published[k] &&
                           model_is_flushed_key(m, s->assigned[k].part, s->assigned[k].key);
    }
}

void model_flush_keys(struct model *m, struct model_owner *o)
{
    struct keys keys;
    struct store_scope scope = pick_keys(m, o, &keys);
    uint64_t blocks = 0, expected = 0;
    struct refusal why;
    kvc_status status;

    m->flushed_part = keys.part;
    m->n_flushed = keys.n;
    memcpy(m->flushed_keys, keys.key, sizeof(keys.key));
    for (uint32_t i = 0; i < keys.n; i++) {
        expected += model_is_published(m, keys.part, keys.key[i]);
        m->pinned[keys.part][keys.key[i]] = 0;
    }
    model_begin(m, "owner %u flushes %u keys of part %u from %u", model_owner_index(m, o), keys.n,
                keys.part, keys.key[0]);
    end_what_has_them(m);
    status = store_flush(m->store, &scope, &blocks, &why);
    model_expect(m, status == KVC_OK && blocks == expected, "a flush drops %llu blocks, not %llu",
                 (ull)blocks, (ull)expected);
}
