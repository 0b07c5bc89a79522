/* Slots that wait for proof that nobody writes to them any more, by the saves that they were of. */
#include "daemon/store/save.h"

static struct table_slot *slot_of(const struct store *store, const struct chunk *chunk)
{
    const struct save_slot *slot = &chunk->save->slots[chunk->first];

    return store_record(store, slot->tier, slot->slot);
}

bool store_next_quarantine(const struct store *store, uint64_t after,
                           struct store_quarantine *quarantine)
{
    const struct save *save, *best = NULL;
    uint32_t looked = 0;

    list_for_each(save, &store->ended, queue) {
        if (++looked > STORE_QUARANTINE_MAX)
            break;
        if (save->id > after && save->owed > 0 && (!best || save->id < best->id))
            best = save;
    }
    if (!best)
        return false;
    *quarantine = (struct store_quarantine){
        .owner = best->owner,
        .save = best->id,
        .status = best->status,
        .age_us = clock_now_us() - best->queued,
    };
    for (uint32_t i = 0; i < best->n_chunks; i++) {
        const struct chunk *chunk = &best->chunks[i];

        if (chunk->owed == 0)
            continue;
        quarantine->slots += chunk->blocks;
        for (uint32_t j = 0; j < chunk->blocks; j++)
            quarantine->bytes += slots_bytes(store->slots[best->slots[chunk->first + j].tier],
                                             best->slots[chunk->first + j].slot);
        if (quarantine->part == 0)
            quarantine->part = slot_of(store, chunk)->part;
    }
    return true;
}
