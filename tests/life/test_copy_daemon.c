// Copies by the daemon while something happens: its copies are held or fail, the worker dies, gives
// up, cancels, suspends, or closes.
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

#define N       200u // blocks of the tests' prompt: chunks of 64, 64, 64 and 8
#define CHUNKS  4u
#define FOREVER UINT32_MAX

struct worker {
    kvc_client *client;
    struct kv kv;
    kvc_part part;
    uint8_t keys[N * KVC_KEY_BYTES];
    uint32_t ids[N];
};

static struct daemon *d;
static struct worker watcher; // looks, and has nothing to do with what it sees

// The client's prompt is its own; the watcher looks at prompt 1.
static bool worker_open(struct worker *w, uint64_t prompt)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .connect_ms = 5000,
                                 .save_ms = 5000,
                                 .lookup_ms = 5000,
                                 .load_ms = 5000};

    kv_init(&w->kv, (const uint32_t[]){512, 36}, 2, N);
    kv_keys(prompt, 0, N, w->keys);
    kv_ids(0, N, w->ids);
    return kvc_connect(&options, &w->client) == KVC_OK &&
           kvc_register(w->client, &w->kv.desc, &w->part) == KVC_OK;
}

static void worker_close(struct worker *w)
{
    kvc_close(w->client);
    kv_free(&w->kv);
}

static void begin(void)
{
    d = daemon_start(NULL);
    ck_assert(worker_open(&watcher, 1));
}

// A child that waits until it is let go. It is made before this process uses a GPU, which a child
// could not use after that.
struct waiting_child {
    pid_t pid; // 0: it is this process, and was let go
    int go[2];
};

static struct waiting_child fork_waiting(void)
{
    struct waiting_child child;
    char byte;

    ck_assert_int_eq(pipe2(child.go, O_CLOEXEC), 0);
    child.pid = proc_fork();
    if (child.pid == 0 && read(child.go[0], &byte, 1) != 1)
        _exit(1);
    return child;
}

static void let_go(const struct waiting_child *child)
{
    ck_assert_int_eq(write(child->go[1], "x", 1), 1);
    close(child->go[0]);
    close(child->go[1]);
}

static void end(void)
{
    worker_close(&watcher);
    daemon_stop(d);
}

static kvc_status save_n(struct worker *w, uint32_t n, uint64_t *id)
{
    const kvc_save_entry entry = {w->part, w->keys, w->ids, n, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    return kvc_save(w->client, &args, id);
}

static kvc_status save_all(struct worker *w, uint64_t *id)
{
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&w->kv, i, i);
    return save_n(w, N, id);
}

static void publish_all(struct worker *w)
{
    kvc_outcome outcome;
    uint64_t id;

    ck_assert_int_eq(save_all(w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w->client, id, 5000, &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.dropped, 0);
}

static void clear_all(struct worker *w)
{
    for (uint32_t i = 0; i < N; i++)
        kv_clear(&w->kv, i);
}

static kvc_status load_n(struct worker *w, uint64_t lease, uint32_t n, uint8_t *valid)
{
    const kvc_load_args args = {
        .lease = lease, .part = w->part, .count = n, .blocks = w->ids, .valid = valid};

    return kvc_load(w->client, &args);
}

static uint32_t lookup(struct worker *w, kvc_lease *lease)
{
    ck_assert_int_eq(kvc_lookup(w->client, 0, &w->part, 1, w->keys, N, 0, lease), KVC_OK);
    return lease->blocks;
}

static uint32_t hits(void)
{
    uint32_t blocks = 0;

    ck_assert_int_eq(kvc_probe(watcher.client, &watcher.part, 1, watcher.keys, N, &blocks), KVC_OK);
    return blocks;
}

// What is there holds the bytes of its keys.
static void verify_hits(uint32_t n)
{
    kvc_lease lease;

    clear_all(&watcher);
    ck_assert_uint_eq(lookup(&watcher, &lease), n);
    if (n > 0)
        ck_assert_int_eq(load_n(&watcher, lease.id, n, NULL), KVC_OK);
    for (uint32_t i = 0; i < N; i++)
        ck_assert(i < n ? kv_holds(&watcher.kv, i, i) : kv_cleared(&watcher.kv, i));
    ck_assert_int_eq(kvc_release(watcher.client, lease.id), KVC_OK);
}

static struct admin_stats figures(void)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(watcher.client, &stats), KVC_OK);
    return stats;
}

