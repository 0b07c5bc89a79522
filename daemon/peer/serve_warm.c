/*
 * Blocks that are about to be sent are brought into the caches by another thread. A system call
 * that copies out of memory does so with hardly more than one line on its way at a time, at half of
 * what a core can read, and the loop is where all of a source's bytes pass.
 */
#ifdef KVC_UCX

#include "daemon/base/mem.h"
#include "daemon/peer/serve.h"

#define LINE 64u

/* Stands for itself: the service may end, and the blocks may go, before it has come to them. */
struct warming {
    struct peers *peers;
    uv_work_t work;
    uint64_t bytes; /* of each */
    uint32_t n;
    const uint8_t *blocks[];
};

static void warm_cb(uv_work_t *work)
{
    const struct warming *w = container_of(work, struct warming, work);

    for (uint32_t i = 0; i < w->n; i++)
        for (uint64_t at = 0; at < w->bytes; at += LINE)
            __builtin_prefetch(w->blocks[i] + at, 0, 2);
}

static void warmed_cb(uv_work_t *work, int status)
{
    struct warming *w = container_of(work, struct warming, work);

    (void)status;
    w->peers->n_warmings--;
    mem_free(w);
}

/* Only help: without memory for it, all is well. */
static void warm(struct service *s)
{
    struct warming *w = mem_alloc(sizeof(*w) + s->n * sizeof(w->blocks[0]));

    s->cold = false;
    if (w == NULL)
        return;
    *w = (struct warming){.peers = s->peers, .bytes = s->shape->span, .n = s->n};
    for (uint32_t i = 0; i < s->n; i++)
        w->blocks[i] = service_address(s, i);
    if (uv_queue_work(s->peers->config.loop, &w->work, warm_cb, warmed_cb) < 0)
        mem_free(w);
    else
        s->peers->n_warmings++;
}

/* One batch after the other, as they are sent: both would not stay in the caches. */
void service_warm_next(struct guest *g)
{
    struct service *s = list_first(&g->running, struct service, link);

    if (s != NULL && s->cold && s->state == SERVE_SENDING)
        warm(s);
}

#endif
