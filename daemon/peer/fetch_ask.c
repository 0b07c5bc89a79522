/* What peers are asked, and what they answer: offers of a fetch, and the leases behind them. */
#ifdef KVC_UCX

#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/peer/fetch.h"

/* Leases at the sources. */

static void release_part(struct offer *offer, uint32_t p)
{
    const struct message m = {.type = MESSAGE_RELEASE, .id = offer->leases[p]};

    if (offer->leases[p] != 0 && offer->peer != NULL && offer->peer->control != NULL)
        link_send(offer->peer->control, &m);
    offer->leases[p] = 0;
}

void fetch_release(struct fetch *f, struct offer *offer)
{
    for (uint32_t p = 0; p < f->n_parts; p++)
        release_part(offer, p);
}

void fetch_release_all(struct fetch *f)
{
    for (uint32_t i = 0; i < f->n_offers; i++)
        fetch_release(f, &f->offers[i]);
    f->n_offers = 0;
}

/* Asking. */

static bool is_excluded(const struct fetch *f, const struct peer *peer)
{
    for (uint32_t i = 0; i < f->n_failed; i++)
        if (f->failed[i] == peer)
            return true;
    return false;
}

void fetch_exclude(struct fetch *f, struct peer *peer)
{
    if (!is_excluded(f, peer) && f->n_failed < PEERS_MAX)
        f->failed[f->n_failed++] = peer;
}

/* It outlasts the fetch. */
static uint32_t lease_ms(const struct fetch *f)
{
    const uint64_t now = clock_now_us();
    const uint64_t left = f->deadline_us > now ? f->deadline_us - now : 0;

    return (uint32_t)(left / CLOCK_MS_US) + LEASE_SLACK_MS;
}

void fetch_query(const struct fetch *f, struct peer *peer, uint64_t id, uint32_t p, bool lease,
                 const uint8_t *keys, uint32_t n_keys)
{
    const struct table *table = store_table(f->peers->config.store);
    const struct table_part *part = table_part(table, f->parts[p].part);
    const struct message m = {
        .type = MESSAGE_QUERY,
        .query = {
            .id = id,
            .namespace_digest = table_namespace(table, part->namespace_)->digest,
            .fingerprint = table_layout(table, part->layout)->fingerprint,
            .rule = part->rule,
            .window = part->window,
            .lease_ms = lease ? lease_ms(f) : 0,
            .keys = keys,
            .n_keys = n_keys,
        }};

    link_send(peer->control, &m);
    ucx_worker_soon(f->peers->ask);
}

/* Of full parts a run of what is missing is leased at once; of others it is asked what is there,
 * since what is needed of them follows from the boundary. */
static void ask_peer(struct fetch *f, struct peer *peer)
{
    struct offer *offer = &f->offers[f->n_offers++];
    uint8_t missing[KVC_KEYS_MAX * KVC_KEY_BYTES];

    *offer = (struct offer){
        .peer = peer,
        .first_id = f->peers->next_id,
        .end = f->n_missing,
    };
    f->peers->next_id += f->n_parts;
    for (uint32_t p = 0; p < f->n_parts; p++) {
        const struct fetch_part *part = &f->parts[p];

        memset(fetch_bits(f, FETCH_OFFERS + f->n_offers - 1, p), 0, f->words * sizeof(uint64_t));
        if (fetch_is_full(f, p) && f->n_missing == 0) {
            offer->answered |= 1ull << p;
            continue;
        }
        offer->n_due++;
        for (uint32_t i = 0; fetch_is_full(f, p) && i < f->n_missing; i++)
            memcpy(missing + i * KVC_KEY_BYTES, part->keys + f->missing[i] * KVC_KEY_BYTES,
                   KVC_KEY_BYTES);
        if (fetch_is_full(f, p))
            fetch_query(f, peer, offer->first_id + p, p, true, missing, f->n_missing);
        else
            fetch_query(f, peer, offer->first_id + p, p, false,
                        part->keys + f->base * KVC_KEY_BYTES, f->n_keys - f->base);
    }
}

static bool can_ask(const struct fetch *f, const struct peer *peer)
{
    return peer->tenant == f->tenant && peer->state == PEER_OPEN &&
           peer->control->state == LINK_OPEN && !is_excluded(f, peer) && f->n_offers < PEERS_MAX;
}

/* Which of those that it knows have any of the keys that are missing. */
static void ask_directory(struct fetch *f)
{
#ifdef KVC_DIRECTORY
    const char *names[PEERS_MAX];
    const struct peer *peer;
    uint32_t n = 0, p = 0;

    /* Who has some keys of one part is asked for all: of a full one, since nothing comes without
     * those. */
    while (p < f->n_parts && !fetch_is_full(f, p))
        p++;
    if (p == f->n_parts)
        p = 0;

    list_for_each(peer, &f->peers->list, link)
        if (peer->hinted && can_ask(f, peer))
            names[n++] = peer->name;
    if (f->peers->directory != NULL && f->tenant == f->peers->tenant &&
        directory_ask(f->peers->directory, f->peers->next_id + 1, f->parts[p].part,
                      f->parts[p].keys + (size_t)f->base * KVC_KEY_BYTES, f->n_keys - f->base,
                      names, n))
        f->hint = ++f->peers->next_id;
#else
    (void)f;
#endif
}

