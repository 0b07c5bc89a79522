// The daemon is killed (SIGKILL) under workers that live on, and started again. Their calls fail
// with a status that says so, at once; they come back by kvc_reconnect, which registers what they
// had registered; the cache is cold and fills again; nothing of the old daemon's memory is taken
// for the new one's.
#include <time.h>
#include <unistd.h>

#include "client/pause.h"
#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/wait.h"

#define WORKERS    4
#define KEYS_OF(w) (10000u * ((uint32_t)(w) + 1))
#define N_KEYS     100u
#define NEW        500000u
#define N_OTHER    400u
#define N_NEW      150u // three chunks

// Far less than any of the limits that these calls wait for an answer.
#define FAST_US (wait_patient_ms(ENGINE_MS) * (uint64_t)1000 / 10)

static uint64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

#define expect_fast(call, status)                                                                  \
    do {                                                                                           \
        uint64_t start_ = now_us();                                                                \
        kvc_status got_ = (call);                                                                  \
        uint64_t took_ = now_us() - start_;                                                        \
        ck_assert_msg(got_ == (status), "%s: %s", #call, kvc_text(got_));                          \
        ck_assert_msg(took_ < FAST_US, "%s took %llu us", #call, (unsigned long long)took_);       \
    } while (0)

// Every call says that the daemon is gone, also the second time.
static void expect_gone(struct engine *e, uint64_t save)
{
    const uint8_t token[KVC_TOKEN_BYTES] = {1};
    kvc_outcome outcome;
    kvc_lease lease;
    uint32_t blocks;

    for (int i = 0; i < 2; i++) {
        expect_fast(engine_try_load(e), KVC_E_DISCONNECTED);
        expect_fast(engine_try_save(e, NEW, 4, NULL, NULL), KVC_E_DISCONNECTED);
        expect_fast(kvc_probe(e->client, &e->part, 1, token, 1, &blocks), KVC_E_DISCONNECTED);
        expect_fast(kvc_lookup(e->client, 0, &e->part, 1, token, 1, 0, &lease), KVC_E_DISCONNECTED);
        expect_fast(kvc_adopt(e->client, token, e->part, 0, &lease), KVC_E_DISCONNECTED);
        expect_fast(kvc_extend(e->client, e->lease.id, 0, NULL), KVC_E_DISCONNECTED);
        expect_fast(kvc_release(e->client, e->lease.id), KVC_E_DISCONNECTED);
        expect_fast(kvc_drain(e->client), KVC_E_DISCONNECTED);
        expect_fast(kvc_ping(e->client), KVC_E_DISCONNECTED);
        expect_fast(kvc_dispatch(e->client), KVC_E_DISCONNECTED);
    }
    if (save != 0) {
        expect_fast(kvc_wait(e->client, save, wait_patient_ms(ENGINE_MS), &outcome), KVC_OK);
        ck_assert(outcome.status == KVC_OK || outcome.status == KVC_E_DISCONNECTED);
        expect_fast(kvc_wait(e->client, save, wait_patient_ms(ENGINE_MS), &outcome),
                    KVC_E_DISCONNECTED);
    }
    // Nobody is there yet.
    expect_fast(kvc_reconnect(e->client), KVC_E_DISCONNECTED);
    expect_fast(kvc_ping(e->client), KVC_E_DISCONNECTED);
}

static void lives_on(struct scene *s)
{
    const uint32_t mine = KEYS_OF(s->number), next = KEYS_OF((s->number + 1) % WORKERS);
    struct engine *e = &s->engine;
    uint64_t boot, save, start;
    kvc_lease old;

    engine_open(e, s->socket);
    boot = kvc_boot_epoch(e->client);
    engine_put(e, mine, N_KEYS);
    ck_assert_uint_eq(engine_lookup(e, mine, N_KEYS), N_KEYS);
    old = e->lease;
    save = engine_save(e, mine + 1000, 4);
    actor_stop();

    expect_gone(e, save);
    actor_stop();

    start = now_us();
    ck_assert_int_eq(kvc_reconnect(e->client), KVC_OK);
    ck_assert_uint_lt(now_us() - start, FAST_US);
    ck_assert_uint_gt(kvc_boot_epoch(e->client), boot);
    // The part is registered again, and what the old daemon named names nothing.
    ck_assert_uint_eq(engine_count(e, mine, N_KEYS), 0);
    e->lease = old;
    ck_assert_int_ne(engine_try_load(e), KVC_OK);
    ck_assert(!engine_holds(e, mine, 1));
    engine_put(e, mine, N_KEYS);
    engine_verify(e, mine, N_KEYS);
    actor_stop();

    // The hit rate is back, also for what the others have saved.
    engine_verify(e, next, N_KEYS);
    engine_verify(e, mine, N_KEYS);
    engine_close(e);
}

START_TEST(F7_daemon_killed_under_four_workers)
{
    struct actor workers[WORKERS];
    struct stage s;

    stage_open_bare(&s, NULL);
    for (int w = 0; w < WORKERS; w++)
        workers[w] = actor_start_numbered(lives_on, s.socket, w);
    for (int w = 0; w < WORKERS; w++)
        actor_until_stop(&workers[w]);
    kvc_close(s.figures);
    daemon_end_killed(s.daemon);
    for (int w = 0; w < WORKERS; w++)
        actor_continue(&workers[w]);
    for (int w = 0; w < WORKERS; w++)
        actor_until_stop(&workers[w]);
    daemon_restart_killed(s.daemon);
    for (int step = 0; step < 2; step++) {
        for (int w = 0; w < WORKERS; w++)
            actor_continue(&workers[w]);
        for (int w = 0; w < WORKERS && step == 0; w++)
            actor_until_stop(&workers[w]);
    }
    for (int w = 0; w < WORKERS; w++)
        actor_end(&workers[w]);
    stage_open_figures(&s);
    stage_close(&s);
}
END_TEST

// Where it is when the daemon goes.
static const char *const points[] = {"save.before_chunk", "save.before_word", "load.before_copy",
                                     "load.before_word"};

// It copies to and from memory of a daemon that is dead, which harms nobody and gives no wrong
// byte; then it reconnects, and the new daemon's memory is other memory.
static void in_a_copy(struct scene *s)
{
    struct engine *e = &s->engine;
    const bool saves = s->number < 2;
    kvc_status status;

    engine_open(e, s->socket);
    engine_put(e, KEYS_OF(0), N_KEYS);
    engine_lookup(e, KEYS_OF(0), N_KEYS);
    pause_arm(points[s->number], 1);
    status = saves ? engine_try_save(e, NEW, N_NEW, NULL, NULL) : engine_try_load(e);
    if (!saves && status == KVC_OK)
        ck_assert(engine_holds(e, KEYS_OF(0), N_KEYS));
    ck_assert_int_eq(kvc_ping(e->client), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(e->client), KVC_OK);
    ck_assert_uint_eq(engine_count(e, KEYS_OF(0), N_KEYS), 0);
    ck_assert_uint_eq(engine_count(e, NEW, N_NEW), 0);
    actor_stop();
    engine_put(e, NEW, N_NEW);
    engine_verify(e, NEW, N_NEW);
    engine_close(e);
}

START_TEST(F7_daemon_killed_in_the_middle_of_a_copy)
{
    struct actor worker;
    struct engine other;
    struct stage s;

    stage_open_bare(&s, NULL);
    worker = actor_start_numbered(in_a_copy, s.socket, _i);
    actor_until_stop(&worker);
    kvc_close(s.figures);
    daemon_restart_killed(s.daemon);
    stage_open_figures(&s);
    // The new daemon's slots are full of somebody's blocks when the late copy comes.
    engine_open(&other, s.socket);
    engine_put(&other, 700000, N_OTHER);
    actor_continue(&worker);
    actor_until_stop(&worker);
    engine_verify(&other, 700000, N_OTHER);
    actor_continue(&worker);
    actor_end(&worker);
    engine_close(&other);
    stage_wait_sessions(&s, 0);
    stage_close(&s);
}
END_TEST

static kvc_status load_and_release(struct engine *e)
{
    kvc_status status = engine_try_load(e);

    if (status != KVC_OK)
        return status;
    ck_assert(engine_holds(e, e->leased, e->lease.blocks));
    return kvc_release(e->client, e->lease.id);
}

// What the old daemon called a lease, a save or a session is the name of nothing in the new one: a
// load with a lease from before cannot bring what somebody has leased since.
START_TEST(F7_names_of_the_old_daemon_name_nothing)
{
    const uint32_t a = KEYS_OF(0), b = KEYS_OF(1);
    uint64_t old_lease, old_save, old_session;
    struct engine e;
    struct stage s;

    stage_open_bare(&s, NULL);
    engine_open(&e, s.socket);
    old_session = kvc_session(e.client);
    old_save = engine_save(&e, a, 4);
    wait_for(engine_probe(&e, a, 4) == 4, ENGINE_MS);
    engine_lookup(&e, a, 4);
    old_lease = e.lease.id;
    kvc_close(s.figures);
    daemon_restart_killed(s.daemon);
    stage_open_figures(&s);
    ck_assert_int_eq(kvc_reconnect(e.client), KVC_OK);
    ck_assert_uint_gt(kvc_session(e.client), old_session);
    for (uint32_t i = 0; i < 50; i++) {
        ck_assert_uint_ne(engine_save(&e, b + 4 * i, 4), old_save);
        wait_for(engine_probe(&e, b + 4 * i, 4) == 4, ENGINE_MS);
        engine_lookup(&e, b + 4 * i, 4);
        ck_assert_uint_ne(e.lease.id, old_lease);
    }
    e.lease.id = old_lease;
    ck_assert_int_eq(engine_try_load(&e), KVC_E_EXPIRED);
    ck_assert(!engine_holds(&e, b, 1));
    engine_close(&e);
    stage_wait_sessions(&s, 0);
    stage_close(&s);
}
END_TEST

// F8: a worker that keeps asking, as engines do, is back by itself when the daemon is.
static void keeps_asking(struct scene *s)
{
    struct engine *e = &s->engine;
    uint64_t failed = 0;

    engine_open(e, s->socket);
    for (uint32_t turn = 0;; turn++) {
        kvc_status status = engine_try_save(e, KEYS_OF(s->number) + turn % 50, 1, NULL, NULL);

        if (status == KVC_OK)
            status = engine_try_lookup(e, KEYS_OF(s->number) + turn % 50, 1);
        if (status == KVC_OK && e->lease.id != 0)
            status = load_and_release(e);
        if (status == KVC_OK) {
            s->told->values[0]++;
            if (s->told->values[1] != 0)
                break;
            continue;
        }
        ck_assert_int_eq(status, KVC_E_DISCONNECTED);
        s->told->values[2] = ++failed;
        if (kvc_reconnect(e->client) != KVC_OK)
            usleep(1000);
    }
    engine_close(e);
}

START_TEST(F8_workers_that_keep_asking_come_back)
{
    struct actor workers[WORKERS];
    struct stage s;

    stage_open_bare(&s, NULL);
    for (int w = 0; w < WORKERS; w++)
        workers[w] = actor_start_numbered(keeps_asking, s.socket, w);
    kvc_close(s.figures);
    for (int round = 0; round < 3; round++) {
        for (int w = 0; w < WORKERS; w++) {
            volatile uint64_t *done = &workers[w].told->values[0];
            uint64_t before = *done;

            wait_for(*done > before + 20, ENGINE_MS);
        }
        if (round < 2)
            daemon_restart_killed(s.daemon);
    }
    for (int w = 0; w < WORKERS; w++) {
        ck_assert_uint_ge(workers[w].told->values[2], 2);
        workers[w].told->values[1] = 1;
    }
    for (int w = 0; w < WORKERS; w++)
        actor_end(&workers[w]);
    stage_open_figures(&s);
    stage_close(&s);
}
END_TEST

CHECK_MAIN_LOOPS("fault/daemon_killed", CHECK_LIFE_S, {F7_daemon_killed_under_four_workers, 0, 0},
                 {F7_daemon_killed_in_the_middle_of_a_copy, 0, 3},
                 {F7_names_of_the_old_daemon_name_nothing, 0, 0},
                 {F8_workers_that_keep_asking_come_back, 0, 0})
