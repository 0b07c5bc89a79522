/*
 * Saves by slices: an engine that saves layer by layer calls once for each range of slices. All
 * calls of a save are one, for who fails and for what is published; each has words of its own.
 */
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/admission.h"
#include "daemon/store/proof.h"
#include "daemon/store/save.h"

uint32_t slices_of(const struct store *store, uint32_t part)
{
    return table_layout(store->table, table_part(store->table, part)->layout)->n_slices;
}

/* The range of an entry; 0: all from the first on. */
static uint32_t count_slices(const struct store *store, const struct store_save_entry *entry)
{
    return entry->n_slices ? entry->n_slices : slices_of(store, entry->part) - entry->first_slice;
}

static bool has_claimed(const uint64_t *claimed, uint32_t slice)
{
    return claimed[slice / 64] >> slice % 64 & 1;
}

uint32_t slices_claim(const struct store *store, const struct store_save_entry *entry,
                      uint64_t *claimed)
{
    uint32_t n = count_slices(store, entry);

    for (uint32_t i = entry->first_slice; i < entry->first_slice + n; i++)
        claimed[i / 64] |= 1ull << i % 64;
    return n;
}

static struct save *find(struct owner *owner, uint64_t id)
{
    struct save *save;

    list_for_each(save, &owner->saves, link)
        if (save->id == id && save->phase == SAVE_COPYING)
            return save;
    return NULL;
}

static kvc_status check_entry(const struct owner *owner, const struct save *save,
                              const struct store_save_entry *entry, struct refusal *why)
{
    const struct admission *admission = save->admission;
    uint32_t all = slices_of(owner->store, admission->entries[0].part), n;
    kvc_status status = owner_check_part(owner, entry->part, entry->epoch, "entries", 0, why);

    if (status != KVC_OK)
        return status;
    if (entry->part != admission->entries[0].part)
        return store_refuse_at(why, KVC_E_INVALID, "entries", 0, "part", "not that of the save");
    if (entry->n_keys != admission->n_keys ||
        memcmp(entry->keys, admission->keys, (size_t)entry->n_keys * KVC_KEY_BYTES) != 0)
        return store_refuse_at(why, KVC_E_INVALID, "entries", 0, "keys", "not those of the save");
    if (entry->first_slice >= all || entry->n_slices > all - entry->first_slice)
        return store_refuse_at(why, KVC_E_INVALID, "entries", 0, "slices",
                               "not slices of the layout");
    n = count_slices(owner->store, entry);
    for (uint32_t i = entry->first_slice; i < entry->first_slice + n; i++)
        if (has_claimed(save->claimed, i))
            return store_refuse_at(why, KVC_E_DUPLICATE, "entries", 0, "slices",
                                   "a slice that the save has already");
    return KVC_OK;
}

static kvc_status check(struct owner *owner, const struct store_save *req, struct save **ret,
                        struct refusal *why)
{
    struct save *save = find(owner, req->save);

    if (!save)
        return store_refuse(why, KVC_E_UNKNOWN, "save", "no such save, or it has ended");
    if (!save->by_slices)
        return store_refuse(why, KVC_E_INVALID, "save", "its blocks are saved whole");
    if (req->by_daemon)
        return store_refuse(why, KVC_E_UNSUPPORTED, "save", "the daemon copies whole blocks");
    if (req->n_entries != 1)
        return store_refuse(why, KVC_E_INVALID, "entries", "a save by slices has one entry");
    if (req->checksums != save->checksums)
        return store_refuse(why, KVC_E_INVALID, "checksums", "in all calls of a save, or in none");
    *ret = save;
    return check_entry(owner, save, &req->entries[0], why);
}

/* A word for each of the save's chunks, or none. */
static bool take_words(struct store *store, struct save *save, struct slices *slices)
{
    uint64_t now = clock_now_us();

    for (uint32_t i = 0; i < save->n_chunks; i++) {
        struct chunk *chunk = &slices->chunks[i];

        chunk->word =
            page_take(save->owner->page, WORD_CHUNK, chunk, table_next_number(store->table), now);
        if (chunk->word)
            continue;
        while (i-- > 0)
            page_give(slices->chunks[i].word);
        return false;
    }
    return true;
}

static void add(struct store *store, struct save *save, struct slices *slices, uint32_t n)
{
    for (uint32_t i = 0; i < save->n_chunks; i++) {
        struct chunk *chunk = &slices->chunks[i], *main = &save->chunks[i];

        chunk->save = save;
        chunk->main = main;
        chunk->first = main->first;
        chunk->blocks = main->blocks;
        chunk->slices = n;
        main->owed++;
        save->owed++;
        proof_watch(store, chunk->word);
    }
    list_push_back(&save->more, &slices->link);
}

static void fill_result(const struct store *store, const struct save *save,
                        const struct slices *slices, struct store_save_result *result)
{
    const struct admission *admission = save->admission;

    for (uint32_t i = 0; i < admission->n_keys; i++) {
        const struct save_slot *slot = &admission->slots[i];

        result->states[i] = admission->states[i];
        if (result->states[i] == STORE_KEY_ASSIGNED)
            result->locations[i] = (struct store_location){
                .tier = slot->tier,
                .generation = slot->generation,
                .offset = slots_offset(store->slots[slot->tier], slot->slot),
            };
    }
    for (uint32_t i = 0; i < save->n_chunks; i++)
        result->chunks[i] = (struct store_chunk){
            .blocks = slices->chunks[i].blocks,
            .word = page_index(slices->chunks[i].word),
            .number = slices->chunks[i].word->number,
        };
    result->n_chunks = save->n_chunks;
    result->save = save->id;
}

kvc_status store_save_slices(struct store *store, struct owner *owner, const struct store_save *req,
                             struct store_save_result *result, struct refusal *why)
{
    struct slices *slices;
    struct save *save = NULL;
    kvc_status status = check(owner, req, &save, why);

    if (status != KVC_OK)
        return status;
    slices = mem_zalloc(sizeof(*slices) + save->n_chunks * sizeof(struct chunk));
    if (!slices)
        return store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
    slices->request = req->request;
    list_init(&slices->link);
    if (!take_words(store, save, slices)) {
        mem_free(slices);
        return store_refuse(why, KVC_E_BUSY, "word", "all completion words are in use");
    }
    add(store, save, slices, slices_claim(store, &req->entries[0], save->claimed));
    save->queued = clock_now_us() + store->config.tuning.save_proof_ms * CLOCK_MS_US;
    list_move_back(&store->saves, &save->queue);
    fill_result(store, save, slices, result);
    return KVC_OK;
}
