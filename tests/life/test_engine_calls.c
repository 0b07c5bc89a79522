// The calls of an inference engine in the order in which vLLM's V1 scheduler and workers make them,
// without the engine: a scheduler without a device and two workers, the ranks of a hybrid model
// with a full and a sliding window group. Between them goes only what the engine would carry:
// tokens of leases, counts, block ids.
//
// Scheduler: look a request up, perhaps several times, before it is admitted; give it blocks; tell
// the workers; release its lease when the workers have theirs. Worker: adopt, load layer by layer
// before each layer runs, save layer by layer behind it, in as many steps as the prefill has
// chunks.
#include <string.h>

#include "client/admin.h"
#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define TOKENS  16u
#define RANKS   2u
#define LAYERS  4u
#define BLOCKS  128u // of each group's KV cache
#define PROMPT  24u  // blocks
#define NEEDED  2u   // that the window asks for
#define WAIT_MS 5000

enum { FULL, WINDOW, GROUPS };

struct worker {
    kvc_client *client;
    struct kv kv[GROUPS];
    kvc_part parts[GROUPS];
};

static struct daemon *d;
static kvc_client *scheduler;
static kvc_part all_parts[RANKS * GROUPS]; // as the scheduler knows them
static struct worker workers[RANKS];
static uint8_t keys[PROMPT * KVC_KEY_BYTES];
static uint32_t ids[GROUPS][PROMPT]; // the request's block tables
static const uint8_t family[16] = "a model";

static void describe(struct kv *kv, uint32_t rank, uint32_t group)
{
    kv->desc.namespace_digest[0] = (uint8_t)(1 + rank);
    kv->desc.namespace_digest[1] = (uint8_t)(1 + group);
    kv->desc.block_tokens = TOKENS;
    kv->desc.family = family;
    if (group == WINDOW) {
        kv->desc.rule = KVC_RULE_WINDOW;
        kv->desc.window = NEEDED * TOKENS + 1;
    }
}

static kvc_client *connect_as(kvc_role role)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .role = role,
                                 .connect_ms = WAIT_MS,
                                 .lookup_ms = WAIT_MS,
                                 .save_ms = WAIT_MS};
    kvc_client *client;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    return client;
}

static void register_all(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            kvc_part_desc desc = workers[r].kv[g].desc;
            kvc_slice slices[LAYERS];

            ck_assert_int_eq(kvc_register(workers[r].client, &desc, &workers[r].parts[g]), KVC_OK);
            for (uint32_t s = 0; s < LAYERS; s++)
                slices[s] = (kvc_slice){.bytes = desc.slices[s].bytes};
            desc.slices = slices;
            desc.n_blocks = 0;
            ck_assert_int_eq(kvc_register(scheduler, &desc, &all_parts[r * GROUPS + g]), KVC_OK);
        }
}

static void begin(void)
{
    d = daemon_start(NULL);
    scheduler = connect_as(KVC_ROLE_SCHEDULER);
    for (uint32_t r = 0; r < RANKS; r++) {
        workers[r].client = connect_as(KVC_ROLE_WORKER);
        for (uint32_t g = 0; g < GROUPS; g++) {
            kv_init(&workers[r].kv[g], (const uint32_t[]){2048, 2048, 512, 36}, LAYERS, BLOCKS);
            describe(&workers[r].kv[g], r, g);
        }
    }
    register_all();
    kv_keys(1, 0, PROMPT, keys);
    kv_ids(8, PROMPT, ids[FULL]);
    kv_ids(50, PROMPT, ids[WINDOW]);
}

static void end(void)
{
    struct admin_debug debug = {.check = true};
    struct admin_debug_reply reply;

    ck_assert_int_eq(admin_debug(scheduler, &debug, &reply), KVC_OK);
    ck_assert_str_eq(reply.broken, "");
    for (uint32_t r = 0; r < RANKS; r++) {
        kvc_close(workers[r].client);
        for (uint32_t g = 0; g < GROUPS; g++)
            kv_free(&workers[r].kv[g]);
    }
    kvc_close(scheduler);
    daemon_stop(d);
}

static uint64_t seed_of(uint32_t rank, uint32_t group, uint32_t block)
{
    return rank * 1000 + group * 100 + block + 1;
}

// get_num_new_matched_tokens: blocks that need not be computed.
static uint32_t look_up(uint64_t request, kvc_lease *lease)
{
    ck_assert_int_eq(
        kvc_lookup(scheduler, request, all_parts, RANKS * GROUPS, keys, PROMPT, 0, lease), KVC_OK);
    return lease->blocks;
}

