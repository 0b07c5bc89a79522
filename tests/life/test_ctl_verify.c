/* kvcachectl verify: what is stored is read in the background, and what does not match goes. */
#include <jansson.h>
#include <signal.h>
#include <string.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/wait.h"

#define N 60u

struct scene {
    struct daemon *d;
    struct engine e;
};

static void begin(struct scene *s)
{
    s->d = daemon_start(NULL);
    engine_open(&s->e, daemon_socket(s->d));
    engine_put(&s->e, 0, N);
}

static void end(struct scene *s)
{
    engine_close(&s->e);
    daemon_stop(s->d);
}

/* Spoils the slots of the block that the engine's memory has at block 0, in both tiers. */
static void spoil(struct engine *e, uint32_t key)
{
    uint32_t spoilt = 0;

    engine_fill(e, key, 1);
    for (uint32_t t = 0; t < 2; t++) {
        const struct map_tier *tier = &e->client->map.tiers[t];

        for (uint64_t at = 0; at + 4096 <= tier->bytes; at += 512) {
            uint8_t *slot = map_at(&e->client->map, t, at, 4096);

            if (slot && memcmp(slot, e->memory, 4096) == 0) {
                slot[77] ^= 4;
                spoilt++;
            }
        }
    }
    ck_assert_uint_ge(spoilt, 1);
}

static int verify(const struct scene *s, const char *option, json_t **root)
{
    int status = CTL_RUN("verify", "--json", "--socket", daemon_socket(s->d), option);

    *root = ctl_json();
    return status;
}

START_TEST(S39_a_spoilt_block_is_found_and_dropped)
{
    struct scene s;
    json_t *root;

    begin(&s);
    spoil(&s.e, 7);
    spoil(&s.e, 33);
    daemon_log_expect(s.d, "does not match its checksum");
    ck_assert_int_eq(verify(&s, "--rate=0", &root), 1);
    ck_assert_int_eq(ctl_number(root, "bad"), 2);
    ck_assert_int_eq(ctl_number(root, "checked"), N);
    ck_assert_int_eq(ctl_number(root, "permille"), 1000);
    ck_assert(json_is_false(json_object_get(root, "running")));
    json_decref(root);
    ck_assert_uint_eq(engine_count(&s.e, 0, N), N - 2);
    ck_assert_uint_eq(engine_count(&s.e, 7, 1) + engine_count(&s.e, 33, 1), 0);
    ck_assert_uint_eq(engine_stats(s.e.client).checksum_failures, 2);

    ck_assert_int_eq(verify(&s, "--rate=0", &root), 0);
    ck_assert_int_eq(ctl_number(root, "bad"), 0);
    ck_assert_int_eq(ctl_number(root, "checked"), N - 2);
    ck_assert_int_eq(ctl_number(root, "bytes"), (N - 2) * ENGINE_SLOT_BYTES);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("verify", "--socket", daemon_socket(s.d)), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "verified 58 copies"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), " 0 bad"));
    end(&s);
}
END_TEST

/* Sixty slots are 780 KiB: at 100 KiB a second nearly eight seconds, of which few are waited for.
 */
START_TEST(it_reads_no_faster_than_it_is_told_and_can_be_ended)
{
    kvc_options options = {.role = KVC_ROLE_OPERATOR, .connect_ms = wait_patient_ms(5000)};
    struct admin_verify v = {.running = false};
    kvc_client *operator_;
    struct scene s;
    json_t *root;

    begin(&s);
    options.socket = daemon_socket(s.d);
    ck_assert_int_eq(kvc_connect(&options, &operator_), KVC_OK);
    ck_assert_int_eq(admin_verify(s.e.client, ADMIN_BEGIN, 0, &v), KVC_E_DENIED);
    ck_assert_int_eq(
        CTL_RUN("verify", "--rate", "100K", "--no-wait", "--socket", daemon_socket(s.d)), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "verifying"));
    wait_for(admin_verify(operator_, ADMIN_LOOK, 0, &v) == KVC_OK &&
                 v.bytes >= 4 * ENGINE_SLOT_BYTES,
             10000);
    ck_assert(v.running);
    /* The latest batch may be ahead of its time. */
    ck_assert_uint_ge(v.elapsed_us, (v.bytes - ENGINE_SLOT_BYTES) * 1000000 / (100 << 10));
    ck_assert_int_eq(admin_verify(operator_, ADMIN_BEGIN, 0, &v), KVC_E_BUSY);
    ck_assert_int_eq(verify(&s, "--stop", &root), 0);
    ck_assert(json_is_false(json_object_get(root, "running")));
    ck_assert_int_lt(ctl_number(root, "checked"), N);
    ck_assert_int_lt(ctl_number(root, "permille"), 1000);
    json_decref(root);
    kvc_close(operator_);
    end(&s);
}
END_TEST

/* A batch that takes long holds nobody up, and its blocks may be flushed and overwritten. */
START_TEST(nobody_waits_for_it)
{
    struct scene s;
    json_t *root;

    begin(&s);
    daemon_fault_arm(s.d, "verifier.late", 0, _i == 0 ? UINT32_MAX : 1000);
    ck_assert_int_eq(verify(&s, "--no-wait", &root), 0);
    json_decref(root);
    wait_for(daemon_fault_fired(s.d, "verifier.late") > 10, 5000);
    engine_verify(&s.e, 0, N);
    ck_assert_int_eq(CTL_RUN("flush", "--all", "--socket", daemon_socket(s.d)), 0);
    ck_assert_int_eq(CTL_RUN("verify", "--no-wait", "--socket", daemon_socket(s.d)), 0);
    ck_assert_ptr_nonnull(strstr(ctl_err(), "under way already"));
    if (_i == 0) {
        daemon_fault_off(s.d, "verifier.late");
        engine_register(&s.e, 1);
        engine_put(&s.e, 1000, N);
        ck_assert_int_eq(verify(&s, "--rate=0", &root), 0);
        json_decref(root);
        ck_assert_int_eq(verify(&s, "--rate=0", &root), 0);
        ck_assert_int_eq(ctl_number(root, "checked"), N);
        json_decref(root);
    }
    engine_close(&s.e);
    if (_i == 1) {
        kill(daemon_pid(s.d), SIGTERM);
        wait_for(daemon_log_count(s.d, "stopping signal") == 1, 5000);
    }
    daemon_stop(s.d);
}
END_TEST

START_TEST(verify_takes_no_nonsense)
{
    struct daemon *d = daemon_start(NULL);
    json_t *root;

    ck_assert_int_eq(CTL_RUN("verify", "--rate", "fast", "--socket", daemon_socket(d)), 2);
    ck_assert_int_eq(CTL_RUN("verify", "--rate=-1", "--socket", daemon_socket(d)), 2);
    ck_assert_int_eq(CTL_RUN("verify", "all", "--socket", daemon_socket(d)), 2);
    ck_assert_int_eq(CTL_RUN("verify", "--json", "--socket", daemon_socket(d)), 0); /* nothing */
    root = ctl_json();
    ck_assert_int_eq(ctl_number(root, "checked"), 0);
    json_decref(root);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("ctl/verify", CHECK_LIFE_S, {S39_a_spoilt_block_is_found_and_dropped, 0, 0},
                 {it_reads_no_faster_than_it_is_told_and_can_be_ended, 0, 0},
                 {nobody_waits_for_it, 0, 1}, {verify_takes_no_nonsense, 0, 0})
