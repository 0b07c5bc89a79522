/* Blocks that miss here and hit at a peer: fetched, verified, leased. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/wait.h"

#define MS    5000
#define BLOCK 13288u /* the engine's: 4096 + 1000 + 8192 */
#define SPAN  13296u /* the same as it lies in a slot */

static const char *const modes[] = {"auto", "exact", "views"};

static struct pair p;
static struct engine a, b; /* workers of the first daemon, and of the last */

static void begin(uint32_t n, const char *mode)
{
    const char *const args[] = {"--transfer", mode, NULL};

    pair_open(&p, n, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[n - 1]), wait_patient_ms(MS));
}

static void end(void)
{
    engine_close(&a);
    engine_close(&b);
    pair_end(&p);
}

/* Fetched blocks stay leased by the daemon for a moment: that is no lease that somebody left. */
static void let_holds_end(void)
{
    for (uint32_t i = 0; i < p.n; i++)
        daemon_clock_advance(p.daemons[i], 2100000);
}

static struct pair_row asked(void)
{
    return pair_row(p.daemons[p.n - 1], "serves", 0);
}

START_TEST(T7_blocks_come_from_a_peer)
{
    begin(2, modes[_i]);
    engine_put(&a, 100, 200);
    engine_verify_all(&b, 100, 200);
    /* They are blocks of this daemon now: no peer is asked again. */
    engine_verify(&b, 100, 200);
    ck_assert_uint_eq(asked().batches, 4);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T7_exact_moves_only_what_is_useful)
{
    struct pair_row row;

    begin(2, "exact");
    engine_put(&a, 100, 300);
    engine_verify_all(&b, 100, 300);
    row = asked();
    ck_assert_uint_eq(row.useful, 300 * BLOCK);
    /* But for the 8 bytes that align the last slice. */
    ck_assert_uint_eq(row.wire, 300 * SPAN);
    ck_assert(strncmp(row.mode, "exact", 5) == 0);
    let_holds_end();
    end();
}
END_TEST

/* Leaves holes of one block each where the next blocks go. */
static void riddle(struct engine *e, uint32_t first, uint32_t n)
{
    engine_put(e, first, n);
    for (uint32_t i = 0; i < n; i += 2) {
        const uint32_t number = first + i;
        uint8_t key[KVC_KEY_BYTES];
        uint64_t blocks;

        kvc_key(&number, sizeof(number), key);
        ck_assert_int_eq(kvc_flush_keys(e->client, e->part, key, 1, &blocks), KVC_OK);
        ck_assert_uint_eq(blocks, 1);
    }
}

START_TEST(T8_what_lies_apart_comes_in_place)
{
    struct pair_row row;

    begin(2, modes[_i]);
    riddle(&a, 5000, 100);
    riddle(&b, 7000, 60);
    engine_put(&a, 100, 90);
    engine_verify_all(&b, 100, 90);
    row = asked();
    ck_assert_uint_eq(row.batches, 2);
    ck_assert_uint_eq(row.useful, 90 * BLOCK);
    engine_verify(&b, 7001, 1);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T6_counters_of_views)
{
    struct pair_row row;
    const uint64_t full = 64 * SPAN;

    begin(2, "views");
    engine_put(&a, 100, 70);
    /* A full batch, and then one of 6 blocks: the first small one in a row. */
    engine_verify_all(&b, 100, 70);
    row = asked();
    ck_assert_str_eq(row.mode, "views");
    ck_assert_uint_eq(row.batches, 2);
    ck_assert_uint_eq(row.small, 0);
    ck_assert_uint_eq(row.useful, 70 * BLOCK);
    ck_assert_uint_eq(row.wire, 2 * full);
    /* The second small one takes the small view. */
    engine_put(&a, 1000, 5);
    engine_verify_all(&b, 1000, 5);
    ck_assert_uint_eq(asked().wire, 2 * full + (256u << 10));
    ck_assert_uint_eq(asked().small, 1);
    ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).small, 1);
    ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).wire, asked().wire);
    ck_assert_uint_eq(engine_stats(b.client).hits_peer, 75);
    ck_assert_uint_eq(engine_stats(a.client).hits_peer, 0);
    let_holds_end();
    end();
}
END_TEST

