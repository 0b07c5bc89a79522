#include "daemon/tier/mover.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/base/turn.h"

#define LATE_US 1000u

/*
 * A move: in the queue until its last piece has been started or it failed, and among the ended ones
 * from the end of its last piece until its callback.
 */
struct job {
    struct list link; /* mover::queue or mover::ended */
    struct move move;
    move_done_cb *done;
    void *arg;
    uint64_t started;   /* bytes in pieces that were started */
    uint32_t in_flight; /* pieces */
    kvc_status status;  /* of the first piece that failed */
};

/* A run of bytes of one job. */
struct piece {
    struct job *job;
    uint64_t offset, bytes; /* of the move */
    kvc_status status;
};

/*
 * A batch of pieces in flight: small moves share one trip to the pool, which costs more than they
 * do. Written by the loop while idle (n is 0), by the pool's thread while it runs.
 */
struct lane {
    uv_work_t work;
    struct mover *mover;
    uint32_t n;
    uint64_t since_us; /* when it was given to the pool */
    struct piece pieces[MOVER_BATCH];
};

struct mover {
    uv_loop_t *loop;
    struct tier *tiers[TIER_COUNT];
    struct lane lanes[MOVER_BATCHES];
    struct list queue, ended;
    uv_idle_t go_on; /* runs while some that have ended are not told yet */
    uint32_t count;
    bool stopping;
};

static void copy_piece(struct mover *m, struct piece *piece, uint32_t *begun)
{
    const struct move *move = &piece->job->move;
    struct device_slab *from = tier_slab(m->tiers[move->from]);
    struct device_slab *to = tier_slab(m->tiers[move->to]);
    uint64_t bytes = piece->bytes;
    bool fails = fault_fires("mover.copy");

    while (fault_fires("mover.late"))
        usleep(LATE_US);
    if (fails)
        bytes /= 2;
    piece->status = to->ops->copy(to, move->to_offset + piece->offset, from,
                                  move->from_offset + piece->offset, bytes, begun);
    if (fails) {
        log_warn("mover", "copy failed from=%s to=%s bytes=%llu", tier_name(move->from),
                 tier_name(move->to), (unsigned long long)piece->bytes);
        piece->status = KVC_E_DEVICE;
    }
}

/* After an error of settling nobody knows which of the pieces it was. */
static void settle_pieces(struct lane *lane, enum tier_kind to, uint32_t begun)
{
    struct device_slab *slab = tier_slab(lane->mover->tiers[to]);
    kvc_status status = slab->ops->settle(slab, begun);

    for (uint32_t i = 0; status != KVC_OK && i < lane->n; i++)
        if (lane->pieces[i].job->move.to == to && lane->pieces[i].status == KVC_OK)
            lane->pieces[i].status = status;
}

static void copy_batch(uv_work_t *work)
{
    struct lane *lane = work->data;
    uint32_t begun[TIER_COUNT] = {0};

    for (uint32_t i = 0; i < lane->n; i++)
        copy_piece(lane->mover, &lane->pieces[i], &begun[lane->pieces[i].job->move.to]);
    for (int t = 0; t < TIER_COUNT; t++)
        if (begun[t] != 0)
            settle_pieces(lane, (enum tier_kind)t, begun[t]);
}

/* Takes the next piece of the queue, if it fits into a batch that has `room` bytes left. */
static bool take_piece(struct mover *m, uint64_t room, struct piece *piece)
{
    struct job *job = list_first(&m->queue, struct job, link);

    if (!job)
        return false;
    piece->job = job;
    piece->offset = job->started;
    piece->bytes = job->move.bytes - job->started;
    if (piece->bytes > TIER_PIECE_BYTES)
        piece->bytes = TIER_PIECE_BYTES;
    if (piece->bytes > room)
        return false;
    job->started += piece->bytes;
    job->in_flight++;
    if (job->started == job->move.bytes)
        list_remove(&job->link);
    return true;
}

static void batch_done(uv_work_t *work, int cancelled);

static void start_batches(struct mover *m)
{
    for (uint32_t i = 0; i < MOVER_BATCHES; i++) {
        struct lane *lane = &m->lanes[i];
        uint64_t room = TIER_PIECE_BYTES;
        int error;

        if (lane->n > 0)
            continue;
        while (lane->n < MOVER_BATCH && take_piece(m, room, &lane->pieces[lane->n]))
            room -= lane->pieces[lane->n++].bytes;
        if (lane->n == 0)
            return;
        lane->since_us = clock_now_us();
        error = uv_queue_work(m->loop, &lane->work, copy_batch, batch_done);
        assert(error == 0); /* it only refuses a NULL function */
        (void)error;
    }
}

static void finish(struct mover *m, struct job *job)
{
    assert(job->in_flight == 0 && !list_linked(&job->link) && m->count > 0);
    job->done(job->arg, job->status);
    m->count--;
    mem_free(job);
}

static void go_on_cb(uv_idle_t *idle);

