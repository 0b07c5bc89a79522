/*
 * A hybrid model whose blocks are at a peer: full parts, a sliding window, a state. What comes is
 * what the longest boundary needs that all rules allow, and no more.
 */
#include <string.h>

#include "client/admin.h"
#include "tests/lib/check_main.h"
#include "tests/lib/engine.h"
#include "tests/lib/kv.h"
#include "tests/lib/pair.h"
#include "tests/lib/wait.h"

#define MS     8000u
#define TOKENS 16u
#define PROMPT 100u
#define WINDOW 3u /* blocks that the window needs */

enum { FULL, SLIDING, STATE, PARTS };

struct worker {
    kvc_client *client;
    struct kv kv[PARTS];
    kvc_part parts[PARTS];
};

static const char *const modes[] = {"exact", "views"};
static struct pair p;
static struct worker workers[PAIR_MAX]; /* one a daemon; the last one's asks peers */
static uint8_t keys[PROMPT * KVC_KEY_BYTES];

static void open_worker(struct worker *w, const struct daemon *d)
{
    const kvc_options options = {.socket = daemon_socket(d),
                                 .connect_ms = wait_patient_ms(MS),
                                 .save_ms = wait_patient_ms(MS),
                                 .load_ms = wait_patient_ms(MS),
                                 .lookup_ms = wait_patient_ms(MS),
                                 .remote_ms = wait_patient_ms(MS)};

    ck_assert_int_eq(kvc_connect(&options, &w->client), KVC_OK);
    kv_init(&w->kv[FULL], (const uint32_t[]){512, 36}, 2, PROMPT);
    kv_init(&w->kv[SLIDING], (const uint32_t[]){1000}, 1, PROMPT);
    kv_init(&w->kv[STATE], (const uint32_t[]){3000, 100}, 2, PROMPT);
    for (uint32_t i = 0; i < PARTS; i++) {
        w->kv[i].desc.block_tokens = TOKENS;
        w->kv[i].desc.namespace_digest[0] ^= i;
    }
    w->kv[SLIDING].desc.rule = KVC_RULE_WINDOW;
    w->kv[SLIDING].desc.window = TOKENS * WINDOW + 1;
    w->kv[STATE].desc.rule = KVC_RULE_STATE;
    for (uint32_t i = 0; i < PARTS; i++)
        ck_assert_int_eq(kvc_register(w->client, &w->kv[i].desc, &w->parts[i]), KVC_OK);
}

static void begin(uint32_t n, const char *mode)
{
    pair_open(&p, n, (const char *const[]){"--transfer", mode, NULL});
    kv_keys(1, 0, PROMPT, keys);
    for (uint32_t i = 0; i < n; i++)
        open_worker(&workers[i], p.daemons[i]);
}

static void end(void)
{
    for (uint32_t i = 0; i < p.n; i++) {
        kvc_close(workers[i].client);
        for (uint32_t k = 0; k < PARTS; k++)
            kv_free(&workers[i].kv[k]);
    }
    pair_end(&p);
}

/* Blocks first .. end - 1 of the prompt. */
static void save(uint32_t worker, uint32_t part, uint32_t first, uint32_t last)
{
    struct worker *w = &workers[worker];
    uint8_t states[PROMPT];
    uint32_t ids[PROMPT];
    const kvc_save_entry entry = {w->parts[part], keys + first * KVC_KEY_BYTES, ids, last - first,
                                  states};
    kvc_outcome outcome;
    uint64_t id;

    kv_ids(first, last - first, ids);
    for (uint32_t i = first; i < last; i++)
        kv_fill(&w->kv[part], i, 1000 * part + i);
    ck_assert_int_eq(kvc_save(w->client, &(kvc_save_args){.entries = &entry, .n_entries = 1}, &id),
                     KVC_OK);
    ck_assert_uint_ne(id, 0);
    ck_assert_int_eq(kvc_wait(w->client, id, wait_patient_ms(MS), &outcome), KVC_OK);
    ck_assert_int_eq(outcome.status, KVC_OK);
}

static struct worker *asker(void)
{
    return &workers[p.n - 1];
}

static void look(uint64_t request, kvc_lease *lease)
{
    ck_assert_int_eq(
        kvc_lookup(asker()->client, request, asker()->parts, PARTS, keys, PROMPT, 0, lease),
        KVC_OK);
}

/* What is leased when the peers' part has come. */
static void fetch(kvc_lease *lease)
{
    uint32_t blocks;

    look(7, lease);
    ck_assert_uint_eq(lease->remote, PROMPT - lease->blocks);
    ck_assert_int_eq(kvc_remote(asker()->client, lease->fetch, wait_patient_ms(MS), &blocks),
                     KVC_OK);
    look(7, lease);
    if (lease->fetch != 0)
        ck_assert_int_eq(kvc_decline(asker()->client, lease->fetch), KVC_OK);
}

