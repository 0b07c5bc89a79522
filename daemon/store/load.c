#include "daemon/store/load.h"

#include <assert.h>

#include "daemon/base/mem.h"
#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/pin.h"
#include "daemon/store/proof.h"

void load_free(struct load *load)
{
    list_remove(&load->link);
    mem_free(load);
}

void load_close(struct store *store, struct load *load, bool proved)
{
    struct owner *owner = load->owner;

    if (load->word)
        page_give(load->word);
    if (proved)
        histogram_add(&store->durations.loads, clock_now_us() - load->opened);
    /* Last first, so that the head of the prefix is evicted last. */
    for (uint32_t i = load->count; i-- > 0;) {
        const struct load_block *at = &load->blocks[i];

        store->stats.bytes_loaded[at->tier] += proved ? load->block_bytes : 0;
        store->stats.own_bytes_loaded[at->tier] += proved && !owner->user ? load->block_bytes : 0;
        keep_unload(store, at->block, at->tier);
    }
    store->open_loads--;
    load_free(load);
    owner_settle(owner);
}

static kvc_status check(struct owner *owner, const struct store_load *req, struct lease **lease,
                        const struct lease_part **part, struct refusal *why)
{
    const struct table *table = owner->store->table;
    uint32_t n_slices;
    kvc_status status;

    if (!owner->page)
        return store_refuse(why, KVC_E_DENIED, "", "only workers and readers load");
    status = lease_find(owner, req->lease, lease, why);
    if (status == KVC_OK)
        status = owner_check_part(owner, req->part, req->epoch, NULL, 0, why);
    if (status != KVC_OK)
        return status;
    *part = lease_part(*lease, req->part);
    if (!*part)
        return store_refuse(why, KVC_E_INVALID, "part", "the lease does not cover it");
    if (req->count == 0 || req->first >= (*lease)->count ||
        req->count > (*lease)->count - req->first)
        return store_refuse(why, KVC_E_INVALID, "count", "not blocks of the lease");
    if (req->count > KVC_KEYS_MAX)
        return store_refuse(why, KVC_E_LIMIT, "count", "too many blocks");
    n_slices = table_layout(table, table_part(table, req->part)->layout)->n_slices;
    if (req->first_slice >= n_slices || req->n_slices > n_slices - req->first_slice)
        return store_refuse(why, KVC_E_INVALID, "slices", "not slices of the layout");
    return KVC_OK;
}

/* The tier to load a block from: the fastest in which the owner has mapped it, if it is to copy. */
static kvc_status choose(const struct owner *owner, bool by_daemon, uint32_t id, uint8_t *ret,
                         struct refusal *why)
{
    const struct store *store = owner->store;
    const struct block *block;

    if (id == BLOCK_NONE)
        return store_refuse(why, KVC_E_INVALID, "first", "not needed by the part's rule");
    block = blocks_get(store->blocks, id);
    if (block->state != BLOCK_READY && block->save == BLOCK_LOST)
        return store_refuse(why, KVC_E_DEVICE, "first", "a block was on a GPU that has failed");
    if (block->state != BLOCK_READY && block->save == BLOCK_FLUSHED)
        return store_refuse(why, KVC_E_EXPIRED, "lease", "a key of it was flushed");
    if (block->state != BLOCK_READY)
        return store_refuse(why, KVC_E_CHECKSUM, "first", "a block was found damaged and dropped");
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (block->slot[tier] == SLOT_NONE || store_has_failed(store, tier, block->slot[tier]) ||
            !(by_daemon ||
              slots_is_mapped(store->slots[tier], block->slot[tier], owner->mapped[tier])))
            continue;
        if (block->loads[tier] == UINT16_MAX)
            return store_refuse(why, KVC_E_BUSY, "first", "too many loads of one block");
        *ret = (uint8_t)tier;
        return KVC_OK;
    }
    return store_refuse(why, KVC_E_BUSY, "lease", "a block lies in extents that are not mapped");
}

/* The loads counters of a block must not run over when it is twice in the range. */
static kvc_status open_blocks(struct owner *owner, struct load *load, const uint32_t *ids,
                              uint32_t count, struct refusal *why)
{
    const bool by_daemon = load->word == NULL;

    for (load->count = 0; load->count < count; load->count++) {
        struct load_block *at = &load->blocks[load->count];
        kvc_status status = choose(owner, by_daemon, ids[load->count], &at->tier, why);

        if (status != KVC_OK)
            return status;
        at->block = ids[load->count];
        keep_load(owner->store, at->block, at->tier);
    }
    return KVC_OK;
}

