#include "daemon/peer/plan.h"

#include <stdlib.h>
#include <string.h>

/* How far an offer reaches from a block on, if it has that block. */
static uint32_t reach(const struct plan_offer *offer, uint32_t at)
{
    if (at < offer->first || at - offer->first >= offer->count)
        return 0;
    return offer->count - (at - offer->first);
}

uint32_t plan_choose(const struct plan_offer *offers, uint32_t n, struct plan_share *shares)
{
    uint32_t at = 0, n_shares = 0;

    for (;;) {
        uint32_t best = n, longest = 0;

        for (uint32_t i = 0; i < n; i++) {
            uint32_t length = reach(&offers[i], at);

            if (length == 0 || length < longest ||
                (length == longest && offers[i].load >= offers[best].load))
                continue;
            best = i;
            longest = length;
        }
        if (best == n)
            return n_shares;
        shares[n_shares++] = (struct plan_share){best, at, longest};
        at += longest;
    }
}

uint32_t plan_boundary(const struct plan_rule *rules, uint32_t n, uint32_t from, uint32_t end)
{
    uint32_t run[KVC_PARTS_MAX] = {0}, found = from;

    for (uint32_t k = from; k < end; k++) {
        const uint32_t length = k + 1 - from;
        bool holds = true;

        for (uint32_t p = 0; p < n; p++) {
            run[p] = rules[p].has[k / 64] & 1ull << k % 64 ? run[p] + 1 : 0;
            holds = holds && run[p] >= (rules[p].needed < length ? rules[p].needed : length);
        }
        if (holds)
            found = k + 1;
    }
    return found;
}

static int compare_blocks(const struct plan_want *a, const struct plan_want *b)
{
    if (a->part != b->part)
        return a->part < b->part ? -1 : 1;
    return memcmp(a->key, b->key, KVC_KEY_BYTES);
}

struct order {
    const struct plan_want *wants;
    const struct plan_place *places;
};

/* By destination; the one that was named first comes first. */
static int by_destination(const void *left, const void *right, void *arg)
{
    const struct plan_want *wants = ((const struct order *)arg)->wants;
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    if (wants[a].destination != wants[b].destination)
        return wants[a].destination < wants[b].destination ? -1 : 1;
    return a < b ? -1 : 1;
}

/* Places by their block, earlier places first. */
static int by_block(const void *left, const void *right, void *arg)
{
    const struct order *order = arg;
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    int blocks =
        compare_blocks(&order->wants[order->places[a].want], &order->wants[order->places[b].want]);

    return blocks != 0 ? blocks : a < b ? -1 : 1;
}

/* Places for the wants in sorted[]; false: two of one destination are different blocks. */
static bool place_wants(const struct plan_want *wants, const uint32_t *sorted, uint32_t n,
                        struct plan_place *places, uint32_t *n_places)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct plan_want *want = &wants[sorted[i]];
        const struct plan_want *last = kept > 0 ? &wants[places[kept - 1].want] : NULL;

        if (!last || last->destination != want->destination)
            places[kept++].want = sorted[i];
        else if (compare_blocks(last, want) != 0)
            return false;
    }
    *n_places = kept;
    return true;
}

kvc_status plan_merge(const struct plan_want *wants, uint32_t n, uint32_t *scratch,
                      struct plan_place *places, uint32_t *n_places)
{
    struct order order = {wants, places};
    uint32_t kept = 0, first = 0;

    for (uint32_t i = 0; i < n; i++)
        scratch[i] = i;
    qsort_r(scratch, n, sizeof(*scratch), by_destination, &order);
    if (!place_wants(wants, scratch, n, places, &kept))
        return KVC_E_DUPLICATE;
    for (uint32_t i = 0; i < kept; i++)
        scratch[i] = i;
    qsort_r(scratch, kept, sizeof(*scratch), by_block, &order);
    for (uint32_t i = 0; i < kept; i++) {
        if (i == 0 ||
            compare_blocks(&wants[places[first].want], &wants[places[scratch[i]].want]) != 0)
            first = scratch[i];
        places[scratch[i]].from = first;
    }
    *n_places = kept;
    return KVC_OK;
}

bool plan_cut_next(struct plan_cut *cut, uint64_t block_bytes, uint64_t view_bytes)
{
    bool begins = cut->blocks == 0 || cut->blocks == KVC_CHUNK_BLOCKS || block_bytes > view_bytes ||
                  cut->bytes > view_bytes - block_bytes;

    if (begins)
        *cut = (struct plan_cut){0};
    cut->blocks++;
    cut->bytes += block_bytes;
    return begins;
}

uint32_t plan_runs(const uint64_t *from, const uint64_t *to, uint32_t n, uint64_t bytes,
                   struct plan_run *runs)
{
    uint32_t n_runs = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct plan_run *last = n_runs > 0 ? &runs[n_runs - 1] : NULL;

        if (last && last->from + last->bytes == from[i] && last->to + last->bytes == to[i])
            last->bytes += bytes;
        else
            runs[n_runs++] = (struct plan_run){from[i], to[i], bytes};
    }
    return n_runs;
}
