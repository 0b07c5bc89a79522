/* The pool of blocks and its index: found exactly when added, whatever the order and the size. */
#include <string.h>

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/store/block.h"
#include "daemon/store/slots.h"
#include "tests/lib/check_main.h"

#define SLOT_BYTES KVC_SLOT_BYTES_MIN

/* A table with one tenant and two parts, and the slots of its host tier. */
struct world {
    struct table *table;
    struct slots *slots;
    struct blocks *blocks;
    uint32_t tenant, part, other;
};

static void world_open(struct world *w, uint64_t blocks)
{
    const uint64_t budget[TIER_COUNT] = {0, (blocks + 4096) * SLOT_BYTES};
    const uint32_t slice = SLOT_BYTES;
    const uint8_t digest[KVC_NAMESPACE_BYTES] = {1};
    struct table_part part = {0};

    ck_assert_int_eq(table_create(budget, 1, &w->table), KVC_OK);
    ck_assert_int_eq(table_add_tenant(w->table, "t", 1, &w->tenant), KVC_OK);
    ck_assert_int_eq(table_add_namespace(w->table, w->tenant, digest, NULL, &part.namespace_),
                     KVC_OK);
    ck_assert_int_eq(table_add_layout(w->table, 16, &slice, 1, NULL, &part.layout), KVC_OK);
    ck_assert_int_eq(table_add_part(w->table, &part, &w->part), KVC_OK);
    part.rule = 2;
    ck_assert_int_eq(table_add_part(w->table, &part, &w->other), KVC_OK);
    ck_assert_int_eq(slots_create(w->table, TIER_HOST, &w->slots), KVC_OK);
    slots_grant(w->slots, w->tenant, UINT32_MAX);
    ck_assert_int_eq(blocks_create(w->table, &w->blocks), KVC_OK);
}

static void world_close(struct world *w)
{
    blocks_destroy(w->blocks);
    slots_destroy(w->slots);
    table_destroy(w->table);
}

static void make_key(uint64_t n, uint8_t key[KVC_KEY_BYTES])
{
    memset(key, 0, KVC_KEY_BYTES);
    memcpy(key, &n, sizeof(n));
}

static kvc_status try_add(struct world *w, uint32_t part, uint64_t n, uint32_t *id)
{
    uint32_t slot;
    struct table_slot *record;
    kvc_status status;

    ck_assert(slots_take(w->slots, w->tenant, SLOT_BYTES, NULL, &slot));
    record = slots_record(w->slots, slot);
    make_key(n, record->key);
    record->part = part;
    record->epoch = table_namespace(w->table, table_part(w->table, part)->namespace_)->epoch;
    status = blocks_add(w->blocks, part, TIER_HOST, slot, id);
    if (status)
        slots_give(w->slots, slot);
    else
        table_slot_set_state(record, SLOT_FILLING);
    return status;
}

static uint32_t add(struct world *w, uint32_t part, uint64_t n)
{
    uint32_t id = BLOCK_NONE;

    ck_assert_int_eq(try_add(w, part, n, &id), KVC_OK);
    return id;
}

static void drop(struct world *w, uint32_t id)
{
    uint32_t slot = blocks_get(w->blocks, id)->slot[TIER_HOST];

    blocks_unlink(w->blocks, id);
    table_slot_set_state(slots_record(w->slots, slot), SLOT_FREE);
    slots_give(w->slots, slot);
    blocks_drop(w->blocks, id);
}

static uint32_t find(const struct world *w, uint32_t part, uint64_t n)
{
    uint8_t key[KVC_KEY_BYTES];

    make_key(n, key);
    return blocks_find(w->blocks, part, key);
}

static void check(const struct world *w)
{
    const char *why = blocks_check(w->blocks);

    ck_assert_msg(!why, "%s", why);
    why = slots_check(w->slots);
    ck_assert_msg(!why, "%s", why);
}

