// Saves, against a scripted daemon.
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

static struct fake *fake;
static kvc_client *client;
static struct kv kv;
static kvc_part part;

static void begin(fake_hook *hook, kvc_options options)
{
    fake = fake_start(hook);
    options.socket = fake->socket;
    options.connect_ms = wait_patient_ms(5000);
    if (options.lookup_ms == 0)
        options.lookup_ms = wait_patient_ms(5000);
    if (options.save_ms == 0)
        options.save_ms = wait_patient_ms(5000);
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    kv_init(&kv, (const uint32_t[]){2048, 100, 36, 1}, 4, 256);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    for (uint32_t i = 0; i < 256; i++)
        kv_fill(&kv, i, i);
}

static void end(void)
{
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}

static kvc_status save_blocks(uint32_t first, uint32_t n, uint64_t *save)
{
    static uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];
    static uint32_t ids[KVC_KEYS_MAX];
    const kvc_save_entry entry = {part, keys, ids, n, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};

    kv_keys(1, first, n, keys);
    kv_ids(first, n, ids);
    return kvc_save(client, &args, save);
}

// What lies in a slot, against the block that it was gathered from.
static bool slot_holds(const struct kv *from, const uint8_t *slot, uint32_t block)
{
    uint64_t offset = 0;

    for (uint32_t s = 0; s < from->desc.n_slices; s++) {
        const kvc_slice *slice = &from->slices[s];

        if (memcmp(slot + offset, (uint8_t *)slice->base + block * slice->stride, slice->bytes))
            return false;
        offset = (offset + slice->bytes + 15) & ~15ull;
    }
    return true;
}

static uint64_t word(uint32_t i)
{
    return __atomic_load_n(
        (uint64_t *)(void *)(fake->page + i * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET),
        __ATOMIC_ACQUIRE);
}

static uint64_t cell(uint32_t i, uint32_t n)
{
    return ((uint64_t *)(void *)(fake->page + i * KVC_PAGE_STRIDE))[n];
}

START_TEST(blocks_checksums_and_words_arrive)
{
    uint64_t save = 0;

    begin(NULL, (kvc_options){0});
    ck_assert_int_eq(save_blocks(10, 150, &save), KVC_OK);
    ck_assert_uint_eq(save, 1);
    ck_assert(fake->shared->save_notify && fake->shared->save_checksums);
    for (uint32_t i = 0; i < 150; i++) {
        const uint8_t *slot = fake->slab[0] + i * 4096ull;

        ck_assert(slot_holds(&kv, slot, 10 + i));
        ck_assert_uint_eq(cell(i / 64, i % 64),
                          pack_checksum_slot(&part_of(client, part)->layout, slot));
    }
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(word(i), i < 3 ? 1000 + i : 0);
    wait_for(fake_count(fake, WIRE_NUDGE) == 1, 2000);
    end();
}
END_TEST

START_TEST(without_checksums_and_without_a_waiter)
{
    uint8_t keys[KVC_KEY_BYTES] = {1};
    const uint32_t id = 3;
    const kvc_save_entry entry = {0, keys, &id, 1, NULL};
    kvc_save_entry entries[1] = {entry};
    const kvc_save_args args = {.entries = entries, .n_entries = 1, .no_checksums = 1};

    begin(NULL, (kvc_options){0});
    entries[0].part = part;
    ck_assert_int_eq(kvc_save(client, &args, NULL), KVC_OK);
    ck_assert(!fake->shared->save_notify && !fake->shared->save_checksums);
    ck_assert_uint_eq(cell(0, 0), 0);
    ck_assert_uint_eq(word(0), 1000);
    ck_assert_uint_eq(client->saves.n, 0);
    end();
}
END_TEST

START_TEST(S5_nothing_to_save_is_no_error)
{
    const kvc_save_args none = {0};
    kvc_save_entry entries[2] = {{0}, {0}};
    const kvc_save_args empty = {.entries = entries, .n_entries = 2};
    uint64_t save = 9;

    begin(NULL, (kvc_options){0});
    entries[0].part = entries[1].part = part;
    ck_assert_int_eq(kvc_save(client, &none, &save), KVC_OK);
    ck_assert_uint_eq(save, 0);
    ck_assert_int_eq(kvc_save(client, &empty, &save), KVC_OK);
    ck_assert_uint_eq(fake_count(fake, WIRE_SAVE), 0);
    end();
}
END_TEST

