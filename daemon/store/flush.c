/*
 * Flushes. Of namespaces: no key of them is a hit any more, and nothing that was in flight becomes
 * one. Of keys: their blocks go, and the saves that were filling them. Open loads run to their
 * proof.
 */
#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/pin.h"
#include "daemon/store/save.h"
#include "daemon/store/scope.h"

static void end_leases(struct owner *owner, uint32_t namespace_)
{
    const struct table *table = owner->store->table;
    struct lease *lease, *after;

    list_for_each_safe(lease, after, &owner->leases, link) {
        for (uint32_t p = 0; p < lease->n_parts; p++) {
            if (table_part(table, lease->parts[p].part)->namespace_ != namespace_)
                continue;
            lease_end(lease);
            break;
        }
    }
}

static void end_saves(struct owner *owner, uint32_t namespace_)
{
    struct save *save, *after;

    list_for_each_safe(save, after, &owner->saves, link)
        if (save_is_open(save) && save_is_in(save, namespace_))
            save_fail(owner->store, save, KVC_E_STALE);
}

static void doom(struct store *store, uint32_t block)
{
    pin_drop(store, block);
    keep_doom(store, block);
}

/* Every published block of a tier; what a record says is enough to find it. */
static uint64_t doom_tier(struct store *store, enum tier_kind tier, const struct store_scope *scope)
{
    const struct table_tier *geometry = &table_header(store->table)->tiers[tier];
    uint64_t doomed = 0;

    for (uint32_t e = 0; e < geometry->extents; e++) {
        const struct table_extent *extent = table_extent(store->table, tier, e);
        uint64_t slots = extent->slot_bytes ? geometry->extent_bytes / extent->slot_bytes : 0;

        if (extent->state != EXTENT_OWNED || extent->slot_bytes == 0 ||
            !scope_has_tenant(store, scope, extent->tenant))
            continue;
        for (uint64_t i = 0; i < (slots ? slots : 1); i++) {
            const struct table_slot *record =
                table_slot(store->table, tier, e * geometry->slots_per_extent + (uint32_t)i);

            if (record->state != SLOT_READY ||
                !scope_has_namespace(store, scope,
                                     table_part(store->table, record->part)->namespace_))
                continue;
            doom(store, blocks_find(store->blocks, record->part, record->key));
            doomed++;
        }
    }
    return doomed;
}

static void note_cleared(const struct store *store, const struct store_scope *scope)
{
    for (uint32_t p = 1; p < TABLE_PARTS && table_part(store->table, p)->used != ROW_NEVER; p++)
        if (table_part(store->table, p)->used == ROW_USED &&
            scope_has_namespace(store, scope, table_part(store->table, p)->namespace_))
            store_note(store, STORE_EVENT_CLEARED, p, TIER_GPU, NULL, NULL);
}

static uint64_t flush_namespaces(struct store *store, const struct store_scope *scope)
{
    uint64_t doomed;

    for (uint32_t ns = 0; ns < TABLE_NAMESPACES; ns++) {
        struct owner *owner;

        if (!scope_has_namespace(store, scope, ns))
            continue;
        table_namespace(store->table, ns)->epoch++;
        list_for_each(owner, &store->owners, link) {
            if (owner->identity.tenant != table_namespace(store->table, ns)->tenant)
                continue;
            end_saves(owner, ns);
            end_leases(owner, ns);
        }
    }
    note_cleared(store, scope);
    store->clearing = true;
    doomed = doom_tier(store, TIER_GPU, scope) + doom_tier(store, TIER_HOST, scope);
    store->clearing = false;
    return doomed;
}

/* Blocks that were found damaged and dropped are lost too, but not by a flush. */
static bool has_lost(const struct store *store, const struct lease *lease)
{
    for (uint32_t p = 0; p < lease->n_parts; p++)
        for (uint32_t i = 0; i < lease->reach; i++) {
            uint32_t id = lease->parts[p].blocks[i];
            const struct block *block = id == BLOCK_NONE ? NULL : blocks_get(store->blocks, id);

            if (block && block->state == BLOCK_DOOMED && block->save == BLOCK_FLUSHED)
                return true;
        }
    return false;
}

static void end_leases_that_lost(struct store *store, const struct store_scope *scope)
{
    struct owner *owner;
    struct lease *lease, *after;

    list_for_each(owner, &store->owners, link) {
        if (!scope_has_tenant(store, scope, owner->identity.tenant))
            continue;
        list_for_each_safe(lease, after, &owner->leases, link)
            if (has_lost(store, lease))
                lease_end(lease);
    }
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
        end_leases_that_lost(store, scope);
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
