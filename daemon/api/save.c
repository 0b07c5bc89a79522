/* SAVE, ABORT, DRAINED, and the notice SAVE_DONE. */
#include "daemon/api/session.h"

#include "daemon/api/scratch.h"
#include "daemon/api/transfer.h"
#include "daemon/base/clock.h"
#include "daemon/base/mem.h"

/* A save that has been admitted but for some keys, which wait for room. */
struct waiting {
    struct list link; /* api::waiting */
    struct session *session;
    struct save *save;
    struct transfer *transfer; /* NULL: the worker copies */
    uint32_t seq;
    uint64_t deadline_us;
    uint32_t n_entries;
    uint32_t n_keys[KVC_ENTRIES_MAX];
};

/* A reply to ABORT that comes when the save's words have arrived. */
struct owed_reply {
    struct list link; /* session::aborts */
    uint64_t save;
    uint32_t seq;
};

kvc_status save_scratch_create(struct api *api)
{
    api->scratch = mem_alloc(sizeof(*api->scratch));
    return api->scratch != NULL ? KVC_OK : KVC_E_NO_MEMORY;
}

void save_scratch_destroy(struct api *api)
{
    mem_free(api->scratch);
}

static kvc_status check_save(const struct session *s, const struct msg_save *save,
                             struct refusal *why)
{
    kvc_status status = transfer_check_gate(s, &save->gate, transfer_is_asked(save), why);

    if (status != KVC_OK)
        return status;
    if (save->n_entries > KVC_ENTRIES_MAX)
        return refuse(why, KVC_E_LIMIT, "more entries than a save may have", "entries");
    for (uint32_t i = 0; i < save->n_entries && !transfer_is_asked(save); i++)
        if (save->entries[i].blocks.n > 0)
            return refuse(why, KVC_E_INVALID, "blocks of no region", "entries[%u].blocks", i);
    return KVC_OK;
}

static kvc_status read_entries(const struct msg_save *save, struct store_save_entry *entries,
                               struct refusal *why)
{
    uint32_t n_total = 0;

    for (uint32_t i = 0; i < save->n_entries; i++) {
        const struct msg_save_entry *e = &save->entries[i];
        uint32_t n;
        kvc_status status = keys_count(e->keys, &n, why, "entries[%u].keys", i);

        if (status != KVC_OK)
            return status;
        n_total += n;
        if (n_total > KVC_KEYS_MAX)
            return refuse(why, KVC_E_LIMIT, "more keys than a request may have", "entries[%u].keys",
                          i);
        entries[i] = (struct store_save_entry){
            .part = e->part,
            .epoch = e->epoch,
            .keys = e->keys.data,
            .n_keys = n,
            .first_slice = e->first_slice,
            .n_slices = e->slices,
        };
    }
    return KVC_OK;
}

/* What a worker that does not copy needs to know: the states of its keys. */
static void fill_states(struct save_scratch *scratch, const uint32_t *n_keys, uint32_t n_entries,
                        struct msg_save_entry_reply *entries)
{
    for (uint32_t key = 0, e = 0; e < n_entries; key += n_keys[e++])
        entries[e] =
            (struct msg_save_entry_reply){.states = scratch->states + key, .n_states = n_keys[e]};
}

/* The assigned keys' locations, closed up; entries point into the scratch. */
static void fill_entries(struct save_scratch *scratch, const uint32_t *n_keys, uint32_t n_entries,
                         struct msg_save_entry_reply *entries)
{
    uint32_t key = 0, assigned = 0;

    for (uint32_t e = 0; e < n_entries; e++) {
        const uint32_t first = assigned;

        entries[e] = (struct msg_save_entry_reply){
            .states = scratch->states + key,
            .n_states = n_keys[e],
            .tiers = scratch->tiers + first,
            .offsets = scratch->offsets + first,
            .generations = scratch->generations + first,
        };
        for (uint32_t end = key + n_keys[e]; key < end; key++) {
            if (scratch->states[key] != STORE_KEY_ASSIGNED)
                continue;
            scratch->tiers[assigned] = scratch->locations[key].tier;
            scratch->offsets[assigned] = scratch->locations[key].offset;
            scratch->generations[assigned] = scratch->locations[key].generation;
            assigned++;
        }
        entries[e].n_assigned = assigned - first;
    }
}

static struct store_save_result result_in(struct save_scratch *scratch)
{
    return (struct store_save_result){
        .states = scratch->states, .locations = scratch->locations, .chunks = scratch->chunks};
}

