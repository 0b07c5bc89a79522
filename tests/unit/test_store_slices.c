/* Saves and loads by slices: layer by layer. */
#include <string.h>
#include <sys/mman.h>

#include "daemon/base/clock.h"
#include "tests/lib/check_main.h"
#include "tests/lib/storekit.h"

#define SLICES 4u
#define KEYS   100u /* two chunks */

static struct kit kit;
static struct kit_owner *worker;
static struct store_part_info part;
static uint8_t keys[KIT_KEYS * KVC_KEY_BYTES];

struct call {
    kvc_status status;
    struct kit_copy *copy; /* NULL: the worker copies */
    uint8_t states[KIT_KEYS];
    struct store_location locations[KIT_KEYS];
    struct store_chunk chunks[KIT_KEYS];
    struct store_save_result result;
};
static struct call calls[SLICES + 1];

static void add_part(struct kit_owner *owner)
{
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {40};
    const uint32_t slices[SLICES] = {512, 512, 1024, 2048};
    const struct store_part desc = {
        .namespace_digest = digest, .slice_bytes = slices, .n_slices = SLICES, .block_tokens = 16};

    ck_assert_int_eq(store_register(kit.store, owner->owner, &desc, &part, &kit.why), KVC_OK);
    kit_map_all(&kit, owner);
}

static void begin(void)
{
    kit_open(&kit, &(struct kit_config){.gpu_slots = 16, .host_slots = 0});
    worker = kit_worker(&kit);
    add_part(worker);
    kit_keys(0, KIT_KEYS, keys);
}

static struct store_save_entry entry(uint32_t n, uint32_t first, uint32_t slices)
{
    return (struct store_save_entry){.part = part.part,
                                     .epoch = part.epoch,
                                     .keys = keys,
                                     .n_keys = n,
                                     .first_slice = first,
                                     .n_slices = slices};
}

/* A call of a save, with its answer in calls[i]; save 0 begins one. */
static struct call *ask(struct kit_owner *owner, const struct store_save *req, uint32_t i)
{
    struct call *c = &calls[i];
    struct save *open;
    uint32_t short_of;

    memset(c, 0, sizeof(*c));
    c->result = (struct store_save_result){
        .states = c->states, .locations = c->locations, .chunks = c->chunks};
    if (req->save != 0) {
        c->status = store_save_slices(kit.store, owner->owner, req, &open, &c->result, &kit.why);
    } else {
        c->status = store_save_open(kit.store, owner->owner, req, &open, &short_of, &kit.why);
        if (c->status == KVC_OK)
            store_save_seal(kit.store, open, &c->result);
    }
    if (c->status == KVC_OK && c->result.save != 0 && req->by_daemon)
        c->copy = kit_copy(&kit, open, &c->result);
    kit_check(&kit);
    return c;
}

static struct call *call(struct kit_owner *owner, uint64_t id, uint32_t i, uint32_t n,
                         uint32_t first, uint32_t slices)
{
    struct store_save_entry e = entry(n, first, slices);
    struct store_save req = {.entries = &e,
                             .n_entries = 1,
                             .checksums = true,
                             .notify = true,
                             .save = id,
                             .request = 1000 + i,
                             .by_daemon = kit_daemon_copies()};

    return ask(owner, &req, i);
}

/* Chunk k of a call has been copied, with cells that say `sum` for every block. */
static void prove(const struct call *c, uint32_t k, uint64_t sum)
{
    uint8_t *page = worker->page + c->chunks[k].word * KVC_PAGE_STRIDE;
    uint64_t cells[KVC_CHUNK_BLOCKS];

    for (uint32_t i = 0; i < c->chunks[k].blocks; i++)
        cells[i] = sum;
    if (c->copy) {
        kit_tell_copy(&kit, c->copy, k, cells, KVC_OK);
    } else {
        memcpy(page, cells, c->chunks[k].blocks * sizeof(cells[0]));
        kit_word(&kit, worker, c->chunks[k].word, c->chunks[k].number);
    }
    kit_tick(&kit);
}

