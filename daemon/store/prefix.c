#include "daemon/store/prefix.h"

#include <string.h>

#include "daemon/store/usage.h"

static bool is_no_hit(void *arg, uint32_t id)
{
    return id == BLOCK_NONE || blocks_get(arg, id)->state != BLOCK_READY;
}

static bool go_on(void *arg, uint32_t id)
{
    (void)arg, (void)id;
    return false;
}

/* Blocks that are there, without a gap, in front of the lookup's offset; as far as it matters. */
static uint32_t run_before(const struct lease *lease, uint32_t p, uint32_t offset)
{
    uint32_t end = offset < lease->parts[p].needed ? offset : lease->parts[p].needed, run = 0;

    while (run < end && lease->parts[p].blocks[offset - run - 1] != BLOCK_NONE)
        run++;
    return run;
}

/* What the lists of parts with other rules have, as far as the full ones reach. */
static void find_others(const struct store *store, const struct store_lookup *req,
                        struct prefix *found)
{
    for (uint32_t p = 0; p < req->n_parts; p++) {
        if (found->needed[p] == UINT32_MAX)
            continue;
        blocks_find_run(store->blocks, req->parts[p].part, req->parts[p].keys, found->n, go_on,
                        NULL, found->blocks[p]);
        for (uint32_t i = 0; i < found->n; i++)
            if (is_no_hit(store->blocks, found->blocks[p][i]))
                found->blocks[p][i] = BLOCK_NONE;
    }
}

/*
 * What quotas of leases let a lookup hold. Blocks that a lease holds already, this one too, cost
 * nothing. Parts of one namespace share its quota: the first of them stands for all.
 */
struct limit {
    const struct blocks *blocks;
    bool any;
    uint32_t stands[KVC_PARTS_MAX];
    uint64_t room[KVC_PARTS_MAX]; /* of those that stand for themselves */
    uint32_t new[KVC_PARTS_MAX];  /* blocks that would be held for the keys counted so far */
};

static void begin_limit(const struct store *store, const struct store_lookup *req,
                        struct limit *limit)
{
    *limit = (struct limit){.blocks = store->blocks};
    for (uint32_t p = 0; p < req->n_parts && !req->probe; p++) {
        const struct usage *usage = usage_of(store, req->parts[p].part);

        while (usage_of(store, req->parts[limit->stands[p]].part) != usage)
            limit->stands[p]++;
        limit->room[p] = usage_lease_room(usage);
        limit->any = limit->any || limit->room[p] != UINT64_MAX;
    }
}

static bool is_new(const struct limit *limit, uint32_t id)
{
    return id != BLOCK_NONE && blocks_get(limit->blocks, id)->leases == 0;
}

/* Key n - 1 of a part joins those that are counted; the one that its rule lets go leaves them. */
static void count_key(struct limit *limit, const struct prefix *found, uint32_t p, uint32_t n)
{
    limit->new[p] += is_new(limit, found->blocks[p][n - 1]);
    if (n > found->needed[p])
        limit->new[p] -= is_new(limit, found->blocks[p][n - 1 - found->needed[p]]);
}

static bool fits(const struct limit *limit, uint32_t n_parts)
{
    uint64_t held[KVC_PARTS_MAX] = {0};

    for (uint32_t p = 0; p < n_parts; p++) {
        held[limit->stands[p]] += limit->new[p];
        if (held[limit->stands[p]] > limit->room[limit->stands[p]])
            return false;
    }
    return true;
}

/* As far as what full parts would hold is let: they hold everything up to the end. */
static void limit_full(struct limit *limit, uint32_t n_parts, struct prefix *found)
{
    for (uint32_t n = 1; limit->any && n <= found->n; n++) {
        for (uint32_t p = 0; p < n_parts; p++)
            if (found->needed[p] == UINT32_MAX)
                count_key(limit, found, p, n);
        if (fits(limit, n_parts))
            continue;
        found->n = n - 1;
        found->limited = true;
    }
    memset(limit->new, 0, sizeof(limit->new));
}

