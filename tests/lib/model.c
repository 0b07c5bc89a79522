/* The model's shapes, its making and its end, and plain questions about what is true. */
#include "tests/lib/model.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"

#define MIB (1ull << 20)
#define KIB 1024u

const struct model_shape model_shapes[] = {
    {.name = "two tiers",
     .budget = {4 * MIB, 6 * MIB},
     .tenants = 1,
     .share = UINT32_MAX,
     .slices = {{16 * KIB, 16 * KIB, 16 * KIB, 16 * KIB}, {30000, 100, 4, 9001}},
     .keys = 24,
     .copy_fails = 100,
     .copy_refused = 30},
    {.name = "two tenants",
     .budget = {8 * MIB, 8 * MIB},
     .tenants = 2,
     .share = 2,
     .slices = {{60 * KIB, 60 * KIB}, {17, 64 * KIB}},
     .keys = 20,
     .copy_fails = 50,
     .copy_refused = 10},
    {.name = "many chunks",
     .budget = {2 * MIB, 4 * MIB},
     .tenants = 1,
     .share = UINT32_MAX,
     .slices = {{1000, 1000, 2000}, {5 * KIB}},
     .keys = 150,
     .copy_fails = 50,
     .copy_refused = 10},
    {.name = "large blocks",
     .budget = {16 * MIB, 12 * MIB},
     .tenants = 1,
     .share = UINT32_MAX,
     .slices = {{100 * KIB, 28 * KIB}, {2 * 1024 * KIB, 900 * KIB}},
     .keys = 16,
     .copy_fails = 50,
     .copy_refused = 10},
    {.name = "gpu only",
     .budget = {4 * MIB, 0},
     .tenants = 1,
     .share = UINT32_MAX,
     .slices = {{60 * KIB}, {30 * KIB, 30 * KIB}},
     .keys = 20},
    {.name = "host only",
     .budget = {0, 4 * MIB},
     .tenants = 1,
     .share = UINT32_MAX,
     .slices = {{60 * KIB}, {30 * KIB, 31 * KIB}},
     .keys = 20},
    {.name = "copies fail",
     .budget = {4 * MIB, 4 * MIB},
     .tenants = 1,
     .share = UINT32_MAX,
     .slices = {{64 * KIB}, {63 * KIB}},
     .keys = 20,
     .copy_fails = 600,
     .copy_refused = 200},
    {.name = "two tenants, one memory",
     .budget = {8 * MIB, 6 * MIB},
     .tenants = 2,
     .share = UINT32_MAX,
     .moves = true,
     .slices = {{60 * KIB, 60 * KIB}, {17, 64 * KIB}},
     .keys = 20,
     .copy_fails = 50,
     .copy_refused = 10},
};
const uint32_t model_n_shapes = sizeof(model_shapes) / sizeof(model_shapes[0]);

/* ------------------------------------------------------------ questions */

/* A key carries its number; the rest is spread so that hashing has something to do. */
void model_key(uint32_t key, uint8_t bytes[KVC_KEY_BYTES])
{
    uint64_t z = (key + 1) * 0x9E3779B97F4A7C15ull;

    memset(bytes, 0xa5, KVC_KEY_BYTES);
    memcpy(bytes, &key, sizeof(key));
    memcpy(bytes + 8, &z, sizeof(z));
}

uint32_t model_part_of(const struct model *m, uint32_t id)
{
    for (uint32_t i = 0; i < m->n_parts; i++)
        if (m->parts[i].id == id)
            return i;
    return UINT32_MAX;
}

bool model_is_ready(const struct model *m, uint32_t part, uint32_t key, enum tier_kind tier)
{
    for (uint32_t i = 0; i < m->n_slots[tier]; i++) {
        const struct model_seen *seen = &m->seen[tier][i];

        if (seen->state == SLOT_READY && seen->part == part && seen->key == key)
            return true;
    }
    return false;
}

bool model_is_published(const struct model *m, uint32_t part, uint32_t key)
{
    return model_is_ready(m, part, key, TIER_GPU) || model_is_ready(m, part, key, TIER_HOST);
}

bool model_is_leased(const struct model *m, uint32_t part, uint32_t key, bool over_too)
{
    for (uint32_t i = 0; i < MODEL_LEASES; i++) {
        const struct model_lease *l = &m->leases[i];

        if (!model_lease_lives(l) && !(over_too && l->used && !l->ended))
            continue;
        for (uint32_t p = 0; p < l->n_parts; p++)
            for (uint32_t k = 0; k < l->n_keys && l->parts[p] == part; k++)
                if (l->keys[k] == key && !l->gone[p][k] &&
                    model_needs(&m->parts[part], k, l->n_keys))
                    return true;
    }
    return false;
}

