/*
 * Flush of a namespace: no key of it is a hit any more, and nothing that was in flight becomes
 * one. Open loads run to their proof.
 */
#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/save.h"

static bool is_in(const struct store *store, uint32_t part, uint32_t namespace_)
{
    return table_part(store->table, part)->namespace_ == namespace_;
}

static void end_leases(struct owner *owner, uint32_t namespace_)
{
    struct lease *lease, *after;

    list_for_each_safe(lease, after, &owner->leases, link) {
        for (uint32_t p = 0; p < lease->n_parts; p++) {
            if (!is_in(owner->store, lease->parts[p].part, namespace_))
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
        if (save->status == KVC_OK &&
            (save->phase == SAVE_ADMITTING || save->phase == SAVE_COPYING) &&
            save_is_in(save, namespace_))
            save_fail(owner->store, save, KVC_E_STALE);
}

/* Every published block of a tier; what a record says is enough to find it. */
static uint64_t doom_tier(struct store *store, enum tier_kind tier, uint32_t namespace_)
{
    const struct table_tier *geometry = &table_header(store->table)->tiers[tier];
    uint64_t doomed = 0;

    for (uint32_t e = 0; e < geometry->extents; e++) {
        const struct table_extent *extent = table_extent(store->table, tier, e);
        uint64_t slots = extent->slot_bytes ? geometry->extent_bytes / extent->slot_bytes : 0;

        if (extent->state != EXTENT_OWNED || extent->slot_bytes == 0)
            continue;
        for (uint64_t i = 0; i < (slots ? slots : 1); i++) {
            const struct table_slot *record =
                table_slot(store->table, tier, e * geometry->slots_per_extent + (uint32_t)i);

            if (record->state != SLOT_READY || !is_in(store, record->part, namespace_))
                continue;
            keep_doom(store, blocks_find(store->blocks, record->part, record->key));
            doomed++;
        }
    }
    return doomed;
}

kvc_status store_flush(struct store *store, uint32_t part, uint64_t *blocks)
{
    struct table_namespace *ns;
    struct owner *owner;
    uint32_t namespace_;

    if (part == 0 || part >= TABLE_PARTS || !table_part(store->table, part)->used)
        return KVC_E_UNKNOWN;
    namespace_ = table_part(store->table, part)->namespace_;
    ns = table_namespace(store->table, namespace_);
    ns->epoch++;
    list_for_each(owner, &store->owners, link) {
        end_saves(owner, namespace_);
        end_leases(owner, namespace_);
    }
    *blocks = doom_tier(store, TIER_GPU, namespace_) + doom_tier(store, TIER_HOST, namespace_);
    store_settle(store);
    return KVC_OK;
}
