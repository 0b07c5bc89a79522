#include "daemon/store/moving.h"

#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/claim.h"
#include "daemon/store/event.h"
#include "daemon/store/keep.h"
#include "daemon/store/room.h"

struct moving {
    struct store *store;
    struct partition *partition;
    struct list link; /* store::moves */
    uint32_t block;
    uint32_t slot;  /* where it is copied to */
    uint64_t began; /* clock_us */
    enum tier_kind to;
};

static void count_demoting(struct partition *partition, int by)
{
    partition->demoting += (uint32_t)by;
    partition->cls->demoting += (uint32_t)by;
}

/* It is a copy now. */
static void count(struct store *store, const struct moving *moving)
{
    const uint32_t part = store_record(store, moving->to, moving->slot)->part;
    const uint32_t layout = table_part(store->table, part)->layout;
    const uint64_t us = clock_now_us() - moving->began;

    store->stats.bytes_moved[moving->to] += table_layout(store->table, layout)->block_bytes;
    if (moving->to == TIER_HOST) {
        store->stats.demotions++;
        histogram_add(&store->durations.demotions, us);
    } else {
        store->stats.promotions++;
        histogram_add(&store->durations.promotions, us);
    }
}

static void end(struct moving *moving, kvc_status status)
{
    struct store *store = moving->store;
    struct partition *partition = moving->partition;
    bool doomed = blocks_get(store->blocks, moving->block)->state == BLOCK_DOOMED;
    bool copied = status == KVC_OK && !doomed;

    list_remove(&moving->link);
    store->moving_bytes -= partition->cls->slot_bytes;
    if (moving->to == TIER_HOST)
        count_demoting(partition, -1);
    if (copied) {
        store_set_state(store, store_record(store, moving->to, moving->slot), SLOT_READY);
        count(store, moving);
    } else {
        room_give(partition, moving->to, moving->slot);
    }
    if (status == KVC_OK) {
        store->moves_failed = 0;
    } else {
        store->moves_failed++;
        store->moves_paused = clock_now_us() + MOVING_PAUSE_US;
        store->stats.failed_demotions += moving->to == TIER_HOST;
    }
    keep_moved(store, moving->block, copied, moving->to, moving->slot);
    mem_free(moving);
}

static void moved(void *arg, kvc_status status)
{
    struct moving *moving = arg;
    struct store *store = moving->store;

    if (status != KVC_OK)
        log_info("store", "copy failed to=%s status=\"%s\"",
                 moving->to == TIER_HOST ? "host" : "gpu", kvc_status_text(status));
    end(moving, status);
    claim_look(store);
    store_settle(store);
    event_deliver(store);
}

/* What a record says of the bytes and their past goes with the copy. */
static void describe_copy(const struct table_slot *from, struct table_slot *to)
{
    memcpy(to->key, from->key, sizeof(to->key));
    to->checksum = from->checksum;
    to->last_use = from->last_use;
    to->session = from->session;
    to->epoch = from->epoch;
    to->loads = 0;
    to->flags = from->flags;
}

/* A mover that never works must not freeze the gpu tier. */
static enum moving_result failed(const struct store *store)
{
    return store->moves_failed >= MOVING_FAILURES_MAX ? MOVING_NO_HOST : MOVING_FAILED;
}

/* slot is taken for the copy and goes back when it cannot be started. */
static enum moving_result start(struct partition *partition, struct moving *moving, uint32_t id,
                                enum tier_kind to, uint32_t slot)
{
    const struct tier_class *cls = partition->cls;
    struct store *store = cls->store;
    enum tier_kind from = to == TIER_HOST ? TIER_GPU : TIER_HOST;
    uint32_t from_slot = blocks_get(store->blocks, id)->slot[from];
    struct table_slot *record = store_record(store, to, slot);
    struct move move = {
        .from = from,
        .to = to,
        .from_offset = slots_offset(store->slots[from], from_slot),
        .to_offset = slots_offset(store->slots[to], slot),
        .bytes = cls->slot_bytes,
    };
    kvc_status status;