struct model_place model_place_of(struct model *m, const struct store_location *location,
                                  uint32_t part, uint32_t key)
{
    const struct table_tier *tier;
    struct model_place place = {.tier = location->tier,
                                .generation = location->generation,
                                .offset = location->offset,
                                .part = part,
                                .key = key};
    uint64_t slot_bytes = m->parts[part].layout.slot_bytes, at;
    uint32_t extent;

    model_expect(m, location->tier < TIER_COUNT, "a location in tier %u", location->tier);
    tier = &table_header(m->table)->tiers[location->tier];
    model_expect(m, location->offset + slot_bytes <= tier->bytes, "a location behind the tier");
    extent = (uint32_t)(location->offset / tier->extent_bytes);
    at = location->offset % tier->extent_bytes;
    model_expect(m, at % slot_bytes == 0, "a location that is no slot's start");
    model_expect(m, table_extent(m->table, place.tier, extent)->slot_bytes == slot_bytes,
                 "a location in an extent of another slot size");
    model_expect(
        m, table_extent(m->table, place.tier, extent)->tenant == m->tenants[m->parts[part].tenant],
        "a location in another tenant's extent");
    place.slot = extent * tier->slots_per_extent + (uint32_t)(at / slot_bytes);
    return place;
}

/* ------------------------------------------------------------ events */

static void queue_event(struct model *m, const struct model_event *event)
{
    model_expect(m, m->n_events < MODEL_EVENTS, "more events than objects");
    m->events[m->n_events++] = *event;
}

static uint32_t find_owner(struct model *m, const struct owner *owner)
{
    for (uint32_t i = 0; i < MODEL_OWNERS; i++)
        if (m->owners[i].life != LIFE_NONE && m->owners[i].owner == owner)
            return i;
    model_fail(m, "an event of nobody");
}

static void on_save_done(void *ctx, struct owner *owner, const struct save_outcome *outcome)
{
    queue_event(ctx, &(struct model_event){.owner = find_owner(ctx, owner), .outcome = *outcome});
}

static void on_room(void *ctx)
{
    (void)ctx;
}

static void on_owner_free(void *ctx, struct owner *owner)
{
    queue_event(ctx, &(struct model_event){.freed = true, .owner = find_owner(ctx, owner)});
}

/* ------------------------------------------------------------ making it */

static void make_chains(struct model *m)
{
    uint32_t next = 0;

    m->n_chain_keys = 2 * m->shape->keys < MODEL_CHAIN_KEYS ? 2 * m->shape->keys : MODEL_CHAIN_KEYS;
    for (uint32_t c = 0; c < MODEL_CHAINS; c++) {
        uint32_t shared = c ? model_below(m, m->n_chain_keys) : 0, other = model_below(m, c);

        if (m->shape->apart)
            shared = 0;
        for (uint32_t i = 0; i < m->n_chain_keys; i++)
            m->chains[c][i] = i < shared ? m->chains[other][i] : next++;
    }
}

static void make_parts(struct model *m)
{
    m->n_parts = m->shape->tenants * MODEL_TENANT_PARTS;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        struct model_part *p = &m->parts[i];
        uint32_t kind = i % MODEL_TENANT_PARTS, n = 0;
        const uint32_t *slices = m->shape->slices[kind == 1 || kind == 4];

        p->tenant = i / MODEL_TENANT_PARTS;
        p->namespace_ = kind == 2 || kind == 3;
        p->rule = kind == 3 ? STORE_RULE_WINDOW : kind == 4 ? STORE_RULE_STATE : STORE_RULE_FULL;
        p->window = kind == 3 ? MODEL_WINDOW * MODEL_TOKENS + 1 : 0;
        p->needed = kind == 3 ? MODEL_WINDOW : kind == 4 ? 1 : UINT32_MAX;
        memset(p->digest, 0x40 + (int)p->namespace_, sizeof(p->digest));
        while (n < MODEL_SLICES && slices[n]) {
            p->slice_bytes[n] = slices[n];
            n++;
        }
        p->layout.slice_offsets = p->slice_offsets;
        ck_assert_int_eq(pack_layout_init(&p->layout, p->slice_bytes, n), KVC_OK);
    }
}

static void make_store(struct model *m)
{
    struct store_config config = {
        .budget = {m->shape->budget[TIER_GPU], m->shape->budget[TIER_HOST]},
        .boot_epoch = 1,
        .tenant_share = m->shape->share,
        .tuning.lease_ms = KVC_LEASE_MS_DEFAULT,
        .lease_ms_max = KVC_LEASE_MS_MAX,
        .tuning.save_proof_ms = KVC_SAVE_PROOF_MS,
        .tuning.promotion_ms = KVC_PROMOTION_MS,
        .tuning.clean_low = 100,
        .tuning.clean_high = 250,
        .tuning.moving_bytes_max = 1 * MIB,
        .mover_ops = &model_mover,
        .mover = m,
        .events = {.ctx = m,
                   .save_done = on_save_done,
                   .room = on_room,
                   .owner_free = on_owner_free,
                   .extents = model_on_extents,
                   .event = model_on_event},
        .renew_ops = m->shape->moves ? &model_renewer : NULL,
        .renewer = m,
    };

    ck_assert_int_eq(store_create(&config, &m->store), KVC_OK);
    m->table = store_table(m->store);
    for (uint32_t i = 0; i < m->shape->tenants; i++) {
        char name[8] = {'t', (char)('a' + i)};

        ck_assert_int_eq(store_tenant(m->store, name, UINT32_MAX, &m->tenants[i]), KVC_OK);
    }
}

