// Bodies as bytes: golden ones, encoded by another implementation of protobuf, and the largest that
// the limits allow, which must fit in a packet and in the budget for parsing it.
#include <stdlib.h>
#include <string.h>

#include "proto/kvcache.pb-c.h"
#include "proto/limits.h"
#include "tests/lib/check_main.h"

// Counts what unpacking takes, blocks rounded up as the budget of a bump allocator would.
struct counter {
    size_t bytes;
};

static void *counted_alloc(void *data, size_t size)
{
    struct counter *counter = data;

    counter->bytes += (size + 15) / 16 * 16;
    return malloc(size);
}

static void counted_free(void *data, void *pointer)
{
    (void)data;
    free(pointer);
}

static size_t unhex(const char *hex, uint8_t *bytes)
{
    size_t n = strlen(hex) / 2;
    char pair[3] = "";

    for (size_t i = 0; i < n; i++) {
        memcpy(pair, hex + 2 * i, 2);
        bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return n;
}

static uint8_t body[KVC_WIRE_BODY_MAX], packed[KVC_WIRE_BODY_MAX];

// Unpacks a golden body, and packs it again to the same bytes. The caller looks at it and frees it.
static void *golden(const ProtobufCMessageDescriptor *descriptor, const char *hex)
{
    size_t len = unhex(hex, body);
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, len, body);

    ck_assert_msg(message != NULL, "%s does not parse", descriptor->short_name);
    ck_assert_uint_eq(protobuf_c_message_get_packed_size(message), len);
    ck_assert_uint_eq(protobuf_c_message_pack(message, packed), len);
    ck_assert_mem_eq(packed, body, len);
    return message;
}

