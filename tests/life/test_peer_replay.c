/* A trace through two daemons that are each other's peers, workers split between them. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/pair.h"
#include "tests/lib/port.h"
#include "tests/lib/redis.h"
#include "tests/lib/tmpdir.h"

/* Prompts that share prefixes, by turns of four workers. */
static const char *write_trace(int requests)
{
    const char *path = tmpdir_file("trace");
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < requests; i++)
        fprintf(file,
                "{\"timestamp\": %d, \"input_length\": 3072, \"output_length\": 512, "
                "\"hash_ids\": [1, 2, 3, %d, %d, %d]}\n",
                i, 100 + i / 6, 200 + i / 3, 1000 + i);
    fclose(file);
    return path;
}

/* What the tool reports; it ended well, and every loaded byte was right. */
static json_t *replay(int requests, const char *options)
{
    const char *path = write_trace(requests);
    char program[512], command[1200];
    json_t *said;
    FILE *out;

    daemon_program(program, sizeof(program), "kvcachectl");
    snprintf(command, sizeof(command),
             "%s replay %s --private --daemons 2 --device host --workers 4 --verify --gpu-bytes 8M "
             "--host-bytes 16M --json %s",
             program, path, options);
    out = popen(command, "r");
    ck_assert_ptr_nonnull(out);
    said = json_loadf(out, 0, NULL);
    ck_assert_int_eq(pclose(out), 0);
    ck_assert_ptr_nonnull(said);
    unlink(path);
    ck_assert_int_eq(json_integer_value(json_object_get(said, "requests")), requests);
    ck_assert_int_eq(json_integer_value(json_object_get(said, "mismatches")), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(said, "verified_bytes")), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(json_object_get(said, "hits"), "peer")), 0);
    return said;
}

static void expect_fall(const json_t *said)
{
    const json_t *killed = json_object_get(said, "killed_daemon");

    ck_assert_ptr_nonnull(killed);
    ck_assert_double_lt(json_real_value(json_object_get(killed, "hit_ratio_after")),
                        json_real_value(json_object_get(killed, "hit_ratio_before")));
}

START_TEST(T21_a_trace_over_two_daemons)
{
    json_decref(replay(1500, ""));
}
END_TEST

/* Workers of the daemon that is killed have misses then, and no other trouble. */
START_TEST(T13_a_daemon_is_killed_half_way)
{
    json_t *said = replay(3000, "--kill-daemon 50");

    expect_fall(said);
    json_decref(said);
}
END_TEST

START_TEST(T17_daemons_that_know_each_other_by_a_directory)
{
    const int port = port_take();
    char options[64];
    json_t *said;

    if (!redis_start(port))
        TEST_SKIP("no redis-server");
    snprintf(options, sizeof(options), "--directory 127.0.0.1:%d --kill-daemon 50", port);
    said = replay(3000, options);
    expect_fall(said);
    json_decref(said);
    redis_kill();
}
END_TEST

CHECK_MAIN("peer/replay", CHECK_LONG_S, T21_a_trace_over_two_daemons,
           T13_a_daemon_is_killed_half_way, T17_daemons_that_know_each_other_by_a_directory)
