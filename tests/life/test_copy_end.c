// Copies by the daemon whose worker does not wait for them: it is late, closes, reconnects,
// unregisters, or the daemon is told to stop.
#include <signal.h>
#include <string.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/prompt.h"
#include "tests/lib/wait.h"

static struct daemon *d;
static struct prompt watcher; // looks at prompt 1, and has nothing to do with what it sees

static void begin(void)
{
    d = daemon_start(NULL);
    ck_assert(prompt_open(&watcher, d, 1));
}

static void end(void)
{
    prompt_close(&watcher);
    daemon_stop(d);
}

// A load that is late and has not begun is dropped; F11: one that runs is not over before it is.
START_TEST(F11_late_load_leaves_its_destinations_alone)
{
    struct prompt w = {0}, greedy = {0};
    kvc_lease lease;
    uint64_t id;
    uint8_t valid[PROMPT_BLOCKS];

    begin();
    prompt_publish(&watcher);
    ck_assert(prompt_open(&w, d, 1));
    ck_assert(prompt_open(&greedy, d, 2));
    ck_assert_uint_eq(prompt_lookup(&w, &lease), PROMPT_BLOCKS);
    w.client->load_ms = (uint32_t)(30 * check_time_multiplier());
    prompt_hold_copies(d);
    if (_i == 0) {
        ck_assert_int_eq(prompt_save_all(&greedy, &id), KVC_OK); // and nobody else is served
        wait_for(prompt_copies_are_held(d), 5000);
        // One whose end is not known in time either may be BUSY.
        wait_for(prompt_load(&w, lease.id, PROMPT_BLOCKS, valid) == KVC_E_DEADLINE, 5000);
        ck_assert_uint_eq(prompt_figures(&watcher).open_loads, 0);
        prompt_let_copies_go(d);
        ck_assert_int_eq(kvc_wait(greedy.client, id, wait_patient_ms(5000), NULL), KVC_OK);
        for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
            ck_assert(!valid[i] && kv_cleared(&w.kv, i));
    } else {
        ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, valid), KVC_E_BUSY);
        ck_assert_uint_eq(prompt_figures(&watcher).open_loads, 1);
        ck_assert_int_eq(kvc_suspend(w.client, w.part, 20), KVC_E_DEADLINE);
        prompt_let_copies_go(d);
        ck_assert_int_eq(kvc_suspend(w.client, w.part, wait_patient_ms(5000)), KVC_OK);
        prompt_clear(&w); // nothing comes any more
        ck_assert_int_eq(kvc_resume(w.client, w.part), KVC_OK);
        for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
            ck_assert(!valid[i] && kv_cleared(&w.kv, i));
    }
    wait_for(prompt_owes_nothing(&watcher), 5000);
    w.client->load_ms = wait_patient_ms(5000);
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, valid), KVC_OK);
    ck_assert(kv_holds(&w.kv, PROMPT_BLOCKS - 1, PROMPT_BLOCKS - 1));
    prompt_close(&w);
    prompt_close(&greedy);
    end();
}
END_TEST

// The answer to a save does not come in time: a handle says when its sources are free.
START_TEST(late_save_is_given_up)
{
    struct prompt w = {0};
    kvc_outcome outcome;
    uint64_t id = 0;
    uint32_t n;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    ck_assert_int_eq(prompt_save(&w, 1, NULL), KVC_E_INVALID);
    w.client->save_ms = (uint32_t)(20 * check_time_multiplier());
    daemon_freeze(d);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_E_DEADLINE);
    ck_assert_uint_ne(id, 0);
    ck_assert_int_eq(kvc_wait(w.client, id, 20, &outcome), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_cancel(w.client, id, 20, &outcome), KVC_E_DEADLINE);
    daemon_thaw(d);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        kv_fill(&w.kv, i, 7000 + i);
    wait_for(prompt_owes_nothing(&watcher), 5000);
    n = prompt_hits(&watcher);
    prompt_verify(&watcher, n);
    w.client->save_ms = wait_patient_ms(5000);
    prompt_publish(&w);
    prompt_verify(&watcher, PROMPT_BLOCKS);
    prompt_close(&w);
    end();
}
END_TEST

// S37: who closes may overwrite at once: nothing that is copied then is published.
START_TEST(S37_closed_session_publishes_nothing)
{
    struct prompt w = {0};
    uint64_t id;

    begin();
    prompt_open_saving(&w, d, &id);
    daemon_freeze(d);
    kvc_close(w.client);
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        kv_fill(&w.kv, i, 7000 + i);
    prompt_let_copies_go(d);
    daemon_thaw(d);
    wait_for(prompt_owes_nothing(&watcher) && prompt_figures(&watcher).sessions == 1, 5000);
    prompt_verify(&watcher, 0);
    kv_free(&w.kv);
    end();
}
END_TEST

