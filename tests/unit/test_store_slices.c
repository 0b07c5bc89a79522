/* Saves and loads by slices: layer by layer. */
#include "tests/lib/check_main.h"
#include "tests/lib/slicekit.h"

static struct slicekit s;

static struct kit_load opened[2];

/* Of the worker, by whoever copies. */
static void open_load(const struct store_load *req, struct kit_load *load)
{
    ck_assert_int_eq(kit_try_load(&s.kit, s.worker, req, load), KVC_OK);
}

START_TEST(S9_every_call_gets_the_same_slots)
{
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    for (uint32_t i = 1; i < SLICEKIT_SLICES; i++) {
        struct slicekit_call *c = slicekit_call(&s, s.worker, id, i, SLICEKIT_KEYS, i, 1);

        ck_assert_int_eq(c->status, KVC_OK);
        ck_assert_uint_eq(c->result.save, id);
        ck_assert_uint_eq(c->result.n_chunks, 2);
        ck_assert_mem_eq(c->states, s.calls[0].states, sizeof(c->states));
        slicekit_check_places(c->locations, s.calls[0].locations, SLICEKIT_KEYS);
        for (uint32_t k = 0; k < 2; k++) {
            ck_assert_uint_eq(c->chunks[k].blocks, s.calls[0].chunks[k].blocks);
            ck_assert_int_eq(c->chunks[k].number != s.calls[0].chunks[k].number, !c->copy);
            ck_assert_int_eq(c->chunks[k].word != s.calls[0].chunks[k].word, !c->copy);
        }
    }
    for (uint32_t i = 0; i < SLICEKIT_SLICES; i++)
        for (uint32_t k = 0; k < 2; k++)
            slicekit_prove(&s, &s.calls[i], k, 1);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), SLICEKIT_KEYS);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S9_published_with_the_last_slice_and_never_before)
{
    const uint64_t sums[SLICEKIT_SLICES] = {10, 200, 3000, 40000};
    struct store_load load;
    struct store_lookup_part p;
    struct store_lookup req = {.parts = &p, .n_parts = 1};
    struct store_lookup_result result;
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    slicekit_prove(&s, &s.calls[0], 0, sums[0]);
    slicekit_prove(&s, &s.calls[0], 1, sums[0]);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 3, 1)->status, KVC_OK);
    slicekit_prove(&s, &s.calls[1], 0, sums[3]);
    slicekit_prove(&s, &s.calls[1], 1, sums[3]);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 2, SLICEKIT_KEYS, 1, 2)->status, KVC_OK);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), 0);
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, SLICEKIT_KEYS);
    /* The second chunk first: it waits for the first (S13). */
    slicekit_prove(&s, &s.calls[2], 1, sums[1] + sums[2]);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), 0);
    ck_assert_uint_eq(s.kit.n_done, 0);
    slicekit_prove(&s, &s.calls[2], 0, sums[1] + sums[2]);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), SLICEKIT_KEYS);
    ck_assert_uint_eq(s.kit.n_done, 1);
    ck_assert_int_eq(s.kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(s.kit.done[0].published, SLICEKIT_KEYS);
    ck_assert_uint_eq(kit_stats(&s.kit).bytes_saved[TIER_GPU], SLICEKIT_KEYS * 4096ull);
    /* Each slice has added its checksum once. */
    p = (struct store_lookup_part){s.part.part, s.part.epoch, s.keys, SLICEKIT_KEYS};
    ck_assert_int_eq(store_lookup(s.kit.store, s.worker->owner, &req, &result, &s.kit.why), KVC_OK);
    load = (struct store_load){
        .lease = result.lease, .part = s.part.part, .epoch = s.part.epoch, .count = SLICEKIT_KEYS};
    open_load(&load, &opened[0]);
    for (uint32_t i = 0; i < SLICEKIT_KEYS; i++) {
        ck_assert(opened[0].locations[i].checked);
        ck_assert_uint_eq(opened[0].locations[i].checksum, 43210);
    }
    kit_close_load(&s.kit, &opened[0]);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S9_pending_for_everybody_else)
{
    struct kit_owner *other;
    struct slicekit_call *c;
    uint64_t id;

    slicekit_open(&s, 16);
    other = kit_worker(&s.kit);
    slicekit_add_part(&s, other);
    id = slicekit_first(&s);
    slicekit_prove(&s, &s.calls[0], 0, 1);
    slicekit_prove(&s, &s.calls[0], 1, 1);
    c = slicekit_call(&s, other, 0, 1, SLICEKIT_KEYS, 0, 0);
    ck_assert_int_eq(c->status, KVC_OK);
    ck_assert_uint_eq(c->result.save, 0);
    for (uint32_t i = 0; i < SLICEKIT_KEYS; i++)
        ck_assert_int_eq(c->states[i], STORE_KEY_PENDING);
    /* Also for the session itself, in another save. */
    c = slicekit_call(&s, s.worker, 0, 1, SLICEKIT_KEYS, 1, 1);
    ck_assert_uint_eq(c->result.save, 0);
    ck_assert_int_eq(slicekit_call(&s, other, id, 2, SLICEKIT_KEYS, 1, 1)->status, KVC_E_UNKNOWN);
    ck_assert_str_eq(s.kit.why.field, "save");
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 3)->status, KVC_OK);
    slicekit_prove(&s, &s.calls[1], 0, 1);
    slicekit_prove(&s, &s.calls[1], 1, 1);
    ck_assert_uint_eq(slicekit_found(&s, 0, SLICEKIT_KEYS), SLICEKIT_KEYS);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S9_calls_that_are_refused)
{
    struct store_save_entry e;
    struct store_save req = {.entries = &e, .n_entries = 1};
    struct kit_save whole;
    struct save *open;
    uint64_t id, before;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    before = kit_stats(&s.kit).filling_slots;
#define REFUSED(expected, name, ...)                                                               \
    do {                                                                                           \
        e = slicekit_entry(&s, SLICEKIT_KEYS, 1, 1);                                               \
        req.save = id;                                                                             \
        req.checksums = true;                                                                      \
        req.n_entries = 1;                                                                         \
        req.by_daemon = kit_daemon_copies();                                                       \
        __VA_ARGS__;                                                                               \
        ck_assert_int_eq(store_save_slices(s.kit.store, s.worker->owner, &req, &open,              \
                                           &s.calls[1].result, &s.kit.why),                        \
                         expected);                                                                \
        ck_assert_str_eq(s.kit.why.field, name);                                                   \
        kit_check(&s.kit);                                                                         \
    } while (0)
    REFUSED(KVC_E_UNKNOWN, "save", req.save = id + 1);
    REFUSED(KVC_E_DUPLICATE, "entries[0].slices", e.first_slice = 0);
    REFUSED(KVC_E_DUPLICATE, "entries[0].slices", e.first_slice = 0; e.n_slices = 0);
    REFUSED(KVC_E_INVALID, "entries[0].slices", e.first_slice = SLICEKIT_SLICES);
    REFUSED(KVC_E_INVALID, "entries[0].slices", e.n_slices = SLICEKIT_SLICES);
    REFUSED(KVC_E_INVALID, "entries[0].slices", e.n_slices = ~0u);
    REFUSED(KVC_E_INVALID, "entries[0].keys", e.n_keys--);
    REFUSED(KVC_E_INVALID, "entries[0].keys", e.keys += KVC_KEY_BYTES);
    REFUSED(KVC_E_STALE, "entries[0].epoch", e.epoch++);
    REFUSED(KVC_E_INVALID, "entries[0].part", e.part = s.kit.part; e.epoch = s.kit.epoch);
    REFUSED(KVC_E_INVALID, "entries", req.n_entries = 0);
    REFUSED(KVC_E_INVALID, "checksums", req.checksums = false);
    REFUSED(KVC_E_INVALID, "region", req.by_daemon = !req.by_daemon);
    kit_save(&s.kit, s.worker, 500, 2, &whole);
    REFUSED(KVC_E_INVALID, "save", req.save = whole.result.save);
#undef REFUSED
    ck_assert_uint_eq(kit_stats(&s.kit).filling_slots, before + 2);
    ck_assert_int_eq(kit_abort(&s.kit, &whole, true), 0);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S9_no_words_for_another_call)
{
    struct kit_owner *other;
    struct store_lookup_part p;
    struct store_lookup req = {.parts = &p, .n_parts = 1};
    struct store_lookup_result result;
    struct store_load load;
    struct store_location location;
    uint32_t word, opened = 0;
    uint64_t number, id;

    slicekit_open(&s, 16);
    other = kit_worker(&s.kit);
    kit_put(&s.kit, other, 3000, 1);
    id = slicekit_first(&s);
    p = (struct store_lookup_part){s.kit.part, s.kit.epoch, s.keys, 1};
    kit_keys(3000, 1, s.keys + SLICEKIT_KEYS * KVC_KEY_BYTES);
    p.keys = s.keys + SLICEKIT_KEYS * KVC_KEY_BYTES;
    ck_assert_int_eq(store_lookup(s.kit.store, s.worker->owner, &req, &result, &s.kit.why), KVC_OK);
    load = (struct store_load){
        .lease = result.lease, .part = s.kit.part, .epoch = s.kit.epoch, .count = 1};
    while (opened < KVC_PAGE_WORDS - 3) {
        ck_assert_int_eq(
            store_load(s.kit.store, s.worker->owner, &load, &location, &word, &number, &s.kit.why),
            KVC_OK);
        opened++;
    }
    /* One is left, and two are needed: nothing changes, and nothing is lost. */
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 3)->status,
                         KVC_E_BUSY);
        ck_assert_str_eq(s.kit.why.field, "word");
    }
    kit_word(&s.kit, s.worker, word, number);
    kit_tick(&s.kit);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 3)->status, KVC_OK);
    ck_assert_int_eq(store_drained(s.kit.store, s.worker->owner, 0, NULL, 0, &s.kit.why), KVC_OK);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S38_a_load_of_a_range)
{
    struct store_load load = {.first_slice = 1, .n_slices = 2, .count = 10};
    struct store_lookup_part p;
    struct store_lookup req = {.parts = &p, .n_parts = 1};
    struct store_lookup_result result;
    uint64_t id;

    slicekit_open(&s, 16);
    id = slicekit_first(&s);
    ck_assert_int_eq(slicekit_call(&s, s.worker, id, 1, SLICEKIT_KEYS, 1, 0)->status, KVC_OK);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++)
            slicekit_prove(&s, &s.calls[i], k, 7);
    p = (struct store_lookup_part){s.part.part, s.part.epoch, s.keys, SLICEKIT_KEYS};
    ck_assert_int_eq(store_lookup(s.kit.store, s.worker->owner, &req, &result, &s.kit.why), KVC_OK);
    ck_assert_uint_eq(result.count, SLICEKIT_KEYS);
    load.lease = result.lease;
    load.part = s.part.part;
    load.epoch = s.part.epoch;
    open_load(&load, &opened[0]);
    load.first_slice = 3;
    load.n_slices = 0;
    open_load(&load, &opened[1]);
    /* The same blocks, a word for each call; checksums are of whole blocks. */
    slicekit_check_places(opened[0].locations, opened[1].locations, 10);
    ck_assert_uint_eq(opened[0].locations[0].checksum, 14);
    ck_assert_int_eq(opened[0].word != opened[1].word, !opened[0].copy);
    ck_assert_uint_eq(kit_stats(&s.kit).open_loads, 2);
    kit_release(&s.kit, s.worker, result.lease);
    kit_close_load(&s.kit, &opened[0]);
    ck_assert_uint_eq(kit_stats(&s.kit).open_loads, 1);
    ck_assert_uint_eq(kit_stats(&s.kit).bytes_loaded[TIER_GPU], 10 * (512 + 1024));
    kit_close_load(&s.kit, &opened[1]);
    ck_assert_uint_eq(kit_stats(&s.kit).open_loads, 0);
    ck_assert_uint_eq(kit_stats(&s.kit).bytes_loaded[TIER_GPU], 10 * (512 + 1024 + 2048));
    kit_close(&s.kit);
}
END_TEST