static bool nothing_owed(void)
{
    struct admin_stats stats = figures();

    return stats.filling_slots == 0 && stats.quarantined_slots == 0 && stats.open_loads == 0;
}

static void hold_copies(void)
{
    daemon_fault_arm(d, "copier.late", 0, FOREVER);
}

static bool copies_are_held(void)
{
    return daemon_fault_fired(d, "copier.late") > 0;
}

static void let_copies_go(void)
{
    daemon_fault_off(d, "copier.late");
}

// S14: what was not published goes, what was stays and is right; and it can be saved again.
START_TEST(S14_failure_at_every_chunk)
{
    struct worker w = {0};
    kvc_outcome outcome;
    uint64_t id;

    begin();
    ck_assert(worker_open(&w, 1));
    daemon_log_expect(d, "copy failed");
    daemon_fault_arm(d, "copier.copy", (uint32_t)_i, 1);
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    ck_assert_uint_eq(daemon_fault_fired(d, "copier.copy"), 1);
    ck_assert_int_eq(outcome.status, KVC_E_DEVICE);
    ck_assert_uint_eq(outcome.published + outcome.dropped, N);
    ck_assert_uint_eq(outcome.published % KVC_CHUNK_BLOCKS, 0);
    // Copies overlap: the failing one may be the chunk before or behind.
    ck_assert_uint_le(outcome.published, ((uint32_t)_i + 1) * KVC_CHUNK_BLOCKS);
    ck_assert(nothing_owed());
    verify_hits(outcome.published);
    publish_all(&w);
    verify_hits(N);
    worker_close(&w);
    end();
}
END_TEST

// S39: blocks of the failing chunk are not valid, all others may be, and those that are hold their
// bytes.
START_TEST(S39_failed_load_names_what_is_not_valid)
{
    struct worker w = {0};
    uint8_t valid[N];
    uint32_t n_valid = 0;
    kvc_lease lease;

    begin();
    ck_assert(worker_open(&w, 1));
    publish_all(&w);
    clear_all(&w);
    ck_assert_uint_eq(lookup(&w, &lease), N);
    daemon_log_expect(d, "copy failed");
    daemon_fault_arm(d, "copier.copy", (uint32_t)_i, 1);
    ck_assert_int_eq(load_n(&w, lease.id, N, valid), KVC_E_DEVICE);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert(!valid[i] || kv_holds(&w.kv, i, i));
        n_valid += valid[i];
    }
    ck_assert_uint_lt(n_valid, N);
    ck_assert(nothing_owed());
    ck_assert_int_eq(load_n(&w, lease.id, N, valid), KVC_OK);
    ck_assert_int_eq(kvc_release(w.client, lease.id), KVC_OK);
    worker_close(&w);
    verify_hits(N);
    end();
}
END_TEST

// S15: killed while the daemon reads its memory, or writes to it. Nobody else notices.
START_TEST(S15_worker_dies_under_a_copy)
{
    const bool load = _i == 1;
    struct worker w = {0};
    kvc_lease lease;
    uint64_t id;
    struct waiting_child child;

    d = daemon_start(NULL);
    child = fork_waiting();
    if (child.pid == 0) {
        if (!worker_open(&w, 1))
            _exit(1);
        if (!load)
            _exit(save_all(&w, &id) == KVC_OK && kvc_wait(w.client, id, 60000, NULL) == KVC_OK);
        _exit(lookup(&w, &lease) == N && load_n(&w, lease.id, N, NULL) == KVC_OK);
    }
    ck_assert(worker_open(&watcher, 1));
    if (load) {
        publish_all(&watcher);
        wait_for(nothing_owed(), 5000);
    }
    hold_copies();
    let_go(&child);
    wait_for(copies_are_held(), 5000);
    proc_kill(child.pid);
    // Its connection is over, and still what is copied stays where it is.
    wait_for(figures().leases == 0, 5000);
    ck_assert_uint_eq(figures().open_loads, load ? 1 : 0);
    ck_assert(load || figures().filling_slots + figures().quarantined_slots > 0);
    let_copies_go();
    wait_for(nothing_owed() && figures().sessions == 1, 5000);
    verify_hits(load ? N : 0);
    end();
}
END_TEST

