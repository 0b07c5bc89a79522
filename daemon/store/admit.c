/*
 * Admission of a save: what its keys are to the store, and slots for those that are missing. All
 * checks come before any change. Hits are held for the length of the call, so that nothing that
 * the call evicts for its own sake is one of them.
 */
#include <assert.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/admission.h"
#include "daemon/store/keep.h"
#include "daemon/store/proof.h"
#include "daemon/store/room.h"
#include "daemon/store/save.h"
#include "daemon/store/scope.h"
#include "kernels/pack.h"

/* A bound: fewer keys that are assigned never need more chunks than all that are missing. */
static uint32_t count_chunks(const struct admission *admission, bool by_daemon, uint32_t *n_missing)
{
    struct pack_cut cut = {0};
    uint32_t chunks = 0;

    *n_missing = 0;
    for (uint32_t e = 0; e < admission->n_entries; e++) {
        const struct admission_entry *entry = &admission->entries[e];

        for (uint32_t i = entry->first; i < entry->end; i++) {
            if (admission->states[i] != KEY_MISSING)
                continue;
            ++*n_missing;
            chunks += pack_cut_next(&cut, entry->block_bytes);
        }
    }
    return by_daemon || chunks < KVC_PAGE_WORDS ? chunks : KVC_PAGE_WORDS;
}

static bool is_range(const struct store *store, const struct store_save_entry *entry)
{
    return entry->first_slice != 0 ||
           (entry->n_slices != 0 && entry->n_slices != slices_of(store, entry->part));
}

/* A call for some slices only: more of them are to come. */
static void note_slices(const struct store *store, const struct store_save *req, struct save *save)
{
    struct admission_entry *entries = save->admission->entries;

    for (uint32_t i = 0; i < req->n_entries; i++)
        save->by_slices = save->by_slices || is_range(store, &req->entries[i]);
    for (uint32_t i = 0; i < req->n_entries && save->by_slices; i++)
        entries[i].n_slices = slices_claim(store, &req->entries[i], entries[i].claimed);
}

static struct save *make_save(struct owner *owner, const struct store_save *req,
                              struct admission *admission)
{
    uint32_t n_missing, n_chunks = count_chunks(admission, req->by_daemon, &n_missing);
    struct save *save = mem_zalloc(sizeof(*save) + n_chunks * sizeof(struct chunk) +
                                   n_missing * sizeof(struct save_slot));

    if (!save)
        return NULL;
    save->owner = owner;
    save->id = table_next_id(owner->store->table);
    save->began = clock_now_us();
    save->request = req->request;
    save->phase = SAVE_ADMITTING;
    save->checksums = req->checksums;
    save->notify = req->notify;
    save->by_daemon = req->by_daemon;
    save->place = req->place;
    save->to_gpu = req->to_gpu;
    list_init(&save->more);
    save->admission = admission;
    note_slices(owner->store, req, save);
    save->chunks = (void *)(save + 1);
    save->slots = (void *)(save->chunks + n_chunks);
    list_init(&save->queue);
    list_push_back(&owner->saves, &save->link);
    owner->n_saves++;
    return save;
}

static void describe_slot(const struct save *save, const struct admission_entry *entry,
                          const uint8_t *key, struct table_slot *record)
{
    memcpy(record->key, key, KVC_KEY_BYTES);
    record->checksum = 0;
    record->last_use = save->owner->store->last_use;
    record->session = save->owner->id;
    record->epoch = entry->epoch;
    record->loads = 0;
    record->flags = 0;
}

/* The daemon itself reaches every extent. */
static struct room_place reach_of(const struct save *save)
{
    const struct owner *owner = save->owner;

    if (save->by_daemon)
        return (struct room_place){.near = owner->near};
    return (struct room_place){.mapped = {owner->mapped[TIER_GPU], owner->mapped[TIER_HOST]},
                               .near = owner->near_mapped};
}

static bool may_go_to_gpu(const struct save *save, uint32_t i)
{
    return save->place == STORE_PLACE_GPU_OR_HOST &&
           (save->to_gpu == NULL || (save->to_gpu[i / 64] & 1ull << i % 64) != 0);
}

/* For key i. A host slot, where one is wanted first, is no part of a run of the other tier's. */
static enum room take_room(const struct save *save, struct admission_entry *entry, uint32_t i,
                           enum tier_kind *tier, uint32_t *slot)
{
    const struct room_place *reach = &save->admission->reach;

