// The daemon's figures through the library, beside what tools are told.
#include <string.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"

#define MAX 128u

static kvc_figure figures[MAX];
static uint32_t n;

static uint64_t figure(const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(figures[i].name, name) == 0)
            return figures[i].value;
    ck_abort_msg("no figure %s", name);
}

START_TEST(S40_figures_are_those_of_the_tools)
{
    struct daemon *d = daemon_start(NULL);
    struct engine worker, scheduler;
    struct admin_stats stats;

    engine_open(&worker, daemon_socket(d));
    engine_put(&worker, 1, 10);
    engine_connect(&scheduler, daemon_socket(d), KVC_ROLE_SCHEDULER);
    ck_assert_int_eq(kvc_figures(scheduler.client, figures, MAX, &n), KVC_OK);
    stats = engine_stats(scheduler.client);
    ck_assert_uint_gt(n, 30);
    ck_assert_uint_le(n, MAX);
    ck_assert_uint_eq(figure("boot_epoch"), stats.boot_epoch);
    ck_assert_uint_eq(figure("tiers.gpu.bytes"), stats.tiers[0].bytes);
    ck_assert_uint_eq(figure("tiers.host.bytes"), stats.tiers[1].bytes);
    ck_assert_uint_eq(figure("tiers.gpu.used_slots"), 10);
    ck_assert_uint_eq(figure("blocks"), 10);
    ck_assert_uint_eq(figure("published_blocks"), 10);
    ck_assert_uint_eq(figure("sessions"), stats.sessions);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            ck_assert_str_ne(figures[i].name, figures[k].name);
    engine_close(&worker);
    engine_close(&scheduler);
    daemon_stop(d);
}
END_TEST

START_TEST(no_more_figures_than_there_is_room_for)
{
    struct daemon *d = daemon_start(NULL);
    struct engine e;
    uint32_t all;

    engine_connect(&e, daemon_socket(d), KVC_ROLE_OPERATOR);
    ck_assert_int_eq(kvc_figures(e.client, NULL, 0, &all), KVC_OK);
    memset(figures, 0, sizeof(figures));
    ck_assert_int_eq(kvc_figures(e.client, figures, 2, &n), KVC_OK);
    ck_assert_uint_eq(n, all);
    ck_assert_ptr_nonnull(figures[1].name);
    ck_assert_ptr_null(figures[2].name);
    ck_assert_int_eq(kvc_figures(e.client, figures, 2, NULL), KVC_E_INVALID);
    ck_assert_int_eq(kvc_figures(e.client, NULL, 2, &n), KVC_E_INVALID);
    ck_assert_int_eq(kvc_figures(NULL, figures, 2, &n), KVC_E_INVALID);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("life/figures", CHECK_LIFE_S, S40_figures_are_those_of_the_tools,
           no_more_figures_than_there_is_room_for)
