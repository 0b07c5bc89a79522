/* The figures of the store against those of the model: levels, counters, slots of the tiers. */
#include <string.h>

#include "tests/lib/model.h"

typedef unsigned long long ull;

static void expect_figure(struct model *m, const char *name, uint64_t is, uint64_t low,
                          uint64_t high)
{
    model_expect(m, is >= low && is <= high, "%s is %llu and should be %llu to %llu", name, (ull)is,
                 (ull)low, (ull)high);
}

static void compare_tier(struct model *m, enum tier_kind t, const struct slots_count *count)
{
    const struct table_tier *tier = &table_header(m->table)->tiers[t];
    uint64_t used = 0, used_bytes = 0;

    for (uint32_t i = 0; i < m->n_slots[t]; i++) {
        if (m->seen[t][i].state == SLOT_FREE)
            continue;
        used++;
        used_bytes += table_extent(m->table, t, i / tier->slots_per_extent)->slot_bytes;
    }
    expect_figure(m, t == TIER_GPU ? "gpu bytes" : "host bytes", count->bytes, tier->bytes,
                  tier->bytes);
    expect_figure(m, t == TIER_GPU ? "used gpu slots" : "used host slots", count->used_slots, used,
                  used);
    expect_figure(m, t == TIER_GPU ? "used gpu bytes" : "used host bytes", count->used_bytes,
                  used_bytes, used_bytes);
}

static void compare_levels(struct model *m, const struct store_stats *stats)
{
    uint64_t in_state[SLOT_DOOMED + 1] = {0}, blocks = 0, owners = 0, leases = 0, ended = 0;
    uint64_t loads = 0, closing = 0, pinned = 0;

    for (uint32_t p = 0; p < m->n_parts; p++)
        for (uint32_t k = 0; k < MODEL_CHAINS * MODEL_CHAIN_KEYS; k++)
            pinned += m->pinned[p][k] != 0;

    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        for (uint32_t i = 0; i < m->n_slots[t]; i++) {
            const struct model_seen *s = &m->seen[t][i];

            in_state[s->state]++;
            if (s->state == SLOT_READY)
                blocks += t == TIER_GPU || !model_is_ready(m, s->part, s->key, TIER_GPU);
        }
        compare_tier(m, t, &stats->tier[t]);
    }
    for (uint32_t i = 0; i < MODEL_OWNERS; i++)
        owners += m->owners[i].life != LIFE_NONE;
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        leases += model_lease_lives(&m->leases[i]);
        ended += m->leases[i].used && !m->leases[i].ended && !model_lease_lives(&m->leases[i]);
    }
    for (uint32_t i = 0; i < MODEL_LOADS; i++) {
        loads += m->loads[i].live;
        closing += m->loads[i].used && !m->loads[i].live;
    }
    expect_figure(m, "filling slots", stats->filling_slots, in_state[SLOT_FILLING],
                  in_state[SLOT_FILLING]);
    expect_figure(m, "quarantined slots", stats->quarantined_slots, in_state[SLOT_QUARANTINE],
                  in_state[SLOT_QUARANTINE]);
    expect_figure(m, "blocks", stats->blocks, blocks, blocks);
    expect_figure(m, "owners", stats->owners, owners, owners);
    expect_figure(m, "leases", stats->leases, leases, leases + (m->ticked ? 0 : ended));
    expect_figure(m, "pinned blocks", stats->pinned_blocks, pinned, pinned);
    expect_figure(m, "open loads", stats->open_loads, loads, loads + closing);
}

/* Of loads whose word is written, and perhaps not looked at. */
static uint64_t closing_bytes(const struct model *m, enum tier_kind tier)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        for (uint32_t k = 0; m->loads[i].used && !m->loads[i].live && k < m->loads[i].n; k++)
            if (m->loads[i].places[k].tier == tier)
                bytes += m->parts[m->loads[i].places[k].part].layout.block_bytes;
    return bytes;
}

static uint64_t count_of(const struct histogram *h)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i <= HISTOGRAM_BOUNDS; i++)
        n += h->counts[i];
    return n;
}

static void compare_counters(struct model *m, const struct store_stats *stats)
{
    const struct store_stats *e = &m->expected;

    expect_figure(m, "published blocks", stats->published_blocks, e->published_blocks,
                  e->published_blocks);
    expect_figure(m, "skipped blocks", stats->skipped_blocks, e->skipped_blocks, e->skipped_blocks);
    expect_figure(m, "evictions", stats->evictions, e->evictions, e->evictions + m->maybe_evicted);
    expect_figure(m, "demotions", stats->demotions, e->demotions, e->demotions);
    expect_figure(m, "failed demotions", stats->failed_demotions, e->failed_demotions,
                  e->failed_demotions);
    expect_figure(m, "promotions", stats->promotions, e->promotions, e->promotions);
    for (enum tier_kind t = 0; t < TIER_COUNT; t++) {
        expect_figure(m, "evictions of a tier", stats->tier_evictions[t], e->tier_evictions[t],
                      e->tier_evictions[t] + m->maybe_evicted_from[t]);
        expect_figure(m, "bytes saved", stats->bytes_saved[t], e->bytes_saved[t],
                      e->bytes_saved[t]);
        expect_figure(m, "bytes moved", stats->bytes_moved[t], e->bytes_moved[t],
                      e->bytes_moved[t]);
        expect_figure(m, "bytes loaded", stats->bytes_loaded[t], e->bytes_loaded[t],
                      e->bytes_loaded[t] + m->maybe_loaded[t] + closing_bytes(m, t));
        expect_figure(m, "hits", stats->hits[t], e->hits[t], e->hits[t]);
    }
    expect_figure(m, "durations of demotions", count_of(&store_durations(m->store)->demotions),
                  e->demotions, e->demotions);
    expect_figure(m, "durations of promotions", count_of(&store_durations(m->store)->promotions),
                  e->promotions, e->promotions);
    expect_figure(m, "misses", stats->misses, e->misses, e->misses);
}

void model_compare_figures(struct model *m)
{
    struct store_stats stats;

    store_stats(m->store, &stats);
    compare_levels(m, &stats);
    compare_counters(m, &stats);
    m->expected.evictions = stats.evictions;
    memcpy(m->expected.tier_evictions, stats.tier_evictions, sizeof(stats.tier_evictions));
    memset(m->maybe_evicted_from, 0, sizeof(m->maybe_evicted_from));
    m->maybe_evicted = 0;
}