/* More than may be on its way at once, each way: neither waits for what only its end would give. */
START_TEST(T1_two_that_load_from_each_other)
{
    const char *const args[] = {"--transfer", modes[_i], "--peer-bytes", "1M", "--peers-bytes",
                                "1M",         NULL};
    uint32_t blocks;

    pair_open(&p, 2, args);
    engine_open_with_peers(&a, daemon_socket(p.daemons[0]), wait_patient_ms(MS));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 400);
    engine_put(&b, 5000, 400);
    ck_assert_int_eq(engine_try_lookup(&a, 5000, 400), KVC_OK);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 400), KVC_OK);
    ck_assert_int_eq(kvc_remote(a.client, a.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 400);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 400);
    engine_verify(&a, 5000, 400);
    engine_verify(&b, 100, 400);
    let_holds_end();
    end();
}
END_TEST

/* One that asks for a single batch does not wait for all of those that were asked for before. */
START_TEST(T16_fetches_of_one_source_take_turns)
{
    struct engine c;
    uint32_t blocks;

    begin(2, "views");
    engine_open_with_peers(&c, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 512);
    engine_put(&a, 5000, 64);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 512), KVC_OK);
    wait_for(pair_row(p.daemons[0], "asks", 0).running == 2, MS);
    ck_assert_int_eq(engine_try_lookup(&c, 5000, 64), KVC_OK);
    wait_for(engine_stats(b.client).filling_slots == 512 + 64, MS);
    /* Those two, the other fetch's, and one more. */
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 4, UINT32_MAX);
    ck_assert_int_eq(kvc_remote(c.client, c.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 64);
    ck_assert_uint_lt(asked().batches, 9);
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 512);
    engine_close(&c);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T5_nothing_is_registered_after_the_start)
{
    uint64_t registrations, theirs;

    begin(2, modes[_i]);
    registrations = asked().registrations;
    theirs = pair_row(p.daemons[0], "asks", 0).registrations;
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t n = i % 3 == 0 ? 80 : 1 + i % 7;

        engine_put(&a, 1000 * (i + 1), n);
        engine_verify_all(&b, 1000 * (i + 1), n);
    }
    ck_assert_uint_eq(asked().registrations, registrations);
    ck_assert_uint_eq(pair_row(p.daemons[0], "asks", 0).registrations, theirs);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T10_batches_of_64_blocks)
{
    begin(2, modes[_i]);
    engine_put(&a, 0, 64);
    engine_verify_all(&b, 0, 64);
    ck_assert_uint_eq(asked().batches, 1);
    engine_put(&a, 1000, 129);
    engine_verify_all(&b, 1000, 129);
    ck_assert_uint_eq(asked().batches, 4);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T21_targets_are_cleared_and_what_arrives_is_verified)
{
    begin(2, modes[_i]);
    for (uint32_t i = 0; i < 4; i++) {
        engine_put(&a, 1000 * i, 100);
        engine_poison(&b);
        ck_assert(!engine_holds(&b, 1000 * i, 1));
        engine_verify_all(&b, 1000 * i, 100);
        ck_assert(engine_holds(&b, 1000 * i, 100));
    }
    let_holds_end();
    end();
}
END_TEST

START_TEST(T9_runs_of_several_sources_are_one_prefix)
{
    struct engine other;

    begin(3, modes[_i]);
    engine_open(&other, daemon_socket(p.daemons[1]));
    engine_put(&a, 100, 50);
    engine_put(&other, 150, 70);
    engine_verify_all(&b, 100, 120);
    ck_assert_uint_gt(
        pair_row(p.daemons[0], "asks", 0).batches + pair_row(p.daemons[0], "asks", 1).batches, 0);
    engine_close(&other);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T19_a_run_comes_from_one_source)
{
    struct engine other;
    uint64_t first, second;

    begin(3, "views");
    engine_open(&other, daemon_socket(p.daemons[1]));
    engine_put(&a, 100, 40);
    engine_put(&other, 100, 60); /* all that the first has, and more */
    engine_verify_all(&b, 100, 60);
    first = pair_row(p.daemons[2], "serves", 0).batches;
    second = pair_row(p.daemons[2], "serves", 1).batches;
    ck_assert_uint_eq(first + second, 1);
    engine_close(&other);
    let_holds_end();
    end();
}
END_TEST

