#include "tests/lib/raw.h"

#include <check.h>
#include <string.h>
#include <sys/socket.h>

#define WHY_SHORT   "shorter than a header"
#define WHY_MAGIC   "wrong magic"
#define WHY_VERSION "wrong version"
#define WHY_LENGTH  "length differs from the packet's"
#define WHY_LONG    "longer than a packet may be"
#define WHY_MANY    "more descriptors than a packet may have"
#define WHY_COUNT   "number of descriptors differs from the header's"

// One right packet (body bytes, fds descriptors) and what is then changed in it.
struct bad {
    const char *name, *why;
    uint32_t body;
    uint32_t fds;       // sent
    int32_t header_fds; // -1: as sent
    int32_t sent_len;   // -1: all
    int32_t poke_at;    // -1: nowhere
    uint32_t poke_bytes;
    uint32_t poke;
};

#define CUT(n)                                                                                     \
    {                                                                                              \
        "header cut at " #n, WHY_SHORT, 0, 0, -1, n, -1, 0, 0                                      \
    }

static const struct bad bad_packets[] = {
    CUT(1),
    CUT(2),
    CUT(3),
    CUT(4),
    CUT(5),
    CUT(6),
    CUT(7),
    CUT(8),
    CUT(9),
    CUT(10),
    CUT(11),
    CUT(12),
    CUT(13),
    CUT(14),
    CUT(15),
    {"header cut at 12, with descriptors", WHY_SHORT, 0, 3, -1, 12, -1, 0, 0},
    {"nothing but a descriptor", WHY_SHORT, 0, 1, -1, 0, -1, 0, 0},
    {"nothing but 64 descriptors", WHY_SHORT, 0, 64, -1, 0, -1, 0, 0},

    {"magic byte 0", WHY_MAGIC, 8, 0, -1, -1, 0, 1, 'k'},
    {"magic byte 1", WHY_MAGIC, 8, 0, -1, -1, 1, 1, 0},
    {"magic byte 2", WHY_MAGIC, 8, 0, -1, -1, 2, 1, 0xff},
    {"magic, with descriptors", WHY_MAGIC, 8, 2, -1, -1, 0, 1, 0},
    {"version 0", WHY_VERSION, 8, 0, -1, -1, 3, 1, 0},
    {"version 2", WHY_VERSION, 8, 0, -1, -1, 3, 1, 2},
    {"version 255", WHY_VERSION, 8, 0, -1, -1, 3, 1, 0xff},
    {"version 2, with descriptors", WHY_VERSION, 8, 64, -1, -1, 3, 1, 2},

    {"length one over", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 101},
    {"length one under", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 99},
    {"length 0 with a body", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 0},
    {"length 1 without a body", WHY_LENGTH, 0, 0, -1, -1, 12, 4, 1},
    {"length counts the header", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 116},
    {"length with the sign bit", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 0x80000064},
    {"length of all ones", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 0xffffffff},
    {"length that wraps to the packet's", WHY_LENGTH, 0, 0, -1, -1, 12, 4, 0xfffffff0},
    {"length big endian", WHY_LENGTH, 100, 0, -1, -1, 12, 4, 0x64000000},
    {"length wrong, with descriptors", WHY_LENGTH, 100, 5, -1, -1, 12, 4, 99},
    {"body cut", WHY_LENGTH, 100, 0, -1, 60, -1, 0, 0},
    {"body cut to nothing", WHY_LENGTH, 100, 1, -1, 16, -1, 0, 0},

    {"one byte over the longest", WHY_LONG, KVC_WIRE_BODY_MAX + 1, 0, -1, -1, -1, 0, 0},
    {"as long as a socket takes", WHY_LONG, RAW_BYTES_MAX - 16, 0, -1, -1, -1, 0, 0},
    {"too long, with descriptors", WHY_LONG, KVC_WIRE_BODY_MAX + 1, 4, -1, -1, -1, 0, 0},
    {"too long, length says less", WHY_LONG, KVC_WIRE_BODY_MAX + 1, 0, -1, -1, 12, 4,
     KVC_WIRE_BODY_MAX},

    {"a descriptor missing", WHY_COUNT, 8, 0, 1, -1, -1, 0, 0},
    {"a descriptor surplus", WHY_COUNT, 8, 1, 0, -1, -1, 0, 0},
    {"one of 64 missing", WHY_COUNT, 8, 63, 64, -1, -1, 0, 0},
    {"one over the header's 63", WHY_COUNT, 8, 64, 63, -1, -1, 0, 0},
    {"64 missing", WHY_COUNT, 0, 0, 64, -1, -1, 0, 0},
    {"64 surplus", WHY_COUNT, 0, 64, 0, -1, -1, 0, 0},
    {"65 said and sent", WHY_MANY, 8, 65, -1, -1, -1, 0, 0},
    {"64 said, 65 sent", WHY_COUNT, 8, 65, 64, -1, -1, 0, 0},
    {"65 said, none sent", WHY_MANY, 8, 0, 65, -1, -1, 0, 0},
    {"65535 said, none sent", WHY_MANY, 8, 0, 0xffff, -1, -1, 0, 0},
    {"all that the kernel takes, said", WHY_MANY, 8, RAW_FDS_MAX, -1, -1, -1, 0, 0},
    {"all that the kernel takes, unsaid", WHY_COUNT, 0, RAW_FDS_MAX, 0, -1, -1, 0, 0},
};

