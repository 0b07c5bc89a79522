/*
 * Peers that die, hang, restart or come late: every request is answered by its deadline, nothing
 * stays held, and what a peer may still write to is not reused.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS        8000
#define REMOTE_MS KVC_REMOTE_MS_MAX /* where what comes is waited for */
#define SHORT_MS  300
#define SILENT_US 61000000u /* more than a peer may be silent (tests/lib/pair.h) */

static struct pair p;
static struct engine a, b; /* workers of the first daemon, and of the last */

static void begin(uint32_t n, const char *mode, uint32_t remote_ms)
{
    const char *const args[] = {"--transfer", mode, NULL};

    pair_open(&p, n, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[n - 1]), remote_ms);
}

static struct daemon *asker(void)
{
    return p.daemons[p.n - 1];
}

static void end(void)
{
    engine_close(&b);
    pair_end(&p);
}

/* Whether the asker has it as gone. */
static bool is_lost(uint32_t i)
{
    struct pair_row row;

    return pair_look(asker(), "serves", i, &row) && strcmp(row.state, "open") != 0;
}

/* Nobody has said anything for so long: whoever lives is linked again. */
static void find_silent(void)
{
    daemon_clock_advance(asker(), SILENT_US);
}

static void kill_source(void)
{
    kvc_close(a.client);
    a = (struct engine){.memory = a.memory, .fd = -1};
    daemon_kill(p.daemons[0]);
    p.daemons[0] = NULL;
}

/* In which state the source is when it dies. */
enum { ANSWERING, PACKING, SENDING, JUDGING, STATES };

START_TEST(T13_a_source_is_killed_in_each_state)
{
    const char *const mode = _i / STATES == 0 ? "views" : "exact";
    const int state = _i % STATES;
    uint32_t blocks = 7;

    begin(2, mode, REMOTE_MS);
    engine_put(&a, 100, 256);
    if (state == ANSWERING)
        daemon_freeze(p.daemons[0]);
    if (state == PACKING)
        daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    if (state == JUDGING)
        daemon_fault_arm(asker(), "peer.judge_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    ck_assert_uint_eq(b.lease.remote, 256);
    if (state == PACKING && _i < STATES)
        wait_for(daemon_fault_fired(p.daemons[0], "peer.pack_late") > 0, MS);
    if (state == JUDGING)
        wait_for(daemon_fault_fired(asker(), "peer.judge_late") > 0, MS);
    kill_source();
    wait_for(is_lost(0), MS);
    if (state == JUDGING)
        daemon_fault_off(asker(), "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    if (state == JUDGING) /* what had come is good */
        ck_assert_uint_le(blocks, 256);
    else if (state != SENDING && !(state == PACKING && _i >= STATES))
        ck_assert_uint_eq(blocks, 0);
    /* What came is right, and the daemon works on. */
    ck_assert_uint_eq(engine_lookup(&b, 100, 256), blocks);
    engine_load(&b);
    engine_release(&b);
    if (blocks == 0)
        engine_put(&b, 100, 256);
    end();
}
END_TEST

START_TEST(T13_a_source_that_hangs_costs_the_deadline_and_no_more)
{
    struct timespec before, after;
    uint32_t blocks = 7;
    double ms;

    begin(2, "views", SHORT_MS);
    engine_put(&a, 100, 10);
    daemon_freeze(p.daemons[0]);
    clock_gettime(CLOCK_MONOTONIC, &before);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 10), KVC_OK);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
         (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    ck_assert_uint_eq(blocks, 0);
    ck_assert_msg(ms < wait_patient_ms(2 * SHORT_MS), "%.0f ms", ms);
    /* It is given up by its silence, and comes back when it goes on. */
    find_silent();
    wait_for(is_lost(0), MS);
    daemon_thaw(p.daemons[0]);
    wait_for(!is_lost(0), 2 * MS);
    engine_close(&b);
    engine_open_with_peers(&b, daemon_socket(asker()), wait_patient_ms(MS));
    engine_verify_all(&b, 100, 10);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T13_other_peers_do_not_notice)
{
    struct engine other;
    char given_up[80];

    begin(3, "views", REMOTE_MS / 2);
    snprintf(given_up, sizeof(given_up), "peer lost name=127.0.0.1:%d reason=\"it is silent\"",
             p.ports[0]);
    engine_open(&other, daemon_socket(p.daemons[1]));
    engine_put(&a, 100, 100);
    engine_put(&other, 5000, 100);
    daemon_freeze(p.daemons[0]);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 100), KVC_OK);
    engine_verify_all(&b, 5000, 100); /* behind the part of its time that those who answer wait */
    find_silent();
    wait_for(daemon_log_count(asker(), given_up) > 0, MS);
    wait_for(!is_lost(0) || !is_lost(1), MS);
    engine_put(&other, 6000, 100);
    engine_verify_all(&b, 6000, 100);
    daemon_thaw(p.daemons[0]);
    wait_for(!is_lost(0) && !is_lost(1), 2 * MS);
    engine_verify_all(&b, 100, 100);
    engine_close(&other);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T13_what_is_lost_at_one_peer_comes_from_another)
{
    struct engine other;
    uint32_t blocks;

    begin(3, "views", REMOTE_MS);
    engine_open(&other, daemon_socket(p.daemons[1]));
    engine_put(&a, 100, 128); /* more, so that it is chosen */
    engine_put(&other, 100, 100);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 128), KVC_OK);
    wait_for(daemon_fault_fired(p.daemons[0], "peer.pack_late") > 0, MS);
    kill_source();
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 100);
    engine_verify(&b, 100, 100);
    engine_close(&other);
    end();
}
END_TEST

