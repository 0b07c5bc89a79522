/* Tiers: what goes when there is no room, and their budgets. */
#include <string.h>
#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

static struct kit kit;
static struct kit_save save;

START_TEST(S20_host_full_the_coldest_goes)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);

    kit_put_slowly(&kit, worker, 100, 8);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 16);
    kit_put_slowly(&kit, worker, 200, 2);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 2);
    for (uint32_t key = 0; key < 8; key++)
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_HOST), key < 6);
    for (uint32_t key = 100; key < 108; key++)
        ck_assert_int_eq(kit_in_tier(&kit, key, TIER_HOST), key >= 106);
    kit_close(&kit);
}
END_TEST

/* What was used again in the host tier is worth more than what nobody asked for since. */
START_TEST(S20_a_block_colder_than_the_host_tier_is_dropped_uncopied)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    uint64_t lease, moves;

    kit_put_slowly(&kit, worker, 100, 8);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_release(&kit, worker, lease);
    moves = kit.moves_started;
    kit_put(&kit, worker, 200, 4);
    ck_assert_uint_eq(kit.moves_started, moves);
    for (uint32_t key = 0; key < 8; key++)
        ck_assert(kit_has(&kit, key));
    for (uint32_t key = 100; key < 108; key++)
        ck_assert_int_eq(kit_has(&kit, key), key < 104);
    ck_assert_uint_eq(kit_stats(&kit).evictions, 4);
    kit_close(&kit);
}
END_TEST

/* The same ahead of need: it neither is copied nor keeps those behind it from being. */
START_TEST(S20_clean_ahead_drops_what_is_colder_than_the_host_tier)
{
    struct kit_config config = {.gpu_slots = 16, .host_slots = 8};
    struct kit_owner *worker;
    uint64_t lease, moves;

    kit_open(&kit, &config);
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8);
    kit_put(&kit, worker, 50, 8);
    kit_put_slowly(&kit, worker, 100, 8);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_release(&kit, worker, lease);
    moves = kit.moves_started;
    store_tune(kit.store, &(struct store_tuning){.lease_ms = KVC_LEASE_MS_DEFAULT,
                                                 .save_proof_ms = KVC_SAVE_PROOF_MS,
                                                 .promotion_ms = KVC_PROMOTION_MS,
                                                 .clean_low = 450,
                                                 .clean_high = 450,
                                                 .moving_bytes_max = 64ull << 20});
    kit_put(&kit, worker, 200, 1);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.moves_started, moves);
    for (uint32_t key = 0; key < 8; key++)
        ck_assert(kit_in_tier(&kit, key, TIER_HOST));
    for (uint32_t key = 50; key < 58; key++)
        ck_assert(!kit_has(&kit, key));
    for (uint32_t key = 100; key < 108; key++)
        ck_assert(kit_has(&kit, key));
    kit_close(&kit);
}
END_TEST

START_TEST(S20_leases_on_the_host_tier_do_not_freeze_the_gpu_tier)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    uint64_t lease;

    kit_put_slowly(&kit, worker, 100, 8);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &lease), 8);
    kit_save(&kit, worker, 200, 3, &save);
    ck_assert_uint_eq(save.n_assigned, 3);
    ck_assert_uint_eq(kit.n_moves, 0);
    kit_prove(&kit, &save);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 8);
    for (uint32_t key = 100; key < 108; key++)
        ck_assert_int_eq(kit_has(&kit, key), key < 105);
    kit_close(&kit);
}
END_TEST

START_TEST(S20_a_host_tier_of_clean_copies_only_takes_no_more)
{
    struct kit_owner *worker;

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 32, .host_slots = 8, .clean_low = 450, .clean_high = 500});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 32);
    while (kit.n_moves > 0)
        kit_moves(&kit, 1, KVC_OK);
    ck_assert_uint_eq(kit.moves_started, 8);
    ck_assert_uint_eq(kit_stats(&kit).blocks, 32);
    kit_close(&kit);
}
END_TEST

