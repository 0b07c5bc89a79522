// Copies by the daemon as packets: what is refused before anything moves, how much may be under
// way, what SUSPEND waits for, and slices.
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/talk.h"
#include "tests/lib/talk_region.h"
#include "tests/lib/wait.h"

#define FOREVER UINT32_MAX

static struct daemon *d;
static struct talk_lender l;
static int watcher; // asks for figures only

static void begin(void)
{
    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "2M", NULL});
    talk_lender_open(&l, daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    watcher = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
}

static void end(void)
{
    close(l.sock);
    close(watcher);
    daemon_stop(d);
}

static Kvcache__StatsReply figures(void)
{
    Kvcache__StatsReply *r = talk_ask(watcher, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    Kvcache__StatsReply figures = *r;

    talk_free(r);
    return figures;
}

static void hold_copies(void)
{
    daemon_fault_arm(d, "copier.late", 0, FOREVER);
}

static void let_copies_go(void)
{
    daemon_fault_off(d, "copier.late");
}

// A lease on the one key that talk_region_save_key() saves as `key`.
static uint64_t lease_key(const struct talk_lender *who, uint8_t key)
{
    static uint8_t keys[KVC_KEY_BYTES];
    Kvcache__Lookup m = KVCACHE__LOOKUP__INIT;
    Kvcache__LookupPart part = KVCACHE__LOOKUP_PART__INIT, *parts[] = {&part};
    Kvcache__LookupReply *r;
    uint64_t lease;

    memset(keys, key, sizeof(keys));
    part.part = who->part;
    part.epoch = who->epoch;
    m.keys = (ProtobufCBinaryData){sizeof(keys), keys};
    m.n_parts = 1;
    m.parts = parts;
    r = talk_ask(who->sock, WIRE_LOOKUP, &m.base, &kvcache__lookup_reply__descriptor);
    ck_assert_uint_eq(r->count, 1);
    lease = r->lease;
    talk_free(r);
    return lease;
}

static Kvcache__Load load_of(const struct talk_lender *who, uint64_t lease, uint64_t region,
                             uint32_t *block)
{
    Kvcache__Load m = KVCACHE__LOAD__INIT;

    m.lease = lease;
    m.part = who->part;
    m.epoch = who->epoch;
    m.count = 1;
    m.region = region;
    m.n_blocks = 1;
    m.blocks = block;
    return m;
}

static void expect_loaded(int sock, uint32_t seq, kvc_status status)
{
    Kvcache__LoadReply *r =
        talk_reply(sock, seq, WIRE_LOAD, &kvcache__load_reply__descriptor, NULL, NULL);

    ck_assert_uint_eq(r->status, status);
    ck_assert_uint_eq(r->valid.len, 1);
    ck_assert_uint_eq(r->valid.data[0], status == KVC_OK);
    talk_free(r);
}

START_TEST(refused_before_a_byte_moves)
{
    static uint32_t blocks[2] = {3, 3};
    const int fd = talk_region_good_memfd();
    Kvcache__Load load = KVCACHE__LOAD__INIT;
    uint64_t region;

    begin();
    region = talk_region_make(&l, fd);
    talk_region_save_refused(&l, region, TALK_REGION_BLOCKS, KVC_E_INVALID, "entries[0].blocks[0]");
    talk_region_save_refused(&l, region, UINT32_MAX, KVC_E_INVALID, "entries[0].blocks[0]");
    talk_region_save_refused(&l, region + 1, 0, KVC_E_UNKNOWN, "region");
    load.part = l.part;
    load.epoch = l.epoch;
    load.lease = 5;
    load.count = 2;
    load.region = region;
    load.n_blocks = 2;
    load.blocks = blocks;
    // S32
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_DUPLICATE,
                      "blocks[1]");
    blocks[1] = TALK_REGION_BLOCKS;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "blocks[1]");
    blocks[1] = 4;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_EXPIRED, "lease");
    load.n_blocks = 1;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "blocks");
    // Of another l.part.
    talk_lender_register(&l, 2);
    talk_region_save_refused(&l, region, 0, KVC_E_INVALID, "region");
    ck_assert_uint_eq(talk_region_published(&l), 0);
    close(fd);
    end();
}
END_TEST