START_TEST(T13_an_operation_that_fails)
{
    begin(2, "exact", REMOTE_MS);
    engine_put(&a, 100, 10);
    daemon_fault_arm(p.daemons[0], "ucx.op", 0, 1);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 10), 0);
    ck_assert_uint_eq(daemon_fault_fired(p.daemons[0], "ucx.op"), 1);
    wait_for(!is_lost(0), MS);
    engine_verify_all(&b, 100, 10);
    engine_close(&a);
    end();
}
END_TEST

/*
 * UCX 1.13 aborts when an endpoint ends while its answer to another one's greeting waits, and it
 * greets when a remote key is opened whose operations it emulates: none is.
 */
START_TEST(T13_remote_keys_are_opened_only_where_they_are_used)
{
    struct pair_row row;

    begin(2, "exact", REMOTE_MS);
    row = pair_row(asker(), "serves", 0);
    if (strstr(row.reason, "emulate") != NULL) {
        /* Of the memory for its batches, and no more. */
        ck_assert_uint_eq(row.registrations, 1);
        ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).registrations, 1);
    }
    engine_put(&a, 100, 10);
    engine_verify_all(&b, 100, 10);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T13_an_endpoint_that_cannot_be_made_is_tried_again)
{
    begin(2, "views", REMOTE_MS);
    engine_put(&a, 100, 10);
    daemon_fault_arm(asker(), "ucx.connect", 0, 2);
    daemon_freeze(p.daemons[0]);
    find_silent();
    wait_for(is_lost(0), MS);
    daemon_thaw(p.daemons[0]);
    wait_for(daemon_fault_fired(asker(), "ucx.connect") == 2 && !is_lost(0), 2 * MS);
    engine_verify_all(&b, 100, 10);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T15_an_answer_that_comes_late)
{
    struct engine operator;
    uint32_t blocks = 7;

    begin(2, "views", 100);
    engine_put(&a, 100, 10);
    daemon_freeze(p.daemons[0]);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 10), KVC_OK);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    daemon_thaw(p.daemons[0]);
    wait_for(pair_row(asker(), "serves", 0).dropped == 1, MS);
    /* What it had leased for it is let go. */
    engine_connect(&operator, daemon_socket(p.daemons[0]), KVC_ROLE_OPERATOR);
    wait_for(engine_stats(operator.client).leases == 0, MS);
    engine_close(&operator);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T15_a_source_that_starts_again_is_another)
{
    uint64_t epoch;

    begin(2, "views", REMOTE_MS);
    engine_put(&a, 100, 10);
    engine_verify_all(&b, 100, 10);
    epoch = pair_row(asker(), "serves", 0).epoch;
    kvc_close(a.client);
    daemon_restart_killed(p.daemons[0]);
    wait_for(!is_lost(0) && pair_row(asker(), "serves", 0).epoch > epoch, 2 * MS);
    ck_assert_uint_eq(engine_lookup_all(&b, 5000, 10), 0);
    a = (struct engine){.fd = -1};
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_put(&a, 5000, 10);
    engine_verify_all(&b, 5000, 10);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T14_an_asker_that_dies_leaves_nothing_at_the_source)
{
    begin(2, _i == 0 ? "views" : "exact", REMOTE_MS);
    engine_put(&a, 100, 256);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    if (_i == 0)
        wait_for(daemon_fault_fired(p.daemons[0], "peer.pack_late") > 0, MS);
    kvc_close(b.client);
    b = (struct engine){.memory = b.memory, .fd = -1};
    daemon_kill(p.daemons[1]);
    p.daemons[1] = NULL;
    daemon_fault_off(p.daemons[0], "*");
    pair_settled(p.daemons[0]);
    engine_put(&a, 5000, 100);
    engine_verify(&a, 100, 256);
    engine_close(&a);
    pair_close(&p);
}
END_TEST

