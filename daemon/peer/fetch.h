/* What the files of fetches share; included by fetch*.c only. */
#ifndef KVC_PEER_FETCH_H
#define KVC_PEER_FETCH_H

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
    uint32_t tenant;
    uint64_t began_us, asked_us, patience_us, deadline_us;
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

/* fetch.c */
void fetch_set_state(struct fetch *fetch, enum fetch_state state);
/* After a round: another one, or the end, which frees it. */
void fetch_go_on(struct fetch *fetch);
void fetch_free_round(struct fetch *fetch);
void fetch_free(struct fetch *fetch);

/* fetch_ask.c: asks every peer that has not failed; false: there is none. */
bool fetch_ask(struct fetch *fetch);
void fetch_exclude(struct fetch *fetch, struct peer *peer);
/* Whether all have answered, or have had their time. */
bool fetch_is_decided(const struct fetch *fetch, uint64_t now);
void fetch_release(struct fetch *fetch, struct offer *offer); /* its leases */
void fetch_release_all(struct fetch *fetch);

/* fetch_move.c: shares out what was offered, and begins to move it. May free the fetch. */
void fetch_decide(struct fetch *fetch);

#endif