/* Prompts of one step of an engine, or the groups of one model: each brings its own slices. */
static struct slicekit_call *call_two(uint64_t id, uint32_t i, const uint32_t (*ranges)[2])
{
    struct store_save_entry e[2];
    const struct store_save req = {.entries = e,
                                   .n_entries = 2,
                                   .checksums = true,
                                   .notify = true,
                                   .save = id,
                                   .request = 1000 + i,
                                   .by_daemon = kit_daemon_copies()};

    e[0] = slicekit_entry(&s, 40, ranges[0][0], ranges[0][1]);
    e[1] = (struct store_save_entry){.part = s.kit.part,
                                     .epoch = s.kit.epoch,
                                     .keys = s.keys + 500 * KVC_KEY_BYTES,
                                     .n_keys = 50,
                                     .first_slice = ranges[1][0],
                                     .n_slices = ranges[1][1]};
    return slicekit_ask(&s, s.worker, &req, i);
}

/* Entry 0 has four slices, entry 1 two; chunk 0 has blocks of both. */
START_TEST(S9_several_entries_each_by_its_slices)
{
    const uint32_t ranges[4][2][2] = {
        {{0, 1}, {2, 0}}, {{1, 2}, {0, 1}}, {{4, 0}, {1, 1}}, {{3, 0}, {2, 0}}};
    const uint32_t none[2][2] = {{4, 0}, {2, 0}}, twice[2][2] = {{4, 0}, {1, 1}},
                   beyond[2][2] = {{5, 0}, {0, 1}};
    uint64_t id = 0;

    slicekit_open(&s, 64);
    for (uint32_t i = 0; i < 4; i++) {
        struct slicekit_call *c = call_two(id, i, ranges[i]);

        ck_assert_int_eq(c->status, KVC_OK);
        id = c->result.save;
        ck_assert_uint_eq(c->result.n_chunks, 2);
        ck_assert_uint_eq(c->result.first_chunk, 2 * i);
        ck_assert_mem_eq(c->states, s.calls[0].states, sizeof(c->states));
        slicekit_check_places(c->locations, s.calls[0].locations, 90);
        ck_assert_int_eq(call_two(id, 4, none)->status, KVC_E_INVALID);
        ck_assert_str_eq(s.kit.why.field, "entries[0].slices");
        ck_assert_int_eq(call_two(id, 4, beyond)->status, KVC_E_INVALID);
        ck_assert_str_eq(s.kit.why.field, "entries[0].slices");
        ck_assert_uint_eq(slicekit_found(&s, 0, 40), 0);
        /* The last call's last chunk waits for the first (S13). */
        for (uint32_t k = 2; k-- > 0;)
            slicekit_prove(&s, c, k, 1);
    }
    ck_assert_int_eq(call_two(id, 4, twice)->status, KVC_E_UNKNOWN);
    ck_assert_uint_eq(slicekit_found(&s, 0, 40), 40);
    ck_assert_uint_eq(kit_probe(&s.kit, s.worker, 500, 50), 50);
    ck_assert_uint_eq(s.kit.n_done, 1);
    ck_assert_uint_eq(s.kit.done[0].published, 90);
    kit_close(&s.kit);
}
END_TEST

