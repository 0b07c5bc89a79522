/* Daemons on two hosts, as far as one machine has them: namespaces of the network. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/hosts.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS        10000
#define REMOTE_MS KVC_REMOTE_MS_MAX /* where what comes is waited for */
#define SILENT_US 61000000u

static struct hosts hosts;
static struct daemon *d[2];
static char listens[2][32], lists[2][32];
static struct engine a, b;

static bool is_open(int i)
{
    struct pair_row row;

    return pair_look(d[i], "serves", 0, &row) && strcmp(row.state, "open") == 0;
}

/* false: the test is to be skipped. Named addresses may connect without a secret. */
static bool begin(const char *mode, uint32_t remote_ms)
{
    if (!hosts_open(&hosts))
        return false;
    for (int i = 0; i < 2; i++) {
        snprintf(listens[i], sizeof(listens[i]), "%s:7733", hosts.addresses[i]);
        snprintf(lists[i], sizeof(lists[i]), "%s:7733", hosts.addresses[1 - i]);
        hosts_enter(&hosts, i);
        d[i] = daemon_start((const char *[]){"--peer-listen", listens[i], "--peers", lists[i],
                                             "--peer-time", "60s", "--transfer", mode, NULL});
        hosts_leave(&hosts);
    }
    wait_for(is_open(0) && is_open(1), MS);
    engine_open(&a, daemon_socket(d[0]));
    engine_open_with_peers(&b, daemon_socket(d[1]), remote_ms);
    return true;
}

static void end(void)
{
    engine_close(&a);
    engine_close(&b);
    for (int i = 0; i < 2; i++) {
        pair_at_rest(d[i]);
    }
    for (int i = 0; i < 2; i++)
        daemon_stop(d[i]);
    hosts_close(&hosts);
}

static const char *const modes[] = {"views", "exact"};

START_TEST(T7_from_host_to_host)
{
    if (!begin(modes[_i], REMOTE_MS))
        TEST_SKIP("no network namespaces here");
    engine_put(&a, 100, 200);
    engine_verify_all(&b, 100, 200);
    end();
}
END_TEST

START_TEST(T13_over_a_network_that_delays_and_loses)
{
    if (!begin(modes[_i], REMOTE_MS))
        TEST_SKIP("no network namespaces here");
    if (!hosts_worsen(&hosts, "delay 5ms 2ms loss 2%")) {
        end();
        TEST_SKIP("no netem here");
    }
    for (uint32_t i = 0; i < 5; i++) {
        engine_put(&a, 1000 * i, 100);
        wait_for(is_open(1) && engine_lookup_all(&b, 1000 * i, 100) == 100, 2 * MS);
        engine_verify(&b, 1000 * i, 100);
    }
    end();
}
END_TEST

START_TEST(T13_a_link_that_goes_down_and_comes_back)
{
    uint32_t blocks = 7;

    if (!begin("views", 1000))
        TEST_SKIP("no network namespaces here");
    engine_put(&a, 100, 256);
    daemon_fault_arm(d[0], "peer.pack_late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_lookup(&b, 100, 256), KVC_OK);
    wait_for(daemon_fault_fired(d[0], "peer.pack_late") > 0, MS);
    hosts_link(&hosts, 0, false);
    daemon_fault_off(d[0], "*");
    ck_assert_int_eq(kvc_remote(b.client, b.lease.fetch, wait_patient_ms(MS), &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    /* Who said nothing for so long is given up; whoever lives is linked again. */
    for (int i = 0; i < 2; i++)
        daemon_clock_advance(d[i], SILENT_US);
    wait_for(!is_open(1), MS);
    /* Without a peer both go on. */
    engine_put(&b, 5000, 20);
    hosts_link(&hosts, 0, true);
    wait_for(is_open(1), 3 * MS);
    wait_for(engine_lookup_all(&b, 100, 256) == 256, 2 * MS);
    engine_verify(&b, 100, 256);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("peer/hosts", CHECK_LONG_S, {T7_from_host_to_host, 0, 1},
                 {T13_over_a_network_that_delays_and_loses, 0, 1},
                 {T13_a_link_that_goes_down_and_comes_back, 0, 0})
