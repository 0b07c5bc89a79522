#include <string.h>
#include <uv.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/base/turn.h"
#include "daemon/tier/mover.h"
#include "tests/lib/check_main.h"
#include "tests/lib/wait.h"

#define MIB (1ull << 20)

struct fixture {
    uv_loop_t loop;
    struct tier *tiers[TIER_COUNT];
    struct mover *mover;
};

struct ended {
    struct fixture *f;
    uint32_t calls, order;
    kvc_status status;
    bool inside_copy;
    struct ended *then; /* asks for another copy from its callback */
};

static uint32_t order;
static bool in_copy;

static void setup(struct fixture *f)
{
    uv_loop_init(&f->loop);
    ck_assert_int_eq(tier_create(TIER_GPU, &device_all_host, 40 * MIB, 2, &f->tiers[TIER_GPU]),
                     KVC_OK);
    ck_assert_int_eq(tier_create(TIER_HOST, &device_all_host, 2 * MIB, 50, &f->tiers[TIER_HOST]),
                     KVC_OK);
    ck_assert_int_eq(mover_create(&f->loop, f->tiers, &f->mover), KVC_OK);
}

/* Runs until every callback has come. */
static void drain(struct fixture *f)
{
    uv_run(&f->loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(mover_count(f->mover), 0);
}

static void teardown(struct fixture *f)
{
    drain(f);
    mover_destroy(f->mover);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&f->loop), 0);
    tier_destroy(f->tiers[TIER_GPU]);
    tier_destroy(f->tiers[TIER_HOST]);
    uv_library_shutdown();
}

static void on_ended(void *arg, kvc_status status);

static kvc_status copy(struct fixture *f, uint64_t from, uint64_t to, uint64_t bytes,
                       struct ended *ended)
{
    struct move move = {
        .from = TIER_GPU, .to = TIER_HOST, .from_offset = from, .to_offset = to, .bytes = bytes};
    kvc_status status;

    ended->f = f;
    in_copy = true;
    status = mover_ops.copy(f->mover, &move, on_ended, ended);
    in_copy = false;
    return status;
}

static void on_ended(void *arg, kvc_status status)
{
    struct ended *ended = arg;

    ended->inside_copy = in_copy;
    ended->calls++;
    ended->order = ++order;
    ended->status = status;
    if (ended->then)
        ck_assert_int_eq(copy(ended->f, 0, 0, 4096, ended->then), KVC_OK);
}

static void expect(const struct ended *ended, kvc_status status)
{
    ck_assert_uint_eq(ended->calls, 1);
    ck_assert_int_eq(ended->status, status);
    ck_assert(!ended->inside_copy);
}

static void fill(uint8_t *at, uint64_t bytes, uint32_t seed)
{
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)((i + seed) * 2654435761u >> 11);
}

START_TEST(a_move_is_exact_and_ends_once)
{
    struct fixture f;
    struct ended ended = {0};
    uint8_t *from, *to;

    setup(&f);
    from = tier_address(f.tiers[TIER_GPU], 0);
    to = tier_address(f.tiers[TIER_HOST], 0);
    fill(from, 80 * MIB, 1);
    memset(to, 0xee, 100 * MIB);
    ck_assert_int_eq(copy(&f, 3 * MIB + 512, 7 * MIB + 1024, 50 * MIB + 3, &ended), KVC_OK);
    ck_assert_uint_eq(ended.calls, 0);
    ck_assert_uint_eq(mover_count(f.mover), 1);
    drain(&f);
    expect(&ended, KVC_OK);
    ck_assert(memcmp(to + 7 * MIB + 1024, from + 3 * MIB + 512, 50 * MIB + 3) == 0);
    ck_assert_uint_eq(to[7 * MIB + 1023], 0xee);
    ck_assert_uint_eq(to[57 * MIB + 1024 + 3], 0xee);
    teardown(&f);
}
END_TEST

