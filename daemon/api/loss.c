#include "daemon/api/loss.h"

#include "daemon/api/session.h"
#include "daemon/base/mem.h"

struct loss {
    struct api *api;
    uv_async_t found;
    bool known[DEVICE_GPUS_MAX];
    uint32_t count;
};

/* On any thread. */
static void lost(void *arg)
{
    struct loss *loss = arg;

    uv_async_send(&loss->found);
}

static void give_up(struct loss *loss, uint32_t gpu)
{
    const struct api *api = loss->api;
    uint32_t first, n;

    tier_on_gpu(api->tiers[TIER_GPU], gpu, &first, &n);
    store_fail_extents(api->store, TIER_GPU, first, n);
}

static void found_cb(uv_async_t *async)
{
    struct loss *loss = container_of(async, struct loss, found);
    const struct device *device = loss->api->config.device;

    for (uint32_t i = 0; i < device->n_gpus; i++) {
        if (loss->known[i] || !device->is_lost(device->state, i))
            continue;
        loss->known[i] = true;
        loss->count++;
        give_up(loss, i);
    }
}

kvc_status loss_create(struct api *api, struct loss **ret)
{
    const struct device *device = api->config.device;
    struct loss *loss;

    if (device->watch == NULL)
        return KVC_OK;
    loss = mem_zalloc(sizeof(*loss));
    if (loss == NULL)
        return KVC_E_NO_MEMORY;
    loss->api = api;
    if (uv_async_init(api->config.loop, &loss->found, found_cb) < 0) {
        mem_free(loss);
        return KVC_E_NO_MEMORY;
    }
    uv_unref((uv_handle_t *)&loss->found);
    device->watch(device->state, lost, loss);
    uv_async_send(&loss->found); /* for what was found before */
    *ret = loss;
    return KVC_OK;
}

uint32_t loss_count(const struct loss *loss)
{
    return loss != NULL ? loss->count : 0;
}

static void found_closed(uv_handle_t *handle)
{
    mem_free(container_of((uv_async_t *)handle, struct loss, found));
}

void loss_close(struct loss *loss)
{
    const struct device *device;

    if (loss == NULL)
        return;
    device = loss->api->config.device;
    device->watch(device->state, NULL, NULL);
    uv_close((uv_handle_t *)&loss->found, found_closed);
}
