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
#include "daemon/base/fault.h"
#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/peer/state.h"

#define ROUNDS_MAX     4u
#define HOLD_MS        2000u  /* what came is leased here, so that its waiter can */
#define LEASE_SLACK_MS 30000u /* at the source, behind the deadline */

enum fetch_state {
    FETCH_ASKING,  /* answers are waited for */
    FETCH_MOVING,  /* batches are under way */
    FETCH_PENDING, /* somebody else is filling what is missing */
    FETCH_OVER,    /* batches of a save that has failed are waited for */
};

struct fetch_part {
    uint32_t part, epoch;
    const struct shape *shape;
    const uint8_t *keys; /* n_keys */
};

/* What one peer has of the keys behind `base`. */
struct offer {
    struct peer *peer; /* NULL: it is gone */
    uint64_t first_id; /* of the queries, one a part */
    uint32_t n_due;
    uint64_t answered; /* a bit a part */
    bool failed;
    uint32_t first, end; /* that it has of every part */
    uint64_t load;
    uint64_t leases[KVC_PARTS_MAX];
    uint32_t firsts[KVC_PARTS_MAX]; /* where each lease begins */
    uint32_t parts[KVC_PARTS_MAX];  /* there */
};

struct fetch_chunk {
    uint32_t first, n, left; /* of the save's assigned blocks */
    kvc_status status;
};

struct fetch {
    struct list link; /* peers::fetches */
    uint64_t pass;
    struct peers *peers;
    enum fetch_state state;
    struct owner *owner;
    uint64_t asked_us, patience_us, deadline_us;
    peers_fetched_cb *fetched; /* NULL: nobody waits */
    void *arg;
    uint32_t n_parts, n_keys, base, round;
    struct fetch_part parts[KVC_PARTS_MAX];
    uint8_t *keys;

    uint32_t n_offers;
    struct offer *offers; /* PEERS_MAX */
    struct peer *failed[PEERS_MAX];
    uint32_t n_failed;

    struct save *save;
    uint32_t n_chunks, chunks_left;
    struct fetch_chunk *chunks;
    uint64_t *cells; /* of assigned blocks */
    bool lost;       /* a batch of this round has failed */
    uint64_t hint;   /* number of what the directory is asked; 0: nothing */
    bool dropping;
};

static void set_state(struct fetch *f, enum fetch_state state)
{
    static const uint8_t legal[] = {
        [FETCH_ASKING] = 1u << FETCH_MOVING | 1u << FETCH_PENDING | 1u << FETCH_OVER,
        [FETCH_MOVING] = 1u << FETCH_ASKING | 1u << FETCH_PENDING | 1u << FETCH_OVER,
        [FETCH_PENDING] = 1u << FETCH_ASKING | 1u << FETCH_OVER,
        [FETCH_OVER] = 0,
    };

    assert(legal[f->state] & 1u << state);
    (void)legal;
    f->state = state;
}

/* Leases at the sources. */

static void release_part(struct offer *offer, uint32_t p)
{
    const struct message m = {.type = MESSAGE_RELEASE, .id = offer->leases[p]};

    if (offer->leases[p] != 0 && offer->peer != NULL && offer->peer->control != NULL)
        link_send(offer->peer->control, &m);
    offer->leases[p] = 0;
}

static void release(struct fetch *f, struct offer *offer)
{
    for (uint32_t p = 0; p < f->n_parts; p++)
        release_part(offer, p);
}

static void release_all(struct fetch *f)
{
    for (uint32_t i = 0; i < f->n_offers; i++)
        release(f, &f->offers[i]);
    f->n_offers = 0;
}

/* Ends. */

static void free_round(struct fetch *f)
{
    mem_free(f->chunks);
    mem_free(f->cells);
    f->chunks = NULL;
    f->cells = NULL;
    f->save = NULL;
    f->n_chunks = 0;
}

static void free_fetch(struct fetch *f)
{
    free_round(f);
    list_remove(&f->link);
    f->peers->n_fetches--;
    mem_free(f->offers);
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
    fetched(f->arg, result.count);
}

