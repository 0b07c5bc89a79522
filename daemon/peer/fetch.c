/*
 * Fetches: what a lookup misses, asked of all peers, shared out, and saved as the daemon's own. A
 * fetch goes in rounds: a peer that fails leaves the rest to another round without it. Its waiter
 * is answered at the deadline, however far it has come; what is on its way then becomes blocks
 * still.
 */
#ifdef KVC_UCX

#include <assert.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/mem.h"
#include "daemon/peer/fetch.h"

void fetch_set_state(struct fetch *f, enum fetch_state state)
{
    static const uint8_t legal[] = {
        [FETCH_ASKING] =
            1u << FETCH_LEASING | 1u << FETCH_MOVING | 1u << FETCH_PENDING | 1u << FETCH_OVER,
        [FETCH_LEASING] =
            1u << FETCH_ASKING | 1u << FETCH_MOVING | 1u << FETCH_PENDING | 1u << FETCH_OVER,
        [FETCH_MOVING] = 1u << FETCH_ASKING | 1u << FETCH_PENDING | 1u << FETCH_OVER,
        [FETCH_PENDING] = 1u << FETCH_ASKING | 1u << FETCH_OVER,
        [FETCH_OVER] = 0,
    };

    assert(legal[f->state] & 1u << state);
    (void)legal;
    f->state = state;
}

/* Ends. */

static void free_round(struct fetch *f)
{
    mem_free(f->chunks);
    mem_free(f->cells);
    mem_free(f->sources);
    f->sources = NULL;
    f->chunks = NULL;
    f->cells = NULL;
    f->save = NULL;
    f->n_chunks = 0;
}

void fetch_free(struct fetch *f)
{
    free_round(f);
    list_remove(&f->link);
    f->peers->n_fetches--;
    mem_free(f->offers);
    mem_free(f->bits);
    mem_free(f->missing);
    mem_free(f->keys);
    mem_free(f);
}

static kvc_status look(struct fetch *f, bool hold, struct store_lookup_result *result)
{
    struct store_lookup_part parts[KVC_PARTS_MAX];
    const struct store_lookup lookup = {
        .lease_ms = HOLD_MS,
        .probe = !hold,
        .quiet = true,
        .parts = parts,
        .n_parts = f->n_parts,
    };

    for (uint32_t p = 0; p < f->n_parts; p++)
        parts[p] = (struct store_lookup_part){f->parts[p].part, f->parts[p].epoch, f->parts[p].keys,
                                              f->n_keys};
    return store_lookup(f->peers->config.store, f->owner, &lookup, result, NULL);
}

/* Tells the waiter, if there is one, and keeps what came for it for a while. */
static void answer(struct fetch *f)
{
    struct store_lookup_result result = {0};
    peers_fetched_cb *fetched = f->fetched;

    if (fetched == NULL)
        return;
    f->fetched = NULL;
    if (look(f, true, &result) != KVC_OK)
        result.count = 0;
    f->peers->figures.missed_fetches += result.count == 0;
    histogram_add(&f->peers->figures.durations, clock_now_us() - f->began_us);
    fetched(f->arg, result.count);
}

/* Everything that was leased is released, the waiter is told, and when no batch is left it goes. */
static void over(struct fetch *f)
{
    fetch_release_all(f);
    ucx_worker_leave(f->peers->ask);
    answer(f);
    if (f->chunks_left > 0)
        fetch_set_state(f, FETCH_OVER);
    else
        fetch_free(f);
}

/* After a round: another one, or the end. */
void fetch_go_on(struct fetch *f)
{
    struct store_lookup_result result = {0};
    const uint64_t now = clock_now_us();
    bool lost = f->lost;

    fetch_release_all(f);
    free_round(f);
    if (f->fetched == NULL || now >= f->deadline_us || f->peers->stopping ||
        look(f, false, &result) != KVC_OK || result.count >= f->n_keys) {
        over(f);
        return;
    }
    f->base = result.count;
    if (fetch_survey(f)) {
        if (f->state != FETCH_PENDING)
            fetch_set_state(f, FETCH_PENDING);
        return;
    }
    if (!lost || ++f->round >= ROUNDS_MAX) {
        over(f);
        return;
    }
    if (f->state != FETCH_ASKING)
        fetch_set_state(f, FETCH_ASKING);
    if (!fetch_ask(f))
        over(f);
}

/*
 * What is done for one fetch may end another, so each is looked for anew: the first that was not
 * yet come to in this pass.
 */
static struct fetch *next_of_pass(struct peers *peers, uint64_t pass)
{
    struct fetch *f;

    list_for_each(f, &peers->fetches, link) {
        if (f->pass == pass)
            continue;
        f->pass = pass;
        return f;
    }
    return NULL;
}

static void lose_peer(struct fetch *f, struct peer *peer)
{
    fetch_exclude(f, peer);
    for (uint32_t i = 0; i < f->n_offers; i++)
        if (f->offers[i].peer == peer)
            f->offers[i].peer = NULL;
    if (f->state != FETCH_ASKING && f->state != FETCH_LEASING)
        return;
    f->lost = true;
    if (f->state == FETCH_LEASING)
        fetch_look_leases(f, clock_now_us());
    else if (fetch_is_decided(f, clock_now_us()))
        fetch_decide(f);
}

void fetch_peer_lost(struct peer *peer)
{
    const uint64_t pass = ++peer->peers->passes;
    struct fetch *f;

    while ((f = next_of_pass(peer->peers, pass)) != NULL)
        lose_peer(f, peer);
}

