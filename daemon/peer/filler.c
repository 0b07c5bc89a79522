/* The daemon's own sessions, which fetches are saves of. */
#ifdef KVC_UCX

#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

static void settle_near(struct peers *peers, struct filler *filler)
{
    const struct tier *tier = peers->config.tiers[TIER_GPU];
    uint32_t first, n;

    if (filler->gpu == PEERS_ANY_GPU || tier == NULL)
        return;
    tier_on_gpu(tier, filler->gpu, &first, &n);
    (void)store_owner_near(filler->owner, first, n); /* else it is near none */
}

kvc_status filler_of(struct peers *peers, const struct peers_want *want, struct owner **owner)
{
    const struct owner_identity identity = {
        .tenant = want->tenant, .role = STORE_ROLE_WORKER, .pid = getpid()};
    struct filler *filler;
    kvc_status status;

    list_for_each(filler, &peers->fillers, link) {
        if (filler->tenant != want->tenant || filler->gpu != want->gpu)
            continue;
        *owner = filler->owner;
        return KVC_OK;
    }
    filler = mem_zalloc(sizeof(*filler));
    if (filler == NULL)
        return KVC_E_NO_MEMORY;
    status = store_owner_open(peers->config.store, &identity, NULL, &filler->owner);
    if (status != KVC_OK) {
        mem_free(filler);
        return status;
    }
    filler->tenant = want->tenant;
    filler->gpu = want->gpu;
    settle_near(peers, filler);
    list_push_back(&peers->fillers, &filler->link);
    *owner = filler->owner;
    return KVC_OK;
}

kvc_status peers_join(struct peers *peers, struct owner *owner, uint32_t index)
{
    const struct table *table = store_table(peers->config.store);
    const struct table_part *part = table_part(table, index);
    const struct table_layout *layout = table_layout(table, part->layout);
    const struct store_part desc = {
        .namespace_digest = table_namespace(table, part->namespace_)->digest,
        .slice_bytes = layout->slice_bytes,
        .n_slices = layout->n_slices,
        .dtypes = layout->has_dtypes ? layout->dtypes : NULL,
        .block_tokens = layout->block_tokens,
        .rule = part->rule,
        .window = part->window,
    };
    struct store_part_info info;

    if (store_owner_layout(peers->config.store, owner, index) != NULL)
        return KVC_OK;
    return store_register(peers->config.store, owner, &desc, &info, NULL);
}

void fillers_end(struct peers *peers)
{
    struct filler *filler;

    while ((filler = list_first(&peers->fillers, struct filler, link)) != NULL) {
        list_remove(&filler->link);
        store_owner_end(peers->config.store, filler->owner);
        mem_free(filler);
    }
}

#endif
