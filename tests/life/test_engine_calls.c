// What an engine asks of the cache, in the order in which it does: tests/lib/hybrid.h.
#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/hybrid.h"
#include "tests/lib/wait.h"

#define PROMPT  HYBRID_PROMPT
#define LAYERS  HYBRID_LAYERS
#define RANKS   HYBRID_RANKS
#define GROUPS  HYBRID_GROUPS
#define WAIT_MS HYBRID_MS
// Blocks of one rank when a prompt was saved in steps: each leaves the window's blocks and a state.
#define KEPT(blocks, steps) ((blocks) + (steps) * (HYBRID_WINDOW + 1))

static struct hybrid h;

static void load_all(const kvc_lease *lease)
{
    for (uint32_t r = 0; r < RANKS; r++)
        ck_assert_uint_eq(hybrid_load(&h, r, lease, PROMPT), 0);
}

static void expect_quiet(void)
{
    wait_for(hybrid_figures(&h).open_loads == 0, WAIT_MS);
    ck_assert_uint_eq(hybrid_figures(&h).leases, 0);
    ck_assert_uint_eq(hybrid_figures(&h).filling_slots, 0);
    ck_assert_uint_eq(hybrid_figures(&h).quarantined_slots, 0);
}

START_TEST(S40_a_request_from_lookup_to_lookup)
{
    kvc_lease lease, again;

    hybrid_open(&h, NULL);
    // Before it is admitted the scheduler asks again and again: misses cost nothing.
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 0);
    ck_assert_uint_eq(hybrid_figures(&h).leases, 0);
    // Prefill in chunks of several steps, on both ranks at once.
    hybrid_prefill(&h, 0, 8);
    hybrid_prefill(&h, 8, 8);
    hybrid_prefill(&h, 16, PROMPT - 16);
    ck_assert_uint_eq(hybrid_figures(&h).blocks, RANKS * KEPT(PROMPT, 3));
    // The next request of the conversation: no room yet, so it is looked up at each step.
    ck_assert_uint_eq(hybrid_lookup(&h, 8, &lease), PROMPT);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(hybrid_lookup(&h, 8, &again), PROMPT);
        ck_assert_uint_eq(again.id, lease.id);
        ck_assert_mem_eq(again.token, lease.token, KVC_TOKEN_BYTES);
    }
    ck_assert_uint_eq(hybrid_figures(&h).leases, 1);
    // Admitted: the workers load, and the scheduler's lease may go once they have theirs.
    hybrid_overwrite(&h);
    for (uint32_t r = 0; r < RANKS; r++)
        ck_assert_int_eq(hybrid_adopt(&h, r, &lease), KVC_OK);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    for (uint32_t r = 0; r < RANKS; r++)
        hybrid_let_go(&h, r);
    ck_assert_uint_eq(hybrid_lookup(&h, 9, &lease), PROMPT);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    expect_quiet();
    hybrid_close(&h);
}
END_TEST

// Admission without room: its lease ends while it waits, and it is looked up anew.
START_TEST(S30_a_request_that_waits_longer_than_its_lease)
{
    kvc_lease lease, later;

    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 8);
    daemon_clock_advance(h.daemon, (KVC_LEASE_MS_DEFAULT + 1) * CLOCK_MS_US);
    wait_for(hybrid_figures(&h).leases == 0, WAIT_MS);
    // Too late: whoever was told of it is refused, and the scheduler is not.
    ck_assert_int_ne(hybrid_adopt(&h, 0, &lease), KVC_OK);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &later), 8);
    ck_assert_uint_ne(later.id, lease.id);
    load_all(&later);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    ck_assert_int_eq(hybrid_release(&h, later.id), KVC_OK);
    expect_quiet();
    hybrid_close(&h);
}
END_TEST

// Tiers of one extent each have no room for the states, whose slots are of another size.
START_TEST(S10_a_group_without_room_is_a_miss_for_all)
{
    struct step step = {.n = 8, .layers = LAYERS};
    kvc_outcome outcomes[GROUPS];
    kvc_lease lease;

    hybrid_open(&h, (const char *[]){"--gpu-bytes", "2M", "--host-bytes", "0", NULL});
    for (uint32_t r = 0; r < RANKS; r++) {
        hybrid_begin_step(&h, r, &step);
        ck_assert_uint_eq(step.skipped, 1);
        ck_assert(step.nothing[HYBRID_STATE] && !step.nothing[HYBRID_FULL]);
        hybrid_end_step(&h, r, false, outcomes);
        ck_assert_int_eq(outcomes[HYBRID_FULL].status, KVC_OK);
    }
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 0);
    expect_quiet();
    hybrid_close(&h);
}
END_TEST