START_TEST(test_add_find_drop)
{
    struct world w;
    uint32_t a, b;

    world_open(&w, 16);
    ck_assert_uint_eq(find(&w, w.part, 1), BLOCK_NONE);
    a = add(&w, w.part, 1);
    ck_assert_uint_eq(find(&w, w.part, 1), a);
    ck_assert_uint_eq(find(&w, w.other, 1), BLOCK_NONE);
    b = add(&w, w.other, 1);
    ck_assert_uint_ne(a, b);
    ck_assert_uint_eq(find(&w, w.other, 1), b);
    ck_assert_uint_eq(blocks_count(w.blocks), 2);
    ck_assert_int_eq(blocks_get(w.blocks, a)->state, BLOCK_FILLING);
    check(&w);
    drop(&w, a);
    ck_assert_uint_eq(find(&w, w.part, 1), BLOCK_NONE);
    ck_assert_uint_eq(find(&w, w.other, 1), b);
    ck_assert_uint_eq(add(&w, w.part, 2), a); /* the id is used again */
    check(&w);
    world_close(&w);
}
END_TEST

/* A key can be saved again as soon as its namespace was flushed. */
START_TEST(test_another_epoch_is_not_found)
{
    struct world w;
    uint32_t old, new;

    world_open(&w, 16);
    old = add(&w, w.part, 1);
    ck_assert(!blocks_is_stale(w.blocks, old));
    table_namespace(w.table, table_part(w.table, w.part)->namespace_)->epoch++;
    ck_assert(blocks_is_stale(w.blocks, old));
    ck_assert_uint_eq(find(&w, w.part, 1), BLOCK_NONE);
    check(&w);
    new = add(&w, w.part, 1);
    ck_assert_uint_eq(find(&w, w.part, 1), new);
    ck_assert_uint_eq(
        blocks_of_slot(w.blocks, TIER_HOST, blocks_get(w.blocks, old)->slot[TIER_HOST]), old);
    ck_assert_uint_eq(
        blocks_of_slot(w.blocks, TIER_HOST, blocks_get(w.blocks, new)->slot[TIER_HOST]), new);
    check(&w);
    drop(&w, old);
    ck_assert_uint_eq(find(&w, w.part, 1), new);
    check(&w);
    world_close(&w);
}
END_TEST

START_TEST(test_unlinked_is_not_found_but_kept)
{
    struct world w;
    uint32_t id, again;

    world_open(&w, 16);
    id = add(&w, w.part, 7);
    blocks_unlink(w.blocks, id);
    ck_assert_uint_eq(find(&w, w.part, 7), BLOCK_NONE);
    ck_assert_int_eq(blocks_get(w.blocks, id)->state, BLOCK_DOOMED);
    again = add(&w, w.part, 7);
    ck_assert_uint_ne(again, id);
    ck_assert_uint_eq(find(&w, w.part, 7), again);
    blocks_drop(w.blocks, id);
    ck_assert_uint_eq(find(&w, w.part, 7), again);
    world_close(&w);
}
END_TEST

/* The key is read from whichever slot the block has. */
START_TEST(test_found_after_its_first_slot_went)
{
    const uint64_t budget[TIER_COUNT] = {4 << 20, 4 << 20};
    struct world w;
    struct slots *gpu;
    struct block *block;
    uint32_t id, slot, host;

    world_open(&w, 16);
    blocks_destroy(w.blocks);
    slots_destroy(w.slots);
    table_destroy(w.table);
    ck_assert_int_eq(table_create(budget, 1, &w.table), KVC_OK);
    ck_assert_int_eq(slots_create(w.table, TIER_HOST, &w.slots), KVC_OK);
    ck_assert_int_eq(slots_create(w.table, TIER_GPU, &gpu), KVC_OK);
    ck_assert_int_eq(blocks_create(w.table, &w.blocks), KVC_OK);
    slots_grant(w.slots, 0, UINT32_MAX);
    slots_grant(gpu, 0, UINT32_MAX);

    id = add(&w, 1, 5);
    block = blocks_get(w.blocks, id);
    host = block->slot[TIER_HOST];
    ck_assert(slots_take(gpu, 0, SLOT_BYTES, NULL, &slot));
    memcpy(slots_record(gpu, slot)->key, slots_record(w.slots, host)->key, KVC_KEY_BYTES);
    slots_record(gpu, slot)->part = 1;
    slots_record(gpu, slot)->epoch = slots_record(w.slots, host)->epoch;
    table_slot_set_state(slots_record(gpu, slot), SLOT_MOVING);
    block->slot[TIER_GPU] = slot;
    ck_assert_uint_eq(find(&w, 1, 5), id);
    check(&w);
    block->slot[TIER_HOST] = SLOT_NONE;
    memset(slots_record(w.slots, host)->key, 0xff, KVC_KEY_BYTES);
    ck_assert_uint_eq(find(&w, 1, 5), id);
    blocks_unlink(w.blocks, id);
    ck_assert_uint_eq(find(&w, 1, 5), BLOCK_NONE);
    blocks_drop(w.blocks, id);
    slots_destroy(gpu);
    world_close(&w);
}
END_TEST

