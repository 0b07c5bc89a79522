/*
 * Two hosts that know each other by nothing but a directory. Who can write to that can name a host;
 * he cannot make it one that is let in.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/hosts.h"
#include "tests/lib/pair.h"
#include "tests/lib/redis.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define MS   10000
#define PORT 7734

static struct hosts hosts;
static struct daemon *d[2];
static char listens[2][32], directory[32], secret[2][256];
static struct engine a, b;

static void write_secret(int i, const char *text)
{
    FILE *file;

    snprintf(secret[i], sizeof(secret[i]), "none");
    if (text == NULL)
        return;
    snprintf(secret[i], sizeof(secret[i]), "%s", tmpdir_file(i == 0 ? "secret0" : "secret1"));
    file = fopen(secret[i], "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    chmod(secret[i], 0600);
}

/* What is wrong with the machine, or NULL. */
static const char *begin(const char *first, const char *second)
{
    bool there;

    if (!hosts_open(&hosts))
        return "no network namespaces here";
    hosts_enter(&hosts, 0);
    there = redis_start_at(hosts.addresses[0], PORT);
    hosts_leave(&hosts);
    if (!there) {
        hosts_close(&hosts);
        return "no redis-server";
    }
    write_secret(0, first);
    write_secret(1, second);
    snprintf(directory, sizeof(directory), "%s:%d", hosts.addresses[0], PORT);
    for (int i = 0; i < 2; i++) {
        snprintf(listens[i], sizeof(listens[i]), "%s:7733", hosts.addresses[i]);
        hosts_enter(&hosts, i);
        d[i] = daemon_start((const char *[]){"--peer-listen", listens[i], "--directory", directory,
                                             "--directory-time", "6s", "--peer-time", "60s",
                                             "--peer-secret-file", secret[i], NULL});
        hosts_leave(&hosts);
    }
    engine_open(&a, daemon_socket(d[0]));
    engine_open_with_peers(&b, daemon_socket(d[1]), KVC_REMOTE_MS_MAX);
    return NULL;
}

static void end(void)
{
    engine_close(&a);
    engine_close(&b);
    for (int i = 0; i < 2; i++)
        daemon_clock_advance(d[i], 2100000);
    for (int i = 0; i < 2; i++)
        daemon_stop(d[i]);
    redis_kill();
    hosts_close(&hosts);
}

static bool is_open(int i, const char *way)
{
    struct pair_row row;

    return pair_look(d[i], way, 0, &row) && strcmp(row.state, "open") == 0;
}

/* Each knows the other, and may not ask it. */
static void expect_shut(void)
{
    for (int i = 0; i < 2; i++) {
        wait_for(daemon_log_count(d[i], "the directory has a peer") > 0, MS);
        wait_for(daemon_log_count(d[i], "peer lost") > 0, MS);
    }
    engine_put(&a, 100, 20);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 20), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert(!is_open(i, "serves") && !is_open(i, "asks"));
        ck_assert_int_eq(daemon_log_count(d[i], "peer open"), 0);
        ck_assert_int_eq(daemon_log_count(d[i], "peer asks"), 0);
    }
}

static const char text[] = "a secret of both hosts";

START_TEST(T17_the_directory_opens_no_door)
{
    static const struct {
        const char *first, *second;
    } rows[] = {{NULL, NULL}, {text, NULL}, {NULL, text}, {text, "another one of as many"}};
    const char *missing = begin(rows[_i].first, rows[_i].second);

    if (missing != NULL)
        TEST_SKIP("%s", missing);
    for (int i = 0; i < 2; i++)
        daemon_log_allow(d[i], "a stranger is refused");
    expect_shut();
    end();
}
END_TEST

/* With the same secret it is found and let in. */
START_TEST(T17_who_knows_the_secret_comes_in)
{
    const char *missing = begin(text, text);

    if (missing != NULL)
        TEST_SKIP("%s", missing);
    wait_for(is_open(0, "serves") && is_open(1, "serves"), MS);
    engine_put(&a, 100, 20);
    wait_for(engine_lookup_all(&b, 100, 20) == 20, MS);
    engine_load(&b);
    engine_release(&b);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("peer/doors", CHECK_LONG_S, {T17_the_directory_opens_no_door, 0, 3},
                 {T17_who_knows_the_secret_comes_in, 0, 0})
