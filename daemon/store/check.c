/* Every invariant of the store, recounted from what it should follow from. For tests. */
#include <stdlib.h>

#include "daemon/store/admission.h"
#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/load.h"
#include "daemon/store/partition.h"
#include "daemon/store/pin.h"
#include "daemon/store/save.h"

struct recount {
    const struct store *store;
    uint64_t in_state[SLOT_STATES];
    uint64_t doomed_slots, moving;
    uint64_t filling, quarantined; /* by the saves that they belong to */
    uint64_t loads, leases, watched;
    uint32_t loose;               /* of the extent that is looked at */
    uint32_t *holds;              /* by block: of saves and pins */
    uint32_t *leased;             /* by block */
    uint32_t *reads[TIER_COUNT];  /* by block: of open loads */
    uint64_t reading[TIER_COUNT]; /* what is beyond them: of store_walk_copies */
};

static const char *check_record(struct recount *r, enum tier_kind tier, uint32_t number)
{
    const struct table_slot *record = table_slot(r->store->table, tier, number);
    const struct block *block;
    uint32_t id;

    if (record->state == SLOT_FREE)
        return NULL;
    r->in_state[record->state]++;
    if (record->state != SLOT_READY && record->state != SLOT_FILLING)
        return NULL;
    id = blocks_of_slot(r->store->blocks, tier, number);
    if (id == BLOCK_NONE)
        return "a slot that is ready or filling has no block";
    block = blocks_get(r->store->blocks, id);
    if (block->state != (record->state == SLOT_READY ? BLOCK_READY : BLOCK_FILLING))
        return "a slot's state is not its block's";
    r->loose += block->order[tier] != ORDER_NONE;
    return record->loads == block->loads[tier] ? NULL : "a slot's loads are not its block's";
}

static const char *check_tier(struct recount *r, enum tier_kind tier)
{
    const struct table_tier *geometry = &table_header(r->store->table)->tiers[tier];
    const char *why = slots_check(r->store->slots[tier]);
    uint64_t bytes = 0;
    struct slots_count count;

    for (uint32_t e = 0; !why && e < geometry->extents; e++) {
        const struct table_extent *extent = table_extent(r->store->table, tier, e);
        uint64_t places = extent->slot_bytes ? geometry->extent_bytes / extent->slot_bytes : 0;
        struct slots_extent look;

        slots_look(r->store->slots[tier], e, &look);
        r->loose = 0;
        if (extent->state != EXTENT_OWNED || extent->slot_bytes == 0)
            continue;
        for (uint32_t i = 0; !why && i < (places ? places : 1); i++) {
            uint32_t number = e * geometry->slots_per_extent + i;

            why = check_record(r, tier, number);
            if (table_slot(r->store->table, tier, number)->state != SLOT_FREE)
                bytes += extent->slot_bytes;
        }
        if (!why && look.loose != r->loose)
            return "an extent's evictable slots are miscounted";
    }
    if (why)
        return why;
    slots_count(r->store->slots[tier], &count);
    return bytes == count.used_bytes ? NULL : "bytes in use are not those of the table";
}

/* Counts a word that is waited for, or slices that are proved, to what its main chunk should say.
 */
static const char *check_chunk(const struct save *save, const struct chunk *chunk,
                               const struct chunk *main, uint32_t *waits, uint32_t *missing)
{
    if ((chunk->state == CHUNK_OWED && !save->by_daemon) != (chunk->word != NULL))
        return "a chunk waits for no word, or has one and does not wait";
    if (chunk->word && chunk->word->object != chunk)
        return "a chunk's word is another's";
    if (chunk->main != main)
        return "a chunk is of other blocks";
    *waits += chunk->state == CHUNK_OWED;
    if (save->by_slices && (chunk->state == CHUNK_PROVED || chunk->state == CHUNK_PUBLISHED))
        *missing += chunk->slices;
    return NULL;
}

/* Slices of all blocks of a chunk. */
static uint32_t chunk_slices(const struct recount *r, const struct chunk *chunk)
{
    uint32_t slices = 0;

    for (uint32_t i = chunk->first; i < chunk->first + chunk->blocks; i++) {
        const struct save_slot *slot = &chunk->save->slots[i];

        slices += slices_of(r->store, store_record(r->store, slot->tier, slot->slot)->part);
    }
    return slices;
}

