/* Saves, and who copies in them. */
#include "tests/lib/storekit.h"

#include <check.h>
#include <stddef.h>

#include "kernels/pack.h"
#include "tests/lib/check_main.h"

bool kit_daemon_copies(void)
{
    return check_copies_by_daemon();
}

struct kit_copy *kit_take_copy(struct kit *kit)
{
    for (uint32_t i = 0; i < KIT_COPIES; i++)
        if (!kit->copies[i].save && !kit->copies[i].load)
            return &kit->copies[i];
    ck_abort_msg("too many copies by the daemon");
    return NULL;
}

struct kit_copy *kit_copy(struct kit *kit, struct save *save,
                          const struct store_save_result *result)
{
    struct kit_copy *copy = kit_take_copy(kit);

    *copy = (struct kit_copy){
        .save = save, .first_chunk = result->first_chunk, .n_chunks = result->n_chunks};
    return copy;
}

void kit_tell_copy(struct kit *kit, struct kit_copy *copy, uint32_t chunk, const uint64_t *cells,
                   kvc_status status)
{
    if (copy->told[chunk])
        return;
    copy->told[chunk] = true;
    copy->n_told++;
    store_chunk_copied(kit->store, copy->save, copy->first_chunk + chunk, cells, status);
    if (copy->n_told == copy->n_chunks)
        memset(copy, 0, offsetof(struct kit_copy, told));
    kit_check(kit);
}

void kit_tell(struct kit *kit, const struct kit_save *save, uint32_t chunk, kvc_status status)
{
    kit_tell_copy(kit, save->copy, chunk, NULL, status);
}

void kit_end_copies(struct kit *kit)
{
    for (uint32_t i = 0; i < KIT_COPIES; i++) {
        struct kit_copy *copy = &kit->copies[i];

        for (uint32_t chunk = 0; copy->save && chunk < copy->n_chunks; chunk++)
            kit_tell_copy(kit, copy, chunk, NULL, KVC_E_CANCELLED);
        if (copy->load)
            store_load_copied(kit->store, copy->load, false);
        copy->load = NULL;
    }
}

static kvc_status open_save(struct kit *kit, struct kit_owner *owner,
                            const struct kit_entry *entries, uint32_t n_entries, bool in_one,
                            struct kit_save *save)
{
    static uint8_t keys[(KIT_KEYS + 1) * KVC_KEY_BYTES];
    struct store_save_entry list[KVC_ENTRIES_MAX + 1] = {0};
    struct store_save request = {.entries = list,
                                 .n_entries = n_entries,
                                 .checksums = true,
                                 .notify = !in_one,
                                 .by_daemon = kit_daemon_copies(),
                                 .place = kit->place,
                                 .list_later = in_one};
    kvc_status status;

    memset(save, 0, sizeof(*save));
    save->owner = owner;
    for (uint32_t e = 0; e < n_entries; e++) {
        list[e] = (struct store_save_entry){
            .part = entries[e].part,
            .epoch = entries[e].epoch,
            .keys = keys + save->n_keys * KVC_KEY_BYTES,
            .n_keys = entries[e].n,
        };
        for (uint32_t i = 0; i < entries[e].n && save->n_keys < KIT_KEYS; i++) {
            kit_key(entries[e].first + i, keys + save->n_keys * KVC_KEY_BYTES);
            save->keys[save->n_keys++] = entries[e].first + i;
        }
    }
    if (n_entries > 0)
        request.request = entries[0].first;
    status = store_save_open(kit->store, owner->owner, &request, &save->open, &save->short_of,
                             &kit->why);
    if (!in_one)
        kit_check(kit);
    return status;
}

kvc_status kit_save_open(struct kit *kit, struct kit_owner *owner, const struct kit_entry *entries,
                         uint32_t n_entries, struct kit_save *save)
{
    return open_save(kit, owner, entries, n_entries, false, save);
}

void kit_save_seal(struct kit *kit, struct kit_save *save)
{
    uint32_t in_chunks = 0;

    save->result.states = save->states;
    save->result.locations = save->locations;
    save->result.chunks = save->chunks;
    store_save_seal(kit->store, save->open, &save->result);
    store_save_list(kit->store);
    if (kit_daemon_copies() && save->result.save != 0)
        save->copy = kit_copy(kit, save->open, &save->result);
    save->open = NULL;
    kit_check(kit);
    for (uint32_t i = 0; i < save->n_keys; i++)
        if (save->states[i] == STORE_KEY_ASSIGNED)
            save->order[save->n_assigned++] = i;
    for (uint32_t i = 0; i < save->result.n_chunks; i++)
        in_chunks += save->chunks[i].blocks;
    ck_assert_uint_eq(in_chunks, save->n_assigned);
    ck_assert_int_eq(save->result.save != 0, save->n_assigned > 0);
}

void kit_save(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n,
              struct kit_save *save)
{
    struct kit_entry entry = kit_entry(kit, first, n);

    ck_assert_int_eq(open_save(kit, owner, &entry, 1, true, save), KVC_OK);
    kit_save_seal(kit, save);
}

struct kit_owner *kit_open_chunks(struct kit *kit, uint32_t gpu_slots, struct kit_save *save)
{
    struct kit_owner *worker;
    struct kit_entry entry;