static uint32_t found(uint32_t first, uint32_t n)
{
    struct store_lookup_part p = {part.part, part.epoch, keys + first * KVC_KEY_BYTES, n};
    struct store_lookup req = {.parts = &p, .n_parts = 1, .probe = true};
    struct store_lookup_result result;

    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &req, &result, &kit.why), KVC_OK);
    return result.count;
}

static void check_places(const struct store_location *a, const struct store_location *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(a[i].tier, b[i].tier);
        ck_assert_uint_eq(a[i].offset, b[i].offset);
        ck_assert_uint_eq(a[i].generation, b[i].generation);
        ck_assert_uint_eq(a[i].checksum, b[i].checksum);
    }
}

static struct kit_load opened[2];

/* Of the worker, by whoever copies. */
static void open_load(const struct store_load *req, struct kit_load *load)
{
    ck_assert_int_eq(kit_try_load(&kit, worker, req, load), KVC_OK);
}

static uint64_t first_call(void)
{
    struct call *c = call(worker, 0, 0, KEYS, 0, 1);

    ck_assert_int_eq(c->status, KVC_OK);
    ck_assert_uint_eq(c->result.n_chunks, 2);
    return c->result.save;
}

START_TEST(S9_every_call_gets_the_same_slots)
{
    uint64_t id;

    begin();
    id = first_call();
    for (uint32_t i = 1; i < SLICES; i++) {
        struct call *c = call(worker, id, i, KEYS, i, 1);

        ck_assert_int_eq(c->status, KVC_OK);
        ck_assert_uint_eq(c->result.save, id);
        ck_assert_uint_eq(c->result.n_chunks, 2);
        ck_assert_mem_eq(c->states, calls[0].states, sizeof(c->states));
        check_places(c->locations, calls[0].locations, KEYS);
        for (uint32_t k = 0; k < 2; k++) {
            ck_assert_uint_eq(c->chunks[k].blocks, calls[0].chunks[k].blocks);
            ck_assert_int_eq(c->chunks[k].number != calls[0].chunks[k].number, !c->copy);
            ck_assert_int_eq(c->chunks[k].word != calls[0].chunks[k].word, !c->copy);
        }
    }
    for (uint32_t i = 0; i < SLICES; i++)
        for (uint32_t k = 0; k < 2; k++)
            prove(&calls[i], k, 1);
    ck_assert_uint_eq(found(0, KEYS), KEYS);
    kit_close(&kit);
}
END_TEST

START_TEST(S9_published_with_the_last_slice_and_never_before)
{
    const uint64_t sums[SLICES] = {10, 200, 3000, 40000};
    struct store_load load;
    struct store_lookup_part p;
    struct store_lookup req = {.parts = &p, .n_parts = 1};
    struct store_lookup_result result;
    uint64_t id;

    begin();
    id = first_call();
    prove(&calls[0], 0, sums[0]);
    prove(&calls[0], 1, sums[0]);
    ck_assert_int_eq(call(worker, id, 1, KEYS, 3, 1)->status, KVC_OK);
    prove(&calls[1], 0, sums[3]);
    prove(&calls[1], 1, sums[3]);
    ck_assert_int_eq(call(worker, id, 2, KEYS, 1, 2)->status, KVC_OK);
    ck_assert_uint_eq(found(0, KEYS), 0);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KEYS);
    /* The second chunk first: it waits for the first (S13). */
    prove(&calls[2], 1, sums[1] + sums[2]);
    ck_assert_uint_eq(found(0, KEYS), 0);
    ck_assert_uint_eq(kit.n_done, 0);
    prove(&calls[2], 0, sums[1] + sums[2]);
    ck_assert_uint_eq(found(0, KEYS), KEYS);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(kit.done[0].published, KEYS);
    ck_assert_uint_eq(kit_stats(&kit).bytes_saved[TIER_GPU], KEYS * 4096ull);
    /* Each slice has added its checksum once. */
    p = (struct store_lookup_part){part.part, part.epoch, keys, KEYS};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &req, &result, &kit.why), KVC_OK);
    load = (struct store_load){
        .lease = result.lease, .part = part.part, .epoch = part.epoch, .count = KEYS};
    open_load(&load, &opened[0]);
    for (uint32_t i = 0; i < KEYS; i++) {
        ck_assert(opened[0].locations[i].checked);
        ck_assert_uint_eq(opened[0].locations[i].checksum, 43210);
    }
    kit_close_load(&kit, &opened[0]);
    kit_close(&kit);
}
END_TEST

