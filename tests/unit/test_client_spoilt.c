// A daemon whose packets have wrong bits: whatever they say, the library stays inside its memory.
#include <unistd.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/fakedaemon.h"
#include "tests/lib/kv.h"
#include "tests/lib/proc.h"

#define BLOCKS 64u
#define SAVED  16u // blocks 0 to 15 are saved, 32 to 47 loaded into

static kvc_part part;

static void use(kvc_client *client, struct kv *kv)
{
    static uint8_t keys[SAVED * KVC_KEY_BYTES], token[KVC_TOKEN_BYTES];
    uint32_t ids[SAVED], blocks;
    const kvc_save_entry entry = {part, keys, ids, SAVED, NULL};
    const kvc_save_args save = {.entries = &entry, .n_entries = 1};
    kvc_load_args load = {.part = part, .count = SAVED, .blocks = ids};
    struct admin_stats stats;
    struct admin_list list;
    kvc_lease lease = {0};
    uint64_t id = 0;

    kv_keys(1, 0, SAVED, keys);
    kv_ids(0, SAVED, ids);
    (void)kvc_save(client, &save, &id);
    (void)kvc_lookup(client, 1, &part, 1, keys, SAVED, 0, &lease);
    load.lease = lease.id;
    kv_ids(32, SAVED, ids);
    (void)kvc_load(client, &load);
    (void)kvc_adopt(client, token, part, 0, &lease);
    (void)kvc_probe(client, &part, 1, keys, SAVED, &blocks);
    (void)kvc_extend(client, 77, 1, &blocks);
    (void)kvc_release(client, 77);
    (void)admin_stats(client, &stats);
    (void)admin_list(client, "clients", 0, 10, &list);
    (void)kvc_cancel(client, id, 2, NULL);
    (void)kvc_drain(client);
    (void)kvc_dispatch(client);
    (void)kvc_register(client, &kv->desc, &part);
}

static void check_untouched(const struct kv *kv, uint64_t seed)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (i < 32 || i >= 32 + SAVED)
            ck_assert_msg(kv_cleared(kv, i), "seed %llu: block %u", (unsigned long long)seed, i);
}

START_TEST(spoilt_packets_harm_nobody)
{
    const int rounds = check_long() ? 20000 : 400;
    struct fake *fake = fake_start(NULL);
    const kvc_options options = {
        .socket = fake->socket, .connect_ms = 20, .lookup_ms = 2, .save_ms = 2};
    int fds = proc_count_fds(getpid()), connected = 0, used = 0;
    struct kv kv;

    kv_init(&kv, (const uint32_t[]){512, 100}, 2, BLOCKS);
    for (int i = 1; i <= rounds; i++) {
        const uint64_t seed = (uint64_t)i * 0x9e3779b97f4a7c15u;
        kvc_client *client;

        // Half of the rounds begin well, so that later calls are reached.
        fake->shared->spoil = i % 2 ? seed : 0;
        if (kvc_connect(&options, &client) != KVC_OK)
            continue;
        connected++;
        if (kvc_register(client, &kv.desc, &part) == KVC_OK) {
            fake->shared->spoil = seed;
            use(client, &kv);
            used++;
        }
        (void)kvc_reconnect(client);
        kvc_close(client);
        check_untouched(&kv, seed);
        ck_assert_int_eq(proc_count_fds(getpid()), fds);
    }
    ck_assert_int_gt(connected, rounds / 2);
    ck_assert_int_gt(used, rounds / 4);
    kv_free(&kv);
    fake_stop(fake);
}
END_TEST

CHECK_MAIN("client/spoilt", CHECK_LONG_S, spoilt_packets_harm_nobody)
