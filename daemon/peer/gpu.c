/* Memory of GPUs that a transport reads by itself: this daemon's extents, and its peers'. */
#ifdef KVC_UCX

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define TOLD_BYTES  (48u * 1024u) /* of a message's keys */
#define EXTENTS_MAX 65536u        /* of a peer */

/* This daemon's. */

static void unregister_all(struct peers *peers)
{
    for (uint32_t i = 0; i < peers->n_extents; i++)
        ucx_unregister(peers->ucx, &peers->extents[i]);
    mem_free(peers->extents);
    peers->extents = NULL;
    peers->n_extents = 0;
}

static kvc_status register_extent(struct peers *peers, uint32_t extent)
{
    const struct tier *tier = peers->config.tiers[TIER_GPU];
    const uint64_t bytes = tier_extent_bytes(tier);
    struct ucx_memory *memory = &peers->extents[extent];
    kvc_status status;

    memory->gpu = true;
    status = ucx_register(peers->ucx, tier_address(tier, extent * bytes), bytes, memory);
    if (status == KVC_OK)
        peers->figures.registrations++;
    return status;
}

/* What gets new memory is not registered any more, so that nothing keeps the old: its blocks go by
 * host memory from then on. */
static void renewing_cb(void *arg, uint32_t extent)
{
    struct peers *peers = arg;

    ucx_unregister(peers->ucx, &peers->extents[extent]);
}

/* What comes is verified where it is, by the daemon's kernels. */
static bool may_reach(const struct peers *peers)
{
    const struct tier *tier = peers->config.tiers[TIER_GPU];

    return tier != NULL && tier_extents(tier) > 0 && !peers_is_memory(peers, TIER_GPU) &&
           peers->config.device->lending != NULL && ucx_knows_gpus(peers->ucx) &&
           peers->config.transfer != PEERS_VIEWS;
}

kvc_status gpu_open(struct peers *peers)
{
    struct tier *tier = peers->config.tiers[TIER_GPU];
    kvc_status status = KVC_OK;

    if (!may_reach(peers))
        return KVC_OK;
    peers->extents = mem_array(tier_extents(tier), sizeof(*peers->extents));
    if (peers->extents == NULL)
        return KVC_E_NO_MEMORY;
    peers->n_extents = tier_extents(tier);
    for (uint32_t i = 0; i < peers->n_extents && status == KVC_OK; i++) {
        status = register_extent(peers, i);
        if (status == KVC_OK && !ucx_is_reachable(&peers->extents[i]))
            status = KVC_E_UNSUPPORTED;
    }
    if (status == KVC_OK)
        status = sums_create(peers->config.device, &peers->sums);
    if (status != KVC_OK) {
        log_info("peer", "memory of GPUs goes by host memory reason=\"%s\"",
                 status == KVC_E_UNSUPPORTED ? "no transport reaches it" : kvc_status_text(status));
        unregister_all(peers);
        return KVC_OK;
    }
    tier_watch(tier, renewing_cb, peers);
    log_info("peer", "memory of GPUs is registered extents=%u", peers->n_extents);
    return KVC_OK;
}

void gpu_close(struct peers *peers)
{
    if (peers->n_extents == 0)
        return;
    tier_watch(peers->config.tiers[TIER_GPU], NULL, NULL);
    sums_destroy(peers->sums);
    peers->sums = NULL;
    unregister_all(peers);
}

bool gpu_holds(const struct peers *peers, uint64_t offset, uint64_t bytes)
{
    const uint64_t extent_bytes =
        peers->n_extents > 0 ? tier_extent_bytes(peers->config.tiers[TIER_GPU]) : 0;

    return extent_bytes > 0 && offset / extent_bytes < peers->n_extents &&
           offset % extent_bytes + bytes <= extent_bytes &&
           peers->extents[offset / extent_bytes].handle != NULL;
}

const struct ucx_memory *gpu_memory(const struct peers *peers, uint64_t offset)
{
    return &peers->extents[offset / tier_extent_bytes(peers->config.tiers[TIER_GPU])];
}

/*
 * Mappings of other processes' memory, where the peer is a process that they reach; or InfiniBand,
 * whose keys are there only if it reads GPUs' memory.
 */
bool gpu_is_native(const struct peers *peers, const char *lanes)
{
    if (peers->n_extents == 0)
        return false;
    if (ucx_maps_gpus(peers->ucx))
        return lanes_have(lanes, "cuda_ipc");
    return lanes_have(lanes, "rc") || lanes_have(lanes, "dc");
}

