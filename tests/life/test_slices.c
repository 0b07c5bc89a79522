// Saves and loads layer by layer, through the library.
#include <string.h>

#include "client/admin.h"
#include "client/client.h"
#include "client/kvcache.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define LAYERS 6u
#define N      100u // blocks: two chunks

static struct daemon *d;
static kvc_client *client, *other;
static struct kv kv, kv_other;
static kvc_part part, part_other;
static uint8_t keys[N * KVC_KEY_BYTES], states[N], valid[N];
static uint32_t ids[N];

static kvc_client *connect_worker(struct kv *memory, kvc_part *made)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .save_ms = wait_patient_ms(5000),
                                 .load_ms = wait_patient_ms(5000),
                                 .lookup_ms = wait_patient_ms(5000),
                                 .connect_ms = wait_patient_ms(5000)};
    kvc_client *c;

    kv_init(memory, (const uint32_t[]){512, 36, 1000, 16, 4096, 7}, LAYERS, N);
    ck_assert_int_eq(kvc_connect(&options, &c), KVC_OK);
    ck_assert_int_eq(kvc_register(c, &memory->desc, made), KVC_OK);
    return c;
}

static void begin(void)
{
    d = daemon_start(NULL);
    client = connect_worker(&kv, &part);
    other = connect_worker(&kv_other, &part_other);
    kv_keys(1, 0, N, keys);
    kv_ids(0, N, ids);
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&kv, i, i);
}

static void end(void)
{
    kvc_close(client);
    kvc_close(other);
    kv_free(&kv);
    kv_free(&kv_other);
    daemon_stop(d);
}

static kvc_status save(uint32_t layer, uint32_t n_layers, uint64_t more_of, uint64_t *id)
{
    const kvc_save_entry entry = {part, keys, ids, N, states};
    const kvc_save_args args = {.entries = &entry,
                                .n_entries = 1,
                                .first_slice = layer,
                                .n_slices = n_layers,
                                .more_of = more_of};

    return kvc_save(client, &args, id);
}

static uint32_t probe(void)
{
    uint32_t n;

    ck_assert_int_eq(kvc_probe(other, &part_other, 1, keys, N, &n), KVC_OK);
    return n;
}

static void save_layers(void)
{
    kvc_outcome outcome;
    uint64_t id, again;

    ck_assert_int_eq(save(0, 1, 0, &id), KVC_OK);
    ck_assert_uint_ne(id, 0);
    for (uint32_t i = 1; i < LAYERS; i++) {
        ck_assert_uint_eq(probe(), 0);
        ck_assert_int_eq(save(i, 1, id, &again), KVC_OK);
        ck_assert_uint_eq(again, id);
        for (uint32_t k = 0; k < N; k++)
            ck_assert_int_eq(states[k], KVC_KEY_SAVED);
    }
    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.published, N);
}

static kvc_status load(const kvc_lease *lease, uint32_t layer, uint32_t n_layers, uint64_t *sums)
{
    return kvc_load(other, &(kvc_load_args){.lease = lease->id,
                                            .part = part_other,
                                            .count = N,
                                            .blocks = ids,
                                            .valid = valid,
                                            .first_slice = layer,
                                            .n_slices = n_layers,
                                            .sums = sums});
}

// Whether a slice of the other worker holds what was saved.
static bool has_slice(uint32_t s)
{
    for (uint32_t i = 0; i < N; i++)
        if (memcmp(kv_at(&kv_other, s, i), kv_at(&kv, s, i), kv.slices[s].bytes) != 0)
            return false;
    return true;
}

