/*
 * The inside of a client. Nouns of libkvcache: client and session (connect, reconnect, close), rpc
 * (requests and replies), codec (protobuf), map (the daemon's memory), extents (which of it), part,
 * lend (the worker's memory, for the daemon to copy), lookup, load, save, flush, copy (devices),
 * cuda (the GPU), names (keys), figures and admin (for tools), pause (for tests). They include
 * proto/ and kernels/ and nothing of the daemon; kvcache.h is the door for others, and admin.h,
 * which is not installed, for kvcachectl, whose bench alone looks in here.
 *
 * Order of things in a call: client_enter, checks of the arguments, request and reply, check of the
 * whole reply, copies. Nothing that a daemon says is believed before it is checked; what cannot be
 * is client_distrust, which ends the connection.
 */
#ifndef KVC_CLIENT_CLIENT_H
#define KVC_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/codec.h"
#include "client/copy.h"
#include "client/kvcache.h"
#include "client/map.h"
#include "client/rpc.h"
#include "kernels/pack.h"

/*
 * Memory that is lent to the daemon, which copies a part's blocks itself: lend.c. Arrays live in
 * the same allocation.
 */
struct lent {
    uint64_t region; /* the daemon's number, of this session */
    uint32_t n_pieces, n_slices, n_blocks;
    bool on_gpu;
    int *fds;                   /* of memfds; others are exported when they are sent */
    uint64_t *bytes, *offsets;  /* of the pieces, in their memfds */
    uint64_t *devices, *inodes; /* of the memfds; on a GPU: the address, and whether it is legacy */
    uint32_t *slice_pieces;
    uint64_t *slice_offsets, *slice_strides; /* in the pieces */
};

/* A part as it was registered. Arrays live in one allocation. */
struct part {
    bool used;
    uint32_t id, epoch; /* the daemon's, of this session */
    uint32_t n_blocks;
    bool has_memory; /* its slices have addresses */
    struct pack_layout layout;
    struct pack_slice *slices;
    void *table;     /* what the device needs to know of them */
    uint8_t *dtypes; /* NULL: not given */
    uint8_t namespace_digest[KVC_NAMESPACE_BYTES];
    bool has_family;
    uint8_t family[CODEC_FAMILY_BYTES];
    uint32_t block_tokens, rule, window;
    char *name;
    struct lent *lent; /* NULL: this library copies */
};

/* A save that somebody may wait for. */
struct save_entry {
    uint64_t id;
    uint32_t calls; /* that have brought slices of it */
    bool ended;
    kvc_outcome outcome;
};
#define SAVES_MAX 1024u /* kept; the oldest ended ones are forgotten */
struct saves {
    uint32_t n;
    struct save_entry entries[SAVES_MAX]; /* oldest first */
};

/*
 * A piece of a load whose copies are enqueued: what its cells must be, once its mark is passed.
 * Arrays live in one allocation.
 */
struct load_entry {
    bool used;
    uint64_t id;      /* of the load; 0: nobody will ask, it only has to end */
    uint64_t session; /* whose part and slots are named */
    uint32_t part;
    uint32_t at, count; /* blocks of the load */
    uint32_t copied;    /* of them, before something failed */
    bool verify;
    uint64_t *sums; /* the caller's, of the entry's blocks, or NULL */
    void *mark;
    uint64_t *cells; /* the device writes them */
    uint64_t *checksums, *offsets;
    uint32_t *generations;
    uint8_t *checked, *tiers;
};
#define LOADS_MAX 64u /* pieces under way */
struct loads {
    uint64_t last_id;
    struct load_entry *entries[LOADS_MAX];
};

/* A session that has ended and that the daemon may not know to be drained. */
struct old_session {
    uint64_t id, boot_epoch;
    uint8_t secret[KVC_SECRET_BYTES];
};
#define OLD_SESSIONS_MAX 8u

/* MAP requests, one after the other, until the daemon has no more extents. */
struct pull {
    bool active;
    bool again; /* more was granted meanwhile */
    uint32_t cursor;
    uint64_t mapping_us; /* spent on mapping what came */
    kvc_status status;   /* of the last one that ended */
};

struct kvc_client {
    pid_t pid; /* of the process that connected */
    char *socket, *name;
    kvc_role role;
    uint32_t connect_ms, lookup_ms, save_ms, load_ms, remote_ms;

    struct old_session session; /* id 0: never connected */
    struct old_session old[OLD_SESSIONS_MAX];
    uint32_t n_old;
    char device[16];
    const struct copy_ops *copy;
    struct cuda *cuda; /* NULL until a daemon has a GPU */
    uint32_t keys_max;
    bool stopping; /* the daemon said so */

    struct map map;
    struct pull pull;
    struct part parts[KVC_PARTS_MAX]; /* handle - 1 */
    struct saves saves;
    struct loads loads;
    struct codec_scratch scratch;
    struct rpc rpc;
};

static inline bool role_copies(kvc_role role)
{
    return role == KVC_ROLE_WORKER || role == KVC_ROLE_READER;
}

/* First line of every call: KVC_E_INVALID, KVC_E_FORKED, or the error that the connection has. */
kvc_status client_enter(kvc_client *client);
/* An analyser of one file at a time does not see that NULL goes no further. */
#ifdef KVC_LINT
#define client_enter(client) ((client) == NULL ? KVC_E_INVALID : (client_enter)(client))
#endif

/*
 * A request, packed in client->rpc.body, and its reply; `packed` is what packing returned. Replies
 * bring no descriptors but to HELLO and MAP, which go other ways.
 */
