/* Host memory that blocks of a GPU pass through on their way to a peer. */
#ifdef KVC_UCX

#include "daemon/peer/state.h"

kvc_status staging_open(struct peers *peers)
{
    const struct tier *gpu = peers->config.tiers[TIER_GPU];
    struct device_slab *slab;
    kvc_status status;

    if (gpu == NULL || tier_extents(gpu) == 0 || peers_is_memory(peers, TIER_GPU))
        return KVC_OK;
    status =
        tier_create(TIER_HOST, peers->config.device, VIEW_SLAB_BYTES, PEERS_STAGES, &peers->stage);
    if (status != KVC_OK)
        return status;
    slab = tier_slab(peers->stage);
    for (uint32_t i = 0; i < PEERS_STAGES && status == KVC_OK; i++)
        status = slab->ops->extent_populate(slab, i, 0, VIEW_SLAB_BYTES);
    if (status == KVC_OK)
        status = ucx_register(peers->ucx, tier_address(peers->stage, 0), tier_bytes(peers->stage),
                              &peers->stage_memory);
    if (status == KVC_OK)
        peers->figures.registrations++;
    return status;
}

void staging_close(struct peers *peers)
{
    if (peers->ucx != NULL)
        ucx_unregister(peers->ucx, &peers->stage_memory);
    tier_destroy(peers->stage);
    peers->stage = NULL;
}

/* Guests that may ask for a first one at any time. */
static uint32_t count_without(const struct peers *peers)
{
    const struct guest *g;
    uint32_t n = 0;

    list_for_each(g, &peers->guests, link)
        n += g->endpoint != NULL && g->control != NULL && g->control->state == LINK_OPEN &&
             g->n_staged == 0;
    return n;
}

uint32_t staging_take(struct peers *peers, const struct guest *guest)
{
    const uint32_t others = guest->n_staged > 0 ? count_without(peers) + 1 : 0;
    uint32_t n_free = 0, found = PEERS_STAGES;

    for (uint32_t i = 0; peers->stage != NULL && i < PEERS_STAGES; i++) {
        if (peers->stage_used[i])
            continue;
        n_free++;
        found = i;
    }
    if (n_free <= others)
        return PEERS_STAGES;
    peers->stage_used[found] = true;
    return found;
}

void staging_give(struct peers *peers, uint32_t stage)
{
    peers->stage_used[stage] = false;
}

const uint8_t *staging_address(const struct peers *peers, uint32_t stage)
{
    return tier_address(peers->stage, stage * VIEW_SLAB_BYTES);
}

kvc_status staging_copy(const struct peers *peers, uint32_t stage, uint64_t at, uint64_t from,
                        uint64_t bytes, uint32_t *begun)
{
    struct device_slab *to = tier_slab(peers->stage);

    return to->ops->copy(to, stage * VIEW_SLAB_BYTES + at, tier_slab(peers->config.tiers[TIER_GPU]),
                         from, bytes, begun);
}

kvc_status staging_settle(const struct peers *peers, uint32_t begun)
{
    struct device_slab *slab = tier_slab(peers->stage);

    return slab->ops->settle(slab, begun);
}

#endif
