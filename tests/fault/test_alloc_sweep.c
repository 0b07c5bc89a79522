// Allocation number k fails, for every k that a request makes, in a daemon that serves others
// (F29). The request is refused as out of memory or its connection ends; nothing is left behind,
// and the same request then succeeds. What would have leaked is alive at the daemon's exit, which
// daemon_stop() sees.
#include <string.h>

#include "tests/lib/check_main.h"
#include "tests/lib/stage.h"
#include "tests/lib/talk_worker.h"
#include "tests/lib/wait.h"

#define OLD   100u
#define N_OLD 64u
#define N_NEW 150u // of a save
#define K_MAX 64u  // more allocations than a request makes

// A sweep's own: fresh keys and namespaces at each turn.
struct sweep {
    struct stage stage;
    struct talk_worker w; // of this turn
    struct talk_worker second;
    Kvcache__LookupReply *lease;
    Kvcache__SaveReply *save;
    uint32_t turn;
};

static uint32_t fresh_keys(const struct sweep *s)
{
    return 100000u + 1000u * s->turn;
}

// What is there before the request. The worker's keys OLD are published.
static void connected(struct sweep *s)
{
    s->w = (struct talk_worker){.sock = talk_connect(s->stage.socket)};
}

static void said_hello(struct sweep *s)
{
    s->w =
        (struct talk_worker){.sock = talk_hello(s->stage.socket, KVCACHE__ROLE__ROLE_WORKER, NULL)};
}