START_TEST(S9_pending_for_everybody_else)
{
    struct kit_owner *other;
    struct call *c;
    uint64_t id;

    begin();
    other = kit_worker(&kit);
    add_part(other);
    id = first_call();
    prove(&calls[0], 0, 1);
    prove(&calls[0], 1, 1);
    c = call(other, 0, 1, KEYS, 0, 0);
    ck_assert_int_eq(c->status, KVC_OK);
    ck_assert_uint_eq(c->result.save, 0);
    for (uint32_t i = 0; i < KEYS; i++)
        ck_assert_int_eq(c->states[i], STORE_KEY_PENDING);
    c = call(worker, 0, 1, KEYS, 1, 1); /* also for the session itself, in another save */
    ck_assert_uint_eq(c->result.save, 0);
    ck_assert_int_eq(call(other, id, 2, KEYS, 1, 1)->status, KVC_E_UNKNOWN);
    ck_assert_str_eq(kit.why.field, "save");
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 3)->status, KVC_OK);
    prove(&calls[1], 0, 1);
    prove(&calls[1], 1, 1);
    ck_assert_uint_eq(found(0, KEYS), KEYS);
    kit_close(&kit);
}
END_TEST

START_TEST(S9_calls_that_are_refused)
{
    struct store_save_entry e;
    struct store_save req = {.entries = &e, .n_entries = 1};
    struct kit_save whole;
    struct save *open;
    uint64_t id, before;

    begin();
    id = first_call();
    before = kit_stats(&kit).filling_slots;
#define REFUSED(expected, name, ...)                                                               \
    do {                                                                                           \
        e = entry(KEYS, 1, 1);                                                                     \
        req.save = id;                                                                             \
        req.checksums = true;                                                                      \
        req.n_entries = 1;                                                                         \
        req.by_daemon = kit_daemon_copies();                                                       \
        __VA_ARGS__;                                                                               \
        ck_assert_int_eq(                                                                          \
            store_save_slices(kit.store, worker->owner, &req, &open, &calls[1].result, &kit.why),  \
            expected);                                                                             \
        ck_assert_str_eq(kit.why.field, name);                                                     \
        kit_check(&kit);                                                                           \
    } while (0)
    REFUSED(KVC_E_UNKNOWN, "save", req.save = id + 1);
    REFUSED(KVC_E_DUPLICATE, "entries[0].slices", e.first_slice = 0);
    REFUSED(KVC_E_DUPLICATE, "entries[0].slices", e.first_slice = 0; e.n_slices = 0);
    REFUSED(KVC_E_INVALID, "entries[0].slices", e.first_slice = SLICES);
    REFUSED(KVC_E_INVALID, "entries[0].slices", e.n_slices = SLICES);
    REFUSED(KVC_E_INVALID, "entries[0].slices", e.n_slices = ~0u);
    REFUSED(KVC_E_INVALID, "entries[0].keys", e.n_keys--);
    REFUSED(KVC_E_INVALID, "entries[0].keys", e.keys += KVC_KEY_BYTES);
    REFUSED(KVC_E_STALE, "entries[0].epoch", e.epoch++);
    REFUSED(KVC_E_INVALID, "entries[0].part", e.part = kit.part; e.epoch = kit.epoch);
    REFUSED(KVC_E_INVALID, "entries", req.n_entries = 0);
    REFUSED(KVC_E_INVALID, "checksums", req.checksums = false);
    REFUSED(KVC_E_INVALID, "region", req.by_daemon = !req.by_daemon);
    kit_save(&kit, worker, 500, 2, &whole);
    REFUSED(KVC_E_INVALID, "save", req.save = whole.result.save);
#undef REFUSED
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, before + 2);
    ck_assert_int_eq(kit_abort(&kit, &whole, true), 0);
    kit_close(&kit);
}
END_TEST

