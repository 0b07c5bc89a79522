// Allocation number k fails, for every k that a daemon makes while blocks are brought from a peer,
// or while it links with one again, at either end (F29). What does not come is a miss; nothing is
// left behind, and the same then comes.
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS    5000
#define N     12u  // blocks at a time: all of them together fit into the GPU tier
#define K_MAX 200u // more allocations than either makes

static struct pair p;
static struct engine a; // a worker of the first daemon, whose blocks are brought to the second
static uint32_t next = 1000;

static void begin(void)
{
    pair_open(&p, 2, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        daemon_log_allow(p.daemons[i], "peer");
        daemon_log_allow(p.daemons[i], "out of memory");
        daemon_log_allow(p.daemons[i], "no_memory");
    }
    engine_open(&a, daemon_socket(p.daemons[0]));
}

static void end(void)
{
    engine_close(&a);
    pair_end(&p);
}

static void put(void)
{
    next += N;
    engine_put(&a, next, N);
}

// What comes, comes.
static void ask(struct engine *b)
{
    if (engine_try_lookup(b, next, N) == KVC_OK && b->lease.fetch != 0)
        (void)kvc_remote(b->client, b->lease.fetch, MS, NULL);
}

static bool comes(void)
{
    struct engine b;
    bool all;

    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), MS);
    all = engine_lookup_all(&b, next, N) == N;
    if (all)
        engine_load(&b);
    engine_close(&b);
    return all;
}

// Whether there was an allocation k to fail. `relinks`: the first operation fails, and what is
// allocated for a new link counts, too.
static bool turn(struct daemon *d, bool relinks, uint32_t k)
{
    const uint32_t links = (uint32_t)daemon_log_count(p.daemons[1], "peer open");
    struct engine b;
    uint64_t fired;

    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), MS);
    put();
    if (relinks)
        daemon_fault_arm(p.daemons[0], "ucx.op", 0, 1);
    daemon_fault_arm(d, "mem.alloc", k, 1);
    ask(&b);
    if (relinks)
        wait_for(daemon_fault_fired(d, "mem.alloc") > 0 ||
                     (uint32_t)daemon_log_count(p.daemons[1], "peer open") > links,
                 MS);
    fired = daemon_fault_fired(d, "mem.alloc");
    for (uint32_t i = 0; i < 2; i++)
        daemon_fault_off(p.daemons[i], "*");
    engine_close(&b);
    put();
    wait_for(comes(), 4 * MS);
    return fired > 0;
}

// _i: at the source or at the asker; with a link that is there, or with a new one.
START_TEST(F29_every_allocation_of_a_peer_fails_once)
{
    static const uint32_t least[] = {5, 10, 15, 20};
    uint32_t k = 0;

    begin();
    while (k < K_MAX && turn(p.daemons[_i % 2], _i / 2, k))
        k++;
    ck_assert_uint_lt(k, K_MAX);
    ck_assert_msg(k >= least[_i], "only %u allocations failed", k);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("fault/peer_alloc", CHECK_LONG_S,
                 {F29_every_allocation_of_a_peer_fails_once, 0, 3})
