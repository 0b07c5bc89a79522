#include "daemon/store/save.h"

#include <assert.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/keep.h"
#include "daemon/store/proof.h"
#include "daemon/store/room.h"
#include "daemon/store/scope.h"

void save_set_phase(struct save *save, enum save_phase phase)
{
    assert((save->phase == SAVE_ADMITTING && phase == SAVE_COPYING) ||
           (save->phase == SAVE_COPYING && (phase == SAVE_ABORTED || phase == SAVE_OVER)) ||
           (save->phase == SAVE_ABORTED && phase == SAVE_OVER));
    save->phase = phase;
}

void save_outcome(const struct save *save, struct save_outcome *outcome)
{
    *outcome = (struct save_outcome){
        .save = save->id,
        .status = save->status,
        .published = save->published,
        .dropped = save->dropped,
    };
}

void save_free(struct save *save)
{
    struct slices *slices, *after;

    list_for_each_safe(slices, after, &save->more, link)
        mem_free(slices);
    if (save->owner->store->unlisted == save)
        save->owner->store->unlisted = NULL;
    list_remove(&save->link);
    list_remove(&save->queue);
    save->owner->n_saves--;
    mem_free(save->admission);
    mem_free(save);
}

static void end(struct store *store, struct save *save)
{
    struct owner *owner = save->owner;

    assert(save->owed == 0);
    save_set_phase(save, SAVE_OVER);
    if (save->notify && !owner->ended) {
        list_move_back(&store->reports, &save->queue);
        return;
    }
    save_free(save);
    owner_settle(owner);
}

void save_forget_block(struct store *store, struct save_slot *slot)
{
    if (slot->block == BLOCK_NONE)
        return;
    blocks_unlink(store->blocks, slot->block);
    blocks_drop(store->blocks, slot->block);
    slot->block = BLOCK_NONE;
}

static struct partition *slot_partition(const struct store *store, const struct save_slot *slot)
{
    return store->partitions[store_record(store, slot->tier, slot->slot)->part];
}

static void free_slots(struct store *store, struct chunk *chunk)
{
    for (uint32_t i = 0; i < chunk->blocks; i++) {
        struct save_slot *slot = &chunk->save->slots[chunk->first + i];

        room_give(slot_partition(store, slot), slot->tier, slot->slot);
    }
    chunk->state = CHUNK_GONE;
}

/* The key before a slot's in the prompt, if this save brought it and its slot still has it. */
static const uint8_t *parent_of(const struct store *store, const struct save *save, uint32_t i)
{
    const struct save_slot *before = i > 0 ? &save->slots[i - 1] : NULL;
    const struct table_slot *record;

    if (!before || !save->slots[i].follows)
        return NULL;
    record = store_record(store, before->tier, before->slot);
    return record->generation == before->generation ? record->key : NULL;
}

static void note_stored(const struct store *store, const struct chunk *chunk)
{
    for (uint32_t i = chunk->first; i < chunk->first + chunk->blocks; i++) {
        const struct save_slot *slot = &chunk->save->slots[i];
        const struct table_slot *record = store_record(store, slot->tier, slot->slot);

        store_note(store, STORE_EVENT_STORED, record->part, slot->tier, record->key,
                   parent_of(store, chunk->save, i));
    }
}

static void publish(struct store *store, struct chunk *chunk)
{
    struct save *save = chunk->save;

    note_stored(store, chunk);

    /* Last first, so that the head of the prefix is evicted last. */
    for (uint32_t i = chunk->blocks; i-- > 0;) {
        const struct save_slot *slot = &save->slots[chunk->first + i];
        uint32_t part = store_record(store, slot->tier, slot->slot)->part;
        uint32_t layout = table_part(store->table, part)->layout;
        uint64_t bytes = table_layout(store->table, layout)->block_bytes;

        keep_publish(store, slot->block);
        store->stats.bytes_saved[slot->tier] += bytes;
        store->stats.own_bytes_saved[slot->tier] += save->owner->user ? 0 : bytes;
    }
    chunk->state = CHUNK_PUBLISHED;
    save->published += chunk->blocks;
    store->stats.published_blocks += chunk->blocks;
}

/* A save of several chunks is one run of keys too: its head is evicted last. */
static void touch_all(struct store *store, const struct save *save)
{
    for (uint32_t i = save->n_slots; i-- > 0;) {
        const struct save_slot *slot = &save->slots[i];
        const struct table_slot *record = store_record(store, slot->tier, slot->slot);

        if (record->generation != slot->generation || record->state != SLOT_READY)
            continue;
        if (blocks_get(store->blocks, slot->block)->slot[slot->tier] == slot->slot)
            keep_touch(store, slot->block);
    }
}

static void take_checksums(struct store *store, const struct chunk *chunk, const uint64_t *cells)
{
    for (uint32_t i = 0; i < chunk->blocks; i++) {
        const struct save_slot *slot = &chunk->save->slots[chunk->first + i];
        struct table_slot *record = store_record(store, slot->tier, slot->slot);

        record->checksum += cells[i];
        record->flags |= SLOT_CHECKED;
    }
}

static void settle_debt(struct chunk *chunk)
{
    if (chunk->word)
        page_give(chunk->word);
    chunk->word = NULL;
    chunk->main->owed--;
    chunk->save->owed--;
}