struct call {
    uint16_t type;
    size_t len;
    uint64_t arg;         /* for whoever takes a late reply */
    uint32_t seq;         /* set on KVC_E_DEADLINE; 0: it was never sent */
    uint64_t deadline_us; /* 0: ms from now */
};
kvc_status client_call(kvc_client *client, struct call *call, kvc_status packed, uint32_t ms,
                       struct wire_packet *reply);

/* A reply or notice that cannot be: KVC_E_PROTOCOL, and the connection ends. */
kvc_status client_distrust(kvc_client *client, const char *field, const char *detail);
#ifdef KVC_LINT
#define client_distrust(...) ((client_distrust)(__VA_ARGS__), KVC_E_PROTOCOL)
#endif

/* A stream that begin or write_gate of the device does not take. Returns the status. */
kvc_status client_refuse_stream(kvc_client *client, kvc_status status);

/* session.c: begins a session. */
kvc_status client_open(kvc_client *client);

/* Parts: part.c. */
struct part *part_of(kvc_client *client, kvc_part handle); /* NULL: no such part */
/* The same, which says so. */
kvc_status part_find(kvc_client *client, kvc_part handle, struct part **part);
/* Announces one again. KVC_E_NO_DEVICE when its memory is not of the kind that the daemon's is. */
kvc_status part_again(kvc_client *client, struct part *part, uint32_t *extents);
void parts_free(kvc_client *client, bool inherited);

/* Extents: extents.c. */
kvc_status extents_pull(kvc_client *client, uint32_t granted);
void extents_take_reply(kvc_client *client, struct wire_packet *packet);
void extents_take_notice(kvc_client *client, const struct wire_packet *packet);

/* Memory for copies by the daemon: lend.c. Checks, seals and populates it. */
kvc_status lend_make(kvc_client *client, const kvc_part_desc *desc, struct lent **lent);
kvc_status lend_announce(kvc_client *client, const struct part *part);
kvc_status lend_drop(kvc_client *client, const struct part *part);
bool lend_equal(const struct lent *a, const struct lent *b); /* NULL: none */
void lend_free(struct lent *lent);
struct lent *lend_allocate(uint32_t n_pieces, uint32_t n_slices); /* NULL: out of memory */
/* The same of a GPU's memory: lend_cuda.c. */
kvc_status lend_make_cuda(kvc_client *client, const kvc_part_desc *desc, struct lent **lent);
/* A packet's worth of pieces: kinds as the protocol numbers them, in order. */
struct lend_batch {
    uint8_t kinds[KVC_WIRE_FDS_MAX];
    uint32_t n_fds, n_handles;
    int fds[KVC_WIRE_FDS_MAX]; /* the caller's to close, also after a failure */
    uint8_t handles[KVC_WIRE_FDS_MAX * CODEC_HANDLE_BYTES];
};
#define LEND_MEMFD       1
#define LEND_CUDA_FD     2
#define LEND_CUDA_HANDLE 3
kvc_status lend_export_cuda(kvc_client *client, const struct lent *lent, uint32_t at, uint32_t n,
                            struct lend_batch *batch);
bool lend_any(const kvc_client *client);

/* A save whose keys all have a block: save.c. */
kvc_status save_present(kvc_client *client, const kvc_save_args *args, uint64_t *save);

/* Saves: save_wait.c. */
/* Stands for a save whose number is not known, since its answer was not awaited. */
#define SAVE_UNNAMED(seq)   (1ull << 63 | (seq))
#define SAVE_IS_UNNAMED(id) ((id) >> 63 != 0)
void saves_add(struct saves *saves, uint64_t id); /* open */
/* The calls for slices of a save so far, or NULL: it is not open. */
uint32_t *saves_calls(struct saves *saves, uint64_t id);
void saves_end(struct saves *saves, uint64_t id, const kvc_outcome *outcome);
void saves_end_all(struct saves *saves, kvc_status status);

/* call::arg of a load that the daemon copies: its late reply wants nothing done. */
#define LOAD_BY_DAEMON 1u
/* Loads by the daemon and what has become of them: load_daemon.c. n <= keys_max. */
kvc_status load_by_daemon(kvc_client *client, const kvc_load_args *args, const struct part *part,
                          uint32_t at, uint32_t n, bool *mismatch);
/* load.c: whether no block from `behind` on is to be loaded. */
bool load_is_last(const kvc_client *client, const kvc_load_args *args, uint32_t behind);
/* Loads: load_wait.c. */
/* All the entries there may be, where making one takes long. */
kvc_status loads_open(kvc_client *client);
void loads_free(kvc_client *client, bool inherited);
/* One that is not used, for load id. KVC_E_BUSY: all are under way. */
kvc_status loads_take(kvc_client *client, uint64_t id, struct load_entry **entry);
/* Waits and judges; entries of the load are free after it, unless KVC_E_DEADLINE. */
kvc_status loads_collect(kvc_client *client, uint64_t id, uint32_t ms, uint8_t *valid);
#define LOADS_NO_LIMIT UINT32_MAX
/* The same for a load that failed on its way; the client's error text stays. */
void loads_judge_rest(kvc_client *client, uint64_t id, uint8_t *valid);
/* Nobody will ask for it. */
void loads_forget(kvc_client *client, uint64_t id);

/* The late reply to a load that was given up: nothing will be read, which its word says. */
void load_take_late(kvc_client *client, const struct wire_packet *packet);
/* The late reply to a lookup or an adoption: nobody knows the lease. */
void lookup_take_late(kvc_client *client, uint16_t type, const struct wire_packet *packet);

#endif
