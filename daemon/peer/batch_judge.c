/* What has come of batches is unpacked and verified on the pool, while the rest is on its way. */
#ifdef KVC_UCX

#include <string.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/peer/batch.h"

static kvc_status make_ready(const struct batch *b, uint32_t i)
{
    struct device_slab *slab = tier_slab(b->peers->config.tiers[b->blocks[i].tier]);

    if (fault_fires("peer.ready"))
        return KVC_E_NO_MEMORY;
    return slab->ops->slab_ready(slab, b->blocks[i].offset, b->shape->span);
}

/* A view's block is looked at right behind its copy: it is in the processor's cache then. */
static kvc_status judge_block(struct batch *b, const uint8_t *packed, uint32_t i)
{
    uint8_t *slot = batch_address(b, i);

    if (packed != NULL) {
        kvc_status status = make_ready(b, i);

        if (status != KVC_OK)
            return status;
        memcpy(slot, packed + i * b->shape->span, b->shape->span);
    }
    b->cells[i] = pack_checksum_slot(&b->shape->pack, slot);
    return KVC_OK;
}

/* Blocks of a GPU are summed there, those of each by themselves. */
static kvc_status judge_on_gpus(struct batch *b)
{
    const struct device_slab *slab = tier_slab(b->peers->config.tiers[TIER_GPU]);
    struct pack_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS];
    uint32_t numbers[KVC_CHUNK_BLOCKS];
    kvc_status status = KVC_OK;

    for (uint32_t gpu = 0; gpu < b->peers->config.device->n_gpus && status == KVC_OK; gpu++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < b->n; i++) {
            if (slab->ops->extent_gpu(slab, (uint32_t)(b->blocks[i].offset / slab->extent_bytes)) !=
                gpu)
                continue;
            numbers[n] = i;
            blocks[n++] = (struct pack_block){.slot = batch_address(b, i)};
        }
        if (n > 0)
            status = sums_of(b->peers->sums, gpu, &b->shape->pack, blocks, n, cells);
        for (uint32_t i = 0; i < n && status == KVC_OK; i++)
            b->cells[numbers[i]] = cells[i];
    }
    return status;
}

/* What seems to be here may be written while it is read; then its checksum is wrong, and it is read
 * again. So that is no race to tell of. */
#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
#else
#define AnnotateIgnoreReadsBegin(file, line) ((void)(file), (void)(line))
#define AnnotateIgnoreReadsEnd(file, line)   ((void)(file), (void)(line))
#endif

static kvc_status judge_early(struct batch *b, uint32_t i)
{
    kvc_status status;

    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    status = judge_block(b, NULL, i);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    return status;
}

static void judge_cb(uv_work_t *work)
{
    struct batch *b = container_of(work, struct batch, work);
    const uint8_t *packed = b->mode == MESSAGE_VIEWS ? lane_base(&b->peer->lanes, b->lane) : NULL;

    while (fault_fires("peer.judge_late"))
        usleep(1000);
    if (b->mode == MESSAGE_GPU) {
        b->pool_status = judge_on_gpus(b);
        return;
    }
    for (uint64_t left = b->taken & ~b->judged; left != 0; left &= left - 1) {
        const uint32_t i = (uint32_t)__builtin_ctzll(left);
        kvc_status status = b->certain & 1ull << i ? judge_block(b, packed, i) : judge_early(b, i);

        if (status != KVC_OK && b->pool_status == KVC_OK)
            b->pool_status = status;
    }
}

/* Of those that did not come yet, the ones that are not what the source said. */
static uint64_t doubts_of(const struct batch *b)
{
    uint64_t doubts = 0;

    for (uint64_t left = b->taken & ~b->judged & ~b->certain; left != 0; left &= left - 1) {
        const uint32_t i = (uint32_t)__builtin_ctzll(left);

        if (!b->checked[i] || b->cells[i] != b->checksums[i])
            doubts |= 1ull << i;
    }
    return doubts;
}

static void judged_cb(uv_work_t *work, int status)
{
    struct batch *b = container_of(work, struct batch, work);

    b->pooled = false;
    if (status < 0)
        b->pool_status = KVC_E_CANCELLED;
    b->doubted |= doubts_of(b);
    b->judged |= b->taken & ~b->doubted;
    if (b->status == KVC_OK)
        b->status = b->pool_status;
    batch_settle(b);
}

static bool is_right(const struct batch *b)
{
    if (fault_fires("peer.judge"))
        return false;
    for (uint32_t i = 0; i < b->n; i++)
        if (b->checked[i] && b->cells[i] != b->checksums[i])
            return false;
    return true;
}

static void judge(struct batch *b)
{
    b->certain = b->came;
    b->doubted &= ~b->came;
    b->taken = b->came | (b->seen & ~b->doubted);
    b->pooled = true;
    if (uv_queue_work(b->peers->config.loop, &b->work, judge_cb, judged_cb) == 0)
        return;
    b->pooled = false;
    batch_finish(b, KVC_E_NO_MEMORY);
}

