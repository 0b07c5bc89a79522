#include "daemon/store/claim.h"

#include <assert.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/claim_internal.h"
#include "daemon/store/moving.h"
#include "daemon/store/room.h"

static void set_state(struct claim *claim, enum claim_state state)
{
    assert(state == claim->state + 1 ||
           (claim->state == CLAIM_EMPTYING && state == CLAIM_PROMISED) ||
           (claim->state == CLAIM_UNMAPPING && state == CLAIM_PROMISED));
    claim->state = state;
}

static struct slots *slots_of(const struct claim *claim)
{
    return claim->store->slots[claim->tier];
}

static struct slots_extent look_at(const struct claim *claim, uint32_t i)
{
    struct slots_extent e;

    slots_look(slots_of(claim), claim->first + i, &e);
    return e;
}

/* Whether an extent of it is another tenant's than the claimant. */
static bool is_foreign(const struct claim *claim, const struct slots_extent *e)
{
    return e->state == EXTENT_OWNED && (!claim->cls || e->tenant != claim->cls->tenant);
}

void claim_want(struct tier_class *cls, enum tier_kind tier)
{
    struct store *store = cls->store;

    if (cls->wanting[tier] || slots_extents(store->slots[tier]) == 0)
        return;
    cls->wanting[tier] = true;
    if (!list_linked(&cls->wants))
        list_push_back(&store->claimants, &cls->wants);
}

void claim_look(struct store *store)
{
    struct claim *claim;

    list_for_each(claim, &store->claims, link)
        if (claim->state == CLAIM_EMPTYING || claim->state == CLAIM_UNMAPPING)
            claim->look = 0;
}

static void end(struct claim *claim, uint64_t look)
{
    if (claim->cls) {
        claim->cls->claims[claim->tier] = NULL;
        claim->cls->look[claim->tier] = look;
    }
    list_remove(&claim->link);
    mem_free(claim);
}

static void count_used(struct claim *claim, uint32_t *used, uint32_t *loose)
{
    *used = *loose = 0;
    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = look_at(claim, i);

        *used += e.state == EXTENT_TAIL ? 1 : e.used;
        *loose += e.loose;
    }
}

static struct claim *begin(struct store *store, struct tier_class *cls, enum tier_kind tier,
                           uint32_t first, uint32_t n, uint64_t now)
{
    struct claim *claim = mem_zalloc(sizeof(*claim));
    uint32_t loose;

    if (!claim)
        return NULL;
    claim->store = store;
    claim->cls = cls;
    claim->tier = tier;
    claim->first = first;
    claim->n = n;
    claim->since = now;
    for (uint32_t i = 0; i < n; i++) {
        const struct slots_extent e = look_at(claim, i);

        slots_close(store->slots[tier], first + i, !cls || is_foreign(claim, &e));
    }
    count_used(claim, &claim->used, &loose);
    if (cls)
        cls->claims[tier] = claim;
    list_init(&claim->link);
    list_push_back(&store->claims, &claim->link);
    return claim;
}

void store_lose_extent(struct store *store, enum tier_kind tier, uint32_t extent)
{
    uint64_t *bits = &store->failing[tier][extent / 64], bit = 1ull << extent % 64;

    store->n_failing += !(*bits & bit);
    *bits |= bit;
    store->failing_look = 0;
}

/* false: something else has to end first. */
static bool begin_to_lose(struct store *store, enum tier_kind tier, uint32_t extent, uint64_t now)
{
    struct claim *claim;
    struct slots_extent e;

    slots_look(store->slots[tier], extent, &e);
    if (e.state == EXTENT_LOST)
        return true;
    if (e.state == EXTENT_FREE) {
        slots_lose_extent(store->slots[tier], extent);
        store->stats.lost_extents++;
        return true;
    }
    if (e.closed)
        return false;
    claim = begin(store, NULL, tier, extent, 1, now);
    if (claim)
        claim->lost = true;
    return claim != NULL;
}

