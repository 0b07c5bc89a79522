#include "daemon/store/pin.h"

#include "daemon/base/fault.h"
#include "daemon/base/mem.h"
#include "daemon/store/keep.h"
#include "daemon/store/partition.h"
#include "daemon/store/scope.h"

/* Handles are never 0, blocks may be. */
static uint64_t handle(uint32_t block)
{
    return block + 1ull;
}

static uint64_t slot_bytes(const struct store *store, uint32_t block)
{
    return store_partition(store, blocks_get(store->blocks, block))->cls->slot_bytes;
}

static void end(struct store *store, struct pin *pin)
{
    uint32_t block = pin->block;

    if (pin->ends.at > 0)
        store->pinned_bytes -= slot_bytes(store, block);
    handles_remove(&store->pins, handle(block));
    expiry_remove(&store->pin_ends, &pin->ends);
    mem_free(pin);
    keep_release(store, block);
}

bool pin_has(const struct store *store, uint32_t block)
{
    return handles_get(&store->pins, handle(block)) != NULL;
}

void pin_drop(struct store *store, uint32_t block)
{
    struct pin *pin = handles_get(&store->pins, handle(block));

    if (pin)
        end(store, pin);
}

/* "pin.turn" makes turns as short as can be. */
void pin_tick(struct store *store, uint64_t now)
{
    uint32_t ends = fault_fires("pin.turn") ? 1 : PIN_ENDS;
    struct expiry_item *first;

    for (; ends > 0 && (first = expiry_first(&store->pin_ends)) && first->at <= now; ends--)
        end(store, container_of(first, struct pin, ends));
}

uint64_t pin_next_wake(const struct store *store)
{
    const struct expiry_item *first = expiry_first(&store->pin_ends);

    return first ? first->at : UINT64_MAX;
}

void pin_forget_all(struct store *store)
{
    struct expiry_item *first;

    while ((first = expiry_first(&store->pin_ends))) {
        expiry_remove(&store->pin_ends, first);
        mem_free(container_of(first, struct pin, ends));
    }
    expiry_free(&store->pin_ends);
    handles_free(&store->pins);
}

/* A pin without a time, if the block has none. */
static kvc_status add(struct store *store, uint32_t block, void *arg)
{
    struct pin *pin;

    (void)arg;
    if (handles_get(&store->pins, handle(block)))
        return KVC_OK;
    pin = mem_zalloc(sizeof(*pin));
    if (!pin || handles_reserve(&store->pins) != KVC_OK ||
        expiry_reserve(&store->pin_ends) != KVC_OK) {
        mem_free(pin);
        return KVC_E_NO_MEMORY;
    }
    pin->block = block;
    handles_put(&store->pins, handle(block), pin);
    expiry_add(&store->pin_ends, &pin->ends, UINT64_MAX);
    store->pinned_bytes += slot_bytes(store, block);
    keep_hold(store, block);
    return KVC_OK;
}

static kvc_status take_back(struct store *store, uint32_t block, void *arg)
{
    struct pin *pin = handles_get(&store->pins, handle(block));

    (void)arg;
    if (pin && pin->ends.at == UINT64_MAX)
        end(store, pin);
    return KVC_OK;
}

/* Calls for each published block of the scope's keys, in order, until one fails. */
static kvc_status each_block(struct store *store, const struct store_scope *scope,
                             kvc_status (*call)(struct store *store, uint32_t block, void *arg),
                             void *arg)
{
    kvc_status status = KVC_OK;

    for (uint32_t part = 1; part < TABLE_PARTS && table_part(store->table, part)->used != ROW_NEVER;
         part++) {
        if (!scope_has_part(store, scope, part))
            continue;
        for (uint32_t i = 0; i < scope->n_keys && status == KVC_OK; i++) {
            uint32_t id = blocks_find(store->blocks, part, scope->keys + (size_t)i * KVC_KEY_BYTES);

            if (id != BLOCK_NONE && blocks_get(store->blocks, id)->state == BLOCK_READY)
                status = call(store, id, arg);
        }
    }
    return status;
}

