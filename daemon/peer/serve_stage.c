/* Blocks that are only on a GPU, which no transport reaches: by host memory. */
#ifdef KVC_UCX

#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/peer/serve.h"

bool service_is_wanted(const struct service *s)
{
    const struct guest *g = s->guest;

    return g->control != NULL && g->control->state == LINK_OPEN && g->endpoint != NULL;
}

const struct ucx_memory *service_memory(const struct service *s, uint32_t i)
{
    return s->staged & 1ull << i ? &s->peers->stage_memory : &s->peers->memory[s->from[i].tier];
}

/* How many blocks from the i-th on are one piece of one extent, so that one copy takes them. */
static uint32_t run_at(const struct service *s, uint32_t i)
{
    const uint64_t extent = tier_extent_bytes(s->peers->config.tiers[TIER_GPU]);
    const uint64_t span = s->shape->span, start = s->from[i].offset;
    uint32_t n = 1;

    while (i + n < s->n && s->staged & 1ull << (i + n) &&
           s->from[i + n].offset == start + n * span &&
           (start + (n + 1) * span - 1) / extent == start / extent)
        n++;
    return n;
}

static void stage_cb(uv_work_t *work)
{
    struct service *s = container_of(work, struct service, work);
    const uint64_t span = s->shape->span;
    uint32_t begun = 0;
    kvc_status settled;

    while (fault_fires("peer.stage_late"))
        usleep(1000);
    for (uint32_t i = 0, n; i < s->n && s->status == KVC_OK; i += n) {
        n = 1;
        if (!(s->staged & 1ull << i))
            continue;
        n = run_at(s, i);
        s->status = staging_copy(s->peers, s->stage, i * span, s->from[i].offset, n * span, &begun);
    }
    /* Also after an error: what was begun still writes. */
    settled = staging_settle(s->peers, begun);
    if (s->status == KVC_OK)
        s->status = settled;
}

static void staged_cb(uv_work_t *work, int status)
{
    struct service *s = container_of(work, struct service, work);

    (void)status;
    if (!service_is_wanted(s)) {
        service_finish(s, false);
        return;
    }
    if (s->status == KVC_OK)
        s->status = service_move(s);
    if (s->status == KVC_OK)
        return;
    service_refuse(s->guest, s->id, s->status);
    service_finish(s, false);
}

kvc_status service_stage(struct service *s)
{
    if (s->mode == MESSAGE_GET) /* it would be read from where it lies */
        return KVC_E_DEVICE;
    if (s->bytes > VIEW_SLAB_BYTES)
        return KVC_E_LIMIT;
    s->stage = staging_take(s->peers, s->guest);
    if (s->stage == PEERS_STAGES)
        return KVC_E_BUSY;
    s->guest->n_staged++;
    s->guest->staged = ++s->peers->stage_turn;
    service_set_state(s, SERVE_STAGING);
    return uv_queue_work(s->peers->config.loop, &s->work, stage_cb, staged_cb) < 0 ? KVC_E_NO_MEMORY
                                                                                   : KVC_OK;
}

#endif