/* Through all sizes of segments and directories, with removals in another order than insertions. */
START_TEST(test_grows_and_shrinks)
{
    const uint32_t n = 30000;
    struct world w;
    uint32_t *ids = calloc(n, sizeof(*ids));

    world_open(&w, n);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = add(&w, w.part, i);
        if (i % 1000 == 0)
            check(&w);
    }
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(find(&w, w.part, i), ids[i]);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(find(&w, w.part, n + i), BLOCK_NONE);
    for (uint32_t i = 0; i < n; i++)
        drop(&w, ids[i * 7919ull % n]);
    ck_assert_uint_eq(blocks_count(w.blocks), 0);
    check(&w);
    world_close(&w);
    free(ids);
}
END_TEST

/* Blocks come and go at a constant number: memory stays what it was. */
START_TEST(test_churn_keeps_its_memory)
{
    const uint32_t n = 4000;
    struct world w;
    uint32_t *ids = calloc(n, sizeof(*ids));
    uint64_t before;

    world_open(&w, n);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = add(&w, w.part, i);
    before = blocks_bytes(w.blocks);
    for (uint32_t i = n; i < 20 * n; i++) {
        drop(&w, ids[i % n]);
        ids[i % n] = add(&w, w.part, i);
    }
    check(&w);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(find(&w, w.part, 19 * n + i), ids[i]);
    ck_assert_uint_eq(blocks_limit(w.blocks), n);
    ck_assert_uint_le(blocks_bytes(w.blocks), before + n * 6);
    world_close(&w);
    free(ids);
}
END_TEST

struct stopper {
    uint32_t at;
    uint32_t calls;
};

static bool stop_at(void *arg, uint32_t id)
{
    struct stopper *s = arg;

    s->calls++;
    return id == s->at;
}

/* A run over n keys, of which number `missing` is absent. */
static void run(const struct world *w, uint32_t n, uint32_t missing, const uint32_t *ids)
{
    uint8_t *keys = calloc(n, KVC_KEY_BYTES);
    uint32_t *found = calloc(n, sizeof(*found));
    struct stopper s = {.at = BLOCK_NONE};
    uint32_t expected = missing < n ? missing : n;

    for (uint32_t i = 0; i < n; i++)
        make_key(i == missing ? 1u << 30 : i, keys + i * KVC_KEY_BYTES);
    ck_assert_uint_eq(blocks_find_run(w->blocks, w->part, keys, n, NULL, NULL, found), expected);
    ck_assert_mem_eq(found, ids, expected * sizeof(*ids));
    ck_assert_uint_eq(blocks_find_run(w->blocks, w->part, keys, n, stop_at, &s, found), expected);
    ck_assert_uint_eq(s.calls, missing < n ? expected + 1 : n);
    if (expected > 2) {
        s.at = ids[expected / 2];
        ck_assert_uint_eq(blocks_find_run(w->blocks, w->part, keys, n, stop_at, &s, found),
                          expected / 2);
    }
    free(found);
    free(keys);
}

START_TEST(test_find_run)
{
    const uint32_t lengths[] = {0, 1, 2, 31, 32, 33, 64, 1000};
    struct world w;
    uint32_t ids[1000];

    world_open(&w, 1000);
    for (uint32_t i = 0; i < 1000; i++)
        ids[i] = add(&w, w.part, i);
    for (uint32_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
        uint32_t n = lengths[l];

        run(&w, n, UINT32_MAX, ids);
        for (uint32_t missing = 0; missing<n; missing += n> 100 ? 61 : 1)
            run(&w, n, missing, ids);
    }
    world_close(&w);
}
END_TEST