START_TEST(S21_everything_leased_skips_the_save)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 8, 8);
    struct store_stats before, after;
    uint64_t leases[2];

    kit_put_slowly(&kit, worker, 100, 8);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 0, 8, &leases[0]), 8);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 100, 8, &leases[1]), 8);
    before = kit_stats(&kit);
    kit_save(&kit, worker, 200, 4, &save);
    ck_assert_uint_eq(kit_count(&save, STORE_KEY_SKIPPED), 4);
    ck_assert_uint_eq(save.result.save, 0);
    after = kit_stats(&kit);
    ck_assert_uint_eq(after.skipped_blocks, before.skipped_blocks + 4);
    ck_assert_uint_eq(after.evictions, before.evictions);
    ck_assert_int_eq(memcmp(before.tier, after.tier, sizeof(before.tier)), 0);
    ck_assert_uint_eq(kit.n_moves, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S24_zero_gpu_budget_is_host_only)
{
    struct kit_owner *worker;
    struct kit_load load;
    uint64_t lease;

    kit_open(&kit, &(struct kit_config){.host_slots = 8});
    worker = kit_worker(&kit);
    kit_put(&kit, worker, 0, 8);
    kit_put(&kit, worker, 100, 2);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 6);
    ck_assert_uint_eq(kit_lookup(&kit, worker, 100, 2, &lease), 2);
    kit_load(&kit, worker, lease, 0, 100, 2, &load);
    ck_assert_int_eq(load.locations[0].tier, TIER_HOST);
    kit_verify(&kit, &load);
    kit_close_load(&kit, &load);
    kit_release(&kit, worker, lease);
    kit_hit(&kit, worker, 100, 2);
    ck_assert_uint_eq(kit.moves_started, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S24_zero_host_budget_is_gpu_only)
{
    struct kit_owner *worker = kit_open_with(&kit, 8, 0, 8);

    kit_put(&kit, worker, 100, 2);
    ck_assert_uint_eq(kit_probe(&kit, worker, 0, 8), 6);
    ck_assert_uint_eq(kit.moves_started, 0);
    ck_assert_uint_eq(kit_stats(&kit).failed_demotions, 0);
    kit_close(&kit);
}
END_TEST

static void ignore_log(void *arg, enum log_level level, const char *line, size_t length)
{
    (void)level, (void)line, (void)length;
    ++*(int *)arg;
}

START_TEST(S24_budgets_are_rounded_down_and_one_is_needed)
{
    struct store_config config = {.budget = {KVC_EXTENT_BYTES_MIN - 1, 0}, .boot_epoch = 1};
    struct store_stats stats;
    struct store *store;
    int lines = 0;

    log_set_sink(ignore_log, &lines);
    ck_assert_int_eq(store_create(&config, &store), KVC_E_INVALID);
    ck_assert_int_eq(lines, 1);
    log_set_sink(NULL, NULL);
    config.budget[TIER_GPU] = 3 * KVC_EXTENT_BYTES_MIN + 12345;
    config.budget[TIER_HOST] = 1;
    ck_assert_int_eq(store_create(&config, &store), KVC_OK);
    store_stats(store, &stats);
    ck_assert_uint_eq(stats.tier[TIER_GPU].bytes, 3 * KVC_EXTENT_BYTES_MIN);
    ck_assert_uint_eq(stats.tier[TIER_HOST].bytes, 0);
    store_destroy(store);
}
END_TEST