    describe_copy(store_record(store, from, from_slot), record);
    room_name(partition, to, slot, store_record(store, from, from_slot)->part);
    store_set_state(store, record, SLOT_MOVING);
    *moving = (struct moving){
        .store = store,
        .partition = partition,
        .block = id,
        .slot = slot,
        .to = to,
        .began = clock_now_us(),
    };
    list_init(&moving->link);
    list_push_back(&store->moves, &moving->link);
    store->moving_bytes += cls->slot_bytes;
    if (to == TIER_HOST)
        count_demoting(partition, 1);
    keep_move(store, id);
    status = store->config.mover_ops->copy(store->config.mover, &move, moved, moving);
    if (status == KVC_OK)
        return MOVING_STARTED;
    end(moving, status);
    return failed(store);
}

static bool is_paused(const struct store *store)
{
    return store->moves_paused != 0 && clock_now_us() < store->moves_paused;
}

static bool is_full(const struct store *store, uint64_t bytes)
{
    return store->moving_bytes > 0 &&
           store->moving_bytes + bytes > store->config.tuning.moving_bytes_max;
}

/* A block that was flushed is worth less than any. */
static bool goes_first(struct partition *partition, uint32_t id)
{
    return blocks_is_stale(partition->cls->store->blocks, id) || room_goes_first(partition, id);
}

/* A dirty block, or with BLOCK_NONE the coldest of the partition. */
static enum moving_result demote(struct partition *partition, uint32_t wanted)
{
    struct store *store = partition->cls->store;
    const struct policy *dirty = &partition->orders[ORDER_DIRTY];
    struct moving *moving;
    uint32_t id, slot;

    if (dirty->ops->victim(dirty) == BLOCK_NONE)
        return MOVING_NO_BLOCK;
    if (is_paused(store))
        return failed(store);
    if (goes_first(partition, wanted == BLOCK_NONE ? dirty->ops->victim(dirty) : wanted))
        return MOVING_COLDER;
    if (is_full(store, partition->cls->slot_bytes))
        return MOVING_BUSY;
    moving = mem_alloc(sizeof(*moving));
    if (!moving)
        return MOVING_FAILED;
    if (!room_take_host(partition, NULL, &slot)) {
        mem_free(moving);
        return MOVING_NO_HOST;
    }
    /* What went for the slot may have taken the block with it, being of its family. */
    id = wanted == BLOCK_NONE ? dirty->ops->victim(dirty) : wanted;
    if (id == BLOCK_NONE || blocks_get(store->blocks, id)->order[TIER_GPU] != ORDER_DIRTY) {
        room_give(partition, TIER_HOST, slot);
        mem_free(moving);
        return MOVING_NO_BLOCK;
    }
    return start(partition, moving, id, TIER_HOST, slot);
}

enum moving_result moving_demote(struct partition *partition)
{
    return demote(partition, BLOCK_NONE);
}

enum moving_result moving_demote_block(struct store *store, uint32_t id)
{
    return demote(store_partition(store, blocks_get(store->blocks, id)), id);
}

void moving_promote(struct store *store, uint32_t id)
{
    const struct block *block = blocks_get(store->blocks, id);
    struct partition *partition = store_partition(store, block);
    const struct tier_class *cls = partition->cls;
    struct moving *moving;
    uint32_t slot;

    if (block->slot[TIER_GPU] != SLOT_NONE || cls->wanted > 0 || is_paused(store) ||
        is_full(store, cls->slot_bytes) || blocks_is_stale(store->blocks, id))
        return;
    moving = mem_alloc(sizeof(*moving));
    if (!moving)
        return;
    if (room_take_gpu(partition, NULL, &slot))
        start(partition, moving, id, TIER_GPU, slot);
    else
        mem_free(moving);
}
