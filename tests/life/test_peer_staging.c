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
#define SHORT  20000 /* ... who waits a quarter of it for what those say whom it asks, too */
#define BLOCKS 256u  /* of an asker: four batches, of which two at a time are under way */
#define ASKERS 5u
#define PLACES 4u

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
static void begin(uint32_t n, const char *transfer, const char *late)
{
    const char *const args[] = {"--transfer",  transfer, "--gpu-bytes", "32M",
                                "--peer-time", "60s",    NULL};

    pair_open(&p, n + 1, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    for (uint32_t i = 0; i < n; i++)
        engine_put(&a, 1000 * i, BLOCKS);
    daemon_fault_arm(p.daemons[0], late, 0, UINT32_MAX);
}

static void ask(uint32_t i, uint32_t ms)
{
    engine_open_with_peers(&askers[i], daemon_socket(p.daemons[i + 1]), ms);
    ck_assert_int_eq(engine_try_lookup(&askers[i], 1000 * i, BLOCKS), KVC_OK);
}

/* The first n ask, one after the other, and what each may have under way is at the source. */
static void ask_and_stay(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t before = count_batches();

        ask(i, LONG);
        wait_for(count_batches() == before + 2, MS);
    }
}

static void get(uint32_t i)
{
    uint32_t n = 0;

    ck_assert_int_eq(kvc_remote(askers[i].client, askers[i].lease.fetch, SHORT, &n), KVC_OK);
    ck_assert_uint_eq(n, BLOCKS);
    engine_verify(&askers[i], 1000 * i, BLOCKS);
}

static void end(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        engine_close(&askers[i]);
    engine_close(&a);
    pair_end(&p);
}

static uint32_t count_with(unsigned running, uint32_t *last)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i + 1 < p.n; i++) {
        if (batches_of(i).running != running)
            continue;
        *last = i;
        n++;
    }
    return n;
}

/* Whoever asks first has a second place only if that leaves one for each of the others, and one
 * more. */
START_TEST(T16_a_second_place_leaves_one_for_each_other)
{
    const uint32_t first[] = {2, 2, 1}, askers_of[] = {1, 2, 3};
    const uint32_t n = askers_of[_i];
    uint32_t last;

    if (!gpu_is_used())
        TEST_SKIP("no GPU");
    begin(n, "views", "peer.pack_late");
    ask_and_stay(n);
    ck_assert_uint_eq(count_with(2, &last), first[_i] - 1);
    ck_assert_uint_eq(count_with(1, &last), n + 1 - first[_i]);
    daemon_fault_off(p.daemons[0], "*");
    for (uint32_t i = 0; i < n; i++)
        get(i);
    end(n);
}
END_TEST

/* The first four have one place each, and the fifth waits: what becomes free is its. */
START_TEST(T16_memory_to_pass_through_is_shared)
{
    uint32_t last, late;

    if (!gpu_is_used())
        TEST_SKIP("no GPU");
    begin(ASKERS, "views", "peer.pack_late");
    ask_and_stay(ASKERS);
    ck_assert_uint_eq(count_with(1, &last), PLACES);
    ck_assert_uint_eq(count_with(0, &late), 1);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 1, UINT32_MAX);
    wait_for(batches_of(late).running == 1, MS);
    daemon_fault_off(p.daemons[0], "*");
    for (uint32_t i = 0; i < ASKERS; i++)
        get(i);
    end(ASKERS);
}
END_TEST

/*
 * Askers stand still, with all that they may have; they are not yet found silent. One that comes
 * after them is served meanwhile, and they when they go on. Packed blocks leave the place before
 * they are sent, so that any number may hang; others are sent from it, so that one is left.
 */
START_TEST(T16_who_hangs_leaves_memory_to_pass_through)
{
    static const struct {
        const char *transfer, *late;
        uint32_t hanging;
    } ways[] = {{"views", "peer.pack_late", PLACES}, {"exact", "peer.stage_late", PLACES - 1}};
    const uint32_t n = ways[_i].hanging;

    if (!gpu_is_used())
        TEST_SKIP("no GPU");
    begin(n + 1, ways[_i].transfer, ways[_i].late);
    ask_and_stay(n);
    for (uint32_t i = 0; i < n; i++)
        daemon_freeze(p.daemons[i + 1]);
    daemon_fault_off(p.daemons[0], "*");
    ask(n, SHORT);
    get(n);
    for (uint32_t i = 0; i < n; i++)
        daemon_thaw(p.daemons[i + 1]);
    for (uint32_t i = 0; i < n; i++)
        get(i);
    end(n + 1);
}
END_TEST

CHECK_MAIN_LOOPS("peer/staging", CHECK_LONG_S, {T16_a_second_place_leaves_one_for_each_other, 0, 2},
                 {T16_memory_to_pass_through_is_shared, 0, 0},
                 {T16_who_hangs_leaves_memory_to_pass_through, 0, 1})