static void describe(const struct store *store, const struct load *load,
                     struct store_location *locations)
{
    for (uint32_t i = 0; i < load->count; i++) {
        const struct load_block *at = &load->blocks[i];
        uint32_t slot = blocks_get(store->blocks, at->block)->slot[at->tier];
        const struct table_slot *record = store_record(store, at->tier, slot);

        locations[i] = (struct store_location){
            .tier = at->tier,
            .checked = record->flags & SLOT_CHECKED,
            .generation = record->generation,
            .offset = slots_offset(store->slots[at->tier], slot),
            .checksum = record->checksum,
        };
    }
}

/* What the range of slices has, of one block. */
static uint64_t count_bytes(const struct store *store, const struct store_load *req)
{
    const struct table_layout *layout =
        table_layout(store->table, table_part(store->table, req->part)->layout);
    uint32_t end = req->n_slices ? req->first_slice + req->n_slices : layout->n_slices;
    uint64_t bytes = 0;

    for (uint32_t i = req->first_slice; i < end; i++)
        bytes += layout->slice_bytes[i];
    return bytes;
}

static kvc_status take_word(struct store *store, struct load *load, struct refusal *why)
{
    load->word = page_take(load->owner->page, WORD_LOAD, load, table_next_number(store->table),
                           clock_now_us());
    if (!load->word)
        return store_refuse(why, KVC_E_BUSY, "word", "all completion words are in use");
    return KVC_OK;
}

static kvc_status open_load(struct store *store, struct owner *owner, const struct store_load *req,
                            bool by_daemon, struct store_location *locations, struct load **ret,
                            struct refusal *why)
{
    const struct lease_part *part = NULL;
    struct lease *lease;
    struct load *load;
    kvc_status status = check(owner, req, &lease, &part, why);

    if (status != KVC_OK)
        goto settle;
    load = mem_zalloc(sizeof(*load) + req->count * sizeof(load->blocks[0]));
    if (!load) {
        status = store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
        goto settle;
    }
    load->owner = owner;
    load->opened = clock_now_us();
    load->block_bytes = count_bytes(store, req);
    if (!by_daemon)
        status = take_word(store, load, why);
    if (status != KVC_OK)
        goto free_load;
    status = open_blocks(owner, load, part->blocks + req->first, req->count, why);
    if (status != KVC_OK)
        goto close_blocks;
    if (load->word)
        proof_watch(store, load->word);
    list_push_back(&owner->loads, &load->link);
    store->open_loads++;
    describe(store, load, locations);
    if (req->release)
        lease_end(lease);
    *ret = load;
    return KVC_OK;

close_blocks:
    while (load->count > 0) {
        load->count--;
        keep_unload(store, load->blocks[load->count].block, load->blocks[load->count].tier);
    }
    if (load->word)
        page_give(load->word);
free_load:
    mem_free(load);
settle:
    store_settle(store);
    return status;
}

kvc_status store_load(struct store *store, struct owner *owner, const struct store_load *req,
                      struct store_location *locations, uint32_t *word, uint64_t *number,
                      struct refusal *why)
{
    struct load *load;
    kvc_status status = open_load(store, owner, req, false, locations, &load, why);

    if (status != KVC_OK)
        return status;
    *word = page_index(load->word);
    *number = load->word->number;
    return KVC_OK;
}

kvc_status store_load_by_daemon(struct store *store, struct owner *owner,
                                const struct store_load *req, struct store_location *locations,
                                struct load **load, struct refusal *why)
{
    return open_load(store, owner, req, true, locations, load, why);
}

void store_load_copied(struct store *store, struct load *load, bool copied)
{
    assert(!load->word);
    load_close(store, load, copied);
    store_settle(store);
}

void store_report(struct store *store, struct owner *owner, uint32_t part, const uint8_t *key,
                  enum tier_kind tier, uint32_t generation)
{
    uint32_t id = owner_has_part(owner, part) ? blocks_find(store->blocks, part, key) : BLOCK_NONE;
    const struct block *block = id == BLOCK_NONE ? NULL : blocks_get(store->blocks, id);

    if (!block || block->state != BLOCK_READY || (unsigned)tier >= TIER_COUNT ||
        block->slot[tier] == SLOT_NONE ||
        store_record(store, tier, block->slot[tier])->generation != generation) {
        store->stats.stale_completions++;
        return;
    }
    store->stats.checksum_failures++;
    pin_drop(store, id);
    keep_doom(store, id);
    store_settle(store);
}
