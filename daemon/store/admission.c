#include "daemon/store/admission.h"

#include <string.h>

#include "daemon/base/mem.h"

/* Whether two of n <= KVC_KEYS_MAX keys are equal. */
static bool has_duplicate(uint64_t seed, const uint8_t *keys, uint32_t n)
{
    uint16_t places[2 * KVC_KEYS_MAX] = {0}; /* index + 1 */

    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *key = keys + (size_t)i * KVC_KEY_BYTES;
        uint64_t words[2], hash;
        uint32_t place;

        memcpy(words, key, sizeof(words));
        hash = (words[0] ^ seed) * 0x9E3779B97F4A7C15ull;
        hash = (hash ^ hash >> 32 ^ words[1]) * 0xBF58476D1CE4E5B9ull;
        place = (uint32_t)(hash >> 40) % (2 * KVC_KEYS_MAX);
        for (; places[place]; place = (place + 1) % (2 * KVC_KEYS_MAX))
            if (memcmp(keys + (size_t)(places[place] - 1) * KVC_KEY_BYTES, key, KVC_KEY_BYTES) == 0)
                return true;
        places[place] = (uint16_t)(i + 1);
    }
    return false;
}

static kvc_status check_entry(const struct owner *owner, const struct store_save *req, uint32_t i,
                              struct refusal *why)
{
    const struct store_save_entry *entry = &req->entries[i];
    struct store *store = owner->store;
    kvc_status status = owner_check_part(owner, entry->part, entry->epoch, "entries", i, why);

    if (status != KVC_OK)
        return status;
    status = slices_check(store, req, i, why);
    if (status != KVC_OK)
        return status;
    if (has_duplicate(store->hash_seed, entry->keys, entry->n_keys))
        return store_refuse_at(why, KVC_E_DUPLICATE, "entries", i, "keys",
                               "the same key twice in one entry");
    return KVC_OK;
}

kvc_status admission_check(const struct owner *owner, const struct store_save *req,
                           uint32_t *n_keys, struct refusal *why)
{
    uint64_t keys = 0;

    if (owner->identity.role != STORE_ROLE_WORKER || !owner->page)
        return store_refuse(why, KVC_E_DENIED, "", "only workers save");
    if (req->save != 0)
        return store_refuse(why, KVC_E_INVALID, "save", "more slices are for store_save_slices");
    if (req->n_entries > KVC_ENTRIES_MAX)
        return store_refuse(why, KVC_E_LIMIT, "entries", "too many entries");
    for (uint32_t i = 0; i < req->n_entries; i++) {
        keys += req->entries[i].n_keys;
        if (keys > KVC_KEYS_MAX)
            return store_refuse_at(why, KVC_E_LIMIT, "entries", i, "keys", "too many keys");
    }
    for (uint32_t i = 0; i < req->n_entries; i++) {
        kvc_status status = check_entry(owner, req, i, why);

        if (status != KVC_OK)
            return status;
    }
    if (owner->n_saves >= KVC_SESSION_SAVES_MAX)
        return store_refuse(why, KVC_E_LIMIT, "entries", "too many saves in flight");
    *n_keys = (uint32_t)keys;
    return KVC_OK;
}

/* One piece of memory with all arrays behind the struct. */
static struct admission *make_admission(const struct store_save *req, uint32_t n_keys)
{
    size_t entries = req->n_entries * sizeof(struct admission_entry);
    size_t places = n_keys * sizeof(union admission_place), ids = n_keys * sizeof(uint32_t);
    struct admission *admission =
        mem_alloc(sizeof(*admission) + entries + places + 2 * ids + n_keys * (KVC_KEY_BYTES + 1ul));
    uint8_t *at;

    if (!admission)
        return NULL;
    at = (uint8_t *)(admission + 1);
    *admission = (struct admission){
        .n_entries = req->n_entries, .n_keys = n_keys, .fresh = req->n_entries == 1};
    admission->entries = (void *)at;
    admission->places = (void *)(at += entries);
    admission->ids = (void *)(at += places);
    admission->tags = (void *)(at += ids);
    admission->keys = at += ids;
    admission->states = at + (size_t)n_keys * KVC_KEY_BYTES;
    return admission;
}

/* Reads the request into the admission and looks every key up; changes nothing. */
static void read_request(const struct owner *owner, const struct store_save *req,
                         struct admission *admission)
{
    struct store *store = owner->store;
    uint32_t first = 0;

    for (uint32_t i = 0; i < req->n_entries; i++) {
        const struct store_save_entry *in = &req->entries[i];
        const struct table_part *part = table_part(store->table, in->part);

        struct admission_entry *entry = &admission->entries[i];

        *entry = (struct admission_entry){
            .part = in->part,
            .epoch = in->epoch,
            .first = first,
            .end = first + in->n_keys,
            .next = first,
            .needed = part_needed(store, in->part),
            .partition = store->partitions[in->part],
            .block_bytes = table_layout(store->table, part->layout)->block_bytes,
        };
        if (entry->needed != UINT32_MAX)
            entry->next = entry->end;
        if (in->n_keys == 0)
            continue;
        memcpy(admission->keys + (size_t)first * KVC_KEY_BYTES, in->keys,
               (size_t)in->n_keys * KVC_KEY_BYTES);
        blocks_find_all(store->blocks, in->part, in->keys, in->n_keys, admission->tags + first,
                        admission->ids + first);
        first += in->n_keys;
    }
    for (uint32_t i = 0; i < admission->n_keys; i++) {
        uint32_t id = admission->ids[i];

        if (id == BLOCK_NONE)
            admission->states[i] = KEY_MISSING;
        else if (blocks_get(store->blocks, id)->state == BLOCK_READY)
            admission->states[i] = STORE_KEY_HIT;
        else
            admission->states[i] = STORE_KEY_PENDING;
    }
}

struct admission *admission_create(const struct owner *owner, const struct store_save *req,
                                   uint32_t n_keys)
{
    struct admission *admission = make_admission(req, n_keys);

    if (admission)
        read_request(owner, req, admission);
    return admission;
}