void claim_release(struct store *store, uint32_t tenant, enum tier_kind tier)
{
    for (uint32_t i = 0; i < slots_extents(store->slots[tier]); i++) {
        struct slots_extent e;

        slots_look(store->slots[tier], i, &e);
        if (store->config.renew_ops && e.state == EXTENT_OWNED && e.tenant == tenant &&
            e.used == 0 && !e.closed && !e.promised)
            (void)begin(store, NULL, tier, i, 1, clock_now_us());
    }
}

static void lose_failing(struct store *store, uint64_t now)
{
    store->failing_look = now + CLAIM_RETRY_US;
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        for (uint32_t i = 0; i < slots_extents(store->slots[tier]); i++) {
            uint64_t *bits = &store->failing[tier][i / 64], bit = 1ull << i % 64;

            if (!(*bits & bit) || !begin_to_lose(store, tier, i, now))
                continue;
            *bits &= ~bit;
            store->n_failing--;
        }
    }
}

/* It cannot be had: its extents go on as they were. */
static void give_up(struct claim *claim, uint64_t now)
{
    struct store *store = claim->store;

    for (uint32_t i = 0; i < claim->n; i++) {
        const struct slots_extent e = look_at(claim, i);

        if (!e.closed)
            continue;
        if (claim->state != CLAIM_EMPTYING && is_foreign(claim, &e)) {
            owner_extent_overdue(store, claim->tier, claim->first + i);
            owner_extents_granted(store, e.tenant);
        }
        slots_reopen(slots_of(claim), claim->first + i);
        store->stats.kept_extents++;
    }
    end(claim, now + CLAIM_RETRY_US);
}

