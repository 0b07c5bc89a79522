/* What the files of peers share; included by daemon/peer/ only. */
#ifndef KVC_PEER_STATE_H
#define KVC_PEER_STATE_H

#include "daemon/base/list.h"
#include "daemon/peer/directory.h"
#include "daemon/peer/link.h"
#include "daemon/peer/names.h"
#include "daemon/peer/peer.h"
#include "daemon/peer/plan.h"
#include "daemon/peer/secret.h"
#include "daemon/peer/sums.h"
#include "daemon/peer/ucx.h"
#include "daemon/peer/view.h"

#define PEER_LANES   2u /* batches of one peer that are under way, each with memory of its own */
#define PEER_READS   4u /* ... that are read from GPU to GPU: they need none */
#define PEERS_STAGES 4u /* batches on their way from a GPU, each with memory of its own */

/* A layout, as copies and checksums need it; made once and kept. */
struct shape {
    struct list link; /* peers::shapes */
    uint32_t layout;  /* in the table */
    uint64_t span;    /* bytes from the start of a slot to the end of its last slice */
    uint64_t largest; /* slice */
    struct pack_layout pack;
    uint32_t *slice_bytes;
    uint64_t offsets[];
};

/* Memory for the batches of one peer and direction. */
struct lanes {
    struct view_slab slab; /* all of it */
    struct ucx_memory memory;
    bool used[PEER_LANES];
};

/* Another daemon's memory. */
struct region {
    uint64_t base, bytes;
    struct ucx_rkey *rkey; /* NULL: there is no such region */
};

/* The extents of another daemon's GPU tier. */
struct gpu_extent {
    uint64_t base;         /* address there */
    struct ucx_rkey *rkey; /* NULL: it is not to be read */
};
struct gpu_keys {
    uint64_t extent_bytes;
    uint32_t n, known; /* extents: all, and those that it has told of so far */
    struct gpu_extent *extents;
};

/* The daemon's own session of a tenant, and near a GPU, which fills slots and holds what came. */
struct filler {
    struct list link; /* peers::fillers */
    uint32_t tenant, gpu;
    struct owner *owner;
};

enum peer_state {
    PEER_WAITING,   /* until its next attempt */
    PEER_RESOLVING, /* its name */
    PEER_LINKING,   /* and then the endpoint */
    PEER_OPEN,
    PEER_CLOSING, /* the endpoint, or the link, is not quite gone */
    PEER_STOPPED,
};

/* A daemon that this one asks. */
struct peer {
    struct list link; /* peers::list */
    struct peers *peers;
    enum peer_state state;
    bool hinted;     /* known by the directory: asked only for what that says it has */
    bool retired;    /* its place is another's: it goes when its timer is closed */
    uint32_t tenant; /* whose blocks are shared with it */
    char name[PEER_NAME_MAX], host[PEER_NAME_MAX], port[8];
    uv_timer_t timer; /* the next attempt; or the next look whether it lives */
    uv_getaddrinfo_t resolving;
    uint32_t backoff_ms, attempts; /* since it was open */
    uint64_t pinged_us;
    struct sockaddr_storage address; /* the latest that its name had; family 0: none yet */
    char reason[96];                 /* why it is not open, or why in this mode */

    struct link *control;
    struct ucx_endpoint *endpoint;
    struct ucx_op joining; /* flushes it: nothing is asked before it is connected */
    uint64_t joining_us;
    struct message_ready *ready; /* of the other side, until then */
    char transports[UCX_LANES_MAX];
    uint32_t mode; /* enum message_mode */
    bool may_send; /* MESSAGE_SEND, too */
    uint64_t epoch;
    struct region regions[TIER_COUNT];
    bool gpu_wanted; /* the lanes read GPUs' memory by themselves */
    struct gpu_keys gpu;
    struct lanes lanes;
    struct view_streak streak;
    struct list waiting, running; /* batches */
    uint64_t turn;                /* rank of the latest batch that was begun */
    uint32_t n_running;
    uint64_t bytes; /* in flight */
    uint64_t batches[VIEW_COUNT], useful, wire, registrations, stale;
};

