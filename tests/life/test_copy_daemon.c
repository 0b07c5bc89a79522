// Copies by the daemon while something happens: its copies are held or fail, the worker dies,
// cancels or suspends.
#include <fcntl.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/prompt.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

static struct daemon *d;
static struct prompt watcher; // looks at prompt 1, and has nothing to do with what it sees

static void begin(void)
{
    d = daemon_start(NULL);
    ck_assert(prompt_open(&watcher, d, 1));
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
    prompt_close(&watcher);
    daemon_stop(d);
}

// S14: what was not published goes, what was stays and is right; and it can be saved again.
START_TEST(S14_failure_at_every_chunk)
{
    struct prompt w = {0};
    kvc_outcome outcome;
    uint64_t id;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    daemon_log_expect(d, "copy failed");
    daemon_fault_arm(d, "copier.copy", (uint32_t)_i, 1);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_uint_eq(daemon_fault_fired(d, "copier.copy"), 1);
    ck_assert_int_eq(outcome.status, KVC_E_DEVICE);
    ck_assert_uint_eq(outcome.published + outcome.dropped, PROMPT_BLOCKS);
    ck_assert_uint_eq(outcome.published % KVC_CHUNK_BLOCKS, 0);
    // Copies overlap: the failing one may be the chunk before or behind.
    ck_assert_uint_le(outcome.published, ((uint32_t)_i + 1) * KVC_CHUNK_BLOCKS);
    ck_assert(prompt_owes_nothing(&watcher));
    prompt_verify(&watcher, outcome.published);
    prompt_publish(&w);
    prompt_verify(&watcher, PROMPT_BLOCKS);
    prompt_close(&w);
    end();
}
END_TEST

// S39: blocks of the failing chunk are not valid, all others may be, and those that are hold their
// bytes.
START_TEST(S39_failed_load_names_what_is_not_valid)
{
    struct prompt w = {0};
    uint8_t valid[PROMPT_BLOCKS];
    uint32_t n_valid = 0;
    kvc_lease lease;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    prompt_publish(&w);
    prompt_clear(&w);
    ck_assert_uint_eq(prompt_lookup(&w, &lease), PROMPT_BLOCKS);
    daemon_log_expect(d, "copy failed");
    daemon_fault_arm(d, "copier.copy", (uint32_t)_i, 1);
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, valid), KVC_E_DEVICE);
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++) {
        ck_assert(!valid[i] || kv_holds(&w.kv, i, i));
        n_valid += valid[i];
    }
    ck_assert_uint_lt(n_valid, PROMPT_BLOCKS);
    ck_assert(prompt_owes_nothing(&watcher));
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, valid), KVC_OK);
    ck_assert_int_eq(kvc_release(w.client, lease.id), KVC_OK);
    prompt_close(&w);
    prompt_verify(&watcher, PROMPT_BLOCKS);
    end();
}
END_TEST

// S15: killed while the daemon reads its memory, or writes to it. Nobody else notices.
START_TEST(S15_worker_dies_under_a_copy)
{
    const bool load = _i == 1;
    struct prompt w = {0};
    kvc_lease lease;
    uint64_t id;
    struct waiting_child child;

    d = daemon_start(NULL);
    child = fork_waiting();
    if (child.pid == 0) {
        if (!prompt_open(&w, d, 1))
            _exit(1);
        if (!load)
            _exit(prompt_save_all(&w, &id) == KVC_OK &&
                  kvc_wait(w.client, id, 60000, NULL) == KVC_OK);
        _exit(prompt_lookup(&w, &lease) == PROMPT_BLOCKS &&
              prompt_load(&w, lease.id, PROMPT_BLOCKS, NULL) == KVC_OK);
    }
    ck_assert(prompt_open(&watcher, d, 1));
    if (load) {
        prompt_publish(&watcher);
        wait_for(prompt_owes_nothing(&watcher), 5000);
    }
    prompt_hold_copies(d);
    let_go(&child);
    wait_for(prompt_copies_are_held(d), 5000);
    proc_kill(child.pid);
    // Its connection is over, and still what is copied stays where it is.
    wait_for(prompt_figures(&watcher).leases == 0, 5000);
    ck_assert_uint_eq(prompt_figures(&watcher).open_loads, load ? 1 : 0);
    ck_assert(load ||
              prompt_figures(&watcher).filling_slots + prompt_figures(&watcher).quarantined_slots >
                  0);
    prompt_let_copies_go(d);
    wait_for(prompt_owes_nothing(&watcher) && prompt_figures(&watcher).sessions == 1, 5000);
    prompt_verify(&watcher, load ? PROMPT_BLOCKS : 0);
    end();
}
END_TEST