// Replies in any order.
static struct replies {
    uint32_t n, loaded; // all, and loads without an error
    uint32_t last;      // sequence number
} got;

// Takes what is there, up to the reply to seq; whether that has come.
static bool take_until(uint32_t seq)
{
    static uint8_t buffer[KVC_WIRE_PACKET_MAX];
    struct wire_packet packet;
    const char *why;

    while (wire_recv(l.sock, buffer, &packet, &why) == WIRE_OK) {
        Kvcache__LoadReply *load = NULL;

        if (packet.seq == 0) // a notice
            continue;
        if (packet.type == (WIRE_LOAD | WIRE_REPLY))
            load = kvcache__load_reply__unpack(NULL, packet.body_len, packet.body);
        got.n++;
        got.loaded += load != NULL && load->status == KVC_OK;
        if (load != NULL)
            kvcache__load_reply__free_unpacked(load, NULL);
        if (packet.seq == seq)
            return true;
    }
    return false;
}

#define MANY       (KVC_SESSION_LOADS_MAX + 1)
#define MANY_BYTES ((uint64_t)TALK_REGION_SLICES * MANY * TALK_REGION_STRIDE)

// A region of many blocks.
static uint64_t make_many(int fd)
{
    uint64_t region;

    for (uint32_t i = 0; i < TALK_REGION_SLICES; i++)
        l.slice_offsets[i] = (uint64_t)i * MANY * TALK_REGION_STRIDE;
    l.shape.blocks = MANY;
    region = talk_region_begin(&l);
    talk_region_add(&l, region, MANY_BYTES, 0, fd);
    return talk_region_end(&l, region);
}

// One session cannot have the daemon hold more than so many loads for it; others are not refused.
START_TEST(open_loads_of_a_session_are_limited)
{
    const int fd = talk_region_memfd(MANY_BYTES, F_SEAL_SHRINK, true),
              other_fd = talk_region_good_memfd();
    static uint32_t seqs[KVC_SESSION_LOADS_MAX];
    struct talk_lender other = {0};
    Kvcache__Abort abort = KVCACHE__ABORT__INIT;
    uint32_t block = 0, seq, last = KVC_SESSION_LOADS_MAX - 1;
    uint64_t region, theirs;
    Kvcache__Load m;

    begin();
    region = make_many(fd);
    talk_region_save_key(&l, region, 1, 2);
    wait_for(talk_region_published(&l) == 1, 5000);
    talk_lender_open(&other, daemon_socket(d), KVCACHE__ROLE__ROLE_READER, NULL);
    theirs = talk_region_make(&other, other_fd);
    hold_copies();
    m = load_of(&l, lease_key(&l, 1), region, &block);
    for (; block < KVC_SESSION_LOADS_MAX; block++) /* each its own destination */
        seqs[block] = talk_send(l.sock, WIRE_LOAD, &m.base);
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &m.base), KVC_E_BUSY, "");
    ck_assert_uint_eq(figures().open_loads, KVC_SESSION_LOADS_MAX);
    // One that has not begun ends at once when it is cancelled, and makes room for another.
    abort.request = seqs[last];
    seq = talk_send(l.sock, WIRE_ABORT, &abort.base);
    expect_loaded(l.sock, seqs[last], KVC_E_CANCELLED);
    talk_free(talk_reply(l.sock, seq, WIRE_ABORT, &kvcache__abort_reply__descriptor, NULL, NULL));
    seqs[last] = talk_send(l.sock, WIRE_LOAD, &m.base);
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &m.base), KVC_E_BUSY, "");
    block = 1;
    m = load_of(&other, lease_key(&other, 1), theirs, &block);
    seq = talk_send(other.sock, WIRE_LOAD, &m.base);
    talk_ping(other.sock);
    let_copies_go();
    expect_loaded(other.sock, seq, KVC_OK);
    wait_for((take_until(0), got.loaded == KVC_SESSION_LOADS_MAX), 10000);
    ck_assert_uint_eq(got.n, KVC_SESSION_LOADS_MAX);
    ck_assert_uint_eq(figures().open_loads, 0);
    m = load_of(&l, lease_key(&l, 1), region, &block);
    expect_loaded(l.sock, talk_send(l.sock, WIRE_LOAD, &m.base), KVC_OK);
    close(other.sock);
    close(other_fd);
    close(fd);
    end();
}
END_TEST

