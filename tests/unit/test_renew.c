/* New memory for extents, on libuv's pool. */
#include <string.h>
#include <sys/mman.h>
#include <uv.h>

#include "daemon/base/fault.h"
#include "daemon/base/fd.h"
#include "daemon/tier/renew.h"
#include "tests/lib/check_main.h"

#define MIB    (1ull << 20)
#define EXTENT (36 * MIB) /* more than two pieces */

struct world {
    uv_loop_t loop;
    struct tier *tiers[TIER_COUNT];
    struct renewer *renewer;
    uint32_t calls;
    kvc_status status;
};

static void on_done(void *arg, kvc_status status)
{
    struct world *w = arg;

    w->calls++;
    w->status = status;
}

static void world_open(struct world *w)
{
    memset(w, 0, sizeof(*w));
    uv_loop_init(&w->loop);
    ck_assert_int_eq(tier_create(TIER_HOST, &device_all_host, EXTENT, 2, &w->tiers[TIER_HOST]),
                     KVC_OK);
    ck_assert_int_eq(renewer_create(&w->loop, w->tiers, &w->renewer), KVC_OK);
    memset(tier_address(w->tiers[TIER_HOST], 0), 0xab, 2 * EXTENT);
}

static void world_close(struct world *w)
{
    ck_assert_int_eq(uv_run(&w->loop, UV_RUN_DEFAULT), 0);
    renewer_destroy(w->renewer);
    ck_assert_int_eq(uv_loop_close(&w->loop), 0);
    tier_destroy(w->tiers[TIER_HOST]);
    uv_library_shutdown();
}

static bool all_are(const uint8_t *bytes, uint8_t value)
{
    return bytes[0] == value && memcmp(bytes, bytes + 1, EXTENT - 1) == 0;
}

START_TEST(S15_a_renewed_extent_is_zero_and_nobody_elses)
{
    struct world w;
    uint8_t *kept;
    int fd = -1;

    world_open(&w);
    ck_assert_int_eq(tier_export(w.tiers[TIER_HOST], 0, false, &fd), KVC_OK);
    kept = mmap(NULL, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(kept, MAP_FAILED);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, 0, on_done, &w), KVC_OK);
    ck_assert_uint_eq(renewer_count(w.renewer), 1);
    ck_assert_uint_eq(w.calls, 0);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(w.calls, 1);
    ck_assert_int_eq(w.status, KVC_OK);
    ck_assert_uint_eq(renewer_count(w.renewer), 0);
    ck_assert(all_are(tier_address(w.tiers[TIER_HOST], 0), 0));
    ck_assert(all_are(tier_address(w.tiers[TIER_HOST], EXTENT), 0xab));
    memset(kept, 0xcd, EXTENT);
    ck_assert(all_are(tier_address(w.tiers[TIER_HOST], 0), 0));
    munmap(kept, EXTENT);
    fd_close(fd);
    world_close(&w);
}
END_TEST

START_TEST(several_one_after_the_other)
{
    struct world w;

    world_open(&w);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, i % 2, on_done, &w), KVC_OK);
    ck_assert_uint_eq(renewer_count(w.renewer), 4);
    /* What was begun ends; nothing new begins. */
    renewer_stop(w.renewer);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, 0, on_done, &w), KVC_E_STOPPING);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(w.calls, 4);
    ck_assert(all_are(tier_address(w.tiers[TIER_HOST], 0), 0));
    ck_assert(all_are(tier_address(w.tiers[TIER_HOST], EXTENT), 0));
    world_close(&w);
}
END_TEST

START_TEST(what_there_is_not_is_refused)
{
    struct world w;

    world_open(&w);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, 2, on_done, &w), KVC_E_INVALID);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_GPU, 0, on_done, &w), KVC_E_INVALID);
    fault_arm("mem.alloc", 0, 1);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, 0, on_done, &w), KVC_E_NO_MEMORY);
    ck_assert_uint_eq(renewer_count(w.renewer), 0);
    world_close(&w);
    ck_assert_uint_eq(w.calls, 0);
}
END_TEST

/* The extent has its old memory still, without a page that was written; or none to rely on. */
START_TEST(failures_are_told_apart)
{
    static const struct {
        const char *site;
        kvc_status status;
    } rows[] = {{"renew.busy", KVC_E_BUSY}, {"renew.fail", KVC_E_NO_MEMORY}};
    struct world w;

    world_open(&w);
    fault_arm(rows[_i].site, 0, 1);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, 0, on_done, &w), KVC_OK);
    ck_assert_int_eq(renew_ops.renew(w.renewer, TIER_HOST, 1, on_done, &w), KVC_OK);
    while (w.calls == 0)
        uv_run(&w.loop, UV_RUN_ONCE);
    ck_assert_int_eq(w.status, rows[_i].status);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(w.calls, 2);
    ck_assert_int_eq(w.status, KVC_OK);
    ck_assert(all_are(tier_address(w.tiers[TIER_HOST], EXTENT), 0));
    world_close(&w);
}
END_TEST

CHECK_MAIN_LOOPS("tier/renew", CHECK_LIFE_S, {S15_a_renewed_extent_is_zero_and_nobody_elses, 0, 0},
                 {several_one_after_the_other, 0, 0}, {what_there_is_not_is_refused, 0, 0},
                 {failures_are_told_apart, 0, 1})
