// REGION_BEGIN to REGION_DROP as packets: every way in which a region can be wrong, and what is
// left of one that is.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"
#include "tests/lib/talk.h"
#include "tests/lib/talk_region.h"
#include "tests/lib/wait.h"

static struct daemon *d;
static struct talk_lender l;

static void begin(void)
{
    d = daemon_start((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "2M", NULL});
    talk_lender_open(&l, daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
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
    close(l.sock);
    daemon_stop(d);
}

static void begin_refused(kvc_status status, const char *field)
{
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_REGION_BEGIN, &l.shape.base), status, field);
    talk_region_shape(&l);
}

// A region that was refused on the way is gone: its number means nothing any more.
static void gone(uint64_t region)
{
    talk_expect_error(l.sock, talk_region_send(&l, WIRE_REGION_END, region), KVC_E_UNKNOWN,
                      "region");
    talk_expect_error(l.sock, talk_region_send(&l, WIRE_SUSPEND, region), KVC_E_UNKNOWN, "region");
}

START_TEST(what_is_wrong_at_the_begin)
{
    begin();
    l.shape.part = l.part + 1;
    begin_refused(KVC_E_UNKNOWN, "part");
    l.shape.n_slice_pieces = TALK_REGION_SLICES - 1;
    begin_refused(KVC_E_INVALID, "slice_pieces");
    l.shape.n_slice_offsets = TALK_REGION_SLICES + 1;
    begin_refused(KVC_E_INVALID, "slice_offsets");
    l.shape.n_slice_strides = 0;
    begin_refused(KVC_E_INVALID, "slice_strides");
    l.shape.blocks = 0;
    begin_refused(KVC_E_INVALID, "blocks");
    l.shape.blocks = KVC_REGION_BLOCKS_MAX + 1;
    begin_refused(KVC_E_LIMIT, "blocks");
    l.shape.pieces = 0;
    begin_refused(KVC_E_INVALID, "pieces");
    l.shape.pieces = KVC_SESSION_PIECES_MAX + 1;
    begin_refused(KVC_E_LIMIT, "pieces");
    l.shape.pieces = UINT32_MAX;
    begin_refused(KVC_E_LIMIT, "pieces");
    l.slice_pieces[1] = 1;
    begin_refused(KVC_E_INVALID, "slice_pieces[1]");
    l.slice_strides[0] = TALK_REGION_STRIDE - 1;
    begin_refused(KVC_E_INVALID, "slice_strides[0]");
    l.slice_strides[2] = 0;
    begin_refused(KVC_E_INVALID, "slice_strides[2]");
    talk_ping(l.sock);
    end();
}
END_TEST

// Slices that leave the piece, also by going once around the address space.
START_TEST(slices_lie_inside_their_piece)
{
    static const struct {
        uint64_t offset, stride;
    } bad[] = {
        {TALK_REGION_PIECE, TALK_REGION_STRIDE},
        {2 * TALK_REGION_BLOCKS * TALK_REGION_STRIDE + 1, TALK_REGION_STRIDE},
        {0, UINT64_MAX},
        {UINT64_MAX, TALK_REGION_STRIDE},
        {UINT64_MAX - 15, 1u << 20},
        {1, UINT64_MAX / (TALK_REGION_BLOCKS - 1)},
        {0, TALK_REGION_PIECE},
        {UINT64_MAX - TALK_REGION_PIECE, TALK_REGION_STRIDE},
    };
    const int fd = talk_region_good_memfd();

    begin();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t region;

        l.slice_offsets[0] = bad[i].offset;
        l.slice_strides[0] = bad[i].stride;
        region = talk_region_begin(&l);
        talk_region_add(&l, region, TALK_REGION_PIECE, 0, fd);
        talk_expect_error(l.sock, talk_region_send(&l, WIRE_REGION_END, region), KVC_E_INVALID,
                          "slice_offsets[0]");
        gone(region);
        talk_region_shape(&l);
    }
    ck_assert_uint_ne(talk_region_make(&l, fd), 0);
    close(fd);
    end();
}
END_TEST