START_TEST(a_prefix_that_is_here_goes_on_at_a_peer)
{
    begin(2, modes[_i]);
    engine_put(&a, 100, 100);
    engine_put(&b, 100, 30);
    engine_verify_all(&b, 100, 100);
    ck_assert_uint_eq(asked().useful, 70 * BLOCK);
    /* More than there is: what there is. */
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 150), 100);
    engine_release(&b);
    /* Nothing. */
    ck_assert_uint_eq(engine_lookup_all(&b, 5000, 10), 0);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T14_nothing_stays_leased_at_the_source)
{
    struct engine operator;

    begin(2, modes[_i]);
    engine_connect(&operator, daemon_socket(p.daemons[0]), KVC_ROLE_OPERATOR);
    engine_put(&a, 100, 100);
    engine_verify_all(&b, 100, 100);
    wait_for(engine_stats(operator.client).leases == 0, MS);
    ck_assert_uint_eq(engine_stats(operator.client).open_loads, 0);
    /* Also when the batch fails at the asker: the whole class of what comes is wrong. */
    daemon_log_expect(p.daemons[1], "a batch is not what was published");
    daemon_fault_arm(p.daemons[1], "peer.judge", 0, 1);
    engine_put(&a, 1000, 100);
    ck_assert_uint_eq(engine_lookup_all(&b, 1000, 100), 0);
    wait_for(engine_stats(operator.client).leases == 0, MS);
    engine_verify_all(&b, 1000, 100);
    engine_close(&operator);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T12_a_refusal_is_a_miss)
{
    begin(2, modes[_i]);
    engine_put(&a, 100, 100);
    daemon_fault_arm(p.daemons[0], "peer.serve", 0, 2);
    ck_assert_uint_eq(engine_lookup_all(&b, 100, 100), 0);
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_uint_gt(pair_row(p.daemons[0], "asks", 0).dropped, 0);
    engine_verify_all(&b, 100, 100);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T11_the_wire_goes_on_while_a_batch_is_unpacked)
{
    kvc_lease lease;

    begin(2, "views");
    engine_put(&a, 100, 256);
    /* The first batch is here and is not unpacked; the second comes all the same. */
    daemon_fault_arm(p.daemons[1], "peer.judge_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    lease = b.lease;
    ck_assert_uint_eq(lease.remote, 256);
    wait_for(pair_row(p.daemons[0], "asks", 0).batches == 2, MS);
    ck_assert_uint_eq(asked().batches, 0);
    daemon_fault_off(p.daemons[1], "*");
    ck_assert_int_eq(kvc_remote(b.client, lease.fetch, wait_patient_ms(MS), NULL), KVC_OK);
    engine_verify(&b, 100, 256);
    let_holds_end();
    end();
}
END_TEST

/* Two workers that miss the same blocks: they come once. */
/* Messages are looked at before UCX says that they have come: what is wrong then is looked at again
 * afterwards. */
START_TEST(T11_what_seems_to_be_here_is_verified_until_it_is)
{
    struct daemon *asker;

    begin(2, "exact");
    asker = p.daemons[1];
    engine_put(&a, 100, 256);
    daemon_fault_arm(asker, "peer.peek", 0, UINT32_MAX);
    engine_verify_all(&b, 100, 256);
    ck_assert_uint_gt(daemon_fault_fired(asker, "peer.peek"), 0);
    let_holds_end();
    end();
}
END_TEST

START_TEST(two_lookups_of_the_same_blocks)
{
    struct engine c;
    kvc_lease lease;

    begin(2, "views");
    engine_open_with_peers(&c, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 128);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 128), KVC_OK);
    lease = b.lease;
    ck_assert_int_eq(engine_try_lookup(&c, 100, 128), KVC_OK);
    ck_assert_int_eq(kvc_remote(c.client, c.lease.fetch, 0, NULL), KVC_E_DEADLINE);
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, lease.fetch, wait_patient_ms(MS), NULL), KVC_OK);
    ck_assert_int_eq(kvc_remote(c.client, c.lease.fetch, wait_patient_ms(MS), NULL), KVC_OK);
    engine_verify(&b, 100, 128);
    engine_verify(&c, 100, 128);
    ck_assert_uint_eq(asked().useful, 128 * BLOCK);
    engine_close(&c);
    let_holds_end();
    end();
}
END_TEST