/* Everything that was leased is released, the waiter is told, and when no batch is left it goes. */
static void over(struct fetch *f)
{
    release_all(f);
    answer(f);
    if (f->chunks_left > 0)
        set_state(f, FETCH_OVER);
    else
        free_fetch(f);
}

/* Asking. */

static bool is_excluded(const struct fetch *f, const struct peer *peer)
{
    for (uint32_t i = 0; i < f->n_failed; i++)
        if (f->failed[i] == peer)
            return true;
    return false;
}

static void exclude(struct fetch *f, struct peer *peer)
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
    return peer->state == PEER_OPEN && peer->control->state == LINK_OPEN && !is_excluded(f, peer) &&
           f->n_offers < PEERS_MAX;
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
    if (f->peers->directory != NULL &&
        directory_ask(f->peers->directory, f->peers->next_id + 1, f->parts[0].part,
                      f->parts[0].keys + (size_t)f->base * KVC_KEY_BYTES, f->n_keys - f->base,
                      names, n))
        f->hint = ++f->peers->next_id;
#else
    (void)f;
#endif
}

static bool is_decided(const struct fetch *f, uint64_t now);
static void decide(struct fetch *f);

/* Asks every peer that has not failed; false: there is none. */
static bool ask(struct fetch *f)
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
        if (is_decided(f, clock_now_us()))
            decide(f);
        return;
    }
}

/* Sharing out. */

struct assigned {
    uint32_t part, key, chunk;
    struct store_location at;
};

/* Which source gives each of the keys 0 .. total - 1 of each part; merged as T9 wants it. */
static bool choose_sources(const struct fetch *f, const struct plan_share *shares,
                           uint32_t n_shares, uint32_t total, uint32_t *sources)
{
    const uint32_t n = f->n_parts * total;
    struct plan_want *wants = mem_array(n, sizeof(*wants));
    struct plan_place *places = mem_array(n, sizeof(*places));
    uint32_t *scratch = mem_array(n, sizeof(*scratch)), n_places = 0;
    bool ok = wants != NULL && places != NULL && scratch != NULL;

    for (uint32_t p = 0, i = 0; ok && p < f->n_parts; p++)
        for (uint32_t s = 0; s < n_shares; s++)
            for (uint32_t k = 0; k < shares[s].count; k++, i++)
                wants[i] = (struct plan_want){
                    f->parts[p].keys + (size_t)(f->base + shares[s].first + k) * KVC_KEY_BYTES,
                    (uint64_t)p * total + shares[s].first + k, f->parts[p].part, shares[s].source};
    ok = ok && plan_merge(wants, n, scratch, places, &n_places) == KVC_OK && n_places == n;
    for (uint32_t i = 0; ok && i < n; i++)
        sources[i] = wants[places[i].want].source;
    mem_free(scratch);
    mem_free(places);
    mem_free(wants);
    return ok;
}

/* Slots for what is missing, in the host tier if that can be had. */
static kvc_status open_save(struct fetch *f, uint32_t total, struct store_save_result *result)
{
    struct store_save_entry entries[KVC_PARTS_MAX];
    const struct store_save req = {
        .entries = entries,
        .n_entries = f->n_parts,
        .checksums = true,
        .by_daemon = true,
        .place =
            peers_is_memory(f->peers, TIER_GPU) ? STORE_PLACE_HOST_FIRST : STORE_PLACE_HOST_ONLY,
    };
    struct store *store = f->peers->config.store;
    uint32_t short_of;
    kvc_status status;

    for (uint32_t p = 0; p < f->n_parts; p++)
        entries[p] = (struct store_save_entry){
            .part = f->parts[p].part,
            .epoch = f->parts[p].epoch,
            .keys = f->parts[p].keys + (size_t)f->base * KVC_KEY_BYTES,
            .n_keys = total,
        };
    status = store_save_open(store, f->owner, &req, &f->save, &short_of, NULL);
    if (status == KVC_OK)
        store_save_seal(store, f->save, result);
    return status;
}

