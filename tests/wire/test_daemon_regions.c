// REGION_BEGIN to REGION_DROP and SUSPEND as packets: every way in which a region can be wrong,
// what is left of one that is, and memory that is taken away behind the daemon's back.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"
#include "tests/lib/talk.h"
#include "tests/lib/wait.h"

#define SLICES 3u
#define BLOCKS 8u
#define STRIDE 4096u
#define PIECE  (SLICES * BLOCKS * STRIDE)

static struct daemon *d;
static int sock;
static uint32_t part, epoch;
static uint32_t slice_pieces[KVC_SLICES_MAX];
static uint64_t slice_offsets[KVC_SLICES_MAX], slice_strides[KVC_SLICES_MAX];
static Kvcache__RegionBegin shape;

static void register_part(int s, uint8_t namespace_)
{
    static uint32_t slice_bytes[SLICES] = {STRIDE, 1000, 16};
    uint8_t digest[KVC_NAMESPACE_BYTES] = {namespace_};
    Kvcache__Register m = KVCACHE__REGISTER__INIT;
    Kvcache__RegisterReply *r;

    m.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    m.block_tokens = 16;
    m.n_slice_bytes = SLICES;
    m.slice_bytes = slice_bytes;
    r = talk_ask(s, WIRE_REGISTER, &m.base, &kvcache__register_reply__descriptor);
    part = r->part;
    epoch = r->epoch;
    talk_free(r);
}

// A good region of one piece: a slice's blocks lie one behind the other.
static void good_shape(void)
{
    kvcache__region_begin__init(&shape);
    for (uint32_t i = 0; i < SLICES; i++) {
        slice_pieces[i] = 0;
        slice_offsets[i] = i * BLOCKS * STRIDE;
        slice_strides[i] = STRIDE;
    }
    shape.part = part;
    shape.blocks = BLOCKS;
    shape.pieces = 1;
    shape.n_slice_pieces = shape.n_slice_offsets = shape.n_slice_strides = SLICES;
    shape.slice_pieces = slice_pieces;
    shape.slice_offsets = slice_offsets;
    shape.slice_strides = slice_strides;
}

static void begin(void)
{
    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "2M", NULL});
    sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    register_part(sock, 1);
    good_shape();
}

// Descriptors and mappings are those of before.
static int daemon_mappings(void)
{
    char path[64];
    int n = 0;
    FILE *maps;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)daemon_pid(d));
    maps = fopen(path, "r");
    ck_assert_ptr_nonnull(maps);
    char line[512];
    while (fgets(line, sizeof(line), maps) != NULL)
        n += strstr(line, "test-region") != NULL;
    fclose(maps);
    return n;
}

static void end(void)
{
    close(sock);
    daemon_stop(d);
}

