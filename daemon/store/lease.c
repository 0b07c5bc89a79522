#include "daemon/store/lease.h"

#include <string.h>
#include <sys/random.h>

#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/keep.h"

static void lease_free(struct lease *lease)
{
    for (uint32_t i = 0; i < lease->n_parts; i++)
        mem_free(lease->parts[i].blocks);
    mem_free(lease);
}

/* The id finds the lease, the rest cannot be guessed. */
static kvc_status make_token(uint64_t id, uint8_t token[KVC_TOKEN_BYTES])
{
    memcpy(token, &id, sizeof(id));
    if (getrandom(token + sizeof(id), KVC_TOKEN_BYTES - sizeof(id), 0) !=
        KVC_TOKEN_BYTES - sizeof(id)) {
        log_error("store", "no random numbers: %m");
        return KVC_E_SYSTEM;
    }
    return KVC_OK;
}

kvc_status lease_create(struct owner *owner, const uint32_t *parts, uint32_t n_parts,
                        uint64_t request, struct lease **ret, struct refusal *why)
{
    struct store *store = owner->store;
    struct lease *lease;
    kvc_status status;

    if (owner->n_leases >= KVC_SESSION_LEASES_MAX)
        return store_refuse(why, KVC_E_LIMIT, "lease", "too many leases of one session");
    lease = mem_zalloc(sizeof(*lease) + n_parts * sizeof(lease->parts[0]));
    if (!lease)
        return store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
    lease->store = store;
    lease->owner = owner;
    lease->request = request;
    lease->looked = store->lost;
    lease->n_parts = n_parts;
    for (uint32_t i = 0; i < n_parts; i++)
        lease->parts[i] =
            (struct lease_part){.part = parts[i], .needed = part_needed(store, parts[i])};
    status = handles_reserve(&store->leases);
    if (status == KVC_OK && request != 0)
        status = handles_reserve(&owner->requests);
    if (status == KVC_OK)
        status = expiry_reserve(&store->lease_ends);
    lease->id = table_next_id(store->table);
    if (status == KVC_OK)
        status = make_token(lease->id, lease->token);
    if (status != KVC_OK) {
        lease_free(lease);
        return store_refuse(why, status, "", kvc_status_text(status));
    }
    handles_put(&store->leases, lease->id, lease);
    if (request != 0)
        handles_put(&owner->requests, request, lease);
    expiry_add(&store->lease_ends, &lease->ends, UINT64_MAX);
    list_push_back(&owner->leases, &lease->link);
    owner->n_leases++;
    *ret = lease;
    return KVC_OK;
}

/* What the owner's leases have room for is what they may hold: memory, and the work to end them. */
static bool fits(const struct owner *owner, uint32_t more)
{
    return more <= KVC_SESSION_LEASE_BLOCKS_MAX - owner->lease_blocks;
}

kvc_status lease_reserve(struct lease *lease, uint32_t reach, struct refusal *why)
{
    struct owner *owner = lease->owner;

    for (uint32_t i = 0; i < lease->n_parts; i++) {
        struct lease_part *part = &lease->parts[i];
        uint32_t room = part->room * 2 > reach ? part->room * 2 : reach;
        uint32_t *blocks;

        if (reach <= part->room)
            continue;
        if (!fits(owner, room - part->room))
            room = reach;
        if (!fits(owner, room - part->room))
            return store_refuse(why, KVC_E_LIMIT, "lease",
                                "too many blocks in the leases of one session");
        blocks = mem_realloc(part->blocks, room * sizeof(*blocks));
        if (!blocks)
            return store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
        owner->lease_blocks += room - part->room;
        part->blocks = blocks;
        part->room = room;
    }
    return KVC_OK;
}

static void release_at(struct lease *lease, uint32_t at, uint32_t p)
{
    uint32_t *block = &lease->parts[p].blocks[at];

    if (*block != BLOCK_NONE)
        keep_unlease(lease->store, *block);
    *block = BLOCK_NONE;
}

/* All parts of a place together, so that a prefix is evicted from its end. */
static void release_place(struct lease *lease, uint32_t at)
{
    for (uint32_t p = 0; p < lease->n_parts; p++)
        release_at(lease, at, p);
}

/*
 * Makes what a lease holds from `offset` on a lease that has ended, whose blocks are released by
 * turns. false: out of memory.
 */
