// Requests that are refused: each gets a status and the field at fault, and the session goes on as
// if it had not been.
#include <string.h>
#include <unistd.h>

#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"
#include "tests/lib/talk.h"

static struct daemon *d;
static int sock;
static uint32_t part, epoch;
static uint8_t keys[(KVC_KEYS_MAX + 1) * KVC_KEY_BYTES];
static uint32_t numbers[KVC_SLICES_MAX + 1];

static Kvcache__Register good_register(void)
{
    static uint8_t digest[KVC_NAMESPACE_BYTES] = "a namespace";
    static uint32_t slices[4] = {2048, 2048, 2048, 2048};
    Kvcache__Register m = KVCACHE__REGISTER__INIT;

    m.namespace_digest = (ProtobufCBinaryData){sizeof(digest), digest};
    m.block_tokens = 16;
    m.n_slice_bytes = 4;
    m.slice_bytes = slices;
    m.name = "model";
    return m;
}

static void begin(Kvcache__Role role)
{
    d = daemon_start(NULL);
    sock = talk_hello(daemon_socket(d), role, NULL);
    for (uint32_t i = 0; i < sizeof(keys); i++)
        keys[i] = (uint8_t)(i % KVC_KEY_BYTES == 0   ? i / KVC_KEY_BYTES
                            : i % KVC_KEY_BYTES == 1 ? i / KVC_KEY_BYTES >> 8
                                                     : 7);
    if (role != KVCACHE__ROLE__ROLE_OPERATOR) {
        Kvcache__Register m = good_register();
        Kvcache__RegisterReply *r =
            talk_ask(sock, WIRE_REGISTER, &m.base, &kvcache__register_reply__descriptor);

        part = r->part;
        epoch = r->epoch;
        ck_assert_uint_eq(r->slot_bytes, 8192);
        ck_assert_uint_gt(r->extents, 0);
        talk_free(r);
    }
}

static void end(void)
{
    Kvcache__Debug m = KVCACHE__DEBUG__INIT;
    Kvcache__DebugReply *r;

    talk_ping(sock);
    m.check = true;
    r = talk_ask(sock, WIRE_DEBUG, &m.base, &kvcache__debug_reply__descriptor);
    ck_assert_str_eq(r->broken, "");
    talk_free(r);
    close(sock);
    daemon_stop(d);
}

static void refused(uint16_t type, const ProtobufCMessage *m, kvc_status status, const char *field)
{
    talk_expect_error(sock, talk_send(sock, type, m), status, field);
}

START_TEST(test_register)
{
    static uint8_t bytes[KVC_SLICES_MAX];
    char name[KVC_NAME_MAX + 2] = "";
    Kvcache__Register m;

#define REFUSED(status, field, ...)                                                                \
    m = good_register();                                                                           \
    __VA_ARGS__;                                                                                   \
    refused(WIRE_REGISTER, &m.base, status, field)

    begin(KVCACHE__ROLE__ROLE_WORKER);
    memset(name, 'n', sizeof(name) - 1);
    REFUSED(KVC_E_INVALID, "namespace_digest", m.namespace_digest.len = 0);
    REFUSED(KVC_E_INVALID, "namespace_digest", m.namespace_digest.len = 31);
    REFUSED(KVC_E_INVALID, "block_tokens", m.block_tokens = 0);
    REFUSED(KVC_E_LIMIT, "block_tokens", m.block_tokens = KVC_BLOCK_TOKENS_MAX + 1);
    REFUSED(KVC_E_INVALID, "slice_bytes", m.n_slice_bytes = 0);
    REFUSED(KVC_E_INVALID, "slice_bytes", m.slice_bytes = numbers);
    REFUSED(KVC_E_LIMIT, "slice_bytes", m.slice_bytes = numbers;
            m.n_slice_bytes = KVC_SLICES_MAX + 1);
    numbers[0] = KVC_SLICE_BYTES_MAX + 1;
    REFUSED(KVC_E_LIMIT, "slice_bytes", m.slice_bytes = numbers; m.n_slice_bytes = 1);
    for (uint32_t i = 0; i < 5; i++)
        numbers[i] = KVC_SLICE_BYTES_MAX;
    REFUSED(KVC_E_LIMIT, "slice_bytes", m.slice_bytes = numbers; m.n_slice_bytes = 5);
    REFUSED(KVC_E_INVALID, "slice_dtypes", m.slice_dtypes = ((ProtobufCBinaryData){3, bytes}));
    REFUSED(KVC_E_INVALID, "window", m.rule = KVCACHE__RULE__RULE_WINDOW);
    REFUSED(KVC_E_INVALID, "window", m.rule = KVCACHE__RULE__RULE_STATE; m.window = 4096);
    REFUSED(KVC_E_INVALID, "rule", m.rule = (Kvcache__Rule)9);
    REFUSED(KVC_E_INVALID, "window", m.window = 1);
    REFUSED(KVC_E_INVALID, "family", m.family = ((ProtobufCBinaryData){15, bytes}));
    REFUSED(KVC_E_LIMIT, "name", m.name = name);
#undef REFUSED
    end();
}
END_TEST

