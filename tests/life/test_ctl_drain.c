/* kvcachectl drain: nothing new begins, what is under way ends, and it can be undone. */
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/ctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/engine.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

static kvc_status outcome(const struct talk_worker *w, uint16_t type, const ProtobufCMessage *m)
{
    return talk_outcome(w->sock, talk_send(w->sock, type, m));
}

/* A worker with a lease and a save that is not proved. */
struct scene {
    struct daemon *d;
    struct talk_worker w;
    Kvcache__LookupReply *lease;
    Kvcache__SaveReply *save;
};

static void begin(struct scene *s)
{
    s->d = daemon_start(NULL);
    s->w = talk_worker(daemon_socket(s->d), KVCACHE__ROLE__ROLE_WORKER, 1);
    talk_publish(&s->w, 0, 4);
    s->lease = talk_lookup(&s->w, 0, 4);
    s->save = talk_save(&s->w, 100, 2, true);
}

static void end(struct scene *s)
{
    talk_free(s->lease);
    talk_free(s->save);
    talk_worker_close(&s->w);
    daemon_stop(s->d);
}

static void expect_refusals(struct scene *s, kvc_status expected)
{
    Kvcache__Lookup lookup = KVCACHE__LOOKUP__INIT;
    Kvcache__LookupPart part = KVCACHE__LOOKUP_PART__INIT, *parts[] = {&part};
    Kvcache__Extend extend = KVCACHE__EXTEND__INIT;
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;
    int sock = talk_connect(daemon_socket(s->d));

    lookup.keys = talk_keys(0, 4);
    lookup.parts = parts;
    lookup.n_parts = 1;
    lookup.probe = true;
    part.part = s->w.part;
    part.epoch = s->w.epoch;
    ck_assert_int_eq(outcome(&s->w, WIRE_LOOKUP, &lookup.base), expected);
    extend.lease = s->lease->lease;
    ck_assert_int_eq(outcome(&s->w, WIRE_EXTEND, &extend.base), expected);
    ck_assert_int_eq(talk_outcome(s->w.sock, talk_send_save(&s->w, 200, 2, false)), expected);
    hello.version = WIRE_VERSION;
    hello.role = KVCACHE__ROLE__ROLE_WORKER;
    hello.pid = (uint32_t)getpid();
    ck_assert_int_eq(talk_outcome(sock, talk_send(sock, WIRE_HELLO, &hello.base)), expected);
    close(sock);
    talk_ping(s->w.sock);
}

static void load_and_release(struct scene *s)
{
    Kvcache__Load load = KVCACHE__LOAD__INIT;
    Kvcache__Release release = KVCACHE__RELEASE__INIT;
    Kvcache__LoadReply *reply;

    load.lease = s->lease->lease;
    load.part = s->w.part;
    load.epoch = s->w.epoch;
    load.count = 4;
    reply = talk_ask(s->w.sock, WIRE_LOAD, &load.base, &kvcache__load_reply__descriptor);
    talk_write_word(&s->w, reply->word, reply->number);
    talk_free(reply);
    release.lease = s->lease->lease;
    ck_assert_int_eq(outcome(&s->w, WIRE_RELEASE, &release.base), KVC_OK);
}

START_TEST(what_is_under_way_ends_and_nothing_begins)
{
    struct scene s;
    json_t *root;
    pid_t pid;

    begin(&s);
    const char *socket = daemon_socket(s.d);
    pid = ctl_start(-1, (const char *const[]){"drain", "--json", "--socket", socket, NULL});
    wait_for(daemon_log_count(s.d, "drain begins") == 1, 5000);
    expect_refusals(&s, KVC_E_STOPPING);
    ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
    load_and_release(&s);
    talk_prove_all(&s.w, s.save);
    ck_assert_int_eq(ctl_end(pid), 0);
    root = ctl_json();
    ck_assert(json_is_true(json_object_get(root, "drained")));
    ck_assert_int_eq(ctl_number(root, "leases"), 0);
    ck_assert_int_eq(ctl_number(root, "sessions"), 1);
    json_decref(root);
    ck_assert_int_eq(CTL_RUN("status", "--socket", socket), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "draining"));

    ck_assert_int_eq(CTL_RUN("drain", "--undo", "--socket", socket), 0);
    ck_assert_str_eq(ctl_out(), "not draining\n");
    ck_assert_uint_eq(talk_probe(&s.w, 0, 4), 4);
    ck_assert_uint_eq(talk_probe(&s.w, 100, 2), 2);
    end(&s);
}
END_TEST

