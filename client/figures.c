/* The daemon's figures by name, for programs that are linked with the library only. */
#include <stddef.h>

#include "client/admin.h"
#include "client/client.h"

#define FIGURE(name, field)                                                                        \
    {                                                                                              \
        name, offsetof(struct admin_stats, field)                                                  \
    }
#define PLAIN(field) FIGURE(#field, field)
#define TIER(name, at, field)                                                                      \
    {                                                                                              \
        "tiers." name "." #field, offsetof(struct admin_stats, tiers) +                            \
                                      (at) * sizeof(struct admin_tier) +                           \
                                      offsetof(struct admin_tier, field)                           \
    }
#define TIER_FIGURES(name, at)                                                                     \
    TIER(name, at, bytes), TIER(name, at, used_bytes), TIER(name, at, slots),                      \
        TIER(name, at, used_slots), TIER(name, at, evictions), TIER(name, at, bytes_saved),        \
        TIER(name, at, bytes_loaded), TIER(name, at, populated_bytes)
#define HITS(name, at)                                                                             \
    {                                                                                              \
        "hits." name, offsetof(struct admin_stats, tiers) + (at) * sizeof(struct admin_tier) +     \
                          offsetof(struct admin_tier, hits)                                        \
    }

static const struct {
    const char *name;
    size_t offset;
} table[] = {
    PLAIN(boot_epoch),
    PLAIN(uptime_us),
    TIER_FIGURES("gpu", 0),
    TIER_FIGURES("host", 1),
    PLAIN(blocks),
    PLAIN(sessions),
    PLAIN(leases),
    PLAIN(open_loads),
    PLAIN(filling_slots),
    PLAIN(quarantined_slots),
    PLAIN(pinned_blocks),
    PLAIN(driver_calls),
    PLAIN(driver_call_us),
    PLAIN(hanging_gpus),
    PLAIN(lost_gpus),
    PLAIN(copy_thread_blocks),
    PLAIN(limited_lookups),
    PLAIN(resized_extents),
    PLAIN(moved_extents),
    PLAIN(kept_extents),
    PLAIN(lost_extents),
    PLAIN(waiting_extents),
    PLAIN(moving_blocks),
    HITS("gpu", 0),
    HITS("host", 1),
    FIGURE("hits.peer", hits_peer),
    PLAIN(misses),
    PLAIN(evictions),
    PLAIN(demotions),
    PLAIN(failed_demotions),
    PLAIN(promotions),
    PLAIN(oldest_op_us),
    PLAIN(quarantine_oldest_us),
    PLAIN(saves),
    PLAIN(aborted_saves),
    PLAIN(published_blocks),
    PLAIN(skipped_blocks),
    PLAIN(admitted_blocks),
    PLAIN(admitted_at_once),
    PLAIN(checksum_failures),
    PLAIN(stale_completions),
    PLAIN(bad_packets),
    PLAIN(refused_requests),
    PLAIN(closing_fds),
    PLAIN(stuck_fds),
    PLAIN(left_open_fds),
    PLAIN(cpu_us),
    PLAIN(cpu_system_us),
};
#define N_FIGURES ((uint32_t)(sizeof(table) / sizeof(table[0])))

kvc_status kvc_figures(kvc_client *client, kvc_figure *figures, uint32_t max, uint32_t *n)
{
    struct admin_stats stats;
    kvc_status status = admin_stats(client, &stats);

    if (status != KVC_OK)
        return status;
    if (n == NULL || (figures == NULL && max > 0))
        return rpc_fail(&client->rpc, KVC_E_INVALID, n == NULL ? "n" : "figures", "NULL");
    *n = 0;
    for (uint32_t i = 0; i < N_FIGURES; i++) {
        const uint64_t *value = (const void *)((const char *)&stats + table[i].offset);

        if (*value == ADMIN_UNKNOWN)
            continue;
        if (*n < max)
            figures[*n] = (kvc_figure){table[i].name, *value};
        ++*n;
    }
    return KVC_OK;
}
