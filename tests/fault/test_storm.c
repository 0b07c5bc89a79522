// Many deaths: workers that are killed at any moment, over and over, alone, under a replay, and
// with faults at every place of the daemon on top. No wrong byte, and nothing adds up.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define CYCLES  100
#define KEYS    1000u
#define N_KEYS  16u
#define WORKERS 3

// What a worker tells, in told->values.
enum { TURNS, STOP, LOADED };

static unsigned next_random(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 16 & 0x7fff;
}

// One turn of what an engine does: look up, load, compare, save the rest. Any status will do, and
// no wrong byte.
static kvc_status turn(struct scene *s, uint32_t first, uint32_t n)
{
    struct engine *e = &s->engine;
    kvc_status status = engine_try_lookup(e, first, n);

    if (status != KVC_OK)
        return status;
    if (e->lease.id != 0) {
        status = engine_try_load(e);
        if (status == KVC_OK) {
            ck_assert_msg(engine_holds(e, first, e->lease.blocks), "wrong bytes were loaded");
            s->told->values[LOADED]++;
        }
        // A lease that is left behind ends with the session.
        if (s->told->values[TURNS] % 8 != 0)
            (void)kvc_release(e->client, e->lease.id);
    }
    if (status == KVC_OK)
        status = engine_try_save(e, first, n, NULL, NULL);
    return status;
}

static void works_until_killed(struct scene *s)
{
    engine_open(&s->engine, s->socket);
    for (;;) {
        ck_assert_int_eq(turn(s, KEYS + (uint32_t)(s->told->values[TURNS] % 4) * N_KEYS, N_KEYS),
                         KVC_OK);
        s->told->values[TURNS]++;
    }
}

// Memory that the daemon has to itself, without the slabs.
static long private_kib(const struct stage *s)
{
    char path[64], line[128];
    long kib = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)daemon_pid(s->daemon));
    f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "RssAnon: %ld kB", &kib) == 1)
            break;
    fclose(f);
    ck_assert_int_ge(kib, 0);
    return kib;
}

static void live_and_die(struct stage *s, int number)
{
    struct actor worker = actor_start_numbered(works_until_killed, s->socket, number);
    volatile uint64_t *turns = &worker.told->values[TURNS];

    // In its first turn, or after a few.
    wait_for(*turns >= (uint64_t)(number % 5), ENGINE_MS);
    actor_kill(&worker);
}

START_TEST(F3_a_hundred_workers_are_killed_and_nothing_adds_up)
{
    const int cycles = check_long() && !CHECK_SANITIZED ? 5 * CYCLES : CYCLES;
    struct stage s;
    long memory = 0;

    stage_open(&s, NULL);
    for (int i = 0; i < cycles; i++) {
        live_and_die(&s, i);
        if (i % 10 == 0)
            stage_witness_works(&s);
        if (i == cycles / 4) {
            // What is made once has been made by now.
            stage_wait_sessions(&s, 1);
            stage_baseline(&s);
            memory = private_kib(&s);
        }
    }
    stage_wait_sessions(&s, 1);
    stage_settled(&s);
    if (!CHECK_SANITIZED)
        ck_assert_msg(private_kib(&s) <= memory + 256, "the daemon grew from %ld to %ld KiB",
                      memory, private_kib(&s));
    ck_assert_uint_eq(stage_stats(&s).checksum_failures, 0);
    stage_close(&s);
}
END_TEST

// The first line of JSON with this name.
static uint64_t figure(const char *path, const char *name)
{
    unsigned long long value = 0;
    char line[256], pattern[64];
    bool found = false;
    FILE *f = fopen(path, "re");

    ck_assert_ptr_nonnull(f);
    snprintf(pattern, sizeof(pattern), "\"%s\": ", name);
    while (!found && fgets(line, sizeof(line), f)) {
        const char *at = strstr(line, pattern);

        found = at != NULL && sscanf(at + strlen(pattern), "%llu", &value) == 1;
    }
    fclose(f);
    ck_assert_msg(found, "no %s in the result", name);
    return value;
}

static void run(const char *command)
{
    int status = system(command);

    ck_assert_msg(status == 0, "%s: status %d", command, status);
}