/* What has ended is told once, also to who cancels it before that was told. */
START_TEST(S16_an_abort_between_the_end_and_its_report)
{
    struct save_outcome outcome;
    bool pending;
    uint64_t id;

    begin();
    id = first_call();
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 0)->status, KVC_OK);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++) {
            if (calls[i].copy)
                kit_tell_copy(&kit, calls[i].copy, k, NULL, KVC_OK);
            else
                kit_word(&kit, worker, calls[i].chunks[k].word, calls[i].chunks[k].number);
        }
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    ck_assert_uint_eq(kit.n_done, 0);
    ck_assert_int_eq(
        store_abort(kit.store, worker->owner, id, 0, NULL, 0, false, &pending, &outcome, &kit.why),
        KVC_OK);
    ck_assert(pending);
    kit_tick(&kit);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_OK);
    ck_assert_uint_eq(kit.done[0].published, KEYS);
    ck_assert_int_eq(
        store_abort(kit.store, worker->owner, id, 0, NULL, 0, false, &pending, &outcome, &kit.why),
        KVC_E_UNKNOWN);
    kit_close(&kit);
}
END_TEST

/* _i: at which of its words the save fails; what is waited for is in quarantine, the rest free. */
START_TEST(S14_all_calls_are_one_and_fail_together)
{
    struct save_outcome outcome;
    uint32_t order[6][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}};
    uint32_t owed[2] = {3, 3};
    bool pending;
    uint64_t id;

    begin();
    id = first_call();
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 1)->status, KVC_OK);
    ck_assert_int_eq(call(worker, id, 2, KEYS, 2, 1)->status, KVC_OK);
    for (int i = 0; i < _i; i++) {
        prove(&calls[order[i][0]], order[i][1], 1);
        owed[order[i][1]]--;
    }
    ck_assert_int_eq(
        store_abort(kit.store, worker->owner, id, 0, NULL, 0, false, &pending, &outcome, &kit.why),
        KVC_OK);
    kit_check(&kit);
    ck_assert_int_eq(pending, _i < 6);
    ck_assert_uint_eq(outcome.dropped, KEYS);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots,
                      (owed[0] > 0 ? KVC_CHUNK_BLOCKS : 0) +
                          (owed[1] > 0 ? KEYS - KVC_CHUNK_BLOCKS : 0));
    ck_assert_int_eq(call(worker, id, 3, KEYS, 3, 1)->status, KVC_E_UNKNOWN);
    for (int i = _i; i < 6; i++) {
        prove(&calls[order[i][0]], order[i][1], 1);
        clock_advance(CLOCK_S_US);
        kit_tick(&kit);
        owed[order[i][1]]--;
        ck_assert_uint_eq(kit_stats(&kit).quarantined_slots,
                          (owed[0] > 0 ? KVC_CHUNK_BLOCKS : 0) +
                              (owed[1] > 0 ? KEYS - KVC_CHUNK_BLOCKS : 0));
    }
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(found(0, KEYS), 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S14_a_call_that_was_never_enqueued)
{
    struct save_outcome outcome;
    const uint32_t never[] = {2, 3};
    bool pending;
    uint64_t id;

    begin();
    id = first_call();
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 1)->status, KVC_OK);
    /* By number, chunks counted through both calls: the first call's words are still owed. */
    ck_assert_int_eq(store_abort(kit.store, worker->owner, id, 0, (const uint32_t[]){4}, 1, false,
                                 &pending, &outcome, &kit.why),
                     KVC_E_INVALID);
    ck_assert_str_eq(kit.why.field, "never[0]");
    if (_i == 0)
        ck_assert_int_eq(store_abort(kit.store, worker->owner, id, 0, never, 2, false, &pending,
                                     &outcome, &kit.why),
                         KVC_OK);
    else /* or by the name of the call's request */
        ck_assert_int_eq(store_abort(kit.store, worker->owner, 0, 1001, NULL, 0, true, &pending,
                                     &outcome, &kit.why),
                         KVC_OK);
    kit_check(&kit);
    ck_assert(pending);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, KEYS);
    prove(&calls[1], 0, 1); /* means nothing any more */
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, KEYS);
    prove(&calls[0], 0, 1);
    prove(&calls[0], 1, 1);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    kit_close(&kit);
}
END_TEST

