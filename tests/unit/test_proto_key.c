// Keys and namespaces. The vectors come from the xxHash library and a serialisation of its own
// (PROTOCOL.md has them too); the code under test takes no part in them.
#include <stdio.h>
#include <string.h>

#include "proto/key.h"
#include "tests/lib/check_main.h"

#define HEX_MAX (2 * KVC_NAMESPACE_BYTES + 1)

static const char *hex(const uint8_t *bytes, size_t len, char text[HEX_MAX])
{
    for (size_t i = 0; i < len; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

static const char *digest_of(const struct key_namespace *fields, char text[HEX_MAX])
{
    uint8_t digest[KVC_NAMESPACE_BYTES];

    key_namespace_digest(fields, digest);
    return hex(digest, sizeof(digest), text);
}

START_TEST(F42_fold_vectors)
{
    static const struct {
        size_t len;
        uint8_t first; // the bytes count up from this one
        const char *key;
    } vectors[] = {
        {0, 0, "99aa06d3014798d86001c324468d497f"},  {1, 0, "a6cd5e9392000f6ac44bdff4074eecdb"},
        {8, 1, "2ab463fddb09a0b83e8675c57268fb02"},  {15, 0, "301a9f754e8f569a0017ea4be19bc787"},
        {16, 0, "000102030405060708090a0b0c0d0e0f"}, {17, 0, "000102030405060708090a0b0c0d0e0f"},
        {32, 0, "000102030405060708090a0b0c0d0e0f"},
    };
    uint8_t hash[32], key[KVC_KEY_BYTES];
    char text[HEX_MAX];

    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        for (size_t b = 0; b < sizeof(hash); b++)
            hash[b] = (uint8_t)(vectors[i].first + b);
        key_fold(hash, vectors[i].len, key);
        ck_assert_str_eq(hex(key, sizeof(key), text), vectors[i].key);
    }
    key_fold(NULL, 0, key);
    ck_assert_str_eq(hex(key, sizeof(key), text), vectors[0].key);
}
END_TEST

START_TEST(test_fold_in_place)
{
    uint8_t key[KVC_KEY_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8};
    char text[HEX_MAX];

    key_fold(key, 8, key);
    ck_assert_str_eq(hex(key, sizeof(key), text), "2ab463fddb09a0b83e8675c57268fb02");
}
END_TEST

static const struct key_namespace example = {
    .model = "meta-llama/Llama-3.1-8B",
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
    .pipeline_rank = 0,
    .pipeline_size = 1,
    .context_rank = 0,
    .context_size = 1,
};

START_TEST(F42_digest_vectors)
{
    const struct key_namespace nothing = {0}, model = {.model = "m"};
    char text[HEX_MAX];

    ck_assert_str_eq(digest_of(&nothing, text),
                     "c3858754ce4bec6451868257d974a2656f26e059257b67bb1d78a42eaea12a07");
    ck_assert_str_eq(digest_of(&model, text),
                     "d15e784bfa3596428d7598e6e3b097247431cfdc6ba80bf674f710b5ec5230c5");
    ck_assert_str_eq(digest_of(&example, text),
                     "7b948c4594b703ec5110949f8f882bbc8e8e722047cb75f90c3192eae8169ac0");
}
END_TEST

#define STRINGS 7
#define NUMBERS 9

static const char **string_of(struct key_namespace *fields, size_t i)
{
    const char **const strings[STRINGS] = {
        &fields->model,        &fields->weights, &fields->dtype, &fields->kv_dtype,
        &fields->quantization, &fields->rope,    &fields->hash,
    };

    return strings[i];
}

static uint32_t *number_of(struct key_namespace *fields, size_t i)
{
    uint32_t *const numbers[NUMBERS] = {
        &fields->block_tokens,  &fields->first_layer,  &fields->last_layer,
        &fields->tensor_rank,   &fields->tensor_size,  &fields->pipeline_rank,
        &fields->pipeline_size, &fields->context_rank, &fields->context_size,
    };

    return numbers[i];
}

// A field that the digest forgot, or that its neighbour can stand in for, would let two kinds of
// KV data share a namespace.
START_TEST(test_every_field_counts)
{
    enum { VARIANTS = 1 + 4 * STRINGS + 3 * NUMBERS };
    static char digests[VARIANTS][HEX_MAX];
    size_t n = 0;

    digest_of(&example, digests[n++]);
    for (size_t i = 0; i < STRINGS; i++) {
        static const char *const values[] = {NULL, "", "x", "y"};
        for (size_t v = 0; v < 4; v++) {
            struct key_namespace fields = example;
            // The quantisation of the example is "" already.
            *string_of(&fields, i) = i == 4 && v == 1 ? "z" : values[v];
            digest_of(&fields, digests[n++]);
        }
    }
    for (size_t i = 0; i < NUMBERS; i++) {
        static const uint32_t flips[] = {1u << 7, 1u << 16, 1u << 31};
        for (size_t v = 0; v < 3; v++) {
            struct key_namespace fields = example;
            *number_of(&fields, i) ^= flips[v];
            digest_of(&fields, digests[n++]);
        }
    }
    ck_assert_uint_eq(n, VARIANTS);
    for (size_t a = 0; a < n; a++) {
        for (size_t b = 0; b < a; b++)
            ck_assert_msg(strcmp(digests[a], digests[b]) != 0, "variants %zu and %zu", a, b);
    }
}
END_TEST

START_TEST(test_both_halves_count)
{
    struct key_namespace other = example;
    uint8_t a[KVC_NAMESPACE_BYTES], b[KVC_NAMESPACE_BYTES];

    other.tensor_rank = 2;
    key_namespace_digest(&example, a);
    key_namespace_digest(&other, b);
    ck_assert_mem_ne(a, b, 16);
    ck_assert_mem_ne(a + 16, b + 16, 16);
    ck_assert_mem_ne(a, a + 16, 16);
}
END_TEST

// Bytes that move over a border between neighbouring fields, and values that move to another field.
START_TEST(test_borders_of_fields)
{
    static const struct key_namespace variants[] = {
        {.model = "ab", .weights = "c"},
        {.model = "a", .weights = "bc"},
        {.model = "abc", .weights = ""},
        {.model = "", .weights = "abc"},
        {.model = "abc"},
        {.weights = "abc"},
        {.dtype = "abc"},
        {.block_tokens = 1},
        {.first_layer = 1},
        {.last_layer = 1},
        {.tensor_rank = 1},
        {.tensor_size = 1},
        {.model = "a\x02"},
        {.model = "a", .weights = ""},
        {.model = ""},
        {0},
    };
    enum { N = sizeof(variants) / sizeof(variants[0]) };
    char digests[N][HEX_MAX];

    for (size_t a = 0; a < N; a++) {
        digest_of(&variants[a], digests[a]);
        for (size_t b = 0; b < a; b++)
            ck_assert_msg(strcmp(digests[a], digests[b]) != 0, "variants %zu and %zu", a, b);
    }
}
END_TEST

// Long strings take another path of the hash: the digest must not depend on how it is fed.
START_TEST(test_long_strings)
{
    static char longest[100001];
    struct key_namespace fields = {.model = longest};
    char a[HEX_MAX], b[HEX_MAX];

    memset(longest, 'm', sizeof(longest) - 1);
    ck_assert_str_eq(digest_of(&fields, a),
                     "47d09fa304c2fd9ea88441161d34797cc674a0cd2d4cdc1833eb957e1c11e3b2");
    longest[sizeof(longest) - 2] = 'n';
    ck_assert_str_ne(digest_of(&fields, b), a);
}
END_TEST

CHECK_MAIN("proto/key", CHECK_UNIT_S, F42_fold_vectors, test_fold_in_place, F42_digest_vectors,
           test_every_field_counts, test_both_halves_count, test_borders_of_fields,
           test_long_strings)
