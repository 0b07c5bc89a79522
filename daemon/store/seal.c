/*
 * The end of an admission: what got no room is skipped, what is assigned is cut into chunks with a
 * word each, and the worker is told.
 */
#include <assert.h>

#include "daemon/base/mem.h"
#include "daemon/store/admission.h"
#include "daemon/store/proof.h"
#include "daemon/store/save.h"
#include "kernels/pack.h"

/* Begins the next chunk; false: there is no word for it. */
static bool begin_chunk(struct store *store, struct save *save, uint64_t now)
{
    struct chunk *chunk = &save->chunks[save->n_chunks];
    struct word *word = NULL;

    if (!save->by_daemon) {
        word =
            page_take(save->owner->page, WORD_CHUNK, chunk, table_next_number(store->table), now);
        if (!word)
            return false;
        proof_watch(store, word);
    }
    *chunk = (struct chunk){
        .save = save,
        .main = chunk,
        .word = word,
        .first = save->n_slots,
        .slices = save->by_slices ? 0 : 1,
        .missing = save->by_slices ? 0 : 1,
        .owed = 1,
    };
    save->n_chunks++;
    save->owed++;
    return true;
}

/* A block of the chunk that was begun last. */
static void add_block(const struct store *store, struct save *save,
                      const struct admission_entry *entry, uint32_t i)
{
    struct chunk *chunk = &save->chunks[save->n_chunks - 1];

    save->slots[save->n_slots] = save->admission->places[i].slot;
    save->slots[save->n_slots++].follows =
        i > entry->first && save->admission->states[i - 1] == STORE_KEY_ASSIGNED;
    chunk->blocks++;
    if (save->by_slices) {
        chunk->slices += entry->n_slices;
        chunk->missing += slices_of(store, entry->part);
    }
}

/* Cuts what is assigned into chunks, as far as there are words; the rest is taken back. */
static void cut(struct store *store, struct save *save)
{
    struct admission *admission = save->admission;
    uint64_t now = clock_now_us();
    struct pack_cut plan = {0};
    bool out_of_words = false;

    for (uint32_t e = 0; e < admission->n_entries; e++) {
        struct admission_entry *entry = &admission->entries[e];

        for (uint32_t i = entry->first; i < entry->end; i++) {
            if (admission->states[i] != STORE_KEY_ASSIGNED)
                continue;
            if (!out_of_words && pack_cut_next(&plan, entry->block_bytes))
                out_of_words = !begin_chunk(store, save, now);
            if (out_of_words) {
                admit_take_back(store, save, i);
                continue;
            }
            add_block(store, save, entry, i);
        }
        entry->slots_end = save->n_slots;
    }
}

inline struct store_location save_location(const struct store *store, const struct save_slot *slot)
{
    return (struct store_location){
        .tier = slot->tier,
        .generation = slot->generation,
        .offset = slots_offset(store->slots[slot->tier], slot->slot),
    };
}

void save_tell_chunks(const struct save *save, const struct chunk *chunks,
                      struct store_save_result *result)
{
    for (uint32_t i = 0; i < save->n_chunks; i++)
        result->chunks[i] = (struct store_chunk){
            .blocks = chunks[i].blocks,
            .word = save->by_daemon ? 0 : page_index(chunks[i].word),
            .number = save->by_daemon ? 0 : chunks[i].word->number,
        };
    result->n_chunks = save->n_chunks;
}

static void fill_result(struct store *store, const struct save *save,
                        struct store_save_result *result)
{
    const struct admission *admission = save->admission;

    for (uint32_t e = 0; e < admission->n_entries; e++) {
        const struct admission_entry *entry = &admission->entries[e];

        for (uint32_t i = entry->first; i < entry->end; i++) {
            const struct save_slot *slot = &admission->places[i].slot;

            if (admission->states[i] == KEY_SHARED) {
                uint32_t id = blocks_find(store->blocks, entry->part, admission_key(admission, i));

                admission->states[i] = id == BLOCK_NONE ? STORE_KEY_SKIPPED : STORE_KEY_HIT;
            }
            result->states[i] = admission->states[i];
            store->stats.skipped_blocks += result->states[i] == STORE_KEY_SKIPPED;
            if (result->states[i] == STORE_KEY_ASSIGNED)
                result->locations[i] = save_location(store, slot);
        }
    }
    save_tell_chunks(save, save->chunks, result);
    result->first_chunk = 0;
    result->save = save->n_chunks > 0 ? save->id : 0;
}

/* Unless something of it is still needed. */
static void end_admission(struct save *save)
{
    if (save->by_slices || save->admission->unlisted)
        return;
    mem_free(save->admission);
    save->admission = NULL;
}

void store_save_seal(struct store *store, struct save *save, struct store_save_result *result)
{
    assert(save->phase == SAVE_ADMITTING);
    admit_rest(store, save);
    admit_let_go(store, save);
    cut(store, save);
    fill_result(store, save, result);
    end_admission(save);
    if (save->n_chunks == 0) {
        save_free(save);
    } else {
        save_set_phase(save, SAVE_COPYING);
        save_await_proof(store, save);
    }
}

/* false: there is no memory for all. */
static bool list_keys(struct store *store, const struct admission *admission)
{
    for (uint32_t i = 0; i < admission->n_keys; i++) {
        const uint32_t left = admission->n_keys - i;

        if (i % BLOCKS_EXPECT_MAX == 0)
            blocks_expect(store->blocks, admission->tags + i,
                          left < BLOCKS_EXPECT_MAX ? left : BLOCKS_EXPECT_MAX);
        if (admission->states[i] == STORE_KEY_ASSIGNED &&
            blocks_list(store->blocks, admission->tags[i], admission->places[i].slot.block) !=
                KVC_OK)
            return false;
    }
    return true;
}

void store_save_list(struct store *store)
{
    struct save *save = store->unlisted;
    bool listed;

    if (!save)
        return;
    assert(save->phase == SAVE_ADMITTING || save->phase == SAVE_COPYING);
    store->unlisted = NULL;
    save->admission->unlisted = false;
    listed = list_keys(store, save->admission);
    if (save->phase != SAVE_ADMITTING)
        end_admission(save);
    if (!listed)
        save_fail(store, save, KVC_E_NO_MEMORY);
}
