// /healthz: well while all makes progress, and otherwise it says what does not.
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/http.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define MINUTE_US 60000000ull
#define FROZEN_US 1500000u

static struct http answer;
static in_port_t port;

static bool health_is(int wanted)
{
    http_get(port, "/healthz", &answer);
    return answer.code == wanted;
}

// Not well, and for this reason among others.
static bool is_wrong(const char *what)
{
    return health_is(503) && strstr(answer.body, what) != NULL &&
           strstr(answer.body, "not well\n") != NULL;
}

static void well(void)
{
    ck_assert(health_is(200));
    ck_assert_int_eq(strncmp(answer.body, "ok\n", 3), 0);
}

START_TEST(a_copy_for_a_worker_that_hangs)
{
    struct engine e;
    struct daemon *d = http_daemon(NULL, &port);
    uint64_t save;

    engine_lends(true);
    engine_open(&e, daemon_socket(d));
    well();
    daemon_fault_arm(d, "copier.late", 0, UINT32_MAX);
    ck_assert_int_eq(engine_try_save(&e, 1, 4, NULL, &save), KVC_OK);
    wait_for(daemon_fault_fired(d, "copier.late") > 0, ENGINE_MS);
    well();
    daemon_clock_advance(d, MINUTE_US);
    wait_for(is_wrong("wrong: a copy for a worker has not ended for 6"), ENGINE_MS);
    http_get(port, "/metrics", &answer);
    ck_assert(http_value(&answer, "kvcached_oldest_copy_seconds{of=\"workers\"}") >= 60);
    daemon_fault_off(d, "copier.late");
    wait_for(health_is(200), ENGINE_MS);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_copy_between_tiers_that_hangs)
{
    struct engine e;
    struct daemon *d = http_daemon((const char *[]){"--gpu-bytes", "4M", NULL}, &port);

    engine_open(&e, daemon_socket(d));
    daemon_fault_arm(d, "mover.late", 0, UINT32_MAX);
    for (uint32_t first = 0; daemon_fault_fired(d, "mover.late") == 0; first += 64) {
        ck_assert_uint_lt(first, 1024);
        engine_put_some(&e, first, 64);
    }
    well();
    daemon_clock_advance(d, MINUTE_US);
    wait_for(is_wrong("wrong: a copy between tiers has not ended for 6"), ENGINE_MS);
    daemon_fault_off(d, "mover.late");
    wait_for(health_is(200), ENGINE_MS);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(a_worker_that_does_not_prove_and_its_quarantine)
{
    struct daemon *d = http_daemon(NULL, &port);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);
    Kvcache__SaveReply *save = talk_save(&w, 1, 4, false);

    well();
    daemon_clock_advance(d, MINUTE_US);
    wait_for(is_wrong("wrong: a worker's copy is not proved for 6"), ENGINE_MS);
    ck_assert_ptr_null(strstr(answer.body, "wrong: slots are in quarantine"));
    daemon_clock_advance(d, 6 * MINUTE_US);
    wait_for(is_wrong("wrong: slots are in quarantine for 3"), ENGINE_MS);
    ck_assert_ptr_nonnull(strstr(answer.body, "quarantined_slots 4\n"));
    talk_prove_all(&w, save);
    wait_for(health_is(200), ENGINE_MS);
    talk_free(save);
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(descriptors_that_do_not_close)
{
    struct daemon *d = http_daemon(NULL, &port);
    struct wire_packet packet = {.type = WIRE_PING + 0x1000, .seq = 5, .n_fds = 1};
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);

    daemon_log_expect(d, "closing a descriptor takes long");
    well();
    daemon_fault_arm(d, "closer.stuck", 0, UINT32_MAX);
    ck_assert_int_eq(wire_send(sock, &packet), WIRE_OK);
    wait_for(is_wrong("wrong: descriptors whose close does not come back: 1"), 4 * ENGINE_MS);
    daemon_fault_off(d, "closer.stuck");
    wait_for(health_is(200), ENGINE_MS);
    close(sock);
    daemon_stop(d);
}
END_TEST

START_TEST(memory_that_is_not_to_be_had)
{
    char output[4096];
    uint64_t fired;
    struct daemon *d = daemon_start_armed((const char *[]){"--metrics", "127.0.0.1:0", NULL},
                                          "device.populate", 1, 1, &fired, output, sizeof(output));

    ck_assert_ptr_nonnull(d);
    daemon_log_expect(d, "no memory to populate");
    daemon_log_expect(d, "no memory for a part of a tier");
    wait_for(daemon_log_count(d, "url=http://") == 1, ENGINE_MS);
    port = http_port(1);
    wait_for(is_wrong("wrong: extents without memory: "), ENGINE_MS);
    daemon_stop(d);
}
END_TEST

// Whoever sends requests here by it is to send them elsewhere.
START_TEST(a_daemon_that_drains)
{
    struct admin_drain drain;
    struct engine operator;
    struct daemon *d = http_daemon(NULL, &port);

    engine_connect(&operator, daemon_socket(d), KVC_ROLE_OPERATOR);
    well();
    ck_assert_int_eq(admin_drain(operator.client, ADMIN_BEGIN, &drain), KVC_OK);
    ck_assert(is_wrong("wrong: the daemon drains, nothing new begins\n"));
    http_get(port, "/metrics", &answer);
    ck_assert(http_value(&answer, "kvcached_draining") == 1);
    ck_assert_int_eq(admin_drain(operator.client, ADMIN_END, &drain), KVC_OK);
    well();
    engine_close(&operator);
    daemon_stop(d);
}
END_TEST

START_TEST(a_loop_that_did_not_run)
{
    struct daemon *d = http_daemon(NULL, &port);

    well();
    daemon_freeze(d);
    usleep(FROZEN_US + 1000000); // its look is at most a second away
    daemon_thaw(d);
    wait_for(is_wrong("wrong: the event loop did not run for "), ENGINE_MS);
    http_get(port, "/metrics", &answer);
    ck_assert(http_value(&answer, "kvcached_event_loop_lag_seconds_sum") >= 1);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("life/health", CHECK_LIFE_S, a_copy_for_a_worker_that_hangs,
           a_copy_between_tiers_that_hangs, a_worker_that_does_not_prove_and_its_quarantine,
           descriptors_that_do_not_close, memory_that_is_not_to_be_had, a_daemon_that_drains,
           a_loop_that_did_not_run)