// Blocks of the window that have slid out of it when the prompt is at `end` are null blocks.
static void blocks_of(uint32_t group, uint32_t first, uint32_t n, uint32_t end, uint32_t *blocks)
{
    for (uint32_t i = 0; i < n; i++)
        blocks[i] =
            group == WINDOW && first + i + NEEDED < end ? KVC_NO_BLOCK : ids[group][first + i];
}

// save_kv_layer, for one layer of one step of the prefill. *save: 0 before the first layer.
static kvc_status save_layer(uint32_t r, uint32_t g, uint32_t first, uint32_t n, uint32_t layer,
                             uint64_t *save)
{
    struct worker *w = &workers[r];
    uint32_t blocks[PROMPT];
    const kvc_save_entry entry = {w->parts[g], keys + first * KVC_KEY_BYTES, blocks, n, NULL};
    const kvc_save_args args = {
        .entries = &entry, .n_entries = 1, .first_slice = layer, .n_slices = 1, .more_of = *save};

    blocks_of(g, first, n, first + n, blocks);
    for (uint32_t i = 0; i < n; i++)
        kv_fill(&w->kv[g], ids[g][first + i], seed_of(r, g, first + i));
    return kvc_save(w->client, &args, save);
}

// One step of a chunked prefill on one rank, its first `layers` layers.
static void run_step(uint32_t r, uint32_t first, uint32_t n, uint32_t layers,
                     uint64_t saves[GROUPS])
{
    for (uint32_t g = 0; g < GROUPS; g++)
        saves[g] = 0;
    for (uint32_t layer = 0; layer < layers; layer++)
        for (uint32_t g = 0; g < GROUPS; g++)
            if (layer == 0 || saves[g] != 0)
                ck_assert_int_eq(save_layer(r, g, first, n, layer, &saves[g]), KVC_OK);
}

static void finish_step(uint32_t r, uint32_t first, uint32_t n)
{
    uint64_t saves[GROUPS];
    kvc_outcome outcome;

    run_step(r, first, n, LAYERS, saves);
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (saves[g] == 0)
            continue;
        ck_assert_int_eq(kvc_wait(workers[r].client, saves[g], WAIT_MS, &outcome), KVC_OK);
        ck_assert_int_eq(outcome.status, KVC_OK);
    }
}

static void prefill(uint32_t first, uint32_t n)
{
    for (uint32_t r = 0; r < RANKS; r++)
        finish_step(r, first, n);
}

// start_load_kv and wait_for_layer_load on one rank; spoil: a block whose bytes arrive wrong. The
// invalid blocks of the full group, as a bit each.
static uint32_t load_rank(uint32_t r, const kvc_lease *granted, uint32_t spoil)
{
    struct worker *w = &workers[r];
    uint32_t blocks[PROMPT], invalid = 0;
    uint8_t valid[PROMPT];

    for (uint32_t g = 0; g < GROUPS; g++) {
        uint64_t sums[PROMPT] = {0};
        kvc_lease lease;

        ck_assert_int_eq(kvc_adopt(w->client, granted->token, w->parts[g], 0, &lease), KVC_OK);
        ck_assert_uint_eq(lease.blocks, granted->blocks);
        blocks_of(g, 0, lease.blocks, lease.blocks, blocks);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const kvc_load_args args = {.lease = lease.id,
                                        .part = w->parts[g],
                                        .count = lease.blocks,
                                        .blocks = blocks,
                                        .valid = valid,
                                        .first_slice = layer,
                                        .n_slices = 1,
                                        .sums = sums};
            kvc_status status = kvc_load(w->client, &args);

            if (g == FULL && layer == 0 && spoil < lease.blocks)
                sums[spoil] ^= 1;
            ck_assert(status == KVC_OK || (spoil < PROMPT && status == KVC_E_CHECKSUM));
        }
        for (uint32_t i = 0; i < lease.blocks; i++) {
            if (blocks[i] == KVC_NO_BLOCK)
                continue;
            invalid |= valid[i] ? 0 : 1u << i;
            ck_assert(!valid[i] || kv_holds(&w->kv[g], blocks[i], seed_of(r, g, i)));
        }
        ck_assert_int_eq(kvc_release(w->client, lease.id), KVC_OK);
    }
    return invalid;
}

static void clear_caches(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t g = 0; g < GROUPS; g++)
            for (uint32_t i = 0; i < BLOCKS; i++)
                kv_clear(&workers[r].kv[g], i);
}