// F45: an engine that frees its KV memory waits for what reads it. Others go on meanwhile.
START_TEST(F45_suspend_waits_for_a_gather)
{
    struct worker w = {0};
    kvc_outcome outcome;
    kvc_lease lease;
    uint64_t id, other;

    begin();
    ck_assert(worker_open(&w, 1));
    hold_copies();
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    wait_for(copies_are_held(), 5000);
    ck_assert_int_eq(kvc_suspend(w.client, w.part, 20), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_resume(w.client, w.part), KVC_E_BUSY);
    ck_assert_int_eq(save_n(&w, 1, &other), KVC_E_BUSY);
    ck_assert_int_eq(kvc_ping(watcher.client), KVC_OK);
    let_copies_go();
    ck_assert_int_eq(kvc_suspend(w.client, w.part, 5000), KVC_OK);
    // From here on nobody reads: what is written now is in no block.
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&w.kv, i, 7000 + i);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, N);
    verify_hits(N);
    ck_assert_uint_eq(lookup(&w, &lease), N);
    ck_assert_int_eq(load_n(&w, lease.id, N, NULL), KVC_E_BUSY);
    ck_assert_int_eq(kvc_suspend(w.client, w.part, 5000), KVC_OK);
    ck_assert_int_eq(kvc_resume(w.client, w.part), KVC_OK);
    ck_assert_int_eq(load_n(&w, lease.id, N, NULL), KVC_OK);
    ck_assert(kv_holds(&w.kv, N - 1, N - 1));
    worker_close(&w);
    end();
}
END_TEST

// S16: the copies that run are waited for, the rest does not begin; one answer.
START_TEST(S16_cancelled_save_ends_with_its_copies)
{
    struct worker w = {0};
    kvc_outcome outcome;
    uint64_t id;

    begin();
    ck_assert(worker_open(&w, 1));
    hold_copies();
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    wait_for(copies_are_held(), 5000);
    ck_assert_int_eq(kvc_cancel(w.client, id, 20, &outcome), KVC_E_DEADLINE);
    ck_assert_uint_gt(figures().quarantined_slots, 0);
    ck_assert_int_eq(kvc_wait(w.client, id, 0, &outcome), KVC_E_DEADLINE);
    let_copies_go();
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    ck_assert_uint_eq(outcome.published, 0);
    ck_assert_uint_eq(outcome.dropped, N);
    ck_assert_int_eq(kvc_wait(w.client, id, 0, &outcome), KVC_E_UNKNOWN);
    wait_for(nothing_owed(), 5000);
    // Two of the chunks had begun.
    ck_assert_uint_le(daemon_fault_passed(d, "copier.copy"), 2);
    verify_hits(0);
    worker_close(&w);
    end();
}
END_TEST

// A load that is late and has not begun is dropped; F11: one that runs is not over before it is.
START_TEST(F11_late_load_leaves_its_destinations_alone)
{
    struct worker w = {0}, greedy = {0};
    kvc_lease lease;
    uint64_t id;
    uint8_t valid[N];

    begin();
    publish_all(&watcher);
    ck_assert(worker_open(&w, 1));
    ck_assert(worker_open(&greedy, 2));
    ck_assert_uint_eq(lookup(&w, &lease), N);
    w.client->load_ms = (uint32_t)(30 * check_time_multiplier());
    hold_copies();
    if (_i == 0) {
        ck_assert_int_eq(save_all(&greedy, &id), KVC_OK); // and nobody else is served
        wait_for(copies_are_held(), 5000);
        ck_assert_int_eq(load_n(&w, lease.id, N, valid), KVC_E_DEADLINE);
        ck_assert_uint_eq(figures().open_loads, 0);
        let_copies_go();
        ck_assert_int_eq(kvc_wait(greedy.client, id, 5000, NULL), KVC_OK);
        for (uint32_t i = 0; i < N; i++)
            ck_assert(!valid[i] && kv_cleared(&w.kv, i));
    } else {
        ck_assert_int_eq(load_n(&w, lease.id, N, valid), KVC_E_BUSY);
        ck_assert_uint_eq(figures().open_loads, 1);
        ck_assert_int_eq(kvc_suspend(w.client, w.part, 20), KVC_E_DEADLINE);
        let_copies_go();
        ck_assert_int_eq(kvc_suspend(w.client, w.part, 5000), KVC_OK);
        clear_all(&w); // nothing comes any more
        ck_assert_int_eq(kvc_resume(w.client, w.part), KVC_OK);
        for (uint32_t i = 0; i < N; i++)
            ck_assert(!valid[i] && kv_cleared(&w.kv, i));
    }
    wait_for(nothing_owed(), 5000);
    w.client->load_ms = 5000;
    ck_assert_int_eq(load_n(&w, lease.id, N, valid), KVC_OK);
    ck_assert(kv_holds(&w.kv, N - 1, N - 1));
    worker_close(&w);
    worker_close(&greedy);
    end();
}
END_TEST