// F45: an engine that frees its KV memory waits for what reads it. Others go on meanwhile.
START_TEST(F45_suspend_waits_for_a_gather)
{
    struct prompt w = {0};
    kvc_outcome outcome;
    kvc_lease lease;
    uint64_t id, other;

    begin();
    prompt_open_saving(&w, d, &id);
    ck_assert_int_eq(kvc_suspend(w.client, w.part, 20), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_resume(w.client, w.part), KVC_E_BUSY);
    ck_assert_int_eq(prompt_save(&w, 1, &other), KVC_E_BUSY);
    ck_assert_int_eq(kvc_ping(watcher.client), KVC_OK);
    prompt_let_copies_go(d);
    ck_assert_int_eq(kvc_suspend(w.client, w.part, wait_patient_ms(5000)), KVC_OK);
    // From here on nobody reads: what is written now is in no block.
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        kv_fill(&w.kv, i, 7000 + i);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, PROMPT_BLOCKS);
    prompt_verify(&watcher, PROMPT_BLOCKS);
    ck_assert_uint_eq(prompt_lookup(&w, &lease), PROMPT_BLOCKS);
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, NULL), KVC_E_BUSY);
    ck_assert_int_eq(kvc_suspend(w.client, w.part, wait_patient_ms(5000)), KVC_OK);
    ck_assert_int_eq(kvc_resume(w.client, w.part), KVC_OK);
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, NULL), KVC_OK);
    ck_assert(kv_holds(&w.kv, PROMPT_BLOCKS - 1, PROMPT_BLOCKS - 1));
    prompt_close(&w);
    end();
}
END_TEST

// S16: the copies that run are waited for, the rest does not begin; one answer.
START_TEST(S16_cancelled_save_ends_with_its_copies)
{
    struct prompt w = {0};
    kvc_outcome outcome;
    uint64_t id;

    begin();
    prompt_open_saving(&w, d, &id);
    ck_assert_int_eq(kvc_cancel(w.client, id, 20, &outcome), KVC_E_DEADLINE);
    ck_assert_uint_gt(prompt_figures(&watcher).quarantined_slots, 0);
    ck_assert_int_eq(kvc_wait(w.client, id, 0, &outcome), KVC_E_DEADLINE);
    prompt_let_copies_go(d);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    ck_assert_uint_eq(outcome.published, 0);
    ck_assert_uint_eq(outcome.dropped, PROMPT_BLOCKS);
    ck_assert_int_eq(kvc_wait(w.client, id, 0, &outcome), KVC_E_UNKNOWN);
    wait_for(prompt_owes_nothing(&watcher), 5000);
    // Two of the chunks had begun.
    ck_assert_uint_le(daemon_fault_passed(d, "copier.copy"), 2);
    prompt_verify(&watcher, 0);
    prompt_close(&w);
    end();
}
END_TEST

// F16: a load that is under way, without a lease by now, while others need every slot there is.
START_TEST(F16_loading_blocks_are_not_evicted)
{
    struct prompt w = {0}, other = {0};
    struct admin_stats stats;
    struct waiting_child child;
    kvc_lease lease;
    uint64_t id;

    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "0", NULL});
    child = fork_waiting();
    if (child.pid == 0) {
        if (!prompt_open(&w, d, 1) || prompt_lookup(&w, &lease) != PROMPT_BLOCKS ||
            prompt_load(&w, lease.id, PROMPT_BLOCKS, NULL) != KVC_OK)
            _exit(1);
        for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
            if (!kv_holds(&w.kv, i, i))
                _exit(2);
        _exit(0);
    }
    ck_assert(prompt_open(&watcher, d, 1));
    prompt_publish(&watcher);
    prompt_hold_copies(d);
    let_go(&child);
    ck_assert(prompt_open(&other, d, 77));
    ck_assert_int_eq(prompt_save(&other, 1, &id), KVC_OK);
    wait_for(prompt_figures(&watcher).open_loads == 1, 5000);
    // 512 slots: 200 are being loaded, and what is asked for is more than the others.
    for (uint64_t prompt = 100; prompt < 104; prompt++) {
        kv_keys(prompt, 0, PROMPT_BLOCKS, other.keys);
        ck_assert_int_eq(prompt_save(&other, PROMPT_BLOCKS, &id), KVC_OK);
    }
    ck_assert_int_eq(admin_stats(other.client, &stats), KVC_OK);
    ck_assert_uint_gt(stats.skipped_blocks, 0);
    ck_assert_uint_eq(stats.open_loads, 1);
    prompt_let_copies_go(d);
    proc_wait_ok(child.pid, 5000);
    wait_for(prompt_owes_nothing(&watcher), 5000);
    prompt_close(&other);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("copy/daemon", CHECK_LIFE_S,
                 {S14_failure_at_every_chunk, 0, PROMPT_CHUNKS - 1, CHECK_DAEMON_COPIES},
                 {S39_failed_load_names_what_is_not_valid, 0, PROMPT_CHUNKS - 1,
                  CHECK_DAEMON_COPIES},
                 {S15_worker_dies_under_a_copy, 0, 1, CHECK_DAEMON_COPIES},
                 {F45_suspend_waits_for_a_gather, 0, 0, CHECK_DAEMON_COPIES},
                 {S16_cancelled_save_ends_with_its_copies, 0, 0, CHECK_DAEMON_COPIES},
                 {F16_loading_blocks_are_not_evicted, 0, 0, CHECK_DAEMON_COPIES})