/* Of a save that the daemon copies the client learns states and no places. */
static void answer(struct session *s, const struct store_save_result *result, bool by_daemon,
                   uint32_t seq, const uint32_t *n_keys, uint32_t n_entries)
{
    struct save_scratch *scratch = s->api->scratch;
    struct msg_save_entry_reply entries[KVC_ENTRIES_MAX];
    struct msg_save_reply reply;

    if (by_daemon)
        fill_states(scratch, n_keys, n_entries, entries);
    else
        fill_entries(scratch, n_keys, n_entries, entries);
    for (uint32_t i = 0; i < result->n_chunks; i++) {
        scratch->chunk_blocks[i] = scratch->chunks[i].blocks;
        scratch->chunk_words[i] = scratch->chunks[i].word;
        scratch->chunk_numbers[i] = scratch->chunks[i].number;
    }
    reply = (struct msg_save_reply){
        .save = result->save,
        .entries = entries,
        .n_entries = n_entries,
        .chunk_blocks = scratch->chunk_blocks,
        .chunk_words = scratch->chunk_words,
        .chunk_numbers = scratch->chunk_numbers,
        .n_chunks = by_daemon ? 0 : result->n_chunks,
    };
    session_reply(s, WIRE_SAVE, seq, codec_save(s->api->codec, &reply));
}

/* Skips what has no room, answers, and starts the daemon's own copies. */
static void seal(struct session *s, struct save *save, struct transfer *transfer, uint32_t seq,
                 const uint32_t *n_keys, uint32_t n_entries)
{
    struct store_save_result result = result_in(s->api->scratch);

    store_save_seal(s->api->store, save, &result);
    answer(s, &result, transfer != NULL, seq, n_keys, n_entries);
    store_save_list(s->api->store);
    if (transfer != NULL)
        transfer_start_save(transfer, save, &result);
}

static void end_waiting(struct waiting *w)
{
    list_remove(&w->link);
    seal(w->session, w->save, w->transfer, w->seq, w->n_keys, w->n_entries);
    mem_free(w);
}

static void room_timer_cb(uv_timer_t *timer)
{
    struct api *api = container_of(timer, struct api, room_timer);
    const uint64_t now = clock_now_us();
    struct waiting *w, *after;

    list_for_each_safe(w, after, &api->waiting, link)
        if (now >= w->deadline_us)
            end_waiting(w);
    if (!list_empty(&api->waiting))
        uv_timer_start(timer, room_timer_cb, KVC_SAVE_ROOM_MS, 0);
}

/* With no memory to wait in, it does not wait. */
static void wait_for_room(struct session *s, struct save *save, struct transfer *transfer,
                          const struct request *request, const uint32_t *n_keys)
{
    struct api *api = s->api;
    const uint32_t n_entries = (uint32_t)request->save.n_entries;
    struct waiting *w = mem_zalloc(sizeof(*w));

    if (w == NULL) {
        seal(s, save, transfer, request->seq, n_keys, n_entries);
        return;
    }
    list_init(&w->link);
    w->session = s;
    w->save = save;
    w->transfer = transfer;
    w->seq = request->seq;
    w->deadline_us = clock_now_us() + KVC_SAVE_ROOM_MS * CLOCK_MS_US;
    w->n_entries = n_entries;
    for (uint32_t i = 0; i < n_entries; i++)
        w->n_keys[i] = n_keys[i];
    if (list_empty(&api->waiting)) {
        uv_update_time(api->config.loop);
        uv_timer_start(&api->room_timer, room_timer_cb, KVC_SAVE_ROOM_MS, 0);
    }
    list_push_back(&api->waiting, &w->link);
}

/* Some room: who waits longest takes first. */
void save_room(struct api *api)
{
    struct waiting *w, *after;

    list_for_each_safe(w, after, &api->waiting, link)
        if (store_save_more(api->store, w->save) == 0)
            end_waiting(w);
}

/* More slices of a save: what was assigned is known, so that nothing waits. */
static kvc_status more_slices(struct session *s, const struct store_save *req,
                              struct transfer *transfer, const uint32_t *n_keys,
                              struct refusal *why)
{
    struct store_save_result result = result_in(s->api->scratch);
    struct save *save;
    kvc_status status = store_save_slices(s->api->store, s->owner, req, &save, &result, why);

    if (status != KVC_OK) {
        transfer_abandon(transfer);
        return status;
    }
    answer(s, &result, transfer != NULL, req->request, n_keys, req->n_entries);
    if (transfer != NULL)
        transfer_start_save(transfer, save, &result);
    return KVC_OK;
}