    if (save->place != STORE_PLACE_GPU_FIRST) {
        entry->over = false;
        family_touch(entry->partition->family);
        family_find_idle(save->owner->store);
        *tier = TIER_GPU;
        if (may_go_to_gpu(save, i) && room_take_gpu(entry->partition, reach->near, slot))
            return ROOM_TAKEN;
        *tier = TIER_HOST;
        if (room_take_host(entry->partition, reach->mapped[TIER_HOST], slot))
            return ROOM_TAKEN;
        if (save->place != STORE_PLACE_HOST_FIRST)
            return ROOM_NONE;
    }
    return room_take(entry->partition, reach, &entry->over, tier, slot);
}

static bool add_block(struct store *store, const struct admission *admission, uint32_t part,
                      uint32_t i, enum tier_kind tier, uint32_t slot, uint32_t *id)
{
    if (blocks_add_unlisted(store->blocks, part, tier, slot, id) != KVC_OK)
        return false;
    if (admission->unlisted || blocks_list(store->blocks, admission->tags[i], *id) == KVC_OK)
        return true;
    blocks_unlink(store->blocks, *id);
    blocks_drop(store->blocks, *id);
    return false;
}

static enum room assign(struct store *store, struct save *save, struct admission_entry *entry,
                        uint32_t i)
{
    struct admission *admission = save->admission;
    enum tier_kind tier;
    uint32_t slot, id;
    enum room room = take_room(save, entry, i, &tier, &slot);
    struct table_slot *record;

    if (room != ROOM_TAKEN)
        return room;
    record = store_record(store, tier, slot);
    describe_slot(save, entry, admission_key(admission, i), record);
    if (record->part != entry->part)
        room_name(entry->partition, tier, slot, entry->part);
    store_set_state(store, record, SLOT_FILLING);
    if (!add_block(store, admission, entry->part, i, tier, slot, &id)) {
        room_give(entry->partition, tier, slot);
        return ROOM_NONE;
    }
    blocks_get(store->blocks, id)->save = (uint32_t)save->id;
    admission->states[i] = STORE_KEY_ASSIGNED;
    admission->places[i].slot = (struct save_slot){
        .block = id, .slot = slot, .generation = record->generation, .tier = (uint8_t)tier};
    return ROOM_TAKEN;
}

/* What a missing key has become by now, through this call or another. */
static void look_again(struct store *store, const struct save *save,
                       const struct admission_entry *entry, uint32_t i)
{
    struct admission *admission = save->admission;
    uint32_t id = blocks_find(store->blocks, entry->part, admission_key(admission, i));
    const struct block *block;

    if (id == BLOCK_NONE)
        return;
    block = blocks_get(store->blocks, id);
    admission->ids[i] = id;
    if (block->state == BLOCK_READY) {
        admission->states[i] = STORE_KEY_HIT;
        keep_hold_aside(store, id, admission->places[i].beside);
    } else {
        admission->states[i] =
            block->save == (uint32_t)save->id ? KEY_SHARED : (uint8_t)STORE_KEY_PENDING;
    }
}

/* Gives a key that is missing a slot; false: it has none, now (*later) or in this call. */
static bool admit_key(struct store *store, struct save *save, struct admission_entry *entry,
                      uint32_t i, bool *later)
{
    struct admission *admission = save->admission;
    enum room room;

    if (admission->states[i] != KEY_MISSING)
        return true;
    if (!admission->fresh)
        look_again(store, save, entry, i);
    if (admission->states[i] != KEY_MISSING)
        return true;
    room = assign(store, save, entry, i);
    *later = room == ROOM_LATER;
    if (room != ROOM_TAKEN)
        return false;
    store->stats.admitted_blocks++;
    store->stats.admitted_at_once += !admission->waiting;
    return true;
}

static bool is_full(const struct admission_entry *entry)
{
    return entry->needed == UINT32_MAX;
}

/* The keys from the next one on are likely to be added now. */
static void expect(const struct store *store, const struct save *save,
                   const struct admission_entry *entry)
{
    uint32_t left = entry->end - entry->next;

    if (save->admission->states[entry->next] == KEY_MISSING && !save->admission->unlisted)
        blocks_expect(store->blocks, save->admission->tags + entry->next,
                      left < BLOCKS_EXPECT_MAX ? left : BLOCKS_EXPECT_MAX);
}