START_TEST(S14_between_the_calls)
{
    uint64_t id;

    begin();
    id = first_call();
    prove(&calls[0], 0, 1);
    prove(&calls[0], 1, 1);
    /* Nothing is owed, and it has not ended. Each call gives it its time anew. */
    clock_advance((KVC_SAVE_PROOF_MS - 1000) * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KEYS);
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 1)->status, KVC_OK);
    prove(&calls[1], 0, 1);
    prove(&calls[1], 1, 1);
    clock_advance((KVC_SAVE_PROOF_MS - 1000) * CLOCK_MS_US);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, KEYS);
    if (_i == 0) {
        clock_advance(2 * CLOCK_S_US);
    } else {
        store_owner_end(kit.store, worker->owner);
    }
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    if (_i == 0)
        ck_assert_int_eq(kit.done[0].status, KVC_E_DEADLINE);
    kit_close(&kit);
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

    begin();
    other = kit_worker(&kit);
    kit_put(&kit, other, 3000, 1);
    id = first_call();
    p = (struct store_lookup_part){kit.part, kit.epoch, keys, 1};
    kit_keys(3000, 1, keys + KEYS * KVC_KEY_BYTES);
    p.keys = keys + KEYS * KVC_KEY_BYTES;
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &req, &result, &kit.why), KVC_OK);
    load = (struct store_load){
        .lease = result.lease, .part = kit.part, .epoch = kit.epoch, .count = 1};
    while (opened < KVC_PAGE_WORDS - 3) {
        ck_assert_int_eq(
            store_load(kit.store, worker->owner, &load, &location, &word, &number, &kit.why),
            KVC_OK);
        opened++;
    }
    /* One is left, and two are needed: nothing changes, and nothing is lost. */
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 3)->status, KVC_E_BUSY);
        ck_assert_str_eq(kit.why.field, "word");
    }
    kit_word(&kit, worker, word, number);
    kit_tick(&kit);
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 3)->status, KVC_OK);
    ck_assert_int_eq(store_drained(kit.store, worker->owner, 0, NULL, 0, &kit.why), KVC_OK);
    kit_close(&kit);
}
END_TEST