/* Time. */

static void look_at(struct fetch *f, uint64_t now)
{
    if (now >= f->deadline_us && f->fetched != NULL) {
        answer(f);
        if (f->state == FETCH_MOVING) {
            batch_drop_waiting(f->peers, f);
            return;
        }
    }
    switch (f->state) {
    case FETCH_ASKING:
        if (now >= f->deadline_us)
            over(f);
        else if (fetch_is_decided(f, now))
            fetch_decide(f);
        break;
    case FETCH_LEASING:
        if (now >= f->deadline_us)
            over(f);
        else
            fetch_look_leases(f, now);
        break;
    case FETCH_PENDING:
        fetch_go_on(f);
        break;
    default:
        break;
    }
}

void fetch_look_all(struct peers *peers, uint64_t now)
{
    const uint64_t pass = ++peers->passes;
    struct fetch *f;

    while ((f = next_of_pass(peers, pass)) != NULL)
        look_at(f, now);
}

/* Beginning. */

static bool any_open(const struct peers *peers, uint32_t tenant)
{
    const struct peer *peer;

    list_for_each(peer, &peers->list, link)
        if (peer->state == PEER_OPEN && peer->tenant == tenant)
            return true;
    return false;
}

static kvc_status take_parts(struct fetch *f, const struct peers_want *want)
{
    const struct table *table = store_table(f->peers->config.store);

    for (uint32_t p = 0; p < want->n_parts; p++) {
        const struct store_lookup_part *from = &want->parts[p];
        struct fetch_part *to = &f->parts[p];
        kvc_status status;

        status = peers_join(f->peers, f->owner, from->part);
        if (status != KVC_OK)
            return status;
        to->part = from->part;
        to->epoch = from->epoch;
        to->needed = store_needed(f->peers->config.store, from->part);
        f->n_full += to->needed == UINT32_MAX;
        to->shape = shape_of(f->peers, table_part(table, from->part)->layout);
        to->keys = f->keys + (size_t)p * f->n_keys * KVC_KEY_BYTES;
        if (to->shape == NULL)
            return KVC_E_NO_MEMORY;
        memcpy((uint8_t *)to->keys, from->keys, (size_t)f->n_keys * KVC_KEY_BYTES);
    }
    return KVC_OK;
}

kvc_status peers_fetch(struct peers *peers, const struct peers_want *want,
                       peers_fetched_cb *fetched, void *arg, struct fetch **ret)
{
    struct fetch *f;
    kvc_status status;

    if (peers->stopping || !any_open(peers, want->tenant) || want->n_parts == 0 ||
        want->parts[0].n_keys == 0)
        return KVC_E_UNKNOWN;
    f = mem_zalloc(sizeof(*f));
    if (f == NULL)
        return KVC_E_NO_MEMORY;
    list_init(&f->link);
    f->peers = peers;
    f->tenant = want->tenant;
    f->state = FETCH_ASKING;
    f->n_parts = want->n_parts;
    f->n_keys = want->parts[0].n_keys;
    /* A save, and the answer's keys, are of so many at most. */
    if (f->n_keys > KVC_KEYS_MAX / f->n_parts)
        f->n_keys = KVC_KEYS_MAX / f->n_parts;
    f->fetched = fetched;
    f->arg = arg;
    f->began_us = clock_now_us();
    f->deadline_us = f->began_us + want->ms * CLOCK_MS_US;
    f->patience_us = want->ms * CLOCK_MS_US / 4;
    f->keys = mem_array((size_t)f->n_parts * f->n_keys, KVC_KEY_BYTES);
    f->offers = mem_array(PEERS_MAX, sizeof(*f->offers));
    f->missing = mem_array(f->n_keys, sizeof(*f->missing));
    f->words = (f->n_keys + 63) / 64;
    f->bits = mem_array((size_t)FETCH_SETS * f->n_parts * f->words, sizeof(*f->bits));
    peers->n_fetches++;
    list_push_back(&peers->fetches, &f->link);
    ucx_worker_join(peers->ask);
    status = f->keys != NULL && f->offers != NULL && f->missing != NULL && f->bits != NULL
                 ? filler_of(peers, want, &f->owner)
                 : KVC_E_NO_MEMORY;
    if (status == KVC_OK)
        status = take_parts(f, want);
    if (status == KVC_OK && !fetch_ask(f))
        status = KVC_E_UNKNOWN;
    if (status != KVC_OK) {
        ucx_worker_leave(peers->ask);
        fetch_free(f);
        return status;
    }
    peers->figures.fetches++;
    peers_tick_soon(peers);
    *ret = f;
    return KVC_OK;
}

void peers_drop(struct fetch *f)
{
    f->fetched = NULL;
    f->deadline_us = 0;
    if (f->state == FETCH_MOVING)
        batch_drop_waiting(f->peers, f);
    /* The rest at the next tick: the caller may be in the middle of something of its own. */
}

void fetch_hurry_all(struct peers *peers)
{
    struct fetch *f;

    list_for_each(f, &peers->fetches, link)
        f->deadline_us = 0;
    peers_tick_soon(peers);
}

void fetch_stop_all(struct peers *peers)
{
    const uint64_t pass = ++peers->passes;
    struct fetch *f;

    while ((f = next_of_pass(peers, pass)) != NULL) {
        f->deadline_us = 0;
        if (f->state == FETCH_ASKING || f->state == FETCH_LEASING || f->state == FETCH_PENDING)
            over(f);
        else
            answer(f);
    }
}

#endif
