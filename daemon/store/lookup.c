/*
 * Lookups: the longest prefix that every part has, granted as a lease; and leases taken over from
 * another session of the tenant.
 */
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/keep.h"
#include "daemon/store/lease.h"
#include "daemon/store/prefix.h"
#include "daemon/store/usage.h"

static kvc_status check_parts(const struct owner *owner, const struct store_lookup *req,
                              struct refusal *why)
{
    for (uint32_t i = 0; i < req->n_parts; i++) {
        const struct store_lookup_part *part = &req->parts[i];
        kvc_status status = owner_check_part(owner, part->part, part->epoch, "parts", i, why);

        if (status != KVC_OK)
            return status;
        if (part->n_keys != req->parts[0].n_keys)
            return store_refuse_at(why, KVC_E_INVALID, "parts", i, "keys",
                                   "not as many as of the first part");
        for (uint32_t j = 0; j < i; j++)
            if (req->parts[j].part == part->part)
                return store_refuse_at(why, KVC_E_DUPLICATE, "parts", i, "part",
                                       "the same part twice");
    }
    return KVC_OK;
}

static kvc_status check(const struct owner *owner, const struct store_lookup *req,
                        struct refusal *why)
{
    if (owner->identity.role == STORE_ROLE_OPERATOR)
        return store_refuse(why, KVC_E_DENIED, "", "operators hold no leases");
    if (req->n_parts == 0)
        return store_refuse(why, KVC_E_INVALID, "parts", "none given");
    if (req->n_parts > KVC_PARTS_MAX)
        return store_refuse(why, KVC_E_LIMIT, "parts", "too many parts");
    if (req->parts[0].n_keys > KVC_KEYS_MAX)
        return store_refuse(why, KVC_E_LIMIT, "keys", "too many keys");
    return check_parts(owner, req, why);
}

/* The lease that a lookup continues: the one it names, or the one of its request; NULL: a new one.
 */
static kvc_status find_target(struct owner *owner, const struct store_lookup *req,
                              struct lease **ret, struct refusal *why)
{
    struct lease *lease = NULL;
    kvc_status status;

    if (req->lease != 0) {
        status = lease_find(owner, req->lease, &lease, why);
        if (status != KVC_OK)
            return status;
        if (req->offset > lease->reach)
            return store_refuse(why, KVC_E_INVALID, "offset", "behind the end of the lease");
        if (req->offset + req->parts[0].n_keys > KVC_LEASE_KEYS_MAX)
            return store_refuse(why, KVC_E_LIMIT, "keys", "too many blocks in one lease");
    } else if (req->offset != 0) {
        return store_refuse(why, KVC_E_INVALID, "offset", "no lease is named");
    } else {
        lease = handles_get(&owner->requests, req->request);
        if (lease && lease->ends.at <= clock_now_us()) {
            lease_end(lease);
            lease = NULL;
        }
    }
    if (lease && lease->n_parts != req->n_parts)
        return store_refuse(why, KVC_E_INVALID, "parts", "not the parts of the lease");
    for (uint32_t i = 0; lease && i < req->n_parts; i++)
        if (lease->parts[i].part != req->parts[i].part)
            return store_refuse_at(why, KVC_E_INVALID, "parts", i, "part",
                                   "not the parts of the lease");
    *ret = lease;
    return KVC_OK;
}

/* Keys behind the prefix that every part has or is getting; of window and state parts the prefix
 * has less to say than of full ones, if there are any. */
static uint32_t count_pending(const struct store *store, const struct store_lookup *req,
                              const struct prefix *found, uint32_t from)
{
    bool only_full = false;
    uint32_t i;

    for (uint32_t p = 0; p < req->n_parts; p++)
        only_full = only_full || found->needed[p] == UINT32_MAX;
    for (i = from; i < req->parts[0].n_keys; i++)
        for (uint32_t p = 0; p < req->n_parts; p++)
            if ((!only_full || found->needed[p] == UINT32_MAX) &&
                blocks_find(store->blocks, req->parts[p].part,
                            req->parts[p].keys + (size_t)i * KVC_KEY_BYTES) == BLOCK_NONE)
                return i - from;
    return i - from;
}

static enum tier_kind tier_of(const struct block *block)
{
    return block->slot[TIER_GPU] != SLOT_NONE ? TIER_GPU : TIER_HOST;
}

/* Hit twice within the window while only in the host tier: it comes up when nothing keeps it. */
static void note_hit(struct store *store, struct block *block, uint32_t now)
{
    struct table_slot *record;

    if (tier_of(block) != TIER_HOST)
        return;
    record = store_record(store, TIER_HOST, block->slot[TIER_HOST]);
    if (record->hit_ms != 0 && now - record->hit_ms <= store->config.tuning.promotion_ms)
        block->save = BLOCK_HOT;
    record->hit_ms = now;
}

