/*
 * Of namespaces: no key of them is a hit any more, and nothing that was in flight becomes one. Of
 * keys: their blocks go, and the saves that were filling them. Open loads run to their proof.
 */
#include "daemon/store/flush.h"

#include "daemon/base/fault.h"
#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/pin.h"
#include "daemon/store/save.h"
#include "daemon/store/scope.h"
#include "daemon/store/usage.h"

static void end_leases(struct owner *owner, const uint64_t *set)
{
    const struct table *table = owner->store->table;
    struct lease *lease, *after;

    list_for_each_safe(lease, after, &owner->leases, link) {
        for (uint32_t p = 0; p < lease->n_parts; p++) {
            if (!scope_set_has(set, table_part(table, lease->parts[p].part)->namespace_))
                continue;
            lease_end(lease);
            break;
        }
    }
}

static void end_saves(struct owner *owner, const uint64_t *set)
{
    struct save *save, *after;

    list_for_each_safe(save, after, &owner->saves, link)
        if (save_is_open(save) && save_is_in(save, set))
            save_fail(owner->store, save, KVC_E_STALE);
}

static void note_cleared(const struct store *store, const uint64_t *set)
{
    for (uint32_t p = 1; p < TABLE_PARTS && table_part(store->table, p)->used != ROW_NEVER; p++)
        if (table_part(store->table, p)->used == ROW_USED &&
            scope_set_has(set, table_part(store->table, p)->namespace_))
            store_note(store, STORE_EVENT_CLEARED, p, TIER_GPU, NULL, NULL);
}

/* A block of an earlier epoch is found by nobody from now on. */
static uint64_t make_stale(struct store *store, uint32_t namespace_)
{
    struct table_namespace *ns = table_namespace(store->table, namespace_);
    struct usage *usage = store->usages[namespace_];
    const uint64_t blocks = usage ? usage->blocks : 0;

    if (++ns->epoch == 0) /* which no namespace has: the table would be refused */
        ns->epoch = 1;
    if (usage) {
        usage->stale += blocks;
        usage->blocks = 0;
    }
    store->stale += blocks;
    return blocks;
}

/* "flush.turn" makes turns as short as can be. */
void flush_tick(struct store *store)
{
    uint32_t looks = FLUSH_LOOKS, steps = fault_fires("flush.turn") ? 1 : FLUSH_STEPS;

    for (; store->stale > 0 && looks > 0 && steps > 0; looks--, store->sweep++) {
        const struct block *block = blocks_get(store->blocks, store->sweep);

        if (block->state != BLOCK_READY || usage_of(store, block->part)->stale == 0 ||
            !blocks_is_stale(store->blocks, store->sweep))
            continue;
        pin_drop(store, store->sweep);
        keep_doom(store, store->sweep);
        steps--;
    }
}

static uint64_t flush_namespaces(struct store *store, const struct store_scope *scope)
{
    uint64_t set[SCOPE_SET_WORDS] = {0}, flushed = 0;
    struct owner *owner;

    for (uint32_t ns = 0; ns < TABLE_NAMESPACES; ns++) {
        if (!scope_has_namespace(store, scope, ns))
            continue;
        set[ns / 64] |= 1ull << ns % 64;
        flushed += make_stale(store, ns);
    }
    list_for_each(owner, &store->owners, link) {
        if (!scope_has_tenant(store, scope, owner->identity.tenant))
            continue;
        end_saves(owner, set);
        end_leases(owner, set);
    }
    note_cleared(store, set);
    store->sweep = 0;
    flush_tick(store);
    return flushed;
}

static uint64_t flush_keys(struct store *store, const struct store_scope *scope)
{
    uint64_t doomed = 0;
    bool leased = false;

    for (uint32_t part = 1; part < TABLE_PARTS && table_part(store->table, part)->used != ROW_NEVER;
         part++) {
        for (uint32_t i = 0; scope_has_part(store, scope, part) && i < scope->n_keys; i++) {
            uint32_t id = blocks_find(store->blocks, part, scope->keys + (size_t)i * KVC_KEY_BYTES);

            if (id == BLOCK_NONE)
                continue;
            if (blocks_get(store->blocks, id)->state == BLOCK_READY) {
                pin_drop(store, id);
                leased = leased || blocks_get(store->blocks, id)->leases > 0;
                blocks_get(store->blocks, id)->save = BLOCK_FLUSHED;
                keep_doom(store, id);
                doomed++;
            } else {
                save_fail_of(store, id, KVC_E_STALE);
            }
        }
    }
    if (leased)
        lease_look_for_lost(store);
    return doomed;
}

kvc_status store_flush(struct store *store, const struct store_scope *scope, uint64_t *blocks,
                       struct refusal *why)
{
    kvc_status status = scope_check(store, scope, why);

    if (status != KVC_OK)
        return status;
    *blocks = scope->n_keys > 0 ? flush_keys(store, scope) : flush_namespaces(store, scope);
    store_settle(store);
    return KVC_OK;
}
