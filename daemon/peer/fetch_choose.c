/* What is fetched, and who gives it: from what is here and what was offered. */
#ifdef KVC_UCX

#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
#include "daemon/peer/fetch.h"

/* What is here. */

static uint32_t boundary(const struct fetch *f, uint32_t set, uint32_t end)
{
    struct plan_rule rules[KVC_PARTS_MAX];

    for (uint32_t p = 0; p < f->n_parts; p++)
        rules[p] = (struct plan_rule){f->parts[p].needed, fetch_bits(f, set, p)};
    return plan_boundary(rules, f->n_parts, f->base, end);
}

bool fetch_survey(struct fetch *f)
{
    for (uint32_t p = 0; p < f->n_parts; p++) {
        uint64_t *here = fetch_bits(f, FETCH_HERE, p), *coming = fetch_bits(f, FETCH_COMING, p);

        store_find(f->peers->config.store, f->parts[p].part, f->parts[p].keys, f->n_keys, here,
                   coming);
        for (uint32_t w = 0; w < f->words; w++)
            coming[w] |= here[w];
    }
    f->n_missing = 0;
    for (uint32_t k = f->base; k < f->n_keys; k++)
        for (uint32_t p = 0; p < f->n_parts; p++)
            if (fetch_is_full(f, p) && !fetch_has(f, FETCH_HERE, p, k)) {
                f->missing[f->n_missing++] = k;
                break;
            }
    return boundary(f, FETCH_COMING, f->n_keys) > boundary(f, FETCH_HERE, f->n_keys);
}

/* The boundary. */

/* All was heard of it that was asked. */
static bool is_whole(const struct offer *o)
{
    return o->peer != NULL && o->n_due == 0;
}

/* How far full parts come, and the others have what they need. */
static uint32_t find_end(const struct fetch *f, uint32_t reach)
{
    for (uint32_t p = 0; p < f->n_parts; p++) {
        uint64_t *any = fetch_bits(f, FETCH_ANY, p);

        if (fetch_is_full(f, p)) {
            memset(any, 0xff, f->words * sizeof(*any));
            continue;
        }
        memcpy(any, fetch_bits(f, FETCH_HERE, p), f->words * sizeof(*any));
        for (uint32_t i = 0; i < f->n_offers; i++)
            for (uint32_t w = 0; is_whole(&f->offers[i]) && w < f->words; w++)
                any[w] |= fetch_bits(f, FETCH_OFFERS + i, p)[w];
    }
    return boundary(f, FETCH_ANY, reach);
}

/* Sources. */

static void place_parts(struct fetch *f, uint32_t *n)
{
    *n = 0;
    for (uint32_t p = 0; p < f->n_parts; p++) {
        struct fetch_part *part = &f->parts[p];

        part->start = f->end - f->base > part->needed ? f->end - part->needed : f->base;
        part->place = *n;
        *n += f->end - part->start;
    }
}

static void choose_full(struct fetch *f, const struct plan_share *share)
{
    struct offer *o = &f->offers[share->source];

    for (uint32_t i = share->first; i < share->first + share->count; i++) {
        if (f->missing[i] >= f->end)
            return;
        o->used = true;
        for (uint32_t p = 0; p < f->n_parts; p++)
            if (fetch_is_full(f, p))
                f->sources[f->parts[p].place + f->missing[i] - f->base] =
                    (struct fetch_source){share->source, i - o->firsts[p]};
    }
}

/* Rather one who gives something already, then the least loaded. */
static uint32_t pick(const struct fetch *f, uint32_t p, uint32_t key)
{
    uint32_t best = PEERS_MAX;

    for (uint32_t i = 0; i < f->n_offers; i++) {
        const struct offer *o = &f->offers[i];

        if (!is_whole(o) || !fetch_has(f, FETCH_OFFERS + i, p, key))
            continue;
        if (best == PEERS_MAX || o->used > f->offers[best].used ||
            (o->used == f->offers[best].used && o->load < f->offers[best].load))
            best = i;
    }
    return best;
}

static void choose_others(struct fetch *f, uint32_t p)
{
    const struct fetch_part *part = &f->parts[p];

    for (uint32_t k = part->start; k < f->end; k++) {
        const uint32_t source = fetch_has(f, FETCH_HERE, p, k) ? PEERS_MAX : pick(f, p, k);

        if (source == PEERS_MAX)
            continue;
        f->offers[source].used = true;
        f->sources[part->place + k - part->start] =
            (struct fetch_source){source, f->offers[source].wanted[p]++};
    }
}

/* Merged as T9 wants it: no block is named for two places, nor two for one. */
static bool are_merged(const struct fetch *f, uint32_t n)
{
    struct plan_want *wants = mem_array(n, sizeof(*wants));
    struct plan_place *places = mem_array(n, sizeof(*places));
    uint32_t *scratch = mem_array(n, sizeof(*scratch)), n_places = 0;
    bool ok = wants != NULL && places != NULL && scratch != NULL;

    for (uint32_t p = 0, i = 0; ok && p < f->n_parts; p++)
        for (uint32_t k = f->parts[p].start; k < f->end; k++, i++)
            wants[i] = (struct plan_want){f->parts[p].keys + (size_t)k * KVC_KEY_BYTES, i,
                                          f->parts[p].part, f->sources[i].offer};
    ok = ok && plan_merge(wants, n, scratch, places, &n_places) == KVC_OK && n_places == n;
    mem_free(scratch);
    mem_free(places);
    mem_free(wants);
    return ok;
}