START_TEST(moves_are_cut_into_pieces)
{
    struct fixture f;
    struct ended ended = {0};

    setup(&f);
    fault_arm("mover.copy", UINT32_MAX, 1); /* counts */
    ck_assert_int_eq(copy(&f, 0, 0, 16 * MIB, &ended), KVC_OK);
    drain(&f);
    ck_assert_uint_eq(fault_passed("mover.copy"), 1);
    ck_assert_int_eq(copy(&f, 0, 0, 48 * MIB + 1, &ended), KVC_OK);
    drain(&f);
    ck_assert_uint_eq(fault_passed("mover.copy"), 1 + 4);
    teardown(&f);
}
END_TEST

static void run_on_pool(uv_work_t *work)
{
    (void)work;
}

static void ran_on_pool(uv_work_t *work, int status)
{
    *(int *)work->data = status == 0;
}

START_TEST(a_few_pieces_are_in_flight_and_the_pool_stays_free)
{
    struct fixture f;
    struct ended ended[10] = {{0}};
    uv_work_t work[2];
    int ran[2] = {0, 0};

    setup(&f);
    fault_arm("mover.late", 0, UINT32_MAX);
    fault_arm("mover.copy", UINT32_MAX, 1); /* counts */
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(copy(&f, (uint64_t)i * MIB, (uint64_t)i * MIB, MIB, &ended[i]), KVC_OK);
    for (int i = 0; i < 2; i++) {
        work[i].data = &ran[i];
        uv_queue_work(&f.loop, &work[i], run_on_pool, ran_on_pool);
    }
    while (!ran[0] || !ran[1])
        uv_run(&f.loop, UV_RUN_ONCE);
    wait_for(fault_passed("mover.copy") == MOVER_BATCHES, 2000);
    ck_assert_uint_eq(mover_count(f.mover), 10);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(ended[i].calls, 0);
    fault_off("mover.late");
    drain(&f);
    for (int i = 0; i < 10; i++)
        expect(&ended[i], KVC_OK);
    teardown(&f);
}
END_TEST

/* While the first moves are held back the others wait, then they share a trip to the pool. */
START_TEST(small_moves_share_a_batch)
{
    struct fixture f;
    struct ended ended[20] = {{0}};
    uint32_t in_order = 0;

    setup(&f);
    fault_arm("mover.late", 0, UINT32_MAX);
    fault_arm("mover.copy", UINT32_MAX, 1); /* counts */
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(copy(&f, (uint64_t)i * 4096, (uint64_t)i * 4096, 4096, &ended[i]), KVC_OK);
    wait_for(fault_passed("mover.copy") == MOVER_BATCHES, 2000);
    fault_off("mover.late");
    drain(&f);
    for (int i = 0; i < 20; i++)
        expect(&ended[i], KVC_OK);
    for (int i = (int)MOVER_BATCHES + 1; i < 20; i++)
        in_order += ended[i].order == ended[i - 1].order + 1;
    ck_assert_uint_ge(in_order, 20 - MOVER_BATCHES - 2);
    teardown(&f);
}
END_TEST

/* The piece that fails takes its own move with it, and no other of the batch. */
START_TEST(a_failure_in_a_batch_is_of_one_move)
{
    struct fixture f;
    struct ended ended[20] = {{0}};
    uint32_t failed = 0;

    setup(&f);
    fault_arm("mover.copy", 7, 1);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(copy(&f, (uint64_t)i * 4096, (uint64_t)i * 4096, 4096, &ended[i]), KVC_OK);
    drain(&f);
    for (int i = 0; i < 20; i++) {
        ck_assert_uint_eq(ended[i].calls, 1);
        failed += ended[i].status != KVC_OK;
    }
    ck_assert_uint_eq(failed, 1);
    teardown(&f);
}
END_TEST

START_TEST(a_callback_may_ask_for_more)
{
    struct fixture f;
    struct ended second = {0}, first = {.then = &second};

    setup(&f);
    ck_assert_int_eq(copy(&f, 0, 0, 4096, &first), KVC_OK);
    drain(&f);
    expect(&first, KVC_OK);
    expect(&second, KVC_OK);
    teardown(&f);
}
END_TEST

