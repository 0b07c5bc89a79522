/*
 * Memory that clients lend to the daemon, right and wrong, and what it copies then; saves and loads
 * by slices, whoever copies.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/fault.h"
#include "daemon/base/guard.h"
#include "proto/kvcache.pb-c.h"
#include "tests/fuzz/play.h"

#define GOOD_BYTES (1u << 20)
#define PAGE       4096u

/* Kept, since making them takes longer than most inputs. Only in the first is there any sense. */
enum memory {
    GOOD,
    OTHER_GOOD,
    UNSEALED,
    SHORT,
    HOLLOW,
    N_MEMFDS,
    NO_MEMFD = N_MEMFDS,
    N_MEMORIES
};
static int memfds[N_MEMFDS] = {-1};

static int make(enum memory which)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    off_t bytes = which == SHORT ? PAGE : GOOD_BYTES;

    FUZZ_REQUIRE(fd >= 0 && ftruncate(fd, bytes) == 0);
    FUZZ_REQUIRE(which == HOLLOW || fallocate(fd, 0, 0, bytes) == 0);
    FUZZ_REQUIRE(which == UNSEALED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

void play_lend_begin(void)
{
    if (memfds[0] >= 0)
        return;
    FUZZ_REQUIRE(guard_install() == 0);
    for (int i = 0; i < N_MEMFDS; i++)
        memfds[i] = make((enum memory)i);
}

void play_lend_end(void)
{
    for (int i = 0; i < N_MEMFDS && memfds[0] >= 0; i++)
        close(memfds[i]);
    memfds[0] = -1;
}

static void send_with_fds(struct play *p, uint16_t type, size_t len, const int *fds, uint32_t n)
{
    struct wire_packet packet = {
        .type = type, .seq = ++p->seq, .body = play_body, .body_len = (uint32_t)len, .n_fds = n};

    for (uint32_t i = 0; i < n; i++)
        packet.fds[i] = fds[i];
    if (p->me->sock >= 0)
        (void)wire_send(p->me->sock, &packet);
}

/* A change of one number, here and there. */
static uint64_t or_odd(struct play *p, uint32_t how, uint64_t right)
{
    return how & 128 ? right + fuzz_u64(&p->in) % 5 * 4093 - 4093 : right;
}

/* Slices one behind the other in piece 0, or each in a piece of its own. */
static void act_begin(struct play *p)
{
    Kvcache__RegionBegin m = KVCACHE__REGION_BEGIN__INIT;
    uint32_t how = fuzz_u8(&p->in), pieces[2] = {0, how & 16 ? 1 : 0};
    uint64_t offsets[2] = {0}, strides[2];
    size_t len;

    m.part = (uint32_t)play_or_any(p, p->me->part);
    m.blocks = how & 15;
    m.pieces = how & 16 ? 2 : 1;
    m.generation = how & 32 ? fuzz_u8(&p->in) % 4 : 0;
    for (uint32_t i = 0; i < 2; i++) {
        strides[i] = p->me->slice_bytes[i] + (how & 64 ? 24 : 0);
        if (i == 1 && !(how & 16))
            offsets[i] = m.blocks * strides[0];
        offsets[i] = or_odd(p, how, offsets[i]);
        strides[i] = or_odd(p, how, strides[i]);
    }
    m.n_slice_pieces = m.n_slice_offsets = m.n_slice_strides = p->me->n_slices;
    m.slice_pieces = pieces;
    m.slice_offsets = offsets;
    m.slice_strides = strides;
    len = protobuf_c_message_pack(&m.base, play_body);
    play_send(p, WIRE_REGION_BEGIN, KVC_OK, &len);
}

static void act_part(struct play *p)
{
    Kvcache__RegionPart m = KVCACHE__REGION_PART__INIT;
    uint32_t how = fuzz_u8(&p->in), n = how % 3;
    uint8_t kinds[3] = {1, 1, how & 32 ? fuzz_u8(&p->in) % 4 : 1};
    uint64_t bytes[3], offsets[3];
    int fds[3];
    size_t len;

    for (uint32_t i = 0; i < n; i++) {
        enum memory which = how & 64 ? fuzz_u8(&p->in) % N_MEMORIES : (enum memory)(i % 2);

        fds[i] = which == NO_MEMFD ? p->rig.listener : memfds[which];
        bytes[i] = or_odd(p, how, GOOD_BYTES - (how & 16 ? PAGE : 0));
        offsets[i] = or_odd(p, how, how & 16 ? PAGE : 0);
    }
    m.region = play_or_any(p, p->names.region);
    m.kinds = (ProtobufCBinaryData){n, kinds + 3 - n};
    m.n_piece_bytes = m.n_piece_offsets = n;
    m.piece_bytes = bytes;
    m.piece_offsets = offsets;
    len = protobuf_c_message_pack(&m.base, play_body);
    send_with_fds(p, WIRE_REGION_PART, len, fds, how & 8 ? n / 2 : n);
}

static void act_region(struct play *p)
{
    static const uint16_t types[] = {WIRE_REGION_END, WIRE_REGION_DROP, WIRE_SUSPEND, WIRE_RESUME};
    uint16_t type = types[fuzz_u8(&p->in) % 4];
    size_t len;

    play_send(p, type, codec_put_region(play_or_any(p, p->names.region), play_body, &len), &len);
}

/* Begin, part and end, as a worker does it that wants to go on. */
static void act_lend(struct play *p)
{
    static const uint8_t begin[] = {8, 0}, part[] = {1, 0}, end[] = {0, 0};
    const struct fuzz_input rest = p->in;

    p->in = (struct fuzz_input){begin, sizeof(begin)};
    act_begin(p);
    rig_turn(&p->rig, 1);
    play_read(p, 4);
    p->in = (struct fuzz_input){part, sizeof(part)};
    act_part(p);
    rig_turn(&p->rig, 1);
    play_read(p, 4);
    p->in = (struct fuzz_input){end, sizeof(end)};
    act_region(p);
    rig_turn(&p->rig, 1);
    play_read(p, 4);
    p->in = rest;
}

static void put_blocks(struct play *p, uint32_t *blocks, uint32_t n)
{
    uint32_t first = fuzz_u8(&p->in);

    for (uint32_t i = 0; i < n; i++)
        blocks[i] = first < 240 ? (first + i) % 8 : first - 240 + i;
}

/* how: 1 checksums, 2 notify, 4 by slices, 8 more of the latest save, 16 two entries, 32 the daemon
 * copies. */
static void act_save(struct play *p)
{
    static uint8_t keys[2][16 * KVC_KEY_BYTES];
    uint32_t how = fuzz_u8(&p->in), n = how & 16 ? 2 : 1;
    struct codec_save_entry entries[2];
    uint32_t blocks[2][16];
    const struct codec_save save = {
        .save = how & 8 ? play_or_any(p, p->names.save) : 0,
        .checksums = how & 1,
        .notify = how & 2,
    };
    size_t len;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t range = how & 4 ? fuzz_u8(&p->in) : 0;

        entries[i] = (struct codec_save_entry){
            .part = i == 0 ? p->me->part : 1 + fuzz_u8(&p->in) % 4,
            .epoch = i == 0 ? p->me->epoch : 1,
            .keys = keys[i],
            .n_keys = play_keys(p, keys[i], 16),
            .first_slice = range & 3,
            .n_slices = range >> 2 & 3,
            .region = how & 32 ? play_or_any(p, p->names.region) : 0,
            .blocks = blocks[i],
        };
        put_blocks(p, blocks[i], entries[i].n_keys);
    }
    play_send(p, WIRE_SAVE, codec_put_save(&save, entries, n, play_body, &len), &len);
}