START_TEST(test_unregister_and_map)
{
    Kvcache__Unregister unregister = KVCACHE__UNREGISTER__INIT;
    Kvcache__Map map = KVCACHE__MAP__INIT;
    Kvcache__Unmap unmap = KVCACHE__UNMAP__INIT;
    uint32_t mapped[KVC_WIRE_FDS_MAX + 1] = {0};

    begin(KVCACHE__ROLE__ROLE_WORKER);
    unregister.part = part + 1000;
    refused(WIRE_UNREGISTER, &unregister.base, KVC_E_UNKNOWN, "part");
    unregister.part = 0;
    refused(WIRE_UNREGISTER, &unregister.base, KVC_E_UNKNOWN, "part");
    map.mapped = mapped;
    map.n_mapped = KVC_WIRE_FDS_MAX + 1;
    refused(WIRE_MAP, &map.base, KVC_E_LIMIT, "mapped");
    map.n_mapped = 2;
    mapped[1] = 1000; // there are no so many extents
    refused(WIRE_MAP, &map.base, KVC_E_DENIED, "mapped[1]");
    mapped[1] = UINT32_MAX;
    refused(WIRE_MAP, &map.base, KVC_E_DENIED, "mapped[1]");
    unmap.extents = mapped;
    unmap.n_extents = 2;
    refused(WIRE_UNMAP, &unmap.base, KVC_E_INVALID, "extents[1]");
    mapped[1] = 1000;
    refused(WIRE_UNMAP, &unmap.base, KVC_E_INVALID, "extents[1]");
    end();
}
END_TEST