void gpu_tell(struct guest *g)
{
    const struct peers *peers = g->peers;
    const struct tier *tier = peers->config.tiers[TIER_GPU];
    struct message m = {
        .type = MESSAGE_KEYS,
        .keys = {.extent_bytes = tier_extent_bytes(tier), .n_extents = peers->n_extents}};
    char lanes[UCX_LANES_MAX];
    uint64_t bytes = 0;

    if (g->endpoint == NULL || (g->modes & 1u << MESSAGE_GPU) == 0)
        return;
    ucx_lanes(g->endpoint, lanes);
    if (!gpu_is_native(peers, lanes))
        return;
    g->gpu = true;
    for (uint32_t i = 0; i < peers->n_extents; i++) {
        const struct ucx_memory *memory = &peers->extents[i];

        m.keys.keys[m.keys.n++] =
            (struct message_key){(uint64_t)(uintptr_t)tier_address(tier, i * m.keys.extent_bytes),
                                 memory->rkey, (uint32_t)memory->rkey_len};
        bytes += memory->rkey_len;
        if (i + 1 < peers->n_extents && m.keys.n < MESSAGE_KEYS_MAX && bytes < TOLD_BYTES)
            continue;
        link_send(g->control, &m);
        m.keys.first = i + 1;
        m.keys.n = 0;
        bytes = 0;
    }
}

/* A peer's. */

static bool begin_keys(struct gpu_keys *keys, const struct message_keys *m)
{
    if (m->n_extents > EXTENTS_MAX || m->extent_bytes == 0)
        return false;
    keys->extents = mem_array(m->n_extents, sizeof(*keys->extents));
    if (keys->extents == NULL)
        return false;
    keys->n = m->n_extents;
    keys->extent_bytes = m->extent_bytes;
    return true;
}

/*
 * A key that nothing here can use is opened without a word, and reads by it would be emulated: what
 * is reached by mappings is mapped at once.
 */
static kvc_status open_key(struct peer *peer, const struct message_key *from,
                           struct gpu_extent *extent)
{
    struct ucx_rkey *rkey;
    kvc_status status;

    extent->base = from->base;
    if (from->rkey_len == 0)
        return KVC_OK; /* no block that can be read is there */
    status = ucx_rkey_open(peer->endpoint, from->rkey, from->rkey_len, &rkey);
    if (status != KVC_OK)
        return status;
    if (ucx_maps_gpus(peer->peers->ucx) && !ucx_rkey_maps(peer->endpoint, rkey, from->base)) {
        ucx_rkey_close(peer->endpoint, rkey);
        return KVC_E_UNSUPPORTED;
    }
    extent->rkey = rkey;
    peer->registrations++;
    return KVC_OK;
}

/* UCX maps for the GPU that the thread is on. */
static kvc_status open_keys(struct peer *peer, const struct message_keys *m)
{
    const struct device *device = peer->peers->config.device;
    struct gpu_keys *keys = &peer->gpu;
    kvc_status status = device->enter(device->state, 0);

    if (status != KVC_OK)
        return KVC_E_UNSUPPORTED;
    for (uint32_t i = 0; i < m->n && status == KVC_OK; i++)
        status = open_key(peer, &m->keys[i], &keys->extents[keys->known++]);
    device->leave(device->state);
    return status;
}

/* They come in order. */
kvc_status gpu_learn(struct peer *peer, const struct message_keys *m)
{
    struct gpu_keys *keys = &peer->gpu;
    kvc_status status;

    if (!peer->gpu_wanted)
        return KVC_OK;
    if (m->first == 0 && keys->n == 0 && !begin_keys(keys, m))
        return KVC_E_NO_MEMORY;
    if (m->first != keys->known || m->n_extents != keys->n || m->extent_bytes != keys->extent_bytes)
        return KVC_E_PROTOCOL;
    status = open_keys(peer, m);
    if (status == KVC_E_UNSUPPORTED)
        log_info("peer", "UCX does not map memory of a peer's GPU name=%s", peer->name);
    if (status != KVC_OK)
        gpu_forget(peer);
    else if (keys->known == keys->n)
        log_info("peer", "memory of a peer's GPU is read from here name=%s extents=%u", peer->name,
                 keys->n);
    return status == KVC_E_UNSUPPORTED ? KVC_OK : status;
}

void gpu_forget(struct peer *peer)
{
    for (uint32_t i = 0; i < peer->gpu.known; i++)
        ucx_rkey_close(peer->endpoint, peer->gpu.extents[i].rkey);
    mem_free(peer->gpu.extents);
    peer->gpu = (struct gpu_keys){0};
    peer->gpu_wanted = false;
}

bool gpu_is_read(const struct peer *peer, uint64_t span)
{
    return peer->gpu.n > 0 && peer->gpu.known == peer->gpu.n && span <= peer->gpu.extent_bytes &&
           span <= tier_extent_bytes(peer->peers->config.tiers[TIER_GPU]);
}

const struct gpu_extent *gpu_extent_at(const struct peer *peer, uint64_t offset, uint64_t bytes)
{
    const struct gpu_keys *keys = &peer->gpu;
    const struct gpu_extent *extent;

    if (keys->extent_bytes == 0 || offset / keys->extent_bytes >= keys->known ||
        offset % keys->extent_bytes + bytes > keys->extent_bytes)
        return NULL;
    extent = &keys->extents[offset / keys->extent_bytes];
    return extent->rkey != NULL ? extent : NULL;
}

#endif