START_TEST(S5_bad_saves_are_refused_here)
{
    static uint8_t keys[(KVC_KEYS_MAX + 1) * KVC_KEY_BYTES];
    static uint32_t ids[KVC_KEYS_MAX + 1];
    static kvc_save_entry entries[KVC_ENTRIES_MAX + 1];
    kvc_save_args args = {.entries = entries, .n_entries = 2};
    uint64_t save = 7;

    begin(NULL, (kvc_options){0});
#define REFUSED(status, text)                                                                      \
    do {                                                                                           \
        ck_assert_int_eq(kvc_save(client, &args, &save), status);                                  \
        ck_assert_str_eq(kvc_error(client), text);                                                 \
        entries[0] = entries[1] = (kvc_save_entry){part, keys, ids, 2, NULL};                      \
        args = (kvc_save_args){.entries = entries, .n_entries = 2};                                \
    } while (0)
    entries[0] = entries[1] = (kvc_save_entry){part, keys, ids, 2, NULL};
    entries[1].part = 60;
    REFUSED(KVC_E_UNKNOWN, "entries[1].part: not registered");
    entries[1].keys = NULL;
    REFUSED(KVC_E_INVALID, "entries[1].keys: NULL");
    entries[0].blocks = NULL;
    REFUSED(KVC_E_INVALID, "entries[0].blocks: NULL");
    ids[1] = 256;
    REFUSED(KVC_E_INVALID, "entries[0].blocks[1]: 256, the part has 256");
    ids[1] = 0;
    entries[1].n_keys = KVC_KEYS_MAX - 1;
    REFUSED(KVC_E_LIMIT, "keys: 1025, at most 1024");
    args.n_entries = KVC_ENTRIES_MAX + 1;
    REFUSED(KVC_E_LIMIT, "entries: 65, at most 64");
    args.entries = NULL;
    REFUSED(KVC_E_INVALID, "entries: NULL");
    ck_assert_int_eq(kvc_save(client, NULL, &save), KVC_E_INVALID);
    ck_assert_uint_eq(save, 7);
    ck_assert_uint_eq(fake_count(fake, WIRE_SAVE), 0);
    end();
}
END_TEST

START_TEST(only_workers_save)
{
    begin(NULL, (kvc_options){.role = KVC_ROLE_READER});
    ck_assert_int_eq(save_blocks(0, 1, NULL), KVC_E_DENIED);
    end();
}
END_TEST

// Keys of two parts, with all four states among them; chunks go over the borders of entries.
static bool mixed_hook(struct fake *f, const struct wire_packet *request)
{
    static uint32_t words[3] = {200, 7, 8}, blocks[3] = {1, 3, 1};
    static uint64_t numbers[3] = {11, 12, 13};
    static uint8_t states[2][4] = {{1, 0, 1, 3}, {2, 1, 1, 1}};
    static uint8_t tiers[2][3] = {{1, 0, 0}, {0, 0, 1}};
    static uint64_t offsets[2][3] = {{4096, 8192, 0}, {3 * FAKE_EXTENT_BYTES, 0, 512 * 1024}};
    static uint32_t generations[3];
    Kvcache__SaveReply reply;

    if (request->type != WIRE_SAVE)
        return false;
    fake_make_save(f, fake_body(request, &kvcache__save__descriptor), &reply);
    for (int e = 0; e < 2; e++) {
        Kvcache__SaveEntryReply *entry = reply.entries[e];
        size_t n = e == 0 ? 2 : 3;

        entry->states.data = states[e];
        entry->tiers = (ProtobufCBinaryData){n, tiers[e]};
        entry->n_offsets = entry->n_generations = n;
        entry->offsets = offsets[e];
        entry->generations = generations;
    }
    reply.n_chunk_blocks = reply.n_chunk_words = reply.n_chunk_numbers = 3;
    reply.chunk_blocks = blocks;
    reply.chunk_words = words;
    reply.chunk_numbers = numbers;
    fake_reply(f, request, &reply.base);
    return true;
}

