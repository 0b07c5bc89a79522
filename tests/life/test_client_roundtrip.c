// Save, publication, lookup, load: every byte, through the library and a real daemon.
#include <stdlib.h>
#include <string.h>

#include "client/admin.h"
#include "client/client.h"
#include "tests/lib/check_main.h"
#include "tests/lib/daemon.h"
#include "tests/lib/gpu.h"
#include "tests/lib/kv.h"
#include "tests/lib/wait.h"

#define N_SMALL 20u

static struct daemon *daemon_;
static kvc_client *client;

static void begin(const char *const *args)
{
    kvc_options options = {.connect_ms = wait_patient_ms(5000),
                           .save_ms = wait_patient_ms(5000),
                           .lookup_ms = wait_patient_ms(5000),
                           .load_ms = wait_patient_ms(5000)};

    daemon_ = daemon_start(args);
    options.socket = daemon_socket(daemon_);
    ck_assert_int_eq(kvc_connect(&options, &client), KVC_OK);
}

static void end(void)
{
    kvc_close(client);
    daemon_stop(daemon_);
}

static kvc_part register_kv(struct kv *kv)
{
    kvc_part part = 0;
    kvc_status status = kvc_register(client, &kv->desc, &part);

    ck_assert_msg(status == KVC_OK, "%d %s", status, kvc_error(client));
    return part;
}

static uint64_t save(kvc_part part, const uint8_t *keys, const uint32_t *ids, uint32_t n,
                     uint8_t *states)
{
    const kvc_save_entry entry = {part, keys, ids, n, states};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};
    uint64_t id = 0;
    kvc_status status = kvc_save(client, &args, &id);

    ck_assert_msg(status == KVC_OK, "%d %s", status, kvc_error(client));
    return id;
}

static void await_published(uint64_t id, uint32_t n)
{
    kvc_outcome outcome;

    ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
    ck_assert_uint_eq(outcome.published, n);
    ck_assert_uint_eq(outcome.dropped, 0);
}

static void load_all(kvc_part part, uint64_t lease, const uint32_t *ids, uint32_t n)
{
    uint8_t *valid = malloc(n);
    const kvc_load_args args = {
        .lease = lease, .part = part, .count = n, .blocks = ids, .valid = valid};
    kvc_status status = kvc_load(client, &args);

    ck_assert_msg(status == KVC_OK, "%d %s", status, kvc_error(client));
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(valid[i], 1);
    free(valid);
}

// Blocks 0 to n - 1 are saved and come back in n to 2n - 1; twice, the second save being hits.
static void round_trip(struct kv *kv, uint64_t prompt, uint32_t n)
{
    kvc_part part = register_kv(kv);
    uint8_t *keys = malloc((size_t)n * KVC_KEY_BYTES), *states = malloc(n);
    uint32_t *ids = malloc(n * sizeof(*ids));
    kvc_lease lease;

    kv_keys(prompt, 0, n, keys);
    kv_ids(0, n, ids);
    for (uint32_t i = 0; i < n; i++)
        kv_fill(kv, i, prompt + i);
    await_published(save(part, keys, ids, n, states), n);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(states[i], KVC_KEY_SAVED);
    ck_assert_uint_eq(save(part, keys, ids, n, states), 0);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(states[i], KVC_KEY_HIT);
    ck_assert_int_eq(kvc_lookup(client, prompt, &part, 1, keys, n, 0, &lease), KVC_OK);
    ck_assert_uint_ne(lease.id, 0);
    ck_assert_uint_eq(lease.blocks, n);
    ck_assert_uint_eq(lease.gpu + lease.host, n);
    kv_ids(n, n, ids);
    load_all(part, lease.id, ids, n);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert(kv_holds(kv, i, prompt + i));
        ck_assert(kv_holds(kv, n + i, prompt + i));
    }
    ck_assert_int_eq(kvc_release(client, lease.id), KVC_OK);
    ck_assert_int_eq(kvc_release(client, lease.id), KVC_OK);
    free(keys);
    free(states);
    free(ids);
}

