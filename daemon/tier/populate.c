#include "daemon/tier/populate.h"

#include <assert.h>

#include "daemon/base/mem.h"

struct populate {
    uv_work_t work;
    struct tier *tiers[TIER_COUNT];
    uint32_t n_tiers, tier; /* which is being populated */
    bool stopping;
    populate_done_cb *done;
    void *arg;

    /* The piece in flight: written by the loop before it is queued, read by the pool. */
    struct device_slab *slab;
    uint32_t extent;
    uint64_t offset, bytes;
    kvc_status status;
};

/* The next piece, or none in *bytes when all have their pages. */
static void choose_piece(struct populate *p)
{
    p->bytes = 0;
    for (; p->tier < p->n_tiers; p->tier++) {
        struct tier *tier = p->tiers[p->tier];
        uint64_t at = tier_populated(tier), extent_bytes = tier_extent_bytes(tier);

        if (at == tier_bytes(tier))
            continue;
        p->slab = tier_slab(tier);
        p->extent = (uint32_t)(at / extent_bytes);
        p->offset = at % extent_bytes;
        p->bytes = extent_bytes - p->offset;
        if (p->bytes > TIER_PIECE_BYTES)
            p->bytes = TIER_PIECE_BYTES;
        return;
    }
}

static void populate_piece(uv_work_t *work)
{
    struct populate *p = work->data;

    p->status = p->bytes == 0
                    ? KVC_OK
                    : p->slab->ops->extent_populate(p->slab, p->extent, p->offset, p->bytes);
}

static void piece_done(uv_work_t *work, int status);

static void queue_piece(struct populate *p)
{
    int error;

    choose_piece(p);
    error = uv_queue_work(p->work.loop, &p->work, populate_piece, piece_done);
    assert(error == 0);
    (void)error;
}

static void piece_done(uv_work_t *work, int cancelled)
{
    struct populate *p = work->data;
    kvc_status status = cancelled ? KVC_E_CANCELLED : p->status;
    bool last = p->bytes == 0;

    if (status == KVC_OK && !last) {
        struct tier *tier = p->tiers[p->tier];

        tier_set_populated(tier, tier_populated(tier) + p->bytes);
        if (!p->stopping) {
            queue_piece(p);
            return;
        }
        status = KVC_E_CANCELLED;
    }
    p->done(p->arg, status);
    mem_free(p);
}

kvc_status populate_start(uv_loop_t *loop, struct tier *const tiers[], uint32_t n_tiers,
                          populate_done_cb *done, void *arg, struct populate **ret)
{
    struct populate *p;

    assert(n_tiers <= TIER_COUNT);
    p = mem_zalloc(sizeof(*p));
    if (!p)
        return KVC_E_NO_MEMORY;
    for (uint32_t i = 0; i < n_tiers; i++)
        p->tiers[i] = tiers[i];
    p->n_tiers = n_tiers;
    p->done = done;
    p->arg = arg;
    p->work.data = p;
    p->work.loop = loop;
    *ret = p;
    queue_piece(p);
    return KVC_OK;
}

void populate_stop(struct populate *p)
{
    p->stopping = true;
    uv_cancel((uv_req_t *)&p->work);
}