// What uses a region when it is suspended.
enum use {
    USE_NONE,
    USE_SAVE,
    USE_WAITING_SAVE,
    USE_ABORTED_SAVE,
    USE_LOAD,
    USE_ABORTED_LOAD,
    USES
};

static void use_region(enum use use, uint64_t region)
{
    static uint32_t block = 1;
    Kvcache__Abort abort = KVCACHE__ABORT__INIT;
    Kvcache__Load m;

    switch (use) {
    case USE_NONE:
    case USES:
        return;
    case USE_WAITING_SAVE: // more than are in flight at a time
        for (uint8_t i = 0; i < 5; i++)
            talk_region_save_key(&l, region, 10 + i, i);
        return;
    case USE_SAVE:
        talk_region_save_key(&l, region, 3, 2);
        return;
    case USE_ABORTED_SAVE:
        abort.save = talk_region_save_key(&l, region, 3, 2);
        break;
    case USE_LOAD:
    case USE_ABORTED_LOAD:
        m = load_of(&l, lease_key(&l, 1), region, &block);
        abort.request = talk_send(l.sock, WIRE_LOAD, &m.base);
        if (use == USE_LOAD)
            return;
        break;
    }
    talk_send(l.sock, WIRE_ABORT, &abort.base);
}

static bool is_used(enum use use)
{
    const Kvcache__StatsReply now = figures();

    switch (use) {
    case USE_LOAD:
    case USE_ABORTED_LOAD:
        return now.open_loads == 1;
    case USE_ABORTED_SAVE:
        return now.quarantined_slots == 1;
    case USE_SAVE:
        return now.filling_slots == 1;
    case USE_WAITING_SAVE:
        return now.filling_slots == 5;
    default:
        return now.filling_slots + now.quarantined_slots + now.open_loads == 0;
    }
}

// F45: _i is what uses the region. While it does SUSPEND waits, and so does DROP; nothing new
// begins, and others go on.
START_TEST(F45_suspend_and_drop_wait_for_each_use)
{
    const uint16_t types[] = {WIRE_SUSPEND, WIRE_REGION_DROP};
    const int fd = talk_region_good_memfd();
    const enum use use = (enum use)(_i % USES);
    const uint32_t replies[USES] = {[USE_ABORTED_SAVE] = 1, [USE_LOAD] = 1, [USE_ABORTED_LOAD] = 2};
    const uint16_t type = types[_i / USES];
    uint64_t region;
    uint32_t seq;
    int other;

    begin();
    region = talk_region_make(&l, fd);
    talk_region_save_key(&l, region, 1, 2);
    wait_for(talk_region_published(&l) == 1, 5000);
    hold_copies();
    use_region(use, region);
    wait_for(is_used(use), 5000);
    seq = talk_region_send(&l, type, region);
    if (use == USE_NONE) {
        talk_free(talk_reply(l.sock, seq, type, &kvcache__empty__descriptor, NULL, NULL));
        let_copies_go();
    } else {
        talk_region_save_refused(&l, region, 1, type == WIRE_SUSPEND ? KVC_E_BUSY : KVC_E_UNKNOWN,
                                 "region");
        ck_assert(is_used(use));
        other = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_SCHEDULER, NULL);
        talk_ping(other);
        close(other);
        ck_assert(!take_until(seq));
        let_copies_go();
        wait_for(take_until(seq), 5000);
        // Nothing reads or writes it any more.
        ck_assert(is_used(USE_NONE));
        wait_for((take_until(0), got.n == replies[use] + 1), 5000);
    }
    if (type == WIRE_SUSPEND) {
        talk_region_save_refused(&l, region, 1, KVC_E_BUSY, "region");
        talk_region_ask(&l, WIRE_RESUME, region);
        talk_region_save_key(&l, region, 7, 1);
    } else {
        talk_region_save_refused(&l, region, 1, KVC_E_UNKNOWN, "region");
    }
    close(fd);
    end();
}
END_TEST