static const char *check_save(struct recount *r, const struct save *save)
{
    const struct slices *slices;
    const char *why = NULL;
    uint32_t owed = 0;

    if (save->phase == SAVE_ADMITTING) {
        admit_count_holds(save, r->holds);
        r->filling += admit_count_slots(save);
        return NULL;
    }
    for (uint32_t i = 0; i < save->n_chunks; i++) {
        const struct chunk *chunk = &save->chunks[i];
        uint32_t waits = 0, missing = save->by_slices ? chunk->missing : 0;

        why = check_chunk(save, chunk, chunk, &waits, &missing);
        list_for_each(slices, &save->more, link)
            why = why ? why : check_chunk(save, &slices->chunks[i], chunk, &waits, &missing);
        if (why)
            return why;
        if (waits != chunk->owed)
            return "a chunk's words are miscounted";
        if (save->phase == SAVE_COPYING && save->by_slices && chunk->missing > 0 &&
            missing != chunk_slices(r, chunk))
            return "a chunk's missing slices are miscounted";
        owed += waits;
        if ((chunk->state == CHUNK_PUBLISHED) != (i < save->next))
            return "a chunk is published out of order";
        if (save->phase == SAVE_COPYING && chunk->state != CHUNK_PUBLISHED)
            r->filling += chunk->blocks;
        if (save->phase == SAVE_ABORTED && chunk->owed > 0)
            r->quarantined += chunk->blocks;
    }
    return owed == save->owed ? NULL : "a save's owed words are miscounted";
}

static const char *check_words(struct recount *r, const struct owner *owner)
{
    uint32_t outstanding = 0, owed = 0;
    const struct save *save;
    const struct load *load;

    for (uint32_t i = 0; owner->page && i < KVC_PAGE_WORDS; i++) {
        const struct word *word = &owner->page->words[i];

        outstanding += word->kind != WORD_UNUSED;
        if ((word->kind != WORD_UNUSED) != list_linked(&word->watch))
            return "a word is waited for and not watched, or the other way round";
    }
    list_for_each(save, &owner->saves, link)
        owed += save->by_daemon ? 0 : save->owed;
    list_for_each(load, &owner->loads, link)
        owed += load->word != NULL;
    r->watched += outstanding;
    if (owner->page && outstanding != owner->page->outstanding)
        return "a page's words are miscounted";
    return owed == outstanding ? NULL : "the words of a session are not those of its operations";
}

/* A session is told no location where it was asked to unmap, or never mapped. */
static const char *check_extents(const struct owner *owner)
{
    const struct table *table = owner->store->table;
    uint32_t n_told = 0;

    for (enum tier_kind tier = 0; owner->page && tier < TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < table_header(table)->tiers[tier].extents; i++) {
            const struct table_extent *extent = table_extent(table, tier, i);
            uint64_t bit = 1ull << i % 64, held = owner->held[tier][i / 64] & bit;
            uint64_t told = owner->told[tier][i / 64] & bit;

            n_told += told != 0;
            if ((owner->mapped[tier][i / 64] & bit) && (!held || told))
                return "a session may use an extent that it does not map, or is to unmap";
            if ((told && !held) || ((owner->untold[tier][i / 64] & bit) && !told))
                return "a session is to unmap what it does not map";
            if (held && ((extent->state != EXTENT_OWNED && extent->state != EXTENT_TAIL) ||
                         extent->tenant != owner->identity.tenant))
                return "a session may map an extent of another tenant";
        }
    }
    return n_told == owner->n_told ? NULL : "extents to unmap are miscounted";
}

static void count_lease(struct recount *r, const struct lease *lease)
{
    for (uint32_t p = 0; p < lease->n_parts; p++)
        for (uint32_t i = lease->from; i < lease->reach; i++)
            if (lease->parts[p].blocks[i] != BLOCK_NONE)
                r->leased[lease->parts[p].blocks[i]]++;
}

static const char *check_owner(struct recount *r, const struct owner *owner)
{
    const struct lease *lease;
    const struct load *load;
    const struct save *save;
    const char *why = NULL;

    list_for_each(save, &owner->saves, link) {
        why = check_save(r, save);
        if (why)
            return why;
    }
    if (list_length(&owner->saves) != owner->n_saves)
        return "a session's saves are miscounted";
    list_for_each(lease, &owner->leases, link) {
        count_lease(r, lease);
        r->leases++;
    }
    if (list_length(&owner->leases) != owner->n_leases)
        return "a session's leases are miscounted";
    list_for_each(load, &owner->loads, link) {
        for (uint32_t i = 0; i < load->count; i++)
            r->reads[load->blocks[i].tier][load->blocks[i].block]++;
        r->loads++;
    }
    why = check_extents(owner);
    return why ? why : check_words(r, owner);
}

