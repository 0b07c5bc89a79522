/* What a claim does, from closed extents to those that its claimant may take. */
#include <assert.h>

#include "daemon/base/log.h"
#include "daemon/store/claim_internal.h"
#include "daemon/store/moving.h"
#include "daemon/store/room.h"

static void set_state(struct claim *claim, enum claim_state state)
{
    assert(state == claim->state + 1 ||
           (claim->state == CLAIM_EMPTYING && state == CLAIM_PROMISED));
    claim->state = state;
}

/* It cannot be had: its extents go on as they were. */
static void give_up(struct claim *claim, uint64_t now)
{
    struct store *store = claim->store;

    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = claim_extent(claim, i);

        if (!e.closed)
            continue;
        if (claim->state != CLAIM_EMPTYING && claim_is_foreign(claim, &e)) {
            owner_extent_overdue(store, claim->tier, claim->first + i);
            owner_extents_granted(store, e.tenant);
        }
        slots_reopen(claim_slots(claim), claim->first + i);
        store->stats.kept_extents++;
    }
    claim_end(claim, now + CLAIM_RETRY_US);
    store->failing_look = 0; /* one of them may be waited for */
}

/* The claimant has a while to take them. */
static void promise(struct claim *claim, uint64_t now)
{
    bool moved = claim->state == CLAIM_RENEWING;
    struct partition *partition;

    set_state(claim, CLAIM_PROMISED);
    claim->look = now + CLAIM_KEEP_US;
    for (uint32_t i = 0; i < claim->n; i++)
        slots_promise(claim_slots(claim), claim->first + i, claim->cls->slot_bytes);
    if (moved) {
        claim->store->stats.moved_extents += claim->n;
        owner_extents_granted(claim->store, claim->cls->tenant);
    } else {
        claim->store->stats.resized_extents += claim->n;
    }
    list_for_each(partition, &claim->cls->partitions, link)
        room_changed(partition, true);
}

/* Takes one block from its place; false: that has to wait. */
static bool vacate(struct claim *claim, uint32_t number)
{
    struct store *store = claim->store;
    const struct table_slot *record = slots_record(claim_slots(claim), number);
    const struct block *block;
    uint32_t id;

    if (record->state != SLOT_READY)
        return true;
    id = blocks_of_slot(store->blocks, claim->tier, number);
    block = id == BLOCK_NONE ? NULL : blocks_get(store->blocks, id);
    if (!block || block->order[claim->tier] == ORDER_NONE)
        return true;
    if (block->order[claim->tier] == ORDER_DIRTY) {
        switch (moving_demote_block(store, id)) {
        case MOVING_STARTED:
        case MOVING_NO_BLOCK:
            return true;
        case MOVING_BUSY:
        case MOVING_FAILED:
            return false;
        case MOVING_NO_HOST:
        case MOVING_COLDER:
            /* Looking for a place may have evicted it already. */
            if (block->order[claim->tier] == ORDER_NONE)
                return true;
            break;
        }
    }
    room_drop(store, id, claim->tier);
    return true;
}

/* Looks at some of its slots, where it stopped; true: at the last one too. */
static bool vacate_some(struct claim *claim)
{
    uint32_t left = CLAIM_STEP;

    for (; claim->at < claim->n; claim->at++, claim->place = 0) {
        const struct slots_extent e = claim_extent(claim, claim->at);

        for (; claim->place < e.places; claim->place++) {
            if (left-- == 0)
                return false;
            if (!vacate(claim,
                        slots_number(claim_slots(claim), claim->first + claim->at, claim->place)))
                return false;
            /* Its last slot is free, and it has no places any more. */
            if (claim_extent(claim, claim->at).used == 0)
                break;
        }
    }
    claim->at = claim->place = 0;
    return true;
}

static void go_on_unmapping(struct claim *claim, uint64_t now);

static void emptied(struct claim *claim, uint64_t now)
{
    bool foreign = false;

    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = claim_extent(claim, i);

        foreign |= claim_is_foreign(claim, &e);
    }
    claim->since = now;
    if (!foreign) {
        promise(claim, now);
        return;
    }
    set_state(claim, CLAIM_UNMAPPING);
    go_on_unmapping(claim, now);
}