// Where two destinations could be one.
START_TEST(nothing_overlaps)
{
    const int fd = talk_region_good_memfd();
    uint64_t region;

    begin();
    for (int i = 0; i < 5; i++) {
        switch (i) {
        case 0: // the same place
            l.slice_offsets[1] = l.slice_offsets[0];
            break;
        case 1: // interleaved, and too near
            l.slice_strides[0] = l.slice_strides[1] = 2 * TALK_REGION_STRIDE;
            l.slice_offsets[0] = 0;
            l.slice_offsets[1] = TALK_REGION_STRIDE - 1;
            break;
        case 2: // around the end of the stride
            l.slice_strides[0] = l.slice_strides[1] = 2 * TALK_REGION_STRIDE;
            l.slice_offsets[0] = 500;
            l.slice_offsets[1] = 2 * TALK_REGION_STRIDE - 499;
            break;
        case 3: // of two strides
            l.slice_offsets[1] = TALK_REGION_STRIDE;
            l.slice_strides[0] = 2 * TALK_REGION_STRIDE;
            break;
        case 4: // the last block of one, the first of the next
            l.slice_offsets[1] = (TALK_REGION_BLOCKS - 1) * TALK_REGION_STRIDE + 4000;
            break;
        }
        region = talk_region_begin(&l);
        talk_region_add(&l, region, TALK_REGION_PIECE, 0, fd);
        talk_expect_error(l.sock, talk_region_send(&l, WIRE_REGION_END, region), KVC_E_INVALID,
                          "slice_offsets");
        gone(region);
        talk_region_shape(&l);
    }
    // Two pieces that are one.
    l.shape.pieces = 2;
    region = talk_region_begin(&l);
    talk_region_add(&l, region, TALK_REGION_PIECE, 0, fd);
    talk_region_add(&l, region, TALK_REGION_STRIDE, TALK_REGION_PIECE - TALK_REGION_STRIDE, fd);
    talk_expect_error(l.sock, talk_region_send(&l, WIRE_REGION_END, region), KVC_E_INVALID,
                      "piece_offsets");
    gone(region);
    // And two that are not; slices that interleave as engines do.
    talk_region_shape(&l);
    l.shape.pieces = 2;
    l.slice_pieces[0] = 1;
    l.slice_offsets[0] = 0;
    l.slice_offsets[1] = 16;
    l.slice_offsets[2] = 0;
    l.slice_strides[1] = l.slice_strides[2] = 1016;
    region = talk_region_begin(&l);
    talk_region_add(&l, region, 2 * TALK_REGION_STRIDE, 0, fd);
    talk_region_add(&l, region, TALK_REGION_BLOCKS * TALK_REGION_STRIDE, 2 * TALK_REGION_STRIDE,
                    fd);
    ck_assert_uint_eq(talk_region_end(&l, region), region);
    close(fd);
    end();
}
END_TEST

static void part_refused(uint8_t kind, uint64_t bytes, uint64_t offset, int fd, uint32_t n_fds,
                         kvc_status status, const char *field)
{
    uint64_t region = talk_region_begin(&l);

    talk_expect_error(l.sock, talk_region_part(&l, region, 1, kind, bytes, offset, fd, n_fds),
                      status, field);
    gone(region);
}