void batch_settle(struct batch *b)
{
    if (b->pooled)
        return;
    if (b->state == BATCH_LOST) {
        if (b->forsaken)
            batch_finish(b, KVC_E_PEER);
        return;
    }
    if (b->status != KVC_OK) {
        if (b->n_left == 0)
            batch_finish(b, b->status);
        return;
    }
    /* Nothing more comes: the link is not needed from here on. */
    if (b->told && b->came == batch_all(b) && b->state != BATCH_JUDGED)
        batch_set_state(b, BATCH_JUDGED);
    if ((b->came & ~b->judged) != 0) {
        /* A launch is for all of them. */
        if (b->mode != MESSAGE_GPU || b->came == batch_all(b))
            judge(b);
    } else if (b->state == BATCH_JUDGED) {
        if (!is_right(b)) {
            log_warn("peer", "a batch is not what was published there peer=%s", b->peer->name);
            b->status = KVC_E_CHECKSUM;
        }
        batch_finish(b, b->status);
    }
}

/*
 * UCX tells of a message when all messages that were on their way with it are here: it waits for
 * the receipt of what it put, which comes behind them. What lies in a block's last bytes tells
 * sooner, and its checksum whether that is true.
 */

#define PEEK_BYTES (1ull << 20) /* of blocks that the pool is woken for; or half of the batch */

static uint64_t mark_of(const struct batch *b)
{
    return (b->id + 1) * 0x9e3779b97f4a7c15ull;
}

static uint8_t *mark_at(const struct batch *b, uint32_t i)
{
    return batch_address(b, i) + b->shape->span - sizeof(uint64_t);
}

void batch_mark(struct batch *b)
{
    const uint64_t mark = mark_of(b);

    if (b->shape->span < sizeof(mark))
        return;
    for (uint32_t i = 0; i < b->n; i++)
        memcpy(mark_at(b, i), &mark, sizeof(mark));
}

static bool seems_here(const struct batch *b, uint32_t i)
{
    const uint64_t mark = mark_of(b);

    return memcmp(mark_at(b, i), &mark, sizeof(mark)) != 0 || fault_fires("peer.peek");
}

static void peek(struct batch *b)
{
    uint64_t fresh;

    if (b->state != BATCH_ASKED || b->mode != MESSAGE_SEND || !b->told || b->status != KVC_OK ||
        b->shape->span < sizeof(uint64_t))
        return;
    /* Not in their order: UCX cuts a message, and several lanes bring the pieces. */
    for (uint64_t left = b->coming & ~b->came & ~b->seen; left != 0; left &= left - 1) {
        const uint32_t i = (uint32_t)__builtin_ctzll(left);

        if (seems_here(b, i))
            b->seen |= 1ull << i;
    }
    fresh = (uint64_t)__builtin_popcountll(b->seen & ~b->judged & ~b->doubted) * b->shape->span;
    if (!b->pooled && (fresh >= PEEK_BYTES || 2 * fresh >= b->bytes))
        judge(b);
}

void batch_peek_all(void *arg)
{
    struct peers *peers = arg;
    struct peer *peer;
    struct batch *b, *after;

    if (peers->bytes == 0)
        return;
    list_for_each(peer, &peers->list, link)
        list_for_each_safe(b, after, &peer->running, link)
            peek(b);
}

/* Memory for slots before anybody may write to them. */

static void ready_cb(uv_work_t *work)
{
    struct batch *b = container_of(work, struct batch, work);

    for (uint32_t i = 0; i < b->n && b->pool_status == KVC_OK; i++)
        b->pool_status = make_ready(b, i);
}

static void readied_cb(uv_work_t *work, int status)
{
    struct batch *b = container_of(work, struct batch, work);

    b->pooled = false;
    b->status = status < 0 ? KVC_E_CANCELLED : b->pool_status;
    if (b->state == BATCH_LOST || b->status != KVC_OK)
        batch_settle(b);
    else
        b->ready(b);
}

/* An extent that the background has made takes a look here and no more. */
static bool is_made(const struct batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct tier *tier = b->peers->config.tiers[b->blocks[i].tier];
        const uint64_t extent = tier_extent_bytes(tier);
        const uint64_t last = (b->blocks[i].offset + b->shape->span - 1) / extent;

        if ((last + 1) * extent > tier_populated(tier))
            return false;
    }
    return true;
}

void batch_make_ready(struct batch *b, void (*ready)(struct batch *b))
{
    batch_set_state(b, BATCH_READYING);
    if (is_made(b)) {
        ready_cb(&b->work);
        if (b->pool_status == KVC_OK)
            ready(b);
        else
            batch_end(b, b->pool_status);
        return;
    }
    b->ready = ready;
    b->pooled = true;
    if (uv_queue_work(b->peers->config.loop, &b->work, ready_cb, readied_cb) == 0)
        return;
    b->pooled = false;
    batch_end(b, KVC_E_NO_MEMORY);
}

#endif
