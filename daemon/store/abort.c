/* Ends a save at its owner's word. */
#include "daemon/base/log.h"
#include "daemon/store/proof.h"
#include "daemon/store/save.h"

bool save_is_open(const struct save *save)
{
    return save->status == KVC_OK && (save->phase == SAVE_ADMITTING || save->phase == SAVE_COPYING);
}

/* Its number is known but for the upper half. */
void save_fail_of(struct store *store, uint32_t block, kvc_status status)
{
    const struct block *filling = blocks_get(store->blocks, block);
    enum tier_kind tier = filling->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;
    struct owner *owner =
        handles_get(&store->sessions, blocks_record(store->blocks, block, tier)->session);
    struct save *save;

    list_for_each(save, &owner->saves, link) {
        if (!save_is_open(save) || (uint32_t)save->id != filling->save)
            continue;
        save_fail(store, save, status);
        return;
    }
}

static bool is_named(const struct save *save, uint64_t id, uint32_t request)
{
    const struct slices *slices;

    if (id)
        return save->id == id;
    list_for_each(slices, &save->more, link)
        if (slices->request == request)
            return true;
    return save->request == request;
}

static struct save *find(struct owner *owner, uint64_t id, uint32_t request)
{
    struct save *save;

    list_for_each(save, &owner->saves, link)
        if (is_named(save, id, request))
            return save;
    return NULL;
}

/* Chunks are counted through all calls of a save by slices. */
static uint32_t count_chunks(const struct save *save)
{
    return save->n_chunks * (1 + (uint32_t)list_length(&save->more));
}

/* The chunks of a later call that is named by its request, else all of them. */
static void all_chunks(struct save *save, uint32_t request, uint32_t *first, uint32_t *end)
{
    struct slices *slices;

    *first = 0;
    *end = count_chunks(save);
    for (uint32_t at = save->n_chunks; request != 0 && at < *end; at += save->n_chunks) {
        slices = container_of(slices_chunk_at(save, at), struct slices, chunks[0]);
        if (slices->request != request)
            continue;
        *first = at;
        *end = at + save->n_chunks;
    }
}

/* Chunks whose copies were never enqueued owe nothing; the worker knows that only of its own. */
static void waive_never(struct store *store, struct save *save, uint32_t request,
                        const uint32_t *never, uint32_t n_never, bool never_all)
{
    uint32_t first = 0, end = n_never;

    if (save->by_daemon)
        return;
    if (never_all)
        all_chunks(save, request, &first, &end);
    for (uint32_t i = first; i < end && save->owed > 0; i++) {
        struct chunk *chunk = slices_chunk_at(save, never_all ? i : never[i]);

        if (chunk->state == CHUNK_OWED)
            save_waived(store, chunk);
    }
}

/* Said where the owner named the save; a reply that came too late is common, and no event. */
static void cancel(struct store *store, struct save *save, bool named)
{
    save_fail(store, save, KVC_E_CANCELLED);
    if (named)
        log_info("store",
                 "save cancelled session=%llu request=%u save=%llu published=%u dropped=%u",
                 (unsigned long long)save->owner->id, save->request, (unsigned long long)save->id,
                 save->published, save->dropped);
}

static kvc_status abort_admission(struct store *store, struct save *save, bool *pending,
                                  struct save_outcome *outcome)
{
    if (save->status == KVC_OK)
        save_fail(store, save, KVC_E_CANCELLED);
    save_outcome(save, outcome);
    *pending = false;
    return KVC_OK;
}

kvc_status store_abort(struct store *store, struct owner *owner, uint64_t id, uint32_t request,
                       const uint32_t *never, uint32_t n_never, bool never_all, bool *pending,
                       struct save_outcome *outcome, struct refusal *why)
{
    struct save *save = find(owner, id, request);
    kvc_status status = KVC_OK;
    bool promised;

    if (!save) {
        store->stats.stale_completions++;
        return store_refuse(why, KVC_E_UNKNOWN, id ? "save" : "request", "no save of that name");
    }
    for (uint32_t i = 0; i < n_never; i++)
        if (never[i] >= count_chunks(save))
            return store_refuse_at(why, KVC_E_INVALID, "never", i, NULL, "no such chunk");
    if (save->phase == SAVE_ADMITTING) {
        status = abort_admission(store, save, pending, outcome);
        goto settle;
    }
    /* One that is over has its report still to come: that is the answer. */
    promised = save->phase == SAVE_OVER || (save->phase == SAVE_ABORTED && save->notify);
    /* What is proved already is kept; and whatever ends the save, it is kept for an answer. */
    save->notify = true;
    proof_look(owner);
    if (save->phase == SAVE_COPYING)
        cancel(store, save, id != 0);
    else if (save->phase == SAVE_OVER && save->status == KVC_OK)
        promised = true;
    waive_never(store, save, id ? 0 : request, never, n_never, never_all);
    if (save->phase == SAVE_OVER && !promised) {
        save_outcome(save, outcome);
        save_free(save);
        *pending = false;
        goto settle;
    }
    save_outcome(save, outcome);
    *pending = true;
settle:
    store_settle(store);
    return status;
}