START_TEST(descriptors_that_are_no_good)
{
    const uint8_t kind = KVCACHE__MEMORY_KIND__MEMORY_MEMFD;
    const int good = talk_region_good_memfd(),
              unsealed = talk_region_memfd(TALK_REGION_PIECE, 0, true),
              holes = talk_region_memfd(TALK_REGION_PIECE, F_SEAL_SHRINK, false);
    char path[64];
    int pipes[2], file, fds, readonly, huge;

    begin();
    fds = talk_settled_fds(l.sock, d);
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", good);
    readonly = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert(file >= 0 && readonly >= 0);
    part_refused(kind, TALK_REGION_PIECE, 0, pipes[0], 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, TALK_REGION_PIECE, 0, l.sock, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, TALK_REGION_PIECE, 0, file, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, TALK_REGION_PIECE, 0, unsealed, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, TALK_REGION_PIECE, 0, holes, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, TALK_REGION_PIECE, 0, readonly, 1, KVC_E_INVALID, "fds[0]");
    part_refused(kind, TALK_REGION_PIECE + 1, 0, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, 0, 0, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, UINT64_MAX, 0, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, TALK_REGION_PIECE, UINT64_MAX - TALK_REGION_PIECE + 1, good, 1,
                 KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, TALK_REGION_PIECE, 4096, good, 1, KVC_E_INVALID, "piece_bytes[0]");
    part_refused(kind, 4096, 100, good, 1, KVC_E_INVALID, "piece_offsets[0]");
    part_refused(0, TALK_REGION_PIECE, 0, good, 1, KVC_E_INVALID, "kinds[0]");
    part_refused(77, TALK_REGION_PIECE, 0, good, 1, KVC_E_INVALID, "kinds[0]");
    part_refused(KVCACHE__MEMORY_KIND__MEMORY_CUDA_FD, TALK_REGION_PIECE, 0, good, 1,
                 KVC_E_UNSUPPORTED, "kinds[0]");
    part_refused(KVCACHE__MEMORY_KIND__MEMORY_CUDA_HANDLE, TALK_REGION_PIECE, 0, good, 0,
                 KVC_E_UNSUPPORTED, "kinds[0]");
    part_refused(kind, TALK_REGION_PIECE, 0, good, 0, KVC_E_INVALID, "kinds");
    part_refused(kind, TALK_REGION_PIECE, 0, good, 2, KVC_E_INVALID, "kinds");
    huge = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (huge >= 0) {
        ck_assert_int_eq(ftruncate(huge, 2 << 20), 0);
        ck_assert_int_eq(fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        part_refused(kind, TALK_REGION_PIECE, 0, huge, 1, KVC_E_INVALID, "fds[0]");
        close(huge);
    }
    // Nothing of all that is left.
    ck_assert_int_eq(talk_settled_fds(l.sock, d), fds);
    wait_for(daemon_mappings() == 0, 2000);
    ck_assert_uint_ne(talk_region_make(&l, good), 0);
    ck_assert_int_eq(daemon_mappings(), 1);
    ck_assert_int_eq(talk_settled_fds(l.sock, d), fds);
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
    const int fd = talk_region_memfd((PIECES + 1) * TALK_REGION_STRIDE, F_SEAL_SHRINK, true);
    uint64_t region;

    begin();
    for (uint32_t i = 0; i < TALK_REGION_SLICES; i++) {
        l.slice_pieces[i] = i * 60;
        l.slice_offsets[i] = 0;
    }
    l.shape.blocks = 1;
    l.shape.pieces = PIECES;
    region = talk_region_begin(&l);
    for (uint32_t i = 0; i < PIECES; i++) {
        talk_region_save_refused(&l, region, 0, KVC_E_UNKNOWN, "region");
        talk_expect_error(l.sock, talk_region_send(&l, WIRE_SUSPEND, region), KVC_E_UNKNOWN,
                          "region");
        if (i == 0)
            talk_region_add(&l, region, TALK_REGION_STRIDE, 0, fd);
        else
            talk_region_add(&l, region, TALK_REGION_STRIDE, i * (uint64_t)TALK_REGION_STRIDE, fd);
    }
    ck_assert_uint_eq(talk_region_end(&l, region), region);
    talk_expect_error(l.sock, talk_region_send(&l, WIRE_REGION_END, region), KVC_E_UNKNOWN,
                      "region");
    ck_assert_int_eq(daemon_mappings() > 0, 1);
    talk_region_save_key(&l, region, 1, 0);
    wait_for(talk_region_published(&l) == 1, 5000);
    talk_region_ask(&l, WIRE_REGION_DROP, region);
    ck_assert_int_eq(daemon_mappings(), 0);
    region = talk_region_begin(&l);
    talk_region_add(&l, region, TALK_REGION_STRIDE, 0, fd);
    talk_expect_error(l.sock, talk_region_send(&l, WIRE_REGION_END, region), KVC_E_INVALID,
                      "pieces");
    gone(region);
    talk_region_shape(&l);
    region = talk_region_begin(&l);
    talk_region_add(&l, region, TALK_REGION_STRIDE, 0, fd);
    talk_expect_error(l.sock,
                      talk_region_part(&l, region, 1, KVCACHE__MEMORY_KIND__MEMORY_MEMFD,
                                       TALK_REGION_STRIDE, 0, fd, 1),
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
    const int fd = talk_region_good_memfd();
    int other = 0, fds;

    begin();
    other = l.sock;
    fds = talk_settled_fds(other, d);
    for (int i = 0; i < 100; i++) {
        l.sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
        talk_lender_register(&l, 1);
        if (i % 2 == 0)
            talk_region_make(&l, fd);
        talk_region_add(&l, talk_region_begin(&l), TALK_REGION_PIECE, 0, fd);
        close(l.sock);
    }
    wait_for(daemon_mappings() == 0, 5000);
    l.sock = other;
    ck_assert_int_eq(talk_settled_fds(l.sock, d), fds);
    close(fd);
    end();
}
END_TEST

static bool begins(void)
{
    return talk_outcome(l.sock, talk_send(l.sock, WIRE_REGION_BEGIN, &l.shape.base)) == KVC_OK;
}

START_TEST(limits_of_regions)
{
    int socks[KVC_PIECES_MAX / KVC_SESSION_PIECES_MAX + 1];
    uint32_t n = 0;
    uint64_t first;

    begin();
    first = talk_region_begin(&l);
    for (uint32_t i = 1; i < KVC_SESSION_REGIONS_MAX; i++)
        talk_region_begin(&l);
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_REGION_BEGIN, &l.shape.base), KVC_E_LIMIT, "");
    talk_region_ask(&l, WIRE_REGION_DROP, first);
    l.shape.pieces = KVC_SESSION_PIECES_MAX - KVC_SESSION_REGIONS_MAX + 2;
    begin_refused(KVC_E_LIMIT, "pieces");
    l.shape.pieces = KVC_SESSION_PIECES_MAX - KVC_SESSION_REGIONS_MAX + 1;
    talk_region_begin(&l);
    // Of all sessions together.
    for (uint32_t i = 1; i < KVC_PIECES_MAX / KVC_SESSION_PIECES_MAX; i++) {
        socks[n++] = l.sock;
        l.sock = talk_hello(daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
        talk_lender_register(&l, 1);
        l.shape.pieces = KVC_SESSION_PIECES_MAX;
        talk_region_begin(&l);
    }
    socks[n++] = l.sock;
    talk_lender_open(&l, daemon_socket(d), KVCACHE__ROLE__ROLE_WORKER, NULL);
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
    const int fd = talk_region_good_memfd(), other = talk_region_good_memfd();
    uint64_t first, second, moved;

    begin();
    first = talk_region_make(&l, fd);
    ck_assert_uint_eq(talk_region_make(&l, fd), first);
    ck_assert_int_eq(daemon_mappings() >= 1, 1);
    wait_for(daemon_mappings() == 1, 2000);
    moved = talk_region_make(&l, other);
    ck_assert_uint_ne(moved, first);
    talk_region_save_key(&l, first, 1, 0);
    talk_region_save_key(&l, moved, 2, 0);
    wait_for(talk_region_published(&l) == 2, 5000);
    l.shape.generation = 7;
    second = talk_region_make(&l, fd);
    ck_assert_uint_ne(second, first);
    ck_assert_uint_eq(talk_region_make(&l, fd), second);
    talk_region_save_refused(&l, first, 0, KVC_E_UNKNOWN, "region");
    talk_region_save_refused(&l, moved, 0, KVC_E_UNKNOWN, "region");
    talk_region_save_key(&l, second, 3, 0);
    wait_for(talk_region_published(&l) == 3, 5000);
    l.shape.generation = 6;
    talk_expect_error(l.sock, talk_send(l.sock, WIRE_REGION_BEGIN, &l.shape.base), KVC_E_STALE,
                      "generation");
    wait_for(daemon_mappings() == 1, 2000);
    close(fd);
    close(other);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("daemon/regions", CHECK_LIFE_S, {what_is_wrong_at_the_begin, 0, 0},
                 {slices_lie_inside_their_piece, 0, 0}, {nothing_overlaps, 0, 0},
                 {descriptors_that_are_no_good, 0, 0},
                 {several_packets_and_nothing_before_the_end, 0, 0},
                 {F3_sessions_leave_no_mapping, 0, 0}, {limits_of_regions, 0, 0},
                 {S41_generations, 0, 0, CHECK_DAEMON_COPIES})
