// Bodies that are made to cost: small units, 64 KiB of them, of every kind that a parser of
// protobuf has to think about, as the body of every request. Each is refused, or ends its
// connection with one line, within a second; the daemon's memory is what it was.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/neighbour.h"
#include "tests/lib/raw.h"
#include "tests/lib/wait.h"

struct unit {
    const char *name;
    uint32_t len;
    uint8_t bytes[12];
};

// Fields of all numbers that messages have, of wire types right and wrong for them.
static const struct unit units[] = {
    {"unknown numbers", 2, {0x78, 0x01}},
    {"unknown 32 bits", 5, {0x7d, 1, 2, 3, 4}},
    {"unknown 64 bits", 9, {0x79, 1, 2, 3, 4, 5, 6, 7, 8}},
    {"unknown bytes, none", 2, {0x7a, 0}},
    {"unknown bytes, one", 3, {0x7a, 1, 0}},
    {"the largest field number", 6, {0xf8, 0xff, 0xff, 0xff, 0x0f, 1}},
    {"a number of ten bytes", 11, {0x78, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}},
    {"a group", 2, {0x7b, 0x7c}},
    {"field 1, bytes, none", 2, {0x0a, 0}},
    {"field 1, bytes, one", 3, {0x0a, 1, 'a'}},
    {"field 1, a number", 2, {0x08, 1}},
    {"field 1, 64 bits", 9, {0x09, 1, 0, 0, 0, 0, 0, 0, 0}},
    {"field 2, one element packed", 6, {0x12, 4, 1, 0, 0, 0}},
    {"field 2, one element unpacked", 5, {0x15, 1, 0, 0, 0}},
    {"field 2, no element", 2, {0x12, 0}},
    {"field 3, one element packed", 6, {0x1a, 4, 1, 0, 0, 0}},
    {"field 3, no element", 2, {0x1a, 0}},
    {"field 6, text", 3, {0x32, 1, 'a'}},
    {"field 6, text with a NUL", 4, {0x32, 2, 0, 0xff}},
    {"field 8, one element packed", 6, {0x42, 4, 1, 0, 0, 0}},
    {"field 10, bytes", 3, {0x52, 1, 0}},
    {"field 1 with an unknown field in it", 4, {0x0a, 2, 0x78, 1}},
    {"field 1 with one packed element in it", 8, {0x0a, 6, 0x22, 4, 1, 0, 0, 0}},
    {"field 3 with keys in it", 5, {0x1a, 3, 0x1a, 1, 0}},
};
#define N_UNITS (sizeof(units) / sizeof(units[0]))

static struct raw raw;

static void fill(uint16_t type, const uint8_t *bytes, uint32_t len)
{
    uint32_t n = KVC_WIRE_BODY_MAX / len;

    raw_make(&raw, type, 1, n * len, 0);
    for (uint32_t i = 0; i < n; i++)
        memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES + i * len, bytes, len);
}

// Sent, and answered within a second: by a reply, or by the end of the connection and one line.
static void try_it(struct neighbour *n, const char *name)
{
    const bool first = raw.bytes[4] == WIRE_HELLO && raw.bytes[5] == 0;
    const int before = daemon_log_count(n->daemon, "malformed packet");
    int sock =
        first ? talk_connect(n->socket) : talk_hello(n->socket, KVCACHE__ROLE__ROLE_WORKER, NULL);
    struct wire_packet ping = {.type = WIRE_PING, .seq = 777};
    kvc_status status;
    int lines;

    ck_assert(raw_send(sock, &raw));
    if (!first)
        (void)wire_send(sock, &ping); // the connection may be over
    status = talk_outcome(sock, 1);
    close(sock);
    lines = daemon_log_count(n->daemon, "malformed packet") - before;
    ck_assert_msg(lines == (status == KVC_E_DISCONNECTED ? 1 : 0), "%s: %s, with %d lines", name,
                  kvc_status_text(status), lines);
    if (lines > 0)
        neighbour_unmute(n);
    neighbour_works(n);
}