static void release(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

START_TEST(test_hello)
{
    Kvcache__Hello *hello =
        golden(&kvcache__hello__descriptor, "080110011892212101000000000000002a10303132333435363738"
                                            "39616263646566320277303a05302e312e30");

    ck_assert_uint_eq(hello->version, 1);
    ck_assert_int_eq(hello->role, KVCACHE__ROLE__ROLE_WORKER);
    ck_assert_uint_eq(hello->pid, 4242);
    ck_assert_uint_eq(hello->features, 1);
    ck_assert_uint_eq(hello->device_uuids.len, 16);
    ck_assert_str_eq(hello->name, "w0");
    ck_assert_str_eq(hello->build, "0.1.0");
    release(hello);
}
END_TEST

START_TEST(test_save)
{
    Kvcache__Save *save =
        golden(&kvcache__save__descriptor,
               "0a16080310011a10000102030405060708090a0b0c0d0e0f0a2708ac0210021a204142434445464748"
               "494a4b4c4d4e4f506162636465666768696a6b6c6d6e6f7010011801");

    ck_assert_uint_eq(save->n_entries, 2);
    ck_assert_uint_eq(save->entries[0]->part, 3);
    ck_assert_uint_eq(save->entries[0]->keys.len, KVC_KEY_BYTES);
    ck_assert_uint_eq(save->entries[1]->part, 300);
    ck_assert_uint_eq(save->entries[1]->epoch, 2);
    ck_assert_mem_eq(save->entries[1]->keys.data, "ABCDEFGHIJKLMNOPabcdefghijklmnop", 32);
    ck_assert(save->checksums && save->notify);
    release(save);
}
END_TEST

START_TEST(test_save_reply)
{
    Kvcache__SaveReply *reply =
        golden(&kvcache__save_reply__descriptor,
               "095a0000000000000012170a0201001201001a08000200000000000022040700000012160a01011201"
               "011a0800000000000100002204ffffffff1a04020000002204ff0000002a086712000000000000");

    ck_assert_uint_eq(reply->save, 90);
    ck_assert_uint_eq(reply->n_entries, 2);
    ck_assert_uint_eq(reply->entries[0]->states.data[0], KVCACHE__KEY_STATE__KEY_ASSIGNED);
    ck_assert_uint_eq(reply->entries[0]->states.data[1], KVCACHE__KEY_STATE__KEY_HIT);
    ck_assert_uint_eq(reply->entries[0]->offsets[0], 512);
    ck_assert_uint_eq(reply->entries[1]->offsets[0], 1ull << 40);
    ck_assert_uint_eq(reply->entries[1]->generations[0], UINT32_MAX);
    ck_assert_uint_eq(reply->chunk_blocks[0], 2);
    ck_assert_uint_eq(reply->chunk_words[0], 255);
    ck_assert_uint_eq(reply->chunk_numbers[0], 4711);
    release(reply);
}
END_TEST

START_TEST(test_load_reply)
{
    Kvcache__LoadReply *reply =
        golden(&kvcache__load_reply__descriptor,
               "08041168120000000000001a0200012210000200000000000000200000000000002a08010000000200"
               "000032100100000000000000ffffffffffffffff3a020101");

    ck_assert_uint_eq(reply->word, 4);
    ck_assert_uint_eq(reply->number, 4712);
    ck_assert_uint_eq(reply->tiers.data[1], KVCACHE__TIER__TIER_HOST);
    ck_assert_uint_eq(reply->offsets[1], 8192);
    ck_assert_uint_eq(reply->generations[1], 2);
    ck_assert_uint_eq(reply->checksums[1], UINT64_MAX);
    ck_assert_uint_eq(reply->checked.len, 2);
    release(reply);
}
END_TEST

START_TEST(test_error)
{
    Kvcache__Error *error =
        golden(&kvcache__error__descriptor,
               "0809120f656e74726965735b315d2e6b6579731a0b6b65792033207477696365");

    ck_assert_uint_eq(error->status, 9);
    ck_assert_str_eq(error->field, "entries[1].keys");
    ck_assert_str_eq(error->detail, "key 3 twice");
    release(error);
}
END_TEST

// What a later version added must not hurt: a varint, 8 bytes, a string and 4 bytes under numbers
// that nobody has used.
START_TEST(test_unknown_fields_are_ignored)
{
    Kvcache__Release *message;
    size_t len = unhex("091100000000000000"
                       "c03e07"
                       "c93e0807060504030201"
                       "d23e03616263"
                       "dd3e01020304",
                       body);

    message = kvcache__release__unpack(NULL, len, body);
    ck_assert_ptr_nonnull(message);
    ck_assert_uint_eq(message->lease, 17);
    release(message);
}
END_TEST

// A body cut anywhere parses as what came whole, or not at all.
START_TEST(test_cut_bodies)
{
    size_t len =
        unhex("0a16080310011a10000102030405060708090a0b0c0d0e0f0a2708ac0210021a204142434445"
              "464748494a4b4c4d4e4f506162636465666768696a6b6c6d6e6f7010011801",
              body);

    for (size_t cut = 0; cut < len; cut++) {
        // In memory of its own size, so that reading on would be seen.
        uint8_t *part = malloc(cut > 0 ? cut : 1);
        memcpy(part, body, cut);
        Kvcache__Save *save = kvcache__save__unpack(NULL, cut, part);
        if (save != NULL) {
            ck_assert_uint_le(save->n_entries, 2);
            release(save);
        }
        free(part);
    }
}
END_TEST

// Packs, and parses with the count that the budget has.
static void fits(const ProtobufCMessage *message)
{
    struct counter counter = {0};
    ProtobufCAllocator allocator = {counted_alloc, counted_free, &counter};
    const char *name = message->descriptor->short_name;
    size_t len = protobuf_c_message_get_packed_size(message);
    ProtobufCMessage *again;

    ck_assert_msg(len <= KVC_WIRE_BODY_MAX, "%s: %zu bytes", name, len);
    protobuf_c_message_pack(message, packed);
    again = protobuf_c_message_unpack(message->descriptor, &allocator, len, packed);
    ck_assert_msg(again != NULL, "%s does not parse", name);
    protobuf_c_message_free_unpacked(again, &allocator);
    ck_assert_msg(counter.bytes <= KVC_WIRE_UNPACK_BUDGET, "%s: parsing takes %zu bytes", name,
                  counter.bytes);
}

static uint8_t bytes[KVC_KEYS_MAX * KVC_KEY_BYTES];
static uint32_t numbers[KVC_KEYS_MAX];
static uint64_t longs[KVC_KEYS_MAX];
static char name[KVC_NAME_MAX + 1];

static void fill_all(void)
{
    memset(bytes, 0xff, sizeof(bytes));
    memset(numbers, 0xff, sizeof(numbers));
    memset(longs, 0xff, sizeof(longs));
    memset(name, 'n', sizeof(name) - 1);
}

START_TEST(test_largest_register)
{
    Kvcache__Register message = KVCACHE__REGISTER__INIT;

    fill_all();
    message.namespace_digest = (ProtobufCBinaryData){KVC_NAMESPACE_BYTES, bytes};
    message.block_tokens = UINT32_MAX;
    message.n_slice_bytes = KVC_SLICES_MAX;
    message.slice_bytes = numbers;
    message.slice_dtypes = (ProtobufCBinaryData){KVC_SLICES_MAX, bytes};
    message.family = (ProtobufCBinaryData){16, bytes};
    message.name = name;
    fits(&message.base);
}
END_TEST

START_TEST(test_largest_lookup)
{
    enum { EACH = KVC_KEYS_MAX / KVC_PARTS_MAX };
    static Kvcache__LookupPart parts[KVC_PARTS_MAX];
    static Kvcache__LookupPart *pointers[KVC_PARTS_MAX];
    Kvcache__Lookup message = KVCACHE__LOOKUP__INIT;

    fill_all();
    for (size_t i = 0; i < KVC_PARTS_MAX; i++) {
        kvcache__lookup_part__init(&parts[i]);
        parts[i].part = parts[i].epoch = UINT32_MAX;
        parts[i].keys = (ProtobufCBinaryData){EACH * KVC_KEY_BYTES, bytes};
        pointers[i] = &parts[i];
    }
    message.request = message.lease = UINT64_MAX;
    message.parts = pointers;
    message.n_parts = KVC_PARTS_MAX;
    message.offset = message.lease_ms = UINT32_MAX;
    fits(&message.base);
    for (size_t i = 0; i < KVC_PARTS_MAX; i++)
        parts[i].keys = (ProtobufCBinaryData){0, NULL};
    message.keys = (ProtobufCBinaryData){sizeof(bytes), bytes};
    fits(&message.base);
}
END_TEST

START_TEST(test_largest_save_and_its_reply)
{
    enum { EACH = KVC_KEYS_MAX / KVC_ENTRIES_MAX };
    static Kvcache__SaveEntry entries[KVC_ENTRIES_MAX];
    static Kvcache__SaveEntry *pointers[KVC_ENTRIES_MAX];
    static Kvcache__SaveEntryReply replies[KVC_ENTRIES_MAX];
    static Kvcache__SaveEntryReply *reply_pointers[KVC_ENTRIES_MAX];
    Kvcache__Save message = KVCACHE__SAVE__INIT;
    Kvcache__SaveReply reply = KVCACHE__SAVE_REPLY__INIT;

    fill_all();
    for (size_t i = 0; i < KVC_ENTRIES_MAX; i++) {
        kvcache__save_entry__init(&entries[i]);
        entries[i].part = entries[i].epoch = UINT32_MAX;
        entries[i].keys = (ProtobufCBinaryData){EACH * KVC_KEY_BYTES, bytes};
        entries[i].n_blocks = EACH;
        entries[i].blocks = numbers;
        entries[i].first_slice = entries[i].slices = UINT32_MAX;
        pointers[i] = &entries[i];
        kvcache__save_entry_reply__init(&replies[i]);
        replies[i].states = replies[i].tiers = (ProtobufCBinaryData){EACH, bytes};
        replies[i].n_offsets = replies[i].n_generations = EACH;
        replies[i].offsets = longs;
        replies[i].generations = numbers;
        reply_pointers[i] = &replies[i];
    }
    message.entries = pointers;
    message.n_entries = KVC_ENTRIES_MAX;
    message.checksums = message.notify = message.to_host = message.no_wait = true;
    message.save = message.region = UINT64_MAX;
    message.event = (ProtobufCBinaryData){64, bytes};
    message.gate = UINT32_MAX;
    message.gate_number = UINT64_MAX;
    fits(&message.base);

    reply.save = UINT64_MAX;
    reply.entries = reply_pointers;
    reply.n_entries = KVC_ENTRIES_MAX;
    // A chunk needs a word.
    reply.n_chunk_blocks = reply.n_chunk_words = reply.n_chunk_numbers = KVC_PAGE_WORDS;
    reply.chunk_blocks = reply.chunk_words = numbers;
    reply.chunk_numbers = longs;
    fits(&reply.base);
}
END_TEST

START_TEST(test_largest_load_reply)
{
    Kvcache__LoadReply reply = KVCACHE__LOAD_REPLY__INIT;

    fill_all();
    reply.word = UINT32_MAX;
    reply.number = UINT64_MAX;
    reply.tiers = reply.checked = (ProtobufCBinaryData){KVC_KEYS_MAX, bytes};
    reply.n_offsets = reply.n_generations = reply.n_checksums = KVC_KEYS_MAX;
    reply.offsets = reply.checksums = longs;
    reply.generations = numbers;
    fits(&reply.base);
}
END_TEST

START_TEST(test_largest_map)
{
    Kvcache__Map message = KVCACHE__MAP__INIT;
    Kvcache__MapReply reply = KVCACHE__MAP_REPLY__INIT;

    fill_all();
    message.cursor = UINT32_MAX;
    message.mapped = reply.extents = numbers;
    message.n_mapped = reply.n_extents = KVC_WIRE_FDS_MAX;
    fits(&message.base);
    reply.kinds = (ProtobufCBinaryData){KVC_WIRE_FDS_MAX, bytes};
    reply.handles = (ProtobufCBinaryData){KVC_WIRE_FDS_MAX * 64, bytes};
    fits(&reply.base);
}
END_TEST

// A short body can ask for much: this is what the budget is for.
START_TEST(test_a_body_can_exceed_the_budget)
{
    struct counter counter = {0};
    ProtobufCAllocator allocator = {counted_alloc, counted_free, &counter};
    Kvcache__Save *save;

    for (size_t i = 0; i < sizeof(body); i += 2) {
        body[i] = 0x0a; // an entry
        body[i + 1] = 0;
    }
    save = kvcache__save__unpack(&allocator, sizeof(body), body);
    ck_assert_ptr_nonnull(save);
    ck_assert_uint_eq(save->n_entries, sizeof(body) / 2);
    kvcache__save__free_unpacked(save, &allocator);
    ck_assert_uint_gt(counter.bytes, KVC_WIRE_UNPACK_BUDGET);
}
END_TEST

CHECK_MAIN("wire/bodies", CHECK_UNIT_S, test_hello, test_save, test_save_reply, test_load_reply,
           test_error, test_unknown_fields_are_ignored, test_cut_bodies, test_largest_register,
           test_largest_lookup, test_largest_save_and_its_reply, test_largest_load_reply,
           test_largest_map, test_a_body_can_exceed_the_budget)