START_TEST(S36_a_prefix_that_one_rank_has_not)
{
    kvc_lease lease;

    hybrid_open(&h, NULL);
    hybrid_prefill_rank(&h, 0, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 0, &lease), 0);
    ck_assert_uint_eq(hybrid_figures(&h).leases, 0);
    hybrid_prefill_rank(&h, 1, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 0, &lease), 8);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    // One rank loses the fifth block: window and state have nothing to go on before it.
    hybrid_lose(&h, 1, 4);
    ck_assert_uint_eq(hybrid_lookup(&h, 0, &lease), 0);
    // It is computed again from the start; only what is missing is copied.
    hybrid_prefill(&h, 0, 4);
    ck_assert_uint_eq(hybrid_lookup(&h, 0, &lease), 4);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    hybrid_prefill(&h, 4, 4);
    ck_assert_uint_eq(hybrid_lookup(&h, 0, &lease), 8);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    hybrid_close(&h);
}
END_TEST

// A worker dies in the middle of its step; the engine starts another, and what the others have of
// the step is no use until it has it too.
START_TEST(S15_a_rank_that_dies_in_the_middle_of_a_step)
{
    struct step step = {.first = 8, .n = 8, .layers = 2};
    kvc_lease lease;

    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    hybrid_prefill_rank(&h, 0, 8, 8);
    hybrid_begin_step(&h, 1, &step);
    hybrid_kill_rank(&h, 1);
    wait_for(hybrid_figures(&h).filling_slots == 0 && hybrid_figures(&h).quarantined_slots == 0,
             WAIT_MS);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 8);
    hybrid_hire_rank(&h, 1);
    hybrid_overwrite(&h);
    load_all(&lease);
    hybrid_prefill(&h, 8, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 16);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    expect_quiet();
    hybrid_close(&h);
}
END_TEST

// _i: layers of the second step that were saved when the request is preempted; with all of them,
// its words may have come.
START_TEST(S37_preempted_in_the_middle_of_a_save)
{
    struct step step = {.first = 8, .n = 8, .layers = (uint32_t)_i};
    kvc_outcome outcomes[GROUPS];
    const bool whole = _i == LAYERS;
    kvc_lease lease;
    uint32_t there;

    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    // Its second step is under way when its blocks are taken for another request. What a call has
    // copied is copied, so that the sources can be overwritten at once; what the daemon copies is
    // waited for or cancelled first.
    for (uint32_t r = 0; r < RANKS; r++)
        hybrid_begin_step(&h, r, &step);
    if (!check_copies_by_daemon())
        hybrid_overwrite(&h);
    for (uint32_t r = 0; r < RANKS; r++) {
        hybrid_end_step(&h, r, true, outcomes);
        for (uint32_t g = 0; g < GROUPS; g++) {
            ck_assert(outcomes[g].status == KVC_E_CANCELLED ||
                      (whole && outcomes[g].status == KVC_OK));
            ck_assert((outcomes[g].published == 0) == (outcomes[g].status != KVC_OK));
        }
    }
    hybrid_overwrite(&h);
    expect_quiet();
    // It resumes: its first step is there, and of the second nothing, or all.
    there = hybrid_lookup(&h, 7, &lease);
    ck_assert(there == 8 || (whole && there == 16));
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    hybrid_prefill(&h, 8, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 16);
    hybrid_overwrite(&h);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    expect_quiet();
    hybrid_close(&h);
}
END_TEST

// _i: the stage at which the user goes away.
START_TEST(S29_a_request_aborted_at_each_stage)
{
    struct step step = {.first = 8, .n = 4, .layers = _i == 5 ? LAYERS : 1};
    kvc_outcome outcomes[GROUPS];
    kvc_lease lease;
    bool saves = _i == 4 || _i == 5;
    // Ranks that have leases of their own; from stage 3 on the first has loaded and let go, and at
    // stage 6 the second is in the middle of that.
    uint32_t from = _i >= 3, to = _i == 0 ? 0 : _i == 1 ? 1 : RANKS, there;

    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 9, &lease), 8);
    for (uint32_t r = from; r < to; r++)
        ck_assert_int_eq(hybrid_adopt(&h, r, &lease), KVC_OK);
    if (_i >= 3)
        ck_assert_uint_eq(hybrid_load(&h, 0, &lease, PROMPT), 0);
    if (_i == 6)
        hybrid_load_some(&h, 1, 2);
    for (uint32_t r = 0; saves && r < RANKS; r++)
        hybrid_begin_step(&h, r, &step);
    // request_finished, with whatever was begun, in the order in which the processes hear of it.
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    for (uint32_t r = from; r < to; r++)
        hybrid_let_go(&h, r);
    for (uint32_t r = 0; saves && r < RANKS; r++)
        hybrid_end_step(&h, r, true, outcomes);
    expect_quiet();
    // What it had computed is there if all of it was saved, and serves the next one. The daemon's
    // copies may have been called off in between.
    there = hybrid_lookup(&h, 10, &lease);
    ck_assert_uint_ge(there, _i == 5 && !check_copies_by_daemon() ? 12 : 8);
    ck_assert_uint_le(there, _i == 5 ? 12 : 8);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    hybrid_close(&h);
}
END_TEST