/* how: 1 by slices, 2 sums, 4 the worker copies */
static void act_load(struct play *p)
{
    struct codec_load load = {.epoch = p->me->epoch, .part = p->me->part};
    uint32_t how = fuzz_u8(&p->in), range = how & 1 ? fuzz_u8(&p->in) : 0, blocks[16];
    uint64_t sums[16] = {0};
    size_t len;

    load.lease = play_or_any(p, p->names.lease);
    load.first = how >> 4;
    load.count = fuzz_u8(&p->in) % 17;
    load.first_slice = range & 3;
    load.n_slices = range >> 2 & 3;
    load.region = how & 4 ? 0 : play_or_any(p, p->names.region);
    load.blocks = blocks;
    load.sums = how & 2 ? sums : NULL;
    put_blocks(p, blocks, load.count);
    sums[0] = how & 8 ? fuzz_u64(&p->in) : 0;
    play_send(p, WIRE_LOAD, codec_put_load(&load, play_body, &len), &len);
}

/* The load that was sent last but so many. */
static void act_cancel_load(struct play *p)
{
    const struct codec_abort abort = {.request = p->seq - fuzz_u8(&p->in) % 4};
    size_t len;

    play_send(p, WIRE_ABORT, codec_put_abort(&abort, play_body, &len), &len);
}

/* Pages that are taken away again while the daemon may copy. */
static void act_punch(struct play *p)
{
    off_t at = (off_t)(fuzz_u8(&p->in) % (GOOD_BYTES / PAGE / 4)) * PAGE;

    FUZZ_REQUIRE(fallocate(memfds[GOOD], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, PAGE) ==
                 0);
    FUZZ_REQUIRE(fallocate(memfds[GOOD], 0, 0, GOOD_BYTES) == 0);
}

static void act_fault(struct play *p)
{
    static const char *const sites[] = {"copier.copy", "copier.late",     "region.unsealed",
                                        "region.late", "connection.recv", "outqueue.send"};
    uint32_t how = fuzz_u8(&p->in);

    fault_arm(sites[how % (sizeof(sites) / sizeof(sites[0]))], how >> 4 & 3, 1 + (how >> 6));
}

play_action *const play_lend_actions[] = {
    act_lend, act_begin,       act_part,  act_region, act_save,
    act_load, act_cancel_load, act_punch, act_fault,
};
const uint32_t play_n_lend_actions = sizeof(play_lend_actions) / sizeof(play_lend_actions[0]);
