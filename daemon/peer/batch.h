/* What the files of batches share; included by batch*.c only. */
#ifndef KVC_PEER_BATCH_H
#define KVC_PEER_BATCH_H

#include "daemon/peer/state.h"

enum batch_state {
    BATCH_WAITING,
    BATCH_READYING, /* its slots get memory, on the pool if that takes long */
    BATCH_ASKED,    /* the RESULT, or the bytes, are waited for */
    BATCH_GETTING,  /* operations of this daemon run */
    BATCH_JUDGED,   /* on the pool: unpacked, verified */
    BATCH_LOST,     /* its link has ended: its memory is free when the endpoint is gone */
};

/* An operation that brings some of a batch's blocks. */
struct batch_piece {
    struct ucx_op op;
    struct batch *batch;
    uint64_t blocks; /* a bit each */
};

struct batch {
    struct list link; /* peer::waiting or running */
    struct peers *peers;
    struct peer *peer;
    struct fetch *fetch;
    const struct shape *shape;
    enum batch_state state;
    uint64_t id, lease, turn, bytes, begun_us;
    uint32_t part, chunk, mode, lane;
    enum view view;
    uint64_t view_bytes;
    bool told;     /* the RESULT has come */
    bool pooled;   /* the pool has it */
    bool forsaken; /* ... and it ends when the pool gives it back */
    uint32_t n;
    uint32_t n_left; /* operations that have not completed */
    kvc_status status, pool_status;
    struct batch_block blocks[KVC_CHUNK_BLOCKS];
    uint64_t cells[KVC_CHUNK_BLOCKS], checksums[KVC_CHUNK_BLOCKS];
    bool checked[KVC_CHUNK_BLOCKS];
    /* Blocks, a bit each: that an operation brings, that are here, that the pool looks at, or has
     * looked at. */
    uint64_t coming, came, taken, judged;
    /* Blocks of messages that seem to be here, though their operation has not completed: what was
     * marked before they were asked for has been written over. Verified, they are here; those
     * that were looked at in vain are doubted until they came. */
    uint64_t seen, doubted;
    uint64_t certain; /* of those that the pool looks at: they have come */
    struct batch_piece pieces[KVC_CHUNK_BLOCKS]; /* each at its first block */
    void (*ready)(struct batch *b);
    uv_work_t work;
};

/* batch.c */
void batch_set_state(struct batch *b, enum batch_state state);
uint8_t *batch_address(const struct batch *b, uint32_t i); /* of a block's slot */
uint64_t batch_all(const struct batch *b);                 /* a bit for each block */
struct batch *batch_find(struct peer *peer, uint64_t id);  /* that runs */
void batch_end(struct batch *b, kvc_status status);        /* frees it */
void batch_finish(struct batch *b, kvc_status status);     /* and begins what waits */

/* batch_move.c: from when it is begun until its bytes are here. */
void batch_begin(struct batch *b);

/* batch_judge.c */

/* After anything has happened to it: what is here and was not looked at is unpacked and verified;
 * it ends when nothing is left to come. */
void batch_settle(struct batch *b);
/* Before they are asked for: so that it can be seen when they are here. */
void batch_mark(struct batch *b);
/* Gives its slots memory, and goes on with `ready`. */
void batch_make_ready(struct batch *b, void (*ready)(struct batch *b));

#endif
