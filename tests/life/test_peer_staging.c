/*
 * Blocks that are only on a source's GPU pass through memory of its host, four batches at a time,
 * all askers together: on a GPU or the driver without one.
 */
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/gpu.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS     10000
#define LONG   60000 /* that who hangs has for its fetch */
#define BLOCKS 256u  /* of an asker: four batches, of which two at a time are under way */
#define ASKERS 4u

static struct pair p;
static struct engine a, askers[ASKERS];

/* That the source has begun, or has waiting, for one asker. */
static struct pair_row batches_of(uint32_t i)
{
    return pair_row(p.daemons[0], "asks", i);
}

static uint32_t count_batches(void)
{
    struct pair_row row;
    uint32_t sum = 0;

    for (uint32_t i = 0; pair_look(p.daemons[0], "asks", i, &row); i++)
        sum += row.running + row.waiting;
    return sum;
}

/* The source, and n askers. What passes through stays there until the switch is off. */
static void begin(uint32_t n)
{
    const char *const args[] = {"--transfer",  "views", "--gpu-bytes", "32M",
                                "--peer-time", "60s",   NULL};

    pair_open(&p, n + 1, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    for (uint32_t i = 0; i < n; i++)
        engine_put(&a, 1000 * i, BLOCKS);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
}

/* An asker asks, and what it may have under way is at the source. */
static void ask(uint32_t i)
{
    const uint32_t before = count_batches();

    engine_open_with_peers(&askers[i], daemon_socket(p.daemons[i + 1]), LONG);
    ck_assert_int_eq(engine_try_lookup(&askers[i], 1000 * i, BLOCKS), KVC_OK);
    wait_for(count_batches() == before + 2, MS);
}

static void get(uint32_t i)
{
    uint32_t n = 0;

    ck_assert_int_eq(kvc_remote(askers[i].client, askers[i].lease.fetch, MS, &n), KVC_OK);
    ck_assert_uint_eq(n, BLOCKS);
    engine_verify(&askers[i], 1000 * i, BLOCKS);
}

static void end(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        engine_close(&askers[i]);
    engine_close(&a);
    pair_close(&p);
}

static uint32_t count_with(unsigned running, uint32_t *last)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ASKERS; i++) {
        if (batches_of(i).running != running)
            continue;
        *last = i;
        n++;
    }
    return n;
}

/*
 * The first asker has two batches there, the next two one each, since the last place is for who has
 * none, and the fourth waits: what becomes free is its.
 */
START_TEST(T16_memory_to_pass_through_is_shared)
{
    uint32_t last, late;

    if (!gpu_is_used())
        TEST_SKIP("no GPU");
    begin(ASKERS);
    for (uint32_t i = 0; i < ASKERS; i++)
        ask(i);
    ck_assert_uint_eq(count_with(2, &last), 1);
    ck_assert_uint_eq(count_with(1, &last), 2);
    ck_assert_uint_eq(count_with(0, &late), 1);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 1, UINT32_MAX);
    wait_for(batches_of(late).running == 1, MS);
    daemon_fault_off(p.daemons[0], "*");
    for (uint32_t i = 0; i < ASKERS; i++)
        get(i);
    end(ASKERS);
}
END_TEST

/* Two askers stand still, with all that they may have; they are not yet found silent. A third is
 * served meanwhile, and they when they go on. */
START_TEST(T16_who_hangs_leaves_memory_to_pass_through)
{
    if (!gpu_is_used())
        TEST_SKIP("no GPU");
    begin(3);
    for (uint32_t i = 0; i < 3; i++)
        ask(i);
    for (uint32_t i = 0; i < 2; i++)
        daemon_freeze(p.daemons[i + 1]);
    daemon_fault_off(p.daemons[0], "*");
    get(2);
    for (uint32_t i = 0; i < 2; i++)
        daemon_thaw(p.daemons[i + 1]);
    for (uint32_t i = 0; i < 2; i++)
        get(i);
    end(3);
}
END_TEST

CHECK_MAIN("peer/staging", CHECK_LONG_S, T16_memory_to_pass_through_is_shared,
           T16_who_hangs_leaves_memory_to_pass_through)
