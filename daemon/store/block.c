#include "daemon/store/block.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

/* Inlined for keys of a known length: half the time of a call. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/index.h"
#include "daemon/store/slots.h"

/*
 * Keys come from tenants: the seed, new at each start and told to nobody, keeps them from being
 * chosen to collide.
 */

/* Keys looked up side by side: enough for the misses of one stage to overlap. */
#define FIND_BATCH 32u

struct blocks {
    struct blocks_pool pool;
    const struct table *table;
    struct index index;
    uint64_t seed;
    uint32_t pool_segments, pool_room;
    uint32_t free; /* unused ids, linked through `save` */
};

/* Pinned: a block is most of what the daemon's own memory holds. */
static_assert(sizeof(struct block) == 44, "metadata of a slot");
static_assert(TABLE_PARTS <= UINT16_MAX, "block::part");
static_assert(TABLE_SESSIONS * KVC_SESSION_SAVES_MAX + 1 < 1u << 24, "block::held");

static uint32_t tag_of(const struct blocks *blocks, uint32_t part, const uint8_t *key)
{
    uint64_t seed = blocks->seed + part * 0x9e3779b97f4a7c15ull;

    return (uint32_t)(XXH3_64bits_withSeed(key, KVC_KEY_BYTES, seed) >> 32);
}

/* The record that the key is read from. */
static struct table_slot *key_record(const struct blocks *blocks, const struct block *block)
{
    enum tier_kind tier = block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;

    return &blocks->pool.records[tier][block->slot[tier]];
}

/* Of the part's namespace now. */
static uint32_t epoch_of(const struct blocks *blocks, uint32_t part)
{
    return table_namespace(blocks->table, table_part(blocks->table, part)->namespace_)->epoch;
}

bool blocks_is_stale(const struct blocks *blocks, uint32_t id)
{
    const struct block *block = blocks_get(blocks, id);

    return key_record(blocks, block)->epoch != epoch_of(blocks, block->part);
}

/* A part's blocks of one epoch. */
struct find {
    uint32_t part, epoch;
};

static struct find find_in(const struct blocks *blocks, uint32_t part)
{
    return (struct find){.part = part, .epoch = epoch_of(blocks, part)};
}

static bool is_block_of(const struct blocks *blocks, const struct block *block, struct find in,
                        const uint8_t *key)
{
    const struct table_slot *record;

    if (block->part != in.part)
        return false;
    record = key_record(blocks, block);
    return record->epoch == in.epoch && memcmp(record->key, key, KVC_KEY_BYTES) == 0;
}

static uint32_t find_tagged(const struct blocks *blocks, uint32_t tag, struct find in,
                            const uint8_t *key)
{
    struct index_walk walk = index_seek(&blocks->index, tag);

    for (;; index_next(&walk)) {
        const struct index_bucket *bucket = index_here(&walk);

        for (uint32_t cells = index_have(bucket, tag); cells; cells &= cells - 1) {
            uint32_t id = bucket->id[__builtin_ctz(cells)];

            if (is_block_of(blocks, blocks_get(blocks, id), in, key))
                return id;
        }
        if (index_free(bucket))
            return BLOCK_NONE;
    }
}

uint32_t blocks_of_slot(const struct blocks *blocks, enum tier_kind tier, uint32_t slot)
{
    const struct table_slot *record = &blocks->pool.records[tier][slot];
    const uint32_t tag = tag_of(blocks, record->part, record->key);
    struct index_walk walk = index_seek(&blocks->index, tag);

    for (;; index_next(&walk)) {
        const struct index_bucket *bucket = index_here(&walk);

        for (uint32_t cells = index_have(bucket, tag); cells; cells &= cells - 1) {
            uint32_t id = bucket->id[__builtin_ctz(cells)];

            if (blocks_get(blocks, id)->slot[tier] == slot)
                return id;
        }
        if (index_free(bucket))
            return BLOCK_NONE;
    }
}

