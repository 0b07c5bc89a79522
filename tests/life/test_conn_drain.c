// SIGTERM with something in flight: what can still be proved is published, what cannot is waited
// for no longer than KVC_DRAIN_MS.
#include <signal.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define SLOT (64u << 10)

static void expect_stopping(struct talk_worker *w)
{
    static uint8_t in[KVC_WIRE_PACKET_MAX];
    struct wire_packet packet;
    const char *why;

    wait_for(wire_recv(w->sock, in, &packet, &why) == WIRE_OK, 2000);
    ck_assert_uint_eq(packet.type, WIRE_STOPPING);
}

START_TEST(test_a_save_is_published)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;
    Kvcache__SaveReply *reply;
    Kvcache__SaveDone *done;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    reply = talk_save(&w, 1, 100, true);
    ck_assert_int_eq(kill(daemon_pid(d), SIGTERM), 0);
    expect_stopping(&w);
    // Nothing begins any more.
    talk_expect_error(w.sock, talk_send_save(&w, 500, 1, false), KVC_E_STOPPING, "");
    talk_prove_all(&w, reply);
    done = talk_save_done(&w);
    ck_assert_uint_eq(done->status, KVC_OK);
    ck_assert_uint_eq(done->published, 100);
    talk_free(done);
    talk_free(reply);
    ck_assert(talk_ended(w.sock));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(test_it_does_not_wait_for_ever)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    talk_free(talk_save(&w, 1, 100, true));
    ck_assert_int_eq(kill(daemon_pid(d), SIGTERM), 0);
    expect_stopping(&w);
    talk_ping(w.sock);
    daemon_clock_advance(d, KVC_DRAIN_MS * 1000ull);
    wait_for(daemon_log_count(d, "main: stopped") == 1, 2000);
    ck_assert(talk_ended(w.sock));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

// What is in quarantine is nobody's to wait for.
START_TEST(test_quarantine_does_not_block)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w;
    int other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_OPERATOR, NULL);
    Kvcache__StatsReply *stats;

    w = talk_worker_with_slots(daemon_socket(d), SLOT);
    talk_free(talk_save(&w, 1, 100, true));
    talk_worker_close(&w);
    wait_for(({
                 stats = talk_stats(other);
                 uint64_t n = stats->quarantined_slots;
                 talk_free(stats);
                 n == 100;
             }),
             2000);
    close(other);
    ck_assert_int_eq(kill(daemon_pid(d), SIGTERM), 0);
    wait_for(daemon_log_count(d, "main: stopped") == 1, 2000);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("conn/drain", CHECK_LIFE_S, test_a_save_is_published, test_it_does_not_wait_for_ever,
           test_quarantine_does_not_block)