static const char *check_block(struct recount *r, uint32_t id)
{
    const struct block *block = blocks_get(r->store->blocks, id);

    if (block->state == BLOCK_UNUSED)
        return r->holds[id] || r->leased[id] ? "a block that is gone is held" : NULL;
    if (block->leases != r->leased[id])
        return "a block's leases are miscounted";
    r->moving += block->moving;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        if (block->loads[tier] < r->reads[tier][id])
            return "a block's loads are miscounted";
        r->reading[tier] += block->loads[tier] - r->reads[tier][id];
        r->holds[id] += block->loads[tier] - r->reads[tier][id];
        if (block->order[tier] != keep_order(block, tier))
            return "a block is in the wrong eviction order";
        r->doomed_slots += block->state == BLOCK_DOOMED && block->slot[tier] != SLOT_NONE;
    }
    if (block->held != r->holds[id])
        return "a block's holds are miscounted";
    if (block->state == BLOCK_DOOMED && !block->leases && !block->held && !block->moving &&
        !block->loads[TIER_GPU] && !block->loads[TIER_HOST])
        return "a dropped block is kept by nothing";
    return NULL;
}

static const char *check_totals(const struct recount *r)
{
    const struct store *store = r->store;

    for (int state = 1; state < SLOT_STATES; state++)
        if (r->in_state[state] != store->in_state[state])
            return "slots by state are miscounted";
    if (r->in_state[SLOT_FILLING] != r->filling)
        return "filling slots are not those of the saves";
    if (r->in_state[SLOT_QUARANTINE] != r->quarantined)
        return "slots in quarantine are not those of aborted saves";
    if (r->in_state[SLOT_MOVING] != list_length(&store->moves) ||
        r->moving != list_length(&store->moves))
        return "moving blocks or slots are not those of the copies in flight";
    if (r->in_state[SLOT_DOOMED] != r->doomed_slots)
        return "doomed slots are not those of dropped blocks";
    if (r->reading[TIER_GPU] != store->reading[TIER_GPU] ||
        r->reading[TIER_HOST] != store->reading[TIER_HOST])
        return "copies that are read are miscounted";
    if (r->loads != store->open_loads)
        return "open loads are miscounted";
    if (r->leases != store->leases.count || r->leases != store->lease_ends.count)
        return "leases are miscounted";
    if (r->watched != list_length(&store->young) + list_length(&store->old) ||
        r->watched != list_length(&store->words))
        return "watched words are not those of the pages";
    return NULL;
}

static const char *check_pins(struct recount *r)
{
    const struct store *store = r->store;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < store->pin_ends.count; i++) {
        const struct pin *pin = container_of(store->pin_ends.heap[i], struct pin, ends);
        const struct block *block = blocks_get(store->blocks, pin->block);

        if (block->state != BLOCK_READY)
            return "a pinned block is not published";
        r->holds[pin->block]++;
        bytes += pin->ends.at > 0 ? store_partition(store, block)->cls->slot_bytes : 0;
    }
    if (store->pin_ends.count != store->pins.count || bytes != store->pinned_bytes)
        return "pins are miscounted";
    return NULL;
}

static const char *check_all(struct recount *r)
{
    const struct store *store = r->store;
    const struct list *lists[] = {&store->owners, &store->freed};
    const struct owner *owner;
    const struct lease *lease;
    const char *why = blocks_check(store->blocks);

    for (enum tier_kind tier = 0; !why && tier < TIER_COUNT; tier++)
        why = check_tier(r, tier);
    for (int i = 0; i < 2; i++) {
        list_for_each(owner, lists[i], link) {
            if (why)
                return why;
            why = check_owner(r, owner);
        }
    }
    list_for_each(lease, &store->ending, link)
        count_lease(r, lease);
    if (!why)
        why = check_pins(r);
    for (uint32_t id = 0; !why && id < blocks_limit(store->blocks); id++)
        why = check_block(r, id);
    if (!why)
        why = partition_check_all(store);
    return why ? why : check_totals(r);
}

const char *store_check(const struct store *store)
{
    uint32_t n = blocks_limit(store->blocks);
    /* Not of base/mem: a check must not take the failure that a test has armed for another. */
    uint32_t *memory = calloc(4ul * n + 1, sizeof(*memory));
    struct recount recount = {.store = store};
    const char *why;

    if (!memory)
        return "out of memory";
    recount.holds = memory;
    recount.leased = memory + n;
    recount.reads[0] = memory + 2ul * n;
    recount.reads[1] = memory + 3ul * n;
    why = check_all(&recount);
    free(memory);
    return why;
}
