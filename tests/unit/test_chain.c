/*
 * Hashes of blocks from their token ids, by PROTOCOL.md alone: the vectors of chain.json, which the
 * Python package is tested with, too.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "proto/key.h"
#include "tests/lib/check_main.h"
#include "tests/lib/tree.h"

#define VECTORS "tests/unit/chain.json"
#define HASH    32u

static json_t *vectors(void)
{
    json_error_t error;
    json_t *all = json_load_file(VECTORS, 0, &error);

    ck_assert_msg(all != NULL, VECTORS ":%d: %s", error.line, error.text);
    ck_assert_uint_ge(json_array_size(json_object_get(all, "blocks")), 6);
    return all;
}

#if __has_include(<nettle/sha2.h>)

#include <nettle/sha2.h>

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    ck_assert_msg(text != NULL, VECTORS ": no text \"%s\"", name);
    return text;
}

static size_t from_hex(const char *hex, uint8_t *bytes, size_t max)
{
    const size_t n = strlen(hex) / 2;
    unsigned byte;

    ck_assert_uint_le(n, max);
    for (size_t i = 0; i < n; i++) {
        ck_assert_int_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
        bytes[i] = (uint8_t)byte;
    }
    return n;
}

static void put_number(struct sha256_ctx *sha, size_t number)
{
    const uint8_t bytes[] = {(uint8_t)number, (uint8_t)(number >> 8), (uint8_t)(number >> 16),
                             (uint8_t)(number >> 24)};

    sha256_update(sha, sizeof(bytes), bytes);
}

static void put_counted(struct sha256_ctx *sha, const char *tag, const void *bytes, size_t n)
{
    sha256_update(sha, 1, (const uint8_t *)tag);
    put_number(sha, n);
    sha256_update(sha, n, bytes);
}

/* Bytes, which JSON lacks, are an object {"bytes": their hexadecimal digits}. */
static void put_value(struct sha256_ctx *sha, const json_t *value)
{
    uint8_t bytes[64];
    char number[24];

    switch (json_typeof(value)) {
    case JSON_NULL:
        sha256_update(sha, 1, (const uint8_t *)"n");
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        sha256_update(sha, 2, (const uint8_t *)(json_is_true(value) ? "b1" : "b0"));
        return;
    case JSON_INTEGER:
        snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
        put_counted(sha, "i", number, strlen(number));
        return;
    case JSON_STRING:
        put_counted(sha, "s", json_string_value(value), json_string_length(value));
        return;
    case JSON_OBJECT:
        put_counted(sha, "y", bytes, from_hex(text_of(value, "bytes"), bytes, sizeof(bytes)));
        return;
    case JSON_ARRAY:
        sha256_update(sha, 1, (const uint8_t *)"t");
        put_number(sha, json_array_size(value));
        for (size_t i = 0; i < json_array_size(value); i++)
            put_value(sha, json_array_get(value, i));
        return;
    case JSON_REAL:
        break;
    }
    ck_abort_msg(VECTORS ": a value that has no encoding");
}

static void hash_block(const uint8_t *parent, const json_t *block, uint8_t *hash)
{
    const json_t *tokens = json_object_get(block, "tokens");
    struct sha256_ctx sha;

    sha256_init(&sha);
    sha256_update(&sha, HASH, parent);
    put_number(&sha, json_array_size(tokens));
    for (size_t i = 0; i < json_array_size(tokens); i++)
        put_number(&sha, (size_t)json_integer_value(json_array_get(tokens, i)));
    put_value(&sha, json_object_get(block, "extra"));
    sha256_digest(&sha, HASH, hash);
}

/* Whose hash is `name`; NULL: of no block, but the root. */
static void parent_of(const json_t *all, const char *name, uint8_t *hash)
{
    const json_t *blocks = json_object_get(all, "blocks");

    for (size_t i = 0; name != NULL && i < json_array_size(blocks); i++) {
        const json_t *block = json_array_get(blocks, i);

        if (strcmp(text_of(block, "name"), name) != 0)
            continue;
        ck_assert_uint_eq(from_hex(text_of(block, "hash"), hash, HASH), HASH);
        return;
    }
    ck_assert_msg(name == NULL, VECTORS ": no block \"%s\"", name);
    ck_assert_uint_eq(from_hex(text_of(all, "root"), hash, HASH), HASH);
}

START_TEST(F42_chain_vectors)
{
    static const char root[] = "kvcache_client chain 1";
    json_t *all = vectors();
    const json_t *blocks = json_object_get(all, "blocks");
    uint8_t parent[HASH], hash[HASH], wanted[HASH], key[KVC_KEY_BYTES];
    struct sha256_ctx sha;

    sha256_init(&sha);
    sha256_update(&sha, strlen(root), (const uint8_t *)root);
    sha256_digest(&sha, HASH, hash);
    parent_of(all, NULL, parent);
    ck_assert_mem_eq(hash, parent, HASH);
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const json_t *block = json_array_get(blocks, i);

        parent_of(all, json_string_value(json_object_get(block, "parent")), parent);
        hash_block(parent, block, hash);
        ck_assert_uint_eq(from_hex(text_of(block, "hash"), wanted, HASH), HASH);
        ck_assert_msg(memcmp(hash, wanted, HASH) == 0, "block \"%s\"", text_of(block, "name"));
        key_fold(hash, HASH, key);
        ck_assert_mem_eq(key, wanted, KVC_KEY_BYTES);
    }
    json_decref(all);
}
END_TEST

#else

START_TEST(F42_chain_vectors)
{
    TEST_SKIP("no header of nettle, whose SHA-256 it takes");
}
END_TEST

#endif

START_TEST(test_vectors_are_documented)
{
    static char protocol[128 * 1024];
    json_t *all = vectors();
    const json_t *blocks = json_object_get(all, "blocks");

    tree_read("proto/PROTOCOL.md", protocol, sizeof(protocol));
    ck_assert_ptr_nonnull(strstr(protocol, json_string_value(json_object_get(all, "root"))));
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const char *hash = json_string_value(json_object_get(json_array_get(blocks, i), "hash"));

        ck_assert_msg(strstr(protocol, hash) != NULL, "not in PROTOCOL.md: %s", hash);
    }
    json_decref(all);
}
END_TEST

CHECK_MAIN("chain", CHECK_UNIT_S, F42_chain_vectors, test_vectors_are_documented)