static bool set_aside(struct lease *lease, uint32_t offset)
{
    struct lease *rest = mem_zalloc(sizeof(*rest) + lease->n_parts * sizeof(rest->parts[0]));

    if (!rest)
        return false;
    rest->store = lease->store;
    list_init(&rest->link);
    rest->reach = lease->reach;
    rest->from = offset;
    for (; rest->n_parts < lease->n_parts; rest->n_parts++) {
        const struct lease_part *part = &lease->parts[rest->n_parts];
        uint32_t *blocks = mem_alloc(part->room * sizeof(*blocks));

        if (!blocks) {
            lease_free(rest);
            return false;
        }
        memcpy(blocks, part->blocks, offset * sizeof(*blocks));
        rest->parts[rest->n_parts].blocks = blocks;
    }
    for (uint32_t p = 0; p < lease->n_parts; p++) {
        uint32_t *blocks = lease->parts[p].blocks;

        lease->parts[p].blocks = rest->parts[p].blocks;
        rest->parts[p].blocks = blocks;
    }
    list_push_back(&lease->store->ending, &rest->link);
    return true;
}

/* Last first, for the same reason; of many, by turns. */
static void release_from(struct lease *lease, uint32_t offset)
{
    const uint64_t places = lease->reach > offset ? lease->reach - offset : 0;

    if (places * lease->n_parts <= LEASE_RELEASES || !set_aside(lease, offset))
        for (uint32_t i = lease->reach; i-- > offset;)
            release_place(lease, i);
    lease->reach = offset < lease->reach ? offset : lease->reach;
    lease->count = offset < lease->count ? offset : lease->count;
}

bool lease_needs(uint32_t needed, uint32_t at, uint32_t end)
{
    return at < end && end - at <= needed;
}

static void release_unneeded(struct lease *lease, uint32_t p, uint32_t from, uint32_t end)
{
    uint32_t needed = lease->parts[p].needed;

    for (uint32_t i = end; i-- > from;)
        if (!lease_needs(needed, i, lease->count) && !lease_needs(needed, i, lease->reach))
            release_at(lease, i, p);
}

/* The least place that the rule of a part needs for a boundary at `end`. */
static uint32_t first_needed(uint32_t needed, uint32_t end)
{
    return end > needed ? end - needed : 0;
}

/* Only what was needed so far, and what is new, can be there and be needed no longer. */
static void trim(struct lease *lease, uint32_t old_count, uint32_t old_reach)
{
    for (uint32_t p = 0; p < lease->n_parts; p++) {
        uint32_t needed = lease->parts[p].needed;

        if (needed == UINT32_MAX)
            continue;
        release_unneeded(lease, p, first_needed(needed, old_reach), lease->reach);
        release_unneeded(lease, p, first_needed(needed, old_count), old_count);
    }
}

void lease_set(struct lease *lease, uint32_t offset, uint32_t n, uint32_t *const *blocks,
               uint32_t count)
{
    uint32_t old_count, old_reach;

    release_from(lease, offset);
    old_count = lease->count;
    old_reach = lease->reach;
    for (uint32_t p = 0; p < lease->n_parts && n > 0; p++)
        memcpy(lease->parts[p].blocks + offset, blocks[p], n * sizeof(uint32_t));
    lease->reach = offset + n;
    lease->count = count;
    trim(lease, old_count, old_reach);
}

uint32_t lease_extend(struct lease *lease, uint32_t ms)
{
    struct store *store = lease->store;

    if (ms == 0)
        ms = store->config.tuning.lease_ms;
    if (ms > store->config.lease_ms_max)
        ms = store->config.lease_ms_max;
    expiry_move(&store->lease_ends, &lease->ends, clock_now_us() + ms * CLOCK_MS_US);
    return ms;
}

/* Nobody finds it any more. */
static void forget(struct lease *lease)
{
    struct store *store = lease->store;

    handles_remove(&store->leases, lease->id);
    if (lease->request != 0)
        handles_remove(&lease->owner->requests, lease->request);
    expiry_remove(&store->lease_ends, &lease->ends);
    list_remove(&lease->link);
    lease->owner->n_leases--;
    for (uint32_t i = 0; i < lease->n_parts; i++)
        lease->owner->lease_blocks -= lease->parts[i].room;
    lease->owner = NULL;
}

/* Those that ended first come first, so that their order of use is that of their ends. */
static void release_some(struct store *store)
{
    struct lease *lease;

    while (store->releases > 0 && (lease = list_first(&store->ending, struct lease, link))) {
        const uint32_t cost = lease->n_parts > 0 ? lease->n_parts : 1;

        store->releases -= cost < store->releases ? cost : store->releases;
        if (lease->reach > lease->from) {
            release_place(lease, --lease->reach);
            continue;
        }
        list_remove(&lease->link);
        lease_free(lease);
    }
}

void lease_end(struct lease *lease)
{
    struct store *store = lease->store;

    forget(lease);
    list_push_back(&store->ending, &lease->link);
    release_some(store);
}

void lease_end_all(struct owner *owner)
{
    struct lease *lease;

    while ((lease = list_first(&owner->leases, struct lease, link)))
        lease_end(lease);
}