START_TEST(S25_counts_follow_every_step)
{
    struct kit_owner *workers[3];
    uint64_t leases[64] = {0}, random = 88172645463325252ull;
    struct kit_save *saves = calloc(8, sizeof(*saves));

    kit_open(&kit, &(struct kit_config){
                       .gpu_slots = 16, .host_slots = 32, .clean_low = 200, .clean_high = 400});
    for (int i = 0; i < 3; i++)
        workers[i] = kit_worker(&kit);
    for (int step = 0; step < 3000; step++) {
        uint32_t a, b;
        struct kit_save *s;

        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        a = (uint32_t)(random >> 8) % 100, b = (uint32_t)(random >> 32) % 10 + 1;
        s = &saves[a % 8];
        switch (random % 6) {
        case 0:
            if (!s->result.save)
                kit_save(&kit, workers[b % 3], a, b, s);
            break;
        case 1:
            if (s->result.save)
                kit_prove(&kit, s);
            s->result.save = 0;
            break;
        case 2:
            kit_release(&kit, workers[a % 64 % 3], leases[a % 64]);
            kit_lookup(&kit, workers[a % 64 % 3], a, b, &leases[a % 64]);
            break;
        case 3:
            kit_release(&kit, workers[a % 64 % 3], leases[a % 64]);
            break;
        case 4:
            kit_moves(&kit, b, b == 3 ? KVC_E_DEVICE : KVC_OK);
            break;
        case 5:
            clock_advance(a * 10 * CLOCK_MS_US);
            kit_tick(&kit);
        }
    }
    free(saves);
    ck_assert_uint_gt(kit_stats(&kit).demotions, 50);
    ck_assert_uint_gt(kit_stats(&kit).evictions, 50);
    kit_close(&kit);
}
END_TEST

/* Microseconds of the fastest of several evicting saves, with all but 256 of n blocks leased. */
static double evict_us(uint32_t n)
{
    struct kit_owner *worker;
    double fastest = 1e9;
    uint64_t lease;

    kit_open(&kit, &(struct kit_config){.gpu_slots = n, .slot_bytes = 4096});
    worker = kit_worker(&kit);
    for (uint32_t first = 0; first < n; first += 512) {
        kit_save(&kit, worker, first, 512, &save);
        for (uint32_t i = 0; i < save.result.n_chunks; i++)
            kit_end_copy(&kit, &save, i);
        store_nudge(kit.store, worker->owner);
    }
    ck_assert_uint_eq(kit_lookup(&kit, worker, 256, 768, &lease), 768);
    for (uint32_t first = 1024; first < n; first += 1024)
        ck_assert_uint_eq(kit_lookup(&kit, worker, first, 1024, &lease), 1024);
    for (uint32_t i = 0; i < 100; i++) {
        struct save *open;
        uint8_t key[KVC_KEY_BYTES];
        struct store_save_entry entry = {
            .part = kit.part, .epoch = kit.epoch, .keys = key, .n_keys = 1};
        struct store_save request = {
            .entries = &entry, .n_entries = 1, .by_daemon = kit_daemon_copies()};
        struct store_save_result result = {
            .states = save.states, .locations = save.locations, .chunks = save.chunks};
        struct timespec from, to;
        uint32_t short_of;
        double us;

        kit_key(n + i, key);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        ck_assert_int_eq(
            store_save_open(kit.store, worker->owner, &request, &open, &short_of, NULL), KVC_OK);
        store_save_seal(kit.store, open, &result);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        if (request.by_daemon)
            kit_copy(&kit, open, &result);
        ck_assert_int_eq(save.states[0], STORE_KEY_ASSIGNED);
        us = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
        fastest = us < fastest ? us : fastest;
    }
    ck_assert_uint_eq(kit_stats(&kit).evictions, 100);
    kit_close(&kit);
    return fastest;
}

START_TEST(S26_a_victim_is_not_searched_for)
{
    double few = evict_us(1024), many = evict_us(16 * 1024);

    ck_assert_msg(many < 8 * few, "%g us with 1 Ki blocks, %g us with 16 Ki", few, many);
}
END_TEST

CHECK_MAIN_BOTH_WAYS("store/tiering", CHECK_UNIT_S, S20_host_full_the_coldest_goes,
                     S20_a_block_colder_than_the_host_tier_is_dropped_uncopied,
                     S20_clean_ahead_drops_what_is_colder_than_the_host_tier,
                     S20_leases_on_the_host_tier_do_not_freeze_the_gpu_tier,
                     S20_a_host_tier_of_clean_copies_only_takes_no_more,
                     S21_everything_leased_skips_the_save, S24_zero_gpu_budget_is_host_only,
                     S24_zero_host_budget_is_gpu_only,
                     S24_budgets_are_rounded_down_and_one_is_needed, S25_counts_follow_every_step,
                     S26_a_victim_is_not_searched_for)
