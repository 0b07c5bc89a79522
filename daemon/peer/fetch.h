/* What the files of fetches share; included by fetch*.c only. */
#ifndef KVC_PEER_FETCH_H
#define KVC_PEER_FETCH_H

#include "daemon/peer/state.h"

#define ROUNDS_MAX     4u
#define HOLD_MS        2000u  /* what came is leased here, so that its waiter can */
#define LEASE_SLACK_MS 30000u /* at the source, behind the deadline: batches that move end */

enum fetch_state {
    FETCH_ASKING,  /* answers are waited for */
    FETCH_LEASING, /* ... of those who were chosen for what rules need */
    FETCH_MOVING,  /* batches are under way */
    FETCH_PENDING, /* somebody else is filling what is missing */
    FETCH_OVER,    /* batches of a save that has failed are waited for */
};

struct fetch_part {
    uint32_t part, epoch;
    uint32_t needed; /* blocks in front of a boundary; UINT32_MAX: all, it is a full one */
    const struct shape *shape;
    const uint8_t *keys; /* n_keys */
    /* Of this round: what goes into the save is keys start .. fetch::end - 1, and the first of
     * them is the save's key number `place`. */
    uint32_t start, place;
};

/* Who gives a key of the save. */
struct fetch_source {
    uint32_t offer; /* PEERS_MAX: nobody, it is here */
    uint32_t place; /* in the lease there */
};

/* What one peer has of the keys that were asked for. Ranges are of fetch::missing. */
struct offer {
    struct peer *peer; /* NULL: it is gone */
    uint64_t first_id; /* of the queries, one a part */
    uint32_t n_due;
    uint64_t answered; /* a bit a part */
    bool failed;       /* it has nothing of a full part, or not what it said of another */
    bool used;
    uint32_t first, end; /* that it has of every full part */
    uint64_t load;
    uint64_t leases[KVC_PARTS_MAX];
    uint32_t firsts[KVC_PARTS_MAX]; /* where each lease begins */
    uint32_t parts[KVC_PARTS_MAX];  /* there */
    uint32_t wanted[KVC_PARTS_MAX]; /* keys of parts that are not full, to be leased */
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
    uint32_t tenant;
    uint64_t began_us, asked_us, patience_us, deadline_us;
    peers_fetched_cb *fetched; /* NULL: nobody waits */
    void *arg;
    uint32_t n_parts, n_keys, base, round;
    struct fetch_part parts[KVC_PARTS_MAX];
    uint8_t *keys;

    /* What is where: sets of keys, each a bit a key for each part (fetch_bits). */
    uint32_t words, n_full;
    uint64_t *bits;
    uint32_t *missing, n_missing; /* keys behind `base` that a full part lacks here */
    uint32_t end;                 /* of this round: the boundary that is fetched for */
    struct fetch_source *sources; /* of the save's keys */

    uint32_t n_offers;
    struct offer *offers; /* PEERS_MAX */
    struct peer *failed[PEERS_MAX];
    uint32_t n_failed;

    struct save *save;
    uint32_t n_chunks, chunks_left;
    struct fetch_chunk *chunks;
    uint64_t *cells; /* of assigned blocks */
    bool lost;       /* a batch of this round has failed */
    bool host_only;  /* what was to come into GPU memory could not */
    uint64_t hint;   /* number of what the directory is asked; 0: nothing */
    bool dropping;
};

/* Of two there is one an offer: what it has; and, by the place in its lease, what is to be read
 * from its GPU. */
enum fetch_set {
    FETCH_HERE,
    FETCH_COMING,
    FETCH_ANY,
    FETCH_OFFERS,
    FETCH_ON_GPU = FETCH_OFFERS + PEERS_MAX,
    FETCH_SETS = FETCH_ON_GPU + PEERS_MAX
};
static inline uint64_t *fetch_bits(const struct fetch *f, uint32_t set, uint32_t part)
{
    return f->bits + ((size_t)set * f->n_parts + part) * f->words;
}
static inline bool fetch_has(const struct fetch *f, uint32_t set, uint32_t part, uint32_t key)
{
    return fetch_bits(f, set, part)[key / 64] & 1ull << key % 64;
}
static inline bool fetch_is_full(const struct fetch *f, uint32_t part)
{
    return f->parts[part].needed == UINT32_MAX;
}

/* fetch.c */
void fetch_set_state(struct fetch *fetch, enum fetch_state state);
/* After a round: another one, or the end, which frees it. */
void fetch_go_on(struct fetch *fetch);
void fetch_free(struct fetch *fetch);

/* fetch_ask.c: asks every peer that has not failed; false: there is none. */
bool fetch_ask(struct fetch *fetch);
void fetch_exclude(struct fetch *fetch, struct peer *peer);
/* Whether all have answered, or have had their time. */
bool fetch_is_decided(const struct fetch *fetch, uint64_t now);
void fetch_release(struct fetch *fetch, struct offer *offer); /* its leases */
void fetch_release_all(struct fetch *fetch);

/* Asks one peer for keys of one part: to lease them, or which of them it has. */
void fetch_query(const struct fetch *fetch, struct peer *peer, uint64_t id, uint32_t part,
                 bool lease, const uint8_t *keys, uint32_t n_keys);

/* fetch_choose.c */

/* Looks what is here; whether something that matters is being filled. */
bool fetch_survey(struct fetch *fetch);
/* Shares out what was offered, and goes on to move it. May free the fetch. */
void fetch_decide(struct fetch *fetch);
/* The same when somebody who was chosen has answered, or has gone, or time has passed. */
void fetch_look_leases(struct fetch *fetch, uint64_t now);

/* fetch_move.c: begins to move what was chosen; false: there is nothing to move. */
bool fetch_move(struct fetch *fetch);

#endif