/* By its name: where a shape lies is another place in each process. */
static uint32_t shape_number(const struct model_shape *shape)
{
    uint32_t number = 0;

    for (uint32_t i = 0; i < model_n_shapes; i++)
        if (strcmp(model_shapes[i].name, shape->name) == 0)
            return i;
    for (const char *at = shape->name; *at; at++)
        number = number * 31 + (uint8_t)*at;
    return number;
}

struct model *model_create(const struct model_shape *shape, uint64_t seed)
{
    struct model *m = calloc(1, sizeof(*m));

    ck_assert_ptr_nonnull(m);
    clock_stop();
    fault_arm("block.seed", 0, 1);
    m->shape = shape;
    m->seed = seed;
    /* Not a multiple of the generator's own step, or seeds would be pieces of one sequence. */
    m->random = (seed << 32 | shape_number(shape)) * 0xD1342543DE82EF95ull;
    make_chains(m);
    make_parts(m);
    make_store(m);
    for (uint32_t t = 0; t < TIER_COUNT; t++) {
        const struct table_tier *tier = &table_header(m->table)->tiers[t];

        ck_assert_uint_le(tier->extents, MODEL_EXTENTS);
        m->n_slots[t] = tier->extents * tier->slots_per_extent;
        m->memory[t] = calloc(1, shape->budget[t] + 1);
        m->seen[t] = calloc(m->n_slots[t] + 1, sizeof(*m->seen[t]));
        ck_assert(m->memory[t] && m->seen[t]);
    }
    for (uint32_t t = 0; t < shape->tenants; t++)
        model_owner_open(m, t, 1, true);
    model_end(m);
    return m;
}

static void end_moves(struct model *m)
{
    while (model_n_moves(m) > 0) {
        model_move_step(m, true);
        model_end(m);
    }
}

/* Those that outlived their workers. */
static void end_daemon_copies(struct model *m)
{
    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        for (uint32_t c = 0; m->saves[i].used && c < m->saves[i].n_chunks; c++)
            if (m->saves[i].chunks[c].live)
                model_chunk_finish(m, &m->saves[i], &m->saves[i].chunks[c], true);
    for (uint32_t i = 0; i < MODEL_LOADS; i++)
        if (m->loads[i].live)
            model_load_finish(m, &m->loads[i]);
    model_end(m);
}

/* Every worker finishes what it does and goes; then nothing may be left but clean blocks. */
static void end_everything(struct model *m)
{
    struct store_stats stats;

    for (uint32_t i = 0; i < MODEL_SAVES; i++)
        if (m->saves[i].used && !m->saves[i].sealed)
            model_save_seal(m, &m->saves[i]);
    model_end(m);
    end_moves(m);
    for (uint32_t i = 0; i < MODEL_OWNERS; i++) {
        if (m->owners[i].life == LIFE_OPEN)
            model_owner_disconnect(m, &m->owners[i], LIFE_DEAD);
        model_end(m);
        if (m->owners[i].life == LIFE_DEAD || m->owners[i].life == LIFE_LOST)
            model_owner_gone(m, &m->owners[i]);
        model_end(m);
    }
    end_daemon_copies(m);
    model_begin(m, "the last tick");
    clock_advance(CLOCK_S_US);
    store_tick(m->store);
    m->ticked = true;
    model_compare(m, true);
    end_moves(m);
    while (model_renew_step(m))
        ;
    model_compare(m, true);
    store_stats(m->store, &stats);
    model_expect(m,
                 stats.owners == 0 && stats.leases == 0 && stats.open_loads == 0 &&
                     stats.filling_slots == 0 && stats.quarantined_slots == 0,
                 "at the end there are %llu owners, %llu leases, %llu loads, %llu filling and %llu "
                 "quarantined slots",
                 (unsigned long long)stats.owners, (unsigned long long)stats.leases,
                 (unsigned long long)stats.open_loads, (unsigned long long)stats.filling_slots,
                 (unsigned long long)stats.quarantined_slots);
}

void model_destroy(struct model *m)
{
    end_everything(m);
    store_destroy(m->store);
    for (uint32_t t = 0; t < TIER_COUNT; t++) {
        free(m->memory[t]);
        free(m->seen[t]);
    }
    free(m);
}