/* stop() decides about absent keys too: a caller can go on behind one. */
START_TEST(test_find_run_over_absent_keys)
{
    struct world w;
    uint8_t keys[3 * KVC_KEY_BYTES];
    uint32_t found[3], id;
    struct stopper s = {.at = 12345};

    world_open(&w, 16);
    id = add(&w, w.part, 2);
    for (uint32_t i = 0; i < 3; i++)
        make_key(i + 1, keys + i * KVC_KEY_BYTES);
    ck_assert_uint_eq(blocks_find_run(w.blocks, w.part, keys, 3, stop_at, &s, found), 3);
    ck_assert_uint_eq(found[0], BLOCK_NONE);
    ck_assert_uint_eq(found[1], id);
    ck_assert_uint_eq(found[2], BLOCK_NONE);
    world_close(&w);
}
END_TEST

/* However an allocation fails, nothing changed and the next try works. */
START_TEST(test_allocation_failures)
{
    struct world w;
    uint32_t id, failures = 0;

    world_open(&w, 20000);
    for (uint32_t i = 0; i < 20000; i++) {
        uint64_t count = blocks_count(w.blocks), bytes = blocks_bytes(w.blocks);

        for (uint32_t k = 0;; k++) {
            fault_arm("mem.alloc", k, 1);
            if (try_add(&w, w.part, i, &id) == KVC_OK)
                break;
            failures++;
            ck_assert_uint_eq(find(&w, w.part, i), BLOCK_NONE);
            ck_assert_uint_eq(blocks_count(w.blocks), count);
            /* A longer array or directory may stay: both are used by the next try. */
            ck_assert_uint_le(blocks_bytes(w.blocks), bytes * 2 + 4096);
            if (i % 50 == 0)
                check(&w);
        }
        fault_off("*");
    }
    ck_assert_uint_gt(failures, 200);
    check(&w);
    for (uint32_t i = 0; i < 20000; i++)
        ck_assert_uint_ne(find(&w, w.part, i), BLOCK_NONE);
    world_close(&w);
}
END_TEST

START_TEST(test_create_out_of_memory)
{
    const uint64_t budget[TIER_COUNT] = {0, 4 << 20};
    struct table *table;
    struct blocks *blocks = NULL;
    kvc_status status = KVC_E_NO_MEMORY;
    uint32_t k;

    ck_assert_int_eq(table_create(budget, 1, &table), KVC_OK);
    for (k = 0; status; k++) {
        fault_arm("mem.alloc", k, 1);
        status = blocks_create(table, &blocks);
        fault_off("*");
        ck_assert(status == KVC_OK || (status == KVC_E_NO_MEMORY && !blocks));
    }
    ck_assert_uint_ge(k, 3);
    blocks_destroy(blocks);
    blocks_destroy(NULL);
    table_destroy(table);
}
END_TEST

/* 64 (record) + 44 (block) + the index, and nothing for slots: promised are at most 128. */
START_TEST(test_metadata_per_slot)
{
    const uint32_t n = 100000;
    struct world w;
    uint64_t live = mem_live_bytes();
    double worst = 0;

    world_open(&w, n);
    for (uint32_t i = 0; i < n; i++) {
        add(&w, w.part, i);
        if (i >= 10000 && i % 1000 == 0) {
            double each = (double)(mem_live_bytes() - live) / (i + 1) + sizeof(struct table_slot);

            worst = each > worst ? each : worst;
        }
    }
    ck_assert_msg(worst <= 128, "%.1f bytes a slot", worst);
    ck_assert_uint_le(blocks_bytes(w.blocks), mem_live_bytes() - live);
    ck_assert_uint_ge(blocks_bytes(w.blocks), n * sizeof(struct block));
    world_close(&w);
}
END_TEST

CHECK_MAIN("store/blocks", CHECK_LIFE_S, test_add_find_drop, test_another_epoch_is_not_found,
           test_unlinked_is_not_found_but_kept, test_found_after_its_first_slot_went,
           test_grows_and_shrinks, test_churn_keeps_its_memory, test_find_run,
           test_find_run_over_absent_keys, test_allocation_failures, test_create_out_of_memory,
           test_metadata_per_slot)