/*
 * What a lease of which everything behind `offset` goes is still good for: all of it, if nothing
 * does; else up to there if every rule has what it needs in front of it.
 */
static uint32_t rest_of(const struct lease *lease, uint32_t offset, const uint32_t *run)
{
    if (lease->count <= offset)
        return lease->count;
    for (uint32_t p = 0; p < lease->n_parts; p++) {
        uint32_t needed = lease->parts[p].needed;

        if (needed != UINT32_MAX && run[p] < (needed < offset ? needed : offset))
            return 0;
    }
    return offset;
}

/* The longest prefix whose end has enough blocks in front of it in every part. */
static void find_boundary(const struct store_lookup *req, const struct lease *lease,
                          struct limit *limit, struct prefix *found)
{
    uint32_t run[KVC_PARTS_MAX] = {0};

    for (uint32_t p = 0; p < req->n_parts && req->offset > 0; p++)
        if (found->needed[p] != UINT32_MAX)
            run[p] = run_before(lease, p, req->offset);
    found->count = lease && req->offset > 0 ? rest_of(lease, req->offset, run) : 0;
    for (uint32_t n = 1; n <= found->n; n++) {
        uint32_t end = req->offset + n;
        bool holds = true;

        for (uint32_t p = 0; p < req->n_parts; p++) {
            if (limit->any)
                count_key(limit, found, p, n);
            if (found->needed[p] == UINT32_MAX)
                continue;
            run[p] = found->blocks[p][n - 1] != BLOCK_NONE ? run[p] + 1 : 0;
            holds = holds && run[p] >= (found->needed[p] < end ? found->needed[p] : end);
        }
        if (holds && limit->any && !fits(limit, req->n_parts))
            found->limited = true;
        else if (holds)
            found->count = end;
    }
}

/* Whether what is held for the boundary and to go on behind the last key is let, both together. */
static bool fits_reach(const struct store_lookup *req, struct limit *limit,
                       const struct prefix *found)
{
    uint32_t reach = req->offset + found->n;

    memset(limit->new, 0, sizeof(limit->new));
    for (uint32_t p = 0; p < req->n_parts; p++)
        for (uint32_t i = 0; i < found->n; i++)
            if (lease_needs(found->needed[p], req->offset + i, found->count) ||
                lease_needs(found->needed[p], req->offset + i, reach))
                limit->new[p] += is_new(limit, found->blocks[p][i]);
    return fits(limit, req->n_parts);
}

/* What no rule needs for the boundary, nor to go on behind the last key, is not held. */
static void drop_unneeded(const struct store_lookup *req, struct prefix *found)
{
    uint32_t reach = req->offset + found->n;

    for (uint32_t p = 0; p < req->n_parts; p++)
        for (uint32_t i = 0; found->needed[p] != UINT32_MAX && i < found->n; i++)
            if (!lease_needs(found->needed[p], req->offset + i, found->count) &&
                !lease_needs(found->needed[p], req->offset + i, reach))
                found->blocks[p][i] = BLOCK_NONE;
}

void prefix_find(const struct store *store, const struct store_lookup *req,
                 const struct lease *lease, struct prefix *found)
{
    struct limit limit;

    begin_limit(store, req, &limit);
    found->limited = false;
    found->n = req->parts[0].n_keys;
    for (uint32_t p = 0; p < req->n_parts; p++) {
        found->needed[p] = part_needed(store, req->parts[p].part);
        if (found->needed[p] == UINT32_MAX && found->n > 0)
            found->n = blocks_find_run(store->blocks, req->parts[p].part, req->parts[p].keys,
                                       found->n, is_no_hit, store->blocks, found->blocks[p]);
    }
    limit_full(&limit, req->n_parts, found);
    find_others(store, req, found);
    find_boundary(req, lease, &limit, found);
    found->more = req->more && found->n == req->parts[0].n_keys;
    if (found->more && limit.any && !fits_reach(req, &limit, found)) {
        found->more = false;
        found->limited = true;
    }
    if (!found->more)
        found->n = found->count > req->offset ? found->count - req->offset : 0;
    drop_unneeded(req, found);
}
