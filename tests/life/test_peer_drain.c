/* A daemon that drains, and its peers: they find nothing, it fetches nothing, and both go on when
 * it is undone. */
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS        8000
#define REMOTE_MS 60000 /* of a silent peer: a quarter of it */

static struct pair p;
static struct engine a, b; /* workers of the first daemon, and of the second, which asks */

/* Long before the peer's part of the time is over; valgrind needs that for itself. */
static bool is_soon(const struct timespec *before, const struct timespec *after)
{
    return check_valgrind() || after->tv_sec - before->tv_sec < REMOTE_MS / 6000;
}

static void begin(void)
{
    const char *const args[] = {"--transfer", "views", NULL};

    pair_open(&p, 2, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), REMOTE_MS);
    engine_put(&a, 100, 20);
}

static void end(void)
{
    engine_close(&a);
    engine_close(&b);
    pair_end(&p);
}

/* Of a drain that is over: everything is 0. */
static void drain(const struct daemon *d)
{
    ck_assert_int_eq(CTL_RUN("drain", "--timeout", "20", "--socket", daemon_socket(d)), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "drained; "));
}

static void undo(const struct daemon *d)
{
    ck_assert_int_eq(CTL_RUN("drain", "--undo", "--socket", daemon_socket(d)), 0);
}

START_TEST(peers_find_nothing_at_once)
{
    struct timespec before, after;
    uint64_t batches;

    begin();
    engine_verify_all(&b, 100, 5);
    batches = pair_row(p.daemons[0], "asks", 0).batches;
    drain(p.daemons[0]);
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 20), 5);
    clock_gettime(CLOCK_MONOTONIC, &after);
    engine_release(&b);
    /* It was told so, and did not wait for an answer. */
    ck_assert(is_soon(&before, &after));
    ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).batches, batches);
    ck_assert_str_eq(pair_row(p.daemons[1], "serves", 0).state, "open");
    undo(p.daemons[0]);
    engine_verify_all(&b, 100, 20);
    end();
}
END_TEST

/* What a peer has leased it may still take. */
START_TEST(a_batch_of_a_peer_ends_first)
{
    uint32_t blocks;
    json_t *root;

    begin();
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 20), KVC_OK);
    wait_for(daemon_fault_fired(p.daemons[0], "peer.pack_late") > 0, MS);
    ck_assert_int_eq(
        CTL_RUN("drain", "--no-wait", "--json", "--socket", daemon_socket(p.daemons[0])), 0);
    root = ctl_json();
    ck_assert(json_is_false(json_object_get(root, "drained")));
    ck_assert_int_eq(ctl_number(root, "open_loads"), 1);
    json_decref(root);
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, REMOTE_MS, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 20);
    drain(p.daemons[0]);
    engine_verify(&b, 100, 20);
    undo(p.daemons[0]);
    end();
}
END_TEST

/* Nothing more is fetched for a worker, who is told so now: he could not look it up. */
START_TEST(what_is_asked_of_peers_ends)
{
    struct timespec before, after;
    uint32_t blocks = 7;

    begin();
    daemon_freeze(p.daemons[0]);
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 20), KVC_OK);
    ck_assert_uint_eq(b.lease.remote, 20);
    drain(p.daemons[1]);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, REMOTE_MS, &blocks), KVC_OK);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_uint_eq(blocks, 0);
    ck_assert(is_soon(&before, &after));
    ck_assert_int_eq(engine_try_lookup(&b, 100, 20), KVC_E_STOPPING);
    daemon_thaw(p.daemons[0]);
    undo(p.daemons[1]);
    engine_verify_all(&b, 100, 20);
    end();
}
END_TEST

/* A batch that moves is waited for, and said. */
START_TEST(a_fetch_that_moves_ends_first)
{
    json_t *root;

    begin();
    daemon_fault_arm(p.daemons[1], "peer.judge_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 20), KVC_OK);
    wait_for(daemon_fault_fired(p.daemons[1], "peer.judge_late") > 0, MS);
    ck_assert_int_eq(CTL_RUN("drain", "--timeout", "1", "--socket", daemon_socket(p.daemons[1])),
                     1);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "1 fetches"));
    daemon_fault_off(p.daemons[1], "*");
    ck_assert_int_eq(
        CTL_RUN("drain", "--timeout", "20", "--json", "--socket", daemon_socket(p.daemons[1])), 0);
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "fetches"), 0);
    json_decref(root);
    undo(p.daemons[1]);
    engine_verify_all(&b, 100, 20);
    end();
}
END_TEST

CHECK_MAIN("peer/drain", CHECK_LIFE_S, peers_find_nothing_at_once, a_batch_of_a_peer_ends_first,
           what_is_asked_of_peers_ends, a_fetch_that_moves_ends_first)
