// How a session breaks, and begins again, against a scripted daemon.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/proc.h"
#include "tests/lib/wait.h"

static uint64_t elapsed_ms(uint64_t since_us)
{
    return (rpc_now_us() - since_us) / 1000;
}

static bool mode_hook(struct fake *fake, const struct wire_packet *request)
{
    Kvcache__PingReply reply = KVCACHE__PING_REPLY__INIT;

    if (request->type != WIRE_PING)
        return false;
    switch (fake->shared->mode[0]) {
    case 1: // another number's reply, an unknown notice and a wrong order first
        fake_send(fake, WIRE_PING | WIRE_REPLY, request->seq + 1000, &reply.base, NULL, 0);
        fake_send(fake, WIRE_ERROR, 4711, NULL, NULL, 0);
        fake_send(fake, WIRE_NOTICE | 0x123, 0, &reply.base, &fake->page_fd, 1);
        return false;
    case 2: // the type of another request
        fake_send(fake, WIRE_SAVE | WIRE_REPLY, request->seq, &reply.base, NULL, 0);
        return true;
    case 3: // a request
        fake_send(fake, WIRE_PING, request->seq, &reply.base, NULL, 0);
        return true;
    case 4: // an error that is none
        fake_error(fake, request, KVC_OK, "", "");
        return true;
    case 5: // descriptors that nobody asked for
        fake_send(fake, WIRE_PING | WIRE_REPLY, request->seq, &reply.base, &fake->page_fd, 1);
        return true;
    case 6: // another payload
        reply.payload = (ProtobufCBinaryData){3, (uint8_t *)"abc"};
        fake_reply(fake, request, &reply.base);
        return true;
    case 7: { // a body that is no protobuf
        const struct wire_packet bad = {.type = WIRE_PING | WIRE_REPLY,
                                        .seq = request->seq,
                                        .body = (const uint8_t *)"\xff\xff\xff",
                                        .body_len = 3};
        return wire_send(fake->sock, &bad) == WIRE_OK;
    }
    case 8: // no packet
        return write(fake->sock, "KVC", 3) == 3;
    case 9: // an error that ends sessions
        fake_error(fake, request, KVC_E_PROTOCOL, "ping", "I have had enough");
        return true;
    case 10: // a notice that cannot be
        fake_send(fake, WIRE_SAVE_DONE, 0, NULL, NULL, 0);
        {
            const struct wire_packet bad = {
                .type = WIRE_EXTENTS, .body = (const uint8_t *)"\x0a\x7f", .body_len = 2};
            return wire_send(fake->sock, &bad) == WIRE_OK;
        }
    case 20: // refused
        fake_error(fake, request, KVC_E_BUSY, "payload", "not now");
        return true;
    case 21: // silence
        return true;
    case 22: // the end in the middle of a call
        _exit(0);
    case 23: // an endless flood of notices
        for (int i = 0; i < 200000; i++)
            fake_send(fake, WIRE_NOTICE | 0x123, 0, NULL, NULL, 0);
        return true;
    default:
        return false;
    }
}

