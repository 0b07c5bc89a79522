// How saves end: in time or not, waited for or cancelled. Against a scripted daemon.
#include <signal.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

static struct fake *fake;
static kvc_client *client;
static struct kv kv;
static kvc_part part;

static void begin(fake_hook *hook, uint32_t save_ms)
{
    kvc_options options = {.connect_ms = wait_patient_ms(5000),
                           .save_ms = save_ms,
                           .lookup_ms = wait_patient_ms(5000)};

    fake = fake_start(hook);
    options.socket = fake->socket;
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    kv_init(&kv, (const uint32_t[]){512}, 1, 64);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
}

static void end(void)
{
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}

static kvc_status save_one(uint64_t *save)
{
    const uint8_t key[KVC_KEY_BYTES] = {1};
    const uint32_t id = 1;
    const kvc_save_entry entry = {part, key, &id, 1, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    return kvc_save(client, &args, save);
}

static bool no_word(void)
{
    for (uint32_t i = 0; i < KVC_PAGE_WORDS; i++)
        if (*(uint64_t *)(void *)(fake->page + i * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET) != 0)
            return false;
    return true;
}

enum {
    LATE_SAVE = 1,
    SILENT_SAVE,
    DONE_WITH_REPLY,
    DONE_ON_PING,
    LATE_ABORT,
    UNKNOWN_ABORT,
    DONE_BEFORE_ABORT,
    STOPPING
};

static void send_done(struct fake *f, uint64_t save)
{
    Kvcache__SaveDone done = KVCACHE__SAVE_DONE__INIT;

    done.save = save;
    done.status = KVC_OK;
    done.published = 1;
    fake_send(f, WIRE_SAVE_DONE, 0, &done.base, NULL, 0);
}

static bool hook(struct fake *f, const struct wire_packet *request)
{
    Kvcache__SaveReply reply;
    Kvcache__AbortReply aborted = KVCACHE__ABORT_REPLY__INIT;

    switch (f->shared->mode[0]) {
    case LATE_SAVE: // the reply comes when the abort has
        if (request->type == WIRE_SAVE) {
            f->late_seq = request->seq;
            return true;
        }
        if (request->type == WIRE_ABORT) {
            Kvcache__SaveEntry entry = KVCACHE__SAVE_ENTRY__INIT, *entries = &entry;
            Kvcache__Save save = KVCACHE__SAVE__INIT;

            entry.keys.len = KVC_KEY_BYTES;
            save.n_entries = 1;
            save.entries = &entries;
            fake_make_save(f, &save, &reply);
            fake_send(f, WIRE_SAVE | WIRE_REPLY, f->late_seq, &reply.base, NULL, 0);
        }
        return false;
    case SILENT_SAVE:
        return request->type == WIRE_SAVE;
    case DONE_WITH_REPLY: // done is already there when somebody waits
        if (request->type != WIRE_SAVE)
            return false;
        fake_usual(f, request);
        send_done(f, f->next_save);
        return true;
    case DONE_ON_PING:
        if (request->type == WIRE_PING)
            send_done(f, (uint64_t)f->shared->mode[1]);
        return false;
    case LATE_ABORT:
        if (request->type == WIRE_ABORT) {
            f->late_seq = request->seq;
            return true;
        }
        if (request->type == WIRE_PING && f->late_seq != 0) {
            aborted.status = KVC_E_CANCELLED;
            aborted.dropped = 1;
            fake_send(f, WIRE_ABORT | WIRE_REPLY, f->late_seq, &aborted.base, NULL, 0);
        }
        return false;
    case UNKNOWN_ABORT:
    case DONE_BEFORE_ABORT:
        if (request->type != WIRE_ABORT)
            return false;
        if (f->shared->mode[0] == DONE_BEFORE_ABORT)
            send_done(f, f->next_save);
        fake_error(f, request, KVC_E_UNKNOWN, "save", "it has ended");
        return true;
    case STOPPING:
        if (request->type == WIRE_PING)
            fake_send(f, WIRE_STOPPING, 0, NULL, NULL, 0);
        return false;
    default:
        return false;
    }
}

START_TEST(save_without_an_answer_leaves_nothing)
{
    uint64_t save = 99, before = rpc_now_us();

    begin(hook, 0);
    fake->shared->mode[0] = LATE_SAVE;
    before = rpc_now_us();
    ck_assert_int_eq(save_one(&save), KVC_E_DEADLINE);
    ck_assert_uint_ge(rpc_now_us() - before, 1000 * KVC_SAVE_REPLY_MS);
    ck_assert_uint_eq(save, 99);
    wait_for(fake_count(fake, WIRE_ABORT) == 1, 2000);
    ck_assert_uint_ne(fake->shared->abort_request, 0);
    ck_assert_uint_eq(fake->shared->abort_save, 0);
    ck_assert(fake->shared->abort_never_all);
    // Its late reply is not obeyed.
    fake->shared->mode[0] = 0;
    wait_for(kvc_ping(client) == KVC_OK, 2000);
    ck_assert(no_word());
    ck_assert_uint_eq(client->saves.n, 0);
    end();
}
END_TEST

// Each is given up in time, those that never left this process without a trace.
START_TEST(saves_to_a_stopped_daemon)
{
    uint32_t sent;

    begin(NULL, 1);
    fake_freeze(fake);
    for (int i = 0; i < 500; i++) {
        uint64_t before = rpc_now_us();
        kvc_status status = save_one(NULL);

        ck_assert(status == KVC_E_DEADLINE || status == KVC_E_BUSY);
        ck_assert_uint_lt(rpc_now_us() - before, wait_patient_ms(2000) * 1000ull);
    }
    fake_thaw(fake);
    wait_for(kvc_ping(client) == KVC_OK, 2000);
    sent = fake_count(fake, WIRE_SAVE);
    ck_assert_uint_le(sent, 500);
    // Every one that was sent is taken back.
    wait_for(kvc_ping(client) == KVC_OK && fake_count(fake, WIRE_ABORT) == sent, 2000);
    ck_assert(no_word());
    wait_for(save_one(NULL) == KVC_OK, 2000);
    end();
}
END_TEST

START_TEST(wait_tells_the_outcome_once)
{
    kvc_outcome outcome = {.status = KVC_E_SYSTEM};
    uint64_t save;

    begin(hook, 5000);
    fake->shared->mode[0] = DONE_WITH_REPLY;
    ck_assert_int_eq(save_one(&save), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, save, wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.published, 1);
    ck_assert_int_eq(kvc_wait(client, save, wait_patient_ms(2000), &outcome), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_wait(client, 12345, 0, &outcome), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_cancel(client, save, 100, &outcome), KVC_E_UNKNOWN);
    // Without an interest in how.
    ck_assert_int_eq(save_one(&save), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, save, wait_patient_ms(2000), NULL), KVC_OK);
    end();
}
END_TEST

