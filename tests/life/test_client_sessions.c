// Several processes with one daemon, and what becomes of a client when the daemon or it goes away.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/client.h"
#include "client/pause.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

#define N 100u // blocks of the tests' prompt: two chunks

// What processes of a test tell each other.
struct shared {
    uint8_t token[KVC_TOKEN_BYTES];
    int step;
};

struct worker {
    kvc_client *client;
    struct kv kv;
    kvc_part part;
    uint8_t keys[N * KVC_KEY_BYTES];
    uint32_t ids[N];
};

static struct daemon *d;
static struct shared *shared;

static void begin(const char *const *args)
{
    d = daemon_start(args);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
}

// Also for children, which have no frame of a test around them.
static bool worker_open(struct worker *w, kvc_role role)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .role = role,
                                 .connect_ms = 5000,
                                 .save_ms = 5000,
                                 .lookup_ms = 5000,
                                 .load_ms = 5000};

    kv_init(&w->kv, (const uint32_t[]){512, 36}, 2, N);
    if (role == KVC_ROLE_SCHEDULER) // copies nothing, whoever does
        w->kv.desc.copy = KVC_COPY_WORKER;
    kv_keys(1, 0, N, w->keys);
    kv_ids(0, N, w->ids);
    return kvc_connect(&options, &w->client) == KVC_OK &&
           kvc_register(w->client, &w->kv.desc, &w->part) == KVC_OK;
}

static void worker_close(struct worker *w)
{
    kvc_close(w->client);
    kv_free(&w->kv);
}

static kvc_status save_all(struct worker *w, uint64_t *id)
{
    const kvc_save_entry entry = {w->part, w->keys, w->ids, N, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    for (uint32_t i = 0; i < N; i++)
        kv_fill(&w->kv, i, i);
    return kvc_save(w->client, &args, id);
}

static bool load_all(struct worker *w, uint64_t lease, uint32_t n)
{
    const kvc_load_args args = {.lease = lease, .part = w->part, .count = n, .blocks = w->ids};

    for (uint32_t i = 0; i < n; i++)
        kv_clear(&w->kv, i);
    if (kvc_load(w->client, &args) != KVC_OK)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (!kv_holds(&w->kv, i, i))
            return false;
    return true;
}

static uint32_t lookup(struct worker *w, kvc_lease *lease)
{
    if (kvc_lookup(w->client, 0, &w->part, 1, w->keys, N, 0, lease) != KVC_OK)
        return 0;
    return lease->blocks;
}

static bool load_prefix(struct worker *w)
{
    kvc_lease lease;

    return lookup(w, &lease) == N && load_all(w, lease.id, N) &&
           kvc_release(w->client, lease.id) == KVC_OK;
}

static struct admin_stats figures(struct worker *w)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(w->client, &stats), KVC_OK);
    return stats;
}

static bool nothing_owed(struct worker *w)
{
    struct admin_stats stats = figures(w);

    return stats.filling_slots == 0 && stats.quarantined_slots == 0 && stats.open_loads == 0;
}