START_TEST(strange_packets_are_dropped)
{
    struct fake *fake = fake_start(mode_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);

    fake->shared->mode[0] = 1;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

// The first error of a connection stays, and nothing is asked any more.
START_TEST(what_cannot_be_latches)
{
    struct fake *fake = fake_start(mode_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct pollfd fd = {.fd = kvc_fd(client), .events = POLLIN};
    uint32_t asked;

    fake->shared->mode[0] = _i;
    ck_assert_int_eq(kvc_ping(client), KVC_E_PROTOCOL);
    ck_assert_str_ne(kvc_error(client), "");
    asked = fake_count(fake, WIRE_PING);
    fake->shared->mode[0] = 0;
    ck_assert_int_eq(kvc_ping(client), KVC_E_PROTOCOL);
    ck_assert_int_eq(kvc_dispatch(client), KVC_E_PROTOCOL);
    ck_assert_int_eq(kvc_release(client, 1), KVC_E_PROTOCOL);
    ck_assert_int_eq(kvc_fd(client), -1);
    // A loop that still watches the descriptor hears of it, and it is not another one's yet.
    ck_assert_int_eq(poll(&fd, 1, 0), 1);
    ck_assert(!(fd.revents & POLLNVAL));
    ck_assert_uint_le(fake_count(fake, WIRE_PING), asked + 1);
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(refusal_keeps_the_connection)
{
    struct fake *fake = fake_start(mode_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_OPERATOR);

    fake->shared->mode[0] = 20;
    ck_assert_int_eq(kvc_ping(client), KVC_E_BUSY);
    ck_assert_str_eq(kvc_error(client), "payload: not now");
    fake->shared->mode[0] = 0;
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(silence_ends_at_the_deadline)
{
    struct fake *fake = fake_start(mode_hook);
    const kvc_options options = {.socket = fake->socket, .lookup_ms = 30};
    kvc_client *client;
    uint64_t before;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    fake->shared->mode[0] = 21;
    before = rpc_now_us();
    ck_assert_int_eq(kvc_ping(client), KVC_E_DEADLINE);
    ck_assert_uint_ge(rpc_now_us() - before, 30000);
    fake->shared->mode[0] = 0;
    wait_for(kvc_ping(client) == KVC_OK, 5000);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(flood_of_notices_does_not_hold_a_call)
{
    struct fake *fake = fake_start(mode_hook);
    const kvc_options options = {.socket = fake->socket, .lookup_ms = 20};
    kvc_client *client;
    uint64_t before = rpc_now_us();

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    fake->shared->mode[0] = 23;
    ck_assert_int_eq(kvc_ping(client), KVC_E_DEADLINE);
    ck_assert_int_eq(kvc_dispatch(client), KVC_OK);
    ck_assert_uint_lt(elapsed_ms(before), wait_patient_ms(2000));
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

START_TEST(daemon_killed_in_a_call)
{
    struct fake *fake = fake_start(mode_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    uint64_t before = rpc_now_us();

    fake->shared->mode[0] = 22;
    ck_assert_int_eq(kvc_ping(client), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_ping(client), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(client), KVC_E_DISCONNECTED);
    ck_assert_int_eq(kvc_reconnect(client), KVC_E_DISCONNECTED);
    ck_assert_uint_lt(elapsed_ms(before), wait_patient_ms(2000));
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

// Unsent requests that were given up do not pile up: the daemon gets none of them later.
START_TEST(F24_stopped_daemon_bounds_every_call)
{
    struct fake *fake = fake_start(NULL);
    const kvc_options options = {.socket = fake->socket, .lookup_ms = 1};
    kvc_client *client;
    kvc_status status;
    uint32_t busy = 0;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    fake_freeze(fake);
    for (int i = 0; i < 1000; i++) {
        uint64_t before = rpc_now_us();

        status = kvc_ping(client);
        ck_assert(status == KVC_E_DEADLINE || status == KVC_E_BUSY);
        busy += status == KVC_E_BUSY;
        ck_assert_uint_lt(elapsed_ms(before), wait_patient_ms(2000));
    }
    ck_assert_uint_ge(busy, 1000 - 2 * RPC_PENDING_MAX);
    fake_thaw(fake);
    wait_for(kvc_ping(client) == KVC_OK, 2000);
    ck_assert_uint_lt(fake_count(fake, WIRE_PING), 1000);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

static volatile int alarms;
static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
}

START_TEST(signals_neither_end_nor_prolong_a_wait)
{
    const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    struct fake *fake = fake_start(mode_hook);
    const kvc_options options = {.socket = fake->socket, .lookup_ms = 60};
    struct sigaction action = {.sa_handler = on_alarm};
    kvc_client *client;
    uint64_t before;

    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    fake->shared->mode[0] = 21;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    before = rpc_now_us();
    ck_assert_int_eq(kvc_ping(client), KVC_E_DEADLINE);
    ck_assert_uint_ge(rpc_now_us() - before, 60000);
    ck_assert_uint_lt(elapsed_ms(before), wait_patient_ms(2000));
    setitimer(ITIMER_REAL, &never, NULL);
    ck_assert_int_gt(alarms, 0); // how many is the machine's to say
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

static void register_part(kvc_client *client, struct kv *kv, kvc_part *part)
{
    kv_init(kv, (const uint32_t[]){2048, 100}, 2, 8);
    ck_assert_int_eq(kvc_register(client, &kv->desc, part), KVC_OK);
}

static bool drain_hook(struct fake *fake, const struct wire_packet *request)
{
    if (request->type != WIRE_DRAINED)
        return false;
    if (fake->shared->mode[1]-- > 0)
        fake_error(fake, request, KVC_E_BUSY, "session", "still connected");
    else if (fake->shared->mode[0] != KVC_OK)
        fake_error(fake, request, (kvc_status)fake->shared->mode[0], "session", "no");
    else
        return false;
    return true;
}

START_TEST(reconnect_registers_again_and_says_drained)
{
    struct fake *fake = fake_start(drain_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part, again;
    uint64_t old = kvc_session(client);

    register_part(client, &kv, &part);
    ck_assert_uint_eq(fake_count(fake, WIRE_REGISTER), 1);
    fake->shared->mode[0] = _i == 0 ? KVC_OK : _i == 1 ? KVC_E_UNKNOWN : KVC_E_DENIED;
    fake->shared->mode[1] = 2; // the daemon has not seen the end yet
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_uint_ne(kvc_session(client), old);
    ck_assert_uint_eq(fake->shared->drained_session, old);
    ck_assert_uint_eq(fake_count(fake, WIRE_DRAINED), 3);
    ck_assert_uint_eq(fake_count(fake, WIRE_REGISTER), 2);
    ck_assert_uint_eq(fake->shared->mapped, 2 * 2 * FAKE_EXTENTS);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &again), KVC_OK);
    ck_assert_uint_eq(part, again);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

// Sessions of a daemon that has gone are of no interest to the next one.
START_TEST(reconnect_to_another_boot_drains_nothing)
{
    struct fake *fake = fake_start(drain_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);

    fake->shared->boot_epoch = 101;
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_uint_eq(kvc_boot_epoch(client), 101);
    ck_assert_uint_eq(fake_count(fake, WIRE_DRAINED), 0);
    kvc_close(client);
    fake_stop(fake);
}
END_TEST

// Memory that an engine frees after the daemon has gone must not be registered again later.
START_TEST(unregister_works_without_a_daemon)
{
    struct fake *fake = fake_start(mode_hook);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part;

    register_part(client, &kv, &part);
    fake->shared->mode[0] = 2;
    ck_assert_int_eq(kvc_ping(client), KVC_E_PROTOCOL);
    ck_assert_int_eq(kvc_unregister(client, part), KVC_OK);
    fake->shared->mode[0] = 0;
    ck_assert_int_eq(kvc_reconnect(client), KVC_OK);
    ck_assert_uint_eq(fake_count(fake, WIRE_REGISTER), 1);
    ck_assert_int_eq(kvc_unregister(client, part), KVC_E_UNKNOWN);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

static bool is_mapped(const void *address)
{
    unsigned char there;

    return mincore((void *)address, 4096, &there) == 0;
}

// A forked child can only close: the session, its memory and its socket are the parent's.
START_TEST(forked_child_is_refused)
{
    struct fake *fake = fake_start(NULL);
    kvc_client *client = fake_connect(fake, KVC_ROLE_WORKER);
    struct kv kv;
    kvc_part part;
    uint64_t save;
    kvc_lease lease;
    uint8_t keys[KVC_KEY_BYTES];
    pid_t child;

    register_part(client, &kv, &part);
    kv_keys(0, 0, 1, keys);
    ck_assert(is_mapped(client->map.page) && is_mapped(client->map.tiers[0].base));
    child = proc_fork();
    if (child == 0) {
        const uint32_t id = 0;
        const kvc_save_entry entry = {part, keys, &id, 1, NULL};
        const kvc_save_args args = {.entries = &entry, .n_entries = 1};
        bool ok = kvc_ping(client) == KVC_E_FORKED && kvc_dispatch(client) == KVC_E_FORKED &&
                  kvc_save(client, &args, &save) == KVC_E_FORKED &&
                  kvc_lookup(client, 0, &part, 1, keys, 1, 0, &lease) == KVC_E_FORKED &&
                  kvc_reconnect(client) == KVC_E_FORKED && kvc_fd(client) == -1 &&
                  kvc_unregister(client, part) == KVC_E_FORKED &&
                  kvc_wait(client, 1, 0, NULL) == KVC_E_FORKED;
        // What the child maps there itself must survive the close.
        void *own = client->map.page;

        ok = ok && !is_mapped(client->map.page) && !is_mapped(client->map.tiers[0].base) &&
             !is_mapped(client->map.tiers[1].base + FAKE_EXTENT_BYTES);
        ok = ok && mmap(own, 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == own;
        kvc_close(client);
        ok = ok && is_mapped(own);
        kv_free(&kv);
        _exit(ok ? 0 : 1);
    }
    proc_wait_ok(child, 2000);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    ck_assert_uint_eq(fake->shared->connections, 1);
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

START_TEST(clients_of_one_process_are_independent)
{
    struct fake *fakes[2] = {fake_start(mode_hook), fake_start(NULL)};
    kvc_client *a = fake_connect(fakes[0], KVC_ROLE_WORKER),
               *b = fake_connect(fakes[1], KVC_ROLE_READER);

    fakes[0]->shared->mode[0] = 2;
    ck_assert_int_eq(kvc_ping(a), KVC_E_PROTOCOL);
    ck_assert_int_eq(kvc_ping(b), KVC_OK);
    kvc_close(a);
    ck_assert_int_eq(kvc_ping(b), KVC_OK);
    kvc_close(b);
    fake_stop(fakes[0]);
    fake_stop(fakes[1]);
}
END_TEST

CHECK_MAIN_LOOPS("client/session", CHECK_LIFE_S, {strange_packets_are_dropped, 0, 0},
                 {what_cannot_be_latches, 2, 10}, {refusal_keeps_the_connection, 0, 0},
                 {silence_ends_at_the_deadline, 0, 0},
                 {flood_of_notices_does_not_hold_a_call, 0, 0}, {daemon_killed_in_a_call, 0, 0},
                 {F24_stopped_daemon_bounds_every_call, 0, 0},
                 {signals_neither_end_nor_prolong_a_wait, 0, 0},
                 {reconnect_registers_again_and_says_drained, 0, 2},
                 {reconnect_to_another_boot_drains_nothing, 0, 0},
                 {unregister_works_without_a_daemon, 0, 0}, {forked_child_is_refused, 0, 0},
                 {clients_of_one_process_are_independent, 0, 0})