START_TEST(S9_slices_of_several_entries_come_once)
{
    const uint32_t first[2][2] = {{0, 1}, {0, 1}}, again[2][2] = {{1, 1}, {0, 0}},
                   rest[2][2] = {{1, 0}, {1, 0}};
    uint64_t id;

    slicekit_open(&s, 64);
    id = call_two(0, 0, first)->result.save;
    ck_assert_int_eq(call_two(id, 1, again)->status, KVC_E_DUPLICATE);
    ck_assert_str_eq(s.kit.why.field, "entries[1].slices");
    /* The refusal has claimed nothing of the entry before it. */
    ck_assert_int_eq(call_two(id, 1, rest)->status, KVC_OK);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++)
            slicekit_prove(&s, &s.calls[i], k, 1);
    ck_assert_uint_eq(s.kit.n_done, 1);
    ck_assert_uint_eq(s.kit.done[0].published, 90);
    kit_close(&s.kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/slices", CHECK_UNIT_S,
                 {S9_every_call_gets_the_same_slots, 0, 0, CHECK_BOTH_WAYS},
                 {S9_published_with_the_last_slice_and_never_before, 0, 0, CHECK_BOTH_WAYS},
                 {S9_pending_for_everybody_else, 0, 0, CHECK_BOTH_WAYS},
                 {S9_calls_that_are_refused, 0, 0, CHECK_BOTH_WAYS},
                 {S9_several_entries_each_by_its_slices, 0, 0, CHECK_BOTH_WAYS},
                 {S9_slices_of_several_entries_come_once, 0, 0, CHECK_BOTH_WAYS},
                 {S9_no_words_for_another_call, 0, 0},
                 {S38_a_load_of_a_range, 0, 0, CHECK_BOTH_WAYS})
