#include "daemon/tier/mover.h"

#include <assert.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define LATE_US 1000u

/* A move: in the queue until its last piece has been started or it failed. */
struct job {
    struct list link; /* mover::queue */
    struct move move;
    move_done_cb *done;
    void *arg;
    uint64_t started;   /* bytes in pieces that were started */
    uint32_t in_flight; /* pieces */
    kvc_status status;  /* of the first piece that failed */
};

/* One piece in flight. Written by the loop while idle, by the pool's thread while it runs. */
struct lane {
    uv_work_t work;
    struct mover *mover;
    struct job *job;        /* NULL: idle */
    uint64_t offset, bytes; /* of the move */
    kvc_status status;
};

struct mover {
    uv_loop_t *loop;
    struct tier *tiers[TIER_COUNT];
    struct lane lanes[MOVER_PIECES];
    struct list queue;
    uint32_t count;
    bool stopping;
};

static void copy_piece(uv_work_t *work)
{
    struct lane *lane = work->data;
    const struct move *move = &lane->job->move;
    struct device_slab *from = tier_slab(lane->mover->tiers[move->from]);
    struct device_slab *to = tier_slab(lane->mover->tiers[move->to]);
    uint64_t bytes = lane->bytes;
    bool fails = fault_fires("mover.copy");

    while (fault_fires("mover.late"))
        usleep(LATE_US);
    if (fails)
        bytes /= 2;
    lane->status = to->ops->copy(to, move->to_offset + lane->offset, from,
                                 move->from_offset + lane->offset, bytes);
    if (fails) {
        log_warn("mover", "copy failed from=%s to=%s bytes=%llu", tier_name(move->from),
                 tier_name(move->to), (unsigned long long)lane->bytes);
        lane->status = KVC_E_DEVICE;
    }
}

static void piece_done(uv_work_t *work, int cancelled);

static void start_pieces(struct mover *m)
{
    for (uint32_t i = 0; i < MOVER_PIECES; i++) {
        struct lane *lane = &m->lanes[i];
        struct job *job = list_first(&m->queue, struct job, link);
        int error;

        if (lane->job)
            continue;
        if (!job)
            return;
        lane->job = job;
        lane->offset = job->started;
        lane->bytes = job->move.bytes - job->started;
        if (lane->bytes > TIER_PIECE_BYTES)
            lane->bytes = TIER_PIECE_BYTES;
        job->started += lane->bytes;
        job->in_flight++;
        if (job->started == job->move.bytes)
            list_remove(&job->link);
        error = uv_queue_work(m->loop, &lane->work, copy_piece, piece_done);
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

/* Only a piece's end calls this, so that no callback comes from inside mover_stop(). */
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

static void piece_done(uv_work_t *work, int cancelled)
{
    struct lane *lane = work->data;
    struct mover *m = lane->mover;
    struct job *job = lane->job;
    kvc_status status = cancelled ? KVC_E_CANCELLED : lane->status;

    lane->job = NULL;
    job->in_flight--;
    if (status != KVC_OK && job->status == KVC_OK) {
        job->status = status;
        list_remove(&job->link);
    }
    /* A lane is busy before the callback runs: it may ask for more. */
    if (!m->stopping)
        start_pieces(m);
    if (job->in_flight == 0 && !list_linked(&job->link))
        finish(m, job);
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
    start_pieces(m);
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
    for (uint32_t i = 0; i < TIER_COUNT; i++)
        m->tiers[i] = tiers[i];
    for (uint32_t i = 0; i < MOVER_PIECES; i++) {
        m->lanes[i].mover = m;
        m->lanes[i].work.data = &m->lanes[i];
    }
    *mover = m;
    return KVC_OK;
}

void mover_stop(struct mover *m)
{
    m->stopping = true;
    /* Moves wait in the queue only while every lane is busy, so a piece's end will see them. */
    for (uint32_t i = 0; i < MOVER_PIECES; i++)
        if (m->lanes[i].job)
            uv_cancel((uv_req_t *)&m->lanes[i].work);
}

uint32_t mover_count(const struct mover *m)
{
    return m->count;
}

void mover_destroy(struct mover *m)
{
    if (!m)
        return;
    assert(m->count == 0);
    mem_free(m);
}