START_TEST(S38_a_load_of_a_range)
{
    struct store_load load = {.first_slice = 1, .n_slices = 2, .count = 10};
    struct store_lookup_part p;
    struct store_lookup req = {.parts = &p, .n_parts = 1};
    struct store_lookup_result result;
    uint64_t id;

    begin();
    id = first_call();
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 0)->status, KVC_OK);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++)
            prove(&calls[i], k, 7);
    p = (struct store_lookup_part){part.part, part.epoch, keys, KEYS};
    ck_assert_int_eq(store_lookup(kit.store, worker->owner, &req, &result, &kit.why), KVC_OK);
    ck_assert_uint_eq(result.count, KEYS);
    load.lease = result.lease;
    load.part = part.part;
    load.epoch = part.epoch;
    open_load(&load, &opened[0]);
    load.first_slice = 3;
    load.n_slices = 0;
    open_load(&load, &opened[1]);
    /* The same blocks, a word for each call; checksums are of whole blocks. */
    check_places(opened[0].locations, opened[1].locations, 10);
    ck_assert_uint_eq(opened[0].locations[0].checksum, 14);
    ck_assert_int_eq(opened[0].word != opened[1].word, !opened[0].copy);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 2);
    kit_release(&kit, worker, result.lease);
    kit_close_load(&kit, &opened[0]);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 1);
    ck_assert_uint_eq(kit_stats(&kit).bytes_loaded[TIER_GPU], 10 * (512 + 1024));
    kit_close_load(&kit, &opened[1]);
    ck_assert_uint_eq(kit_stats(&kit).open_loads, 0);
    ck_assert_uint_eq(kit_stats(&kit).bytes_loaded[TIER_GPU], 10 * (512 + 1024 + 2048));
    kit_close(&kit);
}
END_TEST

/* Prompts of one step of an engine, or the groups of one model: each brings its own slices. */
static struct call *call_two(uint64_t id, uint32_t i, const uint32_t (*ranges)[2])
{
    struct store_save_entry e[2];
    const struct store_save req = {.entries = e,
                                   .n_entries = 2,
                                   .checksums = true,
                                   .notify = true,
                                   .save = id,
                                   .request = 1000 + i,
                                   .by_daemon = kit_daemon_copies()};

    e[0] = entry(40, ranges[0][0], ranges[0][1]);
    e[1] = (struct store_save_entry){.part = kit.part,
                                     .epoch = kit.epoch,
                                     .keys = keys + 500 * KVC_KEY_BYTES,
                                     .n_keys = 50,
                                     .first_slice = ranges[1][0],
                                     .n_slices = ranges[1][1]};
    return ask(worker, &req, i);
}

/* Entry 0 has four slices, entry 1 two; chunk 0 has blocks of both. */
START_TEST(S9_several_entries_each_by_its_slices)
{
    const uint32_t ranges[4][2][2] = {
        {{0, 1}, {2, 0}}, {{1, 2}, {0, 1}}, {{4, 0}, {1, 1}}, {{3, 0}, {2, 0}}};
    const uint32_t none[2][2] = {{4, 0}, {2, 0}}, twice[2][2] = {{4, 0}, {1, 1}},
                   beyond[2][2] = {{5, 0}, {0, 1}};
    uint64_t id = 0;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 64, .host_slots = 0});
    worker = kit_worker(&kit);
    add_part(worker);
    kit_keys(0, KIT_KEYS, keys);
    for (uint32_t i = 0; i < 4; i++) {
        struct call *c = call_two(id, i, ranges[i]);

        ck_assert_int_eq(c->status, KVC_OK);
        id = c->result.save;
        ck_assert_uint_eq(c->result.n_chunks, 2);
        ck_assert_uint_eq(c->result.first_chunk, 2 * i);
        ck_assert_mem_eq(c->states, calls[0].states, sizeof(c->states));
        check_places(c->locations, calls[0].locations, 90);
        ck_assert_int_eq(call_two(id, 4, none)->status, KVC_E_INVALID);
        ck_assert_str_eq(kit.why.field, "entries[0].slices");
        ck_assert_int_eq(call_two(id, 4, beyond)->status, KVC_E_INVALID);
        ck_assert_str_eq(kit.why.field, "entries[0].slices");
        ck_assert_uint_eq(found(0, 40), 0);
        /* The last call's last chunk waits for the first (S13). */
        for (uint32_t k = 2; k-- > 0;)
            prove(c, k, 1);
    }
    ck_assert_int_eq(call_two(id, 4, twice)->status, KVC_E_UNKNOWN);
    ck_assert_uint_eq(found(0, 40), 40);
    ck_assert_uint_eq(kit_probe(&kit, worker, 500, 50), 50);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_uint_eq(kit.done[0].published, 90);
    kit_close(&kit);
}
END_TEST

