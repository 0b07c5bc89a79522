// What a daemon says in its log: nothing about ordinary work, the request where there is one, no
// more than a bounded number of lines of a kind, and as much as it is asked to while it runs.
#include <signal.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

#define KEYS    4096u
#define ROUNDS  200u
#define SAVE    64u
#define SILENT  50
#define LINES   20 // of a kind, in five seconds
#define HELLO_S 11u

static int n_lines(const struct daemon *d)
{
    return daemon_log_count(d, "");
}

// Saves into full tiers, demotions, evictions, hits, misses, loads, and workers that come and go.
static void work(struct engine *e)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t first = round * SAVE % KEYS;

        engine_put_some(e, first, SAVE);
        if (engine_lookup(e, first, SAVE) == 0)
            continue;
        engine_load(e);
        engine_release(e);
        ck_assert_uint_eq(engine_lookup(e, 2 * KEYS, 4), 0);
    }
}

START_TEST(ordinary_work_is_no_line)
{
    struct engine e, other;
    struct admin_stats stats;
    struct daemon *d =
        daemon_start((const char *[]){"--gpu-bytes", "8M", "--host-bytes", "8M", NULL});
    int before;

    wait_for(daemon_log_count(d, "memory is populated") == 1, ENGINE_MS);
    before = n_lines(d);
    engine_open(&e, daemon_socket(d));
    work(&e);
    for (int i = 0; i < 20; i++) {
        engine_open(&other, daemon_socket(d));
        engine_close(&other);
    }
    stats = engine_stats(e.client);
    ck_assert_uint_gt(stats.demotions, 0);
    ck_assert_uint_gt(stats.evictions, 0);
    ck_assert_uint_gt(stats.misses, 0);
    ck_assert_int_eq(n_lines(d), before);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_line_about_a_request_names_it)
{
    struct engine e, operator;
    uint64_t blocks;
    struct daemon *d = daemon_start(NULL);

    engine_open(&e, daemon_socket(d));
    engine_connect(&operator, daemon_socket(d), KVC_ROLE_OPERATOR);
    ck_assert_int_eq(kvc_flush(e.client, e.part, &blocks), KVC_OK);
    wait_for(daemon_log_count(d, "info api: flushed session=") == 1, ENGINE_MS);
    ck_assert_int_eq(daemon_log_count(d, " request="), 1);
    ck_assert_int_eq(admin_config(operator.client, "lease-time", "20s"), KVC_OK);
    wait_for(daemon_log_count(d, "info api: setting changed session=") == 1, ENGINE_MS);
    ck_assert_int_eq(daemon_log_count(d, "lease-time=20s"), 1);
    ck_assert_int_eq(daemon_log_count(d, " request="), 2);
    engine_close(&operator);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(the_level_changes_while_it_runs_and_back_by_a_reload)
{
    struct engine e, operator;
    uint64_t blocks;
    struct daemon *d = daemon_start(NULL);

    engine_open(&e, daemon_socket(d));
    engine_connect(&operator, daemon_socket(d), KVC_ROLE_OPERATOR);
    ck_assert_int_eq(admin_config(operator.client, "log-level", "warning"), KVC_OK);
    ck_assert_int_eq(kvc_flush(e.client, e.part, &blocks), KVC_OK);
    ck_assert_int_eq(daemon_log_count(d, "flushed"), 0);
    ck_assert_int_eq(kill(daemon_pid(d), SIGHUP), 0);
    wait_for(daemon_log_count(d, "configuration reloaded") == 1, ENGINE_MS);
    ck_assert_int_eq(kvc_flush(e.client, e.part, &blocks), KVC_OK);
    wait_for(daemon_log_count(d, "flushed") == 1, ENGINE_MS);
    engine_close(&operator);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_flood_of_lines_is_cut_and_counted)
{
    int socks[SILENT], fds;
    struct engine operator;
    struct daemon *d = daemon_start(NULL);

    // Whoever saw whether it serves has gone, and so have his descriptors.
    engine_connect(&operator, daemon_socket(d), KVC_ROLE_OPERATOR);
    wait_for(engine_stats(operator.client).closing_fds == 0 &&
                 daemon_log_count(d, "memory is populated") == 1,
             ENGINE_MS);
    fds = daemon_fds(d);
    daemon_log_expect(d, "connection cut");
    for (int i = 0; i < SILENT; i++)
        socks[i] = talk_connect(daemon_socket(d));
    wait_for(daemon_fds(d) == fds + 2 * SILENT, ENGINE_MS);
    daemon_clock_advance(d, HELLO_S * 1000000ull);
    for (int i = 0; i < SILENT; i++)
        ck_assert(talk_ended(socks[i]));
    ck_assert_int_eq(daemon_log_count(d, "warning conn: connection cut"), LINES);
    // Nothing else is logged meanwhile, and the number comes all the same.
    daemon_clock_advance(d, HELLO_S * 1000000ull);
    wait_for(daemon_log_count(
                 d, "warning conn: lines like these suppressed=30 event=\"connection cut\"") == 1,
             3 * ENGINE_MS);
    for (int i = 0; i < SILENT; i++)
        close(socks[i]);
    engine_close(&operator);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("life/log", CHECK_LIFE_S, ordinary_work_is_no_line, a_line_about_a_request_names_it,
           the_level_changes_while_it_runs_and_back_by_a_reload,
           a_flood_of_lines_is_cut_and_counted)
