/* Messages between daemons, and the proof of their secret. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/peer/message.h"
#include "daemon/peer/secret.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tmpdir.h"

static uint8_t frame[MESSAGE_HEADER_BYTES + MESSAGE_BODY_MAX];
static uint8_t bytes[4096];

/* One of each, as full as it may be. */
static size_t write_one(uint16_t type)
{
    struct message m = {.type = type};

    memset(bytes, 0x5a, sizeof(bytes));
    bytes[0] = 1;
    switch (type) {
    case MESSAGE_HELLO:
        m.hello = (struct message_hello){1, 2, true, bytes};
        break;
    case MESSAGE_PROOF:
        m.mac = bytes;
        break;
    case MESSAGE_READY:
        m.ready = (struct message_ready){
            .modes = 7, .view_bytes = {2, 1}, .caller = 3, .port = 4, .n_regions = 2};
        m.ready.regions[0] = (struct message_region){0, 4096, 8192, bytes, 30};
        m.ready.regions[1] = (struct message_region){1, 4096, 8192, bytes, 0};
        break;
    case MESSAGE_QUERY:
        m.query = (struct message_query){1, bytes, bytes, 0, 0, 30000, bytes, 64};
        break;
    case MESSAGE_ANSWER:
        m.answer = (struct message_answer){1, 2, 0, 3, 4, 5, 6, 100, bytes, 4};
        break;
    case MESSAGE_FETCH:
        m.fetch = (struct message_fetch){1, 2, 3, MESSAGE_PUT, 0, 64, bytes, bytes, bytes};
        break;
    case MESSAGE_RESULT:
        m.result = (struct message_result){1, 0, 64, bytes, bytes, bytes, bytes};
        break;
    case MESSAGE_KEYS:
        m.keys = (struct message_keys){.extent_bytes = 4096, .n_extents = 100, .first = 98, .n = 2};
        m.keys.keys[0] = (struct message_key){4096, bytes, 30};
        m.keys.keys[1] = (struct message_key){8192, bytes, 0};
        break;
    default:
        m.id = 0x0102030405060708u;
    }
    return message_write(&m, frame);
}

START_TEST(every_length_but_the_right_one_is_wrong)
{
    for (uint16_t type = 1; type <= MESSAGE_TYPE_MAX; type++) {
        size_t len = write_one(type) - MESSAGE_HEADER_BYTES;
        const uint8_t *body = frame + MESSAGE_HEADER_BYTES;
        struct message m;

        ck_assert_uint_gt(len, 0);
        ck_assert_ptr_null(message_read(type, body, len, &m));
        ck_assert_uint_eq(m.type, type);
        for (size_t n = 0; n < len; n++)
            ck_assert_msg(message_read(type, body, n, &m) != NULL, "%s of %zu bytes",
                          message_name(type), n);
        ck_assert_ptr_nonnull(message_read(type, body, len + 1, &m));
    }
}
END_TEST

START_TEST(headers)
{
    static const struct {
        uint32_t at;
        uint8_t value;
    } wrong[] = {{0, 'X'}, {3, 2}, {6, 1}, {7, 1}, {8, 1}, {11, 1}, {14, 2}, {15, 1}};
    uint8_t header[MESSAGE_HEADER_BYTES];
    uint16_t type;
    uint32_t len;

    write_one(MESSAGE_QUERY);
    ck_assert_ptr_null(message_read_header(frame, &type, &len));
    ck_assert_uint_eq(type, MESSAGE_QUERY);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(header, frame, sizeof(header));
        header[wrong[i].at] = wrong[i].value;
        ck_assert_msg(message_read_header(header, &type, &len) != NULL, "byte %u", wrong[i].at);
    }
}
END_TEST