    kit_open(kit, &(struct kit_config){.gpu_slots = gpu_slots, .slot_bytes = 4096});
    worker = kit_worker(kit);
    entry = kit_entry(kit, 0, KIT_CHUNKED);
    ck_assert_int_eq(kit_save_open(kit, worker, &entry, 1, save), KVC_OK);
    kit_save_seal(kit, save);
    ck_assert_uint_eq(save->result.n_chunks, 3);
    return worker;
}

uint32_t kit_after_chunks(uint32_t n)
{
    return n == 3 ? KIT_CHUNKED : n * 64;
}

uint32_t kit_save_slowly(struct kit *kit, struct kit_owner *owner, struct kit_entry entry,
                         struct kit_save *save)
{
    ck_assert_int_eq(kit_save_open(kit, owner, &entry, 1, save), KVC_OK);
    while (save->short_of > 0 && kit_moves(kit, 1, KVC_OK) > 0) {
        save->short_of = store_save_more(kit->store, save->open);
        kit_check(kit);
    }
    kit_save_seal(kit, save);
    return save->n_assigned;
}

int kit_abort(struct kit *kit, struct kit_save *save, bool never_all)
{
    struct save_outcome outcome = {0};
    bool pending;
    kvc_status status = store_abort(kit->store, save->owner->owner, save->result.save, 0, NULL, 0,
                                    never_all, &pending, &outcome, &kit->why);

    ck_assert_int_eq(status, KVC_OK);
    kit_check(kit);
    ck_assert_uint_eq(outcome.save, save->result.save);
    /* The daemon's copies that have not begun end here; the save is told of like any other. */
    for (uint32_t i = 0; pending && never_all && save->copy && i < save->result.n_chunks; i++)
        kit_tell_copy(kit, save->copy, i, NULL, KVC_E_CANCELLED);
    if (pending && !(never_all && save->copy))
        return -1;
    if (pending)
        kit_tick(kit);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    ck_assert_uint_eq(outcome.published + outcome.dropped, save->n_assigned);
    return (int)outcome.published;
}

uint32_t kit_count(const struct kit_save *save, enum store_key state)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < save->n_keys; i++)
        count += save->states[i] == state;
    return count;
}

void kit_fill(const struct kit *kit, uint32_t key, uint8_t *slot)
{
    for (uint32_t i = 0; i < kit->slot_bytes; i += 512)
        memcpy(slot + i, (uint64_t[]){key * 1000003ull + i, ~(uint64_t)key}, 16);
}

uint64_t kit_checksum(const struct kit *kit, const uint8_t *slot)
{
    uint32_t half = kit->slot_bytes / 2;

    return pack_checksum_slice(slot, half, 0) + pack_checksum_slice(slot + half, half, 1);
}

void kit_write(struct kit *kit, const struct kit_save *save, uint32_t chunk)
{
    uint8_t *entry = save->owner->page + save->chunks[chunk].word * KVC_PAGE_STRIDE;
    uint64_t cells[KVC_CHUNK_BLOCKS];
    uint32_t first = 0;

    for (uint32_t i = 0; i < chunk; i++)
        first += save->chunks[i].blocks;
    for (uint32_t i = 0; i < save->chunks[chunk].blocks; i++) {
        uint32_t at = save->order[first + i];
        const struct store_location *location = &save->locations[at];
        uint8_t *slot = kit->memory[location->tier] + location->offset;
        uint64_t sum;

        kit_fill(kit, save->keys[at], slot);
        sum = kit_checksum(kit, slot);
        cells[i] = sum;
    }
    if (save->copy) {
        kit_tell_copy(kit, save->copy, chunk, cells, KVC_OK);
        return;
    }
    memcpy(entry, cells, save->chunks[chunk].blocks * sizeof(cells[0]));
    kit_word(kit, save->owner, save->chunks[chunk].word, save->chunks[chunk].number);
}

void kit_word(struct kit *kit, const struct kit_owner *owner, uint32_t word, uint64_t number)
{
    (void)kit;
    __atomic_store_n((uint64_t *)(owner->page + word * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET),
                     number, __ATOMIC_RELEASE);
}

void kit_end_copy(struct kit *kit, const struct kit_save *save, uint32_t chunk)
{
    if (save->copy)
        kit_tell(kit, save, chunk, KVC_OK);
    else
        kit_word(kit, save->owner, save->chunks[chunk].word, save->chunks[chunk].number);
}

void kit_prove(struct kit *kit, const struct kit_save *save)
{
    for (uint32_t i = 0; i < save->result.n_chunks; i++)
        kit_write(kit, save, i);
    kit_tick(kit);
}

void kit_put(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n)
{
    struct kit_save save;

    kit_save(kit, owner, first, n, &save);
    ck_assert_uint_eq(save.n_assigned, n);
    kit_prove(kit, &save);
    ck_assert_uint_eq(kit_probe(kit, owner, first, n), n);
}

void kit_put_slowly(struct kit *kit, struct kit_owner *owner, uint32_t first, uint32_t n)
{
    struct kit_save save;

    ck_assert_uint_eq(kit_save_slowly(kit, owner, kit_entry(kit, first, n), &save), n);
    kit_prove(kit, &save);
}