START_TEST(T16_one_slow_peer_does_not_delay_the_others)
{
    struct engine other;
    uint32_t blocks;

    begin(3, "views", REMOTE_MS);
    engine_open(&other, daemon_socket(p.daemons[1]));
    engine_put(&a, 100, 256);
    engine_put(&other, 5000, 256);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    for (uint32_t i = 0; i < 3; i++) {
        struct engine c;

        engine_open_with_peers(&c, daemon_socket(asker()), wait_patient_ms(MS));
        engine_verify_all(&c, 5000 + 64 * i, 64);
        engine_close(&c);
    }
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    engine_close(&other);
    engine_close(&a);
    end();
}
END_TEST

START_TEST(T16_bytes_in_flight_are_bounded)
{
    const char *const args[] = {"--transfer", "views", "--peer-bytes", "1M", "--peers-bytes",
                                "1M",         NULL};

    pair_open(&p, 2, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 256);
    /* A batch of 64 blocks is 850 KiB: one at a time. */
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    wait_for(daemon_fault_fired(p.daemons[0], "peer.pack_late") > 50, MS);
    ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).running, 1);
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), NULL), KVC_OK);
    engine_verify(&b, 100, 256);
    engine_close(&a);
    end();
}
END_TEST

CHECK_MAIN_LOOPS(
    "fault/peer_deaths", CHECK_LIFE_S, {T13_a_source_is_killed_in_each_state, 0, 2 * STATES - 1},
    {T13_a_source_that_hangs_costs_the_deadline_and_no_more, 0, 0},
    {T13_other_peers_do_not_notice, 0, 0}, {T13_what_is_lost_at_one_peer_comes_from_another, 0, 0},
    {T13_an_operation_that_fails, 0, 0},
    {T13_remote_keys_are_opened_only_where_they_are_used, 0, 0},
    {T13_an_endpoint_that_cannot_be_made_is_tried_again, 0, 0},
    {T15_an_answer_that_comes_late, 0, 0}, {T15_a_source_that_starts_again_is_another, 0, 0},
    {T14_an_asker_that_dies_leaves_nothing_at_the_source, 0, 1},
    {T16_one_slow_peer_does_not_delay_the_others, 0, 0}, {T16_bytes_in_flight_are_bounded, 0, 0})