/* A batch is of one part and one source, and lies in one chunk of the save. */
static kvc_status add_batches(struct fetch *f, const struct assigned *assigned, uint32_t n,
                              const uint32_t *sources, uint32_t total)
{
    struct batch_block blocks[KVC_CHUNK_BLOCKS];
    struct batch_plan plan = {.fetch = f, .blocks = blocks};
    struct plan_cut cut = {0};
    const struct assigned *last = NULL;
    uint32_t last_source = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct assigned *a = &assigned[i];
        const uint32_t source = sources[a->part * total + a->key];
        const struct offer *offer = &f->offers[source];
        const struct shape *shape = f->parts[a->part].shape;
        bool begins = plan_cut_next(&cut, shape->span, VIEW_SLAB_BYTES);

        if (last != NULL &&
            (begins || a->part != last->part || source != last_source || a->chunk != last->chunk)) {
            if (batch_add(f->peers, &plan) != KVC_OK)
                return KVC_E_NO_MEMORY;
            plan.rank++;
            plan.n = 0;
            cut = (struct plan_cut){.bytes = shape->span, .blocks = 1};
        }
        plan.peer = offer->peer;
        plan.shape = shape;
        plan.lease = offer->leases[a->part];
        plan.part = offer->parts[a->part];
        plan.chunk = a->chunk;
        blocks[plan.n++] = (struct batch_block){
            .place = a->key - offer->firsts[a->part],
            .number = i,
            .offset = a->at.offset,
            .tier = a->at.tier,
        };
        last = a;
        last_source = source;
    }
    return plan.n > 0 ? batch_add(f->peers, &plan) : KVC_OK;
}

/* The save's chunks, and which key is in which. */
static void note_chunks(struct fetch *f, const struct store_save_result *result, uint32_t n_keys,
                        uint32_t total, struct assigned *assigned)
{
    uint32_t n = 0, chunk = 0;

    for (uint32_t c = 0, first = 0; c < result->n_chunks; c++) {
        f->chunks[c] =
            (struct fetch_chunk){first, result->chunks[c].blocks, result->chunks[c].blocks, KVC_OK};
        first += result->chunks[c].blocks;
    }
    for (uint32_t i = 0; i < n_keys; i++) {
        if (result->states[i] != STORE_KEY_ASSIGNED)
            continue;
        while (n == f->chunks[chunk].first + f->chunks[chunk].n)
            chunk++;
        assigned[n++] = (struct assigned){i / total, i % total, chunk, result->locations[i]};
    }
}

static void chunk_told(struct fetch *f, struct fetch_chunk *chunk)
{
    struct store *store = f->peers->config.store;
    struct save *save = f->save;
    uint32_t number = (uint32_t)(chunk - f->chunks);

    assert(f->chunks_left > 0);
    f->chunks_left--;
    if (chunk->status == KVC_OK)
        f->peers->figures.fetched_blocks += chunk->n;
    store_chunk_copied(store, save, number,
                       chunk->status == KVC_OK ? f->cells + chunk->first : NULL, chunk->status);
}

static void go_on(struct fetch *f);

/* There are blocks that no batch stands for: the save ends without them. */
static void give_up(struct fetch *f)
{
    f->dropping = true;
    batch_drop_waiting(f->peers, f);
    for (uint32_t c = 0; c < f->n_chunks; c++) {
        struct fetch_chunk *chunk = &f->chunks[c];

        if (chunk->left == 0)
            continue;
        chunk->left = 0;
        chunk->status = KVC_E_NO_MEMORY;
        chunk_told(f, chunk);
    }
    go_on(f);
}