START_TEST(two_processes_share)
{
    struct worker w = {0};
    pid_t child;

    begin(NULL);
    child = proc_fork();
    if (child == 0) {
        uint64_t id;
        kvc_outcome outcome;

        _exit(worker_open(&w, KVC_ROLE_WORKER) && save_all(&w, &id) == KVC_OK &&
                      kvc_wait(w.client, id, 5000, &outcome) == KVC_OK && outcome.published == N
                  ? 0
                  : 1);
    }
    proc_wait_ok(child, 5000);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    ck_assert(load_prefix(&w));
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(readers_load_and_cannot_write)
{
    struct worker w = {0}, r = {0};
    uint64_t id;
    pid_t child;
    int status;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    child = proc_fork();
    if (child == 0) {
        volatile uint8_t *slab;

        signal(SIGSEGV, SIG_DFL); // a sanitizer may have its own
        if (!worker_open(&r, KVC_ROLE_READER) || !load_prefix(&r) ||
            save_all(&r, NULL) != KVC_E_DENIED)
            _exit(1);
        slab = map_at(&r.client->map, 0, 0, 512);
        shared->step = slab ? slab[0] + 1 : 0;
        slab[0] = 1;
        _exit(2);
    }
    status = proc_wait(child, 5000);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ck_assert_int_gt(shared->step, 0);
    wait_for(figures(&w).sessions == 1, 5000);
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// S35: the scheduler hands its lease over and leaves; another process loads.
START_TEST(S35_lease_is_adopted_by_another_process)
{
    struct worker w = {0}, s = {0};
    kvc_lease lease;
    uint64_t id;
    pid_t child;

    begin(NULL);
    child = proc_fork();
    if (child == 0) {
        if (!wait_until(__atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == 1, 5000) ||
            !worker_open(&w, KVC_ROLE_WORKER) ||
            kvc_adopt(w.client, shared->token, w.part, 0, &lease) != KVC_OK || lease.blocks != N)
            _exit(1);
        __atomic_store_n(&shared->step, 2, __ATOMIC_RELEASE);
        if (!wait_until(__atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == 3, 5000))
            _exit(2);
        _exit(load_all(&w, lease.id, N) ? 0 : 3);
    }
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    ck_assert(worker_open(&s, KVC_ROLE_SCHEDULER));
    ck_assert_uint_eq(lookup(&s, &lease), N);
    memcpy(shared->token, lease.token, KVC_TOKEN_BYTES);
    __atomic_store_n(&shared->step, 1, __ATOMIC_RELEASE);
    wait_for(__atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == 2, 5000);
    worker_close(&s);
    __atomic_store_n(&shared->step, 3, __ATOMIC_RELEASE);
    proc_wait_ok(child, 5000);
    // A token that is made up opens nothing.
    shared->token[15] ^= 1;
    ck_assert_int_eq(kvc_adopt(w.client, shared->token, w.part, 0, &lease), KVC_E_UNKNOWN);
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(daemon_killed_and_started_again)
{
    struct worker w = {0};
    uint64_t epoch, id;
    kvc_outcome outcome;
    kvc_lease lease;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    epoch = kvc_boot_epoch(w.client);
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    daemon_restart_killed(d);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    ck_assert(outcome.status == KVC_E_DISCONNECTED || outcome.status == KVC_OK);
    wait_for(kvc_ping(w.client) == KVC_E_DISCONNECTED, 2000);
    ck_assert_int_eq(save_all(&w, &id), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_lookup(w.client, 0, &w.part, 1, w.keys, N, 0, &lease), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_OK);
    ck_assert_uint_gt(kvc_boot_epoch(w.client), epoch);
    // The same handle, in a daemon that has never heard of it.
    ck_assert_uint_eq(lookup(&w, &lease), 0);
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, N);
    ck_assert(load_prefix(&w));
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// The daemon lives, the connection broke: what was published is still there.
START_TEST(reconnect_to_the_same_daemon)
{
    struct worker w = {0};
    uint64_t id, session;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    session = kvc_session(w.client);
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_OK);
    ck_assert_uint_ne(kvc_session(w.client), session);
    ck_assert_uint_eq(w.client->n_old, 0);
    ck_assert(load_prefix(&w));
    wait_for(figures(&w).sessions == 1, 2000);
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// It maps nothing, whatever has been granted to its tenant since.
START_TEST(S40_a_scheduler_reconnects)
{
    kvc_options options = {.role = KVC_ROLE_SCHEDULER, .connect_ms = 5000, .lookup_ms = 5000};
    struct worker w = {0}, s = {0};
    kvc_slice slices[KV_SLICES_MAX];
    kvc_part_desc desc;
    uint64_t id;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    desc = w.kv.desc;
    for (uint32_t i = 0; i < desc.n_slices; i++)
        slices[i] = (kvc_slice){.bytes = desc.slices[i].bytes};
    desc.slices = slices;
    desc.n_blocks = 0;
    desc.copy = KVC_COPY_WORKER;
    options.socket = daemon_socket(d);
    ck_assert_int_eq(kvc_connect(&options, &s.client), KVC_OK);
    ck_assert_int_eq(kvc_register(s.client, &desc, &s.part), KVC_OK);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(kvc_reconnect(s.client), KVC_OK);
        ck_assert_int_eq(save_all(&w, &id), KVC_OK);
        ck_assert(id == 0 || kvc_wait(w.client, id, 5000, NULL) == KVC_OK);
        ck_assert_int_eq(kvc_lookup(s.client, 0, &s.part, 1, w.keys, N, 0, &(kvc_lease){0}),
                         KVC_OK);
    }
    kvc_close(s.client);
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Each call returns within its bound, the save that was given up leaves nothing behind.
START_TEST(stopped_daemon)
{
    kvc_options options;
    struct worker w = {0};
    kvc_client *late;
    kvc_lease lease;
    uint64_t before, id;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    w.client->save_ms = KVC_SAVE_REPLY_MS;
    w.client->lookup_ms = 20;
    daemon_freeze(d);
    before = rpc_now_us();
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(save_all(&w, &id), KVC_E_DEADLINE);
        ck_assert_int_eq(kvc_lookup(w.client, 0, &w.part, 1, w.keys, N, 0, &lease), KVC_E_DEADLINE);
        ck_assert_int_eq(kvc_ping(w.client), KVC_E_DEADLINE);
        ck_assert_int_eq(kvc_dispatch(w.client), KVC_OK);
    }
    options = (kvc_options){.socket = daemon_socket(d), .connect_ms = 50};
    ck_assert_int_eq(kvc_connect(&options, &late), KVC_E_DEADLINE);
    ck_assert_uint_lt(rpc_now_us() - before, 3000000 * check_time_multiplier());
    daemon_thaw(d);
    w.client->save_ms = w.client->lookup_ms = 5000;
    ck_assert_int_eq(kvc_ping(w.client), KVC_OK);
    wait_for(nothing_owed(&w), 5000);
    ck_assert_uint_eq(figures(&w).blocks, 0);
    ck_assert_uint_eq(figures(&w).tiers[0].used_slots, 0);
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    ck_assert(load_prefix(&w));
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

static int await_stop(pid_t child)
{
    int status = 0;

    wait_for(waitpid(child, &status, WNOHANG | WUNTRACED) == child, 5000);
    return status;
}

struct stop_point {
    const char *name;
    unsigned pass;
    uint32_t published; // of what the child saved, when it is killed there
};
static const struct stop_point stop_points[] = {
    {"save.before_chunk", 1, 0}, {"save.before_word", 1, 0}, {"save.before_chunk", 2, 64},
    {"save.before_word", 2, 64}, {"load.before_copy", 2, N}, {"load.before_word", 1, N},
};

// The hook of the kill tests itself: where the process stops, and what is there then.
START_TEST(process_stops_where_it_was_told)
{
    const struct stop_point *point = &stop_points[_i];
    const bool load = strncmp(point->name, "load", 4) == 0;
    struct worker w = {0}, c = {0};
    kvc_lease lease;
    uint32_t blocks = 0;
    uint64_t id;
    pid_t child;
    int status;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    if (load) {
        ck_assert_int_eq(save_all(&w, &id), KVC_OK);
        ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    }
    child = proc_fork();
    if (child == 0) {
        if (!worker_open(&c, KVC_ROLE_WORKER))
            _exit(1);
        pause_arm(point->name, point->pass);
        if (load)
            _exit(load_prefix(&c) ? 2 : 3);
        _exit(save_all(&c, NULL) == KVC_OK ? 2 : 3);
    }
    status = await_stop(child);
    ck_assert_msg(WIFSTOPPED(status), "it ended with %d", WEXITSTATUS(status));
    if (load)
        ck_assert_uint_eq(figures(&w).open_loads, 1);
    wait_for(kvc_probe(w.client, &w.part, 1, w.keys, N, &blocks) == KVC_OK &&
                 blocks == point->published,
             5000);
    proc_kill(child);
    wait_for(nothing_owed(&w), 5000);
    ck_assert_uint_eq(lookup(&w, &lease), point->published);
    ck_assert(load_all(&w, lease.id, point->published));
    ck_assert_int_eq(kvc_release(w.client, lease.id), KVC_OK);
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// Who goes on after a stop loses nothing.
START_TEST(process_goes_on_after_a_stop)
{
    struct worker w = {0}, c = {0};
    uint32_t blocks = 0;
    pid_t child;

    begin(NULL);
    child = proc_fork();
    if (child == 0) {
        uint64_t id;
        kvc_outcome outcome;

        if (!worker_open(&c, KVC_ROLE_WORKER))
            _exit(1);
        pause_arm("save.before_word", 2);
        _exit(save_all(&c, &id) == KVC_OK && kvc_wait(c.client, id, 5000, &outcome) == KVC_OK &&
                      outcome.published == N
                  ? 0
                  : 2);
    }
    ck_assert(WIFSTOPPED(await_stop(child)));
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    wait_for(kvc_probe(w.client, &w.part, 1, w.keys, N, &blocks) == KVC_OK && blocks == 64, 5000);
    kill(child, SIGCONT);
    proc_wait_ok(child, 5000);
    ck_assert(load_prefix(&w));
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(forked_child_leaves_the_session_alone)
{
    struct worker w = {0};
    uint64_t id;
    pid_t child;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    child = proc_fork();
    if (child == 0) {
        if (save_all(&w, &id) != KVC_E_FORKED || kvc_reconnect(w.client) != KVC_E_FORKED)
            _exit(1);
        worker_close(&w);
        _exit(worker_open(&w, KVC_ROLE_WORKER) ? 0 : 2); // a session of its own is fine
    }
    proc_wait_ok(child, 5000);
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    ck_assert(load_prefix(&w));
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// A save ends by itself: its worker does nothing more.
START_TEST(publication_needs_no_further_call)
{
    struct worker w = {0}, r = {0};
    uint32_t blocks = 0;

    begin(NULL);
    ck_assert(worker_open(&w, KVC_ROLE_WORKER));
    ck_assert(worker_open(&r, KVC_ROLE_READER));
    ck_assert_int_eq(save_all(&w, NULL), KVC_OK);
    wait_for(kvc_probe(r.client, &r.part, 1, r.keys, N, &blocks) == KVC_OK && blocks == N, 5000);
    worker_close(&w);
    ck_assert(load_prefix(&r));
    worker_close(&r);
    daemon_stop(d);
}
END_TEST

static void *live_in_a_thread(void *arg)
{
    struct worker *w = arg;
    bool ok = worker_open(w, KVC_ROLE_WORKER);
    uint64_t id;

    for (int i = 0; i < 20 && ok; i++) {
        ok = save_all(w, &id) == KVC_OK &&
             (id == 0 || kvc_wait(w->client, id, 5000, NULL) == KVC_OK);
        // Another thread may be filling the same keys.
        ok =
            ok && wait_until(load_prefix(w), 5000) && (i % 7 || kvc_reconnect(w->client) == KVC_OK);
    }
    worker_close(w);
    return ok ? w : NULL;
}

START_TEST(clients_of_several_threads)
{
    static struct worker workers[4];
    pthread_t threads[4];
    void *result;

    begin(NULL);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, live_in_a_thread, &workers[i]), 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(pthread_join(threads[i], &result), 0);
        ck_assert_ptr_eq(result, &workers[i]);
    }
    daemon_stop(d);
}
END_TEST

CHECK_MAIN_LOOPS("client/sessions", CHECK_LIFE_S, {two_processes_share, 0, 0, CHECK_BOTH_WAYS},
                 {readers_load_and_cannot_write, 0, 0},
                 {S35_lease_is_adopted_by_another_process, 0, 0, CHECK_BOTH_WAYS},
                 {daemon_killed_and_started_again, 0, 0, CHECK_BOTH_WAYS},
                 {reconnect_to_the_same_daemon, 0, 0, CHECK_BOTH_WAYS},
                 {S40_a_scheduler_reconnects, 0, 0}, {stopped_daemon, 0, 0},
                 {process_stops_where_it_was_told, 0,
                  sizeof(stop_points) / sizeof(stop_points[0]) - 1},
                 {process_goes_on_after_a_stop, 0, 0},
                 {forked_child_leaves_the_session_alone, 0, 0, CHECK_BOTH_WAYS},
                 {publication_needs_no_further_call, 0, 0},
                 {clients_of_several_threads, 0, 0, CHECK_BOTH_WAYS})