/* _i: which of the five pieces fails; the last one would race with the other move's. */
START_TEST(a_failed_piece_fails_its_move_and_no_other)
{
    struct fixture f;
    struct ended broken = {0}, whole = {0};
    uint8_t *from, *to;

    setup(&f);
    from = tier_address(f.tiers[TIER_GPU], 0);
    to = tier_address(f.tiers[TIER_HOST], 0);
    fill(from, MIB, 9);
    fault_arm("mover.copy", (uint32_t)_i, 1);
    ck_assert_int_eq(copy(&f, 0, 10 * MIB, 80 * MIB, &broken), KVC_OK);
    ck_assert_int_eq(copy(&f, 0, 0, MIB, &whole), KVC_OK);
    drain(&f);
    ck_assert_uint_eq(fault_fired("mover.copy"), 1);
    expect(&broken, KVC_E_DEVICE);
    expect(&whole, KVC_OK);
    ck_assert_mem_eq(to, from, MIB);
    teardown(&f);
}
END_TEST

START_TEST(memory_that_is_not_there_is_a_status)
{
    struct fixture f;
    struct ended ended = {0};

    setup(&f);
    fault_arm("mem.alloc", 0, 1);
    ck_assert_int_eq(copy(&f, 0, 0, 4096, &ended), KVC_E_NO_MEMORY);
    fault_arm("device.populate", 0, 1);
    ck_assert_int_eq(copy(&f, 0, 0, 4096, &ended), KVC_OK);
    drain(&f);
    expect(&ended, KVC_E_NO_MEMORY);
    teardown(&f);
}
END_TEST

START_TEST(a_wrong_move_is_refused_and_never_calls_back)
{
    static const struct move wrong[] = {
        {TIER_GPU, TIER_HOST, 0, 0, 0},          {TIER_GPU, TIER_GPU, 0, 4096, 4096},
        {TIER_GPU, TIER_HOST, 80 * MIB, 0, 1},   {TIER_GPU, TIER_HOST, 0, 100 * MIB - 1, 2},
        {TIER_GPU, TIER_HOST, UINT64_MAX, 0, 2}, {TIER_HOST, TIER_GPU, 0, 0, UINT64_MAX},
        {TIER_COUNT, TIER_GPU, 0, 0, 1},         {TIER_GPU, TIER_COUNT, 0, 0, 1},
    };
    struct fixture f;
    struct ended ended = {0};

    setup(&f);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        ck_assert_int_eq(mover_ops.copy(f.mover, &wrong[i], on_ended, &ended), KVC_E_INVALID);
    drain(&f);
    ck_assert_uint_eq(ended.calls, 0);
    teardown(&f);
}
END_TEST

START_TEST(stop_cancels_what_waits_and_every_callback_comes)
{
    struct fixture f;
    struct ended ended[12] = {{0}}, late = {0};
    uint32_t cancelled = 0;

    setup(&f);
    fault_arm("mover.late", 0, UINT32_MAX);
    fault_arm("mover.copy", UINT32_MAX, 1); /* counts */
    ck_assert_int_eq(copy(&f, 0, 0, 40 * MIB, &ended[0]), KVC_OK);
    for (int i = 1; i < 12; i++)
        ck_assert_int_eq(copy(&f, 0, (uint64_t)i * MIB, MIB, &ended[i]), KVC_OK);
    wait_for(fault_passed("mover.copy") == MOVER_BATCHES, 2000);
    mover_stop(f.mover);
    mover_stop(f.mover);
    for (int i = 0; i < 12; i++)
        ck_assert_uint_eq(ended[i].calls, 0);
    ck_assert_int_eq(copy(&f, 0, 0, 4096, &late), KVC_E_STOPPING);
    fault_off("mover.late");
    drain(&f);
    for (int i = 0; i < 12; i++) {
        ck_assert_uint_eq(ended[i].calls, 1);
        cancelled += ended[i].status == KVC_E_CANCELLED;
    }
    ck_assert_uint_eq(cancelled, 12);
    ck_assert_uint_eq(fault_passed("mover.copy"), MOVER_BATCHES);
    ck_assert_uint_eq(late.calls, 0);
    teardown(&f);
}
END_TEST