// Slices as packets: what is refused, and sums that lead to a comparison.
START_TEST(S9_S38_slices_on_the_wire)
{
    const int fd = talk_region_good_memfd();
    uint64_t region, sums[2] = {0}, save;
    Kvcache__SaveEntry entry;
    Kvcache__SaveReply *saved;
    Kvcache__Save m;
    Kvcache__Load load;
    uint32_t block = 5;

    begin();
    region = talk_region_make(&l, fd);
    talk_region_save(&l, region, 1, 2, &m, &entry);
    entry.slices = 4;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_SAVE, &m.base), KVC_E_INVALID,
                      "entries[0].slices");
    entry.first_slice = UINT32_MAX;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_SAVE, &m.base), KVC_E_INVALID,
                      "entries[0].slices");
    entry.first_slice = 0;
    entry.slices = 2;
    saved = talk_ask(l.sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor);
    m.save = save = saved->save;
    talk_free(saved);
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_SAVE, &m.base), KVC_E_DUPLICATE,
                      "entries[0].slices");
    entry.first_slice = 2;
    entry.slices = 1;
    m.region = 0;
    entry.n_blocks = 0;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_SAVE, &m.base), KVC_E_INVALID, "region");
    m.region = region + 1;
    entry.n_blocks = 1;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_SAVE, &m.base), KVC_E_UNKNOWN, "region");
    m.region = region;
    wait_for(figures().filling_slots == 1, 5000);
    saved = talk_ask(l.sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor);
    ck_assert_uint_eq(saved->save, save);
    talk_free(saved);
    wait_for(talk_region_published(&l) == 1, 5000);

    load = load_of(&l, lease_key(&l, 1), region, &block);
    load.sums = sums;
    load.n_sums = 2;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "sums");
    load.n_sums = 1;
    load.slices = 4;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "slices");
    load.first_slice = 3;
    load.slices = 0;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "slices");
    load.region = 0;
    load.n_blocks = 0;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "sums");
    load.region = region;
    load.n_blocks = 1;
    load.slices = 1;
    for (load.first_slice = 0; load.first_slice < TALK_REGION_SLICES; load.first_slice++) {
        Kvcache__LoadReply *r =
            talk_ask(l.sock, WIRE_LOAD, &load.base, &kvcache__load_reply__descriptor);

        ck_assert_uint_eq(r->status, KVC_OK);
        ck_assert_uint_eq(r->n_sums, 1);
        sums[0] = r->sums[0];
        talk_free(r);
    }
    // Another sum with the last slice: these are not the block's bytes.
    load.first_slice = 2;
    expect_loaded(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_CHECKSUM);
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_LOAD, &load.base), KVC_E_CHECKSUM, "first");
    close(fd);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("daemon/copies", CHECK_LIFE_S, {refused_before_a_byte_moves, 0, 0},
                 {open_loads_of_a_session_are_limited, 0, 0},
                 {F45_suspend_and_drop_wait_for_each_use, 0, 2 * USES - 1},
                 {S9_S38_slices_on_the_wire, 0, 0, CHECK_DAEMON_COPIES})