/* Here, or at the source: what was there before the flush is not what is there after it. */
START_TEST(T12_what_is_flushed_meanwhile_does_not_come)
{
    struct engine *flushes = _i == 0 ? &b : &a;
    uint32_t blocks = 7;

    begin(2, "views");
    engine_put(&a, 100, 256);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    wait_for(pair_row(p.daemons[0], "asks", 0).running == 2, MS);
    ck_assert_int_eq(kvc_flush(flushes->client, flushes->part, NULL), KVC_OK);
    daemon_fault_off(p.daemons[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_le(blocks, _i == 0 ? 0 : 128); /* two batches were read before */
    ck_assert_uint_eq(engine_probe(&b, 100, 256), blocks);
    ck_assert_uint_eq(engine_probe(flushes, 100, 256), 0);
    wait_for(engine_stats(b.client).filling_slots == 0, MS);
    let_holds_end();
    end();
}
END_TEST

START_TEST(a_fetch_is_declined)
{
    uint32_t blocks = 7;

    begin(2, "views");
    engine_put(&a, 100, 256);
    daemon_fault_arm(p.daemons[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    wait_for(pair_row(p.daemons[0], "asks", 0).running == 2, MS);
    ck_assert_int_eq(kvc_decline(b.client, b.lease.fetch), KVC_OK);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, 0, &blocks), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_remote(b.client, 0, 0, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    daemon_fault_off(p.daemons[0], "*");
    wait_for(asked().batches == 2, MS);
    let_holds_end();
    end();
}
END_TEST

START_TEST(T7_the_tool_shows_lane_mode_and_reason)
{
    json_t *rows;
    char *text;

    begin(2, "views");
    text = pair_ctl(p.daemons[1], true);
    rows = json_loads(text, 0, NULL);
    free(text);
    ck_assert_uint_eq(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(rows, i);

        if (strcmp(json_string_value(json_object_get(row, "way")), "serves") != 0)
            continue;
        ck_assert_str_eq(json_string_value(json_object_get(row, "mode")), "views");
        ck_assert_str_ne(json_string_value(json_object_get(row, "lanes")), "");
        ck_assert_str_ne(json_string_value(json_object_get(row, "reason")), "");
        ck_assert_int_ne(json_integer_value(json_object_get(row, "epoch")), 0);
    }
    json_decref(rows);
    text = pair_ctl(p.daemons[1], false);
    ck_assert_ptr_nonnull(strstr(text, "REASON"));
    free(text);
    end();
}
END_TEST

/* Who never asks how it ended does not keep the daemon from anything. */
START_TEST(fetches_that_nobody_asks_for)
{
    begin(2, "views");
    engine_put(&a, 100, 10);
    for (uint32_t i = 0; i < 2 * KVC_SESSION_REMOTES_MAX; i++)
        ck_assert_int_eq(engine_try_lookup(&b, 5000 + i, 1), KVC_OK);
    // While as many as a session may have are under way, a lookup is answered without one.
    wait_for(engine_lookup_all(&b, 100, 10) == 10, MS);
    engine_load(&b);
    engine_release(&b);
    let_holds_end();
    end();
}
END_TEST

CHECK_MAIN_LOOPS(
    "peer/fetch", CHECK_LIFE_S, {T7_blocks_come_from_a_peer, 0, 2},
    {T1_two_that_load_from_each_other, 1, 2}, {T16_fetches_of_one_source_take_turns, 0, 0},
    {T7_exact_moves_only_what_is_useful, 0, 0}, {T6_counters_of_views, 0, 0},
    {T8_what_lies_apart_comes_in_place, 0, 2}, {T5_nothing_is_registered_after_the_start, 0, 2},
    {T10_batches_of_64_blocks, 1, 2}, {T21_targets_are_cleared_and_what_arrives_is_verified, 1, 2},
    {T9_runs_of_several_sources_are_one_prefix, 1, 2}, {T19_a_run_comes_from_one_source, 0, 0},
    {a_prefix_that_is_here_goes_on_at_a_peer, 1, 2}, {T14_nothing_stays_leased_at_the_source, 1, 2},
    {T12_a_refusal_is_a_miss, 1, 2}, {T11_the_wire_goes_on_while_a_batch_is_unpacked, 0, 0},
    {T11_what_seems_to_be_here_is_verified_until_it_is, 0, 0},
    {two_lookups_of_the_same_blocks, 0, 0}, {T12_what_is_flushed_meanwhile_does_not_come, 0, 1},
    {a_fetch_is_declined, 0, 0}, {T7_the_tool_shows_lane_mode_and_reason, 0, 0},
    {fetches_that_nobody_asks_for, 0, 0})