uint32_t blocks_find(const struct blocks *blocks, uint32_t part, const uint8_t *key)
{
    return find_tagged(blocks, tag_of(blocks, part, key), find_in(blocks, part), key);
}

/*
 * A lookup is a chain of dependent reads: directory, bucket, block, record. The keys of a batch
 * walk it in step, each stage asking for the memory of the next, so that the waits overlap.
 */
static void find_batch(const struct blocks *blocks, struct find in, const uint8_t *keys, uint32_t n,
                       uint32_t tags[FIND_BATCH], uint32_t ids[FIND_BATCH])
{
    struct index_walk walks[FIND_BATCH];

    for (uint32_t i = 0; i < n; i++) {
        tags[i] = tag_of(blocks, in.part, keys + i * KVC_KEY_BYTES);
        walks[i] = index_seek(&blocks->index, tags[i]);
        __builtin_prefetch(index_here(&walks[i]));
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct index_bucket *bucket = index_here(&walks[i]);
        uint32_t cells = index_have(bucket, tags[i]);
        const struct block *block;

        ids[i] = BLOCK_NONE;
        if (cells) {
            ids[i] = bucket->id[__builtin_ctz(cells)];
            block = blocks_get(blocks, ids[i]);
            __builtin_prefetch(block);
            __builtin_prefetch((const char *)(block + 1) - 1);
        } else if (!index_free(bucket)) {
            index_next(&walks[i]);
            __builtin_prefetch(index_here(&walks[i]));
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] != BLOCK_NONE)
            __builtin_prefetch(key_record(blocks, blocks_get(blocks, ids[i])));
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *key = keys + i * KVC_KEY_BYTES;

        /* The first block of this tag is nearly always the only one, and in its home. */
        if (ids[i] == BLOCK_NONE
                ? !index_free(index_here(&walks[i])) || index_have(index_here(&walks[i]), tags[i])
                : !is_block_of(blocks, blocks_get(blocks, ids[i]), in, key))
            ids[i] = find_tagged(blocks, tags[i], in, key);
    }
}

void blocks_expect(const struct blocks *blocks, const uint32_t *tags, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct index_walk walk = index_seek(&blocks->index, tags[i]);

        __builtin_prefetch(index_entry(&blocks->index, tags[i])->segment, 1);
        __builtin_prefetch(index_here(&walk), 1);
    }
}

void blocks_find_all(const struct blocks *blocks, uint32_t part, const uint8_t *keys, uint32_t n,
                     uint32_t *tags, uint32_t *ids)
{
    const struct find in = find_in(blocks, part);

    for (uint32_t done = 0; done < n; done += FIND_BATCH)
        find_batch(blocks, in, keys + (size_t)done * KVC_KEY_BYTES,
                   n - done < FIND_BATCH ? n - done : FIND_BATCH, tags + done, ids + done);
}

uint32_t blocks_find_run(const struct blocks *blocks, uint32_t part, const uint8_t *keys,
                         uint32_t n, bool (*stop)(void *arg, uint32_t id), void *arg, uint32_t *ids)
{
    const struct find in = find_in(blocks, part);
    uint32_t batch[FIND_BATCH], tags[FIND_BATCH];

    for (uint32_t done = 0; done < n;) {
        uint32_t count = n - done < FIND_BATCH ? n - done : FIND_BATCH;

        find_batch(blocks, in, keys + (size_t)done * KVC_KEY_BYTES, count, tags, batch);
        for (uint32_t i = 0; i < count; i++) {
            if (stop ? stop(arg, batch[i]) : batch[i] == BLOCK_NONE)
                return done + i;
            ids[done + i] = batch[i];
        }
        done += count;
    }
    return n;
}