START_TEST(stop_lets_what_is_in_flight_end)
{
    struct fixture f;
    struct ended ended[2] = {{0}};
    uint8_t *from;

    setup(&f);
    from = tier_address(f.tiers[TIER_GPU], 0);
    fill(from, 2 * MIB, 3);
    fault_arm("mover.late", 0, UINT32_MAX);
    fault_arm("mover.copy", UINT32_MAX, 1); /* counts */
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(copy(&f, (uint64_t)i * MIB, (uint64_t)i * MIB, MIB, &ended[i]), KVC_OK);
    wait_for(fault_passed("mover.copy") == MOVER_BATCHES, 2000);
    mover_stop(f.mover);
    fault_off("mover.late");
    drain(&f);
    expect(&ended[0], KVC_OK);
    expect(&ended[1], KVC_OK);
    ck_assert_mem_eq(tier_address(f.tiers[TIER_HOST], 0), from, 2 * MIB);
    teardown(&f);
}
END_TEST

/* Callbacks that have come since the loop's latest turn began, and the most of any turn. */
static uint32_t in_turn, most_in_turn;

static void on_turn(uv_prepare_t *prepare)
{
    (void)prepare;
    if (in_turn > most_in_turn)
        most_in_turn = in_turn;
    in_turn = 0;
}

static void on_ended_slowly(void *arg, kvc_status status)
{
    const uint64_t until = clock_now_us() + 2 * TURN_US;

    *(uint32_t *)arg += status == KVC_OK;
    in_turn++;
    while (clock_now_us() < until)
        continue;
}

START_TEST(what_has_ended_is_told_by_turns)
{
    struct fixture f;
    struct move move = {.from = TIER_GPU, .to = TIER_HOST, .bytes = 4096};
    uv_prepare_t prepare;
    uint32_t ended = 0;

    setup(&f);
    uv_prepare_init(&f.loop, &prepare);
    uv_prepare_start(&prepare, on_turn);
    uv_unref((uv_handle_t *)&prepare);
    for (uint32_t i = 0; i < 2 * MOVER_BATCH; i++) {
        move.to_offset = i * move.bytes;
        ck_assert_int_eq(mover_ops.copy(f.mover, &move, on_ended_slowly, &ended), KVC_OK);
    }
    drain(&f);
    ck_assert_uint_eq(ended, 2 * MOVER_BATCH);
    /* One for the end of each batch, and one of those from before. */
    ck_assert_uint_le(most_in_turn, MOVER_BATCHES + 1);
    uv_close((uv_handle_t *)&prepare, NULL);
    teardown(&f);
}
END_TEST

START_TEST(a_mover_of_one_tier)
{
    uv_loop_t loop;
    struct tier *tiers[TIER_COUNT] = {NULL, NULL};
    struct mover *mover = NULL;
    struct move move = {TIER_GPU, TIER_HOST, 0, 0, 4096};
    struct ended ended = {0};

    uv_loop_init(&loop);
    fault_arm("mem.alloc", 0, 1);
    ck_assert_int_eq(mover_create(&loop, tiers, &mover), KVC_E_NO_MEMORY);
    ck_assert_ptr_null(mover);
    ck_assert_int_eq(mover_create(&loop, tiers, &mover), KVC_OK);
    ck_assert_int_eq(mover_ops.copy(mover, &move, on_ended, &ended), KVC_E_INVALID);
    mover_stop(mover);
    mover_destroy(mover);
    mover_destroy(NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    uv_library_shutdown();
}
END_TEST

CHECK_MAIN_LOOPS("tier/mover", CHECK_UNIT_S, {a_move_is_exact_and_ends_once, 0, 0},
                 {moves_are_cut_into_pieces, 0, 0},
                 {a_few_pieces_are_in_flight_and_the_pool_stays_free, 0, 0},
                 {small_moves_share_a_batch, 0, 0}, {a_failure_in_a_batch_is_of_one_move, 0, 0},
                 {a_callback_may_ask_for_more, 0, 0}, {what_has_ended_is_told_by_turns, 0, 0},
                 {a_failed_piece_fails_its_move_and_no_other, 0, 3},
                 {memory_that_is_not_there_is_a_status, 0, 0},
                 {a_wrong_move_is_refused_and_never_calls_back, 0, 0},
                 {stop_cancels_what_waits_and_every_callback_comes, 0, 0},
                 {stop_lets_what_is_in_flight_end, 0, 0}, {a_mover_of_one_tier, 0, 0})