static uint64_t came(void)
{
    struct admin_stats stats;

    ck_assert_int_eq(admin_stats(asker()->client, &stats), KVC_OK);
    return stats.hits_peer;
}

/* Every byte of what the boundary needs. */
static void verify(const kvc_lease *lease)
{
    static const uint32_t needed[PARTS] = {PROMPT, WINDOW, 1};
    struct worker *w = asker();

    for (uint32_t part = 0; part < PARTS; part++) {
        uint32_t ids[PROMPT];
        uint8_t valid[PROMPT];

        kv_ids(0, PROMPT, ids);
        for (uint32_t i = 0; i < lease->blocks; i++) {
            kv_clear(&w->kv[part], i);
            if (i + needed[part] < lease->blocks)
                ids[i] = KVC_NO_BLOCK;
        }
        ck_assert_int_eq(kvc_load(w->client, &(kvc_load_args){.lease = lease->id,
                                                              .part = w->parts[part],
                                                              .count = lease->blocks,
                                                              .blocks = ids,
                                                              .valid = valid}),
                         KVC_OK);
        for (uint32_t i = 0; i < lease->blocks; i++)
            ck_assert(ids[i] == KVC_NO_BLOCK ? kv_cleared(&w->kv[part], i)
                                             : kv_holds(&w->kv[part], i, 1000 * part + i));
    }
    ck_assert_int_eq(kvc_release(w->client, lease->id), KVC_OK);
}

START_TEST(S36_what_the_longest_boundary_needs_comes_from_a_peer)
{
    kvc_lease lease;

    begin(2, modes[_i]);
    save(0, FULL, 0, PROMPT);
    save(0, SLIDING, 37, 40);
    save(0, SLIDING, 70, 80);
    save(0, STATE, 39, 40);
    save(0, STATE, 79, 80);
    save(0, STATE, 90, 91);
    fetch(&lease);
    ck_assert_uint_eq(lease.blocks, 80);
    ck_assert_uint_eq(came(), 80 + WINDOW + 1);
    verify(&lease);
    end();
}
END_TEST

START_TEST(S36_only_what_is_not_here_comes)
{
    kvc_lease lease;

    begin(2, modes[_i]);
    save(0, FULL, 0, PROMPT);
    save(0, SLIDING, 0, 80);
    save(0, STATE, 79, 80);
    save(1, FULL, 0, 30);
    save(1, FULL, 50, 70);
    save(1, SLIDING, 78, 79);
    fetch(&lease);
    ck_assert_uint_eq(lease.blocks, 80);
    ck_assert_uint_eq(came(), 20 + 10 + WINDOW - 1 + 1);
    verify(&lease);
    end();
}
END_TEST

START_TEST(S36_a_state_that_is_all_that_is_missing)
{
    kvc_lease lease;

    begin(2, modes[_i]);
    save(0, STATE, 59, 60);
    save(1, FULL, 0, PROMPT);
    save(1, SLIDING, 0, 60);
    save(1, STATE, 19, 20);
    fetch(&lease);
    ck_assert_uint_eq(lease.blocks, 60);
    ck_assert_uint_eq(came(), 1);
    verify(&lease);
    end();
}
END_TEST

START_TEST(S36_parts_at_different_peers)
{
    kvc_lease lease;

    begin(3, modes[_i]);
    save(0, FULL, 0, PROMPT);
    save(0, SLIDING, 49, 50);
    save(1, SLIDING, 40, 49);
    save(1, STATE, 49, 50);
    fetch(&lease);
    ck_assert_uint_eq(lease.blocks, 50);
    ck_assert_uint_eq(came(), 50 + WINDOW + 1);
    verify(&lease);
    end();
}
END_TEST

/* Blocks of a prompt without a boundary are no hit anywhere: that is known at once. */
START_TEST(S36_without_a_boundary_nothing_comes)
{
    kvc_lease lease;

    begin(2, modes[_i]);
    save(0, FULL, 0, PROMPT);
    save(0, SLIDING, 0, PROMPT);
    save(1, FULL, 0, 10);
    fetch(&lease);
    ck_assert_uint_eq(lease.blocks, 0);
    ck_assert_uint_eq(came(), 0);
    end();
}
END_TEST

CHECK_MAIN_LOOPS("peer/rules", CHECK_LIFE_S,
                 {S36_what_the_longest_boundary_needs_comes_from_a_peer, 0, 1},
                 {S36_only_what_is_not_here_comes, 0, 1},
                 {S36_a_state_that_is_all_that_is_missing, 0, 1},
                 {S36_parts_at_different_peers, 0, 1}, {S36_without_a_boundary_nothing_comes, 0, 1})