/* One more segment of the pool. The array that names them doubles: a pointer for 1024 blocks. */
static kvc_status grow_pool(struct blocks *blocks)
{
    struct block *segment;

    if (blocks->pool_segments == blocks->pool_room) {
        uint32_t room = blocks->pool_room ? blocks->pool_room * 2 : 4;
        struct block **pool = mem_realloc(blocks->pool.segments, room * sizeof(*pool));

        if (!pool)
            return KVC_E_NO_MEMORY;
        blocks->pool.segments = pool;
        blocks->pool_room = room;
    }
    segment = mem_array(BLOCKS_SEGMENT, sizeof(*segment));
    if (!segment)
        return KVC_E_NO_MEMORY;
    blocks->pool.segments[blocks->pool_segments++] = segment;
    return KVC_OK;
}

kvc_status blocks_add_unlisted(struct blocks *blocks, uint32_t part, enum tier_kind tier,
                               uint32_t slot, uint32_t *id)
{
    bool fresh = blocks->free == BLOCK_NONE;
    uint32_t new = fresh ? blocks->pool.limit : blocks->free;
    struct block *block;
    kvc_status status;

    assert(blocks->pool.records[tier][slot].part == part);
    if (fresh && blocks->pool.limit == blocks->pool_segments * BLOCKS_SEGMENT) {
        status = grow_pool(blocks);
        if (status)
            return status;
    }
    if (fresh)
        blocks->pool.limit++;
    block = blocks_get(blocks, new);
    if (!fresh)
        blocks->free = block->save;
    if (blocks->free != BLOCK_NONE)
        __builtin_prefetch(blocks_get(blocks, blocks->free), 1);
    *block = (struct block){
        .part = (uint16_t)part,
        .slot = {SLOT_NONE, SLOT_NONE},
        .link = {{BLOCK_NONE, BLOCK_NONE}, {BLOCK_NONE, BLOCK_NONE}},
        .state = BLOCK_FILLING,
        .unlisted = 1,
    };
    block->slot[tier] = slot;
    *id = new;
    return KVC_OK;
}

kvc_status blocks_list(struct blocks *blocks, uint32_t tag, uint32_t id)
{
    struct block *block = blocks_get(blocks, id);
    kvc_status status;

    assert(block->state == BLOCK_FILLING && block->unlisted);
#ifdef KVC_DEBUG
    const uint8_t *key = key_record(blocks, block)->key;

    assert(tag == tag_of(blocks, block->part, key));
    assert(blocks_find(blocks, block->part, key) == BLOCK_NONE);
#endif
    status = index_insert(&blocks->index, tag, id);
    if (status == KVC_OK)
        block->unlisted = 0;
    return status;
}

kvc_status blocks_add(struct blocks *blocks, uint32_t part, enum tier_kind tier, uint32_t slot,
                      uint32_t *id)
{
    uint32_t tag = tag_of(blocks, part, blocks->pool.records[tier][slot].key), new;
    kvc_status status = blocks_add_unlisted(blocks, part, tier, slot, &new);

    if (status != KVC_OK)
        return status;
    status = blocks_list(blocks, tag, new);
    if (status == KVC_OK) {
        *id = new;
        return KVC_OK;
    }
    blocks_unlink(blocks, new);
    blocks_drop(blocks, new);
    return status;
}

void blocks_unlink(struct blocks *blocks, uint32_t id)
{
    struct block *block = blocks_get(blocks, id);

    if (!block->unlisted)
        index_remove(&blocks->index, tag_of(blocks, block->part, key_record(blocks, block)->key),
                     id);
    block->unlisted = 0;
    block->state = BLOCK_DOOMED;
}

void blocks_drop(struct blocks *blocks, uint32_t id)
{
    struct block *block = blocks_get(blocks, id);

    assert(block->state == BLOCK_DOOMED);
    block->state = BLOCK_UNUSED;
    block->save = blocks->free;
    blocks->free = id;
}

uint32_t blocks_limit(const struct blocks *blocks)
{
    return blocks->pool.limit;
}