START_TEST(test_lookup)
{
    Kvcache__LookupPart parts[KVC_PARTS_MAX + 1], *pointers[KVC_PARTS_MAX + 1];
    Kvcache__Lookup m = KVCACHE__LOOKUP__INIT;

    begin(KVCACHE__ROLE__ROLE_WORKER);
    for (uint32_t i = 0; i <= KVC_PARTS_MAX; i++) {
        kvcache__lookup_part__init(&parts[i]);
        parts[i].part = part;
        parts[i].epoch = epoch;
        pointers[i] = &parts[i];
    }
    m.parts = pointers;
    m.keys = (ProtobufCBinaryData){4 * KVC_KEY_BYTES, keys};
    refused(WIRE_LOOKUP, &m.base, KVC_E_INVALID, "parts");
    m.n_parts = KVC_PARTS_MAX + 1;
    refused(WIRE_LOOKUP, &m.base, KVC_E_LIMIT, "parts");
    m.n_parts = 1;
    m.keys.len = 17;
    refused(WIRE_LOOKUP, &m.base, KVC_E_INVALID, "keys");
    m.keys.len = sizeof(keys);
    refused(WIRE_LOOKUP, &m.base, KVC_E_LIMIT, "keys");
    m.keys.len = 4 * KVC_KEY_BYTES;
    parts[0].keys = (ProtobufCBinaryData){15, keys};
    refused(WIRE_LOOKUP, &m.base, KVC_E_INVALID, "parts[0].keys");
    parts[0].keys.len = 0;
    parts[0].part = part + 1;
    refused(WIRE_LOOKUP, &m.base, KVC_E_UNKNOWN, "parts[0].part");
    parts[0].part = part;
    parts[0].epoch = epoch + 1;
    refused(WIRE_LOOKUP, &m.base, KVC_E_STALE, "parts[0].epoch");
    parts[0].epoch = epoch;
    m.n_parts = 2;
    parts[1].keys = (ProtobufCBinaryData){KVC_KEY_BYTES, keys};
    refused(WIRE_LOOKUP, &m.base, KVC_E_INVALID, "parts[1].keys");
    parts[1].keys.len = (KVC_KEYS_MAX - 3) * KVC_KEY_BYTES;
    refused(WIRE_LOOKUP, &m.base, KVC_E_LIMIT, "parts[1].keys");
    m.n_parts = 1;
    m.offset = 1;
    refused(WIRE_LOOKUP, &m.base, KVC_E_INVALID, "offset");
    m.offset = 0;
    m.lease = UINT64_MAX; // far from any that was given
    refused(WIRE_LOOKUP, &m.base, KVC_E_UNKNOWN, "lease");
    end();
}
END_TEST

START_TEST(test_save)
{
    Kvcache__SaveEntry entries[KVC_ENTRIES_MAX + 1], *pointers[KVC_ENTRIES_MAX + 1];
    Kvcache__Save m = KVCACHE__SAVE__INIT;
    uint8_t event[64] = {0};

    begin(KVCACHE__ROLE__ROLE_WORKER);
    for (uint32_t i = 0; i <= KVC_ENTRIES_MAX; i++) {
        kvcache__save_entry__init(&entries[i]);
        entries[i].part = part;
        entries[i].epoch = epoch;
        pointers[i] = &entries[i];
    }
    m.entries = pointers;
    m.n_entries = KVC_ENTRIES_MAX + 1;
    refused(WIRE_SAVE, &m.base, KVC_E_LIMIT, "entries");
    m.n_entries = 2;
    entries[0].keys = (ProtobufCBinaryData){2 * KVC_KEY_BYTES, keys};
    entries[1].keys = (ProtobufCBinaryData){33, keys};
    refused(WIRE_SAVE, &m.base, KVC_E_INVALID, "entries[1].keys");
    entries[1].keys.len = (KVC_KEYS_MAX - 1) * KVC_KEY_BYTES;
    refused(WIRE_SAVE, &m.base, KVC_E_LIMIT, "entries[1].keys");
    entries[1].keys.len = KVC_KEY_BYTES;
    entries[1].part = part + 1;
    refused(WIRE_SAVE, &m.base, KVC_E_UNKNOWN, "entries[1].part");
    entries[1].part = part;
    entries[1].epoch = epoch + 1;
    refused(WIRE_SAVE, &m.base, KVC_E_STALE, "entries[1].epoch");
    entries[1].epoch = epoch;
    entries[1].blocks = numbers;
    entries[1].n_blocks = 1;
    refused(WIRE_SAVE, &m.base, KVC_E_INVALID, "entries[1].blocks");
    m.region = 7;
    refused(WIRE_SAVE, &m.base, KVC_E_INVALID, "entries[0].blocks");
    entries[0].blocks = numbers;
    entries[0].n_blocks = 2;
    refused(WIRE_SAVE, &m.base, KVC_E_UNKNOWN, "region");
    m.region = 0;
    entries[1].region = 8;
    refused(WIRE_SAVE, &m.base, KVC_E_UNKNOWN, "region");
    entries[0].region = 9;
    refused(WIRE_SAVE, &m.base, KVC_E_UNKNOWN, "entries[0].region");
    entries[0].region = entries[1].region = 0;
    entries[0].n_blocks = entries[1].n_blocks = 0;
    entries[1].slices = 5;
    refused(WIRE_SAVE, &m.base, KVC_E_INVALID, "entries[1].slices");
    entries[1].slices = 0;
    memcpy(keys + KVC_KEY_BYTES, keys, KVC_KEY_BYTES);
    refused(WIRE_SAVE, &m.base, KVC_E_DUPLICATE, "entries[0].keys");
    m.n_entries = 0;
    m.save = 7;
    refused(WIRE_SAVE, &m.base, KVC_E_UNKNOWN, "save");
    m.save = 0;
    m.event = (ProtobufCBinaryData){sizeof(event), event};
    refused(WIRE_SAVE, &m.base, KVC_E_UNSUPPORTED, "event");
    m.event.len = 0;
    m.gate_number = 1;
    refused(WIRE_SAVE, &m.base, KVC_E_INVALID, "gate");
    end();
}
END_TEST