// The answer to a save does not come in time: a handle says when its sources are free.
START_TEST(late_save_is_given_up)
{
    struct worker w = {0};
    kvc_outcome outcome;
    uint64_t id = 0;
    uint32_t n;

    begin();
    ck_assert(worker_open(&w, 1));
    ck_assert_int_eq(save_n(&w, 1, NULL), KVC_E_INVALID);
    w.client->save_ms = (uint32_t)(20 * check_time_multiplier());
    daemon_freeze(d);
    ck_assert_int_eq(save_all(&w, &id), KVC_E_DEADLINE);
    ck_assert_uint_ne(id, 0);
    ck_assert_int_eq(kvc_wait(w.client, id, 20, &outcome), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_cancel(w.client, id, 20, &outcome), KVC_E_DEADLINE);
    daemon_thaw(d);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&w.kv, i, 7000 + i);
    wait_for(nothing_owed(), 5000);
    n = hits();
    verify_hits(n);
    w.client->save_ms = 5000;
    publish_all(&w);
    verify_hits(N);
    worker_close(&w);
    end();
}
END_TEST

// S37: who closes may overwrite at once: nothing that is copied then is published.
START_TEST(S37_closed_session_publishes_nothing)
{
    struct worker w = {0};
    uint64_t id;

    begin();
    ck_assert(worker_open(&w, 1));
    hold_copies();
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    wait_for(copies_are_held(), 5000);
    daemon_freeze(d);
    kvc_close(w.client);
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&w.kv, i, 7000 + i);
    let_copies_go();
    daemon_thaw(d);
    wait_for(nothing_owed() && figures().sessions == 1, 5000);
    verify_hits(0);
    kv_free(&w.kv);
    end();
}
END_TEST

// F18: what the caller passed may be poisoned as soon as the call returns; only the blocks may not.
START_TEST(F18_arguments_are_read_before_the_call_returns)
{
    struct worker w = {0};
    uint64_t id;

    begin();
    ck_assert(worker_open(&w, 1));
    hold_copies();
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    memset(w.keys, 0xee, sizeof(w.keys));
    memset(w.ids, 0xee, sizeof(w.ids));
    let_copies_go();
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    verify_hits(N);
    worker_close(&w);
    end();
}
END_TEST

// F16: a load that is under way, without a lease by now, while others need every slot there is.
START_TEST(F16_loading_blocks_are_not_evicted)
{
    struct worker w = {0}, other = {0};
    struct admin_stats stats;
    struct waiting_child child;
    kvc_lease lease;
    uint64_t id;

    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "0", NULL});
    child = fork_waiting();
    if (child.pid == 0) {
        if (!worker_open(&w, 1) || lookup(&w, &lease) != N ||
            load_n(&w, lease.id, N, NULL) != KVC_OK)
            _exit(1);
        for (uint32_t i = 0; i < N; i++)
            if (!kv_holds(&w.kv, i, i))
                _exit(2);
        _exit(0);
    }
    ck_assert(worker_open(&watcher, 1));
    publish_all(&watcher);
    hold_copies();
    let_go(&child);
    ck_assert(worker_open(&other, 77));
    ck_assert_int_eq(save_n(&other, 1, &id), KVC_OK);
    wait_for(figures().open_loads == 1, 5000);
    // 512 slots: 200 are being loaded, and what is asked for is more than the others.
    for (uint64_t prompt = 100; prompt < 104; prompt++) {
        kv_keys(prompt, 0, N, other.keys);
        ck_assert_int_eq(save_n(&other, N, &id), KVC_OK);
    }
    ck_assert_int_eq(admin_stats(other.client, &stats), KVC_OK);
    ck_assert_uint_gt(stats.skipped_blocks, 0);
    ck_assert_uint_eq(stats.open_loads, 1);
    let_copies_go();
    proc_wait_ok(child.pid, 5000);
    wait_for(nothing_owed(), 5000);
    worker_close(&other);
    end();
}
END_TEST

