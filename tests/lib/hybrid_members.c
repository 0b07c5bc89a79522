#include "tests/lib/hybrid_members.h"

#include <check.h>
#include <string.h>

#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define TOKENS 16u
#define BLOCKS 128u // of each group's KV cache
#define PROMPT HYBRID_PROMPT
#define LAYERS HYBRID_LAYERS
#define RANKS  HYBRID_RANKS

static const uint32_t slice_bytes[GROUPS][LAYERS] = {
    {2048, 2048, 512, 36}, {2048, 2048, 512, 36}, {9000, 1000, 64, 4096}};
static const uint32_t first_ids[GROUPS] = {8, 50, 90};

// What each process has for itself: the scheduler no KV cache, a worker no other rank's parts.
static struct process {
    kvc_client *client;
    uint32_t rank;
    struct kv kv[GROUPS];
    kvc_part parts[RANKS * GROUPS]; // of a worker, its own groups only
    kvc_lease leases[GROUPS];
    uint64_t saves[GROUPS];
    uint8_t keys[PROMPT * KVC_KEY_BYTES];
} me;

// ------------------------------------------------------------ in every process

kvc_client *hybrid_connect(const char *socket, kvc_role role)
{
    const kvc_options options = {.socket = socket,
                                 .role = role,
                                 .connect_ms = wait_patient_ms(HYBRID_MS),
                                 .lookup_ms = wait_patient_ms(HYBRID_MS),
                                 .save_ms = wait_patient_ms(HYBRID_MS),
                                 .load_ms = wait_patient_ms(HYBRID_MS)};
    kvc_client *client;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    return client;
}

static kvc_part_desc describe(uint32_t rank, uint32_t group)
{
    static const uint8_t family[16] = "a model";
    kvc_part_desc desc = {.block_tokens = TOKENS, .family = family, .n_slices = LAYERS};

    desc.namespace_digest[0] = (uint8_t)(1 + rank);
    desc.namespace_digest[1] = (uint8_t)(1 + group);
    desc.rule = group == HYBRID_SLIDING ? KVC_RULE_WINDOW
                : group == HYBRID_STATE ? KVC_RULE_STATE
                                        : KVC_RULE_FULL;
    desc.window = group == HYBRID_SLIDING ? HYBRID_WINDOW * TOKENS + 1 : 0;
    return desc;
}

void hybrid_in_close_up(void *arg)
{
    (void)arg;
    kvc_close(me.client);
    for (uint32_t g = 0; g < GROUPS; g++)
        if (me.kv[g].memory)
            kv_free(&me.kv[g]);
}

// ------------------------------------------------------------ in the scheduler

void hybrid_in_open_scheduler(void *arg)
{
    const struct hybrid_open *a = arg;

    me.client = hybrid_connect(a->socket, KVC_ROLE_SCHEDULER);
    kv_keys(1, 0, PROMPT, me.keys);
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            kvc_part_desc desc = describe(r, g);
            kvc_slice slices[LAYERS] = {0};

            for (uint32_t s = 0; s < LAYERS; s++)
                slices[s].bytes = slice_bytes[g][s];
            desc.slices = slices;
            ck_assert_int_eq(kvc_register(me.client, &desc, &me.parts[r * GROUPS + g]), KVC_OK);
        }
}

void hybrid_in_look_up(void *arg)
{
    struct hybrid_lease *a = arg;

    a->status =
        kvc_lookup(me.client, a->request, me.parts, RANKS * GROUPS, me.keys, PROMPT, 0, &a->lease);
}

void hybrid_in_release(void *arg)
{
    struct hybrid_lease *a = arg;

    a->status = kvc_release(me.client, a->lease.id);
}

void hybrid_in_extend(void *arg)
{
    struct hybrid_lease *a = arg;

    a->status = kvc_extend(me.client, a->lease.id, 0, NULL);
}

void hybrid_in_reset(void *arg)
{
    uint64_t *total = arg, blocks;

    *total = 0;
    for (uint32_t p = 0; p < RANKS * GROUPS; p++) {
        ck_assert_int_eq(kvc_flush(me.client, me.parts[p], &blocks), KVC_OK);
        *total += blocks;
    }
}

