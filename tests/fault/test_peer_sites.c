/* What goes wrong in UCX: a peer less, or a daemon that says why it does not start. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/pair.h"
#include "tests/lib/port.h"
#include "tests/lib/port.h"
#include "tests/lib/wait.h"

#define MS 5000

static struct pair p;

/* Whether blocks of the first daemon come to a worker of the second. */
static bool comes(struct engine *b, uint32_t first, uint32_t n)
{
    return engine_lookup_all(b, first, n) == n;
}

/* _i: an operation, or that and the next endpoint. Blocks are misses until the link is back. */
START_TEST(T12_an_operation_fails)
{
    struct engine a, b;

    pair_open(&p, 2, NULL);
    for (uint32_t i = 0; i < 2; i++)
        daemon_log_allow(p.daemons[i], "peer");
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), wait_patient_ms(MS));
    engine_put(&a, 100, 40);
    daemon_fault_arm(p.daemons[0], "ucx.op", 0, 1);
    if (_i == 1)
        daemon_fault_arm(p.daemons[0], "ucx.connect", 0, 1);
    (void)comes(&b, 100, 40);
    ck_assert_uint_eq(daemon_fault_fired(p.daemons[0], "ucx.op"), 1);
    daemon_fault_off(p.daemons[0], "*");
    engine_put(&a, 1000, 40);
    wait_for(comes(&b, 1000, 40), 4 * MS);
    engine_close(&a);
    engine_close(&b);
    pair_end(&p);
}
END_TEST

/* More batches fail than a peer may have under way: each gives back what it had. */
START_TEST(T13_no_memory_for_what_comes)
{
    struct engine a, b;

    pair_open(&p, 2, NULL);
    wait_for(daemon_log_count(p.daemons[1], "memory is populated") == 1, MS);
    engine_open(&a, daemon_socket(p.daemons[0]));
    engine_open_with_peers(&b, daemon_socket(p.daemons[1]), MS);
    engine_put(&a, 100, 40);
    daemon_fault_arm(p.daemons[1], "peer.ready", 0, UINT32_MAX);
    for (uint32_t i = 0; i < 5; i++)
        ck_assert_uint_eq(engine_lookup_all(&b, 100, 40), 0);
    ck_assert_uint_ge(daemon_fault_fired(p.daemons[1], "peer.ready"), 5);
    ck_assert_uint_eq(pair_row(p.daemons[1], "serves", 0).running, 0);
    daemon_fault_off(p.daemons[1], "*");
    engine_verify_all(&b, 100, 40);
    engine_close(&a);
    engine_close(&b);
    pair_end(&p);
}
END_TEST

START_TEST(T13_ucx_is_not_to_be_had)
{
    static const char *const sites[] = {"ucx.load", "ucx.register"};
    char listen[32], output[2048];
    const char *const args[] = {"--gpu-bytes", "4M", "--host-bytes", "4M", "--peer-listen",
                                listen,        NULL};
    struct daemon *d;
    uint64_t fired;

    snprintf(listen, sizeof(listen), "127.0.0.1:%d", port_take());
    d = daemon_start_armed(args, sites[_i], 0, 1, &fired, output, sizeof(output));
    ck_assert_uint_eq(fired, 1);
    if (d == NULL) {
        ck_assert_ptr_nonnull(strstr(output, "cannot start"));
        return;
    }
    daemon_fault_off(d, "*");
    daemon_log_allow(d, "peer");
    daemon_stop(d);
}
END_TEST

/* Without its k-th allocation a daemon does not start, says why once, and leaves nothing behind; or
 * it was one that serving makes. */
static bool starts(const char *const args[], uint32_t k)
{
    char output[2048];
    uint64_t fired;
    struct daemon *d = daemon_start_armed(args, "mem.alloc", k, 1, &fired, output, sizeof(output));

    if (d == NULL) {
        ck_assert_msg(fired == 1, "refused to start for another reason: %s", output);
        return false;
    }
    daemon_fault_off(d, "*");
    daemon_log_allow(d, "peer");
    daemon_log_allow(d, "memory");
    daemon_stop(d);
    return true;
}

START_TEST(F29_what_peers_need_to_start_fails_once)
{
    char listen[32], list[32];
    const char *const args[] = {"--gpu-bytes", "4M",      "--host-bytes", "4M", "--peer-listen",
                                listen,        "--peers", list,           NULL};
    uint32_t refused = 0;

    snprintf(listen, sizeof(listen), "127.0.0.1:%d", port_take());
    snprintf(list, sizeof(list), "127.0.0.1:%d", port_take());
    /* What comes before is what every daemon needs (fault/sites). */
    for (uint32_t k = 30; k < 80; k++)
        refused += !starts(args, k);
    ck_assert_uint_gt(refused, 10);
}
END_TEST

CHECK_MAIN_LOOPS("fault/peer_sites", CHECK_LIFE_S, {T12_an_operation_fails, 0, 1},
                 {T13_no_memory_for_what_comes, 0, 0}, {T13_ucx_is_not_to_be_had, 0, 1},
                 {F29_what_peers_need_to_start_fails_once, 0, 0})