/* Takes the save's slots and cuts batches; false: there is nothing to move. */
static bool move(struct fetch *f, const struct plan_share *shares, uint32_t n_shares,
                 uint32_t total)
{
    const uint32_t n = f->n_parts * total;
    uint32_t *sources = mem_array(n, sizeof(*sources));
    struct assigned *assigned = mem_array(n, sizeof(*assigned));
    uint32_t n_assigned;
    struct store_save_result result = {
        .states = mem_array(n, 1),
        .locations = mem_array(n, sizeof(struct store_location)),
        .chunks = mem_array(n, sizeof(struct store_chunk)),
    };
    bool moving = false;

    f->cells = mem_array(n, sizeof(*f->cells));
    f->chunks = mem_array(n, sizeof(*f->chunks));
    if (sources == NULL || assigned == NULL || result.states == NULL || result.locations == NULL ||
        result.chunks == NULL || f->cells == NULL || f->chunks == NULL ||
        !choose_sources(f, shares, n_shares, total, sources) ||
        open_save(f, total, &result) != KVC_OK || result.save == 0)
        goto free_all;
    f->n_chunks = f->chunks_left = result.n_chunks;
    note_chunks(f, &result, n, total, assigned);
    moving = true;
    f->dropping = false;
    set_state(f, FETCH_MOVING);
    n_assigned = f->chunks[f->n_chunks - 1].first + f->chunks[f->n_chunks - 1].n;
    if (add_batches(f, assigned, n_assigned, sources, total) != KVC_OK)
        give_up(f);
free_all:
    mem_free(result.chunks);
    mem_free(result.locations);
    mem_free(result.states);
    mem_free(assigned);
    mem_free(sources);
    if (!moving)
        free_round(f);
    return moving;
}

/* All have answered, or those who have not had their time. */
static void decide(struct fetch *f)
{
    struct plan_offer offers[PEERS_MAX];
    struct plan_share shares[PEERS_MAX];
    struct peers *peers = f->peers;
    uint32_t n_shares, total = 0;
    bool used[PEERS_MAX] = {false};

    for (uint32_t i = 0; i < f->n_offers; i++) {
        const struct offer *o = &f->offers[i];
        bool whole = o->n_due == 0 && !o->failed && o->peer != NULL && o->end > o->first;

        offers[i] = (struct plan_offer){o->first, whole ? o->end - o->first : 0, o->load};
    }
    n_shares = plan_choose(offers, f->n_offers, shares);
    for (uint32_t i = 0; i < n_shares; i++) {
        used[shares[i].source] = true;
        total += shares[i].count;
    }
    for (uint32_t i = 0; i < f->n_offers; i++)
        if (!used[i])
            release(f, &f->offers[i]);
    if (total == 0 || !move(f, shares, n_shares, total))
        go_on(f);
    batch_start_some(peers);
}

/* One slow peer does not hold up what others have. */
static bool is_decided(const struct fetch *f, uint64_t now)
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

/* After a round: another one, or the end. */
static void go_on(struct fetch *f)
{
    struct store_lookup_result result = {0};
    const uint64_t now = clock_now_us();
    bool lost = f->lost;

    release_all(f);
    free_round(f);
    if (f->fetched == NULL || now >= f->deadline_us || f->peers->stopping ||
        look(f, false, &result) != KVC_OK || result.count >= f->n_keys) {
        over(f);
        return;
    }
    f->base = result.count;
    if (result.pending > 0) {
        if (f->state != FETCH_PENDING)
            set_state(f, FETCH_PENDING);
        return;
    }
    if (!lost || ++f->round >= ROUNDS_MAX) {
        over(f);
        return;
    }
    if (f->state != FETCH_ASKING)
        set_state(f, FETCH_ASKING);
    if (!ask(f))
        over(f);
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
            if (is_decided(f, clock_now_us()))
                decide(f);
            return;
        }
    }
    /* Nobody waits for it any more. */
    peer->stale++;
    if (a->lease != 0 && peer->control != NULL)
        link_send(peer->control, &m);
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
    exclude(f, peer);
    for (uint32_t i = 0; i < f->n_offers; i++)
        if (f->offers[i].peer == peer)
            f->offers[i].peer = NULL;
    if (f->state != FETCH_ASKING)
        return;
    f->lost = true;
    if (is_decided(f, clock_now_us()))
        decide(f);
}