kvc_status save_save(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_save *save = &request->save;
    struct store_save_entry entries[KVC_ENTRIES_MAX];
    struct store_save req = {
        .entries = entries,
        .n_entries = (uint32_t)save->n_entries,
        .checksums = save->checksums,
        .notify = save->notify,
        .save = save->save,
        .request = request->seq,
        .by_daemon = transfer_is_asked(save),
        .place = save->to_host ? STORE_PLACE_HOST_ONLY : STORE_PLACE_GPU_FIRST,
        .list_later = !transfer_is_asked(save),
    };
    uint32_t n_keys[KVC_ENTRIES_MAX];
    struct transfer *transfer = NULL;
    struct save *admitted;
    uint32_t short_of;
    kvc_status status = check_save(s, save, why);

    if (status == KVC_OK)
        status = read_entries(save, entries, why);
    if (status == KVC_OK && req.by_daemon)
        status = transfer_prepare_save(s, save, &transfer, why);
    if (status != KVC_OK)
        return status;
    for (uint32_t i = 0; i < req.n_entries; i++)
        n_keys[i] = entries[i].n_keys;
    if (req.save != 0)
        return more_slices(s, &req, transfer, n_keys, why);
    status = store_save_open(s->api->store, s->owner, &req, &admitted, &short_of, why);
    if (status != KVC_OK) {
        transfer_abandon(transfer);
        return status;
    }
    if (short_of > 0 && !save->no_wait)
        wait_for_room(s, admitted, transfer, request, n_keys);
    else
        seal(s, admitted, transfer, request->seq, n_keys, req.n_entries);
    return KVC_OK;
}

static void reply_abort(struct session *s, uint32_t seq, const struct save_outcome *outcome)
{
    struct msg_outcome reply = {
        .save = outcome->save,
        .status = outcome->status,
        .published = outcome->published,
        .dropped = outcome->dropped,
    };

    session_reply(s, WIRE_ABORT, seq, codec_abort(s->api->codec, &reply));
}

static struct waiting *find_waiting(const struct session *s, uint32_t seq)
{
    struct waiting *w;

    list_for_each(w, &s->api->waiting, link)
        if (w->session == s && w->seq == seq)
            return w;
    return NULL;
}

/* A save that still waits for room is answered too: with nothing to copy. */
kvc_status save_abort(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_abort *a = &request->abort;
    struct waiting *waiting = a->save == 0 ? find_waiting(s, a->request) : NULL;
    struct owed_reply *owed;
    struct save_outcome outcome;
    bool pending;
    kvc_status status;

    if (a->never.n > KVC_KEYS_MAX)
        return refuse(why, KVC_E_LIMIT, "more chunks than a save may have", "never");
    if (a->save == 0 && transfer_cancel_load(s, a->request, request->seq))
        return KVC_OK;
    if (s->n_aborts >= KVC_SESSION_ABORTS_MAX)
        return refuse(why, KVC_E_BUSY, "too many aborts wait for their answers", "%s", "");
    owed = mem_zalloc(sizeof(*owed));
    if (owed == NULL)
        return refuse(why, KVC_E_NO_MEMORY, "", "%s", "");
    status = store_abort(s->api->store, s->owner, a->save, a->request, a->never.values,
                         (uint32_t)a->never.n, a->never_all, &pending, &outcome, why);
    if (status == KVC_OK && waiting != NULL)
        end_waiting(waiting);
    if (status == KVC_OK && pending) {
        owed->save = outcome.save;
        owed->seq = request->seq;
        list_init(&owed->link);
        list_push_back(&s->aborts, &owed->link);
        s->n_aborts++;
        transfer_cancel_save(s, outcome.save);
        return KVC_OK;
    }
    mem_free(owed);
    if (status == KVC_OK)
        reply_abort(s, request->seq, &outcome);
    return status;
}

static void forget_owed(struct session *s, struct owed_reply *owed)
{
    list_remove(&owed->link);
    s->n_aborts--;
    mem_free(owed);
}

/* Told once: to who aborted it, or else to who asked to be told. */
void save_done(struct session *s, const struct save_outcome *outcome)
{
    struct msg_outcome notice = {
        .save = outcome->save,
        .status = outcome->status,
        .published = outcome->published,
        .dropped = outcome->dropped,
    };
    struct owed_reply *owed, *after;
    bool told = false;

    list_for_each_safe(owed, after, &s->aborts, link) {
        if (owed->save != outcome->save)
            continue;
        reply_abort(s, owed->seq, outcome);
        forget_owed(s, owed);
        told = true;
    }
    if (!told)
        session_notice(s, WIRE_SAVE_DONE, codec_save_done(s->api->codec, &notice));
}

kvc_status save_drained(struct session *s, const struct request *request, struct refusal *why)
{
    const struct msg_drained *drained = &request->drained;
    kvc_status status = store_drained(s->api->store, s->owner, drained->session,
                                      drained->secret.data, (uint32_t)drained->secret.len, why);

    if (status == KVC_OK)
        session_reply(s, WIRE_DRAINED, request->seq, codec_empty(s->api->codec));
    return status;
}

void save_forget_session(struct session *s)
{
    struct waiting *w, *after;
    struct owed_reply *owed;

    list_for_each_safe(w, after, &s->api->waiting, link) {
        if (w->session != s)
            continue;
        list_remove(&w->link);
        transfer_abandon(w->transfer);
        mem_free(w);
    }
    while ((owed = list_first(&s->aborts, struct owed_reply, link)) != NULL)
        forget_owed(s, owed);
}
