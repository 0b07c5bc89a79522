// A hybrid model through the library: a full group and a sliding window group, whose null blocks
// are neither saved nor loaded, and prompts of several packets.
#include <string.h>

#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define TOKENS 16u
#define PROMPT 1500u // blocks: two packets
#define WINDOW 3u    // blocks that the window needs

static struct daemon *d;
static kvc_client *client;
static struct kv full, window;
static kvc_part parts[2];
static uint8_t keys[PROMPT * KVC_KEY_BYTES], states[PROMPT], valid[PROMPT];
static uint32_t ids[PROMPT], tail[PROMPT];

static void begin(void)
{
    d = daemon_start(NULL);
    ck_assert_int_eq(kvc_connect(&(kvc_options){.socket = daemon_socket(d),
                                                .connect_ms = wait_patient_ms(5000),
                                                .save_ms = wait_patient_ms(5000),
                                                .load_ms = wait_patient_ms(5000),
                                                .lookup_ms = wait_patient_ms(5000)},
                                 &client),
                     KVC_OK);
    kv_init(&full, (const uint32_t[]){512, 36}, 2, PROMPT);
    kv_init(&window, (const uint32_t[]){1000}, 1, PROMPT);
    full.desc.block_tokens = window.desc.block_tokens = TOKENS;
    window.desc.namespace_digest[0] ^= 1;
    window.desc.rule = KVC_RULE_WINDOW;
    window.desc.window = TOKENS * WINDOW + 1;
    ck_assert_int_eq(kvc_register(client, &full.desc, &parts[0]), KVC_OK);
    ck_assert_int_eq(kvc_register(client, &window.desc, &parts[1]), KVC_OK);
    kv_keys(1, 0, PROMPT, keys);
    kv_ids(0, PROMPT, ids);
    for (uint32_t i = 0; i < PROMPT; i++)
        tail[i] = i + WINDOW < PROMPT ? KVC_NO_BLOCK : i;
}

static void end(void)
{
    kvc_close(client);
    kv_free(&full);
    kv_free(&window);
    daemon_stop(d);
}

static void save(uint32_t part, uint32_t first, uint32_t n, const uint32_t *blocks)
{
    const kvc_save_entry entry = {parts[part], keys + first * KVC_KEY_BYTES, blocks + first, n,
                                  states + first};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};
    kvc_outcome outcome;
    uint64_t id;

    for (uint32_t i = first; i < first + n; i++)
        kv_fill(part ? &window : &full, i, i);
    ck_assert_int_eq(kvc_save(client, &args, &id), KVC_OK);
    if (id == 0)
        return;
    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
}

static kvc_status load(uint32_t part, const kvc_lease *lease, const uint32_t *blocks)
{
    return kvc_load(client, &(kvc_load_args){.lease = lease->id,
                                             .part = parts[part],
                                             .count = lease->blocks,
                                             .blocks = blocks,
                                             .valid = valid});
}

START_TEST(S36_a_prompt_of_several_packets)
{
    kvc_lease lease;
    uint32_t n;

    begin();
    save(0, 0, 1000, ids);
    save(0, 1000, 500, ids);
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 2, keys, PROMPT, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.id, 0);
    ck_assert_int_eq(kvc_probe(client, parts, 2, keys, PROMPT, &n), KVC_OK);
    ck_assert_uint_eq(n, 0);
    save(1, 600, 900, tail);
    for (uint32_t i = 600; i < PROMPT; i++)
        ck_assert_int_eq(states[i], i + WINDOW < PROMPT ? KVC_KEY_SKIPPED : KVC_KEY_SAVED);
    ck_assert_int_eq(kvc_probe(client, parts, 2, keys, PROMPT, &n), KVC_OK);
    ck_assert_uint_eq(n, PROMPT);
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 2, keys, PROMPT, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.blocks, PROMPT);
    ck_assert_uint_eq(lease.gpu + lease.host, PROMPT);
    // A prefix that the window does not reach is a miss, in every part.
    ck_assert_int_eq(kvc_probe(client, parts, 2, keys, PROMPT - 1, &n), KVC_OK);
    ck_assert_uint_eq(n, 0);

    for (uint32_t i = 0; i < PROMPT; i++) {
        kv_clear(&full, i);
        kv_clear(&window, i);
    }
    ck_assert_int_eq(load(0, &lease, ids), KVC_OK);
    ck_assert_int_eq(load(1, &lease, tail), KVC_OK);
    for (uint32_t i = 0; i < PROMPT; i++) {
        ck_assert(kv_holds(&full, i, i));
        ck_assert(tail[i] == KVC_NO_BLOCK ? kv_cleared(&window, i) : kv_holds(&window, i, i));
        ck_assert_int_eq(valid[i], tail[i] != KVC_NO_BLOCK);
    }
    // What the rule does not need is not leased.
    ck_assert_int_eq(load(1, &lease, ids), KVC_E_INVALID);
    ck_assert_int_eq(kvc_release(client, lease.id), KVC_OK);
    end();
}
END_TEST

START_TEST(S5_blocks_that_a_group_does_not_have)
{
    uint32_t blocks[8] = {0, KVC_NO_BLOCK, 2, KVC_NO_BLOCK, KVC_NO_BLOCK, 5, 6, KVC_NO_BLOCK};
    uint32_t none[8];
    uint8_t mine[2][8];
    kvc_save_entry entries[2] = {{0, keys, blocks, 8, mine[0]}, {0, keys, none, 8, mine[1]}};
    kvc_save_args args = {.entries = entries, .n_entries = 2};
    kvc_lease lease;
    uint64_t id;
    uint32_t n;

    begin();
    entries[0].part = parts[0];
    entries[1].part = parts[1];
    memset(none, 0xff, sizeof(none));
    for (uint32_t i = 0; i < 8; i++)
        kv_fill(&full, i, i);
    ck_assert_int_eq(kvc_save(client, &args, &id), KVC_OK);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(mine[0][i], blocks[i] == KVC_NO_BLOCK ? KVC_KEY_SKIPPED : KVC_KEY_SAVED);
        ck_assert_int_eq(mine[1][i], KVC_KEY_SKIPPED);
    }
    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), NULL), KVC_OK);
    ck_assert_int_eq(kvc_probe(client, parts, 1, keys, 8, &n), KVC_OK);
    ck_assert_uint_eq(n, 1);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(kvc_probe(client, parts, 1, keys + i * KVC_KEY_BYTES, 1, &n), KVC_OK);
        ck_assert_uint_eq(n, blocks[i] != KVC_NO_BLOCK);
    }
    // Only absent ones: nothing to do, and no error.
    entries[0].blocks = none;
    ck_assert_int_eq(kvc_save(client, &args, &id), KVC_OK);
    ck_assert_uint_eq(id, 0);
    ck_assert_int_eq(kvc_lookup(client, 0, parts, 1, keys, 1, 0, &lease), KVC_OK);
    ck_assert_int_eq(load(0, &lease, none), KVC_OK);
    ck_assert_int_eq(valid[0], 0);
    // An id that is out of range is still one.
    blocks[0] = PROMPT;
    entries[0].blocks = blocks;
    ck_assert_int_eq(kvc_save(client, &args, &id), KVC_E_INVALID);
    end();
}
END_TEST

CHECK_MAIN_BOTH_WAYS("life/rules", CHECK_LIFE_S, S36_a_prompt_of_several_packets,
                     S5_blocks_that_a_group_does_not_have)