START_TEST(test_load)
{
    Kvcache__Load m = KVCACHE__LOAD__INIT;
    uint8_t event[64] = {0};

    begin(KVCACHE__ROLE__ROLE_READER);
    m.lease = UINT64_MAX;
    m.part = part;
    m.epoch = epoch;
    m.count = 1;
    refused(WIRE_LOAD, &m.base, KVC_E_UNKNOWN, "lease");
    m.count = KVC_KEYS_MAX + 1;
    refused(WIRE_LOAD, &m.base, KVC_E_LIMIT, "count");
    m.count = UINT32_MAX;
    refused(WIRE_LOAD, &m.base, KVC_E_LIMIT, "count");
    m.count = 1;
    m.blocks = numbers;
    m.n_blocks = 1;
    refused(WIRE_LOAD, &m.base, KVC_E_INVALID, "blocks");
    m.region = 1;
    refused(WIRE_LOAD, &m.base, KVC_E_UNKNOWN, "region");
    m.n_blocks = 0;
    refused(WIRE_LOAD, &m.base, KVC_E_INVALID, "blocks");
    m.region = 0;
    m.event = (ProtobufCBinaryData){sizeof(event), event};
    refused(WIRE_LOAD, &m.base, KVC_E_UNSUPPORTED, "event");
    m.event.len = 0;
    m.gate_number = 1;
    refused(WIRE_LOAD, &m.base, KVC_E_INVALID, "gate");
    end();
}
END_TEST

START_TEST(test_the_rest)
{
    Kvcache__Abort abort_ = KVCACHE__ABORT__INIT;
    Kvcache__Extend extend = KVCACHE__EXTEND__INIT;
    Kvcache__Adopt adopt = KVCACHE__ADOPT__INIT;
    Kvcache__Drained drained = KVCACHE__DRAINED__INIT;
    Kvcache__List list = KVCACHE__LIST__INIT;
    Kvcache__Ping ping = KVCACHE__PING__INIT;
    static uint8_t payload[KVC_WIRE_BODY_MAX - 8];

    begin(KVCACHE__ROLE__ROLE_WORKER);
    abort_.save = 5;
    refused(WIRE_ABORT, &abort_.base, KVC_E_UNKNOWN, "save");
    abort_.save = 0;
    abort_.request = 77;
    refused(WIRE_ABORT, &abort_.base, KVC_E_UNKNOWN, "request");
    extend.lease = UINT64_MAX;
    refused(WIRE_EXTEND, &extend.base, KVC_E_UNKNOWN, "lease");
    adopt.token = (ProtobufCBinaryData){15, keys};
    refused(WIRE_ADOPT, &adopt.base, KVC_E_INVALID, "token");
    adopt.token.len = 16;
    adopt.part = part;
    adopt.epoch = epoch;
    refused(WIRE_ADOPT, &adopt.base, KVC_E_UNKNOWN, "token");
    drained.session = 99999;
    refused(WIRE_DRAINED, &drained.base, KVC_E_INVALID, "secret");
    drained.secret = (ProtobufCBinaryData){16, keys};
    refused(WIRE_DRAINED, &drained.base, KVC_E_UNKNOWN, "session");
    list.what = "secrets";
    refused(WIRE_LIST, &list.base, KVC_E_UNSUPPORTED, "what");
    ping.payload = (ProtobufCBinaryData){sizeof(payload), payload};
    refused(WIRE_PING, &ping.base, KVC_E_LIMIT, "payload");
    end();
}
END_TEST