START_TEST(wait_has_a_deadline)
{
    kvc_outcome outcome = {.published = 77};
    uint64_t first, second, before;

    begin(hook, 5000);
    ck_assert_int_eq(save_one(&first), KVC_OK);
    ck_assert_int_eq(save_one(&second), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, first, 0, &outcome), KVC_E_DEADLINE);
    before = rpc_now_us();
    ck_assert_int_eq(kvc_wait(client, first, 30, &outcome), KVC_E_DEADLINE);
    ck_assert_uint_ge(rpc_now_us() - before, 30000);
    ck_assert_uint_eq(outcome.published, 77);
    // Another's end is kept for whoever asks; any call takes it in.
    fake->shared->mode[1] = (int)second;
    fake->shared->mode[0] = DONE_ON_PING;
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, first, 0, &outcome), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_wait(client, second, 0, &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published, 1);
    end();
}
END_TEST

START_TEST(broken_session_ends_its_saves)
{
    kvc_outcome outcome;
    uint64_t saves[3];

    begin(hook, 5000);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(save_one(&saves[i]), KVC_OK);
    kill(fake->pid, SIGKILL);
    ck_assert_int_eq(kvc_wait(client, saves[0], wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_cancel(client, saves[1], wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_wait(client, 4711, wait_patient_ms(2000), &outcome), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(client), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_wait(client, saves[2], 0, &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_DISCONNECTED);
    end();
}
END_TEST

START_TEST(reconnect_ends_the_old_saves)
{
    kvc_outcome outcome;
    uint64_t save;

    begin(hook, 5000);
    ck_assert_int_eq(save_one(&save), KVC_OK);
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, save, 0, &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_DISCONNECTED);
    end();
}
END_TEST

START_TEST(cancel_answers_with_the_outcome)
{
    kvc_outcome outcome;
    uint64_t save;

    begin(hook, 5000);
    ck_assert_int_eq(save_one(&save), KVC_OK);
    ck_assert_int_eq(kvc_cancel(client, save, wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    ck_assert_uint_eq(outcome.dropped, 1);
    ck_assert_uint_eq(fake->shared->abort_save, save);
    ck_assert_uint_eq(fake->shared->abort_never, 0);
    ck_assert(!fake->shared->abort_never_all);
    ck_assert_int_eq(kvc_wait(client, save, 0, &outcome), KVC_E_UNKNOWN);
    end();
}
END_TEST

START_TEST(late_answer_to_a_cancel_counts)
{
    kvc_outcome outcome;
    uint64_t save;

    begin(hook, 5000);
    ck_assert_int_eq(save_one(&save), KVC_OK);
    fake->shared->mode[0] = LATE_ABORT;
    ck_assert_int_eq(kvc_cancel(client, save, 10, &outcome), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_wait(client, save, 0, &outcome), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, save, wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    end();
}
END_TEST

// The save was published while the cancel was on its way: that is how it ended.
START_TEST(cancel_after_the_end)
{
    kvc_outcome outcome;
    uint64_t save;

    begin(hook, 5000);
    ck_assert_int_eq(save_one(&save), KVC_OK);
    fake->shared->mode[0] = DONE_BEFORE_ABORT;
    ck_assert_int_eq(kvc_cancel(client, save, wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.published, 1);
    ck_assert_int_eq(save_one(&save), KVC_OK);
    fake->shared->mode[0] = UNKNOWN_ABORT;
    ck_assert_int_eq(kvc_cancel(client, save, wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_UNKNOWN);
    end();
}
END_TEST

START_TEST(outcomes_that_nobody_fetches_are_forgotten)
{
    kvc_outcome outcome;
    uint64_t first, last;

    begin(hook, 5000);
    fake->shared->mode[0] = DONE_WITH_REPLY;
    ck_assert_int_eq(save_one(&first), KVC_OK);
    for (uint32_t i = 0; i < SAVES_MAX; i++)
        ck_assert_int_eq(save_one(&last), KVC_OK);
    ck_assert_uint_eq(client->saves.n, SAVES_MAX);
    ck_assert_int_eq(kvc_wait(client, first, 0, &outcome), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_wait(client, last, wait_patient_ms(2000), &outcome), KVC_OK);
    end();
}
END_TEST

START_TEST(stopping_daemon_is_not_asked_any_more)
{
    kvc_lease lease;
    const uint8_t key[KVC_KEY_BYTES] = {1};

    begin(hook, 5000);
    fake->shared->mode[0] = STOPPING;
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    ck_assert_int_eq(save_one(NULL), KVC_E_STOPPING);
    ck_assert_int_eq(kvc_lookup(client, 0, &part, 1, key, 1, 0, &lease), KVC_E_STOPPING);
    ck_assert_uint_eq(fake_count(fake, WIRE_SAVE), 0);
    ck_assert_int_eq(kvc_drain(client), KVC_OK);
    fake->shared->mode[0] = 0;
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_int_eq(save_one(NULL), KVC_OK);
    end();
}
END_TEST

CHECK_MAIN("client/wait", CHECK_LIFE_S, save_without_an_answer_leaves_nothing,
           saves_to_a_stopped_daemon, wait_tells_the_outcome_once, wait_has_a_deadline,
           broken_session_ends_its_saves, reconnect_ends_the_old_saves,
           cancel_answers_with_the_outcome, late_answer_to_a_cancel_counts, cancel_after_the_end,
           outcomes_that_nobody_fetches_are_forgotten, stopping_daemon_is_not_asked_any_more)
