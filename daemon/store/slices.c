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

kvc_status slices_check(const struct store *store, const struct store_save *req, uint32_t i,
                        struct refusal *why)
{
    const struct store_save_entry *entry = &req->entries[i];
    const uint32_t all = slices_of(store, entry->part), none = req->n_entries > 1 ? 1 : 0;

    if (entry->first_slice >= all + none || entry->n_slices > all - entry->first_slice)
        return store_refuse_at(why, KVC_E_INVALID, "entries", i, "slices",
                               "not slices of the layout");
    return KVC_OK;
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

struct chunk *slices_chunk_at(struct save *save, uint32_t i)
{
    struct slices *slices;

    if (i < save->n_chunks)
        return &save->chunks[i];
    list_for_each(slices, &save->more, link) {
        i -= save->n_chunks;
        if (i < save->n_chunks)
            return &slices->chunks[i];
    }
    return NULL;
}

static struct save *find(struct owner *owner, uint64_t id)
{
    struct save *save;

    list_for_each(save, &owner->saves, link)
        if (save->id == id && save->phase == SAVE_COPYING)
            return save;
    return NULL;
}

static kvc_status check_entry(const struct owner *owner, const struct admission *admission,
                              const struct store_save *req, uint32_t i, struct refusal *why)
{
    const struct store_save_entry *entry = &req->entries[i];
    const struct admission_entry *first = &admission->entries[i];
    kvc_status status = owner_check_part(owner, entry->part, entry->epoch, "entries", i, why);
    uint32_t n;

    if (status != KVC_OK)
        return status;
    if (entry->part != first->part)
        return store_refuse_at(why, KVC_E_INVALID, "entries", i, "part", "not that of the save");
    if (entry->n_keys != first->end - first->first ||
        (entry->n_keys > 0 && memcmp(entry->keys, admission_key(admission, first->first),
                                     (size_t)entry->n_keys * KVC_KEY_BYTES) != 0))
        return store_refuse_at(why, KVC_E_INVALID, "entries", i, "keys", "not those of the save");
    status = slices_check(owner->store, req, i, why);
    if (status != KVC_OK)
        return status;
    n = count_slices(owner->store, entry);
    for (uint32_t s = entry->first_slice; s < entry->first_slice + n; s++)
        if (has_claimed(first->claimed, s))
            return store_refuse_at(why, KVC_E_DUPLICATE, "entries", i, "slices",
                                   "a slice that the save has already");
    return KVC_OK;
}

static kvc_status check(struct owner *owner, const struct store_save *req, struct save **ret,
                        struct refusal *why)
{
    struct save *save = find(owner, req->save);
    uint32_t n = 0;

    if (!save)
        return store_refuse(why, KVC_E_UNKNOWN, "save", "no such save, or it has ended");
    if (!save->by_slices)
        return store_refuse(why, KVC_E_INVALID, "save", "its blocks are saved whole");
    if (req->by_daemon != save->by_daemon)
        return store_refuse(why, KVC_E_INVALID, "region", "in all calls of a save, or in none");
    if (req->n_entries != save->admission->n_entries)
        return store_refuse(why, KVC_E_INVALID, "entries", "not those of the save");
    if (req->checksums != save->checksums)
        return store_refuse(why, KVC_E_INVALID, "checksums", "in all calls of a save, or in none");
    for (uint32_t i = 0; i < req->n_entries; i++) {
        kvc_status status = check_entry(owner, save->admission, req, i, why);

        if (status != KVC_OK)
            return status;
        n += count_slices(owner->store, &req->entries[i]);
    }
    if (n == 0)
        return store_refuse_at(why, KVC_E_INVALID, "entries", 0, "slices", "none at all");
    *ret = save;
    return KVC_OK;
}

/* A word for each of the save's chunks, or none. */
static bool take_words(struct store *store, struct save *save, struct slices *slices)
{
    uint64_t now = clock_now_us();

    for (uint32_t i = 0; i < save->n_chunks && !save->by_daemon; i++) {
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

/* Slices of all blocks of a chunk that a call brings, which has n[] of each entry. */
static uint32_t count_chunk(const struct save *save, const struct chunk *chunk, const uint32_t *n)
{
    uint32_t slices = 0, at = chunk->first;

    for (uint32_t e = 0; e < save->admission->n_entries; e++) {
        uint32_t end = save->admission->entries[e].slots_end;

        if (end > chunk->first + chunk->blocks)
            end = chunk->first + chunk->blocks;
        if (end <= at)
            continue;
        slices += (end - at) * n[e];
        at = end;
    }
    return slices;
}

static void add(struct store *store, struct save *save, struct slices *slices, const uint32_t *n)
{
    for (uint32_t i = 0; i < save->n_chunks; i++) {
        struct chunk *chunk = &slices->chunks[i], *main = &save->chunks[i];

        chunk->save = save;
        chunk->main = main;
        chunk->first = main->first;
        chunk->blocks = main->blocks;
        chunk->slices = count_chunk(save, main, n);
        main->owed++;
        save->owed++;
        if (chunk->word)
            proof_watch(store, chunk->word);
    }
    list_push_back(&save->more, &slices->link);
}

static void fill_result(const struct store *store, const struct save *save,
                        const struct slices *slices, struct store_save_result *result)
{
    const struct admission *admission = save->admission;

    for (uint32_t i = 0; i < admission->n_keys; i++) {
        const struct save_slot *slot = &admission->places[i].slot;

        result->states[i] = admission->states[i];
        if (result->states[i] == STORE_KEY_ASSIGNED)
            result->locations[i] = save_location(store, slot);
    }
    save_tell_chunks(save, slices->chunks, result);
    result->first_chunk = save->n_chunks * (uint32_t)list_length(&save->more);
    result->save = save->id;
}

kvc_status store_save_slices(struct store *store, struct owner *owner, const struct store_save *req,
                             struct save **ret, struct store_save_result *result,
                             struct refusal *why)
{
    uint32_t n[KVC_ENTRIES_MAX] = {0};
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
    for (uint32_t i = 0; i < req->n_entries; i++)
        n[i] = slices_claim(store, &req->entries[i], save->admission->entries[i].claimed);
    add(store, save, slices, n);
    list_remove(&save->queue);
    save_await_proof(store, save);
    fill_result(store, save, slices, result);
    *ret = save;
    return KVC_OK;
}
