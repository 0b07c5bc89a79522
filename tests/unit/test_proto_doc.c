// PROTOCOL.md against the headers that it repeats: every limit, status and type, with its number,
// and nothing that is not there any more. Run from the top of the tree.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "proto/key.h"
#include "proto/wire.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tree.h"

static char document[256 * 1024];

// The section of PROTOCOL.md under a heading, up to the next one of the same level.
static const char *section(const char *heading)
{
    tree_read("proto/PROTOCOL.md", document, sizeof(document));
    char *start = strstr(document, heading);
    ck_assert_msg(start != NULL, "no section '%s'", heading);
    start += strlen(heading);
    char *end = strstr(start, "\n## ");
    if (end != NULL)
        end[1] = '\0';
    return start;
}

static size_t count_of(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        n++;
    return n;
}

static const struct limit {
    const char *name;
    uint64_t value;
} limits[] = {
#define LIMIT(name)                                                                                \
    {                                                                                              \
#name, name                                                                                \
    }
    LIMIT(KVC_WIRE_HEADER_BYTES),
    LIMIT(KVC_WIRE_BODY_MAX),
    LIMIT(KVC_WIRE_PACKET_MAX),
    LIMIT(KVC_WIRE_FDS_MAX),
    LIMIT(KVC_WIRE_UNPACK_BUDGET),
    LIMIT(KVC_WIRE_FIELDS_MAX),
    LIMIT(KVC_KEY_BYTES),
    LIMIT(KVC_NAMESPACE_BYTES),
    LIMIT(KVC_FINGERPRINT_BYTES),
    LIMIT(KVC_SECRET_BYTES),
    LIMIT(KVC_TOKEN_BYTES),
    LIMIT(KVC_UUID_BYTES),
    LIMIT(KVC_NAME_MAX),
    LIMIT(KVC_KEYS_MAX),
    LIMIT(KVC_ENTRIES_MAX),
    LIMIT(KVC_PARTS_MAX),
    LIMIT(KVC_SLICES_MAX),
    LIMIT(KVC_LEASE_KEYS_MAX),
    LIMIT(KVC_SLICE_ALIGN),
    LIMIT(KVC_SLOT_ALIGN),
    LIMIT(KVC_SLOT_BYTES_MIN),
    LIMIT(KVC_SLICE_BYTES_MAX),
    LIMIT(KVC_BLOCK_BYTES_MAX),
    LIMIT(KVC_BLOCK_TOKENS_MAX),
    LIMIT(KVC_CHUNK_BLOCKS),
    LIMIT(KVC_CHUNK_BYTES),
    LIMIT(KVC_EXTENT_BYTES_MIN),
    LIMIT(KVC_EXTENT_BYTES_MAX),
    LIMIT(KVC_EXTENTS_PER_TIER),
    LIMIT(KVC_PAGE_WORDS),
    LIMIT(KVC_PAGE_STRIDE),
    LIMIT(KVC_PAGE_CELLS),
    LIMIT(KVC_PAGE_WORD_OFFSET),
    LIMIT(KVC_PAGE_GATES),
    LIMIT(KVC_PAGE_GATE_OFFSET),
    LIMIT(KVC_LEASE_MS_DEFAULT),
    LIMIT(KVC_LEASE_MS_MAX),
    LIMIT(KVC_PIN_SECONDS_DEFAULT),
    LIMIT(KVC_PIN_SECONDS_MAX),
    LIMIT(KVC_SAVE_PROOF_MS),
    LIMIT(KVC_SAVE_ROOM_MS),
    LIMIT(KVC_SAVE_REPLY_MS),
    LIMIT(KVC_POLL_MS),
    LIMIT(KVC_POLL_OLD_MS),
    LIMIT(KVC_PROMOTION_MS),
    LIMIT(KVC_NAMESPACE_IDLE_MS),
    LIMIT(KVC_DRAIN_MS),
    LIMIT(KVC_REMOTE_MS_MAX),
    LIMIT(KVC_WATCH_MS_MAX),
    LIMIT(KVC_EVENTS_MAX),
    LIMIT(KVC_EVENTS_KEPT),
    LIMIT(KVC_HELLO_MS),
    LIMIT(KVC_OUT_STOP_BYTES),
    LIMIT(KVC_OUT_CUT_BYTES),
    LIMIT(KVC_OUT_CUT_MS),
    LIMIT(KVC_TENANT_SESSIONS_MAX),
    LIMIT(KVC_TENANT_NAMESPACES_MAX),
    LIMIT(KVC_TENANT_LAYOUTS_MAX),
    LIMIT(KVC_TENANT_PARTS_MAX),
    LIMIT(KVC_SESSION_LEASES_MAX),
    LIMIT(KVC_SESSION_LEASE_BLOCKS_MAX),
    LIMIT(KVC_SESSION_SAVES_MAX),
    LIMIT(KVC_SESSION_ABORTS_MAX),
    LIMIT(KVC_SESSION_LOADS_MAX),
    LIMIT(KVC_SESSION_COPIES_MAX),
    LIMIT(KVC_COPY_CALL_BLOCKS),
    LIMIT(KVC_SESSION_REGIONS_MAX),
    LIMIT(KVC_SESSION_PIECES_MAX),
    LIMIT(KVC_SESSION_GPU_PIECES_MAX),
    LIMIT(KVC_PIECES_MAX),
    LIMIT(KVC_REGION_BLOCKS_MAX),
    LIMIT(KVC_SESSION_REFUSED_FDS_MAX),
    LIMIT(KVC_SESSION_REMOTES_MAX),
#undef LIMIT
};
#define LIMITS (sizeof(limits) / sizeof(limits[0]))

