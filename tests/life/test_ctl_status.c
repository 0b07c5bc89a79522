/* kvcachectl status. */
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

START_TEST(status_has_its_fields)
{
    static const char *const names[] = {"version",       "boot_epoch",
                                        "uptime_s",      "device",
                                        "tiers",         "blocks",
                                        "sessions",      "leases",
                                        "open_loads",    "hits",
                                        "misses",        "evictions",
                                        "filling_slots", "quarantined_slots",
                                        "demotions",     "promotions",
                                        "oldest_op_ms"};
    static const char *const tier_names[] = {"bytes", "used_bytes", "slots", "used_slots"};
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(CTL_RUN("status", "--json", "--socket", daemon_socket(d)), 0);
    root = ctl_json();
    ctl_expect_fields(root, names, sizeof(names) / sizeof(names[0]));
    for (int t = 0; t < 2; t++)
        ctl_expect_fields(json_object_get(json_object_get(root, "tiers"), t ? "host" : "gpu"),
                          tier_names, 4);
    ck_assert_int_eq(ctl_number(json_object_get(json_object_get(root, "tiers"), "gpu"), "bytes"),
                     16 << 20);
    ck_assert_int_eq(ctl_number(root, "sessions"), 0); /* operators do not count */
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("status", "--socket", daemon_socket(d)), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "device host"));
    daemon_stop(d);
}
END_TEST

/* A descriptor that a client has sent, and whose close does not end. */
START_TEST(F4_status_shows_what_does_not_close)
{
    struct daemon *d = daemon_start(NULL);
    struct wire_packet packet = {.type = WIRE_PING + 0x1000, .seq = 5, .n_fds = 1};
    int sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    json_t *root;

    daemon_log_expect(d, "closing a descriptor takes long");
    daemon_fault_arm(d, "closer.stuck", 0, UINT32_MAX);
    packet.fds[0] = 0;
    ck_assert_int_eq(wire_send(sock, &packet), WIRE_OK);
    wait_for(daemon_log_count(d, "closing a descriptor takes long") == 1, CTL_RUN_MS);
    ck_assert_int_eq(CTL_RUN("status", "--json", "--socket", daemon_socket(d)), 0);
    root = ctl_json();
    ck_assert_int_ge(ctl_number(root, "stuck_fds"), 1);
    ck_assert_int_eq(ctl_number(root, "left_open_fds"), 0);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("status", "--socket", daemon_socket(d)), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), " do not close, "));
    daemon_fault_off(d, "closer.stuck");
    close(sock);
    daemon_stop(d);
}
END_TEST

/* Who has how much of the tiers, and of which slot size. */
START_TEST(S24_status_shows_extents)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);
    uint32_t extents = 0;
    const json_t *row;
    json_t *root;
    size_t i;

    talk_publish(&w, 0, 3);
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "--json", "status"), 0);
    root = ctl_json();
    json_array_foreach(json_object_get(root, "extents"), i, row)
    {
        bool used = strcmp(json_string_value(json_object_get(row, "state")), "used") == 0;

        extents += (uint32_t)ctl_number(row, "extents");
        ck_assert_int_eq(ctl_number(row, "slot_bytes") == 8192, used);
        ck_assert_int_eq(ctl_number(row, "used_slots"), used ? 3 : 0);
    }
    ck_assert_uint_eq(extents, w.n_extents);
    ck_assert_int_eq(ctl_number(root, "moved_extents"), 0);
    ck_assert_int_eq(ctl_number(root, "waiting_extents"), 0);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "extents"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "EXTENTS"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "8.0K"));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(S15_status_shows_the_quarantine)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);
    Kvcache__SaveReply *save = talk_save(&w, 0, 3, false);
    const json_t *row;
    json_t *root;

    close(w.sock);
    daemon_clock_advance(d, 5000000);
    do {
        ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "--json", "status"), 0);
        root = ctl_json();
        row = json_array_get(json_object_get(root, "quarantine"), 0);
    } while (row == NULL);
    ck_assert_int_eq(ctl_number(row, "slots"), 3);
    ck_assert_str_eq(ctl_text(row, "state"), "ended");
    ck_assert_int_eq(ctl_number(row, "pid"), (int)getpid());
    ck_assert_int_eq(ctl_number(root, "quarantined_slots"), 3);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "status"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "quarantine 3 slots"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "AGE"));
    talk_prove(&w, save, 0);
    talk_free(save);
    do {
        ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "--json", "status"), 0);
        root = ctl_json();
        row = json_array_get(json_object_get(root, "quarantine"), 0);
        json_decref(root);
    } while (row != NULL);
    munmap(w.page, KVC_PAGE_WORDS * KVC_PAGE_STRIDE);
    daemon_stop(d);
}
END_TEST

static void expect_window(const json_t *root, size_t i, int seconds, int gpu, int misses)
{
    const json_t *window = json_array_get(json_object_get(root, "windows"), i);

    ck_assert_int_eq(ctl_number(window, "seconds"), seconds);
    ck_assert_int_eq(ctl_number(window, "gpu"), gpu);
    ck_assert_int_eq(ctl_number(window, "host"), 0);
    ck_assert_int_eq(ctl_number(window, "peer"), 0);
    ck_assert_int_eq(ctl_number(window, "misses"), misses);
}

static void expect_windows(struct daemon *d, int minute, int quarter)
{
    json_t *root;

    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "--json", "status"), 0);
    root = ctl_json();
    expect_window(root, 0, 60, 8 * minute, 2 * minute);
    expect_window(root, 1, 900, 8 * quarter, 2 * quarter);
    ck_assert_int_eq(ctl_number(json_object_get(root, "hits"), "gpu"), 16);
    ck_assert_int_eq(ctl_number(root, "misses"), 4);
    json_decref(root);
}

/* Eight keys of ten are there. */
START_TEST(status_has_hits_of_the_last_minutes)
{
    struct daemon *d = daemon_start(NULL);
    struct talk_worker w = talk_worker(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, 1);

    talk_publish(&w, 0, 8);
    talk_free(talk_lookup(&w, 0, 10));
    daemon_clock_advance(d, 300000000);
    talk_free(talk_lookup(&w, 0, 10));
    expect_windows(d, 1, 2);
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "status"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "hit gpu       80.0 %    80.0 %    80.0 % "));
    daemon_clock_advance(d, 300000000);
    expect_windows(d, 0, 2);
    daemon_clock_advance(d, 400000000);
    expect_windows(d, 0, 1);
    daemon_clock_advance(d, 600000000);
    expect_windows(d, 0, 0);
    ck_assert_int_eq(CTL_RUN("--socket", daemon_socket(d), "status"), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "hit gpu            -         -    80.0 % "));
    talk_worker_close(&w);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("ctl/status", CHECK_LIFE_S, status_has_its_fields, status_has_hits_of_the_last_minutes,
           F4_status_shows_what_does_not_close, S24_status_shows_extents,
           S15_status_shows_the_quarantine)