static bool choose(struct fetch *f, const struct plan_share *shares, uint32_t n_shares)
{
    uint32_t n;

    place_parts(f, &n);
    f->sources = mem_array(n, sizeof(*f->sources));
    if (f->sources == NULL)
        return false;
    for (uint32_t i = 0; i < n; i++)
        f->sources[i].offer = PEERS_MAX;
    for (uint32_t i = 0; i < n_shares; i++)
        choose_full(f, &shares[i]);
    for (uint32_t p = 0; p < f->n_parts; p++)
        if (!fetch_is_full(f, p))
            choose_others(f, p);
    return are_merged(f, n);
}

/* Leases of what rules need. */

/* Who was asked what he has is asked for what is wanted of him. */
static void lease_at(struct fetch *f, uint32_t i)
{
    struct offer *o = &f->offers[i];
    uint8_t keys[KVC_KEYS_MAX * KVC_KEY_BYTES];

    o->first_id = f->peers->next_id;
    f->peers->next_id += f->n_parts;
    o->answered = UINT64_MAX;
    for (uint32_t p = 0; p < f->n_parts; p++) {
        const struct fetch_part *part = &f->parts[p];
        uint32_t n = 0;

        if (o->wanted[p] == 0)
            continue;
        for (uint32_t k = part->start; k < f->end; k++)
            if (f->sources[part->place + k - part->start].offer == i)
                memcpy(keys + n++ * KVC_KEY_BYTES, part->keys + (size_t)k * KVC_KEY_BYTES,
                       KVC_KEY_BYTES);
        o->answered &= ~(1ull << p);
        o->n_due++;
        fetch_query(f, o->peer, o->first_id + p, p, true, keys, n);
    }
}

static bool wants_any(const struct fetch *f, const struct offer *o)
{
    for (uint32_t p = 0; p < f->n_parts; p++)
        if (o->wanted[p] > 0)
            return true;
    return false;
}

/* What was chosen is moved; or there is nothing to move, or no memory. */
static void go(struct fetch *f)
{
    if (!fetch_move(f))
        fetch_go_on(f);
}

void fetch_look_leases(struct fetch *f, uint64_t now)
{
    struct peers *peers = f->peers;
    bool failed = false, waits = false;

    for (uint32_t i = 0; i < f->n_offers; i++) {
        const struct offer *o = &f->offers[i];
        const bool late = o->n_due > 0 && now >= f->asked_us + f->patience_us;

        if (!o->used)
            continue;
        failed = failed || o->peer == NULL || o->failed || late;
        waits = waits || o->n_due > 0;
        if (o->peer != NULL && (o->failed || late))
            fetch_exclude(f, o->peer);
    }
    if (failed) {
        f->lost = true;
        fetch_go_on(f);
    } else if (!waits) {
        go(f);
    }
    batch_start_some(peers);
}

/* Those that were not chosen are let go: what they say from now on comes too late. */
static void drop_unused(struct fetch *f)
{
    for (uint32_t i = 0; i < f->n_offers; i++) {
        struct offer *o = &f->offers[i];

        if (o->used) {
            o->failed = false; /* of the runs that it might have had */
            continue;
        }
        fetch_release(f, o);
        o->peer = NULL;
    }
}

static void lease_and_go(struct fetch *f)
{
    bool any = false;

    for (uint32_t i = 0; i < f->n_offers; i++)
        any = any || wants_any(f, &f->offers[i]);
    if (!any) {
        go(f);
        return;
    }
    fetch_set_state(f, FETCH_LEASING);
    f->asked_us = clock_now_us();
    for (uint32_t i = 0; i < f->n_offers; i++)
        if (wants_any(f, &f->offers[i]))
            lease_at(f, i);
}

/* All have answered, or those who have not had their time. */
void fetch_decide(struct fetch *f)
{
    struct plan_offer offers[PEERS_MAX];
    struct plan_share shares[PEERS_MAX];
    struct peers *peers = f->peers;
    uint32_t n_shares, total = 0;

    for (uint32_t i = 0; i < f->n_offers; i++) {
        const struct offer *o = &f->offers[i];
        const bool runs = is_whole(o) && !o->failed && o->end > o->first;

        offers[i] = (struct plan_offer){o->first, runs ? o->end - o->first : 0, o->load};
    }
    n_shares = plan_choose(offers, f->n_offers, shares);
    for (uint32_t i = 0; i < n_shares; i++)
        total += shares[i].count;
    f->end = find_end(f, total == f->n_missing ? f->n_keys : f->missing[total]);
    if (f->end == f->base || !choose(f, shares, n_shares)) {
        fetch_go_on(f);
    } else {
        drop_unused(f);
        lease_and_go(f);
    }
    batch_start_some(peers);
}

#endif