/* A daemon that asks this one. */
struct guest {
    struct list link; /* peers::guests */
    struct peers *peers;
    struct link *control;          /* NULL: it has ended */
    struct ucx_endpoint *endpoint; /* NULL: it has not called yet, or has ended */
    struct message_ready *ready;   /* of the other side, until it calls */
    char name[PEER_NAME_MAX];
    uint32_t tenant; /* for it there is no other */
    uint64_t epoch;
    struct owner *owner;
    uint32_t modes;
    bool gpu; /* it knows how to read memory of GPUs here */
    struct region regions[TIER_COUNT];
    struct lanes lanes;
    struct list waiting, running; /* services */
    uint32_t n_waiting, n_running;
    uint32_t n_staged; /* services that have memory to pass through */
    uint64_t staged;   /* turn of its latest batch from a GPU */
    uint64_t batches, small, useful, wire, registrations, refused, stale;
};

struct peers {
    struct peers_config config;
    struct secret secret;
    struct ucx *ucx;
    struct ucx_worker *ask, *serve;
    struct ucx_memory memory[TIER_COUNT]; /* of the tiers that are host memory */
    struct ucx_memory *extents; /* of the GPU tier, where a transport reads them by itself */
    uint32_t n_extents;         /* 0: none does */
    struct sums *sums;          /* of what comes into them */
    struct tier *stage;         /* NULL: no memory is a GPU's */
    struct ucx_memory stage_memory;
    bool stage_used[PEERS_STAGES];
    uint64_t stage_turn;
    struct link_config ask_links, serve_links;
    uv_tcp_t listener;
    uv_timer_t tick;
    uint32_t handles; /* that are open: listener, tick */
    uint32_t workers; /* of ask and serve, that are open */
    bool stopping, draining;
    bool accept_waits;           /* somebody at the listener, for memory */
    struct directory *directory; /* NULL: there is none */
    char directory_host[PEER_NAME_MAX], directory_port[8];
    uint32_t tenant; /* of peers that name none, and of the directory */
    struct list list, guests, fillers, fetches, shapes;
    uint32_t n_greeted; /* guests that have lanes */
    uint32_t n_peers, n_guests, n_fetches, n_batches, n_services;
    uint64_t next_id; /* of queries and batches: begins at random, so that no stranger guesses it */
    uint64_t passes;  /* over the fetches */
    uint64_t bytes;   /* in flight to this daemon */
    uint64_t sending; /* by it */
    struct peers_figures figures;
};

/* shape.c. NULL: out of memory. */
const struct shape *shape_of(struct peers *peers, uint32_t layout);
void shapes_free(struct peers *peers);

/* memory.c */
kvc_status peers_register_tiers(struct peers *peers);
bool peers_is_memory(const struct peers *peers, enum tier_kind tier); /* that this process reads */
void peers_describe(struct peers *peers, const struct lanes *lanes, struct message_ready *ready);
struct message_ready *ready_keep(const struct message_ready *ready); /* NULL: out of memory */
kvc_status regions_open(struct ucx_endpoint *endpoint, const struct message_ready *ready,
                        struct region regions[TIER_COUNT]);
void regions_close(struct ucx_endpoint *endpoint, struct region regions[TIER_COUNT]);
bool region_holds(const struct region *region, uint64_t offset, uint64_t bytes);
kvc_status lanes_open(struct peers *peers, struct lanes *lanes);
void lanes_close(struct peers *peers, struct lanes *lanes);
uint32_t lane_take(struct lanes *lanes); /* PEER_LANES: none is free */
uint8_t *lane_base(const struct lanes *lanes, uint32_t lane);

/* gpu.c */
kvc_status gpu_open(struct peers *peers); /* before the loop runs */
void gpu_close(struct peers *peers);
bool gpu_is_native(const struct peers *peers, const char *lanes);
/* Whether bytes of the GPU tier lie in one extent that is registered; and as what. */
bool gpu_holds(const struct peers *peers, uint64_t offset, uint64_t bytes);
const struct ucx_memory *gpu_memory(const struct peers *peers, uint64_t offset);
void gpu_tell(struct guest *guest); /* the keys of all extents, if its lanes are for them */
kvc_status gpu_learn(struct peer *peer, const struct message_keys *keys);
void gpu_forget(struct peer *peer);
bool gpu_is_read(const struct peer *peer, uint64_t span); /* whether blocks of such slots are */
/* That these bytes of its GPU tier lie in; NULL: they cannot be read. */
const struct gpu_extent *gpu_extent_at(const struct peer *peer, uint64_t offset, uint64_t bytes);

/* staging.c: VIEW_SLAB_BYTES each. */
kvc_status staging_open(struct peers *peers); /* before the loop runs */
void staging_close(struct peers *peers);
/* PEERS_STAGES: there is none for it now. What is sent from one to a guest that hangs stays taken
 * until the guest is found silent, so nobody has a second one that would be missing when each of
 * the others, and one more who is yet to come, wants a first. */
