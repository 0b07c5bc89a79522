// What saving promises of the tiers, with a daemon and a worker whose every byte is compared: on
// the host device, and again, unchanged, on a GPU (make check-gpu). Blocks are 13 KiB, 157 of them
// to an extent of 2 MiB.
#include <unistd.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

#define EXTENT  157u
#define WAIT_MS 10000
#define FOREVER UINT32_MAX

static struct daemon *d;
static struct engine e, other; // one namespace

static void begin(const char *gpu_bytes, const char *host_bytes)
{
    d = daemon_start((const char *[]){"--gpu-bytes", gpu_bytes, "--host-bytes", host_bytes, NULL});
    engine_open(&e, daemon_socket(d));
}

static void end(void)
{
    engine_close(&e);
    daemon_stop(d);
}

static struct admin_stats figures(void)
{
    return engine_stats(e.client);
}

// Room comes as fast as blocks are demoted.
static void put(uint32_t first, uint32_t n)
{
    wait_for((engine_put_some(&e, first, n), engine_probe(&e, first, n)) == n, WAIT_MS);
}

// As many demotions as at the last look, and no thread that has yet to come to one.
static bool is_quiet(uint64_t *demotions)
{
    const uint64_t before = *demotions;

    usleep(30000);
    *demotions = figures().demotions;
    return *demotions == before && proc_sleeps(daemon_pid(d));
}

static void wait_quiet(void)
{
    uint64_t demotions = UINT64_MAX;

    wait_for(is_quiet(&demotions), WAIT_MS);
}

START_TEST(S18_the_coldest_make_room_and_are_there)
{
    begin("4M", "16M");
    for (uint32_t i = 0; i < 8; i++)
        put(1000 + i * 100, 100);
    ck_assert_uint_gt(figures().demotions, 0);
    ck_assert_uint_eq(figures().failed_demotions, 0);
    for (uint32_t i = 0; i < 8; i++)
        engine_verify(&e, 1000 + i * 100, 100);
    ck_assert_uint_gt(figures().tiers[1].hits, 0);
    end();
}
END_TEST

// Copies to the host tier fail for a while: what was there is there, in its bytes and its order.
START_TEST(S19_demotions_that_fail_change_nothing)
{
    struct admin_stats before;

    begin("2M", "16M");
    daemon_log_allow(d, "copy failed");
    put(1000, 100);
    before = figures();
    daemon_fault_arm(d, "mover.copy", 0, FOREVER);
    (void)engine_put_some(&e, 2000, 100);
    wait_for(figures().failed_demotions > before.failed_demotions, WAIT_MS);
    ck_assert_uint_eq(figures().demotions, before.demotions);
    engine_verify(&e, 1000, 50);
    daemon_fault_off(d, "mover.copy");
    put(3000, 100);
    engine_verify(&e, 3000, 100);
    wait_for(figures().demotions > before.demotions, WAIT_MS);
    end();
}
END_TEST

// The host tier is full of leased blocks: blocks of the GPU tier go without a copy.
START_TEST(S20_leases_on_the_host_tier_do_not_freeze_the_gpu_tier)
{
    begin("2M", "2M");
    put(1000, 150);
    for (uint32_t i = 0; i < 4; i++)
        put(2000 + i * 40, 40);
    wait_quiet();
    engine_open(&other, daemon_socket(d));
    (void)engine_lookup(&other, 1000, 150);
    for (uint32_t i = 0; i < 8; i++)
        put(4000 + i * 60, 60);
    engine_verify(&e, 4420, 60);
    if (other.lease.blocks > 0) {
        engine_load(&other);
        engine_release(&other);
    }
    engine_close(&other);
    end();
}
END_TEST

START_TEST(S21_everything_leased_skips_the_save)
{
    begin("2M", "0");
    put(1000, EXTENT);
    ck_assert_uint_eq(engine_lookup(&e, 1000, EXTENT), EXTENT);
    engine_open(&other, daemon_socket(d));
    ck_assert_uint_eq(engine_put_some(&other, 2000, 10), 0);
    ck_assert_uint_gt(figures().skipped_blocks, 0);
    engine_load(&e);
    engine_release(&e);
    ck_assert_uint_eq(engine_put_some(&other, 2000, 10), 10);
    engine_verify(&other, 2000, 10);
    engine_close(&other);
    end();
}
END_TEST

