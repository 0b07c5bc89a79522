/* What the files of services share; included by serve*.c only. */
#ifndef KVC_PEER_SERVE_H
#define KVC_PEER_SERVE_H

#include "daemon/peer/state.h"

enum service_state {
    SERVE_WAITING, /* for a lane */
    SERVE_STAGING, /* on the pool: from a GPU */
    SERVE_PACKING, /* on the pool */
    SERVE_SENDING, /* operations run */
    SERVE_PLACED,  /* the guest reads by itself until it says DONE */
};

struct put {
    struct ucx_op op;
    struct service *service;
};

/* A batch that a guest asked for. */
struct service {
    struct list link; /* guest::waiting or running */
    struct peers *peers;
    struct guest *guest;
    enum service_state state;
    uint64_t id, lease, view_bytes, bytes;
    uint32_t part, mode, n, lane, stage;
    uint64_t staged; /* a bit for each block that is on a GPU */
    bool running;
    const struct shape *shape;
    struct load *load; /* NULL: none is open */
    kvc_status status;
    uint32_t places[KVC_CHUNK_BLOCKS];
    uint64_t destinations[KVC_CHUNK_BLOCKS];
    uint8_t regions[KVC_CHUNK_BLOCKS];
    struct store_location from[KVC_CHUNK_BLOCKS];
    uint32_t n_puts, n_left;
    struct put puts[KVC_CHUNK_BLOCKS + 1];
    uv_work_t work;
};

/* serve.c */
void service_set_state(struct service *s, enum service_state state);
const uint8_t *service_address(const struct service *s, uint32_t i);
void service_report(const struct service *s); /* the RESULT, all is well */
void service_refuse(struct guest *g, uint64_t id, kvc_status status);
void service_unstage(struct service *s); /* what passed through is through; begins what waits */
void service_finish(struct service *s, bool served); /* frees it, and begins what waits */

/* serve_move.c: KVC_OK, or nothing has begun. */
kvc_status service_move(struct service *s);

/* serve_stage.c: blocks of a GPU are copied to host memory, and then it moves. KVC_E_BUSY: there
 * is no room now, and nothing has begun. */
kvc_status service_stage(struct service *s);
bool service_is_wanted(const struct service *s); /* whether the guest is still there */
const struct ucx_memory *service_memory(const struct service *s, uint32_t i); /* of its address */

#endif