void hybrid_in_pin(void *arg)
{
    uint32_t *n = arg, count, total = 0;

    for (uint32_t p = 0; p < RANKS * GROUPS; p++) {
        ck_assert_int_eq(kvc_pin(me.client, me.parts[p], me.keys, *n, 60, &count), KVC_OK);
        total += count;
    }
    *n = total;
}

// ------------------------------------------------------------ in a worker

static void register_parts(void)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        ck_assert_int_eq(kvc_register(me.client, &me.kv[g].desc, &me.parts[g]), KVC_OK);
}

// What KVC_E_STALE asks for; the engine need not remember how its parts were described.
void hybrid_in_register_again(void *arg)
{
    kvc_part none = 77;

    (void)arg;
    ck_assert_int_eq(kvc_register(me.client, NULL, &none), KVC_E_UNKNOWN);
    for (uint32_t g = 0; g < GROUPS; g++) {
        kvc_part before = me.parts[g];

        ck_assert_int_eq(kvc_register(me.client, NULL, &me.parts[g]), KVC_OK);
        ck_assert_uint_eq(me.parts[g], before);
    }
}

void hybrid_in_open_worker(void *arg)
{
    const struct hybrid_open *a = arg;

    me.client = hybrid_connect(a->socket, KVC_ROLE_WORKER);
    me.rank = a->rank;
    kv_keys(1, 0, PROMPT, me.keys);
    for (uint32_t g = 0; g < GROUPS; g++) {
        kvc_part_desc desc = describe(me.rank, g), *own = &me.kv[g].desc;

        kv_init(&me.kv[g], slice_bytes[g], LAYERS, BLOCKS);
        memcpy(own->namespace_digest, desc.namespace_digest, KVC_NAMESPACE_BYTES);
        own->block_tokens = desc.block_tokens;
        own->family = desc.family;
        own->rule = desc.rule;
        own->window = desc.window;
    }
    register_parts();
}

static uint64_t seed_of(uint32_t group, uint32_t block)
{
    return me.rank * 1000 + group * 100 + block + 1;
}

// Blocks that the group does not have when the prompt is at `end` are null blocks: those that have
// slid out of the window, and states but that at the boundary.
static void blocks_of(uint32_t group, uint32_t first, uint32_t n, uint32_t end, uint32_t *blocks)
{
    uint32_t kept = group == HYBRID_SLIDING ? HYBRID_WINDOW : group == HYBRID_STATE ? 1 : PROMPT;

    for (uint32_t i = 0; i < n; i++)
        blocks[i] = first + i + kept < end ? KVC_NO_BLOCK : first_ids[group] + first + i;
}

// save_kv_layer of one group; me.saves[g] is 0 before the first layer.
static kvc_status save_layer(uint32_t g, uint32_t layer, struct step *step)
{
    uint32_t blocks[PROMPT];
    uint8_t states[PROMPT];
    const kvc_save_entry entry = {me.parts[g], me.keys + step->first * KVC_KEY_BYTES, blocks,
                                  step->n, states};
    const kvc_save_args args = {.entries = &entry,
                                .n_entries = 1,
                                .first_slice = layer,
                                .n_slices = 1,
                                .more_of = me.saves[g]};
    kvc_status status;

    blocks_of(g, step->first, step->n, step->first + step->n, blocks);
    for (uint32_t i = 0; i < step->n; i++)
        kv_fill(&me.kv[g], first_ids[g] + step->first + i, seed_of(g, step->first + i));
    status = kvc_save(me.client, &args, &me.saves[g]);
    for (uint32_t i = 0; status == KVC_OK && layer == 0 && i < step->n; i++)
        step->skipped += states[i] == KVC_KEY_SKIPPED && blocks[i] != KVC_NO_BLOCK;
    return status;
}

void hybrid_in_begin_step(void *arg)
{
    struct step *step = arg;

    step->skipped = 0;
    for (uint32_t g = 0; g < GROUPS; g++)
        me.saves[g] = 0;
    for (uint32_t layer = 0; layer < step->layers; layer++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            if (layer == 0 || me.saves[g] != 0)
                ck_assert_int_eq(save_layer(g, layer, step), KVC_OK);
            step->nothing[g] = me.saves[g] == 0;
        }
}

