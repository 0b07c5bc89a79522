// Loads, against a scripted daemon.
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define BLOCKS 3000u
#define SLOT   4096u

static struct fake *fake;
static kvc_client *client;
static struct kv kv;
static kvc_part part;
static uint32_t ids[BLOCKS];
static uint8_t valid[BLOCKS];

static void begin(fake_hook *hook, kvc_options options)
{
    fake = fake_start(hook);
    options.socket = fake->socket;
    options.connect_ms = wait_patient_ms(5000);
    if (options.save_ms == 0)
        options.save_ms = wait_patient_ms(5000);
    if (options.load_ms == 0)
        options.load_ms = wait_patient_ms(5000);
    if (options.lookup_ms == 0)
        options.lookup_ms = wait_patient_ms(5000);
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    kv_init(&kv, (const uint32_t[]){512, 37}, 2, BLOCKS);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    kv_ids(0, BLOCKS, ids);
    // Slot n holds block n of another, equal KV cache.
    for (uint32_t i = 0; i < BLOCKS; i++)
        kv_fill(&kv, i, i);
    for (uint32_t i = 0; i < 2 * FAKE_EXTENTS * (FAKE_EXTENT_BYTES / SLOT) && i < BLOCKS; i++) {
        const uint32_t in_tier = FAKE_EXTENTS * (FAKE_EXTENT_BYTES / SLOT);
        uint8_t *slot = fake->slab[i / in_tier] + (uint64_t)(i % in_tier) * SLOT;

        memcpy(slot, (uint8_t *)kv.slices[0].base + i * kv.slices[0].stride, 512);
        memcpy(slot + 512, (uint8_t *)kv.slices[1].base + i * kv.slices[1].stride, 37);
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        kv_clear(&kv, i);
    memset(valid, 0xee, sizeof(valid));
}

static void end(void)
{
    kvc_close(client);
    kv_free(&kv);
    fake_stop(fake);
}

static kvc_status load(uint32_t first, uint32_t count, uint32_t to)
{
    const kvc_load_args args = {.lease = 77,
                                .part = part,
                                .first = first,
                                .count = count,
                                .blocks = ids + to,
                                .valid = valid};

    return kvc_load(client, &args);
}

static uint64_t word(uint32_t i)
{
    return __atomic_load_n(
        (uint64_t *)(void *)(fake->page + i * KVC_PAGE_STRIDE + KVC_PAGE_WORD_OFFSET),
        __ATOMIC_ACQUIRE);
}

START_TEST(bytes_arrive_and_the_word_says_so)
{
    begin(NULL, (kvc_options){0});
    ck_assert_int_eq(load(5, 100, 200), KVC_OK);
    for (uint32_t i = 0; i < 100; i++) {
        ck_assert(kv_holds(&kv, 200 + i, 5 + i));
        ck_assert_uint_eq(valid[i], 1);
    }
    ck_assert_uint_eq(valid[100], 0xee);
    ck_assert(kv_cleared(&kv, 199) && kv_cleared(&kv, 300));
    ck_assert_uint_eq(word(0), 1000);
    end();
}
END_TEST

START_TEST(nothing_to_load_is_no_error)
{
    begin(NULL, (kvc_options){0});
    ck_assert_int_eq(load(5, 0, 0), KVC_OK);
    ck_assert_uint_eq(fake_count(fake, WIRE_LOAD), 0);
    end();
}
END_TEST

START_TEST(large_loads_are_split)
{
    begin(NULL, (kvc_options){0});
    ck_assert_int_eq(load(0, 2500, 100), KVC_OK);
    wait_for(fake_count(fake, WIRE_LOAD) == 3, 2000);
    ck_assert_uint_eq(fake->shared->load_first, 2048);
    ck_assert_uint_eq(fake->shared->load_count, 452);
    for (uint32_t i = 0; i < 2500; i++) {
        ck_assert(kv_holds(&kv, 100 + i, i));
        ck_assert_uint_eq(valid[i], 1);
    }
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(word(i), 1000 + i);
    end();
}
END_TEST

// S32: also when the two lie in different packets of a split load.
START_TEST(S32_two_keys_into_one_place_are_refused)
{
    begin(NULL, (kvc_options){0});
    ids[7] = 6;
    ck_assert_int_eq(load(0, 100, 0), KVC_E_DUPLICATE);
    ck_assert_str_eq(kvc_error(client), "blocks[7]: 6 comes twice");
    kv_ids(0, BLOCKS, ids);
    ids[2400] = 0;
    ck_assert_int_eq(load(0, 2500, 0), KVC_E_DUPLICATE);
    ck_assert_uint_eq(fake_count(fake, WIRE_LOAD), 0);
    for (uint32_t i = 0; i < 100; i++)
        ck_assert(kv_cleared(&kv, i));
    ck_assert_uint_eq(valid[0], 0xee);
    end();
}
END_TEST

START_TEST(bad_loads_are_refused_here)
{
    kvc_load_args args;

    begin(NULL, (kvc_options){0});
    ck_assert_int_eq(kvc_load(client, NULL), KVC_E_INVALID);
    ids[3] = BLOCKS;
    ck_assert_int_eq(load(0, 10, 0), KVC_E_INVALID);
    ck_assert_str_eq(kvc_error(client), "blocks[3]: 3000, the part has 3000");
    ids[3] = 3;
    ck_assert_int_eq(load(UINT32_MAX - 3, 10, 0), KVC_E_INVALID);
    args = (kvc_load_args){.lease = 77, .part = 50, .count = 1, .blocks = ids};
    ck_assert_int_eq(kvc_load(client, &args), KVC_E_UNKNOWN);
    args = (kvc_load_args){.lease = 77, .part = part, .count = 1};
    ck_assert_int_eq(kvc_load(client, &args), KVC_E_INVALID);
    ck_assert_uint_eq(fake_count(fake, WIRE_LOAD), 0);
    ck_assert_uint_eq(valid[0], 0xee);
    end();
}
END_TEST

START_TEST(schedulers_do_not_load)
{
    begin(NULL, (kvc_options){.role = KVC_ROLE_SCHEDULER});
    ck_assert_int_eq(load(0, 1, 0), KVC_E_DENIED);
    end();
}
END_TEST

// A refusal in the second packet leaves valid what the first one brought.
static bool refusing_hook(struct fake *f, const struct wire_packet *request)
{
    if (request->type != WIRE_LOAD || f->shared->count[WIRE_LOAD] == 0)
        return false;
    fake_error(f, request, KVC_E_EXPIRED, "lease", "it has ended");
    return true;
}

START_TEST(S39_half_a_load_says_which_half)
{
    begin(refusing_hook, (kvc_options){0});
    ck_assert_int_eq(load(0, 1500, 0), KVC_E_EXPIRED);
    for (uint32_t i = 0; i < 1500; i++)
        ck_assert_uint_eq(valid[i], i < 1024);
    for (uint32_t i = 0; i < 1500; i++)
        ck_assert(i < 1024 ? kv_holds(&kv, i, i) : kv_cleared(&kv, i));
    end();
}
END_TEST

// Checksums: block 1's is right, block 2's is wrong, block 3 has none.
static bool checked_hook(struct fake *f, const struct wire_packet *request)
{
    Kvcache__LoadReply reply;
    uint64_t offsets[2];
    const uint32_t bytes[2] = {512, 37};
    struct pack_layout layout = {.slice_offsets = offsets};

    if (request->type != WIRE_LOAD)
        return false;
    (void)pack_layout_init(&layout, bytes, 2);
    fake_make_load(f, fake_body(request, &kvcache__load__descriptor), &reply);
    memset(reply.checked.data, 1, reply.checked.len);
    for (size_t i = 0; i < reply.n_checksums; i++)
        reply.checksums[i] = pack_checksum_slot(&layout, f->slab[0] + reply.offsets[i]);
    reply.checksums[2]++;
    reply.checksums[3] = 0;
    reply.checked.data[3] = 0;
    fake_reply(f, request, &reply.base);
    return true;
}

START_TEST(S39_wrong_bytes_are_found_and_reported)
{
    kvc_load_args args;

    begin(checked_hook, (kvc_options){0});
    ck_assert_int_eq(load(0, 70, 10), KVC_E_CHECKSUM);
    for (uint32_t i = 0; i < 70; i++)
        ck_assert_uint_eq(valid[i], i != 2);
    wait_for(fake_count(fake, WIRE_REPORT) == 1, 2000);
    ck_assert_uint_eq(fake->shared->report_offset, 2 * SLOT);
    ck_assert_int_eq(fake->shared->report_tier, KVCACHE__TIER__TIER_GPU);
    ck_assert_uint_eq(fake->shared->report_generation, 7);
    // Nothing is being read any more: that is proved all the same.
    ck_assert_uint_eq(word(0), 1000);
    args = (kvc_load_args){
        .lease = 77, .part = part, .count = 4, .blocks = ids, .no_verify = 1, .valid = valid};
    ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    ck_assert_uint_eq(valid[2], 1);
    end();
}
END_TEST

enum bad_load {
    LOAD_FEW,
    LOAD_MANY,
    LOAD_OFFSETS_FEW,
    LOAD_CHECKED_FEW,
    LOAD_CHECKSUMS_FEW,
    LOAD_GENERATIONS_FEW,
    LOAD_OFFSET_BEHIND,
    LOAD_OFFSET_WRAPS,
    LOAD_OFFSET_UNALIGNED,
    LOAD_OFFSET_LAST,
    LOAD_TIER,
    LOAD_WORD,
    LOAD_NUMBER_0,
    LOAD_GARBAGE,
    LOAD_KINDS
};

static bool bad_load_hook(struct fake *f, const struct wire_packet *request)
{
    static uint8_t garbage[100] = {0x1a, 0x7f};
    const struct wire_packet bad = {
        WIRE_LOAD | WIRE_REPLY, request->seq, garbage, sizeof(garbage), 0, {0}};
    Kvcache__LoadReply reply;

    if (request->type != WIRE_LOAD)
        return false;
    fake_make_load(f, fake_body(request, &kvcache__load__descriptor), &reply);
    switch (f->shared->mode[0]) {
    case LOAD_FEW:
    case LOAD_MANY:
        reply.n_offsets += f->shared->mode[0] == LOAD_FEW ? -1 : 1;
        reply.tiers.len = reply.checked.len = reply.n_offsets;
        reply.n_checksums = reply.n_generations = reply.n_offsets;
        break;
    case LOAD_OFFSETS_FEW:
        reply.n_offsets--;
        break;
    case LOAD_CHECKED_FEW:
        reply.checked.len--;
        break;
    case LOAD_CHECKSUMS_FEW:
        reply.n_checksums--;
        break;
    case LOAD_GENERATIONS_FEW:
        reply.n_generations--;
        break;
    case LOAD_OFFSET_BEHIND:
        reply.offsets[69] = FAKE_EXTENTS * FAKE_EXTENT_BYTES;
        break;
    case LOAD_OFFSET_WRAPS:
        reply.offsets[69] = UINT64_MAX - 511;
        break;
    case LOAD_OFFSET_UNALIGNED:
        reply.offsets[69] = 8;
        break;
    case LOAD_OFFSET_LAST:
        reply.offsets[69] = FAKE_EXTENTS * FAKE_EXTENT_BYTES - 512;
        break;
    case LOAD_TIER:
        reply.tiers.data[69] = 2;
        break;
    case LOAD_WORD:
        reply.word = KVC_PAGE_WORDS;
        break;
    case LOAD_NUMBER_0:
        reply.number = 0;
        break;
    case LOAD_GARBAGE:
        return wire_send(f->sock, &bad) == WIRE_OK;
    default:
        break;
    }
    fake_reply(f, request, &reply.base);
    return true;
}

START_TEST(impossible_replies_move_nothing)
{
    begin(bad_load_hook, (kvc_options){0});
    fake->shared->mode[0] = _i;
    ck_assert_int_eq(load(0, 70, 0), _i == LOAD_KINDS ? KVC_OK : KVC_E_PROTOCOL);
    for (uint32_t i = 0; i < 70; i++) {
        ck_assert_uint_eq(valid[i], _i == LOAD_KINDS);
        ck_assert(_i == LOAD_KINDS ? kv_holds(&kv, i, i) : kv_cleared(&kv, i));
    }
    for (uint32_t i = 0; i < KVC_PAGE_WORDS && _i != LOAD_KINDS; i++)
        ck_assert_uint_eq(word(i), 0);
    end();
}
END_TEST

// The reply comes with the next request, after the load was given up.
static bool late_hook(struct fake *f, const struct wire_packet *request)
{
    Kvcache__Load load = KVCACHE__LOAD__INIT;
    Kvcache__LoadReply reply;

    if (request->type == WIRE_LOAD) {
        f->late_seq = request->seq;
        return true;
    }
    if (request->type == WIRE_PING && f->late_seq != 0) {
        load.count = 3;
        fake_make_load(f, &load, &reply);
        reply.word = f->shared->mode[0] ? KVC_PAGE_WORDS : 9;
        fake_send(f, WIRE_LOAD | WIRE_REPLY, f->late_seq, &reply.base, NULL, 0);
        f->late_seq = 0;
    }
    return false;
}

// Else the daemon would hold the blocks for ever: it cannot know that nobody reads them.
START_TEST(load_that_was_given_up_is_closed_by_its_late_reply)
{
    begin(late_hook, (kvc_options){.lookup_ms = 30});
    ck_assert_int_eq(load(0, 3, 0), KVC_E_DEADLINE);
    ck_assert_uint_eq(valid[0], 0);
    ck_assert_uint_eq(word(9), 0);
    wait_for(kvc_ping(client) == KVC_OK, 2000);
    ck_assert_uint_eq(word(9), 1000);
    ck_assert(kv_cleared(&kv, 0));
    fake->shared->mode[0] = 1;
    ck_assert_int_eq(load(0, 3, 0), KVC_E_DEADLINE);
    wait_for(kvc_ping(client) == KVC_E_PROTOCOL, 5000);
    end();
}
END_TEST

static int scatters_left;

static kvc_status failing_scatter(struct cuda *cuda, void *stream, const struct copy_job *job)
{
    return scatters_left-- > 0 ? copy_host.scatter(cuda, stream, job) : KVC_E_DEVICE;
}

START_TEST(S39_failed_copy_says_what_is_valid)
{
    struct copy_ops failing;

    begin(NULL, (kvc_options){0});
    failing = copy_host;
    failing.scatter = failing_scatter;
    client->copy = &failing;
    scatters_left = 2;
    ck_assert_int_eq(load(0, 200, 0), KVC_E_DEVICE);
    for (uint32_t i = 0; i < 200; i++)
        ck_assert_uint_eq(valid[i], i < 128);
    // Nothing reads the slots any more.
    ck_assert_uint_eq(word(0), 1000);
    end();
}
END_TEST

// With a place for the load's name nobody waits, and the judgement comes when it is asked for,
// once.
START_TEST(a_load_with_a_name_is_judged_later)
{
    uint8_t later[8];
    uint64_t name = 0;
    uint32_t blocks[8];
    kvc_load_args args = {.lease = 77, .count = 8, .blocks = blocks, .load = &name};

    begin(NULL, (kvc_options){0});
    args.part = part;
    for (uint32_t i = 0; i < 8; i++)
        blocks[i] = i;
    ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    ck_assert_uint_ne(name, 0);
    ck_assert_int_eq(kvc_load_result(client, name + 1, 0, NULL), KVC_E_UNKNOWN);
    memset(later, 0, sizeof(later));
    ck_assert_int_eq(kvc_load_result(client, name, 0, later), KVC_OK);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_uint_eq(later[i], 1);
    ck_assert_int_eq(kvc_load_result(client, name, 0, later), KVC_E_UNKNOWN);
    ck_assert_int_eq(kvc_load_result(client, 0, 0, later), KVC_OK);
    // Those that nobody asks for make room for others.
    for (uint32_t i = 0; i < 2 * LOADS_MAX; i++)
        ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    ck_assert_int_eq(kvc_load_result(client, name, 0, later), KVC_OK);
    end();
}
END_TEST

static bool refuse_load_hook(struct fake *f, const struct wire_packet *request)
{
    if (request->type != WIRE_LOAD || f->shared->mode[0] == 0)
        return false;
    fake_error(f, request, KVC_E_BUSY, "word", "not now");
    return true;
}

// The last packet of a load ends the lease; RELEASE does where there was none or it was refused.
START_TEST(a_load_can_end_its_lease)
{
    kvc_load_args args = {.lease = 77, .count = 2, .blocks = ids, .valid = valid, .release = 1};

    begin(refuse_load_hook, (kvc_options){0});
    args.part = part;
    ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    ck_assert(fake->shared->load_release);
    ck_assert_int_eq(load(0, 2, 0), KVC_OK);
    ck_assert(!fake->shared->load_release);
    ids[5] = KVC_NO_BLOCK;
    args.count = 6;
    ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    ck_assert(fake->shared->load_release && fake->shared->load_count == 5);
    args.count = 2500;
    ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    ck_assert(fake->shared->load_release);
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    ck_assert_uint_eq(fake_count(fake, WIRE_RELEASE), 0);
    args.count = 0;
    ck_assert_int_eq(kvc_load(client, &args), KVC_OK);
    wait_for(fake_count(fake, WIRE_RELEASE) == 1, 2000);
    fake->shared->mode[0] = 1;
    args.count = 2;
    ck_assert_int_eq(kvc_load(client, &args), KVC_E_BUSY);
    wait_for(fake_count(fake, WIRE_RELEASE) == 2, 2000);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("client/load", CHECK_LIFE_S, {a_load_with_a_name_is_judged_later, 0, 0},
                 {a_load_can_end_its_lease, 0, 0}, {bytes_arrive_and_the_word_says_so, 0, 0},
                 {nothing_to_load_is_no_error, 0, 0}, {large_loads_are_split, 0, 0},
                 {S32_two_keys_into_one_place_are_refused, 0, 0},
                 {bad_loads_are_refused_here, 0, 0}, {schedulers_do_not_load, 0, 0},
                 {S39_failed_copy_says_what_is_valid, 0, 0},
                 {S39_half_a_load_says_which_half, 0, 0},
                 {S39_wrong_bytes_are_found_and_reported, 0, 0},
                 {impossible_replies_move_nothing, 0, LOAD_KINDS},
                 {load_that_was_given_up_is_closed_by_its_late_reply, 0, 0})