static void proved(struct store *store, struct chunk *chunk, const uint64_t *cells)
{
    struct save *save = chunk->save;

    assert(chunk->state == CHUNK_OWED && save->phase == SAVE_COPYING);
    if (cells)
        take_checksums(store, chunk, cells);
    settle_debt(chunk);
    chunk->state = CHUNK_PROVED;
    chunk->main->missing -= chunk->slices;
    while (save->next < save->n_chunks && save->chunks[save->next].missing == 0)
        publish(store, &save->chunks[save->next++]);
    if (save->next < save->n_chunks)
        return;
    if (save->n_chunks > 1)
        touch_all(store, save);
    histogram_add(&store->durations.saves, clock_now_us() - save->began);
    end(store, save);
}

void save_proved(struct store *store, struct chunk *chunk)
{
    uint64_t cells[KVC_CHUNK_BLOCKS];

    if (chunk->save->phase == SAVE_ABORTED) {
        save_waived(store, chunk);
        return;
    }
    for (uint32_t i = 0; i < chunk->blocks; i++)
        cells[i] = page_cell(chunk->word, i);
    proved(store, chunk, chunk->save->checksums ? cells : NULL);
}

void save_waived(struct store *store, struct chunk *chunk)
{
    struct save *save = chunk->save;

    assert(chunk->state == CHUNK_OWED && save->phase == SAVE_ABORTED);
    settle_debt(chunk);
    chunk->state = CHUNK_GONE;
    if (chunk->main->owed == 0)
        free_slots(store, chunk->main);
    if (save->owed == 0)
        end(store, save);
}

void save_fail(struct store *store, struct save *save, kvc_status status)
{
    save->status = status;
    store->stats.aborted_saves++;
    if (save->phase == SAVE_ADMITTING) {
        admit_undo(store, save);
        return;
    }
    for (uint32_t i = save->next; i < save->n_chunks; i++) {
        struct chunk *chunk = &save->chunks[i];

        for (uint32_t j = 0; j < chunk->blocks; j++) {
            struct save_slot *slot = &save->slots[chunk->first + j];

            save_forget_block(store, slot);
            if (chunk->owed > 0)
                store_set_state(store, store_record(store, slot->tier, slot->slot),
                                SLOT_QUARANTINE);
        }
        if (chunk->owed == 0)
            free_slots(store, chunk);
        save->dropped += chunk->blocks;
    }
    /* What its owner ends is said there (abort.c). */
    if (status != KVC_E_CANCELLED)
        log_info("store",
                 "save failed session=%llu request=%u save=%llu status=\"%s\" published=%u "
                 "dropped=%u",
                 (unsigned long long)save->owner->id, save->request, (unsigned long long)save->id,
                 kvc_status_text(status), save->published, save->dropped);
    save_set_phase(save, SAVE_ABORTED);
    save->queued = clock_now_us();
    list_move_back(&store->ended, &save->queue);
    if (save->owed == 0)
        end(store, save);
}

void store_chunk_copied(struct store *store, struct save *save, uint32_t chunk,
                        const uint64_t *cells, kvc_status status)
{
    struct chunk *copied = slices_chunk_at(save, chunk);

    assert(save->by_daemon && copied && copied->state == CHUNK_OWED);
    if (status != KVC_OK && save->phase == SAVE_COPYING)
        save_fail(store, save, status);
    if (save->phase == SAVE_COPYING)
        proved(store, copied, cells);
    else
        save_waived(store, copied);
    store_settle(store);
}

bool store_save_goes_on(const struct save *save)
{
    return save->phase == SAVE_COPYING && !save->owner->ended;
}

bool save_is_in(const struct save *save, const uint64_t *namespaces)
{
    const struct store *store = save->owner->store;

    if (save->phase == SAVE_ADMITTING)
        return admit_is_in(save, namespaces);
    /* Published slots may be somebody else's by now. */
    for (uint32_t i = save->chunks[save->next].first; i < save->n_slots; i++) {
        const struct save_slot *slot = &save->slots[i];
        uint32_t part = store_record(store, slot->tier, slot->slot)->part;

        if (scope_set_has(namespaces, table_part(store->table, part)->namespace_))
            return true;
    }
    return false;
}

/* New deadlines are the latest, but for the first after the setting was made shorter. */
void save_await_proof(struct store *store, struct save *save)
{
    struct list *at = &store->saves;

    save->queued = clock_now_us() + store->config.tuning.save_proof_ms * CLOCK_MS_US;
    while (at->prev != &store->saves &&
           container_of(at->prev, struct save, queue)->queued > save->queued)
        at = at->prev;
    list_insert_before(at, &save->queue);
}

void save_tick(struct store *store, uint64_t now)
{
    uint32_t drops = SAVE_DROPS;
    struct save *save;

    while (drops > 0 && (save = list_first(&store->saves, struct save, queue)) &&
           save->queued <= now) {
        drops -= save->n_slots < drops ? save->n_slots : drops;
        save_fail(store, save, KVC_E_DEADLINE);
    }
}

uint64_t save_next_wake(const struct store *store)
{
    const struct save *save = list_first(&store->saves, struct save, queue);

    return save ? save->queued : UINT64_MAX;
}
