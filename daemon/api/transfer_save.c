/* Saves by the daemon: the chunks of a call, gathered from the session's regions. */
#include <assert.h>
#include <stdio.h>

#include "daemon/api/memory.h"
#include "daemon/api/transfer_internal.h"

bool transfer_is_asked(const struct msg_save *save)
{
    bool asked = save->region != 0;

    for (uint32_t i = 0; i < save->n_entries && !asked; i++)
        asked = save->entries[i].region != 0;
    return asked;
}

/* As many chunks as there are if all keys are to be copied, which no part of them exceeds. */
static kvc_status count_chunks(const struct session *s, const struct msg_save *save,
                               uint32_t *n_blocks, uint32_t *n_chunks, struct refusal *why)
{
    struct pack_cut cut = {0};

    *n_blocks = *n_chunks = 0;
    for (uint32_t e = 0; e < save->n_entries; e++) {
        const struct msg_save_entry *entry = &save->entries[e];
        const struct table_layout *layout =
            store_owner_layout(s->api->store, s->owner, entry->part);

        if (layout == NULL)
            return refuse(why, KVC_E_UNKNOWN, "not registered by this session", "entries[%u].part",
                          e);
        if (entry->blocks.n != entry->keys.len / KVC_KEY_BYTES)
            return refuse(why, KVC_E_INVALID, "not one a key", "entries[%u].blocks", e);
        for (uint32_t i = 0; i < entry->blocks.n; i++)
            *n_chunks += pack_cut_next(&cut, layout->block_bytes);
        *n_blocks += (uint32_t)entry->blocks.n;
    }
    return KVC_OK;
}

static kvc_status use_entry(struct transfer *t, const struct msg_save *save, uint32_t e,
                            struct refusal *why)
{
    const struct msg_save_entry *entry = &save->entries[e];
    const uint64_t region = entry->region != 0 ? entry->region : save->region;
    struct memory *memory;
    char prefix[32];
    kvc_status status;

    if (entry->blocks.n == 0)
        return KVC_OK;
    snprintf(prefix, sizeof(prefix), "entries[%u].region", e);
    status = memory_use(t->session, region, entry->part, &memory, why,
                        entry->region != 0 ? prefix : "region");
    if (status != KVC_OK)
        return status;
    t->memories[t->n_memories++] = memory;
    snprintf(prefix, sizeof(prefix), "entries[%u].", e);
    status = memory_check_blocks(memory, entry->blocks, false, why, prefix);
    for (uint32_t i = 0; i < entry->blocks.n && status == KVC_OK; i++)
        t->blocks[t->n_blocks++] = (struct copier_block){
            .region = memory->region,
            .id = entry->blocks.values[i],
            .first_slice = (uint16_t)entry->first_slice,
            .n_slices = (uint16_t)entry->slices,
        };
    return status;
}

kvc_status transfer_prepare_save(struct session *s, const struct msg_save *save,
                                 struct transfer **transfer, struct refusal *why)
{
    uint32_t n_blocks, n_chunks, cost;
    struct transfer *t;
    kvc_status status = count_chunks(s, save, &n_blocks, &n_chunks, why);

    if (status != KVC_OK)
        return status;
    cost = n_blocks + KVC_COPY_CALL_BLOCKS;
    if (cost > KVC_SESSION_COPIES_MAX - s->n_copies)
        return refuse(why, KVC_E_BUSY, "too many copies have not ended", "%s", "");
    t = transfer_make(s, COPIER_GATHER, n_blocks, n_chunks);
    if (t == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    t->cost = cost;
    s->n_copies += cost;
    t->summed = save->checksums;
    transfer_take_gate(t, &save->gate);
    for (uint32_t e = 0; e < save->n_entries && status == KVC_OK; e++)
        status = use_entry(t, save, e, why);
    if (status != KVC_OK) {
        transfer_release(t);
        return status;
    }
    *transfer = t;
    return KVC_OK;
}

void transfer_start_save(struct transfer *t, struct save *save,
                         const struct store_save_result *result)
{
    uint32_t n = 0, first = 0;

    if (result->save == 0) {
        transfer_release(t);
        return;
    }
    /* Blocks of assigned keys move to the front, in their order. */
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        if (result->states[i] != STORE_KEY_ASSIGNED)
            continue;
        t->blocks[n] = t->blocks[i];
        t->blocks[n].tier = result->locations[i].tier;
        t->blocks[n++].offset = result->locations[i].offset;
    }
    t->save = save;
    t->save_id = result->save;
    t->first_chunk = result->first_chunk;
    t->n_blocks = n;
    t->n_chunks = result->n_chunks;
    for (uint32_t i = 0; i < result->n_chunks; i++) {
        t->chunks[i].first = first;
        t->chunks[i].job.n_blocks = result->chunks[i].blocks;
        first += result->chunks[i].blocks;
    }
    assert(first == n);
    transfer_start_chunks(t);
}

void transfer_cancel_save(struct session *s, uint64_t save)
{
    struct transfer *t, *after;

    list_for_each_safe(t, after, &s->transfers, link) {
        if (t->way != COPIER_GATHER || t->save_id != save)
            continue;
        transfer_drop_waiting(t);
        transfer_settle(t);
    }
}
