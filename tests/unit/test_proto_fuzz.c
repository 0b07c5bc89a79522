// Random changes of right packets, sent as they are. What wire_recv() must say follows from the
// bytes and descriptors that were sent, judged here a second time.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fd.h"
#include "proto/wire.h"
#include "tests/lib/check_main.h"
#include "tests/lib/random.h"
#include "tests/lib/raw.h"

#define SEEDS 8

static uint8_t buf[KVC_WIRE_PACKET_MAX];
static struct raw raw;
static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(random_next(&random_state) >> 32) % n;
}

static void mutate(void)
{
    switch (below(8)) {
    case 0: // a byte of the header
        raw.bytes[below(KVC_WIRE_HEADER_BYTES)] = (uint8_t)below(256);
        break;
    case 1: // a bit of the header
        raw.bytes[below(KVC_WIRE_HEADER_BYTES)] ^= (uint8_t)(1u << below(8));
        break;
    case 2: // anything in the body, which is not wire's business
        if (raw.len > KVC_WIRE_HEADER_BYTES)
            raw.bytes[KVC_WIRE_HEADER_BYTES + below((uint32_t)raw.len - KVC_WIRE_HEADER_BYTES)] ^=
                1;
        break;
    case 3: // cut
        raw.len = below((uint32_t)raw.len + 1);
        break;
    case 4: // grown
        raw.len += 1 + below(32);
        break;
    case 5: // descriptors
        raw.n_fds = below(4) == 0 ? below(RAW_FDS_MAX + 1) : below(5);
        break;
    case 6: // their number in the header
        raw_put_u16(&raw, 6, below(2) == 0 ? below(5) : below(70));
        break;
    default: // the length in the header
        raw_put_u32(&raw, 12, (uint32_t)raw.len - KVC_WIRE_HEADER_BYTES + below(5) - 2);
        break;
    }
}

static enum wire_result expected(void)
{
    uint32_t said_fds, said_len;

    if (raw.len == 0 && raw.n_fds == 0)
        return WIRE_EOF;
    if (raw.len < KVC_WIRE_HEADER_BYTES || raw.len > KVC_WIRE_PACKET_MAX)
        return WIRE_BAD;
    said_fds = raw.bytes[6] + 256u * raw.bytes[7];
    said_len =
        raw.bytes[12] + 256u * (raw.bytes[13] + 256u * (raw.bytes[14] + 256u * raw.bytes[15]));
    if (memcmp(raw.bytes, "KVC\1", 4) != 0 || said_len + KVC_WIRE_HEADER_BYTES != raw.len)
        return WIRE_BAD;
    return said_fds == raw.n_fds && raw.n_fds <= KVC_WIRE_FDS_MAX ? WIRE_OK : WIRE_BAD;
}

START_TEST(test_mutated_packets)
{
    const int rounds = check_long() ? 50000 : 2000;
    int ends[2], ok = 0, bad = 0;

    random_state = RANDOM_STATE * (uint64_t)(_i + 1);
    raw_pair(ends);
    const int before = fd_count_open();
    for (int round = 0; round < rounds; round++) {
        struct wire_packet packet;
        const char *why = NULL;
        uint32_t body_len = below(8) == 0 ? below(KVC_WIRE_BODY_MAX + 1) : below(200);

        raw_make(&raw, (uint16_t)below(0x10000), below(UINT32_MAX), body_len, below(4));
        for (uint32_t n = below(4); n > 0; n--)
            mutate();
        enum wire_result want = expected();
        ck_assert_msg(raw_send(ends[0], &raw), "seed %d round %d: %s", _i, round, strerror(errno));
        enum wire_result got = wire_recv(ends[1], buf, &packet, &why);
        ck_assert_msg(got == want, "seed %d round %d: %d, not %d (%s)", _i, round, got, want,
                      why != NULL ? why : "");
        if (got == WIRE_OK) {
            ck_assert_uint_eq(packet.n_fds, raw.n_fds);
            ck_assert_uint_eq(packet.body_len, raw.len - KVC_WIRE_HEADER_BYTES);
            ck_assert_mem_eq(packet.body, raw.bytes + KVC_WIRE_HEADER_BYTES, packet.body_len);
            ck_assert_int_eq(fd_count_open(), before + (int)packet.n_fds);
            wire_close_fds(&packet);
            ok++;
        }
        bad += got == WIRE_BAD;
        ck_assert_msg((why != NULL) == (got == WIRE_BAD), "seed %d round %d", _i, round);
        ck_assert_msg(fd_count_open() == before, "seed %d round %d: descriptors", _i, round);
    }
    // Neither side of the judgement was trivial.
    ck_assert_int_gt(ok, rounds / 8);
    ck_assert_int_gt(bad, rounds / 8);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

CHECK_MAIN_LOOPS("proto/fuzz", CHECK_LIFE_S, {test_mutated_packets, 0, SEEDS - 1})