START_TEST(S9_slices_of_several_entries_come_once)
{
    const uint32_t first[2][2] = {{0, 1}, {0, 1}}, again[2][2] = {{1, 1}, {0, 0}},
                   rest[2][2] = {{1, 0}, {1, 0}};
    uint64_t id;

    kit_open(&kit, &(struct kit_config){.gpu_slots = 64, .host_slots = 0});
    worker = kit_worker(&kit);
    add_part(worker);
    kit_keys(0, KIT_KEYS, keys);
    id = call_two(0, 0, first)->result.save;
    ck_assert_int_eq(call_two(id, 1, again)->status, KVC_E_DUPLICATE);
    ck_assert_str_eq(kit.why.field, "entries[1].slices");
    /* The refusal has claimed nothing of the entry before it. */
    ck_assert_int_eq(call_two(id, 1, rest)->status, KVC_OK);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 2; k++)
            prove(&calls[i], k, 1);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_uint_eq(kit.done[0].published, 90);
    kit_close(&kit);
}
END_TEST

/* A failing copy of one call ends the save; what runs of the others keeps its slots until it ends.
 */
START_TEST(S14_failed_slices_of_the_daemon)
{
    uint64_t id;

    begin();
    id = first_call();
    ck_assert_int_eq(call(worker, id, 1, KEYS, 1, 1)->status, KVC_OK);
    prove(&calls[0], 0, 1);
    kit_tell_copy(&kit, calls[1].copy, (uint32_t)_i, NULL, KVC_E_DEVICE);
    kit_tick(&kit);
    ck_assert_uint_eq(kit_stats(&kit).filling_slots, 0);
    ck_assert_uint_gt(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit.n_done, 0);
    prove(&calls[1], 1 - (uint32_t)_i, 1);
    prove(&calls[0], 1, 1);
    ck_assert_uint_eq(kit_stats(&kit).quarantined_slots, 0);
    ck_assert_uint_eq(kit_stats(&kit).tier[TIER_GPU].used_slots, 0);
    ck_assert_uint_eq(kit.n_done, 1);
    ck_assert_int_eq(kit.done[0].status, KVC_E_DEVICE);
    ck_assert_uint_eq(found(0, KEYS), 0);
    kit_close(&kit);
}
END_TEST

CHECK_MAIN_LOOPS("store/slices", CHECK_UNIT_S,
                 {S9_every_call_gets_the_same_slots, 0, 0, CHECK_BOTH_WAYS},
                 {S9_published_with_the_last_slice_and_never_before, 0, 0, CHECK_BOTH_WAYS},
                 {S9_pending_for_everybody_else, 0, 0, CHECK_BOTH_WAYS},
                 {S9_calls_that_are_refused, 0, 0, CHECK_BOTH_WAYS},
                 {S9_several_entries_each_by_its_slices, 0, 0, CHECK_BOTH_WAYS},
                 {S9_slices_of_several_entries_come_once, 0, 0, CHECK_BOTH_WAYS},
                 {S14_all_calls_are_one_and_fail_together, 0, 6, CHECK_BOTH_WAYS},
                 {S14_failed_slices_of_the_daemon, 0, 1, CHECK_DAEMON_COPIES},
                 {S14_a_call_that_was_never_enqueued, 0, 1},
                 {S14_between_the_calls, 0, 1, CHECK_BOTH_WAYS},
                 {S9_no_words_for_another_call, 0, 0},
                 {S16_an_abort_between_the_end_and_its_report, 0, 0, CHECK_BOTH_WAYS},
                 {S38_a_load_of_a_range, 0, 0, CHECK_BOTH_WAYS})