// As many copies as blocks came to the host tier, and each has its bytes and its checksum.
START_TEST(S22_one_copy_a_demoted_block)
{
    struct admin_stats stats;

    begin("4M", "16M");
    for (uint32_t i = 0; i < 6; i++)
        put(1000 + i * 100, 100);
    // On a busy machine copies may come further apart than that looks.
    wait_for((wait_quiet(), stats = figures(), stats.demotions == stats.tiers[1].used_slots), 5000);
    ck_assert_uint_eq(stats.evictions, 0);
    for (uint32_t i = 0; i < 6; i++)
        engine_verify(&e, 1000 + i * 100, 100);
    ck_assert_uint_eq(figures().checksum_failures, 0);
    end();
}
END_TEST

START_TEST(S23_two_hits_on_the_host_tier_promote)
{
    begin("2M", "16M");
    for (uint32_t i = 0; i < 4; i++)
        put(1000 + i * 100, 100);
    wait_quiet();
    ck_assert_uint_eq(engine_lookup(&e, 1000, 20), 20);
    ck_assert_uint_eq(e.lease.host, 20);
    engine_load(&e);
    engine_release(&e);
    ck_assert_uint_eq(figures().promotions, 0);
    wait_for((engine_verify(&e, 1000, 20), figures().promotions) >= 20, WAIT_MS);
    wait_for((engine_lookup(&e, 1000, 20), engine_load(&e), engine_release(&e),
              figures().tiers[0].hits) > 0,
             WAIT_MS);
    end();
}
END_TEST

// From both tiers in one load, in their order; the rest of the worker's blocks stay as they were.
START_TEST(S33_one_load_from_both_tiers)
{
    begin("2M", "16M");
    put(1000, 100);
    put(1100, 100);
    put(1200, 100);
    wait_quiet();
    ck_assert_uint_eq(engine_lookup(&e, 1000, 300), 300);
    ck_assert_uint_gt(e.lease.host, 0);
    ck_assert_uint_lt(e.lease.host, 300);
    engine_load(&e);
    ck_assert(engine_is_poisoned(&e, 300));
    engine_release(&e);
    end();
}
END_TEST

static uint32_t count(const uint8_t *states, uint32_t n, kvc_key_state state)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++)
        found += states[i] == state;
    return found;
}

// A step of nearly twice what the GPU tier has: the rest is asked for again, for the host.
START_TEST(S10_what_the_gpu_tier_is_too_small_for_goes_to_the_host)
{
    const uint32_t n = 300;
    uint8_t states[300];
    uint64_t small, rest;
    kvc_outcome outcome;

    begin("2M", "16M");
    ck_assert_int_eq(engine_try_save(&e, 1000, n, states, &small), KVC_OK);
    ck_assert_uint_eq(count(states, n, KVC_KEY_SAVED), EXTENT);
    ck_assert_uint_eq(count(states, n, KVC_KEY_SKIPPED), n - EXTENT);
    e.to_host = true;
    ck_assert_int_eq(engine_save_filled(&e, 1000, n, states, &rest), KVC_OK);
    ck_assert_uint_eq(count(states, n, KVC_KEY_SAVED), n - EXTENT);
    ck_assert_uint_eq(count(states, n, KVC_KEY_SKIPPED), 0);
    ck_assert_int_eq(kvc_wait(e.client, small, WAIT_MS, &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, EXTENT);
    ck_assert_int_eq(kvc_wait(e.client, rest, WAIT_MS, &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, n - EXTENT);
    ck_assert_uint_eq(figures().tiers[1].bytes_saved, (n - EXTENT) * 13288ull);
    ck_assert_uint_eq(engine_lookup(&e, 1000, n), n);
    ck_assert_uint_ge(e.lease.host, n - EXTENT);
    engine_load(&e);
    engine_release(&e);
    end();
}
END_TEST

CHECK_MAIN_BOTH_WAYS("life/tiers", CHECK_LIFE_S,
                     S10_what_the_gpu_tier_is_too_small_for_goes_to_the_host,
                     S18_the_coldest_make_room_and_are_there,
                     S19_demotions_that_fail_change_nothing,
                     S20_leases_on_the_host_tier_do_not_freeze_the_gpu_tier,
                     S21_everything_leased_skips_the_save, S22_one_copy_a_demoted_block,
                     S23_two_hits_on_the_host_tier_promote, S33_one_load_from_both_tiers)