static kvc_status measure(struct store *store, uint32_t block, void *bytes)
{
    const struct pin *pin = handles_get(&store->pins, handle(block));

    if (!pin || pin->ends.at == 0)
        *(uint64_t *)bytes += slot_bytes(store, block);
    return KVC_OK;
}

struct request {
    uint64_t until;
    uint32_t count;
};

static kvc_status set_time(struct store *store, uint32_t block, void *arg)
{
    struct pin *pin = handles_get(&store->pins, handle(block));
    struct request *request = arg;

    if (pin->ends.at == 0)
        store->pinned_bytes += slot_bytes(store, block);
    expiry_move(&store->pin_ends, &pin->ends, request->until);
    request->count++;
    return KVC_OK;
}

static kvc_status unpin(struct store *store, uint32_t block, void *arg)
{
    const struct pin *pin = handles_get(&store->pins, handle(block));
    struct request *request = arg;

    request->count += pin != NULL && pin->ends.at > 0;
    pin_drop(store, block);
    return KVC_OK;
}

/* Their time is over, and their room others'; in the place of one that rises comes one that was
 * looked at. */
static uint32_t unpin_all(struct store *store, const struct store_scope *scope)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < store->pin_ends.count; i++) {
        struct pin *at = container_of(store->pin_ends.heap[i], struct pin, ends);

        if (at->ends.at == 0 ||
            !scope_has_part(store, scope, blocks_get(store->blocks, at->block)->part))
            continue;
        expiry_move(&store->pin_ends, &at->ends, 0);
        store->pinned_bytes -= slot_bytes(store, at->block);
        count++;
    }
    pin_tick(store, clock_now_us());
    return count;
}

/* What is pinned takes nothing from half of the memory, whatever is asked for. */
static kvc_status check_room(struct store *store, const struct store_scope *scope,
                             struct refusal *why)
{
    const struct table_tier *tiers = table_header(store->table)->tiers;
    uint64_t bytes = store->pinned_bytes;

    (void)each_block(store, scope, measure, &bytes);
    if (bytes > (tiers[TIER_GPU].bytes + tiers[TIER_HOST].bytes) / 2)
        return store_refuse(why, KVC_E_NO_ROOM, "keys", "more than half of the tiers pinned");
    return KVC_OK;
}

kvc_status store_pin(struct store *store, const struct store_scope *scope, uint32_t seconds,
                     uint32_t *count, struct refusal *why)
{
    struct request request = {0};
    kvc_status status = scope_check(store, scope, why);

    if (status == KVC_OK && scope->all)
        status = store_refuse(why, KVC_E_INVALID, "all", "keys are pinned");
    if (status == KVC_OK && seconds > KVC_PIN_SECONDS_MAX)
        status = store_refuse(why, KVC_E_LIMIT, "seconds", "longer than a pin may be");
    if (status == KVC_OK)
        status = check_room(store, scope, why);
    if (status != KVC_OK)
        return status;
    request.until = clock_now_us() + (seconds ? seconds : KVC_PIN_SECONDS_DEFAULT) * CLOCK_S_US;
    status = each_block(store, scope, add, NULL);
    if (status != KVC_OK) {
        (void)each_block(store, scope, take_back, NULL);
        store_settle(store);
        return store_refuse(why, status, "", kvc_status_text(status));
    }
    (void)each_block(store, scope, set_time, &request);
    *count = request.count;
    store_settle(store);
    return KVC_OK;
}

kvc_status store_unpin(struct store *store, const struct store_scope *scope, uint32_t *count,
                       struct refusal *why)
{
    struct request request = {0};
    kvc_status status = scope_check(store, scope, why);

    if (status != KVC_OK)
        return status;
    if (scope->n_keys == 0)
        request.count = unpin_all(store, scope);
    else
        (void)each_block(store, scope, unpin, &request);
    *count = request.count;
    store_settle(store);
    return KVC_OK;
}