START_TEST(S39_a_load_that_fails_names_the_blocks)
{
    kvc_lease lease;

    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 8);
    hybrid_overwrite(&h);
    ck_assert_uint_eq(hybrid_load(&h, 0, &lease, 5), 1u << 5);
    ck_assert_uint_eq(hybrid_load(&h, 1, &lease, PROMPT), 0);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    // The daemon was told: the block is a miss now, until exactly it has been computed again.
    wait_for(hybrid_lookup(&h, 7, &lease) == 0, WAIT_MS);
    hybrid_prefill_rank(&h, 0, 5, 1);
    wait_for(hybrid_lookup(&h, 7, &lease) == 8, WAIT_MS);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    hybrid_close(&h);
}
END_TEST

START_TEST(S42_a_reset_while_saves_are_in_flight)
{
    struct step step = {.first = 8, .n = 8, .layers = 2};
    kvc_outcome outcomes[GROUPS];
    kvc_lease lease;
    kvc_status status;

    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 8);
    hybrid_begin_step(&h, 0, &step);
    // reset_prefix_cache: the scheduler has new weights loaded.
    ck_assert_uint_eq(hybrid_reset(&h), RANKS * KEPT(8, 1));
    status = hybrid_next_layer(&h, 0, &step);
    ck_assert(status == KVC_E_STALE || status == KVC_E_UNKNOWN);
    hybrid_end_step(&h, 0, false, outcomes);
    for (uint32_t g = 0; g < GROUPS; g++)
        ck_assert_int_eq(outcomes[g].status, KVC_E_STALE);
    ck_assert_int_eq(hybrid_extend(&h, lease.id), KVC_E_EXPIRED);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 0); // the scheduler goes on at once
    ck_assert_uint_eq(hybrid_figures(&h).blocks, 0);
    // The workers are told with their next call, and register again.
    step = (struct step){.n = 8};
    ck_assert_int_eq(hybrid_next_layer(&h, 1, &step), KVC_E_STALE);
    hybrid_register_again(&h);
    hybrid_prefill(&h, 0, 8);
    ck_assert_uint_eq(hybrid_lookup(&h, 7, &lease), 8);
    load_all(&lease);
    ck_assert_int_eq(hybrid_release(&h, lease.id), KVC_OK);
    expect_quiet();
    hybrid_close(&h);
}
END_TEST

START_TEST(S40_a_scheduler_pins_a_system_prompt)
{
    hybrid_open(&h, NULL);
    hybrid_prefill(&h, 0, 8);
    ck_assert_uint_eq(hybrid_pin(&h, 8), RANKS * KEPT(8, 1));
    ck_assert_uint_eq(hybrid_figures(&h).pinned_blocks, RANKS * KEPT(8, 1));
    hybrid_close(&h);
}
END_TEST

CHECK_MAIN_LOOPS("life/engine_calls", CHECK_LIFE_S,
                 {S40_a_request_from_lookup_to_lookup, 0, 0, CHECK_BOTH_WAYS},
                 {S30_a_request_that_waits_longer_than_its_lease, 0, 0, CHECK_BOTH_WAYS},
                 {S10_a_group_without_room_is_a_miss_for_all, 0, 0, CHECK_BOTH_WAYS},
                 {S36_a_prefix_that_one_rank_has_not, 0, 0, CHECK_BOTH_WAYS},
                 {S15_a_rank_that_dies_in_the_middle_of_a_step, 0, 0, CHECK_BOTH_WAYS},
                 {S37_preempted_in_the_middle_of_a_save, 1, LAYERS, CHECK_BOTH_WAYS},
                 {S29_a_request_aborted_at_each_stage, 0, 6, CHECK_BOTH_WAYS},
                 {S39_a_load_that_fails_names_the_blocks, 0, 0, CHECK_BOTH_WAYS},
                 {S42_a_reset_while_saves_are_in_flight, 0, 0, CHECK_BOTH_WAYS},
                 {S40_a_scheduler_pins_a_system_prompt, 0, 0, CHECK_BOTH_WAYS})
