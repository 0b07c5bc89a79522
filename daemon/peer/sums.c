#include "daemon/peer/sums.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "daemon/base/mem.h"

struct sums {
    const struct device *device;
    struct sums_gpu {
        pthread_mutex_t lock;
        struct device_lane *lane; /* NULL: not needed yet */
    } gpus[DEVICE_GPUS_MAX];
};

kvc_status sums_create(const struct device *device, struct sums **ret)
{
    struct sums *sums = mem_zalloc(sizeof(*sums));

    assert(device->lending != NULL);
    if (sums == NULL)
        return KVC_E_NO_MEMORY;
    sums->device = device;
    for (uint32_t i = 0; i < DEVICE_GPUS_MAX; i++)
        pthread_mutex_init(&sums->gpus[i].lock, NULL);
    *ret = sums;
    return KVC_OK;
}

void sums_destroy(struct sums *sums)
{
    if (sums == NULL)
        return;
    for (uint32_t i = 0; i < DEVICE_GPUS_MAX; i++) {
        sums->device->lending->lane_close(sums->gpus[i].lane);
        pthread_mutex_destroy(&sums->gpus[i].lock);
    }
    mem_free(sums);
}

/* Nothing is enqueued whose end would be told. */
static void done_cb(void *arg)
{
    (void)arg;
}

kvc_status sums_of(struct sums *sums, uint32_t gpu, const struct pack_layout *layout,
                   const struct pack_block *blocks, uint32_t n_blocks, uint64_t *cells)
{
    const struct device_lending *lending = sums->device->lending;
    struct sums_gpu *g = &sums->gpus[gpu];
    kvc_status status = KVC_OK;

    assert(gpu < DEVICE_GPUS_MAX && n_blocks <= KVC_CHUNK_BLOCKS);
    pthread_mutex_lock(&g->lock);
    if (g->lane == NULL)
        status = lending->lane_open(sums->device->state, gpu, done_cb, NULL, &g->lane);
    if (status == KVC_OK)
        status = lending->lane_sum(g->lane, layout, blocks, n_blocks);
    if (status == KVC_OK)
        memcpy(cells, lending->lane_cells(g->lane), n_blocks * sizeof(*cells));
    pthread_mutex_unlock(&g->lock);
    return status;
}
