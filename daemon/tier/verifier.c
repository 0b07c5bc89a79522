#include "daemon/tier/verifier.h"

#include <assert.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"

#define LATE_US 1000u

struct verifier {
    uv_work_t work;
    uv_loop_t *loop;
    struct tier *tiers[TIER_COUNT];
    const struct device *device;
    struct tier *place; /* for what lies on a GPU; NULL: not needed yet */
    /* The batch in flight: written by the loop before it is queued, then the pool's. */
    struct verifier_slot *slots;
    uint32_t n; /* 0: none */
    verifier_done_cb *done;
    void *arg;
};

/* n bytes of a tier where they can be read, which may be the place. */
static kvc_status bring(struct verifier *v, enum tier_kind kind, uint64_t offset, uint64_t n,
                        const uint8_t **ret)
{
    struct tier *tier = v->tiers[kind];
    struct device_slab *slab = tier_slab(tier), *place;
    uint32_t begun = 0;
    kvc_status status, settled;

    if (tier_memory(tier) == DEVICE_MEMORY_MEMFD) {
        *ret = tier_address(tier, offset);
        return slab->ops->slab_ready(slab, offset, n);
    }
    place = tier_slab(v->place);
    if (fault_fires("verifier.copy"))
        return KVC_E_DEVICE;
    status = place->ops->copy(place, 0, slab, offset, n, &begun);
    /* Also after an error: what was begun still writes. */
    settled = place->ops->settle(place, begun);
    if (status == KVC_OK)
        status = settled;
    *ret = tier_address(v->place, 0);
    return status;
}

/* What a piece of a slot, from byte `at` of it on, adds to the checksum. */
static uint64_t share_of(const struct pack_layout *layout, const uint8_t *bytes, uint64_t at,
                         uint64_t n)
{
    uint64_t sum = 0;

    for (uint32_t s = 0; s < layout->n_slices; s++) {
        const uint64_t start = layout->slice_offsets[s], end = start + layout->slice_bytes[s];
        const uint64_t from = start > at ? start : at, to = end < at + n ? end : at + n;

        if (from < to)
            sum += pack_checksum_run(bytes + (from - at), to - from, s,
                                     (from - start) / KVC_SLICE_ALIGN);
    }
    return sum;
}

static kvc_status check(struct verifier *v, const struct verifier_slot *slot)
{
    uint64_t offsets[KVC_SLICES_MAX], sum = 0;
    struct pack_layout layout = {.slice_offsets = offsets};
    kvc_status status = pack_layout_init(&layout, slot->slice_bytes, slot->n_slices);

    for (uint64_t at = 0, n; status == KVC_OK && at < layout.slot_bytes; at += n) {
        const uint8_t *bytes = NULL;

        n = layout.slot_bytes - at < TIER_PIECE_BYTES ? layout.slot_bytes - at : TIER_PIECE_BYTES;
        status = bring(v, slot->tier, slot->offset + at, n, &bytes);
        if (status == KVC_OK)
            sum += share_of(&layout, bytes, at, n);
    }
    if (status != KVC_OK)
        return status;
    return sum == slot->checksum ? KVC_OK : KVC_E_CHECKSUM;
}

/* Made when there is a first need: most daemons never verify. */
static kvc_status make_place(struct verifier *v)
{
    bool needed = false;

    for (uint32_t i = 0; i < v->n; i++)
        needed = needed || tier_memory(v->tiers[v->slots[i].tier]) != DEVICE_MEMORY_MEMFD;
    if (!needed || v->place)
        return KVC_OK;
    return tier_create(TIER_HOST, v->device, TIER_PIECE_BYTES, 1, &v->place);
}

static void work(uv_work_t *req)
{
    struct verifier *v = req->data;
    kvc_status status = make_place(v);

    while (fault_fires("verifier.late"))
        usleep(LATE_US);
    for (uint32_t i = 0; i < v->n; i++)
        v->slots[i].status = status == KVC_OK ? check(v, &v->slots[i]) : status;
}

static void work_done(uv_work_t *req, int cancelled)
{
    struct verifier *v = req->data;

    (void)cancelled; /* it never is */
    v->n = 0;
    v->done(v->arg);
}

kvc_status verifier_create(uv_loop_t *loop, struct tier *const tiers[TIER_COUNT],
                           const struct device *device, struct verifier **verifier)
{
    struct verifier *v = mem_zalloc(sizeof(*v));

    if (v == NULL)
        return KVC_E_NO_MEMORY;
    v->loop = loop;
    v->work.data = v;
    v->device = device;
    for (int t = 0; t < TIER_COUNT; t++)
        v->tiers[t] = tiers[t];
    *verifier = v;
    return KVC_OK;
}

void verifier_start(struct verifier *v, struct verifier_slot *slots, uint32_t n,
                    verifier_done_cb *done, void *arg)
{
    int error;

    assert(v->n == 0 && n > 0 && n <= VERIFIER_BATCH);
    v->slots = slots;
    v->n = n;
    v->done = done;
    v->arg = arg;
    error = uv_queue_work(v->loop, &v->work, work, work_done);
    assert(error == 0); /* it only refuses a NULL function */
    (void)error;
}

bool verifier_is_busy(const struct verifier *v)
{
    return v->n > 0;
}

void verifier_destroy(struct verifier *v)
{
    if (v == NULL)
        return;
    assert(v->n == 0);
    tier_destroy(v->place);
    mem_free(v);
}