/* Asks every peer that has not failed; false: there is none. */
bool fetch_ask(struct fetch *f)
{
    struct peer *peer;

    f->n_offers = 0;
    f->asked_us = clock_now_us();
    f->lost = false;
    (void)fetch_survey(f);
    list_for_each(peer, &f->peers->list, link)
        if (can_ask(f, peer) && !peer->hinted)
            ask_peer(f, peer);
    f->hint = 0;
    ask_directory(f);
    return f->n_offers > 0 || f->hint != 0;
}

/* Peers that the directory has are asked only if it says that they have something. */
void fetch_hint(struct peers *peers, uint64_t number, const char *const *names, uint32_t n)
{
    struct fetch *f;
    struct peer *peer;

    list_for_each(f, &peers->fetches, link) {
        if (f->hint != number)
            continue;
        f->hint = 0;
        if (f->state != FETCH_ASKING)
            return;
        list_for_each(peer, &peers->list, link)
            for (uint32_t i = 0; i < n; i++)
                if (peer->hinted && can_ask(f, peer) && strcmp(peer->name, names[i]) == 0)
                    ask_peer(f, peer);
        if (fetch_is_decided(f, clock_now_us()))
            fetch_decide(f);
        return;
    }
}

/* One slow peer does not hold up what others have. */
bool fetch_is_decided(const struct fetch *f, uint64_t now)
{
    if (f->hint != 0 && now < f->asked_us + f->patience_us)
        return false;
    for (uint32_t i = 0; i < f->n_offers; i++) {
        const struct offer *o = &f->offers[i];

        if (o->peer != NULL && o->n_due > 0 && (!o->failed || f->n_full < f->n_parts) &&
            now < f->asked_us + f->patience_us)
            return false;
    }
    return true;
}

/* A run of what is missing of a full part. */
static void note_run(const struct fetch *f, struct offer *o, const struct message_answer *a)
{
    if (a->status != KVC_OK || a->count == 0 || a->lease == 0 || a->first > f->n_missing ||
        a->count > f->n_missing - a->first) {
        o->failed = true;
        return;
    }
    o->first = a->first > o->first ? a->first : o->first;
    o->end = a->first + a->count < o->end ? a->first + a->count : o->end;
}

static void note_keys(const struct fetch *f, const struct offer *o, uint32_t p,
                      const struct message_answer *a)
{
    uint64_t *has = fetch_bits(f, FETCH_OFFERS + (uint32_t)(o - f->offers), p);

    if (a->status != KVC_OK || a->n_keys != f->n_keys - f->base)
        return;
    for (uint32_t i = 0, k = f->base; i < a->n_keys; i++, k++)
        if (message_u64(a->has, i / 64) & 1ull << i % 64)
            has[k / 64] |= 1ull << k % 64;
}

/* Which of what it has leased lies on its GPU, and can be read there. */
static void note_on_gpu(const struct fetch *f, const struct offer *o, uint32_t p,
                        const struct message_answer *a)
{
    uint64_t *on = fetch_bits(f, FETCH_ON_GPU + (uint32_t)(o - f->offers), p);

    memset(on, 0, f->words * sizeof(*on));
    if (a->on_gpu == 0 || !gpu_is_read(o->peer, f->parts[p].shape->span))
        return;
    for (uint32_t i = 0; i < a->count && i < f->n_keys; i++)
        if (a->on_gpu >= a->count ||
            (i < a->n_keys && (message_u64(a->has, i / 64) & 1ull << i % 64) != 0))
            on[i / 64] |= 1ull << i % 64;
}

static void note_answer(struct fetch *f, struct offer *o, uint32_t p,
                        const struct message_answer *a)
{
    o->n_due--;
    o->answered |= 1ull << p;
    o->leases[p] = a->lease;
    o->parts[p] = a->part;
    o->firsts[p] = a->first;
    o->load = a->load;
    note_on_gpu(f, o, p, a);
    if (f->state == FETCH_LEASING) {
        o->failed = o->failed || a->status != KVC_OK || a->lease == 0 || a->first != 0 ||
                    a->count != o->wanted[p];
        fetch_look_leases(f, clock_now_us());
        return;
    }
    if (fetch_is_full(f, p))
        note_run(f, o, a);
    else
        note_keys(f, o, p, a);
    if (fetch_is_decided(f, clock_now_us()))
        fetch_decide(f);
}

void fetch_answer(struct peer *peer, const struct message_answer *a)
{
    struct fetch *f;
    const struct message m = {.type = MESSAGE_RELEASE, .id = a->lease};

    list_for_each(f, &peer->peers->fetches, link) {
        if (f->state != FETCH_ASKING && f->state != FETCH_LEASING)
            continue;
        for (uint32_t i = 0; i < f->n_offers; i++) {
            struct offer *o = &f->offers[i];
            const uint64_t p = a->id - o->first_id;

            if (o->peer != peer || p >= f->n_parts || (o->answered & 1ull << p) != 0)
                continue;
            note_answer(f, o, (uint32_t)p, a);
            return;
        }
    }
    /* Nobody waits for it any more. */
    peer->stale++;
    if (a->lease != 0 && peer->control != NULL)
        link_send(peer->control, &m);
}

#endif
