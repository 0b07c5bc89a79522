/* The inside of a transfer, for the files transfer*.c only. */
#ifndef KVC_API_TRANSFER_INTERNAL_H
#define KVC_API_TRANSFER_INTERNAL_H

#include "daemon/api/gate.h"
#include "daemon/api/transfer.h"

enum chunk_state { CHUNK_WAITS, CHUNK_STARTED, CHUNK_ENDED };

struct transfer_chunk {
    struct copier_job job;
    struct transfer *transfer;
    uint32_t first; /* of the transfer's blocks */
    enum chunk_state state;
};

/* What the store said of a block that is loaded, and what slices before these added up to. */
struct loaded {
    uint64_t checksum, sum;
    uint32_t generation;
    bool checked;
    uint8_t key[KVC_KEY_BYTES];
};

struct transfer {
    struct list link; /* session::transfers */
    struct session *session;
    enum copier_way way;
    bool summed;
    uint32_t n_blocks, n_chunks, n_left; /* n_left: chunks that have not ended */
    struct copier_block *blocks;
    uint64_t *cells;
    struct transfer_chunk *chunks;
    uint32_t n_memories;
    struct memory *memories[KVC_ENTRIES_MAX]; /* each once a use */

    struct gate_wait gate; /* nothing begins before it has passed */

    struct save *save;
    uint64_t save_id;
    uint32_t cost;        /* in session::n_copies */
    uint32_t first_chunk; /* of the save's, as the store counts them */

    struct load *load;
    bool has_sums; /* which are answered with sums */
    bool compares; /* with these slices the blocks are whole */
    uint32_t part, seq;
    bool aborted; /* by abort_seq, which is answered too */
    uint32_t abort_seq;
    struct loaded *loaded;
    uint8_t *valid;
    kvc_status status; /* the first failure */
};

/* Room for so many blocks and chunks, none of which is there yet. NULL: out of memory. */
struct transfer *transfer_make(struct session *session, enum copier_way way, uint32_t n_blocks,
                               uint32_t n_chunks);
void transfer_release(struct transfer *transfer);
/* The gate of the request, which was checked; none is fine. */
void transfer_take_gate(struct transfer *transfer, const struct msg_gate *gate);

/* The chunks that are there; afterwards it ends by itself. */
void transfer_start_chunks(struct transfer *transfer);
/* Chunks that have not begun do not begin. The transfer is settled afterwards. */
void transfer_drop_waiting(struct transfer *transfer);
/* Ends it when no chunk is left. */
void transfer_settle(struct transfer *transfer);

/* A block is what its key names only if its checksum is the one that was published. */
void transfer_judge_loaded(struct transfer *transfer, uint32_t first, uint32_t n);
void transfer_reply_load(struct transfer *transfer);

#endif
