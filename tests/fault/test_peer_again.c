/* What a peer does too late, and what it does again and again. */
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS     8000
#define BLOCKS 256u
#define OTHERS 16u /* times BLOCKS: more than both tiers of the asker hold */

static struct pair p;
static struct engine a, b, operator; /* of the source; of the asker */

static void begin(const char *const args[], uint32_t remote_ms)
{
    pair_open(&p, 2, args);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), remote_ms);
    engine_connect(&operator, daemon_socket(p.daemons[1]), KVC_ROLE_OPERATOR);
}

static void end(void)
{
    engine_close(&a);
    engine_close(&b);
    engine_close(&operator);
    pair_end(&p);
}

/* Both ways. */
static bool is_open(void)
{
    struct pair_row row;

    return pair_look(p.daemons[1], "serves", 0, &row) && strcmp(row.state, "open") == 0 &&
           pair_look(p.daemons[1], "asks", 0, &row) && strcmp(row.state, "open") == 0;
}

static uint64_t held(void)
{
    struct admin_stats stats = engine_stats(operator.client);

    return stats.filling_slots + stats.quarantined_slots;
}

/* Stops the source while blocks of it are under way; false: they had all come. */
static bool freeze_under_way(uint32_t first)
{
    ck_assert_int_eq(engine_try_lookup(&b, first, BLOCKS), KVC_OK);
    ck_assert_uint_eq(b.lease.remote, BLOCKS);
    wait_for(held() > 0 || engine_probe(&b, first, BLOCKS) == BLOCKS, MS);
    daemon_freeze(p.daemons[0]);
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), NULL), KVC_OK);
    if (held() > 0)
        return true;
    daemon_thaw(p.daemons[0]);
    return false;
}

/*
 * The source is stopped in the middle and goes on when its time is long over. What it still sends
 * goes to slots that nobody has used meanwhile: all else is used, several times over.
 */
START_TEST(F10_a_write_that_comes_late)
{
    const char *const args[] = {
        "--transfer", _i == 0 ? "views" : "exact", "--gpu-bytes", "8M", "--host-bytes", "16M",
        NULL};
    uint32_t first = 100, verified = 0;

    begin(args, 300);
    for (bool caught = false; !caught; first += BLOCKS) {
        ck_assert_uint_lt(first, 100 + 20 * BLOCKS);
        engine_put(&a, first, BLOCKS);
        caught = freeze_under_way(first);
    }
    for (uint32_t i = 0; i < OTHERS; i++)
        engine_put_some(&b, 100000 + i * BLOCKS, BLOCKS);
    ck_assert_uint_gt(held(), 0);
    daemon_thaw(p.daemons[0]);
    wait_for(held() == 0, MS);
    for (uint32_t i = 0; i < OTHERS; i++) {
        if (engine_lookup(&b, 100000 + i * BLOCKS, BLOCKS) == 0)
            continue;
        verified += b.lease.blocks;
        engine_load(&b);
        engine_release(&b);
    }
    ck_assert_uint_gt(verified, BLOCKS);
    end();
}
END_TEST

/* Longer than any lease of blocks that were fetched at once. */
START_TEST(T12_a_lease_at_the_source_outlasts_the_fetch)
{
    const char *const args[] = {"--transfer", "views", NULL};
    struct daemon *source;
    uint32_t blocks;

    begin(args, KVC_REMOTE_MS_MAX);
    source = p.daemons[0];
    engine_put(&a, 100, BLOCKS);
    daemon_fault_arm(source, "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, BLOCKS), KVC_OK);
    wait_for(daemon_fault_fired(source, "peer.pack_late") > 0, MS);
    /* Half of them are not asked for yet. */
    daemon_clock_advance(source, 50000000);
    daemon_fault_off(source, "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, BLOCKS);
    engine_verify(&b, 100, BLOCKS);
    end();
}
END_TEST

static struct admin_debug_reply used(void)
{
    const struct admin_debug nothing = {0};
    struct admin_debug_reply reply;

    ck_assert_int_eq(admin_debug(operator.client, &nothing, &reply), KVC_OK);
    return reply;
}

/* Not more than a message or two that are just under way: far less than one a round. */
static bool is_flat(const struct admin_debug_reply *first)
{
    const struct admin_debug_reply now = used();

    return now.fds <= first->fds && now.live_allocations <= first->live_allocations + 4;
}

/* The asker's memory and descriptors after each source that was killed are those after the second.
 */
START_TEST(F47_a_peer_that_comes_back_again_and_again)
{
    const char *const args[] = {"--transfer", "views", NULL};
    const uint32_t times = check_long() ? 100 : 12;
    struct admin_debug_reply first = {0};

    begin(args, KVC_REMOTE_MS_MAX);
    for (uint32_t i = 0; i < times; i++) {
        kvc_close(a.client);
        daemon_restart_killed(p.daemons[0]);
        wait_for(is_open(), 2 * MS);
        a = (struct engine){.fd = -1};
        engine_open(&a, daemon_socket(p.daemons[0]));
        engine_put(&a, 5000 + 10 * i, 10);
        engine_verify_all(&b, 5000 + 10 * i, 10);
        wait_for(held() == 0, MS);
        if (i == 1)
            first = used();
        if (i > 1)
            wait_for(is_flat(&first), MS);
    }
    end();
}
END_TEST

CHECK_MAIN_LOOPS("fault/peer_again", check_long() ? 4 * CHECK_LIFE_S : CHECK_LIFE_S,
                 {F10_a_write_that_comes_late, 0, 1},
                 {T12_a_lease_at_the_source_outlasts_the_fetch, 0, 0},
                 {F47_a_peer_that_comes_back_again_and_again, 0, 0})