/* Bounds that no state is needed for. */
START_TEST(what_is_out_of_bounds)
{
    struct message m;

    write_one(MESSAGE_FETCH);
    message_set_u32(frame + MESSAGE_HEADER_BYTES, 5, MESSAGE_MODES); /* mode */
    ck_assert_ptr_nonnull(
        message_read(MESSAGE_FETCH, frame + MESSAGE_HEADER_BYTES, 36 + 64 * 13, &m));
    write_one(MESSAGE_ANSWER);
    message_set_u32(frame + MESSAGE_HEADER_BYTES, 6, 1024); /* count, behind first 3 */
    ck_assert_ptr_nonnull(message_read(MESSAGE_ANSWER, frame + MESSAGE_HEADER_BYTES, 40, &m));
    write_one(MESSAGE_KEYS);
    message_set_u32(frame + MESSAGE_HEADER_BYTES, 3, 99); /* first, of 100 extents, and 2 of them */
    ck_assert_ptr_nonnull(
        message_read(MESSAGE_KEYS, frame + MESSAGE_HEADER_BYTES, 20 + 2 * 12 + 30, &m));
    ck_assert_ptr_nonnull(message_read(0, frame, 0, &m));
    ck_assert_ptr_nonnull(message_read(MESSAGE_TYPE_MAX + 1, frame, 8, &m));
}
END_TEST

START_TEST(proofs)
{
    struct secret one = {.len = 20, .bytes = "twenty bytes of this"}, other = one;
    uint8_t asker[MESSAGE_HELLO_BYTES] = {1}, source[MESSAGE_HELLO_BYTES] = {2};
    const struct secret_talk talk = {asker, source}, swapped = {source, asker};
    uint8_t mac[MESSAGE_MAC_BYTES];

    secret_prove(&one, SECRET_ASKER, &talk, mac);
    ck_assert(secret_is_proof(&one, SECRET_ASKER, &talk, mac));
    /* No proof of one side is one of the other, or of another talk. */
    ck_assert(!secret_is_proof(&one, SECRET_SOURCE, &talk, mac));
    ck_assert(!secret_is_proof(&one, SECRET_ASKER, &swapped, mac));
    other.bytes[19] ^= 1;
    ck_assert(!secret_is_proof(&other, SECRET_ASKER, &talk, mac));
    source[MESSAGE_HELLO_BYTES - 1] = 1;
    ck_assert(!secret_is_proof(&one, SECRET_ASKER, &talk, mac));
    source[MESSAGE_HELLO_BYTES - 1] = 0;
    mac[MESSAGE_MAC_BYTES - 1] ^= 0x80;
    ck_assert(!secret_is_proof(&one, SECRET_ASKER, &talk, mac));
}
END_TEST

static bool read_back(const char *text, mode_t mode, struct secret *secret)
{
    const char *path = tmpdir_file("secret");
    char why[200] = "";
    bool ok;
    FILE *file;

    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    chmod(path, mode);
    memset(secret, 0, sizeof(*secret));
    ok = secret_read(path, secret, why, sizeof(why));
    ck_assert(ok == (why[0] == '\0'));
    ck_assert(ok || secret->len == 0);
    unlink(path);
    return ok;
}

START_TEST(secret_files)
{
    struct secret secret;
    char why[200], longest[300];

    ck_assert(read_back("0123456789abcdef\n", 0600, &secret));
    ck_assert_uint_eq(secret.len, 16);
    ck_assert(!read_back("0123456789abcde\n", 0600, &secret));
    ck_assert(!read_back("", 0600, &secret));
    ck_assert(!read_back("0123456789abcdef\n", 0640, &secret));
    ck_assert(!read_back("0123456789abcdef\n", 0604, &secret));
    memset(longest, 'x', sizeof(longest));
    longest[SECRET_BYTES_MAX] = '\0';
    ck_assert(read_back(longest, 0600, &secret));
    longest[SECRET_BYTES_MAX] = 'x';
    longest[SECRET_BYTES_MAX + 1] = '\0';
    ck_assert(!read_back(longest, 0600, &secret));
    ck_assert(!secret_read("/nonexistent", &secret, why, sizeof(why)));
    ck_assert(!secret_read("/", &secret, why, sizeof(why)));
}
END_TEST

CHECK_MAIN("peer/message", CHECK_UNIT_S, every_length_but_the_right_one_is_wrong, headers,
           what_is_out_of_bounds, proofs, secret_files)