START_TEST(S4_S5_states_and_chunks_over_several_parts)
{
    static uint8_t keys[8 * KVC_KEY_BYTES];
    const uint32_t ids[2][4] = {{100, 101, 102, 103}, {7, 6, 5, 4}};
    uint8_t states[2][4];
    struct kv other;
    kvc_part second;
    kvc_save_entry entries[2];
    const kvc_save_args args = {.entries = entries, .n_entries = 2};
    uint64_t save;

    begin(mixed_hook, (kvc_options){0});
    kv_init(&other, (const uint32_t[]){512, 512}, 2, 8);
    other.desc.block_tokens = 8;
    ck_assert_int_eq(kvc_register(client, &other.desc, &second), KVC_OK);
    for (uint32_t i = 0; i < 8; i++)
        kv_fill(&other, i, 1000 + i);
    entries[0] = (kvc_save_entry){part, keys, ids[0], 4, states[0]};
    entries[1] = (kvc_save_entry){second, keys, ids[1], 4, states[1]};
    ck_assert_int_eq(kvc_save(client, &args, &save), KVC_OK);
    ck_assert_mem_eq(states[0], ((uint8_t[]){1, 0, 1, 3}), 4);
    ck_assert_mem_eq(states[1], ((uint8_t[]){2, 1, 1, 1}), 4);
    ck_assert(slot_holds(&kv, fake->slab[1] + 4096, 100));
    ck_assert(slot_holds(&kv, fake->slab[0] + 8192, 102));
    ck_assert(slot_holds(&other, fake->slab[0] + 3 * FAKE_EXTENT_BYTES, 6));
    ck_assert(slot_holds(&other, fake->slab[0], 5));
    ck_assert(slot_holds(&other, fake->slab[1] + 512 * 1024, 4));
    ck_assert_uint_eq(word(200), 11);
    ck_assert_uint_eq(word(7), 12);
    ck_assert_uint_eq(word(8), 13);
    // The second chunk has one block of the first part and two of the second.
    ck_assert_uint_eq(cell(7, 0),
                      pack_checksum_slot(&part_of(client, part)->layout, fake->slab[0] + 8192));
    ck_assert_uint_eq(cell(7, 1), pack_checksum_slot(&part_of(client, second)->layout,
                                                     fake->slab[0] + 3 * FAKE_EXTENT_BYTES));
    ck_assert_uint_eq(cell(7, 2),
                      pack_checksum_slot(&part_of(client, second)->layout, fake->slab[0]));
    kv_free(&other);
    end();
}
END_TEST

enum bad_save {
    SAVE_ENTRIES,
    SAVE_STATES_FEW,
    SAVE_STATES_MANY,
    SAVE_STATE_UNKNOWN,
    SAVE_FEW_LOCATIONS,
    SAVE_MANY_LOCATIONS,
    SAVE_OFFSETS_FEW,
    SAVE_OFFSET_BEHIND,
    SAVE_OFFSET_WRAPS,
    SAVE_OFFSET_UNALIGNED,
    SAVE_OFFSET_LAST,
    SAVE_TIER,
    SAVE_TIER_NEGATIVE,
    SAVE_WORD,
    SAVE_NUMBER_0,
    SAVE_WORDS_FEW,
    SAVE_CHUNK_0,
    SAVE_CHUNK_MANY,
    SAVE_CHUNKS_FEW,
    SAVE_CHUNKS_MANY,
    SAVE_NO_ID,
    SAVE_GARBAGE,
    SAVE_KINDS
};

static bool bad_save_hook(struct fake *f, const struct wire_packet *request)
{
    Kvcache__SaveReply reply;
    Kvcache__SaveEntryReply *entry;

    if (request->type != WIRE_SAVE)
        return false;
    fake_make_save(f, fake_body(request, &kvcache__save__descriptor), &reply);
    entry = reply.entries[0];
    switch (f->shared->mode[0]) {
    case SAVE_ENTRIES:
        reply.n_entries = 0;
        break;
    case SAVE_STATES_FEW:
        entry->states.len--;
        break;
    case SAVE_STATES_MANY:
        entry->states.data = calloc(1, 5000);
        entry->states.len = 5000;
        break;
    case SAVE_STATE_UNKNOWN:
        entry->states.data[9] = 4;
        break;
    case SAVE_FEW_LOCATIONS:
        entry->n_offsets = entry->n_generations = --entry->tiers.len;
        break;
    case SAVE_MANY_LOCATIONS:
        entry->states.data[3] = 0;
        break;
    case SAVE_OFFSETS_FEW:
        entry->n_offsets--;
        break;
    case SAVE_OFFSET_BEHIND:
        entry->offsets[9] = FAKE_EXTENTS * FAKE_EXTENT_BYTES;
        break;
    case SAVE_OFFSET_WRAPS:
        entry->offsets[9] = UINT64_MAX - 511;
        break;
    case SAVE_OFFSET_UNALIGNED:
        entry->offsets[9] = 8;
        break;
    case SAVE_OFFSET_LAST:
        entry->offsets[9] = FAKE_EXTENTS * FAKE_EXTENT_BYTES - 512;
        break;
    case SAVE_TIER:
        entry->tiers.data[9] = 2;
        break;
    case SAVE_TIER_NEGATIVE:
        entry->tiers.data[9] = 255;
        break;
    case SAVE_WORD:
        reply.chunk_words[1] = KVC_PAGE_WORDS;
        break;
    case SAVE_NUMBER_0:
        reply.chunk_numbers[0] = 0;
        break;
    case SAVE_WORDS_FEW:
        reply.n_chunk_words--;
        break;
    case SAVE_CHUNK_0:
        reply.chunk_blocks[0] = 0;
        break;
    case SAVE_CHUNK_MANY:
        reply.chunk_blocks[0] += 1;
        reply.chunk_blocks[1] -= 1;
        break;
    case SAVE_CHUNKS_FEW:
        reply.n_chunk_blocks = reply.n_chunk_words = reply.n_chunk_numbers = 1;
        break;
    case SAVE_CHUNKS_MANY:
        reply.chunk_blocks[1]++;
        break;
    case SAVE_NO_ID:
        reply.save = 0;
        break;
    case SAVE_GARBAGE: {
        static uint8_t body[256];
        const struct wire_packet bad = {
            WIRE_SAVE | WIRE_REPLY, request->seq, body, sizeof(body), 0, {0}};

        memset(body, 0x12, sizeof(body));
        return wire_send(f->sock, &bad) == WIRE_OK;
    }
    default:
        break;
    }
    fake_reply(f, request, &reply.base);
    return true;
}

