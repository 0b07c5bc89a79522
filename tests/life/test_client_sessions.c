// Several processes with one daemon, and what becomes of a client when the daemon or it goes away.
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/proc.h"
#include "tests/lib/prompt.h"
#include "tests/lib/wait.h"

// What processes of a test tell each other.
struct shared {
    uint8_t token[KVC_TOKEN_BYTES];
    int step;
};

static struct daemon *d;
static struct shared *shared;

static void begin(void)
{
    d = daemon_start(NULL);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
}

START_TEST(two_processes_share)
{
    struct prompt w = {0};
    pid_t child;

    begin();
    child = proc_fork();
    if (child == 0) {
        uint64_t id;
        kvc_outcome outcome;

        _exit(prompt_open(&w, d, 1) && prompt_save_all(&w, &id) == KVC_OK &&
                      kvc_wait(w.client, id, wait_patient_ms(5000), &outcome) == KVC_OK &&
                      outcome.published == PROMPT_BLOCKS
                  ? 0
                  : 1);
    }
    proc_wait_ok(child, 5000);
    ck_assert(prompt_open(&w, d, 1));
    ck_assert(prompt_is_whole(&w));
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(readers_load_and_cannot_write)
{
    struct prompt w = {0}, r = {0};
    uint64_t id;
    pid_t child;
    int status;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    child = proc_fork();
    if (child == 0) {
        volatile uint8_t *slab;

        signal(SIGSEGV, SIG_DFL); // a sanitizer may have its own
        if (!prompt_open_as(&r, d, 1, KVC_ROLE_READER) || !prompt_is_whole(&r) ||
            prompt_save_all(&r, NULL) != KVC_E_DENIED)
            _exit(1);
        slab = map_at(&r.client->map, 0, 0, 512);
        shared->step = slab ? slab[0] + 1 : 0;
        slab[0] = 1;
        _exit(2);
    }
    status = proc_wait(child, 5000);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ck_assert_int_gt(shared->step, 0);
    wait_for(prompt_figures(&w).sessions == 1, 5000);
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// S35: the scheduler hands its lease over and leaves; another process loads.
START_TEST(S35_lease_is_adopted_by_another_process)
{
    struct prompt w = {0}, s = {0};
    kvc_lease lease;
    uint64_t id;
    pid_t child;

    begin();
    child = proc_fork();
    if (child == 0) {
        if (!wait_until(__atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == 1, 5000) ||
            !prompt_open(&w, d, 1) ||
            kvc_adopt(w.client, shared->token, w.part, 0, &lease) != KVC_OK ||
            lease.blocks != PROMPT_BLOCKS)
            _exit(1);
        __atomic_store_n(&shared->step, 2, __ATOMIC_RELEASE);
        if (!wait_until(__atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == 3, 5000))
            _exit(2);
        _exit(prompt_comes(&w, lease.id, PROMPT_BLOCKS) ? 0 : 3);
    }
    ck_assert(prompt_open(&w, d, 1));
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    ck_assert(prompt_open_as(&s, d, 1, KVC_ROLE_SCHEDULER));
    ck_assert_uint_eq(prompt_lookup(&s, &lease), PROMPT_BLOCKS);
    memcpy(shared->token, lease.token, KVC_TOKEN_BYTES);
    __atomic_store_n(&shared->step, 1, __ATOMIC_RELEASE);
    wait_for(__atomic_load_n(&shared->step, __ATOMIC_ACQUIRE) == 2, 5000);
    prompt_close(&s);
    __atomic_store_n(&shared->step, 3, __ATOMIC_RELEASE);
    proc_wait_ok(child, 5000);
    // A token that is made up opens nothing.
    shared->token[15] ^= 1;
    ck_assert_int_eq(kvc_adopt(w.client, shared->token, w.part, 0, &lease), KVC_E_UNKNOWN);
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(daemon_killed_and_started_again)
{
    struct prompt w = {0};
    uint64_t epoch, id;
    kvc_outcome outcome;
    kvc_lease lease;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    epoch = kvc_boot_epoch(w.client);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    daemon_restart_killed(d);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert(outcome.status == KVC_E_DISCONNECTED || outcome.status == KVC_OK);
    wait_for(kvc_ping(w.client) == KVC_E_DISCONNECTED, 2000);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_lookup(w.client, 0, &w.part, 1, w.keys, PROMPT_BLOCKS, 0, &lease),
                     KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_OK);
    ck_assert_uint_gt(kvc_boot_epoch(w.client), epoch);
    // The same handle, in a daemon that has never heard of it.
    ck_assert_uint_eq(prompt_lookup(&w, &lease), 0);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, PROMPT_BLOCKS);
    ck_assert(prompt_is_whole(&w));
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// The daemon lives, the connection broke: what was published is still there.
START_TEST(reconnect_to_the_same_daemon)
{
    struct prompt w = {0};
    uint64_t id, session;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    session = kvc_session(w.client);
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_OK);
    ck_assert_uint_ne(kvc_session(w.client), session);
    ck_assert_uint_eq(w.client->n_old, 0);
    ck_assert(prompt_is_whole(&w));
    wait_for(prompt_figures(&w).sessions == 1, 2000);
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// It maps nothing, whatever has been granted to its tenant since.
START_TEST(S40_a_scheduler_reconnects)
{
    kvc_options options = {.role = KVC_ROLE_SCHEDULER,
                           .connect_ms = wait_patient_ms(5000),
                           .lookup_ms = wait_patient_ms(5000)};
    struct prompt w = {0}, s = {0};
    kvc_slice slices[KV_SLICES_MAX];
    kvc_part_desc desc;
    uint64_t id;

    begin();
    ck_assert(prompt_open(&w, d, 1));
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
        ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
        ck_assert(id == 0 || kvc_wait(w.client, id, wait_patient_ms(5000), NULL) == KVC_OK);
        ck_assert_int_eq(
            kvc_lookup(s.client, 0, &s.part, 1, w.keys, PROMPT_BLOCKS, 0, &(kvc_lease){0}), KVC_OK);
    }
    kvc_close(s.client);
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// Each call returns within its bound, the save that was given up leaves nothing behind.
START_TEST(stopped_daemon)
{
    kvc_options options;
    struct prompt w = {0};
    kvc_client *late;
    kvc_lease lease;
    uint64_t before, id;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    w.client->save_ms = KVC_SAVE_REPLY_MS;
    w.client->lookup_ms = 20;
    daemon_freeze(d);
    before = rpc_now_us();
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(prompt_save_all(&w, &id), KVC_E_DEADLINE);
        ck_assert_int_eq(kvc_lookup(w.client, 0, &w.part, 1, w.keys, PROMPT_BLOCKS, 0, &lease),
                         KVC_E_DEADLINE);
        ck_assert_int_eq(kvc_ping(w.client), KVC_E_DEADLINE);
        ck_assert_int_eq(kvc_dispatch(w.client), KVC_OK);
    }
    options = (kvc_options){.socket = daemon_socket(d), .connect_ms = 50};
    ck_assert_int_eq(kvc_connect(&options, &late), KVC_E_DEADLINE);
    ck_assert_uint_lt(rpc_now_us() - before, wait_patient_ms(2000) * 1000ull);
    daemon_thaw(d);
    w.client->save_ms = w.client->lookup_ms = wait_patient_ms(5000);
    ck_assert_int_eq(kvc_ping(w.client), KVC_OK);
    wait_for(prompt_owes_nothing(&w), 5000);
    ck_assert_uint_eq(prompt_figures(&w).blocks, 0);
    ck_assert_uint_eq(prompt_figures(&w).tiers[0].used_slots, 0);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    ck_assert(prompt_is_whole(&w));
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

START_TEST(forked_child_leaves_the_session_alone)
{
    struct prompt w = {0};
    uint64_t id;
    pid_t child;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    child = proc_fork();
    if (child == 0) {
        if (prompt_save_all(&w, &id) != KVC_E_FORKED || kvc_reconnect(w.client) != KVC_E_FORKED)
            _exit(1);
        prompt_close(&w);
        _exit(prompt_open(&w, d, 1) ? 0 : 2); // a session of its own is fine
    }
    proc_wait_ok(child, 5000);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    ck_assert(prompt_is_whole(&w));
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// A save ends by itself: its worker does nothing more.
START_TEST(publication_needs_no_further_call)
{
    struct prompt w = {0}, r = {0};
    uint32_t blocks = 0;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    ck_assert(prompt_open_as(&r, d, 1, KVC_ROLE_READER));
    ck_assert_int_eq(prompt_save_all(&w, NULL), KVC_OK);
    wait_for(kvc_probe(r.client, &r.part, 1, r.keys, PROMPT_BLOCKS, &blocks) == KVC_OK &&
                 blocks == PROMPT_BLOCKS,
             5000);
    prompt_close(&w);
    ck_assert(prompt_is_whole(&r));
    prompt_close(&r);
    daemon_stop(d);
}
END_TEST

static void *live_in_a_thread(void *arg)
{
    struct prompt *w = arg;
    bool ok = prompt_open(w, d, 1);
    uint64_t id;

    for (int i = 0; i < 20 && ok; i++) {
        ok = prompt_save_all(w, &id) == KVC_OK &&
             (id == 0 || kvc_wait(w->client, id, wait_patient_ms(5000), NULL) == KVC_OK);
        // Another thread may be filling the same keys.
        ok = ok && wait_until(prompt_is_whole(w), 5000) &&
             (i % 7 || kvc_reconnect(w->client) == KVC_OK);
    }
    prompt_close(w);
    return ok ? w : NULL;
}

START_TEST(clients_of_several_threads)
{
    static struct prompt workers[4];
    pthread_t threads[4];
    void *result;

    begin();
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
                 {forked_child_leaves_the_session_alone, 0, 0, CHECK_BOTH_WAYS},
                 {publication_needs_no_further_call, 0, 0},
                 {clients_of_several_threads, 0, 0, CHECK_BOTH_WAYS})
