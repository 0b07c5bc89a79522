#include <string.h>
#include <uv.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/tier/populate.h"
#include "daemon/tier/tier.h"
#include "tests/lib/check_main.h"

#define MIB (1ull << 20)

struct ended {
    uint32_t calls;
    kvc_status status;
};

static void on_ended(void *arg, kvc_status status)
{
    struct ended *ended = arg;

    ended->calls++;
    ended->status = status;
}

static struct tier *make_tier(uint64_t extent_bytes, uint32_t n_extents)
{
    struct tier *tier;

    ck_assert_int_eq(tier_create(TIER_HOST, &device_all_host, extent_bytes, n_extents, &tier),
                     KVC_OK);
    return tier;
}

/* Ends the loop's threads too, so that their stacks are not a leak. */
static void close_loop(uv_loop_t *loop)
{
    ck_assert_int_eq(uv_run(loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(loop), 0);
    uv_library_shutdown();
}

START_TEST(a_tier_knows_its_shape)
{
    struct tier *tier = make_tier(4 * MIB, 3);
    int fd = -1;

    ck_assert_int_eq(tier_memory(tier), DEVICE_MEMORY_MEMFD);
    ck_assert_uint_eq(tier_bytes(tier), 12 * MIB);
    ck_assert_uint_eq(tier_extent_bytes(tier), 4 * MIB);
    ck_assert_uint_eq(tier_extents(tier), 3);
    ck_assert_uint_eq(tier_populated(tier), 0);
    ck_assert_str_eq(tier_name(TIER_GPU), "gpu");
    ck_assert_str_eq(tier_name(TIER_HOST), "host");
    strcpy((char *)tier_address(tier, 8 * MIB + 3), "here");
    ck_assert_int_eq(tier_export(tier, 2, true, &fd), KVC_OK);
    {
        char text[5];

        ck_assert_int_eq(pread(fd, text, 5, 3), 5);
        ck_assert_str_eq(text, "here");
    }
    fd_close(fd);
    ck_assert_int_eq(tier_export(tier, 3, true, &fd), KVC_E_INVALID);
    tier_destroy(tier);
    tier_destroy(NULL);
}
END_TEST

START_TEST(S24_a_tier_without_memory)
{
    struct tier *tier = make_tier(2 * MIB, 0);
    uv_loop_t loop;
    struct ended ended = {0};
    struct populate *populate;
    int fd;

    ck_assert_uint_eq(tier_bytes(tier), 0);
    ck_assert_int_eq(tier_export(tier, 0, false, &fd), KVC_E_INVALID);
    uv_loop_init(&loop);
    ck_assert_int_eq(populate_start(&loop, &tier, 1, on_ended, &ended, &populate), KVC_OK);
    ck_assert_uint_eq(ended.calls, 0);
    close_loop(&loop);
    ck_assert_uint_eq(ended.calls, 1);
    ck_assert_int_eq(ended.status, KVC_OK);
    tier_destroy(tier);
}
END_TEST

START_TEST(a_tier_that_cannot_be_made_leaves_nothing)
{
    struct tier *tier = NULL;
    int fds = fd_count_open();

    for (uint32_t k = 0; k < 4; k++) {
        fault_arm("fd.memfd", k, 1);
        ck_assert_int_eq(tier_create(TIER_GPU, &device_all_host, 2 * MIB, 4, &tier), KVC_E_NO_FDS);
        ck_assert_int_eq(fd_count_open(), fds);
    }
    for (uint32_t k = 0; k < 3; k++) {
        fault_arm("mem.alloc", k, 1);
        ck_assert_int_eq(tier_create(TIER_GPU, &device_all_host, 2 * MIB, 4, &tier),
                         KVC_E_NO_MEMORY);
        ck_assert_uint_eq(fault_fired("mem.alloc"), 1);
    }
    ck_assert_ptr_null(tier);
}
END_TEST

START_TEST(population_goes_through_all_tiers_in_pieces)
{
    struct tier *tiers[2] = {make_tier(40 * MIB, 2), make_tier(2 * MIB, 3)};
    uv_loop_t loop;
    struct ended ended = {0};
    struct populate *populate;
    uint64_t last = 0;

    fault_arm("device.populate", UINT32_MAX, 1); /* counts */
    uv_loop_init(&loop);
    ck_assert_int_eq(populate_start(&loop, tiers, 2, on_ended, &ended, &populate), KVC_OK);
    while (uv_run(&loop, UV_RUN_ONCE)) {
        uint64_t now = tier_populated(tiers[0]) + tier_populated(tiers[1]);

        ck_assert_uint_ge(now, last);
        ck_assert_uint_le(now - last, TIER_PIECE_BYTES);
        last = now;
    }
    ck_assert_uint_eq(last, 86 * MIB);
    ck_assert_uint_eq(fault_passed("device.populate"), 2 * 3 + 3);
    ck_assert_uint_eq(ended.calls, 1);
    ck_assert_int_eq(ended.status, KVC_OK);
    close_loop(&loop);
    tier_destroy(tiers[0]);
    tier_destroy(tiers[1]);
}
END_TEST

START_TEST(population_leaves_live_bytes_alone)
{
    struct tier *tier = make_tier(32 * MIB, 1);
    uv_loop_t loop;
    struct ended ended = {0};
    struct populate *populate;

    uv_loop_init(&loop);
    ck_assert_int_eq(populate_start(&loop, &tier, 1, on_ended, &ended, &populate), KVC_OK);
    for (uint64_t at = 0; at < 32 * MIB; at += 4096)
        *tier_address(tier, at) = (uint8_t)(at >> 12);
    close_loop(&loop);
    for (uint64_t at = 0; at < 32 * MIB; at += 4096)
        ck_assert_uint_eq(*tier_address(tier, at), (uint8_t)(at >> 12));
    tier_destroy(tier);
}
END_TEST

START_TEST(population_can_be_stopped)
{
    struct tier *tier = make_tier(2 * MIB, 64);
    uv_loop_t loop;
    struct ended ended = {0};
    struct populate *populate;

    uv_loop_init(&loop);
    ck_assert_int_eq(populate_start(&loop, &tier, 1, on_ended, &ended, &populate), KVC_OK);
    while (tier_populated(tier) < 4 * MIB)
        uv_run(&loop, UV_RUN_ONCE);
    populate_stop(populate);
    populate_stop(populate);
    ck_assert_uint_eq(ended.calls, 0);
    close_loop(&loop);
    ck_assert_uint_eq(ended.calls, 1);
    ck_assert_int_eq(ended.status, KVC_E_CANCELLED);
    ck_assert_uint_le(tier_populated(tier), 6 * MIB);
    tier_destroy(tier);
}
END_TEST

START_TEST(population_stops_where_memory_ends)
{
    struct tier *tier = make_tier(2 * MIB, 8);
    uv_loop_t loop;
    struct ended ended = {0};
    struct populate *populate;

    uv_loop_init(&loop);
    fault_arm("device.populate", 5, 1);
    ck_assert_int_eq(populate_start(&loop, &tier, 1, on_ended, &ended, &populate), KVC_OK);
    close_loop(&loop);
    ck_assert_uint_eq(ended.calls, 1);
    ck_assert_int_eq(ended.status, KVC_E_NO_MEMORY);
    ck_assert_uint_eq(tier_populated(tier), 10 * MIB);
    ck_assert_uint_eq(fault_fired("device.populate"), 1);

    uv_loop_init(&loop);
    fault_arm("mem.alloc", 0, 1);
    ck_assert_int_eq(populate_start(&loop, &tier, 1, on_ended, &ended, &populate), KVC_E_NO_MEMORY);
    close_loop(&loop);
    ck_assert_uint_eq(ended.calls, 1);
    tier_destroy(tier);
}
END_TEST

CHECK_MAIN("tier/tier", CHECK_UNIT_S, a_tier_knows_its_shape, S24_a_tier_without_memory,
           a_tier_that_cannot_be_made_leaves_nothing, population_goes_through_all_tiers_in_pieces,
           population_leaves_live_bytes_alone, population_can_be_stopped,
           population_stops_where_memory_ends)