uint32_t staging_take(struct peers *peers, const struct guest *guest);
void staging_give(struct peers *peers, uint32_t stage);
const uint8_t *staging_address(const struct peers *peers, uint32_t stage);
/* Pool thread: begins to copy from the GPU tier, and waits for what was begun. */
kvc_status staging_copy(const struct peers *peers, uint32_t stage, uint64_t at, uint64_t from,
                        uint64_t bytes, uint32_t *begun);
kvc_status staging_settle(const struct peers *peers, uint32_t begun);

/* filler.c */
kvc_status filler_of(struct peers *peers, const struct peers_want *want, struct owner **owner);
void fillers_end(struct peers *peers);
/* Registers a part that is in the table for an owner of the daemon's own. */
kvc_status peers_join(struct peers *peers, struct owner *owner, uint32_t part);

/* peers.c */
uint32_t peers_modes(const struct peers *peers);
/* The one-sided way that these lanes have by themselves; MESSAGE_VIEWS: none. */
uint32_t peers_native_mode(const struct peers *peers, const char *lanes);
bool lanes_have(const char *lanes, const char *kind);
/* Who may connect; and of which tenant he is. */
bool peers_is_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
bool peers_admit(const struct peers *peers, const struct sockaddr_storage *address,
                 uint32_t *tenant);
void peers_tick_soon(struct peers *peers);

/* asker.c */
kvc_status peer_add(struct peers *peers, const struct peer_name *name, uint32_t tenant,
                    bool hinted);
void peer_stop(struct peer *peer);
/* Makes room for another: of those that the directory had, one that is not to be reached goes soon.
 */
void peers_retire_one(struct peers *peers);
void peer_look(struct peer *peer, uint64_t now); /* whether it lives */
void peer_free(struct peer *peer);
extern const struct link_events peer_events;

/* guest.c */
bool guest_accept(struct peers *peers); /* false: it waits on at the listener, for memory */
void guest_look(struct guest *guest, uint64_t now);
void guest_settle(struct guest *guest);
/* UCX is called: of a peers. */
bool guest_is_expected(void *arg, const struct sockaddr_storage *from);
void guest_called(void *arg, uint64_t number, struct ucx_call *call);
extern const struct link_events guest_events;

/* serve*.c */
void serve_query(struct guest *guest, const struct message_query *query);
void serve_fetch(struct guest *guest, const struct message_fetch *fetch);
void serve_done(struct guest *guest, uint64_t id);
void serve_start_some(struct guest *guest); /* of what waits */
void serve_end_all(struct guest *guest);    /* its link has ended */

/* batch*.c */
struct batch_block {
    uint32_t place;  /* in the lease */
    uint32_t number; /* of the save's assigned blocks */
    uint64_t offset; /* of the slot in its tier */
    uint8_t tier;
};
struct batch;
/* Adds a batch to the peer's queue: `rank` blocks-of-the-fetch order within the fetch. */
struct batch_plan {
    struct fetch *fetch;
    struct peer *peer;
    const struct shape *shape;
    uint64_t lease;
    uint32_t part; /* there */
    uint32_t rank;
    uint32_t chunk;
    const struct batch_block *blocks;
    uint32_t n;
};
kvc_status batch_add(struct peers *peers, const struct batch_plan *plan);
void batch_drop_waiting(struct peers *peers,
                        struct fetch *fetch); /* those of a fetch that have not begun */
void batch_result(struct peer *peer, const struct message_result *result);
void batch_start_some(struct peers *peers);
void batch_link_lost(struct peer *peer);     /* what waits ends; what runs waits for the endpoint */
void batch_endpoint_gone(struct peer *peer); /* now it ends, too */
void batch_look(struct peer *peer, uint64_t now);
ucx_message_cb batch_message;
void batch_peek_all(void *arg); /* a peers': whether more of what is coming can be verified */

/* fetch*.c */
void fetch_answer(struct peer *peer, const struct message_answer *answer);
void fetch_peer_lost(struct peer *peer);
/* blocks: their cells were filled in if status is KVC_OK. */
void fetch_batch_ended(struct fetch *fetch, struct peer *peer, uint32_t chunk,
                       const struct batch_block *blocks, uint32_t n, const uint64_t *cells,
                       kvc_status status);
directory_hint_cb fetch_hint;
void fetch_look_all(struct peers *peers, uint64_t now);
void fetch_hurry_all(struct peers *peers); /* at the next tick their time is over */
void fetch_stop_all(struct peers *peers);

#endif