void hybrid_in_next_layer(void *arg)
{
    struct hybrid_layer *a = arg;

    a->status = KVC_OK;
    for (uint32_t g = 0; g < GROUPS; g++)
        if (a->status == KVC_OK && (a->layer == 0 || me.saves[g] != 0))
            a->status = save_layer(g, a->layer, &a->step);
}

void hybrid_in_end_step(void *arg)
{
    struct hybrid_end *a = arg;

    for (uint32_t g = 0; g < GROUPS; g++) {
        a->outcomes[g] = (kvc_outcome){0};
        if (me.saves[g] != 0)
            ck_assert_int_eq((a->cancel ? kvc_cancel : kvc_wait)(me.client, me.saves[g],
                                                                 wait_patient_ms(HYBRID_MS),
                                                                 &a->outcomes[g]),
                             KVC_OK);
        me.saves[g] = 0;
    }
}

void hybrid_in_prefill(void *arg)
{
    struct hybrid_end end = {.cancel = false};

    hybrid_in_begin_step(arg);
    hybrid_in_end_step(&end);
    for (uint32_t g = 0; g < GROUPS; g++)
        ck_assert_int_eq(end.outcomes[g].status, KVC_OK);
}

void hybrid_in_adopt(void *arg)
{
    struct hybrid_lease *a = arg;

    a->status = KVC_OK;
    for (uint32_t g = 0; a->status == KVC_OK && g < GROUPS; g++) {
        a->status = kvc_adopt(me.client, a->lease.token, me.parts[g], 0, &me.leases[g]);
        ck_assert(a->status != KVC_OK || me.leases[g].blocks == a->lease.blocks);
    }
}

void hybrid_in_let_go(void *arg)
{
    (void)arg;
    for (uint32_t g = 0; g < GROUPS; g++) {
        ck_assert_int_eq(kvc_release(me.client, me.leases[g].id), KVC_OK);
        me.leases[g] = (kvc_lease){0};
    }
}

static void load_group(uint32_t g, struct hybrid_load *a)
{
    uint32_t blocks[PROMPT], n = me.leases[g].blocks;
    uint64_t sums[PROMPT] = {0};
    uint8_t valid[PROMPT] = {0};

    blocks_of(g, 0, n, n, blocks);
    for (uint32_t layer = 0; layer < a->layers; layer++) {
        const kvc_load_args args = {.lease = me.leases[g].id,
                                    .part = me.parts[g],
                                    .count = n,
                                    .blocks = blocks,
                                    .valid = valid,
                                    .first_slice = layer,
                                    .n_slices = 1,
                                    .sums = sums};
        kvc_status status = kvc_load(me.client, &args);

        if (g == HYBRID_FULL && layer == 0 && a->spoil < n)
            sums[a->spoil] ^= 1;
        ck_assert_msg(status == KVC_OK || (a->spoil < PROMPT && status == KVC_E_CHECKSUM), "%s",
                      kvc_text(status));
    }
    for (uint32_t i = 0; i < n && a->layers == LAYERS; i++) {
        if (blocks[i] == KVC_NO_BLOCK)
            continue;
        ck_assert(valid[i] || g == HYBRID_FULL);
        a->invalid |= valid[i] ? 0 : 1u << i;
        ck_assert(!valid[i] || kv_holds(&me.kv[g], blocks[i], seed_of(g, i)));
    }
}

void hybrid_in_load(void *arg)
{
    struct hybrid_load *a = arg;

    a->invalid = 0;
    for (uint32_t g = 0; g < GROUPS; g++)
        load_group(g, a);
}

void hybrid_in_overwrite(void *arg)
{
    (void)arg;
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < BLOCKS; i++)
            kv_clear(&me.kv[g], i);
}

void hybrid_in_lose(void *arg)
{
    const uint32_t *block = arg;
    uint64_t blocks;

    ck_assert_int_eq(kvc_flush_keys(me.client, me.parts[HYBRID_FULL],
                                    me.keys + *block * KVC_KEY_BYTES, 1, &blocks),
                     KVC_OK);
    ck_assert_uint_eq(blocks, 1);
}