static const uint16_t types[] = {
    WIRE_HELLO,       WIRE_REGISTER,   WIRE_UNREGISTER, WIRE_MAP,     WIRE_UNMAP, WIRE_REGION_BEGIN,
    WIRE_REGION_PART, WIRE_REGION_END, WIRE_LOOKUP,     WIRE_SAVE,    WIRE_ABORT, WIRE_LOAD,
    WIRE_EXTEND,      WIRE_RELEASE,    WIRE_ADOPT,      WIRE_DRAINED, WIRE_FLUSH, WIRE_STATS,
    WIRE_LIST,        WIRE_CONFIG,     WIRE_PING,       WIRE_DEBUG,   WIRE_PIN,   WIRE_QUOTA,
    WIRE_DRAIN,       WIRE_VERIFY,
};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

START_TEST(F39_bodies_of_many_small_units)
{
    struct neighbour n;
    char name[96];

    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "malformed packet");
    for (size_t t = 0; t < N_TYPES; t++) {
        for (size_t u = 0; u < N_UNITS; u++) {
            snprintf(name, sizeof(name), "%s, %s", wire_type_name(types[t]), units[u].name);
            fill(types[t], units[u].bytes, units[u].len);
            try_it(&n, name);
        }
        neighbour_alone(&n);
    }
    neighbour_close(&n);
}
END_TEST

// One field that takes up the whole body, as each field of each request.
START_TEST(F39_bodies_of_one_large_field)
{
    struct neighbour n;
    char name[96];

    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "malformed packet");
    for (size_t t = 0; t < N_TYPES; t++) {
        for (uint8_t field = 1; field <= 10; field++) {
            const uint32_t len = (KVC_WIRE_BODY_MAX - 4) / 16 * 16;

            raw_make(&raw, types[t], 1, len + 4, 0);
            uint8_t *at = raw.bytes + KVC_WIRE_HEADER_BYTES;
            at[0] = (uint8_t)(field << 3 | 2);
            at[1] = (uint8_t)(len | 0x80);
            at[2] = (uint8_t)(len >> 7 | 0x80);
            at[3] = (uint8_t)(len >> 14);
            memset(at + 4, 1, len);
            snprintf(name, sizeof(name), "%s, all in field %u", wire_type_name(types[t]), field);
            try_it(&n, name);
        }
        neighbour_alone(&n);
    }
    neighbour_close(&n);
}
END_TEST

// Lengths and numbers of elements that nothing behind them bears out, each way to write them.
START_TEST(F39_counts_that_cannot_be)
{
    static const uint8_t counts[][10] = {
        {0xff, 0xff, 0xff, 0xff, 0x07},                               // INT_MAX
        {0x80, 0x80, 0x80, 0x80, 0x08},                               // 2^31
        {0xff, 0xff, 0xff, 0xff, 0x0f},                               // 2^32 - 1
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, // -1
        {0xf0, 0xff, 0xff, 0xff, 0x0f},                               // 2^32 - 16
        {0x81, 0x80, 0x04},                                           // one more than there is room
    };
    struct neighbour n;
    char name[96];

    neighbour_open(&n, NULL);
    daemon_log_allow(n.daemon, "malformed packet");
    for (size_t t = 0; t < N_TYPES; t++)
        for (uint8_t field = 1; field <= 10; field++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                raw_make(&raw, types[t], 1, 64, 0);
                raw.bytes[KVC_WIRE_HEADER_BYTES] = (uint8_t)(field << 3 | 2);
                memcpy(raw.bytes + KVC_WIRE_HEADER_BYTES + 1, counts[c], 10);
                snprintf(name, sizeof(name), "%s, field %u, count %zu", wire_type_name(types[t]),
                         field, c);
                try_it(&n, name);
            }
    neighbour_close(&n);
}
END_TEST

CHECK_MAIN("wire/hostile_bodies", CHECK_LIFE_S, F39_bodies_of_many_small_units,
           F39_bodies_of_one_large_field, F39_counts_that_cannot_be)
