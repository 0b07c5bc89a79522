/* Ends a save at its owner's word. */
#include "daemon/store/proof.h"
#include "daemon/store/save.h"

static struct save *find(struct owner *owner, uint64_t id, uint32_t request)
{
    struct save *save;

    list_for_each(save, &owner->saves, link)
        if (save->phase != SAVE_OVER && (id ? save->id == id : save->request == request))
            return save;
    return NULL;
}

/* Chunks whose copies were never enqueued owe nothing; the worker knows that only of its own. */
static void waive_never(struct store *store, struct save *save, const uint32_t *never,
                        uint32_t n_never, bool never_all)
{
    uint32_t n = never_all ? save->n_chunks : n_never;

    if (save->by_daemon)
        return;
    for (uint32_t i = 0; i < n && save->owed > 0; i++) {
        struct chunk *chunk = &save->chunks[never_all ? i : never[i]];

        if (chunk->state == CHUNK_OWED)
            save_waived(store, chunk);
    }
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
        if (never[i] >= save->n_chunks)
            return store_refuse_at(why, KVC_E_INVALID, "never", i, NULL, "no such chunk");
    if (save->phase == SAVE_ADMITTING) {
        status = abort_admission(store, save, pending, outcome);
        goto settle;
    }
    promised = save->phase == SAVE_ABORTED && save->notify;
    /* What is proved already is kept; and whatever ends the save, it is kept for an answer. */
    save->notify = true;
    proof_look(owner);
    if (save->phase == SAVE_COPYING)
        save_fail(store, save, KVC_E_CANCELLED);
    else if (save->phase == SAVE_OVER && save->status == KVC_OK)
        promised = true;
    waive_never(store, save, never, n_never, never_all);
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