START_TEST(a_drain_that_takes_too_long_stays_in_force)
{
    struct scene s;
    json_t *root;

    begin(&s);
    const char *socket = daemon_socket(s.d);
    ck_assert_int_eq(CTL_RUN("drain", "--timeout", "1", "--socket", socket), 1);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "draining; 2 slots filling"));
    ck_assert_int_eq(CTL_RUN("drain", "--no-wait", "--json", "--socket", socket), 0);
    root = ctl_json();
    ck_assert(json_is_false(json_object_get(root, "drained")));
    ck_assert_int_eq(ctl_number(root, "filling_slots"), 2);
    ck_assert_int_eq(ctl_number(root, "leases"), 1);
    json_decref(root);
    /* The lease and the save end by their time. */
    daemon_clock_advance(s.d, (KVC_LEASE_MS_DEFAULT + KVC_SAVE_PROOF_MS) * 1000ull);
    ck_assert_int_eq(CTL_RUN("drain", "--timeout", "20", "--socket", socket), 0);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "drained; 1 session connected\n"));
    ck_assert_ptr_nonnull(strstr(ctl_out(), "slots in quarantine: 2 "));
    talk_prove_all(&s.w, s.save);
    end(&s);
}
END_TEST

START_TEST(an_interrupted_drain_says_what_is_left)
{
    struct scene s;
    pid_t pid;

    begin(&s);
    pid = ctl_start(-1, (const char *const[]){"drain", "--socket", daemon_socket(s.d), NULL});
    wait_for(daemon_log_count(s.d, "drain begins") == 1, 5000);
    kill(pid, SIGINT);
    ck_assert_int_eq(ctl_end(pid), 1);
    ck_assert_ptr_nonnull(strstr(ctl_out(), "draining; 2 slots filling, 1 leases\n"));
    talk_prove_all(&s.w, s.save);
    end(&s);
}
END_TEST

/* As an engine has it: errors that it takes for misses, on a connection that stays. */
START_TEST(an_engine_goes_on_without_and_then_with_it)
{
    struct daemon *d = daemon_start(NULL);
    struct engine e, other;
    uint8_t states[8];
    uint64_t save;

    engine_open(&e, daemon_socket(d));
    engine_put(&e, 0, 8);
    ck_assert_uint_eq(engine_lookup(&e, 0, 8), 8);
    ck_assert_int_eq(CTL_RUN("drain", "--no-wait", "--socket", daemon_socket(d)), 0);
    engine_load(&e);
    engine_release(&e);
    ck_assert_int_eq(CTL_RUN("drain", "--socket", daemon_socket(d)), 0);
    ck_assert_int_eq(engine_try_lookup(&e, 0, 8), KVC_E_STOPPING);
    ck_assert_int_eq(engine_try_save(&e, 100, 8, states, &save), KVC_E_STOPPING);
    ck_assert(!engine_try_open(&other, daemon_socket(d), 1000));
    ck_assert_int_eq(kvc_ping(e.client), KVC_OK);
    ck_assert_int_eq(CTL_RUN("drain", "--undo", "--socket", daemon_socket(d)), 0);
    engine_verify(&e, 0, 8);
    engine_put(&e, 100, 8);
    engine_close(&e);
    daemon_stop(d);
}
END_TEST

START_TEST(drain_takes_no_nonsense)
{
    struct daemon *d = daemon_start(NULL);
    const char *socket = daemon_socket(d);
    Kvcache__Drain drain = KVCACHE__DRAIN__INIT;
    Kvcache__Verify verify = KVCACHE__VERIFY__INIT;
    int worker = talk_hello(socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    int admin = talk_hello(socket, KVCACHE__ROLE__ROLE_OPERATOR, NULL);

    ck_assert_int_eq(CTL_RUN("drain", "now", "--socket", socket), 2);
    ck_assert_int_eq(CTL_RUN("drain", "--timeout", "0", "--socket", socket), 2);
    ck_assert_int_eq(CTL_RUN("drain", "--json", "--undo", "--socket", socket), 0);
    json_decref(ctl_json());
    ck_assert_int_eq(talk_outcome(worker, talk_send(worker, WIRE_DRAIN, &drain.base)),
                     KVC_E_DENIED);
    ck_assert_int_eq(talk_outcome(worker, talk_send(worker, WIRE_VERIFY, &verify.base)),
                     KVC_E_DENIED);
    drain.action = 7;
    talk_expect_error(admin, talk_send(admin, WIRE_DRAIN, &drain.base), KVC_E_INVALID, "action");
    verify.action = 7;
    talk_expect_error(admin, talk_send(admin, WIRE_VERIFY, &verify.base), KVC_E_INVALID, "action");
    close(worker);
    close(admin);
    daemon_stop(d);
}
END_TEST

CHECK_MAIN("ctl/drain", CHECK_LIFE_S, what_is_under_way_ends_and_nothing_begins,
           a_drain_that_takes_too_long_stays_in_force, an_interrupted_drain_says_what_is_left,
           an_engine_goes_on_without_and_then_with_it, drain_takes_no_nonsense)