struct shape {
    uint32_t n_slices, n_blocks;
    uint32_t bytes[8];
};
static const struct shape shapes[] = {
    {1, 70, {4096}},
    {1, 70, {1}},
    {2, 65, {2048, 2048}},
    {4, 100, {16, 15, 17, 1}},
    {8, 40, {2048, 100, 36, 512, 4096, 3, 1000, 64}},
    {3, 3, {900001, 36864, 7}},
    {2, 2, {3000000, 2000001}},    // a block over several extents
    {1, 1, {17000000}},            // one that is larger than a chunk
    {3, 1, {9000000, 9000000, 8}}, // and one of which no two slices go together
};
#define N_SHAPES (int)(sizeof(shapes) / sizeof(shapes[0]))

START_TEST(S4_layouts_come_back_bit_for_bit)
{
    const struct shape *shape = &shapes[_i];
    struct kv kv;

    begin((const char *[]){"--gpu-bytes", "64M", "--host-bytes", "64M", NULL});
    kv_init(&kv, shape->bytes, shape->n_slices, 2 * shape->n_blocks);
    round_trip(&kv, 5, shape->n_blocks);
    kv_free(&kv);
    end();
}
END_TEST

// Blocks of all sizes of one tenant side by side.
START_TEST(F44_several_layouts_share_a_daemon)
{
    struct kv kv[5];

    begin((const char *[]){"--gpu-bytes", "32M", NULL});
    for (uint32_t i = 0; i < 5; i++) {
        kv_init(&kv[i], shapes[i].bytes, shapes[i].n_slices, 2 * shapes[i].n_blocks);
        kv[i].desc.block_tokens = 16 + i;
        round_trip(&kv[i], 100 * i, shapes[i].n_blocks);
    }
    for (uint32_t i = 0; i < 5; i++)
        kv_free(&kv[i]);
    end();
}
END_TEST

START_TEST(zero_gpu_budget_works)
{
    struct kv kv;

    begin(_i == 0 ? (const char *[]){"--gpu-bytes", "0", NULL}
                  : (const char *[]){"--host-bytes", "0", NULL});
    kv_init(&kv, (const uint32_t[]){512, 37}, 2, 200);
    round_trip(&kv, 1, 100);
    kv_free(&kv);
    end();
}
END_TEST