/* Where the first part's blocks are that this call found. */
static void count_tiers(const struct store *store, const struct prefix *found,
                        struct store_lookup_result *result)
{
    for (uint32_t i = 0; i < found->n; i++)
        if (found->blocks[0][i] != BLOCK_NONE)
            result->in_tier[tier_of(blocks_get(store->blocks, found->blocks[0][i]))]++;
}

/* Keys of this call that are in the prefix. */
static uint32_t granted(const struct store_lookup *req, const struct prefix *found)
{
    return found->count > req->offset ? found->count - req->offset : 0;
}

/* again: the same request has counted its hits already. */
static void count_hits(struct store *store, const struct store_lookup *req,
                       const struct prefix *found, bool again, struct store_lookup_result *result)
{
    uint32_t now = (uint32_t)(clock_now_us() / CLOCK_MS_US) | 1;

    count_tiers(store, found, result);
    if (again || req->quiet)
        return;
    for (uint32_t i = 0; i < found->n; i++)
        for (uint32_t p = 0; p < req->n_parts; p++)
            if (found->blocks[p][i] != BLOCK_NONE)
                note_hit(store, blocks_get(store->blocks, found->blocks[p][i]), now);
    for (enum tier_kind tier = 0; tier < TIER_COUNT; tier++) {
        store->stats.hits[tier] += result->in_tier[tier];
        usage_of(store, req->parts[0].part)->hits[tier] += result->in_tier[tier];
    }
    store->stats.misses += req->parts[0].n_keys - granted(req, found);
}

static kvc_status grant(struct owner *owner, const struct store_lookup *req,
                        const struct prefix *found, struct lease *lease,
                        struct store_lookup_result *result, struct refusal *why)
{
    struct store *store = owner->store;
    uint32_t parts[KVC_PARTS_MAX];
    bool again = lease && req->lease == 0, fresh = !lease;
    kvc_status status;

    for (uint32_t p = 0; p < req->n_parts; p++)
        parts[p] = req->parts[p].part;
    if (fresh) {
        status = lease_create(owner, parts, req->n_parts, req->request, &lease, why);
        if (status != KVC_OK)
            return status;
    }
    status = lease_reserve(lease, req->offset + found->n, why);
    if (status != KVC_OK) {
        if (fresh)
            lease_end(lease);
        return status;
    }
    for (uint32_t i = 0; i < found->n; i++)
        for (uint32_t p = 0; p < req->n_parts; p++)
            if (found->blocks[p][i] != BLOCK_NONE)
                keep_lease(store, found->blocks[p][i]);
    lease_set(lease, req->offset, found->n, found->blocks, found->count);
    if (!found->more && found->count < req->offset)
        lease_set(lease, found->count, 0, found->blocks, found->count);
    count_hits(store, req, found, again, result);
    result->count = lease->count;
    result->reach = lease->reach;
    result->lease = lease->id;
    memcpy(result->token, lease->token, sizeof(result->token));
    result->lease_ms = lease_extend(lease, req->lease_ms);
    return KVC_OK;
}

static kvc_status answer(struct owner *owner, const struct store_lookup *req,
                         const struct prefix *found, struct lease *lease,
                         struct store_lookup_result *result, struct refusal *why)
{
    struct store *store = owner->store;

    store->stats.limited_lookups += found->limited;
    result->pending = count_pending(store, req, found, granted(req, found));
    if (req->probe) {
        result->count = found->count;
        count_tiers(store, found, result);
        return KVC_OK;
    }
    if (found->count > 0 || (found->more && found->n > 0))
        return grant(owner, req, found, lease, result, why);
    store->stats.misses += req->quiet || (lease && req->lease == 0) ? 0 : req->parts[0].n_keys;
    if (lease)
        lease_end(lease);
    return KVC_OK;
}

kvc_status store_lookup(struct store *store, struct owner *owner, const struct store_lookup *req,
                        struct store_lookup_result *ret, struct refusal *why)
{
    struct store_lookup_result result = {0};
    struct lease *lease = NULL;
    struct prefix found;
    uint32_t *memory;
    kvc_status status = check(owner, req, why);

