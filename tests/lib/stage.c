#include "tests/lib/stage.h"

#include <check.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/proc.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define WITNESS_BLOCKS 4u
#define WARM_KEYS      900000u
#define BASELINE_LOOKS 5u
#define LOOK_MS        10

// Both namespaces that tests use come to be.
static void ordinary_life(struct scene *scene)
{
    struct engine *e = &scene->engine;
    struct talk_worker w = talk_worker(scene->socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);

    talk_publish(&w, WARM_KEYS, 4);
    talk_worker_close(&w);
    engine_open(e, scene->socket);
    engine_put(e, WARM_KEYS, 4);
    engine_verify(e, WARM_KEYS, 4);
    engine_close(e);
}

void stage_open_figures(struct stage *s)
{
    struct engine operator;

    engine_connect(&operator, s->socket, KVC_ROLE_OPERATOR);
    s->figures = operator.client;
}

void stage_open_bare(struct stage *s, const char *const args[])
{
    static const char *const small[] = {"--gpu-bytes", "8M", "--host-bytes", "8M", NULL};

    *s = (struct stage){.daemon = daemon_start(args != NULL ? args : small),
                        .next_key = STAGE_WITNESS_KEYS};
    s->socket = daemon_socket(s->daemon);
    stage_open_figures(s);
}

void stage_open(struct stage *s, const char *const args[])
{
    struct actor first;

    stage_open_bare(s, args);
    engine_open(&s->witness, s->socket);
    stage_witness_works(s);
    first = actor_start(ordinary_life, s->socket);
    actor_end(&first);
    stage_wait_sessions(s, 1);
    stage_baseline(s);
}

static bool put_again(struct engine *e, uint32_t first)
{
    (void)engine_put_some(e, first, WITNESS_BLOCKS);
    return engine_probe(e, first, WITNESS_BLOCKS) == WITNESS_BLOCKS;
}

void stage_witness_works(struct stage *s)
{
    if (s->crowded)
        wait_for(put_again(&s->witness, s->next_key), ENGINE_MS);
    else
        engine_put(&s->witness, s->next_key, WITNESS_BLOCKS);
    engine_verify(&s->witness, s->next_key, WITNESS_BLOCKS);
    if (!s->crowded)
        engine_verify(&s->witness, STAGE_WITNESS_KEYS, WITNESS_BLOCKS);
    s->next_key += WITNESS_BLOCKS;
}

struct admin_stats stage_stats(const struct stage *s)
{
    return engine_stats(s->figures);
}

struct admin_debug_reply stage_check(const struct stage *s)
{
    struct admin_debug_reply reply;
    kvc_status status = admin_debug(s->figures, &(struct admin_debug){.check = true}, &reply);

    ck_assert_msg(status == KVC_OK, "debug: %s", kvc_text(status));
    ck_assert_msg(reply.broken[0] == '\0', "the store is broken: %s", reply.broken);
    return reply;
}

// What ended is freed by and by: the baseline is what several looks agree on while no thread has
// more to do.
static bool agrees(struct stage *s, uint32_t *looks)
{
    const struct admin_debug_reply reply = stage_check(s);

    if (reply.live_allocations != s->live_allocations || reply.fds != s->fds ||
        !proc_sleeps(daemon_pid(s->daemon)))
        *looks = 0;
    s->live_allocations = reply.live_allocations;
    s->fds = reply.fds;
    usleep(LOOK_MS * 1000); // a thread closes what came from clients
    return ++*looks > BASELINE_LOOKS;
}

void stage_baseline(struct stage *s)
{
    uint32_t looks = 0;

    wait_for(daemon_log_count(s->daemon, "memory is populated") > 0, ENGINE_MS);
    wait_for(agrees(s, &looks), ENGINE_MS);
}

void stage_wait_sessions(const struct stage *s, uint32_t sessions)
{
    wait_for(stage_stats(s).sessions == sessions, ENGINE_MS);
}

static bool is_idle(const struct stage *s, char *why, size_t size)
{
    const struct admin_stats stats = stage_stats(s);
    const struct admin_debug_reply debug = stage_check(s);
    const uint64_t sessions = s->witness.client != NULL;

    snprintf(why, size,
             "sessions=%llu leases=%llu open_loads=%llu filling=%llu quarantined=%llu fds=%llu of "
             "%llu allocations=%llu of %llu",
             (unsigned long long)stats.sessions, (unsigned long long)stats.leases,
             (unsigned long long)stats.open_loads, (unsigned long long)stats.filling_slots,
             (unsigned long long)stats.quarantined_slots, (unsigned long long)debug.fds,
             (unsigned long long)s->fds, (unsigned long long)debug.live_allocations,
             (unsigned long long)s->live_allocations);
    return stats.sessions == sessions && stats.leases == 0 && stats.open_loads == 0 &&
           stats.filling_slots == 0 && stats.quarantined_slots == 0 &&
           (s->fds == 0 || debug.fds == s->fds) &&
           (s->live_allocations == 0 || s->crowded ||
            debug.live_allocations == s->live_allocations);
}

void stage_settled(struct stage *s)
{
    char why[256];

    ck_assert_msg(wait_until(is_idle(s, why, sizeof(why)), ENGINE_MS), "not settled: %s", why);
    if (s->witness.client == NULL)
        return;
    stage_witness_works(s);
    ck_assert_msg(wait_until(is_idle(s, why, sizeof(why)), ENGINE_MS), "not settled: %s", why);
}

void stage_close(struct stage *s)
{
    stage_settled(s);
    if (s->witness.client != NULL)
        engine_close(&s->witness);
    kvc_close(s->figures);
    daemon_stop(s->daemon);
    *s = (struct stage){0};
}
