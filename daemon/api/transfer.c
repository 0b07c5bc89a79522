#include "daemon/api/transfer.h"

#include <assert.h>

#include "daemon/api/memory.h"
#include "daemon/api/transfer_internal.h"
#include "daemon/base/mem.h"

struct transfer *transfer_make(struct session *s, enum copier_way way, uint32_t n_blocks,
                               uint32_t n_chunks)
{
    const size_t chunks = n_chunks * sizeof(struct transfer_chunk);
    const size_t blocks = n_blocks * sizeof(struct copier_block);
    const size_t cells = n_blocks * sizeof(uint64_t);
    const size_t loaded = way == COPIER_SCATTER ? n_blocks * sizeof(struct loaded) : 0;
    struct transfer *t =
        mem_zalloc(sizeof(*t) + chunks + blocks + cells + loaded + (loaded ? n_blocks : 0));
    uint8_t *at;

    if (t == NULL)
        return NULL;
    at = (uint8_t *)(t + 1);
    t->session = s;
    t->way = way;
    t->chunks = (void *)at;
    t->blocks = (void *)(at += chunks);
    t->cells = (void *)(at += blocks);
    t->loaded = (void *)(at += cells);
    t->valid = at + loaded;
    list_init(&t->link);
    return t;
}

void transfer_release(struct transfer *t)
{
    gate_forget(&t->gate);
    for (uint32_t i = 0; i < t->n_memories; i++)
        memory_unuse(t->memories[i]);
    t->session->n_copies -= t->cost;
    list_remove(&t->link);
    mem_free(t);
}

void transfer_abandon(struct transfer *t)
{
    if (t != NULL)
        transfer_release(t);
}

static void end_chunk(struct transfer_chunk *chunk, kvc_status status)
{
    struct transfer *t = chunk->transfer;

    assert(chunk->state != CHUNK_ENDED && t->n_left > 0);
    chunk->state = CHUNK_ENDED;
    t->n_left--;
    if (t->way == COPIER_GATHER)
        store_chunk_copied(t->session->api->store, t->save,
                           t->first_chunk + (uint32_t)(chunk - t->chunks),
                           t->summed ? t->cells + chunk->first : NULL, status);
    else if (status == KVC_OK)
        transfer_judge_loaded(t, chunk->first, chunk->job.n_blocks);
    else if (t->status == KVC_OK)
        t->status = status;
}

kvc_status transfer_check_gate(const struct session *s, const struct msg_gate *gate, bool by_daemon,
                               struct refusal *why)
{
    if (gate->event.len > 0)
        return refuse(why, KVC_E_UNSUPPORTED, "events are not waited for, gates are", "event");
    if (gate->number == 0)
        return KVC_OK;
    if (!by_daemon)
        return refuse(why, KVC_E_INVALID, "of something that the daemon does not copy", "gate");
    if (gate->index >= KVC_PAGE_GATES)
        return refuse(why, KVC_E_INVALID, "no such gate", "gate");
    if (owner_page_fd(s->owner) < 0)
        return refuse(why, KVC_E_INVALID, "without a completion page", "gate");
    return KVC_OK;
}

void transfer_take_gate(struct transfer *t, const struct msg_gate *gate)
{
    list_init(&t->gate.link);
    t->gate.session = gate->number != 0 ? t->session : NULL;
    t->gate.gate = gate->index;
    t->gate.number = gate->number;
}

/* None of its chunks has begun, and none will. */
static void end_all(struct transfer *t, kvc_status status)
{
    gate_forget(&t->gate);
    for (uint32_t i = 0; i < t->n_chunks; i++)
        if (t->chunks[i].state == CHUNK_WAITS)
            end_chunk(&t->chunks[i], status);
}

void transfer_drop_waiting(struct transfer *t)
{
    if (t->gate.session != NULL)
        end_all(t, KVC_E_CANCELLED);
    for (uint32_t i = 0; i < t->n_chunks; i++)
        if (t->chunks[i].state == CHUNK_STARTED &&
            copier_drop(t->session->api->config.copier, &t->chunks[i].job))
            end_chunk(&t->chunks[i], KVC_E_CANCELLED);
}

void transfer_settle(struct transfer *t)
{
    if (t->n_left > 0)
        return;
    if (t->way == COPIER_SCATTER) {
        t->session->n_loads--;
        transfer_reply_load(t);
        store_load_copied(t->session->api->store, t->load, t->status == KVC_OK);
    }
    transfer_release(t);
}

/*
 * A worker that has closed its side may already overwrite what was copied: it ends its session
 * first, which is seen here even if the loop has not come to read it.
 */
static bool is_abandoned(const struct transfer *t)
{
    return t->session->connection == NULL || connection_is_over(t->session->connection);
}

static void chunk_copied(struct copier_job *job, kvc_status status)
{
    struct transfer_chunk *chunk = container_of(job, struct transfer_chunk, job);
    struct transfer *t = chunk->transfer;

    if (status == KVC_OK && t->way == COPIER_GATHER && is_abandoned(t))
        status = KVC_E_CANCELLED;
    end_chunk(chunk, status);
    if (t->way == COPIER_GATHER && status != KVC_OK) {
        /* Whatever waits of other slices is for nothing, too. */
        transfer_cancel_save(t->session, t->save_id);
        return;
    }
    if (t->n_left > 0 &&
        (t->way == COPIER_GATHER ? !store_save_goes_on(t->save) : status != KVC_OK))
        transfer_drop_waiting(t);
    transfer_settle(t);
}

static void start_copies(struct transfer *t)
{
    struct session *s = t->session;

    for (uint32_t i = 0; i < t->n_chunks; i++) {
        struct transfer_chunk *chunk = &t->chunks[i];

        chunk->state = CHUNK_STARTED;
        chunk->job.way = t->way;
        chunk->job.blocks = t->blocks + chunk->first;
        chunk->job.cells = t->summed ? t->cells + chunk->first : NULL;
        chunk->job.done = chunk_copied;
        copier_start(s->api->config.copier, &s->copies, &chunk->job);
    }
}

static void gate_passed(struct gate_wait *wait)
{
    start_copies(container_of(wait, struct transfer, gate));
}

void transfer_start_chunks(struct transfer *t)
{
    list_push_back(&t->session->transfers, &t->link);
    t->n_left = t->n_chunks;
    for (uint32_t i = 0; i < t->n_chunks; i++)
        t->chunks[i].transfer = t;
    t->gate.passed = gate_passed;
    if (!gate_is_open(&t->gate)) {
        gate_wait(&t->gate);
        return;
    }
    gate_forget(&t->gate);
    start_copies(t);
}

void transfer_forget_session(struct session *s)
{
    struct transfer *t, *after;

    list_for_each_safe(t, after, &s->transfers, link) {
        transfer_drop_waiting(t);
        transfer_settle(t);
    }
}