/* In order, up to the first key that gets no slot: what follows it cannot be used. */
static void admit_full(struct store *store, struct save *save, struct admission_entry *entry)
{
    bool later;

    for (; entry->next < entry->end; entry->next++) {
        if ((entry->next - entry->first) % BLOCKS_EXPECT_MAX == 0)
            expect(store, save, entry);
        if (admit_key(store, save, entry, entry->next, &later))
            continue;
        entry->closed = !later;
        return;
    }
}

/*
 * Where a full entry of the same prompt stops, so do the others: keys of `entry` from here on
 * cannot be used. Both lists end alike, so that it is enough to find the last key.
 */
static uint32_t usable_end(const struct admission *admission, const struct admission_entry *entry)
{
    const uint8_t *last = admission_key(admission, entry->end - 1);
    uint32_t end = entry->end;

    for (uint32_t e = 0; e < admission->n_entries; e++) {
        const struct admission_entry *full = &admission->entries[e];

        for (uint32_t i = full->end; is_full(full) && full->closed && i-- > full->next;) {
            if (memcmp(admission_key(admission, i), last, KVC_KEY_BYTES) != 0)
                continue;
            if (end > entry->end - (i + 1 - full->next))
                end = entry->end - (i + 1 - full->next);
            break;
        }
    }
    return end > entry->first && end <= entry->end ? end : entry->first;
}

/* From the usable end backwards: the rule asks for the last blocks, and for no others. */
static void admit_last(struct store *store, struct save *save, struct admission_entry *entry)
{
    uint32_t end = entry->end > entry->first ? usable_end(save->admission, entry) : entry->first;
    bool later;

    if (entry->next > end)
        entry->next = end;
    while (entry->next > entry->first) {
        if (!admit_key(store, save, entry, entry->next - 1, &later)) {
            entry->closed = !later;
            return;
        }
        entry->next--;
    }
    entry->closed = true;
}

static uint32_t count_missing(const struct admission *admission,
                              const struct admission_entry *entry)
{
    uint32_t missing = 0;

    for (uint32_t i = entry->first; !entry->closed && i < entry->end; i++)
        missing += admission->states[i] == KEY_MISSING;
    return missing;
}

/* Admits what there is room for; returns how many keys wait for more. Full parts come first. */
static uint32_t admit(struct store *store, struct save *save)
{
    struct admission *admission = save->admission;
    uint32_t short_of = 0;

    admission->reach = reach_of(save);
    for (int others = 0; others < 2; others++) {
        bool full_wait = short_of > 0;

        for (uint32_t e = 0; e < admission->n_entries; e++) {
            struct admission_entry *entry = &admission->entries[e];
            uint32_t missing;

            if (is_full(entry) == (others == 1))
                continue;
            entry->over = false;
            if (!entry->closed && !others)
                admit_full(store, save, entry);
            else if (!entry->closed && !full_wait)
                admit_last(store, save, entry);
            missing = count_missing(admission, entry);
            room_want(entry->partition, (int64_t)missing - entry->wanted);
            entry->wanted = missing;
            short_of += missing;
        }
    }
    admission->fresh = false;
    if (admission->waiting != (short_of > 0)) {
        admission->waiting = short_of > 0;
        store->waiting_saves += admission->waiting ? 1 : -1u;
    }
    return short_of;
}

kvc_status store_save_open(struct store *store, struct owner *owner, const struct store_save *req,
                           struct save **ret, uint32_t *short_of, struct refusal *why)
{
    struct admission *admission;
    struct save *save;
    uint32_t n_keys = 0;
    kvc_status status = admission_check(owner, req, &n_keys, why);

    if (status != KVC_OK)
        return status;
    admission = admission_create(owner, req, n_keys);
    if (!admission)
        return store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
    save = make_save(owner, req, admission);
    if (!save) {
        mem_free(admission);
        return store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
    }
    for (uint32_t i = 0; i < n_keys; i++)
        if (admission->states[i] == STORE_KEY_HIT)
            keep_hold_aside(store, admission->ids[i], admission->places[i].beside);
    store->stats.saves++;
    if (req->list_later && admission->fresh) {
        admission->unlisted = true;
        store->unlisted = save;
    }
    *short_of = admit(store, save);
    *ret = save;
    /* Copies that are not needed at once wait for store_tick: the answer goes first. */
    if (*short_of > 0) {
        store_save_list(store);
        *short_of = save->status == KVC_OK ? *short_of : 0;
        store_settle(store);
    }
    return KVC_OK;
}