/* The claimant has a while to take them. */
static void promise(struct claim *claim, uint64_t now)
{
    bool moved = claim->state == CLAIM_RENEWING;
    struct partition *partition;

    set_state(claim, CLAIM_PROMISED);
    claim->look = now + CLAIM_KEEP_US;
    for (uint32_t i = 0; i < claim->n; i++)
        slots_promise(slots_of(claim), claim->first + i, claim->cls->slot_bytes);
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
    const struct table_slot *record = slots_record(slots_of(claim), number);
    const struct block *block;
    uint32_t id;

    if (record->state != SLOT_READY)
        return true;
    id = blocks_find(store->blocks, record->part, record->key);
    block = id == BLOCK_NONE ? NULL : blocks_get(store->blocks, id);
    if (!block || block->slot[claim->tier] != number || block->order[claim->tier] == ORDER_NONE)
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
        const struct slots_extent e = look_at(claim, claim->at);

        for (; claim->place < e.places; claim->place++) {
            if (left-- == 0)
                return false;
            if (!vacate(claim,
                        slots_number(slots_of(claim), claim->first + claim->at, claim->place)))
                return false;
            /* Its last slot is free, and it has no places any more. */
            if (look_at(claim, claim->at).used == 0)
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
        const struct slots_extent e = look_at(claim, i);

        foreign |= is_foreign(claim, &e);
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

    count_used(claim, &used, &loose);
    /* What something keeps is not looked at: it may be long, and extents are large. */
    if (loose > 0) {
        all = vacate_some(claim);
        count_used(claim, &used, &loose);
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
        const struct slots_extent e = look_at(claim, i);
        kvc_status status;

        if (!is_foreign(claim, &e))
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

    slots_lose_extent(slots_of(claim), claim->first + i);
    store->stats.lost_extents++;
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
    slots_free_extent(slots_of(claim), claim->first + i);
    if (!claim->cls || store->sessions_of[claim->cls->tenant] == 0) {
        give_up(claim, now);
        return;
    }
    slots_grant_closed(slots_of(claim), claim->first + i, claim->cls->tenant);
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
        const struct slots_extent e = look_at(claim, i);

        if (is_foreign(claim, &e))
            held |= owner_extent_held(claim->store, claim->tier, claim->first + i);
    }
    claim->look = now + CLAIM_LOOK_US;
    if (held && !claim->lost && now - claim->since >= CLAIM_UNMAP_US) {
        give_up(claim, now);
    } else if (!held && claim->lost) {
        lose(claim, 0);
        end(claim, now);
    } else if (!held) {
        set_state(claim, CLAIM_RENEWING);
        go_on_renewing(claim, now);
    }
}

/* What nobody has taken by now is anybody's of the tenant. */
static void end_promise(struct claim *claim, uint64_t now)
{
    for (uint32_t i = 0; i < claim->n; i++)
        if (look_at(claim, i).promised == claim->cls->slot_bytes)
            slots_promise(slots_of(claim), claim->first + i, 0);
    end(claim, now);
}

static void go_on(struct claim *claim, uint64_t now)
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

/* Whether the claimant has taken all that it was promised. */
static bool is_taken(const struct claim *claim)
{
    for (uint32_t i = 0; i < claim->n; i++)
        if (look_at(claim, i).promised)
            return false;
    return true;
}

/* A free extent is granted before one is taken from anybody. */
static bool grant_free(struct store *store, const struct tier_class *cls, enum tier_kind tier)
{
    uint32_t cap = claim_cap(store, cls->tenant, tier);
    uint32_t owned = slots_owned(store->slots[tier], cls->tenant);

    if (owned >= cap || slots_grant(store->slots[tier], cls->tenant, owned + 1) == owned)
        return false;
    owner_extents_granted(store, cls->tenant);
    return true;
}

/* Returns when to look again; UINT64_MAX: when the class wants it again. */
static uint64_t answer(struct tier_class *cls, enum tier_kind tier, uint64_t now)
{
    struct store *store = cls->store;
    struct claim *claim = cls->claims[tier];
    uint32_t first, n;

    if (now < cls->look[tier])
        return cls->look[tier];
    if (claim && (claim->state != CLAIM_PROMISED || !is_taken(claim)))
        return UINT64_MAX;
    if (claim)
        end(claim, now);
    cls->look[tier] = now + CLAIM_LOOK_US;
    if (grant_free(store, cls, tier))
        return UINT64_MAX;
    first = claim_choose(cls, tier, now, &n);
    if (first == TABLE_NONE || !begin(store, cls, tier, first, n, now))
        cls->look[tier] = now + CLAIM_RETRY_US;
    return UINT64_MAX;
}

void claim_tick(struct store *store, uint64_t now)
{
    struct tier_class *cls, *after_cls;
    struct claim *claim, *after;

    list_for_each_safe(cls, after_cls, &store->claimants, wants) {
        bool waits = false;

        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
            if (!cls->wanting[tier])
                continue;
            cls->wanting[tier] = answer(cls, tier, now) != UINT64_MAX;
            waits |= cls->wanting[tier];
        }
        if (!waits)
            list_remove(&cls->wants);
    }
    if (store->n_failing > 0 && store->failing_look <= now)
        lose_failing(store, now);
    list_for_each_safe(claim, after, &store->claims, link)
        if (claim->look <= now)
            go_on(claim, now);
    owner_extents_tell(store);
}

uint64_t claim_next_wake(const struct store *store)
{
    const struct tier_class *cls;
    const struct claim *claim;
    uint64_t wake = store->tell ? 0 : UINT64_MAX;

    if (store->n_failing > 0 && store->failing_look < wake)
        wake = store->failing_look;
    list_for_each(cls, &store->claimants, wants)
        for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++)
            if (cls->wanting[tier] && cls->look[tier] < wake)
                wake = cls->look[tier];
    list_for_each(claim, &store->claims, link)
        if (claim->look < wake)
            wake = claim->look;
    return wake;
}

void claim_forget_all(struct store *store)
{
    struct claim *claim;

    while ((claim = list_first(&store->claims, struct claim, link))) {
        assert(claim->renewing == 0);
        end(claim, 0);
    }
}

uint32_t claim_waiting(const struct store *store)
{
    const struct claim *claim;
    uint32_t n = 0;

    list_for_each(claim, &store->claims, link)
        n += claim->state == CLAIM_UNMAPPING ? claim->n : 0;
    return n;
}