// The demo's trace through four workers, one of which is killed every few milliseconds.
START_TEST(F9_random_kills_under_a_replay)
{
    static const char *const sizes[] = {"--gpu-bytes", "16M", "--host-bytes", "48M", NULL};
    const int rounds = check_long() && !CHECK_SANITIZED ? 40 : 3;
    const char *trace, *result;
    char command[1024], tool[512];
    uint64_t killed = 0;
    struct stage s;

    if (access("scripts/demo-trace", R_OK) < 0)
        TEST_SKIP("needs the repository's root as the current folder");
    stage_open(&s, sizes);
    trace = tmpdir_file("trace.jsonl");
    result = tmpdir_file("result.json");
    daemon_program(tool, sizeof(tool), "kvcachectl");
    snprintf(command, sizeof(command), "awk -f scripts/demo-trace > %s", trace);
    run(command);
    for (int i = 0; i < rounds; i++) {
        snprintf(command, sizeof(command),
                 "%s --socket %s replay %s --workers 4 --slices 8 --slice-bytes 4096 --verify "
                 "--json --kill-every %d > %s",
                 tool, s.socket, trace, 5 + 10 * i % 40, result);
        run(command);
        ck_assert_uint_eq(figure(result, "mismatches"), 0);
        ck_assert_uint_gt(figure(result, "verified_bytes"), 0);
        killed += figure(result, "killed_workers");
    }
    ck_assert_uint_gt(killed, 10);
    stage_wait_sessions(&s, 1);
    ck_assert_uint_eq(stage_stats(&s).checksum_failures, 0);
    s.crowded = true;
    stage_close(&s);
}
END_TEST

static void works_whatever_comes(struct scene *s)
{
    const uint32_t ms = 200;
    unsigned random = (unsigned)s->number * 77u + 1u;
    struct engine *e = &s->engine;

    while (!engine_try_open(e, s->socket, ms) && s->told->values[STOP] == 0)
        usleep(1000);
    while (s->told->values[STOP] == 0) {
        uint32_t first = KEYS + next_random(&random) % 400, n = 1 + next_random(&random) % 100;
        kvc_status status = turn(s, first, n);

        s->told->values[TURNS]++;
        if (status >= KVC_E_PROTOCOL && status < KVC_E_DEVICE && kvc_reconnect(e->client) != KVC_OK)
            usleep(1000);
    }
    engine_close(e);
}

static void replace(struct actor *worker, const struct stage *s, int number)
{
    actor_kill(worker);
    *worker = actor_start_numbered(works_whatever_comes, s->socket, number);
}

// Whether it was; the faults meet this connection too.
static bool check_if_possible(const struct stage *s)
{
    struct admin_debug_reply reply;
    kvc_status status = admin_debug(s->figures, &(struct admin_debug){.check = true}, &reply);

    if (status != KVC_OK) {
        (void)kvc_reconnect(s->figures);
        return false;
    }
    ck_assert_msg(reply.broken[0] == '\0', "the store is broken: %s", reply.broken);
    return true;
}

// Faults everywhere, workers that come and go, and evictions, since the keys do not fit.
START_TEST(F29_faults_at_random_and_kills_at_random)
{
    static const char *const sizes[] = {"--gpu-bytes", "4M", "--host-bytes", "4M", NULL};
    const int kills = check_long() && !CHECK_SANITIZED ? 1000 : CHECK_SANITIZED ? 20 : 60;
    struct actor workers[WORKERS];
    unsigned random = 1;
    uint64_t loaded = 0, checks = 0;
    struct stage s;

    stage_open_bare(&s, sizes);
    daemon_log_allow(s.daemon, ""); // whatever it says
    for (int w = 0; w < WORKERS; w++)
        workers[w] = actor_start_numbered(works_whatever_comes, s.socket, w);
    daemon_fault_random(s.daemon, 42 + (uint64_t)_i, 30);
    for (int i = 0; i < kills; i++) {
        struct actor *victim = &workers[next_random(&random) % WORKERS];
        volatile uint64_t *turns = &victim->told->values[TURNS];
        uint64_t before = *turns;

        wait_for(*turns >= before + 1 + next_random(&random) % 8, ENGINE_MS);
        loaded += victim->told->values[LOADED];
        replace(victim, &s, WORKERS + i);
        checks += check_if_possible(&s);
    }
    daemon_fault_off(s.daemon, "*");
    for (int w = 0; w < WORKERS; w++) {
        loaded += workers[w].told->values[LOADED];
        workers[w].told->values[STOP] = 1;
    }
    for (int w = 0; w < WORKERS; w++)
        actor_end(&workers[w]);
    ck_assert_uint_gt(loaded, 0);
    ck_assert_uint_gt(checks, 0);
    // The figures' own connection may have been a victim.
    kvc_close(s.figures);
    stage_open_figures(&s);
    stage_wait_sessions(&s, 0);
    ck_assert_uint_eq(stage_stats(&s).checksum_failures, 0);
    stage_close(&s);
}
END_TEST

CHECK_MAIN_LOOPS("fault/storm", CHECK_LONG_S,
                 {F3_a_hundred_workers_are_killed_and_nothing_adds_up, 0, 0},
                 {F9_random_kills_under_a_replay, 0, 0},
                 {F29_faults_at_random_and_kills_at_random, 0, 1})
