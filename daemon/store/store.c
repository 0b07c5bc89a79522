#include "daemon/store/store.h"

#include <assert.h>
#include <stdio.h>
#include <sys/random.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/state.h"
#include "daemon/store/claim.h"
#include "daemon/store/event.h"
#include "daemon/store/flush.h"
#include "daemon/store/lease.h"
#include "daemon/store/pin.h"
#include "daemon/store/proof.h"
#include "daemon/store/room.h"
#include "daemon/store/save.h"

/* Copies that one call starts; what is due then waits for store_tick, which is due at once. */
#define SETTLE_STEPS 64u

#undef store_refuse /* defined for analysers of other files */
#undef store_refuse_at

kvc_status store_refuse(struct refusal *why, kvc_status status, const char *field,
                        const char *detail)
{
    return store_refuse_at(why, status, NULL, 0, field, detail);
}

kvc_status store_refuse_at(struct refusal *why, kvc_status status, const char *list, uint32_t i,
                           const char *field, const char *detail)
{
    if (!why)
        return status;
    if (list)
        snprintf(why->field, sizeof(why->field), "%s[%u]%s%s", list, i, field ? "." : "",
                 field ? field : "");
    else
        snprintf(why->field, sizeof(why->field), "%s", field);
    snprintf(why->detail, sizeof(why->detail), "%s", detail);
    return status;
}

void store_settle(struct store *store)
{
    uint64_t now = clock_now_us();
    uint32_t steps = SETTLE_STEPS;
    struct partition *partition;

    assert(!store->unlisted);
    if (now > store->last_use)
        store->last_use = now;
    while (steps > 0 && (partition = list_first(&store->unbalanced, struct partition, balance))) {
        room_balance(partition, &steps);
        /* What it did itself calls for no second look, but what it could not do for the next. */
        list_remove(&partition->balance);
        if (steps == 0)
            list_push_back(&store->unbalanced, &partition->balance);
    }
}

static kvc_status make_parts_of(struct store *store)
{
    const struct store_config *config = &store->config;
    kvc_status status = table_create(config->budget, config->boot_epoch, &store->table);

    if (status != KVC_OK)
        return status;
    for (enum tier_kind tier = 0; tier < TIER_COUNT && status == KVC_OK; tier++) {
        status = slots_create(store->table, tier, &store->slots[tier]);
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            if (table_header(store->table)->tiers[tier].extents)
                store->records[tier] = table_slot(store->table, tier, 0);
        if (status != KVC_OK)
            break;
        store->failing[tier] =
            mem_array(slots_extents(store->slots[tier]) / 64 + 1, sizeof(uint64_t));
        store->failed[tier] =
            mem_array(slots_extents(store->slots[tier]) / 64 + 1, sizeof(uint64_t));
        if (!store->failing[tier] || !store->failed[tier])
            status = KVC_E_NO_MEMORY;
    }
    if (status == KVC_OK)
        status = blocks_create(store->table, &store->blocks);
    if (status != KVC_OK)
        return status;
    store->partitions = mem_array(TABLE_PARTS, sizeof(struct partition *));
    store->usages = mem_array(TABLE_NAMESPACES, sizeof(struct usage *));
    store->family_next = mem_array(TABLE_PARTS, sizeof(uint32_t));
    if (!store->partitions || !store->usages || !store->family_next)
        return KVC_E_NO_MEMORY;
    if (getrandom(&store->hash_seed, sizeof(store->hash_seed), 0) != sizeof(store->hash_seed)) {
        log_error("store", "no random numbers: %m");
        return KVC_E_SYSTEM;
    }
    return KVC_OK;
}

kvc_status store_create(const struct store_config *config, struct store **ret)
{
    struct table_tier gpu, host;
    struct store *store;
    kvc_status status;

    table_tier_geometry(config->budget[TIER_GPU], &gpu);
    table_tier_geometry(config->budget[TIER_HOST], &host);
    if (gpu.extents == 0 && host.extents == 0) {
        log_error("store", "no room in either tier gpu_bytes=%llu host_bytes=%llu",
                  (unsigned long long)config->budget[TIER_GPU],
                  (unsigned long long)config->budget[TIER_HOST]);
        return KVC_E_INVALID;
    }
    store = mem_zalloc(sizeof(*store));
    if (!store)
        return KVC_E_NO_MEMORY;
    store->config = *config;
    store->last_use = clock_now_us();
    list_init(&store->classes);
    list_init(&store->unbalanced);
    list_init(&store->families);
    list_init(&store->used_families);
    list_init(&store->claims);
    list_init(&store->claimants);
    list_init(&store->ending);
    store->releases = LEASE_RELEASES;
    list_init(&store->owners);
    list_init(&store->freed);
    list_init(&store->leaving);
    list_init(&store->saves);
    list_init(&store->ended);
    list_init(&store->reports);
    list_init(&store->words);
    list_init(&store->young);
    list_init(&store->old);
    list_init(&store->moves);
    status = make_parts_of(store);
    if (status != KVC_OK) {
        store_destroy(store);
        return status;
    }
    *ret = store;
    return KVC_OK;
}