/*
 * Blocks that were found damaged and dropped are lost too, but not by a flush. Places that are
 * leased anew meanwhile have not lost anything.
 */
static bool has_lost(struct lease *lease, uint32_t *looks)
{
    for (; lease->looked_to<lease->reach && * looks> 0; lease->looked_to++) {
        *looks -= lease->n_parts < *looks ? lease->n_parts : *looks;
        for (uint32_t p = 0; p < lease->n_parts; p++) {
            const uint32_t id = lease->parts[p].blocks[lease->looked_to];
            const struct block *block =
                id == BLOCK_NONE ? NULL : blocks_get(lease->store->blocks, id);

            if (block && block->state == BLOCK_DOOMED && block->save == BLOCK_FLUSHED)
                return true;
        }
    }
    return false;
}

/* false: the turn is over before all were looked at. */
static bool look_at_all(struct owner *owner, uint32_t *looks)
{
    struct store *store = owner->store;
    struct lease *lease, *after;

    list_for_each_safe(lease, after, &owner->leases, link) {
        if (lease->looked != store->lost) {
            if (*looks == 0)
                return false;
            --*looks;
            lease->looked = store->lost;
            lease->looked_to = 0;
        }
        if (has_lost(lease, looks))
            lease_end(lease);
        else if (lease->looked_to < lease->reach)
            return false;
    }
    return true;
}

/* "lease.turn" makes turns as short as can be. */
static void look_some(struct store *store)
{
    uint32_t looks = fault_fires("lease.turn") ? 2 : LEASE_LOOKS;
    struct owner *owner;

    list_for_each(owner, &store->owners, link)
        if (!look_at_all(owner, &looks))
            return;
    store->looking = false;
}

void lease_look_for_lost(struct store *store)
{
    store->lost++;
    store->looking = true;
    look_some(store);
}

void lease_forget_all(struct owner *owner)
{
    struct lease *lease;

    while ((lease = list_first(&owner->leases, struct lease, link))) {
        forget(lease);
        lease_free(lease);
    }
}

void lease_forget_ending(struct store *store)
{
    struct lease *lease;

    while ((lease = list_first(&store->ending, struct lease, link))) {
        list_remove(&lease->link);
        lease_free(lease);
    }
}

kvc_status lease_find(struct owner *owner, uint64_t id, struct lease **ret, struct refusal *why)
{
    struct store *store = owner->store;
    struct lease *lease = handles_get(&store->leases, id);

    if (lease && lease->owner != owner)
        return store_refuse(why, KVC_E_DENIED, "lease", "another session's");
    if (lease && lease->ends.at <= clock_now_us()) {
        lease_end(lease);
        lease = NULL;
    }
    if (!lease && id != 0 && id < table_header(store->table)->next_id)
        return store_refuse(why, KVC_E_EXPIRED, "lease", "it has ended");
    if (!lease)
        return store_refuse(why, KVC_E_UNKNOWN, "lease", "no such lease");
    *ret = lease;
    return KVC_OK;
}

struct lease_part *lease_part(struct lease *lease, uint32_t part)
{
    for (uint32_t i = 0; i < lease->n_parts; i++)
        if (lease->parts[i].part == part)
            return &lease->parts[i];
    return NULL;
}

void lease_tick(struct store *store, uint64_t now)
{
    uint32_t ends = LEASE_RELEASES;
    struct expiry_item *first;

    store->releases = LEASE_RELEASES;
    release_some(store);
    if (store->looking)
        look_some(store);
    for (; ends > 0 && (first = expiry_first(&store->lease_ends)) && first->at <= now; ends--)
        lease_end(container_of(first, struct lease, ends));
}

uint64_t lease_next_wake(const struct store *store)
{
    const struct expiry_item *first = expiry_first(&store->lease_ends);

    if (!list_empty(&store->ending) || store->looking)
        return 0;
    return first ? first->at : UINT64_MAX;
}

kvc_status store_extend(struct store *store, struct owner *owner, uint64_t id, uint32_t ms,
                        uint32_t *granted_ms, struct refusal *why)
{
    struct lease *lease;
    kvc_status status = lease_find(owner, id, &lease, why);

    if (status == KVC_OK)
        *granted_ms = lease_extend(lease, ms);
    store_settle(store);
    return status;
}

kvc_status store_release(struct store *store, struct owner *owner, uint64_t id, struct refusal *why)
{
    struct lease *lease = handles_get(&store->leases, id);

    if (!lease) {
        store->stats.stale_completions++;
        return KVC_OK;
    }
    if (lease->owner != owner) {
        store->stats.stale_completions++;
        return store_refuse(why, KVC_E_DENIED, "lease", "another session's");
    }
    lease_end(lease);
    store_settle(store);
    return KVC_OK;
}
