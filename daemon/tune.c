#include "daemon/tune.h"

#include <string.h>

#include "daemon/store/operate.h"

struct store_tuning tune_store(const struct config *config)
{
    return (struct store_tuning){
        .lease_ms = (uint32_t)config->lease_ms,
        .save_proof_ms = (uint32_t)config->save_proof_ms,
        .promotion_ms = (uint32_t)config->promotion_ms,
        .clean_low = (uint32_t)config->clean_low,
        .clean_high = (uint32_t)config->clean_high,
        .moving_bytes_max = config->moving_bytes,
    };
}

kvc_status tune_quotas(const struct config *config, struct store *store)
{
    struct store_quota_rule rules[CONFIG_QUOTAS_MAX];
    struct config_quota quotas[CONFIG_QUOTAS_MAX];
    char why[CONFIG_WHY_MAX];
    uint32_t n = 0;

    /* It was checked when it was set. */
    (void)config_quotas_parse(config->namespace_quota, quotas, &n, why);
    for (uint32_t i = 0; i < n; i++) {
        rules[i] = (struct store_quota_rule){
            .all = quotas[i].all,
            .quota = {{quotas[i].gpu_bytes, quotas[i].host_bytes}, quotas[i].leases},
        };
        memcpy(rules[i].digest, quotas[i].digest, sizeof(rules[i].digest));
    }
    return store_quota_rules(store, rules, n);
}

void tune_copies(const struct config *config, const struct device *device)
{
    if (device->lending != NULL)
        device->lending->limit_thread_blocks(device->state, (uint32_t)config->copy_thread_blocks);
}

static bool is_named(const char *setting)
{
    return strcmp(setting, "none") != 0;
}

bool tune_has_peers(const struct config *config)
{
    return is_named(config->peers) || is_named(config->peer_listen);
}

struct peers_config tune_peers(const struct config *config)
{
    return (struct peers_config){
        .list = config->peers,
        .listen = config->peer_listen,
        .secret_file = config->peer_secret_file,
        .tenant = config->peer_tenant,
        .directory = config->directory,
        .directory_ms = (uint32_t)config->directory_ms,
        .transfer = (enum peers_transfer)config->transfer,
        .ucx = config->ucx,
        .silence_ms = (uint32_t)config->peer_silence_ms,
        .bytes_each = config->peer_bytes,
        .bytes_all = config->peers_bytes,
    };
}