void raw_put_u16(struct raw *raw, size_t at, uint32_t value)
{
    raw->bytes[at] = (uint8_t)value;
    raw->bytes[at + 1] = (uint8_t)(value >> 8);
}

void raw_put_u32(struct raw *raw, size_t at, uint32_t value)
{
    raw_put_u16(raw, at, value);
    raw_put_u16(raw, at + 2, value >> 16);
}

void raw_make(struct raw *raw, uint16_t type, uint32_t seq, uint32_t body_len, uint32_t n_fds)
{
    ck_assert_uint_le(KVC_WIRE_HEADER_BYTES + body_len, RAW_BYTES_MAX);
    raw->len = KVC_WIRE_HEADER_BYTES + body_len;
    raw->n_fds = n_fds;
    // Byte by byte, so that wire_put_header() is tested and not believed.
    memcpy(raw->bytes, "KVC\1", 4);
    raw_put_u16(raw, 4, type);
    raw_put_u16(raw, 6, n_fds);
    raw_put_u32(raw, 8, seq);
    raw_put_u32(raw, 12, body_len);
    for (uint32_t i = 0; i < body_len; i++)
        raw->bytes[KVC_WIRE_HEADER_BYTES + i] = (uint8_t)(i * 31 + 7);
}

bool raw_send(int sock, const struct raw *raw)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(RAW_FDS_MAX * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)raw->bytes, .iov_len = raw->len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (raw->n_fds > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(raw->n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(raw->n_fds * sizeof(int)); // descriptor 0, n times
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)raw->len;
}

size_t raw_bad_count(void)
{
    return sizeof(bad_packets) / sizeof(bad_packets[0]);
}

struct raw_bad raw_bad_get(size_t i, struct raw *raw)
{
    const struct bad *bad = &bad_packets[i];

    raw_make(raw, WIRE_PING, 1, bad->body, bad->fds);
    if (bad->header_fds >= 0)
        raw_put_u16(raw, 6, (uint32_t)bad->header_fds);
    for (uint32_t b = 0; bad->poke_at >= 0 && b < bad->poke_bytes; b++)
        raw->bytes[(uint32_t)bad->poke_at + b] = (uint8_t)(bad->poke >> (8 * b));
    if (bad->sent_len >= 0)
        raw->len = (size_t)bad->sent_len;
    return (struct raw_bad){bad->name, bad->why};
}

void raw_pair(int ends[2])
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}