void fetch_peer_lost(struct peer *peer)
{
    const uint64_t pass = ++peer->peers->passes;
    struct fetch *f;

    while ((f = next_of_pass(peer->peers, pass)) != NULL)
        lose_peer(f, peer);
}

void fetch_batch_ended(struct fetch *f, struct peer *peer, uint32_t chunk_number,
                       const struct batch_block *blocks, uint32_t n, const uint64_t *cells,
                       kvc_status status)
{
    struct fetch_chunk *chunk = &f->chunks[chunk_number];

    if (status == KVC_OK)
        for (uint32_t i = 0; i < n; i++)
            f->cells[blocks[i].number] = cells[i];
    else if (chunk->status == KVC_OK)
        chunk->status = status;
    if (status != KVC_OK && status != KVC_E_CANCELLED) {
        f->lost = true;
        exclude(f, peer);
    }
    assert(chunk->left >= n);
    chunk->left -= n;
    if (chunk->left > 0)
        return;
    chunk_told(f, chunk);
    if (f->chunks_left > 0) {
        if (!f->dropping && !store_save_goes_on(f->save)) {
            f->dropping = true;
            batch_drop_waiting(f->peers, f);
        }
        return;
    }
    if (f->state == FETCH_OVER)
        free_fetch(f);
    else
        go_on(f);
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
        else if (is_decided(f, now))
            decide(f);
        break;
    case FETCH_PENDING:
        go_on(f);
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

static bool any_open(const struct peers *peers)
{
    const struct peer *peer;

    list_for_each(peer, &peers->list, link)
        if (peer->state == PEER_OPEN)
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

        if (table_part(table, from->part)->rule != STORE_RULE_FULL)
            return KVC_E_UNSUPPORTED;
        status = peers_join(f->peers, f->owner, from->part);
        if (status != KVC_OK)
            return status;
        to->part = from->part;
        to->epoch = from->epoch;
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

    if (peers->stopping || want->tenant != peers->tenant || !any_open(peers) ||
        want->n_parts == 0 || want->parts[0].n_keys == 0)
        return KVC_E_UNKNOWN;
    f = mem_zalloc(sizeof(*f));
    if (f == NULL)
        return KVC_E_NO_MEMORY;
    list_init(&f->link);
    f->peers = peers;
    f->state = FETCH_ASKING;
    f->n_parts = want->n_parts;
    f->n_keys = want->parts[0].n_keys;
    /* A save, and the answer's keys, are of so many at most. */
    if (f->n_keys > KVC_KEYS_MAX / f->n_parts)
        f->n_keys = KVC_KEYS_MAX / f->n_parts;
    f->fetched = fetched;
    f->arg = arg;
    f->deadline_us = clock_now_us() + want->ms * CLOCK_MS_US;
    f->patience_us = want->ms * CLOCK_MS_US / 4;
    f->keys = mem_array((size_t)f->n_parts * f->n_keys, KVC_KEY_BYTES);
    f->offers = mem_array(PEERS_MAX, sizeof(*f->offers));
    peers->n_fetches++;
    list_push_back(&peers->fetches, &f->link);
    status = f->keys != NULL && f->offers != NULL ? filler_of(peers, want->tenant, &f->owner)
                                                  : KVC_E_NO_MEMORY;
    if (status == KVC_OK)
        status = take_parts(f, want);
    if (status == KVC_OK && !ask(f))
        status = KVC_E_UNKNOWN;
    if (status != KVC_OK) {
        free_fetch(f);
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

void fetch_stop_all(struct peers *peers)
{
    const uint64_t pass = ++peers->passes;
    struct fetch *f;

    while ((f = next_of_pass(peers, pass)) != NULL) {
        f->deadline_us = 0;
        if (f->state == FETCH_ASKING || f->state == FETCH_PENDING)
            over(f);
        else
            answer(f);
    }
}

#endif