    if (status == KVC_OK && !req->probe)
        status = find_target(owner, req, &lease, why);
    else if (status == KVC_OK && req->offset != 0)
        status = store_refuse(why, KVC_E_INVALID, "offset", "a probe names no lease");
    if (status != KVC_OK)
        return status;
    memory = mem_alloc((size_t)req->n_parts * req->parts[0].n_keys * sizeof(uint32_t) + 1);
    if (!memory)
        return store_refuse(why, KVC_E_NO_MEMORY, "", "out of memory");
    for (uint32_t p = 0; p < req->n_parts; p++)
        found.blocks[p] = memory + (size_t)p * req->parts[0].n_keys;
    prefix_find(store, req, lease, &found);
    status = answer(owner, req, &found, lease, &result, why);
    mem_free(memory);
    if (status == KVC_OK)
        *ret = result;
    store_settle(store);
    return status;
}

void store_find(const struct store *store, uint32_t part, const uint8_t *keys, uint32_t n,
                uint64_t *ready, uint64_t *coming)
{
    memset(ready, 0, (n + 63) / 64 * sizeof(*ready));
    memset(coming, 0, (n + 63) / 64 * sizeof(*coming));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = blocks_find(store->blocks, part, keys + (size_t)i * KVC_KEY_BYTES);

        if (id != BLOCK_NONE)
            (blocks_get(store->blocks, id)->state == BLOCK_READY ? ready : coming)[i / 64] |=
                1ull << i % 64;
    }
}

void store_find_in(const struct store *store, enum tier_kind tier, uint32_t part,
                   const uint8_t *keys, uint32_t n, uint64_t *in)
{
    memset(in, 0, (n + 63) / 64 * sizeof(*in));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t id = blocks_find(store->blocks, part, keys + (size_t)i * KVC_KEY_BYTES);
        const struct block *block = id != BLOCK_NONE ? blocks_get(store->blocks, id) : NULL;

        if (block != NULL && block->state == BLOCK_READY && tier_of(block) == tier)
            in[i / 64] |= 1ull << i % 64;
    }
}

uint32_t store_needed(const struct store *store, uint32_t part)
{
    return part_needed(store, part);
}

static kvc_status find_by_token(const struct owner *owner, const uint8_t *token, uint32_t len,
                                struct lease **ret, struct refusal *why)
{
    const struct store *store = owner->store;
    struct lease *lease;
    uint64_t id;

    if (len != KVC_TOKEN_BYTES)
        return store_refuse(why, KVC_E_INVALID, "token", "not 16 bytes");
    memcpy(&id, token, sizeof(id));
    lease = handles_get(&store->leases, id);
    if (!lease || !owner_equal_bytes(lease->token, token, KVC_TOKEN_BYTES) ||
        lease->owner->identity.tenant != owner->identity.tenant)
        return store_refuse(why, KVC_E_UNKNOWN, "token", "no lease has it, or it has ended");
    if (lease->ends.at <= clock_now_us())
        return store_refuse(why, KVC_E_EXPIRED, "token", "the lease has ended");
    *ret = lease;
    return KVC_OK;
}

kvc_status store_adopt(struct store *store, struct owner *owner, const uint8_t *token,
                       uint32_t token_len, uint32_t part, uint32_t epoch, uint32_t ms,
                       struct store_lookup_result *result, struct refusal *why)
{
    const struct lease_part *from;
    struct lease *lease = NULL, *adopted;
    kvc_status status;

    if (owner->identity.role == STORE_ROLE_OPERATOR)
        return store_refuse(why, KVC_E_DENIED, "", "operators hold no leases");
    status = owner_check_part(owner, part, epoch, NULL, 0, why);
    if (status == KVC_OK)
        status = find_by_token(owner, token, token_len, &lease, why);
    if (status != KVC_OK)
        return status;
    from = lease_part(lease, part);
    if (!from)
        return store_refuse(why, KVC_E_INVALID, "part", "the lease does not cover it");
    status = lease_create(owner, &part, 1, 0, &adopted, why);
    if (status != KVC_OK)
        return status;
    status = lease_reserve(adopted, lease->count, why);
    if (status != KVC_OK) {
        lease_end(adopted);
        return status;
    }
    *result = (struct store_lookup_result){.count = lease->count, .lease = adopted->id};
    for (uint32_t i = 0; i < lease->count; i++) {
        const struct block *block;

        if (from->blocks[i] == BLOCK_NONE)
            continue;
        block = blocks_get(store->blocks, from->blocks[i]);
        keep_lease(store, from->blocks[i]);
        if (block->state == BLOCK_READY)
            result->in_tier[tier_of(block)]++;
    }
    /* What it has lost, and was not looked at for, is this one's too. */
    adopted->looked = lease->looked;
    adopted->looked_to = lease->looked_to;
    lease_set(adopted, 0, lease->count, (uint32_t *const[]){from->blocks}, lease->count);
    memcpy(result->token, adopted->token, sizeof(result->token));
    result->lease_ms = lease_extend(adopted, ms);
    return KVC_OK;
}