static void registered(struct sweep *s)
{
    s->w = talk_worker_unmapped(s->stage.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
}

static void mapped(struct sweep *s)
{
    s->w = talk_worker(s->stage.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
}

static void leased(struct sweep *s)
{
    mapped(s);
    s->lease = talk_lookup(&s->w, OLD, N_OLD);
    ck_assert_uint_eq(s->lease->count, N_OLD);
}

static void leased_by_another(struct sweep *s)
{
    mapped(s);
    s->second = talk_worker(s->stage.socket, KVCACHE__ROLE__ROLE_SCHEDULER, STAGE_RAW_NS);
    s->lease = talk_lookup(&s->second, OLD, N_OLD);
}

static bool begin_save(struct sweep *s, uint32_t first)
{
    talk_free(s->save);
    s->save = talk_save(&s->w, first, N_NEW, true);
    return s->save->n_chunk_words > 0;
}

// A full tier may skip all of a save, when room does not come within a millisecond; but it comes.
static void saving(struct sweep *s)
{
    mapped(s);
    wait_for(begin_save(s, fresh_keys(s)), ENGINE_MS);
}

// The requests; each returns its number.
static uint32_t ask_hello(struct sweep *s)
{
    Kvcache__Hello hello = KVCACHE__HELLO__INIT;

    hello.version = 1;
    hello.role = KVCACHE__ROLE__ROLE_WORKER;
    hello.name = "sweep";
    // The connection may be over already: accepting it allocates too.
    return talk_try_send(s->w.sock, WIRE_HELLO, &hello.base);
}

// A namespace, a layout and a size of slots that nobody has yet.
static uint32_t ask_register(struct sweep *s)
{
    uint32_t slice = 16384 + 512 * s->turn;
    Kvcache__Register message = KVCACHE__REGISTER__INIT;
    uint8_t digest[KVC_NAMESPACE_BYTES];

    memset(digest, (int)(100 + s->turn), sizeof(digest));
    message.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    message.block_tokens = 16;
    message.slice_bytes = &slice;
    message.n_slice_bytes = 1;
    message.name = "sweep";
    return talk_send(s->w.sock, WIRE_REGISTER, &message.base);
}

static uint32_t ask_map(struct sweep *s)
{
    Kvcache__Map message = KVCACHE__MAP__INIT;

    return talk_send(s->w.sock, WIRE_MAP, &message.base);
}

static uint32_t ask_lookup(struct sweep *s)
{
    return talk_send_lookup(&s->w, OLD, N_OLD);
}

static uint32_t ask_save(struct sweep *s)
{
    return talk_send_save(&s->w, fresh_keys(s), N_NEW, true);
}

// The words come right behind it: the reply waits for them.
static uint32_t ask_abort(struct sweep *s)
{
    Kvcache__Abort message = KVCACHE__ABORT__INIT;
    uint32_t seq;

    message.save = s->save->save;
    seq = talk_send(s->w.sock, WIRE_ABORT, &message.base);
    for (size_t i = 0; i < s->save->n_chunk_words; i++)
        talk_prove(&s->w, s->save, i);
    return seq;
}

static uint32_t ask_drained(struct sweep *s)
{
    return talk_send(s->w.sock, WIRE_DRAINED, NULL);
}

static uint32_t ask_load(struct sweep *s)
{
    Kvcache__Load message = KVCACHE__LOAD__INIT;

    message.lease = s->lease->lease;
    message.part = s->w.part;
    message.epoch = s->w.epoch;
    message.count = N_OLD;
    return talk_send(s->w.sock, WIRE_LOAD, &message.base);
}

static uint32_t ask_adopt(struct sweep *s)
{
    Kvcache__Adopt message = KVCACHE__ADOPT__INIT;

    message.token = s->lease->token;
    message.part = s->w.part;
    message.epoch = s->w.epoch;
    return talk_send(s->w.sock, WIRE_ADOPT, &message.base);
}

static uint32_t ask_extend(struct sweep *s)
{
    Kvcache__Extend message = KVCACHE__EXTEND__INIT;

    message.lease = s->lease->lease;
    return talk_send(s->w.sock, WIRE_EXTEND, &message.base);
}

static uint32_t ask_release(struct sweep *s)
{
    Kvcache__Release message = KVCACHE__RELEASE__INIT;

    message.lease = s->lease->lease;
    return talk_send(s->w.sock, WIRE_RELEASE, &message.base);
}

static uint32_t ask_unregister(struct sweep *s)
{
    Kvcache__Unregister message = KVCACHE__UNREGISTER__INIT;

    message.part = s->w.part;
    return talk_send(s->w.sock, WIRE_UNREGISTER, &message.base);
}

static uint32_t ask_stats(struct sweep *s)
{
    return talk_send(s->w.sock, WIRE_STATS, NULL);
}

static uint32_t ask_list(struct sweep *s)
{
    Kvcache__List message = KVCACHE__LIST__INIT;

    message.what = "clients";
    return talk_send(s->w.sock, WIRE_LIST, &message.base);
}

static uint32_t ask_ping(struct sweep *s)
{
    return talk_send(s->w.sock, WIRE_PING, NULL);
}

// Published, so that there is something to flush or to pin.
static void published(struct sweep *s)
{
    mapped(s);
    talk_publish(&s->w, fresh_keys(s), 8);
}

static uint32_t ask_flush(struct sweep *s)
{
    Kvcache__Flush message = KVCACHE__FLUSH__INIT;

    message.part = s->w.part;
    message.keys = talk_keys(fresh_keys(s), 8);
    return talk_send(s->w.sock, WIRE_FLUSH, &message.base);
}

static uint32_t ask_pin(struct sweep *s)
{
    Kvcache__Pin message = KVCACHE__PIN__INIT;

    message.part = s->w.part;
    message.keys = talk_keys(fresh_keys(s), 4);
    message.seconds = 1;
    return talk_send(s->w.sock, WIRE_PIN, &message.base);
}

static uint32_t ask_unpin(struct sweep *s)
{
    Kvcache__Pin message = KVCACHE__PIN__INIT;

    message.part = s->w.part;
    message.unpin = true;
    return talk_send(s->w.sock, WIRE_PIN, &message.base);
}

static void operating(struct sweep *s)
{
    s->w = (struct talk_worker){
        .sock = talk_hello(s->stage.socket, KVCACHE__ROLE__ROLE_OPERATOR, NULL)};
}

static uint32_t ask_quota(struct sweep *s)
{
    Kvcache__Quota message = KVCACHE__QUOTA__INIT;
    uint8_t digest[KVC_NAMESPACE_BYTES];
    int64_t amount = 1 << 20;

    memset(digest, STAGE_RAW_NS, sizeof(digest));
    message.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    message.n_host_bytes = 1;
    message.host_bytes = &amount;
    return talk_send(s->w.sock, WIRE_QUOTA, &message.base);
}

static uint32_t ask_config(struct sweep *s)
{
    Kvcache__Config message = KVCACHE__CONFIG__INIT;

    message.name = "lease-time";
    message.value = "30s";
    return talk_send(s->w.sock, WIRE_CONFIG, &message.base);
}

// One that waits: what has happened so far is not asked for.
static uint32_t ask_watch(struct sweep *s)
{
    Kvcache__Watch message = KVCACHE__WATCH__INIT;

    message.latest = true;
    message.wait_ms = 1;
    return talk_send(s->w.sock, WIRE_WATCH, &message.base);
}

static const struct request {
    const char *name;
    void (*prepare)(struct sweep *s);
    uint32_t (*ask)(struct sweep *s);
    uint32_t allocations; // at least so many can fail
} requests[] = {
    {"HELLO", connected, ask_hello, 3},
    {"REGISTER", said_hello, ask_register, 1},
    {"MAP", registered, ask_map, 0},
    {"LOOKUP", mapped, ask_lookup, 2},
    {"SAVE", mapped, ask_save, 2},
    {"ABORT", saving, ask_abort, 1},
    {"DRAINED", saving, ask_drained, 0},
    {"LOAD", leased, ask_load, 1},
    {"ADOPT", leased_by_another, ask_adopt, 2},
    {"EXTEND", leased, ask_extend, 0},
    {"RELEASE", leased, ask_release, 0},
    {"UNREGISTER", mapped, ask_unregister, 0},
    {"STATS", mapped, ask_stats, 0},
    {"LIST", mapped, ask_list, 1},
    {"PING", mapped, ask_ping, 0},
    {"FLUSH", published, ask_flush, 0},
    {"PIN", published, ask_pin, 0},
    {"PIN, unpin", published, ask_unpin, 0},
    {"QUOTA", operating, ask_quota, 0},
    {"CONFIG", operating, ask_config, 1},
    {"WATCH", mapped, ask_watch, 1},
};
#define N_REQUESTS ((int)(sizeof(requests) / sizeof(requests[0])))

static void end_turn(struct sweep *s)
{
    talk_free(s->lease);
    talk_free(s->save);
    s->lease = NULL;
    s->save = NULL;
    if (s->second.sock > 0)
        talk_worker_close(&s->second);
    s->second = (struct talk_worker){0};
    talk_worker_close(&s->w);
    s->turn++;
}

// The words of a save that is aborted are written at once: it may have ended by them before.
static kvc_status outcome_of(const struct sweep *s, const struct request *r, uint32_t seq)
{
    kvc_status status = talk_outcome(s->w.sock, seq);

    return r->ask == ask_abort && status == KVC_E_UNKNOWN ? KVC_OK : status;
}

// Whether there was an allocation k to fail.
static bool turn(struct sweep *s, const struct request *r, uint32_t k)
{
    struct daemon *d = s->stage.daemon;
    kvc_status status;
    uint64_t fired;
    uint32_t seq;

    r->prepare(s);
    daemon_fault_arm(d, "mem.alloc", k, 1);
    seq = r->ask(s);
    status = outcome_of(s, r, seq);
    fired = daemon_fault_fired(d, "mem.alloc");
    daemon_fault_off(d, "mem.alloc");
    if (fired == 0)
        ck_assert_msg(status == KVC_OK, "%s: %s", r->name, kvc_status_text(status));
    ck_assert_msg(status == KVC_OK || status == KVC_E_NO_MEMORY || status == KVC_E_DISCONNECTED,
                  "%s, allocation %u: %s", r->name, k, kvc_status_text(status));
    stage_check(&s->stage);
    // The connection lives on after a refusal, and the same can be had.
    if (status == KVC_E_NO_MEMORY) {
        if (r->prepare == saving)
            wait_for(begin_save(s, fresh_keys(s) + 500), ENGINE_MS);
        status = outcome_of(s, r, r->ask(s));
        ck_assert_msg(status == KVC_OK, "%s after a failure: %s", r->name, kvc_status_text(status));
    }
    if (status == KVC_OK && s->w.part != 0 && r->ask != ask_unregister)
        talk_free(talk_ask(s->w.sock, WIRE_DRAINED, NULL, &kvcache__empty__descriptor));
    end_turn(s);
    stage_wait_sessions(&s->stage, 1);
    stage_check(&s->stage);
    return fired > 0;
}

START_TEST(F29_every_allocation_of_a_request_fails_once)
{
    const struct request *r = &requests[_i];
    struct talk_worker w;
    struct sweep s = {0};
    uint32_t k = 0;

    stage_open(&s.stage, NULL);
    daemon_log_allow(s.stage.daemon, "out of memory");
    daemon_log_allow(s.stage.daemon, "no_memory");
    w = talk_worker(s.stage.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    talk_publish(&w, OLD, N_OLD);
    talk_worker_close(&w);
    stage_wait_sessions(&s.stage, 1);
    while (k < K_MAX && turn(&s, r, k))
        k++;
    ck_assert_uint_lt(k, K_MAX);
    ck_assert_msg(k >= r->allocations, "%s: only %u allocations failed", r->name, k);
    s.stage.crowded = true; // and the exit tells of what leaked
    engine_verify(&s.stage.witness, STAGE_WITNESS_KEYS, 4);
    stage_close(&s.stage);
}
END_TEST

// Everything at once, and at random.
START_TEST(F29_allocations_fail_at_random)
{
    struct sweep s = {0};
    struct talk_worker w;

    stage_open(&s.stage, NULL);
    daemon_log_allow(s.stage.daemon, "out of memory");
    daemon_log_allow(s.stage.daemon, "no_memory");
    w = talk_worker(s.stage.socket, KVCACHE__ROLE__ROLE_WORKER, STAGE_RAW_NS);
    talk_publish(&w, OLD, N_OLD);
    talk_worker_close(&w);
    for (uint32_t round = 0; round < (check_long() ? 2000u : 150u); round++) {
        const struct request *r = &requests[round % (uint32_t)N_REQUESTS];
        kvc_status status;

        if (r->ask == ask_register)
            continue; // its namespaces would use the tables up
        r->prepare(&s);
        daemon_fault_arm(s.stage.daemon, "mem.alloc", round % 7, 1 + round % 3);
        status = talk_outcome(s.w.sock, r->ask(&s));
        daemon_fault_off(s.stage.daemon, "mem.alloc");
        ck_assert_msg(status == KVC_OK || status == KVC_E_NO_MEMORY || status == KVC_E_DISCONNECTED,
                      "%s: %s", r->name, kvc_status_text(status));
        if (status != KVC_E_DISCONNECTED && r->prepare != connected && r->prepare != operating)
            talk_free(talk_ask(s.w.sock, WIRE_DRAINED, NULL, &kvcache__empty__descriptor));
        end_turn(&s);
        stage_check(&s.stage);
    }
    stage_wait_sessions(&s.stage, 1);
    s.stage.crowded = true; // and the exit tells of what leaked
    stage_close(&s.stage);
}
END_TEST

CHECK_MAIN_LOOPS("fault/alloc_sweep", CHECK_LIFE_S,
                 {F29_every_allocation_of_a_request_fails_once, 0, N_REQUESTS - 1},
                 {F29_allocations_fail_at_random, 0, 0})