static struct admin_stats figures(void)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(scheduler, &stats), KVC_OK);
    return stats;
}

START_TEST(S40_a_request_from_lookup_to_lookup)
{
    kvc_lease lease, again;

    begin();
    // Before it is admitted the scheduler asks again and again: misses cost nothing.
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(look_up(7, &lease), 0);
    ck_assert_uint_eq(figures().leases, 0);
    // Prefill in chunks of several steps, on both ranks.
    prefill(0, 8);
    prefill(8, 8);
    prefill(16, PROMPT - 16);
    // The next request of the conversation: no room yet, so it is looked up at each step.
    ck_assert_uint_eq(look_up(8, &lease), PROMPT);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(look_up(8, &again), PROMPT);
        ck_assert_uint_eq(again.id, lease.id);
        ck_assert_mem_eq(again.token, lease.token, KVC_TOKEN_BYTES);
    }
    ck_assert_uint_eq(figures().leases, 1);
    // Admitted: the workers load, and the scheduler's lease may go once they have theirs.
    clear_caches();
    for (uint32_t r = 0; r < RANKS; r++)
        ck_assert_uint_eq(load_rank(r, &lease, PROMPT), 0);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    ck_assert_uint_eq(figures().leases, 0);
    end();
}
END_TEST

START_TEST(S36_a_prefix_that_one_rank_has_not)
{
    kvc_lease lease;
    uint64_t blocks;

    begin();
    finish_step(0, 0, 8);
    ck_assert_uint_eq(look_up(0, &lease), 0);
    ck_assert_uint_eq(figures().leases, 0);
    finish_step(1, 0, 8);
    ck_assert_uint_eq(look_up(0, &lease), 8);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    // One rank loses the fifth block: with it goes what the window had behind it, for all.
    ck_assert_int_eq(kvc_flush_keys(workers[1].client, workers[1].parts[FULL],
                                    keys + 4 * KVC_KEY_BYTES, 1, &blocks),
                     KVC_OK);
    ck_assert_uint_eq(blocks, 1);
    ck_assert_uint_eq(look_up(0, &lease), 0); // the window has blocks 6 and 7 only
    // It is computed again from the start; only what is missing is copied.
    prefill(0, 4);
    ck_assert_uint_eq(look_up(0, &lease), 4);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    prefill(4, 4);
    ck_assert_uint_eq(look_up(0, &lease), 8);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    end();
}
END_TEST

START_TEST(S37_preempted_in_the_middle_of_a_save)
{
    uint64_t saves[RANKS][GROUPS];
    kvc_outcome outcome;
    kvc_lease lease;

    begin();
    prefill(0, 8);
    // Its second step is under way when its blocks are taken for another request. What a call has
    // copied is copied: the sources can be overwritten at once.
    for (uint32_t r = 0; r < RANKS; r++)
        run_step(r, 8, 8, 2, saves[r]);
    clear_caches();
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            ck_assert_int_eq(kvc_cancel(workers[r].client, saves[r][g], WAIT_MS, &outcome), KVC_OK);
            ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
            ck_assert_uint_eq(outcome.published, 0);
        }
    ck_assert_uint_eq(figures().filling_slots, 0);
    ck_assert_uint_eq(figures().quarantined_slots, 0);
    // It resumes: its first step is there, nothing of the second.
    ck_assert_uint_eq(look_up(7, &lease), 8);
    for (uint32_t r = 0; r < RANKS; r++)
        ck_assert_uint_eq(load_rank(r, &lease, PROMPT), 0);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    prefill(8, 8);
    ck_assert_uint_eq(look_up(7, &lease), 16);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    end();
}
END_TEST

// _i: the stage at which the user goes away.
START_TEST(S29_a_request_aborted_at_each_stage)
{
    uint64_t saves[GROUPS];
    kvc_outcome outcome;
    kvc_lease lease, adopted;

    begin();
    prefill(0, 8);
    ck_assert_uint_eq(look_up(9, &lease), 8);
    if (_i >= 1)
        ck_assert_int_eq(
            kvc_adopt(workers[0].client, lease.token, workers[0].parts[FULL], 0, &adopted), KVC_OK);
    if (_i >= 2)
        ck_assert_uint_eq(load_rank(0, &lease, PROMPT), 0);
    if (_i >= 3)
        run_step(0, 8, 4, 1, saves);
    // request_finished, with whatever was begun.
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    if (_i >= 1)
        ck_assert_int_eq(kvc_release(workers[0].client, adopted.id), KVC_OK);
    for (uint32_t g = 0; _i >= 3 && g < GROUPS; g++)
        ck_assert_int_eq(kvc_cancel(workers[0].client, saves[g], WAIT_MS, &outcome), KVC_OK);
    wait_for(figures().open_loads == 0, WAIT_MS);
    ck_assert_uint_eq(figures().leases, 0);
    ck_assert_uint_eq(figures().filling_slots, 0);
    ck_assert_uint_eq(look_up(10, &lease), 8);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    end();
}
END_TEST