START_TEST(S38_S9_layer_by_layer_there_and_back)
{
    uint64_t sums[N] = {0};
    kvc_lease lease;

    begin();
    save_layers();
    ck_assert_uint_eq(probe(), N);
    for (uint32_t i = 0; i < N; i++)
        kv_clear(&kv_other, i);
    ck_assert_int_eq(kvc_lookup(other, 0, &part_other, 1, keys, N, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.blocks, N);
    // In order of slices, each of which is there when its call returns, and no other.
    for (uint32_t i = 0; i < LAYERS; i++) {
        ck_assert(!has_slice(i));
        ck_assert_int_eq(load(&lease, i, 1, sums), KVC_OK);
        for (uint32_t k = 0; k < N; k++)
            ck_assert_int_eq(valid[k], 1);
        for (uint32_t k = 0; k < LAYERS; k++)
            ck_assert_int_eq(has_slice(k), k <= i);
    }
    for (uint32_t i = 0; i < N; i++) {
        ck_assert(kv_holds(&kv_other, i, i));
        kv_clear(&kv_other, i);
    }
    // Whole, with the checksum that the slices added up to.
    ck_assert_int_eq(load(&lease, 0, 0, NULL), KVC_OK);
    for (uint32_t i = 0; i < N; i++)
        ck_assert(kv_holds(&kv_other, i, i));
    ck_assert_int_eq(kvc_release(other, lease.id), KVC_OK);
    end();
}
END_TEST

START_TEST(S39_the_last_slice_says_which_blocks_are_bad)
{
    uint64_t sums[N] = {0};
    kvc_lease lease;

    begin();
    save_layers();
    ck_assert_int_eq(kvc_lookup(other, 0, &part_other, 1, keys, N, 0, &lease), KVC_OK);
    for (uint32_t i = 0; i + 1 < LAYERS; i++)
        ck_assert_int_eq(load(&lease, i, 1, sums), KVC_OK);
    sums[17] ^= 4; // as a slice that was damaged would have left it
    ck_assert_int_eq(load(&lease, LAYERS - 1, 1, sums), KVC_E_CHECKSUM);
    for (uint32_t i = 0; i < N; i++)
        ck_assert_int_eq(valid[i], i != 17);
    ck_assert_int_eq(kvc_release(other, lease.id), KVC_OK);
    wait_for(probe() == 17, 5000);
    end();
}
END_TEST

START_TEST(S9_a_save_by_slices_that_is_given_up)
{
    kvc_outcome outcome;
    uint64_t id, again;

    begin();
    ck_assert_int_eq(save(0, 2, 0, NULL), KVC_E_INVALID);
    ck_assert_int_eq(save(0, 2, 0, &id), KVC_OK);
    ck_assert_int_eq(save(1, 1, id, &again), KVC_E_DUPLICATE);
    ck_assert_int_eq(save(LAYERS, 1, id, &again), KVC_E_INVALID);
    ck_assert_int_eq(save(2, LAYERS, id, &again), KVC_E_INVALID);
    ck_assert_int_eq(save(2, 1, id + 1, &again), KVC_E_UNKNOWN);
    ck_assert_int_eq(save(2, 1, id, &again), KVC_OK);
    ck_assert_int_eq(kvc_cancel(client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_E_CANCELLED);
    ck_assert_uint_eq(outcome.dropped, N);
    ck_assert_int_eq(save(3, 3, id, &again), KVC_E_UNKNOWN);
    ck_assert_uint_eq(probe(), 0);
    save_layers();
    ck_assert_uint_eq(probe(), N);
    // All there: nothing to copy, and no further call to make.
    ck_assert_int_eq(save(0, 1, 0, &id), KVC_OK);
    ck_assert_uint_eq(id, 0);
    end();
}
END_TEST

// A step of an engine with two prompts: each call brings a layer of both.
START_TEST(S9_S5_layers_of_several_prompts)
{
    kvc_outcome outcome;
    uint64_t id = 0;
    kvc_lease lease;

    begin();
    for (uint32_t i = 0; i < LAYERS; i += 2) {
        const kvc_save_args args = {.entries =
                                        (const kvc_save_entry[]){
                                            {part, keys, ids, 30, NULL},
                                            {part, keys + 40 * KVC_KEY_BYTES, ids + 40, 60, NULL},
                                        },
                                    .n_entries = 2,
                                    .first_slice = i,
                                    .n_slices = 2,
                                    .more_of = id};

        ck_assert_uint_eq(probe(), 0);
        ck_assert_int_eq(kvc_save(client, &args, &id), KVC_OK);
        ck_assert_uint_ne(id, 0);
    }
    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.published, 90);
    ck_assert_uint_eq(probe(), 30);
    ck_assert_int_eq(kvc_lookup(other, 0, &part_other, 1, keys + 40 * KVC_KEY_BYTES, 60, 0, &lease),
                     KVC_OK);
    ck_assert_uint_eq(lease.blocks, 60);
    ck_assert_int_eq(kvc_load(other, &(kvc_load_args){.lease = lease.id,
                                                      .part = part_other,
                                                      .count = 60,
                                                      .blocks = ids + 40}),
                     KVC_OK);
    for (uint32_t i = 40; i < N; i++)
        ck_assert(kv_holds(&kv_other, i, i));
    ck_assert_int_eq(kvc_release(other, lease.id), KVC_OK);
    end();
}
END_TEST

// Whoever gives up waiting for the answer to some slices has given up the save, and can wait for
// it.
START_TEST(S14_slices_whose_answer_is_late)
{
    kvc_outcome outcome;
    uint64_t id, again = 0;

    begin();
    ck_assert_int_eq(save(0, 2, 0, &id), KVC_OK);
    daemon_freeze(d);
    client->save_ms = 200;
    ck_assert_int_eq(save(2, 1, id, &again), KVC_E_DEADLINE);
    client->save_ms = wait_patient_ms(5000);
    daemon_thaw(d);
    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(10000), &outcome), KVC_OK);
    ck_assert_int_ne(outcome.status, KVC_OK);
    ck_assert_int_eq(save(3, 1, id, &again), KVC_E_UNKNOWN);
    save_layers();
    ck_assert_uint_eq(probe(), N);
    end();
}
END_TEST

CHECK_MAIN_BOTH_WAYS("life/slices", CHECK_LIFE_S, S38_S9_layer_by_layer_there_and_back,
                     S39_the_last_slice_says_which_blocks_are_bad,
                     S9_a_save_by_slices_that_is_given_up, S9_S5_layers_of_several_prompts,
                     S14_slices_whose_answer_is_late)