// One wrong value anywhere, and not a byte is written: neither to slots nor to words.
START_TEST(impossible_replies_write_nothing)
{
    uint8_t states[70];
    uint8_t keys[70 * KVC_KEY_BYTES];
    uint32_t ids[70];
    kvc_save_entry entry = {0, keys, ids, 70, states};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};
    uint64_t save = 4711;

    begin(bad_save_hook, (kvc_options){0});
    memset(fake->slab[0], 0xee, FAKE_EXTENTS * FAKE_EXTENT_BYTES);
    memset(states, 0xdd, sizeof(states));
    entry.part = part;
    kv_keys(3, 0, 70, keys);
    kv_ids(0, 70, ids);
    fake->shared->mode[0] = _i;
    ck_assert_int_eq(kvc_save(client, &args, &save), _i == SAVE_KINDS ? KVC_OK : KVC_E_PROTOCOL);
    if (_i == SAVE_KINDS) { // nothing spoiled: the frame of this test works
        ck_assert(slot_holds(&kv, fake->slab[0], 0));
        end();
        return;
    }
    // All bytes are the first one.
    ck_assert_uint_eq(fake->slab[0][0], 0xee);
    ck_assert(memcmp(fake->slab[0], fake->slab[0] + 1, FAKE_EXTENTS * FAKE_EXTENT_BYTES - 1) == 0);
    for (uint32_t i = 0; i < KVC_PAGE_WORDS; i++)
        ck_assert_uint_eq(word(i), 0);
    ck_assert_uint_eq(states[0], 0xdd);
    ck_assert_uint_eq(save, 4711);
    ck_assert_int_eq(kvc_save(client, &args, &save), KVC_E_PROTOCOL);
    end();
}
END_TEST

static int gathers_left;

static kvc_status failing_gather(struct cuda *cuda, void *stream, const struct copy_job *job)
{
    return gathers_left-- > 0 ? copy_host.gather(cuda, stream, job) : KVC_E_DEVICE;
}

// A device that fails in a chunk: that one and the later ones were never enqueued.
START_TEST(S14_failed_copy_aborts_the_rest)
{
    struct copy_ops failing;
    uint64_t save = 7;

    begin(NULL, (kvc_options){0});
    failing = copy_host;
    failing.gather = failing_gather;
    client->copy = &failing;
    gathers_left = _i;
    ck_assert_int_eq(save_blocks(0, 200, &save), KVC_E_DEVICE);
    ck_assert_uint_eq(save, 7);
    wait_for(fake_count(fake, WIRE_ABORT) == 1, 2000);
    ck_assert_uint_eq(fake->shared->abort_save, 1);
    ck_assert_uint_eq(fake->shared->abort_never, 4 - _i);
    ck_assert(!fake->shared->abort_never_all);
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(word(i), i < (uint32_t)_i ? 1000 + i : 0);
    client->copy = &copy_host;
    ck_assert_int_eq(save_blocks(0, 10, &save), KVC_OK);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("client/save", CHECK_LIFE_S, {blocks_checksums_and_words_arrive, 0, 0},
                 {without_checksums_and_without_a_waiter, 0, 0},
                 {S5_nothing_to_save_is_no_error, 0, 0}, {S5_bad_saves_are_refused_here, 0, 0},
                 {only_workers_save, 0, 0}, {S14_failed_copy_aborts_the_rest, 0, 3},
                 {S4_S5_states_and_chunks_over_several_parts, 0, 0},
                 {impossible_replies_write_nothing, 0, SAVE_KINDS})