// F18: what the caller passed may be poisoned as soon as the call returns; only the blocks may not.
START_TEST(F18_arguments_are_read_before_the_call_returns)
{
    struct prompt w = {0};
    uint64_t id;

    begin();
    ck_assert(prompt_open(&w, d, 1));
    prompt_hold_copies(d);
    ck_assert_int_eq(prompt_save_all(&w, &id), KVC_OK);
    memset(w.keys, 0xee, sizeof(w.keys));
    memset(w.ids, 0xee, sizeof(w.ids));
    prompt_let_copies_go(d);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    prompt_verify(&watcher, PROMPT_BLOCKS);
    prompt_close(&w);
    end();
}
END_TEST

// A reconnected client is told that its memory is its own again only when it is.
START_TEST(reconnect_waits_for_copies_of_the_old_session)
{
    struct prompt w = {0};
    kvc_status status;
    kvc_lease lease;

    begin();
    prompt_publish(&watcher);
    ck_assert(prompt_open(&w, d, 1));
    ck_assert_uint_eq(prompt_lookup(&w, &lease), PROMPT_BLOCKS);
    prompt_hold_copies(d);
    w.client->load_ms = (uint32_t)(30 * check_time_multiplier());
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, NULL), KVC_E_BUSY);
    // That no answer came in time is of a busy machine.
    w.client->connect_ms = 50;
    wait_for((status = kvc_reconnect(w.client)) != KVC_E_DEADLINE, 5000);
    ck_assert_int_eq(status, KVC_E_BUSY);
    prompt_let_copies_go(d);
    w.client->connect_ms = w.client->load_ms = wait_patient_ms(5000);
    ck_assert_int_eq(kvc_reconnect(w.client), KVC_OK);
    prompt_clear(&w);
    ck_assert_uint_eq(prompt_lookup(&w, &lease), PROMPT_BLOCKS);
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
        ck_assert(kv_cleared(&w.kv, i));
    ck_assert_int_eq(prompt_load(&w, lease.id, PROMPT_BLOCKS, NULL), KVC_OK);
    ck_assert(kv_holds(&w.kv, 7, 7));
    prompt_close(&w);
    end();
}
END_TEST

// The daemon is told to stop while it copies: the copies end, and the save with them.
START_TEST(stopping_daemon_ends_its_copies)
{
    struct prompt w = {0};
    kvc_outcome outcome;
    uint64_t id, other;

    d = daemon_start(NULL);
    prompt_open_saving(&w, d, &id);
    kill(daemon_pid(d), SIGTERM);
    wait_for(prompt_save(&w, 1, &other) == KVC_E_STOPPING, 5000);
    prompt_let_copies_go(d);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, PROMPT_BLOCKS);
    prompt_close(&w);
    daemon_stop(d);
}
END_TEST

// A part that is given up while it is read: unregistering waits, and leaves nothing mapped.
START_TEST(unregistered_part_is_unmapped)
{
    struct prompt w = {0};
    uint64_t id;

    begin();
    prompt_open_saving(&w, d, &id);
    w.client->connect_ms = 20;
    ck_assert_int_eq(kvc_unregister(w.client, w.part), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_unregister(w.client, w.part), KVC_E_DEADLINE);
    prompt_let_copies_go(d);
    w.client->connect_ms = wait_patient_ms(5000);
    ck_assert_int_eq(kvc_unregister(w.client, w.part), KVC_OK);
    ck_assert_int_eq(kvc_wait(w.client, id, wait_patient_ms(5000), NULL), KVC_OK);
    ck_assert_int_eq(kvc_register(w.client, &w.kv.desc, &w.part), KVC_OK);
    ck_assert_int_eq(prompt_save(&w, PROMPT_BLOCKS, &id), KVC_OK);
    ck_assert_uint_eq(id, 0);
    prompt_verify(&watcher, PROMPT_BLOCKS);
    prompt_close(&w);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("copy/end", CHECK_LIFE_S,
                 {F11_late_load_leaves_its_destinations_alone, 0, 1, CHECK_DAEMON_COPIES},
                 {late_save_is_given_up, 0, 0, CHECK_DAEMON_COPIES},
                 {S37_closed_session_publishes_nothing, 0, 0, CHECK_DAEMON_COPIES},
                 {F18_arguments_are_read_before_the_call_returns, 0, 0, CHECK_DAEMON_COPIES},
                 {reconnect_waits_for_copies_of_the_old_session, 0, 0, CHECK_DAEMON_COPIES},
                 {stopping_daemon_ends_its_copies, 0, 0, CHECK_DAEMON_COPIES},
                 {unregistered_part_is_unmapped, 0, 0, CHECK_DAEMON_COPIES})