START_TEST(test_limits)
{
    static char header[64 * 1024];
    const char *text = section("\n## Limits and defaults\n");
    char row[128];

    tree_read("proto/limits.h", header, sizeof(header));
    // Also the guard, which is KVC_LIMITS_H.
    ck_assert_msg(count_of(header, "\n#define KVC_") == LIMITS + 1,
                  "limits.h has names that this test does not know");
    for (size_t i = 0; i < LIMITS; i++) {
        snprintf(row, sizeof(row), "\n| `%s` | %llu | ", limits[i].name,
                 (unsigned long long)limits[i].value);
        ck_assert_msg(strstr(text, row) != NULL, "not in PROTOCOL.md:%s", row);
    }
    ck_assert_msg(count_of(text, "\n| `KVC_") == LIMITS, "PROTOCOL.md has a limit too many");
}
END_TEST

// Calls found for each "PREFIX_NAME = NUMBER," of an enum; how many there were.
static size_t each_number(const char *header, const char *prefix,
                          void (*found)(const char *name, unsigned long number))
{
    char name[64];
    size_t n = 0;

    for (const char *at = strstr(header, prefix); at != NULL; at = strstr(at + 1, prefix)) {
        unsigned long number;
        int end = 0;
        if (sscanf(at, "%63[A-Z_] = %lu%n", name, &number, &end) != 2 || at[end] != ',')
            continue;
        found(name, number);
        n++;
    }
    return n;
}

static const char *rows;

static void find_status(const char *name, unsigned long number)
{
    char row[128];

    snprintf(row, sizeof(row), "\n| %lu | `%s` |", number, name);
    ck_assert_msg(strstr(rows, row) != NULL, "not in PROTOCOL.md:%s", row);
}

START_TEST(test_status_codes)
{
    static char header[64 * 1024];

    tree_read("proto/status.h", header, sizeof(header));
    rows = section("\n## Status codes\n");
    // KVC_OK has a row of its own kind.
    size_t n = each_number(header, "KVC_E_", find_status);
    ck_assert_uint_ge(n, 25);
    ck_assert_uint_eq(count_of(rows, " | `KVC_"), n + 1);
    ck_assert_ptr_nonnull(strstr(rows, "\n| 0 | `KVC_OK` |"));
}
END_TEST

static void have_text(const char *name, unsigned long number)
{
    const char *text = kvc_status_text((kvc_status)number);

    ck_assert_msg(strcmp(text, "unknown status") != 0, "%s has no text", name);
    ck_assert_msg(text[0] >= 'a' && text[0] <= 'z', "%s: '%s'", name, text);
}

START_TEST(test_status_texts)
{
    static char header[64 * 1024];

    tree_read("proto/status.h", header, sizeof(header));
    ck_assert_uint_ge(each_number(header, "KVC_E_", have_text), 25);
    ck_assert_str_eq(kvc_status_text(KVC_OK), "ok");
    // Off the wire, from a newer daemon or a broken one.
    ck_assert_str_eq(kvc_status_text((kvc_status)14), "unknown status");
    ck_assert_str_eq(kvc_status_text((kvc_status)0xffffffff), "unknown status");
}
END_TEST

static void find_type(const char *name, unsigned long number)
{
    char row[128];

    if (strcmp(name, "WIRE_TYPE_MAX") == 0) {
        ck_assert_uint_eq(number, WIRE_TYPE_MAX);
        return;
    }
    ck_assert_str_eq(wire_type_name((uint16_t)number), name + strlen("WIRE_"));
    snprintf(row, sizeof(row), "\n| %lu | %s | ", number, name + strlen("WIRE_"));
    ck_assert_msg(strstr(rows, row) != NULL, "not in PROTOCOL.md:%s", row);
}

