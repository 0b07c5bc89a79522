/*
 * Connections at a whole daemon (rig.h). The input is a list of actions of three clients: requests
 * built from what earlier replies said, or from the input's bytes, with descriptors or without;
 * replies read or left; ends in the middle; words and checksums written to completion pages; the
 * clock moved; allocations and system calls that fail; flushes; memory lent to the daemon; the
 * daemon told to stop. All along every invariant of the store holds, every reply is one that the
 * library takes, and in the end nothing is left.
 */
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fault.h"
#include "daemon/store/operate.h"
#include "tests/fuzz/play.h"
#include "tests/lib/raw.h"

const char fuzz_name[] = "connection";

#define ACTIONS_MAX 400u
#define CHECK_EVERY 4u /* looking at everything takes most of the time */

static struct raw raw;

/* Its page outlives its connection, as that of a worker that still copies. */
static void act_connect(struct play *p)
{
    if (p->me->sock >= 0)
        close(p->me->sock);
    p->me->sock = rig_connect(&p->rig);
    rig_turn(&p->rig, 1);
}

static void act_close(struct play *p)
{
    if (p->me->sock >= 0)
        close(p->me->sock);
    p->me->sock = -1;
}

static void act_half_close(struct play *p)
{
    if (p->me->sock >= 0)
        shutdown(p->me->sock, fuzz_u8(&p->in) & 1 ? SHUT_WR : SHUT_RD);
}

static void act_raw(struct play *p)
{
    uint32_t fds = fuzz_u8(&p->in) % (RAW_FDS_MAX + 1);
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&p->in, fuzz_u16(&p->in), &len);

    raw.len = len;
    raw.n_fds = fds;
    memcpy(raw.bytes, bytes, len);
    if (p->me->sock >= 0)
        (void)raw_send(p->me->sock, &raw);
}

static void act_body(struct play *p)
{
    uint16_t type = (uint16_t)fuzz_u8(&p->in);
    uint32_t fds = fuzz_u8(&p->in);
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&p->in, fuzz_u8(&p->in), &len);

    play_send_raw(p, type, bytes, len, fds < 250 ? 0 : fds - 249);
}

/* A copy that has ended, or any value anywhere. */
static void act_page(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in), i = p->names.n_words - 1 - how % 16;
    uint32_t word = p->names.words[i % PLAY_WORDS];
    uint64_t number = p->names.numbers[i % PLAY_WORDS];
    uint64_t *at;

    if (how >= 224) {
        word = fuzz_u8(&p->in);
        number = play_or_any(p, number);
    }
    if (p->me->page == NULL)
        return;
    at = (uint64_t *)(p->me->page + (size_t)(word % KVC_PAGE_WORDS) * KVC_PAGE_STRIDE +
                      KVC_PAGE_WORD_OFFSET);
    if (how & 16)
        at[-(int)(KVC_PAGE_WORD_OFFSET / 8)] = fuzz_u64(&p->in);
    __atomic_store_n(at, number, __ATOMIC_RELEASE);
}

static void act_read(struct play *p)
{
    play_read(p, 1 + fuzz_u8(&p->in) % 16);
}

static void act_turn(struct play *p)
{
    rig_turn(&p->rig, 1 + fuzz_u8(&p->in) % 4);
}

static void act_settle(struct play *p)
{
    rig_settle(&p->rig);
}

static void act_clock(struct play *p)
{
    static const uint64_t steps[] = {500, 2000, 150000, 1100000, 6000000, 31000000, 700000000};

    clock_advance(steps[fuzz_u8(&p->in) % 7]);
    rig_turn(&p->rig, 2);
}

static void act_fault(struct play *p)
{
    static const char *const sites[] = {"mem.alloc",       "fd.dup",           "fd.memfd",
                                        "fd.map",          "fd.reopen",        "fd.seal",
                                        "fd.truncate",     "mover.copy",       "connection.poll",
                                        "listener.accept", "process.peerpidfd"};
    const char *site = sites[fuzz_u8(&p->in) % (sizeof(sites) / sizeof(sites[0]))];
    uint32_t how = fuzz_u8(&p->in);

    fault_arm(site, how & 15, 1 + (how >> 4) % 4);
}