void store_destroy(struct store *store)
{
    struct owner *owner;

    if (!store)
        return;
    assert(list_empty(&store->moves));
    while ((owner = list_first(&store->owners, struct owner, link)))
        owner_destroy(owner);
    while ((owner = list_first(&store->freed, struct owner, link)))
        owner_destroy(owner);
    lease_forget_ending(store);
    claim_forget_all(store);
    partition_destroy_all(store);
    usage_destroy_all(store);
    family_destroy_all(store);
    mem_free(store->quota_rules);
    handles_free(&store->sessions);
    handles_free(&store->leases);
    expiry_free(&store->lease_ends);
    pin_forget_all(store);
    mem_free(store->partitions);
    mem_free(store->family_next);
    blocks_destroy(store->blocks);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        slots_destroy(store->slots[tier]);
        mem_free(store->failing[tier]);
        mem_free(store->failed[tier]);
    }
    table_destroy(store->table);
    mem_free(store);
}

/* Leases and saves keep the times that they were given; balances are looked at with the next tick.
 */
void store_tune(struct store *store, const struct store_tuning *tuning)
{
    store->config.tuning = *tuning;
    room_all_changed(store);
    store_settle(store);
}

void store_look_at_extent(const struct store *store, enum tier_kind tier, uint32_t extent,
                          struct slots_extent *look)
{
    slots_look(store->slots[tier], extent, look);
}

const struct store_durations *store_durations(const struct store *store)
{
    return &store->durations;
}

const struct table *store_table(const struct store *store)
{
    return store->table;
}

void store_nudge(struct store *store, struct owner *owner)
{
    proof_look(owner);
    store_settle(store);
    event_deliver(store);
}

void store_look(struct store *store, struct owner *owner)
{
    if (!proof_look_ahead(owner))
        return;
    store_settle(store);
    event_deliver(store);
}

/* After failed copies nothing but time tells that it is worth to try again. */
static bool is_pause_over(const struct store *store, uint64_t now)
{
    return store->moves_paused != 0 && now >= store->moves_paused;
}

void store_tick(struct store *store)
{
    uint64_t now = clock_now_us();

    /* First: what is published now is seen before it may go. */
    claim_tick(store, now);
    proof_tick(store, now);
    save_tick(store, now);
    lease_tick(store, now);
    pin_tick(store, now);
    flush_tick(store);
    owner_tick(store);
    if (is_pause_over(store, now)) {
        store->moves_paused = 0;
        room_all_changed(store);
    }
    store_settle(store);
    event_deliver(store);
}

uint64_t store_next_wake(const struct store *store)
{
    uint64_t now = clock_now_us(), wake = UINT64_MAX;
    const uint64_t due[] = {
        proof_next_wake(store), save_next_wake(store),
        lease_next_wake(store), pin_next_wake(store),
        claim_next_wake(store), store->moves_paused ? store->moves_paused : UINT64_MAX};

    if (event_is_due(store) || !list_empty(&store->unbalanced) || store->stale > 0 ||
        !list_empty(&store->leaving))
        return 0;
    for (size_t i = 0; i < sizeof(due) / sizeof(due[0]); i++)
        wake = due[i] < wake ? due[i] : wake;
    if (wake == UINT64_MAX)
        return UINT64_MAX;
    return wake > now ? wake - now : 0;
}

void store_count_hits(const struct store *store, uint64_t counts[TIER_COUNT + 1])
{
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
        counts[tier] = store->stats.hits[tier];
    counts[TIER_COUNT] = store->stats.misses;
}

void store_stats(const struct store *store, struct store_stats *stats)
{
    const struct save *quarantined = list_first(&store->ended, struct save, queue);
    uint64_t now = clock_now_us(), oldest = proof_oldest(store);

    *stats = store->stats;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        slots_count(store->slots[tier], &stats->tier[tier]);
        stats->metadata_bytes += stats->tier[tier].used_slots * sizeof(struct table_slot);
    }
    stats->metadata_bytes += blocks_bytes(store->blocks);
    stats->blocks = blocks_count(store->blocks) - store->in_state[SLOT_FILLING] - store->stale;
    stats->owners = store->sessions.count;
    stats->leases = store->leases.count;
    stats->pinned_blocks = store->pins.count;
    stats->open_loads = store->open_loads;
    stats->moving_blocks = store->in_state[SLOT_MOVING];
    stats->filling_slots = store->in_state[SLOT_FILLING];
    stats->quarantined_slots = store->in_state[SLOT_QUARANTINE];
    stats->waiting_extents = claim_waiting(store);
    stats->oldest_op_us = oldest == UINT64_MAX ? 0 : now - oldest;
    stats->quarantine_oldest_us = quarantined ? now - quarantined->queued : 0;
}