START_TEST(S39_a_load_that_fails_names_the_blocks)
{
    kvc_lease lease;

    begin();
    prefill(0, 8);
    ck_assert_uint_eq(look_up(7, &lease), 8);
    clear_caches();
    ck_assert_uint_eq(load_rank(0, &lease, 5), 1u << 5);
    ck_assert_uint_eq(load_rank(1, &lease, PROMPT), 0);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    // The daemon was told: the block is a miss now, until exactly it has been computed again.
    wait_for(look_up(7, &lease) == 0, WAIT_MS); // the window has blocks 6 and 7 only
    finish_step(0, 5, 1);
    wait_for(look_up(7, &lease) == 8, WAIT_MS);
    ck_assert_uint_eq(load_rank(0, &lease, PROMPT), 0);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    end();
}
END_TEST

START_TEST(S42_a_reset_while_saves_are_in_flight)
{
    uint64_t saves[GROUPS], blocks, total = 0;
    kvc_outcome outcome;
    kvc_lease lease;

    begin();
    prefill(0, 8);
    ck_assert_uint_eq(look_up(7, &lease), 8);
    run_step(0, 8, 8, 2, saves);
    // reset_prefix_cache: the scheduler has new weights loaded.
    for (uint32_t p = 0; p < RANKS * GROUPS; p++) {
        ck_assert_int_eq(kvc_flush(scheduler, all_parts[p], &blocks), KVC_OK);
        total += blocks;
    }
    ck_assert_uint_eq(total, RANKS * (8 + NEEDED));
    for (uint32_t g = 0; g < GROUPS; g++) {
        kvc_status status = save_layer(0, g, 8, 8, 2, &saves[g]);

        ck_assert(status == KVC_E_STALE || status == KVC_E_UNKNOWN);
        ck_assert_int_eq(kvc_wait(workers[0].client, saves[g], WAIT_MS, &outcome), KVC_OK);
        ck_assert_int_eq(outcome.status, KVC_E_STALE);
    }
    ck_assert_int_eq(kvc_extend(scheduler, lease.id, 0, NULL), KVC_E_EXPIRED);
    ck_assert_uint_eq(look_up(7, &lease), 0); // the scheduler goes on at once
    ck_assert_uint_eq(figures().blocks, 0);
    // The workers are told with their next call, and register again.
    saves[FULL] = 0;
    ck_assert_int_eq(save_layer(1, FULL, 0, 8, 0, &saves[FULL]), KVC_E_STALE);
    register_all();
    prefill(0, 8);
    ck_assert_uint_eq(look_up(7, &lease), 8);
    for (uint32_t r = 0; r < RANKS; r++)
        ck_assert_uint_eq(load_rank(r, &lease, PROMPT), 0);
    ck_assert_int_eq(kvc_release(scheduler, lease.id), KVC_OK);
    end();
}
END_TEST

START_TEST(S40_a_scheduler_pins_a_system_prompt)
{
    uint32_t pinned;

    begin();
    prefill(0, 8);
    for (uint32_t p = 0; p < RANKS * GROUPS; p++) {
        ck_assert_int_eq(kvc_pin(scheduler, all_parts[p], keys, 8, 60, &pinned), KVC_OK);
        ck_assert_uint_eq(pinned, p % GROUPS == FULL ? 8 : NEEDED);
    }
    ck_assert_uint_eq(figures().pinned_blocks, RANKS * (8 + NEEDED));
    end();
}
END_TEST

CHECK_MAIN_LOOPS("life/engine_calls", CHECK_LIFE_S, {S40_a_request_from_lookup_to_lookup, 0, 0},
                 {S36_a_prefix_that_one_rank_has_not, 0, 0},
                 {S37_preempted_in_the_middle_of_a_save, 0, 0},
                 {S29_a_request_aborted_at_each_stage, 0, 3},
                 {S39_a_load_that_fails_names_the_blocks, 0, 0},
                 {S42_a_reset_while_saves_are_in_flight, 0, 0},
                 {S40_a_scheduler_pins_a_system_prompt, 0, 0})