uint64_t blocks_count(const struct blocks *blocks)
{
    return blocks->index.count;
}

uint64_t blocks_bytes(const struct blocks *blocks)
{
    return sizeof(*blocks) + blocks->index.bytes +
           blocks->pool_room * sizeof(*blocks->pool.segments) +
           (uint64_t)blocks->pool_segments * BLOCKS_SEGMENT * sizeof(struct block);
}

kvc_status blocks_create(struct table *table, struct blocks **blocks)
{
    struct blocks *made = mem_zalloc(sizeof(*made));
    kvc_status status = KVC_E_NO_MEMORY;

    if (!made)
        return KVC_E_NO_MEMORY;
    made->table = table;
    for (int tier = 0; tier < TIER_COUNT; tier++)
        if (table_header(table)->tiers[tier].extents)
            made->pool.records[tier] = table_slot(table, tier, 0);
    made->free = BLOCK_NONE;
    /* "block.seed": none, so that a test's run is the same each time. */
    if (!fault_fires("block.seed") &&
        getrandom(&made->seed, sizeof(made->seed), 0) != sizeof(made->seed)) {
        log_error("block", "no random numbers: %m");
        status = KVC_E_SYSTEM;
        goto free_blocks;
    }
    status = index_init(&made->index);
    if (status)
        goto free_blocks;
    *blocks = made;
    return KVC_OK;

free_blocks:
    mem_free(made);
    return status;
}

void blocks_destroy(struct blocks *blocks)
{
    if (!blocks)
        return;
    index_fini(&blocks->index);
    for (uint32_t i = 0; i < blocks->pool_segments; i++)
        mem_free(blocks->pool.segments[i]);
    mem_free(blocks->pool.segments);
    mem_free(blocks);
}

/* A block that lookups find, as the index and its slots' records have it. */
static const char *check_block(const struct blocks *blocks, uint32_t id)
{
    const struct block *block = blocks_get(blocks, id);
    const uint8_t *key;

    if (block->slot[TIER_GPU] == SLOT_NONE && block->slot[TIER_HOST] == SLOT_NONE)
        return "a block has no slot";
    key = key_record(blocks, block)->key;
    for (int tier = 0; tier < TIER_COUNT; tier++) {
        const struct table_slot *record;

        if (block->slot[tier] == SLOT_NONE)
            continue;
        record = blocks_record(blocks, id, tier);
        if (record->part != block->part || memcmp(record->key, key, KVC_KEY_BYTES) != 0)
            return "a block's slot holds another key";
        if (record->state == SLOT_FREE)
            return "a block's slot is free";
        if (!block->unlisted && blocks_of_slot(blocks, tier, block->slot[tier]) != id)
            return "a block is not found by its slot";
    }
    if (block->unlisted || blocks_is_stale(blocks, id))
        return NULL;
    return blocks_find(blocks, block->part, key) == id ? NULL : "a block is not found by its key";
}

const char *blocks_check(const struct blocks *blocks)
{
    const char *why = index_check(&blocks->index);
    uint64_t linked = 0, unused = 0, listed = 0;

    for (uint32_t id = 0; !why && id < blocks->pool.limit; id++) {
        switch (blocks_get(blocks, id)->state) {
        case BLOCK_UNUSED:
            unused++;
            break;
        case BLOCK_DOOMED:
            break;
        default:
            linked += !blocks_get(blocks, id)->unlisted;
            why = check_block(blocks, id);
        }
    }
    if (why)
        return why;
    for (uint32_t id = blocks->free; id != BLOCK_NONE && listed <= unused; listed++) {
        if (id >= blocks->pool.limit || blocks_get(blocks, id)->state != BLOCK_UNUSED)
            return "a block in use is in the list of unused ones";
        id = blocks_get(blocks, id)->save;
    }
    if (listed != unused)
        return "an unused block is not in their list";
    return linked == blocks->index.count ? NULL : "the index does not hold every block";
}
