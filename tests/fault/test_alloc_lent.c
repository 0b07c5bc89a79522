// Allocation number k fails, for every k that a request makes of a worker that lends its memory to
// the daemon, and of the copies that follow (F29). The request is refused as out of memory, or
// what it began ends so; nothing is left behind, and the same then succeeds.
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/talk_region.h"
#include "tests/lib/wait.h"

#define K_MAX     64u // more allocations than a request makes
#define SETTLE_MS 5000

static struct neighbour n;
static struct talk_lender l;
static uint64_t region, lease;
static int memory;
static uint8_t key; // another one at each turn

static void registered(void)
{
    talk_lender_open(&l, n.socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
}

static void begun(void)
{
    registered();
    region = talk_region_begin(&l);
}

static void added(void)
{
    begun();
    talk_region_add(&l, region, TALK_REGION_PIECE, 0, memory);
}

static void lent(void)
{
    registered();
    region = talk_region_make(&l, memory);
}

static void suspended(void)
{
    lent();
    talk_region_ask(&l, WIRE_SUSPEND, region);
}

static uint32_t ask_begin(void)
{
    return talk_send(l.sock, WIRE_REGION_BEGIN, &l.shape.base);
}

static uint32_t ask_part(void)
{
    return talk_region_part(&l, region, 1, KVCACHE__MEMORY_KIND__MEMORY_MEMFD, TALK_REGION_PIECE, 0,
                            memory, 1);
}

static uint32_t ask_end(void)
{
    return talk_region_send(&l, WIRE_REGION_END, region);
}

static uint32_t ask_drop(void)
{
    return talk_region_send(&l, WIRE_REGION_DROP, region);
}

static uint32_t ask_suspend(void)
{
    return talk_region_send(&l, WIRE_SUSPEND, region);
}

static uint32_t ask_resume(void)
{
    return talk_region_send(&l, WIRE_RESUME, region);
}

static uint32_t ask_save(void)
{
    Kvcache__SaveEntry entry;
    Kvcache__Save save;

    talk_region_save(&l, region, key, 0, &save, &entry);
    return talk_send(l.sock, WIRE_SAVE, &save.base);
}

// What was begun has ended, one way or another.
static bool is_settled(void)
{
    Kvcache__StatsReply *stats = talk_stats(n.worker.sock);
    const bool settled = stats->filling_slots == 0;

    talk_free(stats);
    return settled;
}

// A block of this turn's key, leased.
static void leased(void)
{
    Kvcache__Lookup lookup = KVCACHE__LOOKUP__INIT;
    Kvcache__LookupPart part = KVCACHE__LOOKUP_PART__INIT, *parts[1] = {&part};
    Kvcache__SaveEntry entry;
    Kvcache__LookupReply *reply;
    Kvcache__Save save;

    lent();
    talk_region_save_key(&l, region, key, 0);
    wait_for(is_settled(), SETTLE_MS);
    talk_region_save(&l, region, key, 0, &save, &entry);
    part.part = l.part;
    part.epoch = l.epoch;
    lookup.keys = entry.keys;
    lookup.n_parts = 1;
    lookup.parts = parts;
    reply = talk_ask(l.sock, WIRE_LOOKUP, &lookup.base, &kvcache__lookup_reply__descriptor);
    ck_assert_uint_eq(reply->count, 1);
    lease = reply->lease;
    talk_free(reply);
}

static uint32_t ask_load(void)
{
    Kvcache__Load load = KVCACHE__LOAD__INIT;
    uint32_t block = 1;

    load.lease = lease;
    load.part = l.part;
    load.epoch = l.epoch;
    load.count = 1;
    load.region = region;
    load.n_blocks = 1;
    load.blocks = &block;
    return talk_send(l.sock, WIRE_LOAD, &load.base);
}

static const struct request {
    const char *name;
    void (*prepare)(void);
    uint32_t (*ask)(void);
    uint32_t allocations; // at least so many can fail
} requests[] = {
    {"REGION_BEGIN", registered, ask_begin, 2},
    {"REGION_PART", begun, ask_part, 0},
    {"REGION_END", added, ask_end, 2},
    {"REGION_DROP", lent, ask_drop, 0},
    {"SUSPEND", lent, ask_suspend, 0},
    {"RESUME", suspended, ask_resume, 0},
    {"SAVE", lent, ask_save, 2},
    {"LOAD", leased, ask_load, 1},
};
#define N_REQUESTS ((int)(sizeof(requests) / sizeof(requests[0])))

// Whether there was an allocation k to fail.
static bool turn(const struct request *r, uint32_t k)
{
    kvc_status status;
    uint64_t fired;

    key++;
    r->prepare();
    daemon_fault_arm(n.daemon, "mem.alloc", k, 1);
    status = talk_outcome(l.sock, r->ask());
    wait_for(is_settled(), SETTLE_MS);
    fired = daemon_fault_fired(n.daemon, "mem.alloc");
    daemon_fault_off(n.daemon, "mem.alloc");
    ck_assert_msg(status == KVC_OK ||
                      (fired > 0 && (status == KVC_E_NO_MEMORY || status == KVC_E_DISCONNECTED)),
                  "%s, allocation %u: %s", r->name, k, kvc_status_text(status));
    close(l.sock);
    key++;
    r->prepare();
    status = talk_outcome(l.sock, r->ask());
    ck_assert_msg(status == KVC_OK, "%s after a failure: %s", r->name, kvc_status_text(status));
    close(l.sock);
    neighbour_works(&n);
    return fired > 0;
}

START_TEST(F29_every_allocation_of_a_lender_fails_once)
{
    const struct request *r = &requests[_i];
    uint32_t k = 0;

    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "out of memory");
    daemon_log_allow(n.daemon, "no_memory");
    memory = talk_region_good_memfd();
    // What is made once, and stays.
    lent();
    close(l.sock);
    while (k < K_MAX && turn(r, k))
        k++;
    ck_assert_uint_lt(k, K_MAX);
    ck_assert_msg(k >= r->allocations, "%s: only %u allocations failed", r->name, k);
    close(memory);
    neighbour_works(&n);
    talk_worker_close(&n.worker);
    daemon_stop(n.daemon);
}
END_TEST

CHECK_MAIN_LOOPS("fault/alloc_lent", CHECK_LIFE_S,
                 {F29_every_allocation_of_a_lender_fails_once, 0, N_REQUESTS - 1})