START_TEST(test_types)
{
    static char header[64 * 1024];
    static const uint16_t notices[] = {WIRE_SAVE_DONE, WIRE_EXTENTS, WIRE_STOPPING};
    char row[128];

    tree_read("proto/wire.h", header, sizeof(header));
    rows = section("\n## Messages\n");
    ck_assert_uint_eq(each_number(header, "WIRE_", find_type), WIRE_TYPE_MAX + 1);
    for (size_t i = 0; i < sizeof(notices) / sizeof(notices[0]); i++) {
        snprintf(row, sizeof(row), "\n| 0x%04x | %s | ", notices[i], wire_type_name(notices[i]));
        ck_assert_msg(strstr(rows, row) != NULL, "not in PROTOCOL.md:%s", row);
    }
}
END_TEST

// Each body that the table of messages names is a message of kvcache.proto, and each message is
// named somewhere in PROTOCOL.md.
START_TEST(test_bodies)
{
    static char proto[64 * 1024];
    char name[64], word[80];
    size_t n = 0;

    tree_read("proto/kvcache.proto", proto, sizeof(proto));
    rows = section("\n## Messages\n");
    for (const char *at = rows; (at = strstr(at, "\n| ")) != NULL; at++) {
        char reply[64];
        unsigned number;
        if (sscanf(at, "\n| %u | %*[A-Z_] | %63[A-Za-z] | %63[A-Za-z]", &number, name, reply) != 3)
            continue;
        n++;
        snprintf(word, sizeof(word), "\nmessage %s {", name);
        ck_assert_msg(strstr(proto, word) != NULL, "kvcache.proto has no %s", name);
        snprintf(word, sizeof(word), "\nmessage %s {", reply);
        ck_assert_msg(strcmp(reply, "none") == 0 || strstr(proto, word) != NULL,
                      "kvcache.proto has no %s", reply);
    }
    ck_assert_uint_eq(n, WIRE_TYPE_MAX);
}
END_TEST

static void documented(const uint8_t *bytes, size_t len)
{
    char hex[2 * KVC_NAMESPACE_BYTES + 3] = "`";

    for (size_t i = 0; i < len; i++)
        snprintf(hex + 1 + 2 * i, 3, "%02x", bytes[i]);
    strcat(hex, "`");
    ck_assert_msg(strstr(rows, hex) != NULL, "not in PROTOCOL.md: %s", hex);
}

// The numbers that other programs test themselves with are the ones that the code gives.
START_TEST(test_vectors_of_names)
{
    static const size_t lengths[] = {0, 1, 15, 16, 32};
    const struct key_namespace namespaces[] = {
        {0},
        {.model = "m"},
        {.model = "meta-llama/Llama-3.1-8B",
         .weights = "0e9e39f",
         .dtype = "bfloat16",
         .kv_dtype = "fp8_e4m3",
         .quantization = "",
         .rope = "llama3:8",
         .hash = "sha256_cbor",
         .block_tokens = 16,
         .first_layer = 16,
         .last_layer = 31,
         .tensor_rank = 1,
         .tensor_size = 4,
         .pipeline_size = 1,
         .context_size = 1},
    };
    uint8_t hash[32], key[KVC_KEY_BYTES], digest[KVC_NAMESPACE_BYTES];

    rows = section("\n## Keys and namespaces\n");
    for (size_t i = 0; i < sizeof(hash); i++)
        hash[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        key_fold(hash, lengths[i], key);
        documented(key, sizeof(key));
    }
    key_fold(hash + 1, 8, key);
    documented(key, sizeof(key));
    for (size_t i = 0; i < sizeof(namespaces) / sizeof(namespaces[0]); i++) {
        key_namespace_digest(&namespaces[i], digest);
        documented(digest, sizeof(digest));
    }
}
END_TEST

START_TEST(test_vectors_of_checksums)
{
    static uint8_t bytes[65536];
    uint64_t sums[6];
    char text[32];

    rows = section("\n## Checksum\n");
    for (size_t i = 0; i < 4096; i++)
        bytes[i] = (uint8_t)(i * 31 + 7);
    sums[0] = pack_checksum_slice(bytes, 4096, 3);
    for (size_t i = 0; i < 16; i++)
        bytes[i] = (uint8_t)i;
    sums[1] = pack_checksum_slice(bytes, 16, 0);
    sums[2] = pack_checksum_slice(bytes, 16, 1);
    sums[3] = pack_checksum_slice("abc", 3, 0);
    memset(bytes, 0, sizeof(bytes));
    sums[4] = pack_checksum_slice(bytes, sizeof(bytes), 2);
    sums[5] = sums[1] + sums[2];
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        snprintf(text, sizeof(text), "`0x%016llx`", (unsigned long long)sums[i]);
        ck_assert_msg(strstr(rows, text) != NULL, "not in PROTOCOL.md: %s", text);
    }
}
END_TEST

CHECK_MAIN("proto/doc", CHECK_UNIT_S, test_limits, test_status_codes, test_status_texts, test_types,
           test_bodies, test_vectors_of_names, test_vectors_of_checksums)