// What the protocol knows and this daemon does not do, and types that nobody knows.
START_TEST(test_unsupported)
{
    static const uint16_t types[] = {
        WIRE_HINT,
        WIRE_TYPE_MAX + 1,
        0x3eff,
        0x3fff,
    };
    static struct raw raw;
    int fds;

    begin(KVCACHE__ROLE__ROLE_WORKER);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        refused(types[i], NULL, KVC_E_UNSUPPORTED, "");
    // Descriptors that come with them are closed, if the thread that does so is late, too.
    fds = talk_settled_fds(sock, d);
    daemon_log_allow(d, "closing a descriptor takes long");
    daemon_fault_arm(d, "closer.stuck", 0, 100);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        raw_make(&raw, types[i], 1000 + (uint32_t)i, 0, 3);
        ck_assert(raw_send(sock, &raw));
        talk_expect_error(sock, 1000 + (uint32_t)i, KVC_E_UNSUPPORTED, "");
    }
    ck_assert_int_eq(talk_settled_fds(sock, d), fds);
    end();
}
END_TEST

START_TEST(test_roles)
{
    static const uint16_t copying[] = {
        WIRE_MAP,        WIRE_UNMAP,       WIRE_REGION_BEGIN, WIRE_REGION_PART,
        WIRE_REGION_END, WIRE_REGION_DROP, WIRE_SAVE,         WIRE_ABORT,
        WIRE_LOAD,       WIRE_DRAINED,     WIRE_SUSPEND,      WIRE_RESUME,
    };
    static const uint16_t leasing[] = {WIRE_REGISTER, WIRE_UNREGISTER, WIRE_LOOKUP,
                                       WIRE_EXTEND,   WIRE_RELEASE,    WIRE_ADOPT};

    begin((Kvcache__Role)_i);
    if (_i == KVCACHE__ROLE__ROLE_READER) {
        refused(WIRE_SAVE, NULL, KVC_E_DENIED, "");
    } else {
        for (size_t i = 0; i < sizeof(copying) / sizeof(copying[0]); i++)
            refused(copying[i], NULL, KVC_E_DENIED, "");
        // No reply comes to these, whoever sends them.
        talk_send(sock, WIRE_NUDGE, NULL);
        talk_send(sock, WIRE_REPORT, NULL);
    }
    if (_i == KVCACHE__ROLE__ROLE_OPERATOR)
        for (size_t i = 0; i < sizeof(leasing) / sizeof(leasing[0]); i++)
            refused(leasing[i], NULL, KVC_E_DENIED, "");
    end();
}
END_TEST

static uint64_t refused_requests(void)
{
    Kvcache__StatsReply *r = talk_ask(sock, WIRE_STATS, NULL, &kvcache__stats_reply__descriptor);
    uint64_t n = r->refused_requests;

    ck_assert_uint_eq(r->blocks, 0);
    ck_assert_uint_eq(r->filling_slots, 0);
    talk_free(r);
    return n;
}

START_TEST(test_refusals_are_counted)
{
    begin(KVCACHE__ROLE__ROLE_SCHEDULER);
    ck_assert_uint_eq(refused_requests(), 0);
    refused(WIRE_SAVE, NULL, KVC_E_DENIED, "");
    talk_send(sock, WIRE_NUDGE, NULL);
    ck_assert_uint_eq(refused_requests(), 2);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("daemon/refused", CHECK_LIFE_S, {test_register, 0, 0},
                 {test_unregister_and_map, 0, 0}, {test_lookup, 0, 0}, {test_save, 0, 0},
                 {test_load, 0, 0}, {test_the_rest, 0, 0}, {test_unsupported, 0, 0},
                 {test_roles, 2, 4}, {test_refusals_are_counted, 0, 0})