uint32_t store_save_more(struct store *store, struct save *save)
{
    uint32_t short_of;

    assert(save->phase == SAVE_ADMITTING);
    if (save->status != KVC_OK)
        return 0;
    short_of = admit(store, save);
    store_settle(store);
    return short_of;
}

/* Gives back the slot of a key that the worker was never told of. */
void admit_take_back(struct store *store, struct save *save, uint32_t i)
{
    struct save_slot *slot = &save->admission->places[i].slot;
    struct partition *partition = store_partition(store, blocks_get(store->blocks, slot->block));

    save_forget_block(store, slot);
    room_give(partition, slot->tier, slot->slot);
    save->admission->states[i] = STORE_KEY_SKIPPED;
}

/* Ends the hold on a hit. That is its use, if the rule of its part used it; else nothing was. */
static void let_go(struct store *store, struct admission *admission, uint32_t i, bool needed)
{
    uint32_t id = admission->ids[i];

    if (blocks_get(store->blocks, id)->state != BLOCK_READY)
        admission->states[i] = STORE_KEY_SKIPPED;
    if (needed)
        keep_release(store, id);
    else
        keep_put_back(store, id, admission->places[i].beside);
}

/* Ends the wait for room and the hold on hits, last first. */
void admit_let_go(struct store *store, struct save *save)
{
    struct admission *admission = save->admission;

    if (admission->waiting)
        store->waiting_saves--;
    admission->waiting = false;
    for (uint32_t e = 0; e < admission->n_entries; e++) {
        room_want(admission->entries[e].partition, -(int64_t)admission->entries[e].wanted);
        admission->entries[e].wanted = 0;
        admission->entries[e].closed = true;
    }
    for (uint32_t e = admission->n_entries; e-- > 0;) {
        const struct admission_entry *entry = &admission->entries[e];

        for (uint32_t i = entry->end; i-- > entry->first;) {
            if (admission->states[i] == KEY_MISSING)
                admission->states[i] = STORE_KEY_SKIPPED;
            else if (admission->states[i] == STORE_KEY_HIT)
                let_go(store, admission, i, entry->end - i <= entry->needed);
        }
    }
}

/* Time is over for full parts that wait; the others then take what there is. */
void admit_rest(struct store *store, struct save *save)
{
    bool waits = false;

    for (uint32_t e = 0; e < save->admission->n_entries; e++) {
        struct admission_entry *entry = &save->admission->entries[e];

        if (!is_full(entry) || entry->closed || entry->wanted == 0)
            continue;
        entry->closed = true;
        waits = true;
    }
    if (waits && save->status == KVC_OK)
        (void)admit(store, save);
}

void admit_undo(struct store *store, struct save *save)
{
    struct admission *admission = save->admission;

    for (uint32_t i = 0; i < admission->n_keys; i++) {
        if (admission->states[i] != STORE_KEY_ASSIGNED)
            continue;
        admit_take_back(store, save, i);
        save->dropped++;
    }
    admit_let_go(store, save);
    for (uint32_t i = 0; i < admission->n_keys; i++)
        admission->states[i] = STORE_KEY_SKIPPED;
}

void admit_count_holds(const struct save *save, uint32_t *holds)
{
    for (uint32_t i = 0; i < save->admission->n_keys; i++)
        if (save->admission->states[i] == STORE_KEY_HIT)
            holds[save->admission->ids[i]]++;
}

uint32_t admit_count_slots(const struct save *save)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < save->admission->n_keys; i++)
        n += save->admission->states[i] == STORE_KEY_ASSIGNED;
    return n;
}

bool admit_is_in(const struct save *save, const uint64_t *namespaces)
{
    const struct admission *admission = save->admission;
    const struct table *table = save->owner->store->table;

    for (uint32_t e = 0; e < admission->n_entries; e++) {
        const struct admission_entry *entry = &admission->entries[e];

        if (entry->end > entry->first &&
            scope_set_has(namespaces, table_part(table, entry->part)->namespace_))
            return true;
    }
    return false;
}
