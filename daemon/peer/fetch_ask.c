/* What peers are asked, and what they answer: offers of a fetch, and the leases behind them. */
#ifdef KVC_UCX

#include <assert.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
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

static void ask_peer(struct fetch *f, struct peer *peer)
{
    const struct table *table = store_table(f->peers->config.store);
    struct offer *offer = &f->offers[f->n_offers++];

    *offer = (struct offer){
        .peer = peer,
        .first_id = f->peers->next_id,
        .n_due = f->n_parts,
        .end = f->n_keys - f->base,
    };
    f->peers->next_id += f->n_parts;
    for (uint32_t p = 0; p < f->n_parts; p++) {
        const struct table_part *part = table_part(table, f->parts[p].part);
        const struct message m = {
            .type = MESSAGE_QUERY,
            .query = {
                .id = offer->first_id + p,
                .namespace_digest = table_namespace(table, part->namespace_)->digest,
                .fingerprint = table_layout(table, part->layout)->fingerprint,
                .rule = part->rule,
                .window = part->window,
                .lease_ms = LEASE_SLACK_MS,
                .keys = f->parts[p].keys + (size_t)f->base * KVC_KEY_BYTES,
                .n_keys = f->n_keys - f->base,
            }};

        link_send(peer->control, &m);
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
    uint32_t n = 0;

    list_for_each(peer, &f->peers->list, link)
        if (peer->hinted && can_ask(f, peer))
            names[n++] = peer->name;
    if (f->peers->directory != NULL && f->tenant == f->peers->tenant &&
        directory_ask(f->peers->directory, f->peers->next_id + 1, f->parts[0].part,
                      f->parts[0].keys + (size_t)f->base * KVC_KEY_BYTES, f->n_keys - f->base,
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

        if (o->peer != NULL && !o->failed && o->n_due > 0 && now < f->asked_us + f->patience_us)
            return false;
    }
    return true;
}

void fetch_answer(struct peer *peer, const struct message_answer *a)
{
    struct fetch *f;
    const struct message m = {.type = MESSAGE_RELEASE, .id = a->lease};

    list_for_each(f, &peer->peers->fetches, link) {
        for (uint32_t i = 0; i < f->n_offers && f->state == FETCH_ASKING; i++) {
            struct offer *o = &f->offers[i];
            const uint64_t p = a->id - o->first_id;
            const uint32_t n = f->n_keys - f->base;

            if (o->peer != peer || p >= f->n_parts || (o->answered & 1ull << p) != 0)
                continue;
            o->n_due--;
            o->answered |= 1ull << p;
            o->leases[p] = a->lease;
            o->parts[p] = a->part;
            o->firsts[p] = a->first;
            o->load = a->load;
            if (a->status != KVC_OK || a->count == 0 || a->lease == 0 || a->first > n ||
                a->count > n - a->first) {
                o->failed = true;
            } else {
                o->first = a->first > o->first ? a->first : o->first;
                o->end = a->first + a->count < o->end ? a->first + a->count : o->end;
            }
            if (fetch_is_decided(f, clock_now_us()))
                fetch_decide(f);
            return;
        }
    }
    /* Nobody waits for it any more. */
    peer->stale++;
    if (a->lease != 0 && peer->control != NULL)
        link_send(peer->control, &m);
}

#endif