/* What its user does with a copy takes longer than a small copy, and a batch has many of them. */
static void finish_some(struct mover *m)
{
    const uint64_t began = clock_now_us();

    do {
        struct job *job = list_first(&m->ended, struct job, link);

        if (!job) {
            uv_idle_stop(&m->go_on);
            return;
        }
        list_remove(&job->link);
        finish(m, job);
    } while (clock_now_us() - began < TURN_US);
    uv_idle_start(&m->go_on, go_on_cb);
}

static void go_on_cb(uv_idle_t *idle)
{
    finish_some(container_of(idle, struct mover, go_on));
}

/* Only a batch's end calls this, so that no callback comes from inside mover_stop(). */
static void cancel_queue(struct mover *m)
{
    struct list waiting;

    list_init(&waiting);
    list_splice_back(&waiting, &m->queue);
    while (!list_empty(&waiting)) {
        struct job *job = list_first(&waiting, struct job, link);

        list_remove(&job->link);
        if (job->status == KVC_OK)
            job->status = KVC_E_CANCELLED;
        if (job->in_flight == 0)
            finish(m, job);
    }
}

static void batch_done(uv_work_t *work, int cancelled)
{
    struct lane *lane = work->data;
    struct mover *m = lane->mover;
    struct piece done[MOVER_BATCH];
    const uint32_t n = lane->n;

    memcpy(done, lane->pieces, n * sizeof(done[0]));
    lane->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct job *job = done[i].job;
        kvc_status status = cancelled ? KVC_E_CANCELLED : done[i].status;

        job->in_flight--;
        if (status != KVC_OK && job->status == KVC_OK) {
            job->status = status;
            list_remove(&job->link);
        }
    }
    /* A batch may hold several pieces of a job, side by side; the last of them ends it. */
    for (uint32_t i = 0; i < n; i++) {
        struct job *job = done[i].job;
        bool last = i + 1 == n || done[i + 1].job != job;

        if (last && job->in_flight == 0 && !list_linked(&job->link))
            list_push_back(&m->ended, &job->link);
    }
    /* The lane is busy again before callbacks run: they may ask for more. */
    if (!m->stopping)
        start_batches(m);
    finish_some(m);
    if (m->stopping)
        cancel_queue(m);
}

static bool in_tier(const struct tier *tier, uint64_t offset, uint64_t bytes)
{
    return tier && offset <= tier_bytes(tier) && bytes <= tier_bytes(tier) - offset;
}

static kvc_status mover_copy(void *mover, const struct move *move, move_done_cb *done, void *arg)
{
    struct mover *m = mover;
    struct job *job;

    if (m->stopping)
        return KVC_E_STOPPING;
    if (move->bytes == 0 || move->from == move->to || move->from >= TIER_COUNT ||
        move->to >= TIER_COUNT || !in_tier(m->tiers[move->from], move->from_offset, move->bytes) ||
        !in_tier(m->tiers[move->to], move->to_offset, move->bytes))
        return KVC_E_INVALID;
    job = mem_zalloc(sizeof(*job));
    if (!job)
        return KVC_E_NO_MEMORY;
    job->move = *move;
    job->done = done;
    job->arg = arg;
    list_init(&job->link);
    list_push_back(&m->queue, &job->link);
    m->count++;
    start_batches(m);
    return KVC_OK;
}

const struct mover_ops mover_ops = {.copy = mover_copy};

kvc_status mover_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT], struct mover **mover)
{
    struct mover *m = mem_zalloc(sizeof(*m));

    if (!m)
        return KVC_E_NO_MEMORY;
    m->loop = loop;
    list_init(&m->queue);
    list_init(&m->ended);
    uv_idle_init(loop, &m->go_on);
    for (uint32_t i = 0; i < TIER_COUNT; i++)
        m->tiers[i] = tiers[i];
    for (uint32_t i = 0; i < MOVER_BATCHES; i++) {
        m->lanes[i].mover = m;
        m->lanes[i].work.data = &m->lanes[i];
    }
    *mover = m;
    return KVC_OK;
}

void mover_stop(struct mover *m)
{
    m->stopping = true;
    /* Moves wait in the queue only while every lane is busy, so a batch's end will see them. */
    for (uint32_t i = 0; i < MOVER_BATCHES; i++)
        if (m->lanes[i].n > 0)
            uv_cancel((uv_req_t *)&m->lanes[i].work);
}

uint32_t mover_count(const struct mover *m)
{
    return m->count;
}

uint64_t mover_oldest_us(const struct mover *m)
{
    const uint64_t now = clock_now_us();
    uint64_t oldest = 0;

    for (uint32_t i = 0; i < MOVER_BATCHES; i++)
        if (m->lanes[i].n > 0 && now - m->lanes[i].since_us > oldest)
            oldest = now - m->lanes[i].since_us;
    return oldest;
}

bool mover_hangs(const struct mover *m)
{
    return mover_oldest_us(m) >= MOVER_LATE_MS * CLOCK_MS_US;
}

static void closed_cb(uv_handle_t *handle)
{
    mem_free(container_of((uv_idle_t *)handle, struct mover, go_on));
}

void mover_destroy(struct mover *m)
{
    if (!m)
        return;
    assert(m->count == 0);
    uv_close((uv_handle_t *)&m->go_on, closed_cb);
}