// A reconnected client is told that its memory is its own again only when it is.
START_TEST(reconnect_waits_for_copies_of_the_old_session)
{
    struct worker w = {0};
    kvc_lease lease;

    begin();
    publish_all(&watcher);
    ck_assert(worker_open(&w, 1));
    ck_assert_uint_eq(lookup(&w, &lease), N);
    hold_copies();
    w.client->load_ms = (uint32_t)(30 * check_time_multiplier());
    ck_assert_int_eq(load_n(&w, lease.id, N, NULL), KVC_E_BUSY);
    w.client->connect_ms = 50;
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_E_BUSY);
    let_copies_go();
    w.client->connect_ms = w.client->load_ms = 5000;
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_OK);
    clear_all(&w);
    ck_assert_uint_eq(lookup(&w, &lease), N);
    for (uint32_t i = 0; i < N; i++)
        ck_assert(kv_cleared(&w.kv, i));
    ck_assert_int_eq(load_n(&w, lease.id, N, NULL), KVC_OK);
    ck_assert(kv_holds(&w.kv, 7, 7));
    worker_close(&w);
    end();
}
END_TEST

// The daemon is told to stop while it copies: the copies end, and the save with them.
START_TEST(stopping_daemon_ends_its_copies)
{
    struct worker w = {0};
    kvc_outcome outcome;
    uint64_t id, other;

    d = daemon_start(NULL);
    ck_assert(worker_open(&w, 1));
    hold_copies();
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    wait_for(copies_are_held(), 5000);
    kill(daemon_pid(d), SIGTERM);
    wait_for(save_n(&w, 1, &other) == KVC_E_STOPPING, 5000);
    let_copies_go();
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, N);
    worker_close(&w);
    daemon_stop(d);
}
END_TEST

// A part that is given up while it is read: unregistering waits, and leaves nothing mapped.
START_TEST(unregistered_part_is_unmapped)
{
    struct worker w = {0};
    uint64_t id;

    begin();
    ck_assert(worker_open(&w, 1));
    hold_copies();
    ck_assert_int_eq(save_all(&w, &id), KVC_OK);
    wait_for(copies_are_held(), 5000);
    w.client->connect_ms = 20;
    ck_assert_int_eq(kvc_unregister(w.client, w.part), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_unregister(w.client, w.part), KVC_E_DEADLINE);
    let_copies_go();
    w.client->connect_ms = 5000;
    ck_assert_int_eq(kvc_unregister(w.client, w.part), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, 5000, NULL), KVC_OK);
    ck_assert_int_eq(kvc_register(w.client, &w.kv.desc, &w.part), KVC_OK);
    ck_assert_int_eq(save_n(&w, N, &id), KVC_OK);
    ck_assert_uint_eq(id, 0);
    verify_hits(N);
    worker_close(&w);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("copy/daemon", CHECK_LIFE_S,
                 {S14_failure_at_every_chunk, 0, CHUNKS - 1, CHECK_DAEMON_COPIES},
                 {S39_failed_load_names_what_is_not_valid, 0, CHUNKS - 1, CHECK_DAEMON_COPIES},
                 {S15_worker_dies_under_a_copy, 0, 1, CHECK_DAEMON_COPIES},
                 {F45_suspend_waits_for_a_gather, 0, 0, CHECK_DAEMON_COPIES},
                 {S16_cancelled_save_ends_with_its_copies, 0, 0, CHECK_DAEMON_COPIES},
                 {F11_late_load_leaves_its_destinations_alone, 0, 1, CHECK_DAEMON_COPIES},
                 {late_save_is_given_up, 0, 0, CHECK_DAEMON_COPIES},
                 {S37_closed_session_publishes_nothing, 0, 0, CHECK_DAEMON_COPIES},
                 {F18_arguments_are_read_before_the_call_returns, 0, 0, CHECK_DAEMON_COPIES},
                 {F16_loading_blocks_are_not_evicted, 0, 0, CHECK_DAEMON_COPIES},
                 {reconnect_waits_for_copies_of_the_old_session, 0, 0, CHECK_DAEMON_COPIES},
                 {stopping_daemon_ends_its_copies, 0, 0, CHECK_DAEMON_COPIES},
                 {unregistered_part_is_unmapped, 0, 0, CHECK_DAEMON_COPIES})