/* What an operator may ask for: flushes, pins, and their end. */
static void act_flush(struct play *p)
{
    uint8_t keys[8 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in);
    struct store_scope scope = {.part = 1 + how % 3, .keys = keys};
    struct refusal why = {0};
    uint64_t blocks;
    uint32_t count;

    if (how & 64)
        scope.n_keys = play_keys(p, keys, 8);
    if (how & 128)
        scope = (struct store_scope){.all = true};
    if (how >> 2 & 3)
        (void)store_flush(p->rig.store, &scope, &blocks, &why);
    else if (how & 16)
        (void)store_pin(p->rig.store, &scope, how & 32 ? 1 : 0, &count, &why);
    else
        (void)store_unpin(p->rig.store, &scope, &count, &why);
}

/* Quotas of namespaces that may be there, some of them nonsense. */
static void act_quota(struct play *p)
{
    uint32_t how = fuzz_u8(&p->in);
    struct store *store = p->rig.store;
    const struct store_quota quota = {
        .bytes = {(uint64_t)fuzz_u8(&p->in) << 15, (uint64_t)fuzz_u8(&p->in) << 15},
        .leases = fuzz_u8(&p->in) / 8};
    struct refusal why = {0};
    uint32_t n;

    (void)store_set_quota(store, table_namespace(store_table(store), how % 4)->digest, &quota,
                          how & 16, &n, &why);
}

/* What is rare, and what came later than the first inputs, whose meaning stays. */
static void act_more(struct play *p)
{
    uint32_t which = fuzz_u8(&p->in);

    if (which == 77)
        api_stop(p->rig.api);
    else if (which == 78)
        act_quota(p);
    else if (which == 79)
        play_job(p);
    else
        play_lend_actions[which % play_n_lend_actions](p);
}

static play_action *const actions[] = {
    act_connect, act_close,   act_half_close, act_raw,    act_body,  play_hello, play_register,
    play_map,    play_lookup, play_save,      play_abort, play_load, play_lease, play_drained,
    play_report, play_small,  play_list,      act_page,   act_read,  act_turn,   act_settle,
    act_clock,   act_fault,   act_flush,      act_more,
};
#define N_ACTIONS (sizeof(actions) / sizeof(actions[0]))

/* The actions that lead on, in an order that works, so that few bytes reach far. */
static void ready(struct play *p)
{
    static const uint8_t steps[] = {1, 0, 1};
    struct fuzz_input rest = p->in;

    act_connect(p);
    p->in = (struct fuzz_input){steps, 1};
    play_hello(p);
    rig_turn(&p->rig, 2);
    p->in = (struct fuzz_input){steps + 2, 1};
    act_read(p);
    p->in = (struct fuzz_input){steps + 1, 1};
    play_register(p);
    rig_turn(&p->rig, 1);
    act_read(p);
    for (int i = 0; i < 2; i++) {
        p->in = (struct fuzz_input){(const uint8_t *)"\xff", 1};
        play_map(p);
        rig_turn(&p->rig, 1);
        act_read(p);
    }
    p->in = rest;
}

void fuzz_end(void)
{
    play_lend_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct play play;
    struct play *p = &play;
    const char *broken;

    if (size < 1)
        return 0;
    memset(p, 0, sizeof(*p));
    p->in = (struct fuzz_input){data, size};
    play_lend_begin();
    rig_open(&p->rig);
    for (uint32_t i = 0; i < PLAY_CLIENTS; i++)
        p->clients[i].sock = -1;
    for (uint32_t n = fuzz_u8(&p->in) % (PLAY_CLIENTS + 1); n > 0; n--) {
        p->me = &p->clients[n - 1];
        ready(p);
    }
    for (uint32_t n = 0; p->in.left > 0 && n < ACTIONS_MAX; n++) {
        uint32_t code = fuzz_u8(&p->in);

        p->me = &p->clients[code / N_ACTIONS % PLAY_CLIENTS];
        actions[code % N_ACTIONS](p);
        if (code >= PLAY_CLIENTS * N_ACTIONS) {
            rig_turn(&p->rig, 2);
            act_read(p);
        }
        broken = n % CHECK_EVERY == 0 ? store_check(p->rig.store) : NULL;
        FUZZ_REQUIRE(broken == NULL, "action %u: %s", n, broken);
    }
    fault_off("*");
    for (uint32_t i = 0; i < PLAY_CLIENTS; i++) {
        p->me = &p->clients[i];
        act_close(p);
    }
    rig_turn(&p->rig, 2);
    broken = store_check(p->rig.store);
    FUZZ_REQUIRE(broken == NULL, "at the end: %s", broken);
    rig_close(&p->rig);
    for (uint32_t i = 0; i < PLAY_CLIENTS; i++)
        play_drop_page(&p->clients[i]);
    codec_scratch_free(&p->scratch);
    return 0;
}