static void go_on_emptying(struct claim *claim, uint64_t now)
{
    uint32_t used, loose;
    bool all = true;

    claim_count(claim, &used, &loose);
    /* What something keeps is not looked at: it may be long, and extents are large. */
    if (loose > 0) {
        all = vacate_some(claim);
        claim_count(claim, &used, &loose);
    }
    if (used == 0) {
        emptied(claim, now);
        return;
    }
    if (used < claim->used) {
        claim->used = used;
        claim->since = now;
    }
    claim->look = now + (all ? CLAIM_LOOK_US : CLOCK_MS_US);
    if (!claim->lost && now - claim->since >= CLAIM_STUCK_US)
        give_up(claim, now);
}

static void renewed(void *arg, kvc_status status);

/* The next extent that changes its tenant gets new memory; false: there is none left. */
static bool renew_next(struct claim *claim, uint64_t now)
{
    struct store *store = claim->store;

    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = claim_extent(claim, i);
        kvc_status status;

        if (!claim_is_foreign(claim, &e))
            continue;
        claim->renewing = i + 1;
        claim->look = UINT64_MAX;
        status = store->config.renew_ops->renew(store->config.renewer, claim->tier,
                                                claim->first + i, renewed, claim);
        if (status == KVC_OK)
            return true;
        claim->renewing = 0;
        claim->look = now + CLAIM_RETRY_US;
        return true;
    }
    return false;
}

static void lose(struct claim *claim, uint32_t i)
{
    struct store *store = claim->store;

    slots_lose_extent(claim_slots(claim), claim->first + i);
    store->stats.lost_extents++;
    if (!(store->failed[claim->tier][(claim->first + i) / 64] >> (claim->first + i) % 64 & 1))
        log_warn("store", "no memory for an extent, it is given up tier=%s extent=%u",
                 claim->tier == TIER_GPU ? "gpu" : "host", claim->first + i);
}

/* An extent of it changes hands: it is nobody's in between, and so it stays if nobody is there. */
static void renewed(void *arg, kvc_status status)
{
    struct claim *claim = arg;
    struct store *store = claim->store;
    uint64_t now = clock_now_us();
    uint32_t i = claim->renewing - 1;

    claim->renewing = 0;
    claim->look = 0;
    if (status != KVC_OK) {
        if (status != KVC_E_BUSY)
            lose(claim, i);
        give_up(claim, now);
        return;
    }
    slots_free_extent(claim_slots(claim), claim->first + i);
    if (!claim->cls || store->sessions_of[claim->cls->tenant] == 0) {
        give_up(claim, now);
        return;
    }
    slots_grant_closed(claim_slots(claim), claim->first + i, claim->cls->tenant);
}

static void go_on_renewing(struct claim *claim, uint64_t now)
{
    if (claim->renewing == 0 && !renew_next(claim, now))
        promise(claim, now);
}

static void go_on_unmapping(struct claim *claim, uint64_t now)
{
    bool held = false;

    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = claim_extent(claim, i);

        if (claim_is_foreign(claim, &e))
            held |= owner_extent_held(claim->store, claim->tier, claim->first + i);
    }
    claim->look = now + CLAIM_LOOK_US;
    if (held && !claim->lost && now - claim->since >= CLAIM_UNMAP_US) {
        give_up(claim, now);
    } else if (!held && claim->lost) {
        lose(claim, 0);
        claim_end(claim, now);
    } else if (!held) {
        set_state(claim, CLAIM_RENEWING);
        go_on_renewing(claim, now);
    }
}

/* What nobody has taken by now is anybody's of the tenant. */
static void end_promise(struct claim *claim, uint64_t now)
{
    for (uint32_t i = 0; i < claim->n; i++)
        if (claim_extent(claim, i).promised == claim->cls->slot_bytes)
            slots_promise(claim_slots(claim), claim->first + i, 0);
    claim_end(claim, now);
}

void claim_go_on(struct claim *claim, uint64_t now)
{
    switch (claim->state) {
    case CLAIM_EMPTYING:
        go_on_emptying(claim, now);
        break;
    case CLAIM_UNMAPPING:
        go_on_unmapping(claim, now);
        break;
    case CLAIM_RENEWING:
        go_on_renewing(claim, now);
        break;
    case CLAIM_PROMISED:
        end_promise(claim, now);
        break;
    }
}