static int memfd(uint64_t bytes, int seals, bool pages)
{
    int fd = memfd_create("test-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (pages)
        ck_assert_int_eq(fallocate(fd, 0, 0, (off_t)bytes), 0);
    if (seals != 0)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int good_memfd(void)
{
    return memfd(PIECE, F_SEAL_SHRINK, true);
}

static uint64_t begin_region(void)
{
    Kvcache__RegionReply *r =
        talk_ask(sock, WIRE_REGION_BEGIN, &shape.base, &kvcache__region_reply__descriptor);
    uint64_t region = r->region;

    ck_assert_uint_ne(region, 0);
    talk_free(r);
    return region;
}

static void begin_refused(kvc_status status, const char *field)
{
    talk_expect_error(sock, talk_send(sock, WIRE_REGION_BEGIN, &shape.base), status, field);
    good_shape();
}

// A PART of n pieces, all of one descriptor, kind, length and offset.
static uint32_t send_part(uint64_t region, uint32_t n, uint8_t kind, uint64_t bytes,
                          uint64_t offset, int fd, uint32_t n_fds)
{
    static uint32_t seq = 500000;
    static uint8_t kinds[KVC_WIRE_FDS_MAX], body[4096];
    static uint64_t piece_bytes[KVC_WIRE_FDS_MAX], piece_offsets[KVC_WIRE_FDS_MAX];
    Kvcache__RegionPart m = KVCACHE__REGION_PART__INIT;
    struct wire_packet packet = {
        .type = WIRE_REGION_PART, .seq = ++seq, .body = body, .n_fds = n_fds};

    for (uint32_t i = 0; i < n; i++) {
        kinds[i] = kind;
        piece_bytes[i] = bytes;
        piece_offsets[i] = offset;
    }
    for (uint32_t i = 0; i < n_fds; i++)
        packet.fds[i] = fd;
    m.region = region;
    m.kinds = (ProtobufCBinaryData){n, kinds};
    m.n_piece_bytes = n;
    m.piece_bytes = piece_bytes;
    m.n_piece_offsets = offset != 0 ? n : 0;
    m.piece_offsets = piece_offsets;
    packet.body_len = (uint32_t)protobuf_c_message_pack(&m.base, body);
    ck_assert_int_eq(wire_send(sock, &packet), WIRE_OK);
    return seq;
}

static void add_piece(uint64_t region, uint64_t bytes, uint64_t offset, int fd)
{
    uint32_t seq = send_part(region, 1, KVCACHE__MEMORY_KIND__MEMORY_MEMFD, bytes, offset, fd, 1);

    talk_free(talk_reply(sock, seq, WIRE_REGION_PART, &kvcache__empty__descriptor, NULL, NULL));
}

static uint32_t send_region(uint16_t type, uint64_t region)
{
    Kvcache__RegionEnd m = KVCACHE__REGION_END__INIT;

    m.region = region;
    return talk_send(sock, type, &m.base);
}

static void ask_region(uint16_t type, uint64_t region)
{
    talk_free(
        talk_reply(sock, send_region(type, region), type, &kvcache__empty__descriptor, NULL, NULL));
}

static uint64_t end_region(uint64_t region)
{
    Kvcache__RegionReply *r =
        talk_reply(sock, send_region(WIRE_REGION_END, region), WIRE_REGION_END,
                   &kvcache__region_reply__descriptor, NULL, NULL);
    uint64_t stands = r->region;

    talk_free(r);
    return stands;
}

static uint64_t make_region(int fd)
{
    uint64_t region = begin_region();

    add_piece(region, PIECE, 0, fd);
    return end_region(region);
}

// A region that was refused on the way is gone: its number means nothing any more.
static void gone(uint64_t region)
{
    talk_expect_error(sock, send_region(WIRE_REGION_END, region), KVC_E_UNKNOWN, "region");
    talk_expect_error(sock, send_region(WIRE_SUSPEND, region), KVC_E_UNKNOWN, "region");
}

static void save_one(uint64_t region, uint8_t key, uint32_t block, Kvcache__Save *m,
                     Kvcache__SaveEntry *entry)
{
    static Kvcache__SaveEntry *entries[1];
    static uint8_t keys[KVC_KEY_BYTES];
    static uint32_t blocks[1];

    kvcache__save__init(m);
    kvcache__save_entry__init(entry);
    memset(keys, key, sizeof(keys));
    blocks[0] = block;
    entry->part = part;
    entry->epoch = epoch;
    entry->keys = (ProtobufCBinaryData){sizeof(keys), keys};
    entry->n_blocks = 1;
    entry->blocks = blocks;
    entries[0] = entry;
    m->n_entries = 1;
    m->entries = entries;
    m->region = region;
    m->notify = true;
    m->checksums = true;
}

static void save_refused(uint64_t region, uint32_t block, kvc_status status, const char *field)
{
    Kvcache__Save m;
    Kvcache__SaveEntry entry;

    save_one(region, 9, block, &m, &entry);
    talk_expect_error(sock, talk_send(sock, WIRE_SAVE, &m.base), status, field);
}

static uint64_t save_key(uint64_t region, uint8_t key, uint32_t block)
{
    Kvcache__Save m;
    Kvcache__SaveEntry entry;
    Kvcache__SaveReply *r;
    uint64_t save;

    save_one(region, key, block, &m, &entry);
    r = talk_ask(sock, WIRE_SAVE, &m.base, &kvcache__save_reply__descriptor);
    ck_assert_uint_eq(r->n_entries, 1);
    ck_assert_uint_eq(r->entries[0]->states.data[0], KVCACHE__KEY_STATE__KEY_ASSIGNED);
    // Nothing that a worker could copy to.
    ck_assert_uint_eq(r->entries[0]->n_offsets + r->n_chunk_words + r->n_chunk_blocks, 0);
    save = r->save;
    ck_assert_uint_ne(save, 0);
    talk_free(r);
    return save;
}

static uint64_t published(void)
{
    Kvcache__StatsReply *r = talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t n = r->published_blocks;

    talk_free(r);
    return n;
}

static uint64_t aborted(void)
{
    Kvcache__StatsReply *r = talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t n = r->filling_slots + r->quarantined_slots == 0 ? r->aborted_saves : 0;

    talk_free(r);
    return n;
}

START_TEST(what_is_wrong_at_the_begin)
{
    begin();
    shape.part = part + 1;
    begin_refused(KVC_E_UNKNOWN, "part");
    shape.n_slice_pieces = SLICES - 1;
    begin_refused(KVC_E_INVALID, "slice_pieces");
    shape.n_slice_offsets = SLICES + 1;
    begin_refused(KVC_E_INVALID, "slice_offsets");
    shape.n_slice_strides = 0;
    begin_refused(KVC_E_INVALID, "slice_strides");
    shape.blocks = 0;
    begin_refused(KVC_E_INVALID, "blocks");
    shape.blocks = KVC_REGION_BLOCKS_MAX + 1;
    begin_refused(KVC_E_LIMIT, "blocks");
    shape.pieces = 0;
    begin_refused(KVC_E_INVALID, "pieces");
    shape.pieces = KVC_SESSION_PIECES_MAX + 1;
    begin_refused(KVC_E_LIMIT, "pieces");
    shape.pieces = UINT32_MAX;
    begin_refused(KVC_E_LIMIT, "pieces");
    slice_pieces[1] = 1;
    begin_refused(KVC_E_INVALID, "slice_pieces[1]");
    slice_strides[0] = STRIDE - 1;
    begin_refused(KVC_E_INVALID, "slice_strides[0]");
    slice_strides[2] = 0;
    begin_refused(KVC_E_INVALID, "slice_strides[2]");
    talk_ping(sock);
    end();
}
END_TEST

// Slices that leave the piece, also by going once around the address space.
START_TEST(slices_lie_inside_their_piece)
{
    static const struct {
        uint64_t offset, stride;
    } bad[] = {
        {PIECE, STRIDE},      {2 * BLOCKS * STRIDE + 1, STRIDE}, {0, UINT64_MAX},
        {UINT64_MAX, STRIDE}, {UINT64_MAX - 15, 1u << 20},       {1, UINT64_MAX / (BLOCKS - 1)},
        {0, PIECE},           {UINT64_MAX - PIECE, STRIDE},
    };
    const int fd = good_memfd();

    begin();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t region;

        slice_offsets[0] = bad[i].offset;
        slice_strides[0] = bad[i].stride;
        region = begin_region();
        add_piece(region, PIECE, 0, fd);
        talk_expect_error(sock, send_region(WIRE_REGION_END, region), KVC_E_INVALID,
                          "slice_offsets[0]");
        gone(region);
        good_shape();
    }
    ck_assert_uint_ne(make_region(fd), 0);
    close(fd);
    end();
}
END_TEST

// Where two destinations could be one.
START_TEST(nothing_overlaps)
{
    const int fd = good_memfd();
    uint64_t region;

    begin();
    for (int i = 0; i < 5; i++) {
        switch (i) {
        case 0: // the same place
            slice_offsets[1] = slice_offsets[0];
            break;
        case 1: // interleaved, and too near
            slice_strides[0] = slice_strides[1] = 2 * STRIDE;
            slice_offsets[0] = 0;
            slice_offsets[1] = STRIDE - 1;
            break;
        case 2: // around the end of the stride
            slice_strides[0] = slice_strides[1] = 2 * STRIDE;
            slice_offsets[0] = 500;
            slice_offsets[1] = 2 * STRIDE - 499;
            break;
        case 3: // of two strides
            slice_offsets[1] = STRIDE;
            slice_strides[0] = 2 * STRIDE;
            break;
        case 4: // the last block of one, the first of the next
            slice_offsets[1] = (BLOCKS - 1) * STRIDE + 4000;
            break;
        }
        region = begin_region();
        add_piece(region, PIECE, 0, fd);
        talk_expect_error(sock, send_region(WIRE_REGION_END, region), KVC_E_INVALID,
                          "slice_offsets");
        gone(region);
        good_shape();
    }
    // Two pieces that are one.
    shape.pieces = 2;
    region = begin_region();
    add_piece(region, PIECE, 0, fd);
    add_piece(region, STRIDE, PIECE - STRIDE, fd);
    talk_expect_error(sock, send_region(WIRE_REGION_END, region), KVC_E_INVALID, "piece_offsets");
    gone(region);
    // And two that are not; slices that interleave as engines do.
    good_shape();
    shape.pieces = 2;
    slice_pieces[0] = 1;
    slice_offsets[0] = 0;
    slice_offsets[1] = 16;
    slice_offsets[2] = 0;
    slice_strides[1] = slice_strides[2] = 1016;
    region = begin_region();
    add_piece(region, 2 * STRIDE, 0, fd);
    add_piece(region, BLOCKS * STRIDE, 2 * STRIDE, fd);
    ck_assert_uint_eq(end_region(region), region);
    close(fd);
    end();
}
END_TEST

static void part_refused(uint8_t kind, uint64_t bytes, uint64_t offset, int fd, uint32_t n_fds,
                         kvc_status status, const char *field)
{
    uint64_t region = begin_region();

    talk_expect_error(sock, send_part(region, 1, kind, bytes, offset, fd, n_fds), status, field);
    gone(region);
}

START_TEST(descriptors_that_are_no_good)
{
    const uint8_t kind = KVCACHE__MEMORY_KIND__MEMORY_MEMFD;
    const int good = good_memfd(), unsealed = memfd(PIECE, 0, true),
              holes = memfd(PIECE, F_SEAL_SHRINK, false);
    char path[64];
    int pipes[2], file, fds, readonly, huge;

    begin();
    fds = talk_settled_fds(sock, d);
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", good);
    readonly = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert(file >= 0 && readonly >= 0);
    part_refused(kind, PIECE, 0, pipes[0], 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, PIECE, 0, sock, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, PIECE, 0, file, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, PIECE, 0, unsealed, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, PIECE, 0, holes, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, PIECE, 0, readonly, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, PIECE + 1, 0, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, 0, 0, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, UINT64_MAX, 0, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, PIECE, UINT64_MAX - PIECE + 1, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, PIECE, 4096, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, 4096, 100, good, 1, KVC_E_INVALID, "piece_offsets[0]");
    part_refused(0, PIECE, 0, good, 1, KVC_E_INVALID, "kinds[0]");
    part_refused(77, PIECE, 0, good, 1, KVC_E_INVALID, "kinds[0]");
    part_refused(KVCACHE__MEMORY_KIND__MEMORY_CUDA_FD, PIECE, 0, good, 1, KVC_E_UNSUPPORTED,
                 "kinds[0]");
    part_refused(KVCACHE__MEMORY_KIND__MEMORY_CUDA_HANDLE, PIECE, 0, good, 0, KVC_E_UNSUPPORTED,
                 "kinds[0]");
    part_refused(kind, PIECE, 0, good, 0, KVC_E_INVALID, "kinds");
    part_refused(kind, PIECE, 0, good, 2, KVC_E_INVALID, "kinds");
    huge = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (huge >= 0) {
        ck_assert_int_eq(ftruncate(huge, 2 << 20), 0);
        ck_assert_int_eq(fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        part_refused(kind, PIECE, 0, huge, 1, KVC_E_INVALID, "fds[0]");
        close(huge);
    }
    // Nothing of all that is left.
    ck_assert_int_eq(talk_settled_fds(sock, d), fds);
    wait_for(daemon_mappings() == 0, 2000);
    ck_assert_uint_ne(make_region(good), 0);
    ck_assert_int_eq(daemon_mappings(), 1);
    ck_assert_int_eq(talk_settled_fds(sock, d), fds);
    for (int i = 0; i < 2; i++)
        close(pipes[i]);
    close(file);
    close(readonly);
    close(good);
    close(unsealed);
    close(holes);
    end();
}
END_TEST

// More descriptors than a packet carries; pieces too few or too many; what is there before the end.
START_TEST(several_packets_and_nothing_before_the_end)
{
    enum { PIECES = 130 };
    const int fd = memfd((PIECES + 1) * STRIDE, F_SEAL_SHRINK, true);
    uint64_t region;

    begin();
    for (uint32_t i = 0; i < SLICES; i++) {
        slice_pieces[i] = i * 60;
        slice_offsets[i] = 0;
    }
    shape.blocks = 1;
    shape.pieces = PIECES;
    region = begin_region();
    for (uint32_t i = 0; i < PIECES; i++) {
        save_refused(region, 0, KVC_E_UNKNOWN, "region");
        talk_expect_error(sock, send_region(WIRE_SUSPEND, region), KVC_E_UNKNOWN, "region");
        if (i == 0)
            add_piece(region, STRIDE, 0, fd);
        else
            add_piece(region, STRIDE, i * (uint64_t)STRIDE, fd);
    }
    ck_assert_uint_eq(end_region(region), region);
    talk_expect_error(sock, send_region(WIRE_REGION_END, region), KVC_E_UNKNOWN, "region");
    ck_assert_int_eq(daemon_mappings() > 0, 1);
    save_key(region, 1, 0);
    wait_for(published() == 1, 5000);
    ask_region(WIRE_REGION_DROP, region);
    ck_assert_int_eq(daemon_mappings(), 0);
    region = begin_region();
    add_piece(region, STRIDE, 0, fd);
    talk_expect_error(sock, send_region(WIRE_REGION_END, region), KVC_E_INVALID, "pieces");
    gone(region);
    good_shape();
    region = begin_region();
    add_piece(region, STRIDE, 0, fd);
    talk_expect_error(sock,
                      send_part(region, 1, KVCACHE__MEMORY_KIND__MEMORY_MEMFD, STRIDE, 0, fd, 1),
                      KVC_E_INVALID, "kinds");
    gone(region);
    wait_for(daemon_mappings() == 0, 2000);
    close(fd);
    end();
}
END_TEST

// F1, F3: what was half built, or whole, goes with its session.
START_TEST(F3_sessions_leave_no_mapping)
{
    const int fd = good_memfd();
    int other = 0, fds;

    begin();
    other = sock;
    fds = talk_settled_fds(other, d);
    for (int i = 0; i < 100; i++) {
        sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
        register_part(sock, 1);
        if (i % 2 == 0)
            make_region(fd);
        add_piece(begin_region(), PIECE, 0, fd);
        close(sock);
    }
    wait_for(daemon_mappings() == 0, 5000);
    sock = other;
    ck_assert_int_eq(talk_settled_fds(sock, d), fds);
    close(fd);
    end();
}
END_TEST

static bool begins(void)
{
    return talk_outcome(sock, talk_send(sock, WIRE_REGION_BEGIN, &shape.base)) == KVC_OK;
}

START_TEST(limits_of_regions)
{
    int socks[KVC_PIECES_MAX / KVC_SESSION_PIECES_MAX + 1];
    uint32_t n = 0;
    uint64_t first;

    begin();
    first = begin_region();
    for (uint32_t i = 1; i < KVC_SESSION_REGIONS_MAX; i++)
        begin_region();
    talk_expect_error(sock, talk_send(sock, WIRE_REGION_BEGIN, &shape.base), KVC_E_LIMIT, "");
    ask_region(WIRE_REGION_DROP, first);
    shape.pieces = KVC_SESSION_PIECES_MAX - KVC_SESSION_REGIONS_MAX + 2;
    begin_refused(KVC_E_LIMIT, "pieces");
    shape.pieces = KVC_SESSION_PIECES_MAX - KVC_SESSION_REGIONS_MAX + 1;
    begin_region();
    // Of all sessions together.
    for (uint32_t i = 1; i < KVC_PIECES_MAX / KVC_SESSION_PIECES_MAX; i++) {
        socks[n++] = sock;
        sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
        register_part(sock, 1);
        shape.pieces = KVC_SESSION_PIECES_MAX;
        begin_region();
    }
    socks[n++] = sock;
    sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
    register_part(sock, 1);
    good_shape();
    begin_refused(KVC_E_NO_ROOM, "pieces");
    // Room comes back with the sessions.
    while (n > 0)
        close(socks[--n]);
    wait_for(begins(), 5000);
    end();
}
END_TEST

// S41: one region for one memory; a new generation takes the place of the old.
START_TEST(S41_generations)
{
    const int fd = good_memfd(), other = good_memfd();
    uint64_t first, second, moved;

    begin();
    first = make_region(fd);
    ck_assert_uint_eq(make_region(fd), first);
    ck_assert_int_eq(daemon_mappings() >= 1, 1);
    wait_for(daemon_mappings() == 1, 2000);
    moved = make_region(other);
    ck_assert_uint_ne(moved, first);
    save_key(first, 1, 0);
    save_key(moved, 2, 0);
    wait_for(published() == 2, 5000);
    shape.generation = 7;
    second = make_region(fd);
    ck_assert_uint_ne(second, first);
    ck_assert_uint_eq(make_region(fd), second);
    save_refused(first, 0, KVC_E_UNKNOWN, "region");
    save_refused(moved, 0, KVC_E_UNKNOWN, "region");
    save_key(second, 3, 0);
    wait_for(published() == 3, 5000);
    shape.generation = 6;
    talk_expect_error(sock, talk_send(sock, WIRE_REGION_BEGIN, &shape.base), KVC_E_STALE,
                      "generation");
    wait_for(daemon_mappings() == 1, 2000);
    close(fd);
    close(other);
    end();
}
END_TEST

START_TEST(refused_before_a_byte_moves)
{
    static uint32_t blocks[2] = {3, 3};
    const int fd = good_memfd();
    Kvcache__Load load = KVCACHE__LOAD__INIT;
    uint64_t region;

    begin();
    region = make_region(fd);
    save_refused(region, BLOCKS, KVC_E_INVALID, "entries[0].blocks[0]");
    save_refused(region, UINT32_MAX, KVC_E_INVALID, "entries[0].blocks[0]");
    save_refused(region + 1, 0, KVC_E_UNKNOWN, "region");
    load.part = part;
    load.epoch = epoch;
    load.lease = 5;
    load.count = 2;
    load.region = region;
    load.n_blocks = 2;
    load.blocks = blocks;
    // S32
    talk_expect_error(sock, talk_send(sock, WIRE_LOAD, &load.base), KVC_E_DUPLICATE, "blocks[1]");
    blocks[1] = BLOCKS;
    talk_expect_error(sock, talk_send(sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "blocks[1]");
    blocks[1] = 4;
    talk_expect_error(sock, talk_send(sock, WIRE_LOAD, &load.base), KVC_E_EXPIRED, "lease");
    load.n_blocks = 1;
    talk_expect_error(sock, talk_send(sock, WIRE_LOAD, &load.base), KVC_E_INVALID, "blocks");
    // Of another part.
    register_part(sock, 2);
    save_refused(region, 0, KVC_E_INVALID, "region");
    ck_assert_uint_eq(published(), 0);
    close(fd);
    end();
}
END_TEST

// Memory that ends under the copy: what would be SIGBUS is a failed save, and the region is of no
// more use. The seal is what prevents it; a fault lets a memfd without one pass.
START_TEST(memory_that_is_cut_off)
{
    const int fd = memfd(PIECE, 0, true), good = good_memfd();
    uint64_t region;

    begin();
    daemon_log_expect(d, "copy failed");
    daemon_fault_arm(d, "region.unsealed", 0, 1);
    region = make_region(fd);
    ck_assert_uint_eq(daemon_fault_fired(d, "region.unsealed"), 1);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    save_key(region, 1, 2);
    wait_for(aborted() == 1, 5000);
    // Also when the memory is there again: it is not the one that the worker has.
    ck_assert_int_eq(ftruncate(fd, PIECE), 0);
    save_key(region, 1, 3);
    wait_for(aborted() == 2, 5000);
    ck_assert_uint_eq(published(), 0);
    region = make_region(good);
    save_key(region, 1, 3);
    wait_for(published() == 1, 5000);
    close(fd);
    close(good);
    end();
}
END_TEST

// What a seal against shrinking does not prevent: the page comes back, of zeros, and no harm is
// done.
START_TEST(memory_with_a_hole_punched_into_it)
{
    const int fd = good_memfd();
    uint64_t region;

    begin();
    region = make_region(fd);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PIECE), 0);
    save_key(region, 1, 2);
    wait_for(published() == 1, 5000);
    close(fd);
    end();
}
END_TEST

// Unmapping takes its time, and a daemon that stops waits for it.
START_TEST(stopping_while_a_region_is_unmapped)
{
    const int fd = good_memfd();

    begin();
    make_region(fd);
    daemon_fault_arm(d, "region.late", 0, 200);
    close(fd);
    end();
}
END_TEST

CHECK_MAIN("daemon/regions", CHECK_LIFE_S, what_is_wrong_at_the_begin,
           slices_lie_inside_their_piece, nothing_overlaps, descriptors_that_are_no_good,
           several_packets_and_nothing_before_the_end, F3_sessions_leave_no_mapping,
           limits_of_regions, S41_generations, refused_before_a_byte_moves, memory_that_is_cut_off,
           memory_with_a_hole_punched_into_it, stopping_while_a_region_is_unmapped)