// More keys than a packet takes: saved in pieces by the caller, looked up and loaded in one call.
START_TEST(long_prompts_are_split)
{
    enum { N = 2500 };
    static uint8_t keys[N * KVC_KEY_BYTES];
    static uint32_t ids[N];
    struct kv kv;
    kvc_part part;
    kvc_lease lease;
    uint32_t blocks;

    begin((const char *[]){"--gpu-bytes", "16M", NULL});
    kv_init(&kv, (const uint32_t[]){64}, 1, 2 * N);
    part = register_kv(&kv);
    kv_keys(9, 0, N, keys);
    kv_ids(0, N, ids);
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&kv, i, i);
    for (uint32_t at = 0; at < N; at += 500)
        await_published(save(part, keys + at * KVC_KEY_BYTES, ids + at, 500, NULL), 500);
    ck_assert_int_eq(kvc_probe(client, &part, 1, keys, N, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, N);
    ck_assert_int_eq(kvc_lookup(client, 3, &part, 1, keys, N, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.blocks, N);
    ck_assert_uint_eq(lease.gpu + lease.host, N);
    // Asking again under the same request is the same lease.
    uint64_t id = lease.id;
    ck_assert_int_eq(kvc_lookup(client, 3, &part, 1, keys, N, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.id, id);
    ck_assert_uint_eq(lease.blocks, N);
    kv_ids(N, N, ids);
    load_all(part, lease.id, ids, N);
    for (uint32_t i = 0; i < N; i++)
        ck_assert(kv_holds(&kv, N + i, i));
    kv_free(&kv);
    end();
}
END_TEST

// Where the daemon copies nobody maps any.
START_TEST(more_extents_than_a_packet_carries)
{
    struct kv kv;

    begin((const char *[]){"--gpu-bytes", "128M", "--host-bytes", "128M", NULL});
    kv_init(&kv, (const uint32_t[]){512}, 1, 2);
    round_trip(&kv, 1, 1);
    ck_assert_uint_eq(client->map.n_mapped, !check_copies_by_daemon() ? 128 : 0);
    kv_free(&kv);
    end();
}
END_TEST

// S6: two entries with a common prefix; S1: hits in front of what is missing.
START_TEST(S6_entries_share_a_prefix)
{
    uint8_t keys[6 * KVC_KEY_BYTES], states[2][6];
    const uint32_t ids[2][6] = {{0, 1, 2, 3, 0, 0}, {10, 11, 12, 13, 4, 5}};
    struct kv kv;
    kvc_part part;
    kvc_save_entry entries[2];
    const kvc_save_args args = {.entries = entries, .n_entries = 2};
    uint64_t id;

    begin(NULL);
    kv_init(&kv, (const uint32_t[]){512}, 1, 32);
    part = register_kv(&kv);
    kv_keys(1, 0, 6, keys);
    for (uint32_t i = 0; i < 6; i++)
        kv_fill(&kv, i, i);
    entries[0] = (kvc_save_entry){part, keys, ids[0], 4, states[0]};
    entries[1] = (kvc_save_entry){part, keys, ids[1], 6, states[1]};
    ck_assert_int_eq(kvc_save(client, &args, &id), KVC_OK);
    ck_assert_mem_eq(states[0], "\1\1\1\1", 4);
    ck_assert_mem_eq(states[1], "\0\0\0\0\1\1", 6);
    await_published(id, 6);
    kv_free(&kv);
    end();
}
END_TEST

// The source may be overwritten as soon as the call returns, whenever the daemon publishes; where
// the daemon copies, as soon as the save has ended.
START_TEST(S37_sources_are_free_when_save_returns)
{
    uint8_t keys[N_SMALL * KVC_KEY_BYTES];
    uint32_t ids[N_SMALL];
    struct kv kv;
    kvc_part part;
    kvc_lease lease;
    uint64_t id;

    begin(NULL);
    kv_init(&kv, (const uint32_t[]){512, 36}, 2, 2 * N_SMALL);
    part = register_kv(&kv);
    kv_keys(1, 0, N_SMALL, keys);
    kv_ids(0, N_SMALL, ids);
    for (uint32_t i = 0; i < N_SMALL; i++)
        kv_fill(&kv, i, i);
    id = save(part, keys, ids, N_SMALL, NULL);
    if (check_copies_by_daemon())
        await_published(id, N_SMALL);
    for (uint32_t i = 0; i < N_SMALL; i++)
        kv_fill(&kv, i, 1000 + i);
    if (!check_copies_by_daemon())
        await_published(id, N_SMALL);
    ck_assert_int_eq(kvc_lookup(client, 0, &part, 1, keys, N_SMALL, 0, &lease), KVC_OK);
    kv_ids(N_SMALL, N_SMALL, ids);
    load_all(part, lease.id, ids, N_SMALL);
    for (uint32_t i = 0; i < N_SMALL; i++)
        ck_assert(kv_holds(&kv, N_SMALL + i, i));
    kv_free(&kv);
    end();
}
END_TEST

// Saves blocks at to at + n - 1; whether they and all before them are there now.
static bool save_prefix(kvc_part part, const uint8_t *keys, const uint32_t *ids, uint32_t at,
                        uint32_t n)
{
    uint64_t id = save(part, keys + (size_t)at * KVC_KEY_BYTES, ids + at, n, NULL);
    uint32_t blocks = 0;

    if (id != 0)
        ck_assert_int_eq(kvc_wait(client, id, wait_patient_ms(5000), NULL), KVC_OK);
    ck_assert_int_eq(kvc_probe(client, &part, 1, keys, at + n, &blocks), KVC_OK);
    return blocks == at + n;
}

// S33: what was demoted comes from the host tier, in the same load; other blocks stay untouched.
START_TEST(S33_loads_from_mixed_tiers)
{
    enum { N = 900, STEP = 50 };
    static uint8_t keys[N * KVC_KEY_BYTES];
    static uint32_t ids[N];
    struct kv kv;
    struct admin_stats stats;
    kvc_part part;
    kvc_lease lease;

    // 512 slots on the gpu tier.
    begin((const char *[]){"--gpu-bytes", "2M", "--host-bytes", "16M", NULL});
    kv_init(&kv, (const uint32_t[]){512, 36}, 2, 3 * N);
    part = register_kv(&kv);
    kv_keys(1, 0, N, keys);
    for (uint32_t i = 0; i < N; i++)
        kv_fill(&kv, i, i);
    // Room is made in the background: what was skipped is saved again when there is some.
    kv_ids(0, N, ids);
    for (uint32_t at = 0; at < N; at += STEP)
        wait_for(save_prefix(part, keys, ids, at, STEP), 10000);
    ck_assert_int_eq(kvc_lookup(client, 0, &part, 1, keys, N, 0, &lease), KVC_OK);
    ck_assert_uint_eq(lease.blocks, N);
    ck_assert_uint_eq(lease.gpu + lease.host, N);
    ck_assert(lease.gpu > 0 && lease.host > 0);
    // Every second block of the worker, in reverse order.
    for (uint32_t i = 0; i < N; i++)
        ids[i] = 3 * N - 1 - 2 * i;
    load_all(part, lease.id, ids, N);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert(kv_holds(&kv, 3 * N - 1 - 2 * i, i));
        ck_assert(3 * N - 2 - 2 * i < N || kv_cleared(&kv, 3 * N - 2 - 2 * i));
    }
    ck_assert_int_eq(admin_stats(client, &stats), KVC_OK);
    ck_assert_uint_gt(stats.demotions, 0);
    ck_assert_uint_eq(stats.checksum_failures, 0);
    kv_free(&kv);
    end();
}
END_TEST

// S34: equal keys in another layout, or another namespace, are misses.
START_TEST(S34_other_layouts_are_misses)
{
    struct kv kv, other;
    uint8_t keys[N_SMALL * KVC_KEY_BYTES];
    kvc_part part;
    uint32_t blocks = 77;
    int what;

    what = _i;
    begin(NULL);
    kv_init(&kv, (const uint32_t[]){512, 36}, 2, 2 * N_SMALL);
    round_trip(&kv, 1, N_SMALL);
    kv_keys(1, 0, N_SMALL, keys);
    kv_init(&other, (const uint32_t[]){512, 36}, 2, 2 * N_SMALL);
    switch (what) {
    case 0:
        other.slices[1].bytes = 35;
        break;
    case 1:
        other.slices[1].dtype = 3;
        break;
    case 2:
        other.desc.block_tokens = 32;
        break;
    case 3:
        other.desc.namespace_digest[0]++;
        break;
    }
    part = register_kv(&other);
    ck_assert_int_eq(kvc_probe(client, &part, 1, keys, N_SMALL, &blocks), KVC_OK);
    ck_assert_uint_eq(blocks, 0);
    kv_free(&kv);
    kv_free(&other);
    end();
}
END_TEST

START_TEST(cancel_after_the_words_keeps_what_is_published)
{
    uint8_t keys[8 * KVC_KEY_BYTES];
    uint32_t ids[8];
    struct kv kv;
    kvc_part part;
    kvc_outcome outcome;
    uint64_t id;

    begin(NULL);
    kv_init(&kv, (const uint32_t[]){512}, 1, 8);
    part = register_kv(&kv);
    kv_keys(1, 0, 8, keys);
    kv_ids(0, 8, ids);
    id = save(part, keys, ids, 8, NULL);
    // Whatever comes first, each key counts once.
    ck_assert_int_eq(kvc_cancel(client, id, wait_patient_ms(2000), &outcome), KVC_OK);
    ck_assert_uint_eq(outcome.published + outcome.dropped, 8);
    ck_assert_int_eq(kvc_wait(client, id, 0, &outcome), KVC_E_UNKNOWN);
    kv_free(&kv);
    end();
}
END_TEST

START_TEST(S31_refusals_name_the_field)
{
    uint8_t keys[2 * KVC_KEY_BYTES] = {0}; // the same twice
    const uint32_t ids[2] = {0, 1};
    kvc_save_entry entry = {0, keys, ids, 2, NULL};
    const kvc_save_args args = {.entries = &entry, .n_entries = 1};
    struct kv kv;
    uint64_t save;
    kvc_load_args load = {.lease = 12345, .count = 1, .blocks = ids};

    begin(NULL);
    kv_init(&kv, (const uint32_t[]){512}, 1, 8);
    entry.part = load.part = register_kv(&kv);
    ck_assert_int_eq(kvc_save(client, &args, &save), KVC_E_DUPLICATE);
    ck_assert_ptr_nonnull(strstr(kvc_error(client), "entries[0]"));
    ck_assert_int_ne(kvc_load(client, &load), KVC_OK);
    ck_assert_ptr_nonnull(strstr(kvc_error(client), "lease"));
    ck_assert_int_eq(kvc_ping(client), KVC_OK);
    kv.desc.rule = KVC_RULE_WINDOW;
    ck_assert_int_eq(kvc_register(client, &kv.desc, &entry.part), KVC_E_INVALID);
    ck_assert_ptr_nonnull(strstr(kvc_error(client), "window"));
    kv_free(&kv);
    end();
}
END_TEST

START_TEST(figures_and_lists)
{
    struct admin_stats stats;
    struct admin_list list;
    struct kv kv;

    begin(NULL);
    kv_init(&kv, (const uint32_t[]){512}, 1, 20);
    round_trip(&kv, 1, 10);
    ck_assert_int_eq(admin_stats(client, &stats), KVC_OK);
    ck_assert_uint_eq(stats.blocks, 10);
    ck_assert_uint_eq(stats.sessions, 1);
    ck_assert_uint_eq(stats.leases, 0);
    ck_assert_uint_eq(stats.published_blocks, 10);
    ck_assert_str_eq(stats.device, gpu_is_used() ? "cuda" : "host");
    ck_assert_uint_eq(stats.tiers[0].hits + stats.tiers[1].hits, 10);
    ck_assert_int_eq(admin_list(client, "clients", 0, 100, &list), KVC_OK);
    ck_assert_uint_eq(list.n_rows, 1);
    ck_assert_uint_eq(list.rows[0].n_values, list.n_columns);
    ck_assert_int_eq(admin_ping(client, "x", 1), KVC_OK);
    kv_free(&kv);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("client/roundtrip", CHECK_LIFE_S,
                 {S4_layouts_come_back_bit_for_bit, 0, N_SHAPES - 1, CHECK_BOTH_WAYS},
                 {F44_several_layouts_share_a_daemon, 0, 0, CHECK_BOTH_WAYS},
                 {zero_gpu_budget_works, 0, 1, CHECK_BOTH_WAYS},
                 {long_prompts_are_split, 0, 0, CHECK_BOTH_WAYS},
                 {more_extents_than_a_packet_carries, 0, 0, CHECK_BOTH_WAYS},
                 {S6_entries_share_a_prefix, 0, 0, CHECK_BOTH_WAYS},
                 {S37_sources_are_free_when_save_returns, 0, 0, CHECK_BOTH_WAYS},
                 {S33_loads_from_mixed_tiers, 0, 0, CHECK_BOTH_WAYS},
                 {S34_other_layouts_are_misses, 0, 3, CHECK_BOTH_WAYS},
                 {cancel_after_the_words_keeps_what_is_published, 0, 0, CHECK_BOTH_WAYS},
                 {S31_refusals_name_the_field, 0, 0, CHECK_BOTH_WAYS},
                 {figures_and_lists, 0, 0, CHECK_BOTH_WAYS})
