// Bytes in a slot that are not the saved ones: found by who loads them, be it the worker or the
// daemon, and gone for everyone.
#include <string.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define N 10u

static struct daemon *d;
static kvc_client *client, *wild; // the second one spoils slots
static struct kv kv, wild_kv;
static kvc_part part;
static uint8_t keys[N * KVC_KEY_BYTES];
static uint32_t ids[N];
static uint8_t valid[N];

static void begin(bool checksums)
{
    kvc_options options = {.connect_ms = wait_patient_ms(5000),
                           .save_ms = wait_patient_ms(5000),
                           .lookup_ms = wait_patient_ms(5000),
                           .load_ms = wait_patient_ms(5000)};
    kvc_save_entry entry = {0, keys, ids, N, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1, .no_checksums = !checksums};
    uint64_t id;

    d = daemon_start(NULL);
    options.socket = daemon_socket(d);
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
    kv_init(&kv, (const uint32_t[]){512, 36}, 2, N);
    kv_init(&wild_kv, (const uint32_t[]){512, 36}, 2, N);
    wild_kv.desc.copy = KVC_COPY_WORKER; // it has the slots mapped
    ck_assert_int_eq(kvc_connect(&options, &wild), KVC_OK);
    ck_assert_int_eq(kvc_register(wild, &wild_kv.desc, &part), KVC_OK);
    ck_assert_int_eq(kvc_register(client, &kv.desc, &part), KVC_OK);
    entry.part = part;
    kv_keys(1, 0, N, keys);
    kv_ids(0, N, ids);
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&kv, i, i);
    ck_assert_int_eq(kvc_save(client, &args, &id), KVC_OK);
    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), NULL), KVC_OK);
}

static void end(void)
{
    kvc_close(client);
    kvc_close(wild);
    kv_free(&kv);
    kv_free(&wild_kv);
    daemon_stop(d);
}

// Spoils the slot of block i, which a worker can still write to: what a wild copy would do.
static void spoil(uint32_t i)
{
    const uint8_t *content = (uint8_t *)kv.slices[0].base + i * kv.slices[0].stride;

    for (uint32_t t = 0; t < CODEC_TIERS; t++) {
        const struct map_tier *tier = &wild->map.tiers[t];

        for (uint64_t at = 0; at < tier->bytes; at += 4096) {
            uint8_t *slot = map_at(&wild->map, t, at, 4096);

            if (slot && memcmp(slot, content, kv.slices[0].bytes) == 0)
                slot[77] ^= 4;
        }
    }
}

static kvc_status load(uint64_t lease, bool verify)
{
    const kvc_load_args args = {.lease = lease,
                                .part = part,
                                .count = N,
                                .blocks = ids,
                                .no_verify = !verify,
                                .valid = valid};

    for (uint32_t i = 0; i < N; i++)
        kv_clear(&kv, i);
    return kvc_load(client, &args);
}

// Also under an adopted lease, whose keys this worker has never seen.
START_TEST(F14_spoilt_block_is_reported_and_dropped)
{
    kvc_lease lease, adopted;
    struct admin_stats stats;
    uint32_t blocks;

    begin(true);
    daemon_log_allow(d, "checksum");
    spoil(4);
    ck_assert_int_eq(kvc_lookup(client, 0, &part, 1, keys, N, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.blocks, N);
    if (_i == 1) {
        ck_assert_int_eq(kvc_adopt(client, lease.token, part, 0, &adopted), KVC_OK);
        ck_assert_int_eq(kvc_release(client, lease.id), KVC_OK);
        lease = adopted;
    }
    ck_assert_int_eq(load(lease.id, true), KVC_E_CHECKSUM);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(valid[i], i != 4);
        ck_assert(i == 4 || kv_holds(&kv, i, i));
    }
    wait_for(kvc_probe(client, &part, 1, keys, N, &blocks) == KVC_OK && blocks == 4, 5000);
    ck_assert_int_eq(admin_stats(client, &stats), KVC_OK);
    ck_assert_uint_eq(stats.checksum_failures, 1);
    ck_assert_int_eq(kvc_release(client, lease.id), KVC_OK);
    wait_for(admin_stats(client, &stats) == KVC_OK && stats.open_loads == 0 &&
                 stats.blocks == N - 1,
             5000);
    end();
}
END_TEST

// Nobody looks: with no checksum, or when the worker that copies does not want it.
START_TEST(unchecked_blocks_are_taken_as_they_are)
{
    kvc_lease lease;

    begin(_i == 0);
    spoil(4);
    ck_assert_int_eq(kvc_lookup(client, 0, &part, 1, keys, N, 0, &lease), KVC_OK);
    ck_assert_int_eq(load(lease.id, _i != 0), KVC_OK);
    ck_assert_uint_eq(valid[4], 1);
    ck_assert(!kv_holds(&kv, 4, 4));
    ck_assert(kv_holds(&kv, 5, 5));
    end();
}
END_TEST

CHECK_MAIN_LOOPS("client/verify", CHECK_LIFE_S,
                 {F14_spoilt_block_is_reported_and_dropped, 0, 1, CHECK_BOTH_WAYS},
                 {unchecked_blocks_are_taken_as_they_are, 0, 1},
                 {unchecked_blocks_are_taken_as_they_are, 1, 1, CHECK_DAEMON_COPIES})
